"""The recipes for FastAPI and Airflow in the questions and answers: requests, and a real run."""

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import nescio as ns

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "questions.md").read_text("utf-8")
AIRFLOW = ROOT / "build" / "airflow" / "bin" / "airflow"
DAYS = {"2026-01-01": -2, "2026-01-02": -9}  # the mean logit; the second day is another stream


def test_the_fastapi_application_answers_requests():
    pytest.importorskip("fastapi")
    from starlette.testclient import TestClient

    names: dict = {}
    source = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)[1]
    exec(compile(source, "the application", "exec"), names)
    client = TestClient(names["app"])
    rows = names["inputs"][:3].copy()
    rows[2] *= 100
    answer = client.post("/predict", json=rows.tolist()).json()
    expected = names["guarded"](rows)
    assert answer["in_distribution"] == expected.in_distribution.tolist() == [True, True, False]
    assert answer["p_value"] == expected.assessment.p_values.tolist()
    assert answer["predicted"][:2] == [["dog"], ["dog", "car"]]
    for wrong in ([[1.0, 2.0]], [[1.0], [1.0, 2.0]], [["a"]]):
        assert client.post("/predict", json=wrong).status_code == 422


@pytest.fixture
def dag(tmp_path, rng):
    """The DAG of the page, on files of two days in a folder of its own."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    held_out = ns.Outputs(rng.normal(-2, 3, (500, 3)), label_names=["a", "b", "c"])
    ns.JointEnergy().calibrate(held_out).save(tmp_path / "tagger.nescio")
    for day, mean in DAYS.items():
        columns = {name: rng.normal(mean, 3, 300) for name in "abc"}
        pq.write_table(pa.table(columns), tmp_path / f"{day}.parquet")
    [source] = re.findall(r"^```py\n(.*?)^```$", PAGE, re.M | re.S)
    return re.sub("/(models|data)/", f"{tmp_path.as_posix()}/", source)


def test_the_commands_of_the_dag_score_a_day_and_fail_if_the_stream_has_changed(dag, nescio):
    calls = [node for node in ast.walk(ast.parse(dag)) if isinstance(node, ast.Call)]
    tasks = [{item.arg: item.value for item in call.keywords} for call in calls]
    commands = [ast.literal_eval(task["bash_command"]) for task in tasks if "bash_command" in task]
    assert len(commands) == 2
    codes = [
        nescio(*shlex.split(command.replace("{{ ds }}", day))[1:])[0]
        for day in DAYS
        for command in commands
    ]
    assert codes == [0, 0, 0, 3]


@pytest.mark.slow
@pytest.mark.skipif(not AIRFLOW.exists(), reason="no Airflow: make build/airflow")
def test_airflow_runs_the_dag(dag, tmp_path):
    home = tmp_path / "airflow"
    (home / "dags").mkdir(parents=True)
    (home / "dags" / "verdicts.py").write_text(dag, "utf-8")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {
        "PATH": path,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "NO_COLOR": "1",
    }

    def airflow(*arguments):
        return subprocess.run(
            [AIRFLOW, *arguments], env=environment, capture_output=True, text=True, check=False
        )

    assert airflow("db", "migrate").returncode == 0
    first, second = (airflow("dags", "test", "verdicts", day) for day in DAYS)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "No alarm: the 300 inputs look like the calibration data" in first.stdout
    assert (tmp_path / "2026-01-02-scored.parquet").exists()
    assert second.returncode == 1
    assert "ALARM: " in second.stdout
    assert "non-zero exit code 3" in second.stdout + second.stderr
