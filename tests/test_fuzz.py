"""Damaged inputs: every reader refuses them with an error of nescio, or reads them.

`benchmarks/robustness/fuzz.py` runs as many mutations as you like; here are a few hundred of each
kind, and the cases that once failed.
"""

import io
import json
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torchvision")
pytest.importorskip("pyarrow")
pytest.importorskip("starlette")
pytest.importorskip("skops")
pytest.importorskip("tokenizers")

from fixtures.rewriting import write_valid
from nescio import Outputs
from nescio._io.tensors import read_tensors
from nescio.errors import FileFormatError, InputError, NescioError, ShapeError
from nescio.lab.benchmark.results import read_lines
from nescio.lab.benchmark.spec import load_spec
from nescio.lab.networks.network import load_checkpoint
from nescio.lab.perturbation import Tuning
from nescio.lab.settings import TrainSettings
from nescio.models.images import Preprocessing

sys.path.append(str(Path(__file__).parents[1] / "benchmarks" / "robustness"))

from fuzzing.kinds import ACCEPTED, CHANGED, TRACEBACK, all_kinds, outcome_of

MUTATIONS = 100
SECONDS = 20  # far above what any input takes; a loop would not end


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("seeds")


@pytest.fixture(scope="module")
def kinds(folder):
    return all_kinds(folder)


def test_no_reader_fails_on_damaged_inputs(kinds, folder):
    """Neither with a traceback, nor by a result that a checksum should have prevented."""
    failed, n_accepted = [], 0
    for kind in kinds:
        for number in range(MUTATIONS):
            outcome, why = outcome_of(kind, number, folder / "input", seconds=SECONDS)
            n_accepted += outcome in ACCEPTED
            if outcome == TRACEBACK or (kind.hashed and outcome == CHANGED):
                failed.append(f"{kind.name}, number {number}: {outcome} {why}")
    assert not failed, "\n".join(failed)
    assert n_accepted > len(kinds), "some inputs are whole enough to be read"


# --- the cases that once failed -------------------------------------------------------------------


def refused(read, path, content, match=None):
    path.write_bytes(content)
    with pytest.raises(NescioError, match=match):
        read(path)


def npy(header):
    head = header.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head


def test_arrays_of_numpy(tmp_path):
    huge = "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 3), }"
    refused(Outputs.load, tmp_path / "x.npy", npy(huge), "damaged")
    stream = io.BytesIO()
    np.savez(stream, logits=np.zeros((2, 3)), label_names=np.array("a"))
    path = tmp_path / "x.npz"
    path.write_bytes(stream.getvalue())
    with pytest.raises(ShapeError, match="label_names must have one dimension"):
        Outputs.load(path)


def test_an_array_that_is_not_needed_is_not_read(tmp_path):
    """A small archive may hold gigabytes of zeros; here, what is not needed is not even whole."""
    whole, logits = io.BytesIO(), io.BytesIO()
    np.save(logits, np.eye(3))
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr("logits.npy", logits.getvalue())
        archive.writestr(
            "other.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2000000000,), }")
        )
    (tmp_path / "x.npz").write_bytes(whole.getvalue())
    loaded = Outputs.load(tmp_path / "x.npz")
    assert loaded.logits.shape == (3, 3)
    assert not loaded.arrays


def test_a_table_with_strange_names_or_text_is_refused(tmp_path):
    header = ",".join(["9" * 5_000, "8" * 5_000])
    (tmp_path / "x.csv").write_text(f"{header}\n1,2\n")
    with pytest.raises(InputError, match="not all columns hold floating-point numbers"):
        Outputs.load(tmp_path / "x.csv")
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    invalid = pyarrow.array([b"\xff\xfe"]).view(pyarrow.string())
    table = pyarrow.table({"id": invalid, "a": [1.0], "b": [2.0]})
    parquet.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(FileFormatError, match=r"cannot read .* as Parquet"):
        Outputs.load(tmp_path / "x.parquet")


def test_settings_of_a_wrong_type_or_depth_are_refused(tmp_path):
    spec = 'title = "x"\nseeds = [0]\ndetectors = true\n'
    refused(load_spec, tmp_path / "x.toml", spec.encode(), "detectors must be a list of strings")
    deep = f"[model]\nname = {'[' * 5_000}{']' * 5_000}\n"
    refused(TrainSettings.from_toml, tmp_path / "x.toml", deep.encode(), "is not TOML")
    digits = f"[training]\nepochs = {'9' * 5_000}\n"
    refused(TrainSettings.from_toml, tmp_path / "x.toml", digits.encode(), "is not TOML")


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.0},
        {"temperature": None},
        {"temperature": "x"},
        {"epsilon": float("nan")},
        {"epsilon": -1},
        {"epsilon": {}},
        {"fpr95": "x"},
        {"aggregate": []},
        {"direction": "up"},
        {"method": "other"},
    ],
)
def test_tuned_settings(tmp_path, change):
    setting = {"method": "odin", "aggregate": "max", "epsilon": 0.1, "temperature": 1.0,
               "fpr95": 0.5, "direction": "max"}  # fmt: skip
    head = {"kind": "nescio.tuning", "schema": 1, "model_hash": "a", "features": "b", "data": {}}
    path = tmp_path / "tuned.json"
    path.write_text(json.dumps(head | {"grid": [setting]}))
    assert Tuning.load(path).best[0].temperature == 1.0
    refused(Tuning.load, path, json.dumps(head | {"grid": [setting | change]}).encode(), "damaged")
    refused(Tuning.load, path, json.dumps(head | {"grid": [], "model_hash": None}).encode())


@pytest.mark.parametrize(
    "change",
    [
        {"detector": ["x"]},
        {"seed": "x"},
        {"fpr": None},
        {"auroc": {"value": "x"}},
        {"n_id": 0},
        {"manifest": []},
        {"manifest": {"protocol": 3}},
        {"manifest": {"model": []}},
        {"manifest": {"training": {"best": {"epoch": []}}}},
        {"manifest": {"tuning": {"best": [{}]}}},
    ],
)
def test_result_lines(tmp_path, kinds, change):
    [kind] = [kind for kind in kinds if kind.name == "results.jsonl"]
    line = json.loads(kind.seeds[0].splitlines()[0])
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(line))
    assert len(read_lines(path)) == 1
    refused(read_lines, path, json.dumps(line | change).encode(), "line 1 of .* is not a result")
    refused(read_lines, path, b"[" * 100_000, "line 1 of .* is not a result line")


@pytest.mark.parametrize(
    "change",
    [
        {"name": ["small-cnn"]},
        {"name": {}},
        {"n_hidden": 2**40},
        {"n_hidden": True},
        {"features": 3},
    ],
)
def test_architectures(tmp_path, checkpoint, change):
    checkpoint().save(tmp_path / "a.safetensors")
    tensors, metadata = read_tensors(tmp_path / "a.safetensors")
    changed = metadata | {"architecture": metadata["architecture"] | change}
    write_valid(tmp_path / "b.safetensors", tensors, changed)
    with pytest.raises(FileFormatError, match="damaged"):
        load_checkpoint(tmp_path / "b.safetensors")


def test_a_null_character_in_a_path(tmp_path):
    with pytest.raises(NescioError, match="NUL"):
        Outputs.load("x\0.npy")
    with pytest.raises(NescioError, match="cannot write"):
        Outputs(np.zeros((1, 2))).save("x\0.safetensors")


def test_folders(tmp_path, kinds):
    """No graph, names that are not Unicode, and no label names once gave errors of others."""
    of_name = {kind.name: kind for kind in kinds}
    graph = of_name["folder, graph of images"]
    refused(graph.read, tmp_path / "x.onnx", b"", "as ONNX")
    of_axis = graph.seeds[0].replace(b"\x12\x01n", b"\x12\x01\xff")  # the name of the batch size
    refused(graph.read, tmp_path / "x.onnx", of_axis, "as ONNX.*decode")
    settings = of_name["folder, nescio.json"]
    content = json.loads(settings.seeds[0]) | {"label_names": []}
    refused(settings.read, tmp_path / "x.json", json.dumps(content).encode(), "at least one label")


@pytest.mark.parametrize(
    "change",
    [
        {"size": 10**9},
        {"size": "8"},
        {"mean": "123"},
        {"mean": [True, True, True]},
        {"mean": [10**400, 0, 0]},
        {"mean": [[0], 0, 0]},
        {"std": [0, 1, 1]},
        {"other": 1},
    ],
)
def test_preprocessing(change):
    """A graph's metadata cannot ask for images that fill the memory."""
    stored = {"size": 8, "mean": [0.5, 0.5, 0.5], "std": [1.0, 1.0, 1.0]}
    assert Preprocessing.from_dict(stored).size == 8
    with pytest.raises(NescioError):
        Preprocessing.from_dict(stored | change)
