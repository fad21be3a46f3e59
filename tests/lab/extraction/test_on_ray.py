"""What the actors of a cluster do, in this process: their errors, and the model that they open."""

import pickle
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("torchvision")

from nescio import errors
from nescio._version import __version__
from nescio.errors import MissingDependencyError, ParameterError
from nescio.integrations import ray as cluster
from nescio.integrations.ray import Resources, resources
from nescio.lab.extraction import on_ray as extraction
from nescio.lab.extraction.runtimes import Runtimes
from nescio.outputs import Outputs


class Nodes:
    """A cluster of which only the resources are known."""

    def __init__(self, *nodes):
        self._nodes = nodes

    def nodes(self):
        return [{"Alive": alive, "Resources": has} for alive, has in self._nodes]


@pytest.fixture
def in_this_process(monkeypatch):
    """Let the workers of a cluster run here; what they are told and what they say is pickled."""

    @contextmanager
    def connected():
        yield Nodes((True, {"CPU": 2.0}))

    def map_here(_, worker, job, items, size, **options):
        monkeypatch.setattr(cluster, "_received", pickle.loads)
        made = worker(pickle.dumps(job), __version__, size.num_cpus)
        for item in reversed(items):
            row = made({name: np.array([value]) for name, value in item.items()})
            if row["error"][0]:
                raise getattr(errors, row["error"][0])(row["message"][0])
            yield row["data"][0].tobytes()

    monkeypatch.setattr(extraction, "connected", connected)
    monkeypatch.setattr(extraction, "map_in_actors", map_here)
    monkeypatch.setattr(cluster, "limit_cpus", lambda most: None)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.parametrize("options", [[], ["--corruption", "jigsaw"]], ids=str)
def test_the_file_is_the_same_to_the_last_byte(nescio, checkpoint, coco_tree, tmp_path, options):
    checkpoint().save(tmp_path / "net.safetensors")
    data = f"coco@train:{coco_tree()}"
    command = ("extract", tmp_path / "net.safetensors", data, "--batch-size", "1", *options)
    for engine in ("local", "ray"):
        code, _, err = nescio(*command, "-o", tmp_path / engine, "--engine", engine)
        assert (code, err) == (0, "")
    [made] = (tmp_path / "ray").glob("*.safetensors")
    assert made.read_bytes() == (tmp_path / "local" / made.name).read_bytes()


@pytest.mark.usefixtures("in_this_process")
def test_a_factory_that_makes_other_weights_each_time_is_refused(
    nescio, own_module, class_tree, tmp_path
):
    command = ("extract", f"module:{own_module}", f"folder:{class_tree()}", "-o", tmp_path / "out")
    code, _, err = nescio(*command, "--image-size", "32", "--engine", "ray")
    assert code == 1
    assert "is not the same model on a node of the cluster as here: its hash is" in err
    assert not list((tmp_path / "out").glob("*.safetensors"))


@pytest.mark.usefixtures("in_this_process")
def test_a_bad_image_ends_the_command_or_is_left_out(nescio, checkpoint, class_tree, tmp_path):
    root = class_tree()
    (root / "anchor" / "0000.jpg").write_bytes(b"")
    checkpoint().save(tmp_path / "net.safetensors")
    command = ("extract", tmp_path / "net.safetensors", f"folder:{root}", "-o", tmp_path / "out")
    code, _, err = nescio(*command, "--engine", "ray")
    assert (code, "0000.jpg" in err, "--skip-bad" in err) == (1, True, True)
    assert nescio(*command, "--engine", "ray", "--skip-bad")[0] == 0
    outputs = Outputs.load(tmp_path / "out" / "objects.safetensors")
    assert (len(outputs), len(outputs.manifest["skipped"])) == (5, 1)


@pytest.fixture
def job(checkpoint, class_tree, tmp_path):
    """What an actor is told about a network."""
    from nescio.cli.extract import _open_on
    from nescio.lab.data import load_folder

    path = tmp_path / "net.safetensors"
    checkpoint().save(path)
    runner = _open_on(str(path), "cpu")
    computation = extraction.Computation(load_folder(class_tree(), ""), 2)
    actors = extraction.Actors(None, Resources(1, 1, 0), str(path), _open_on)
    return actors(computation, runner, "torch").args[0]


def logits_of(job):
    """The logits of two images by an actor."""
    compute, _ = job.computation.by(extraction._opened(job), Runtimes(job.runtime))
    [(_, arrays)] = compute({0: range(2)}, lambda _: None)
    return arrays["logits"]


def test_an_actor_runs_by_the_chosen_runtime(job):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    other = replace(job, runtime="onnxruntime")
    np.testing.assert_allclose(logits_of(other), logits_of(job), atol=1e-4)
    with pytest.raises(ParameterError, match="runtime must be"):
        logits_of(replace(job, runtime="another"))


def test_another_version_on_a_node_is_refused(job):
    made = extraction._PartWorker(job, "0.0.0", 1)
    row = made({"number": np.array([0])})
    assert row["error"] == ["ParameterError"]
    assert "a node of the cluster has nescio" in row["message"][0]


def test_one_actor_per_gpu_or_per_processor():
    plain, with_gpus = {"CPU": 8.0}, {"CPU": 12.0, "GPU": 4.0}
    both = Nodes((True, plain), (True, with_gpus), (False, {"CPU": 64.0, "GPU": 8.0}))
    assert resources(both, gpus=True) == Resources(4, 3, 1)
    assert resources(both, gpus=False) == Resources(20, 1, 0)
    assert resources(Nodes((True, plain)), gpus=True) == Resources(8, 1, 0)
    with pytest.raises(ParameterError, match="no processors"):
        resources(Nodes((True, {})), gpus=True)


@pytest.mark.usefixtures("in_this_process")
def test_ray_chooses_the_gpus(checkpoint):
    for device, reason in (("cuda:1", "auto, cpu or cuda"), ("cuda", "has no GPUs")):
        with (
            pytest.raises(ParameterError, match=reason),
            extraction.ray_engine("net.safetensors", checkpoint, device=device),
        ):
            pass


def test_without_ray_the_error_names_the_extra(nescio, monkeypatch, tmp_path):
    def missing(module, extra):
        raise MissingDependencyError(f"this needs {module}: pip install '.[{extra}]'")

    monkeypatch.setattr("nescio.cli.options.require", missing)
    np.save(tmp_path / "val.npy", np.random.default_rng(0).normal(-1, 3, (200, 3)))
    assert nescio("calibrate", tmp_path / "val.npy", "-o", tmp_path / "d.nescio")[0] == 0
    command = ("score", tmp_path / "d.nescio", tmp_path / "val.npy", "--engine")
    assert nescio(*command, "ray")[::2] == (1, "error: this needs ray: pip install '.[ray]'\n")
    code, _, err = nescio(*command, "spark")
    assert (code, "--engine must be 'local' or 'ray'" in err) == (1, True)
