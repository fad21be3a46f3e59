"""nescio.integrations.ray.Verdicts in Spark, where pyspark and Java are installed."""

import os
import shutil
import sys

import numpy as np
import pytest

import nescio as ns
from nescio.integrations.ray import Verdicts

sql = pytest.importorskip("pyspark.sql")
pandas = pytest.importorskip("pandas")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("java") is None, reason="Java is not installed"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # the sockets of pyspark
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas:FutureWarning"),
]


@pytest.fixture(scope="module")
def spark():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        yield from session()


def session():
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
    }
    builder = sql.SparkSession.builder.master("local[2]").appName("nescio")
    for name, value in settings.items():
        builder = builder.config(name, value)
    made = builder.getOrCreate()
    yield made
    made.stop()


def test_a_pandas_function_gives_the_verdicts_of_assess(spark, rng):
    names = ["cat", "dog", "cow"]
    known = ns.Outputs(rng.normal(-1, 3, (500, 3)), label_names=names)
    detector = ns.JointEnergy().calibrate(known)
    logits = rng.normal(-1, 3, (100, 3))
    frame = pandas.DataFrame(logits[:, ::-1], columns=names[::-1])
    frame["file"] = [f"{at:03}.jpg" for at in range(100)]
    schema = "file string, score double, p_value double, in_distribution boolean"
    verdicts = Verdicts(detector, keep="file")
    scored = spark.createDataFrame(frame).mapInPandas(verdicts.over, schema)
    rows = sorted(scored.collect(), key=lambda row: row["file"])
    expected = detector.assess(ns.Outputs(logits, label_names=names))
    np.testing.assert_array_equal([row["score"] for row in rows], expected.scores)
    assert [row["in_distribution"] for row in rows] == expected.in_distribution.tolist()
