"""nescio.integrations.ray.Verdicts on batches, without Ray, and in Spark."""

import inspect
import os
import pickle
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import nescio as ns
from nescio.errors import InputError, LabelMismatchError, ParameterError
from nescio.integrations.ray import Verdicts

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

ROOT = Path(__file__).resolve().parents[2]
NAMES = ["cat", "dog", "cow"]
ADDED = ["score", "p_value", "in_distribution"]


@pytest.fixture
def detector(rng):
    held_out = ns.Outputs(rng.normal(-1, 3, (900, 3)), label_names=NAMES)
    return ns.JointEnergy().calibrate(held_out, groups="label_count")


@pytest.fixture
def logits(rng):
    return rng.normal(-1, 3, (50, 3))


@pytest.fixture
def frame(logits):
    """The labels in another order, and other columns."""
    columns = {name: logits[:, NAMES.index(name)] for name in ("cow", "cat", "dog")}
    return pandas.DataFrame({"file": [f"{row}.jpg" for row in range(50)], "user": 7, **columns})


def test_a_frame_gets_the_verdicts_of_assess(detector, frame, logits):
    expected = detector.assess(ns.Outputs(logits, label_names=NAMES)).columns()
    judged = Verdicts(detector)(frame)
    assert list(judged.columns) == [*frame.columns, *ADDED, "group"]
    for name in (*ADDED, "group"):
        assert judged[name].tolist() == expected[name].tolist()
    assert judged["file"].tolist() == frame["file"].tolist()
    none = Verdicts(detector)(frame[:0])
    assert none.dtypes.equals(judged.dtypes)


def test_the_file_is_read_and_the_object_carries_its_detector(detector, frame, tmp_path):
    detector.save(tmp_path / "d.nescio")
    made = Verdicts(tmp_path / "d.nescio")
    (tmp_path / "d.nescio").unlink()
    sent = pickle.loads(pickle.dumps(made))
    assert sent(frame).equals(Verdicts(detector)(frame))


def test_a_list_column_of_logits(logits, rng):
    detector = ns.JointEnergy().calibrate(rng.normal(-1, 3, (900, 3)))
    frame = pandas.DataFrame({"id": range(50), "logits": list(logits)})
    assert Verdicts(detector)(frame)["score"].tolist() == detector.assess(logits).scores.tolist()


def test_the_columns_to_return(detector, frame):
    assert list(Verdicts(detector, keep="f*")(frame).columns) == ["file", *ADDED, "group"]
    assert list(Verdicts(detector, keep=())(frame).columns) == [*ADDED, "group"]
    with pytest.raises(InputError, match="no column 'name'"):
        Verdicts(detector, keep="name")(frame)
    with pytest.raises(InputError, match="a column 'score' already"):
        Verdicts(detector)(frame.assign(score=1))
    assert len(Verdicts(detector, keep="file")(frame.assign(score=1))) == 50


def test_what_cannot_be_scored(detector, frame):
    with pytest.raises(LabelMismatchError, match="Missing: 'cow'"):
        Verdicts(detector)(frame.drop(columns="cow"))
    with pytest.raises(InputError, match=r'got a dict.*batch_format="pandas"'):
        Verdicts(detector)({"cat": np.zeros(2), "dog": np.zeros(2), "cow": np.zeros(2)})
    probs = frame.assign(**{name: 1 / (1 + np.exp(-frame[name])) for name in NAMES})
    with pytest.raises(InputError, match="from_probs=True"):
        Verdicts(detector)(probs)
    np.testing.assert_allclose(
        Verdicts(detector, from_probs=True)(probs)["score"], Verdicts(detector)(frame)["score"]
    )
    bad = frame.assign(cat=np.nan)
    with pytest.raises(InputError, match="NaN"):
        Verdicts(detector)(bad)
    groups = np.array(["a", "b"] * 450)
    own = ns.JointEnergy().calibrate(np.random.default_rng(0).normal(size=(900, 3)), groups=groups)
    with pytest.raises(InputError, match="groups"):
        Verdicts(own)(frame[NAMES])
    with pytest.raises(ns.NotCalibratedError, match="no threshold yet"):
        Verdicts(ns.JointEnergy())
    with pytest.raises(ParameterError, match="expected a detector"):
        Verdicts(3)


def test_a_plain_loop_over_frames_as_mapinpandas_has_it(detector, frame):
    made = Verdicts(detector, keep="file")
    inspect.signature(made.over)  # Spark asks for it
    judged = pandas.concat(made.over(iter([frame[:20], frame[20:]])))
    assert judged.equals(made(frame))


@pytest.fixture
def spark(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)  # of Java too
        patch.syspath_prepend(ROOT / "build" / "spark")
        sql = pytest.importorskip("pyspark.sql")
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        builder = sql.SparkSession.builder.master("local[2]").appName("nescio")
        for name, value in {"ui.enabled": "false", "driver.host": "127.0.0.1"}.items():
            builder = builder.config(f"spark.{name}", value)
        made = builder.getOrCreate()
        yield made
        made.stop()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("java") is None, reason="Java is not installed")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the sockets of pyspark
@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning")
def test_the_recipe_for_spark_gives_the_verdicts_of_assess(spark, frame):
    page = (ROOT / "docs" / "how-to" / "run-on-a-cluster.md").read_text("utf-8")
    recipe = page.partition("## Spark")[2].partition("```py\n")[2].partition("```")[0]
    logits = np.random.default_rng(0).normal(-1, 3, (500, 3))
    ns.JointEnergy().calibrate(ns.Outputs(logits, label_names=NAMES)).save("tagger.nescio")
    Path("logits").mkdir()
    frame.to_parquet("logits/part.parquet")
    exec(compile(recipe, "the recipe", "exec"), {"spark": spark})
    verdicts = pandas.read_parquet("verdicts").set_index("file").loc[frame["file"]]
    expected = Verdicts("tagger.nescio", keep="file")(frame).set_index("file")
    pandas.testing.assert_frame_equal(verdicts, expected, check_dtype=False)
