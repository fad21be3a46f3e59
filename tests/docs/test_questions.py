"""The recipe for Airflow in the questions and answers, with stand-ins for Airflow's two classes."""

import contextlib
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest

import nescio as ns

PAGE = Path(__file__).resolve().parents[2] / "docs" / "questions.md"


class Operator:
    """What a BashOperator is told to run; `>>` states an order."""

    def __init__(self, *, task_id, bash_command, **_):
        self.task_id, self.command = task_id, bash_command

    def __rshift__(self, following):
        self.following = following


def test_the_tasks_of_the_dag_score_a_day_and_fail_if_the_stream_has_changed(
    nescio, monkeypatch, tmp_path, rng
):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for name, content in (
        ("airflow.sdk", {"DAG": lambda *_, **__: contextlib.nullcontext()}),
        ("airflow.providers.standard.operators.bash", {"BashOperator": Operator}),
    ):
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    [source] = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S)
    names: dict = {}
    exec(compile(source, "the DAG", "exec"), names)
    assert names["score"].following is names["watch"]

    detector = ns.JointEnergy().calibrate(
        ns.Outputs(rng.normal(-2, 3, (500, 3)), label_names=["a", "b", "c"])
    )
    detector.save(tmp_path / "tagger.nescio")
    codes = {}
    for day, mean in (("2026-01-01", -2), ("2026-01-02", -9)):
        columns = {name: rng.normal(mean, 3, 300) for name in "abc"}
        pq.write_table(pa.table(columns), tmp_path / f"{day}.parquet")
        for task in (names["score"], names["watch"]):
            command = task.command.replace("{{ ds }}", day)
            command = re.sub("/(models|data)/", f"{tmp_path}/", command)
            codes[day, task.task_id] = nescio(*shlex.split(command)[1:])[0]
    assert list(codes.values()) == [0, 0, 0, 3]
