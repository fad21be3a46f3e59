"""What the processes of a cluster do, in this one: their errors, and the model that they open."""

import pickle
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("torchvision")

from nescio.errors import MissingDependencyError, ParameterError
from nescio.integrations.ray import Resources, resources
from nescio.lab.extraction import on_ray as extraction
from nescio.outputs import Outputs


class Nodes:
    """A cluster of which only the resources are known."""

    def __init__(self, *nodes):
        self._nodes = nodes

    def nodes(self):
        return [{"Alive": alive, "Resources": has} for alive, has in self._nodes]


@pytest.fixture
def in_this_process(monkeypatch):
    """Let the work of a cluster run here; what goes to its processes and back is pickled."""

    @contextmanager
    def connected():
        yield Nodes((True, {"CPU": 2.0}))

    def map_here(_, open_job, job, items, size):
        work = open_job(pickle.loads(pickle.dumps(job)))
        for item in items:
            yield pickle.loads(pickle.dumps(work(pickle.loads(pickle.dumps(item)))))

    monkeypatch.setattr(extraction, "connected", connected)
    monkeypatch.setattr(extraction, "map_on_cluster", map_here)


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
    """What a process is told about a network."""
    from nescio.cli.vision import ModelOptions
    from nescio.lab.data import load_folder

    path = tmp_path / "net.safetensors"
    checkpoint().save(path)
    open_model = ModelOptions().open
    runner = open_model(str(path), "cpu")
    computation = extraction.Computation(load_folder(class_tree(), ""), 2)
    engine = extraction.OnCluster(None, Resources(1, 1, 0), str(path), open_model)
    return engine(computation, runner, "torch").args[0]


def logits_of(job):
    """The logits of two images by a process."""
    return extraction._open_job(job)((0, range(2)))[1]["logits"]


def test_a_process_runs_by_the_chosen_runtime(job):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    other = replace(job, runtime="onnxruntime")
    np.testing.assert_allclose(logits_of(other), logits_of(job), atol=1e-4)
    with pytest.raises(ParameterError, match="runtime must be"):
        logits_of(replace(job, runtime="another"))


def test_one_process_per_gpu_or_per_processor():
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

    monkeypatch.setattr("nescio.cli.console.require", missing)
    np.save(tmp_path / "val.npy", np.random.default_rng(0).normal(-1, 3, (200, 3)))
    assert nescio("calibrate", tmp_path / "val.npy", "-o", tmp_path / "d.nescio")[0] == 0
    command = ("score", tmp_path / "d.nescio", tmp_path / "val.npy", "--engine")
    assert nescio(*command, "ray")[::2] == (1, "error: this needs ray: pip install '.[ray]'\n")
    code, _, err = nescio(*command, "spark")
    assert (code, "--engine must be 'local' or 'ray'" in err) == (1, True)
