"""Several networks at once: real processes on the CPU."""

import multiprocessing
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")

from fixtures import tasks
from nescio.lab.benchmark.parallel import device_of, run_in_processes, unwatched
from nescio.lab.benchmark.results import BenchmarkRun
from nescio.lab.benchmark.run import make_pipelines


@pytest.fixture
def one_thread(monkeypatch):
    """One thread here and in the processes: their number changes how sums are rounded."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
def test_the_results_are_those_of_one_process(
    nescio, small_run, small_spec, spec_text, tmp_path, one_thread
):
    file = tmp_path / "small.toml"
    file.write_text(spec_text, "utf-8")
    data = small_spec.sets[0].data.removeprefix("digits:").removesuffix("/digits")
    code, _, err = nescio("bench", file, "--data", data, "-o", tmp_path / "two", "--jobs", 2)
    assert code == 0, err
    alone, two = small_run.folder.parent, tmp_path / "two"
    for name in ("results.jsonl", "runs/digits-seed-1.jsonl"):
        assert (alone / "small" / name).read_bytes() == (two / "small" / name).read_bytes()
    networks = [
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("best.json")}
        for folder in (alone, two)
    ]
    assert networks[0] == networks[1]
    assert len(networks[0]) == 2
    assert len(BenchmarkRun.load(tmp_path / "two" / "small").evidence()) == 2
    assert "network 1 of 2, digits, seed 0: training\n" in err
    assert "network 2 of 2, digits, seed 1: evaluating\n" in err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
def test_a_network_that_fails_does_not_stop_the_others(small_spec, tmp_path):
    pipelines = make_pipelines(small_spec, tmp_path)
    failed = run_in_processes(tasks.by_seed, pipelines, tmp_path, 2, unwatched)
    assert set(failed) == {0, 1}
    assert failed[0] == "this one fails."
    assert "was killed" in failed[1]


@pytest.mark.slow
def test_an_interruption_ends_all_processes_and_leaves_nothing_behind(small_spec, tmp_path):
    def watch(stage, total):
        raise KeyboardInterrupt

    pipelines = make_pipelines(small_spec, tmp_path)
    (tmp_path / "work").mkdir()
    with pytest.raises(KeyboardInterrupt):
        run_in_processes(tasks.endless, pipelines, tmp_path / "work", 2, watch)
    assert multiprocessing.active_children() == []
    assert list((tmp_path / "work").iterdir()) == []


def test_networks_are_distributed_over_the_gpus(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    devices = [str(device_of(torch.device("cuda"), slot)) for slot in range(3)]
    assert devices == ["cuda:0", "cuda:1", "cuda:0"]
    assert str(device_of(torch.device("cuda:1"), 0)) == "cuda:1"
    assert str(device_of(torch.device("cpu"), 1)) == "cpu"
