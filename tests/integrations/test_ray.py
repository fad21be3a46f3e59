"""Scoring on Ray: on one machine, and on two nodes of which one is killed."""

import functools
import json
import os
import re
import shutil
import signal
import socket
import sys
import textwrap
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest

ray = pytest.importorskip("ray")
pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
import psutil

import nescio as ns
from nescio.cli import main
from nescio.integrations.ray import connected, count_processors, map_on_cluster
from nescio.outputs import files

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings(r"ignore::DeprecationWarning:ray\..*"),  # Ray's, about itself
    # Ray leaves streams and sockets of the processes that it has started to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

# Wherever this module is imported: work that says on which node it is done, and waits for a sign.
WORK = """
    import os
    import sys
    import time


    def work(folder, item):
        node = sys.modules["ray"].get_runtime_context().get_node_id()
        (folder / f"on-{node}").write_text(str(os.getpid()))
        while not (folder / "go").exists():
            time.sleep(0.02)
        (folder / f"done-on-{node}").touch()
        return item * item
"""


@pytest.fixture(scope="module")
def own_folder(tmp_path_factory):
    """A folder that the nodes import from."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "work_that_waits.py").write_text(textwrap.dedent(WORK))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        yield folder


@pytest.fixture(scope="module")
def cluster(own_folder):
    """Two nodes with one processor each."""
    from ray.cluster_utils import Cluster

    quick = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 200,
        "health_check_failure_threshold": 5,
    }
    node = {"num_cpus": 1, "object_store_memory": 80_000_000}
    head = {**node, "include_dashboard": False, "_system_config": quick}
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        made.add_node(**node)
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def test_scores_on_this_machine_equal_those_of_one_process_and_ray_leaves_nothing(
    rng, tmp_path, monkeypatch, capfd
):
    monkeypatch.setattr(files, "_MOST_ROWS", 64)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    logits = rng.normal(-1, 3, (1000, 3))
    table = {name: logits[:, index] for index, name in enumerate(("cat", "dog", "cow"))}
    table |= {"text": [f"row {index}" for index in range(1000)], "id": np.arange(1000) * 7}
    parquet.write_table(pyarrow.table(table), tmp_path / "new.parquet", row_group_size=300)
    held_out = ns.Outputs(rng.normal(-1, 3, (900, 3)), label_names=["cow", "cat", "dog"])
    ns.JointEnergy().calibrate(held_out, groups="label_count").save(tmp_path / "d.nescio")
    command = ["score", str(tmp_path / "d.nescio"), str(tmp_path / "new.parquet"), "--json", "-o"]
    assert main([*command, str(tmp_path / "local.parquet")]) == 0
    capfd.readouterr()
    assert main([*command, str(tmp_path / "ray.parquet"), "--engine", "ray"]) == 0
    said, complaints = capfd.readouterr()
    assert (json.loads(said)["n_samples"], complaints) == (1000, "")
    made, plain = (parquet.read_table(tmp_path / f"{name}.parquet") for name in ("ray", "local"))
    assert made.equals(plain)
    assert made["id"].to_pylist() == [str(7 * index) for index in range(1000)]
    # What was started is stopped and removed.
    trace = f"nescio-ray-{os.getpid()}-"
    assert not ray.is_initialized()
    assert not list(Path("/tmp").glob(f"{trace}*"))
    lines = [
        " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])
    ]
    assert not [line for line in lines if trace in line]


def test_a_node_that_is_killed_changes_nothing(cluster, own_folder, tmp_path, monkeypatch):
    from work_that_waits import work

    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    (victim,) = cluster.worker_nodes
    first = tmp_path / f"on-{victim.node_id}"

    def kill():
        while not (first.exists() and first.read_text()):
            time.sleep(0.02)
        cluster.remove_node(victim, allow_graceful=False)
        os.kill(int(first.read_text()), signal.SIGKILL)  # it would see the end of its node later
        (tmp_path / "go").touch()

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    with connected() as ray:
        waits = functools.partial(work, tmp_path)
        made = list(map_on_cluster(ray, waits, range(40), count_processors(ray)))
    killer.join()
    assert made == [item * item for item in range(40)]
    # The node had begun its part, and never came to its end.
    assert first.exists()
    assert not (tmp_path / f"done-{first.name}").exists()


SERVING = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "serve-elsewhere.md"


def test_ray_serve_gives_verdicts(cluster, own_folder, onnx_file, tmp_path, rng):
    """The class of the page, in a real replica, asked over HTTP."""
    serve = pytest.importorskip("ray.serve")
    model = onnx_file()
    names = ["cat", "dog", "cow", "hen"]
    wrapped = ns.wrap(str(model), detector="joint_energy", label_names=names)
    wrapped = wrapped.calibrate(rng.normal(size=(300, 6)).astype(np.float32), tpr=0.8)
    wrapped.save(own_folder / "tagger.nescio")
    shutil.copy(model, own_folder / "classifier.onnx")
    blocks = re.findall(r"^```py\n(.*?)^```$", SERVING.read_text("utf-8"), re.M | re.S)
    [source] = [block for block in blocks if "@serve.deployment" in block]
    (own_folder / "tagger.py").write_text(source)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ray.init(cluster.address, log_to_driver=False)
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        from tagger import app

        serve.run(app)
        rows = rng.normal(size=(40, 6)).astype(np.float32)
        body = json.dumps({"inputs": rows.tolist()}).encode()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", body) as answer:
            verdicts = json.load(answer)
    finally:
        serve.shutdown()
        ray.shutdown()
    expected = wrapped(rows)
    assert [tuple(names) for names in verdicts["predicted"]] == expected.label_lists()
    np.testing.assert_allclose(verdicts["probs"], expected.probs, atol=1e-6)
    np.testing.assert_allclose(verdicts["score"], expected.assessment.scores, rtol=1e-6)
    np.testing.assert_allclose(verdicts["p_value"], expected.assessment.p_values, atol=0.01)
    assert verdicts["in_distribution"] == expected.in_distribution.tolist()
    assert {True, False} == set(verdicts["in_distribution"])
