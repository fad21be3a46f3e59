"""The readers: for each, whole inputs to damage, and what becomes of a damaged one."""

from __future__ import annotations

import hashlib
import io
import json
import random
import shutil
import signal
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fuzzing.mutations import mutated, mutated_json
from nescio import Outputs
from nescio._io.tensors import decode_tensors, digest, encode_tensors
from nescio.errors import NescioError

Read = Callable[[Path], object]


@dataclass(frozen=True)
class Kind:
    """A kind of input.

    Attributes
    ----------
    name, suffix : str
    seeds : tuple of bytes
        Whole inputs.
    read : callable
        Reads a file and uses what it holds; returns something to compare by its repr.
    hashed : bool
        Whether the input has a checksum, so that no damage may change the result.
    change : callable
        How an input is damaged.
    """

    name: str
    suffix: str
    seeds: tuple[bytes, ...]
    read: Read
    hashed: bool = False
    change: Callable[[bytes, random.Random], bytes] = mutated


def mutation(kind: Kind, number: int, seed: int = 0) -> tuple[bytes, bytes]:
    """Return a whole input, and the same one damaged; the same for the same number and seed."""
    dice = random.Random(f"{seed}:{kind.name}:{number}")
    whole = kind.seeds[dice.randrange(len(kind.seeds))]
    return whole, kind.change(whole, dice)


def result_of(kind: Kind, path: Path, data: bytes) -> str:
    """Return a text that is the same for the same result."""
    path = path.with_suffix(kind.suffix)
    path.write_bytes(data)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return hashlib.sha256(repr(kind.read(path)).encode("utf-8", "replace")).hexdigest()


CLEAN, UNCHANGED, CHANGED, TRACEBACK = "clean", "unchanged", "changed", "traceback"
ACCEPTED = (UNCHANGED, CHANGED)

_WHOLE: dict[tuple[str, bytes], str] = {}  # the results of whole inputs


def outcome_of(
    kind: Kind, number: int, path: Path, *, seed: int = 0, seconds: int = 20
) -> tuple[str, str]:
    """Return what becomes of a mutation, and where it failed if it did.

    An input that takes longer than the time is a failure too.
    """
    whole, damaged = mutation(kind, number, seed)
    key = (kind.name, whole)
    if key not in _WHOLE:
        _WHOLE[key] = result_of(kind, path, whole)
    try:
        with _time_limit(seconds):
            same = result_of(kind, path, damaged) == _WHOLE[key]
    except NescioError:
        return CLEAN, ""
    except Exception as error:
        if getattr(error, "status_code", 500) < 500:  # the service answers with this status
            return CLEAN, ""
        last = traceback.extract_tb(error.__traceback__)[-1]
        return TRACEBACK, f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}"
    return (UNCHANGED if same else CHANGED), ""


@contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# --- damage below a valid checksum ------------------------------------------------------------


def change_metadata(data: bytes, dice: random.Random) -> bytes:
    """Change the metadata or an array of a safetensors file, and set the checksum right."""
    tensors, metadata = decode_tensors(data, "seed")
    metadata.pop("sha256", None)
    changed = dict(tensors)
    if changed and dice.random() < 0.4:
        name = dice.choice(sorted(changed))
        changed[name] = _changed_array(changed[name], dice)
        if dice.random() < 0.2:
            del changed[name]
    else:
        metadata = mutated_json(metadata, dice)
        if not isinstance(metadata, dict):
            metadata = {}
    hashed = {**metadata, "sha256": digest(changed, metadata)}
    return encode_tensors(changed, hashed)


def _changed_array(array: Any, dice: random.Random) -> Any:
    how = dice.randrange(7)
    if how == 0:
        return array.reshape(-1)
    if how == 1:
        return array[: len(array) // 2] if array.ndim else array.reshape(1)
    if how == 2:
        return array.astype(dice.choice((np.float32, np.int64, np.uint8, np.bool_, np.float64)))
    if how == 3:
        return array.T
    if how == 4:
        return np.zeros(dice.choice(((), (0,), (3, 0), (1, 1, 1))), array.dtype)
    changed = np.array(array)
    if changed.size:
        values = (np.nan, np.inf, -1, 0, 1e30, 255) if changed.dtype.kind == "f" else (0, 1, 255)
        changed.reshape(-1)[dice.randrange(changed.size)] = np.asarray(dice.choice(values)).astype(
            changed.dtype
        )
    return changed


def change_json(data: bytes, dice: random.Random) -> bytes:
    """Change entries of one of the JSON values, one per line, or of the only one."""
    lines = data.decode().splitlines() if data.count(b"}\n{") else [data.decode()]
    index = dice.randrange(len(lines))
    lines[index] = json.dumps(mutated_json(json.loads(lines[index]), dice))
    return "\n".join(lines).encode("utf-8", "surrogatepass")


# --- results in a form that can be compared ----------------------------------------------------


def outputs_facts(outputs: Outputs) -> object:
    """Return all that outputs hold."""
    arrays = {name: outputs.get(name) for name in outputs.names if name != "head"}
    plain = {
        name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()
    }
    head = None if outputs.head is None else (*outputs.head.weight.flat, *outputs.head.bias)
    ids = None if outputs.ids is None else outputs.ids.tolist()
    kept = {name: column.tolist() for name, column in outputs.kept.items()}
    return plain, head, ids, outputs.label_names, kept, sorted(outputs.manifest.items(), key=repr)


def _example(rng: np.random.Generator, n: int = 12) -> Outputs:
    features = rng.normal(size=(n, 4)).astype(np.float32)
    return Outputs(
        rng.normal(-1, 2, (n, 3)).astype(np.float32),
        features=features,
        arrays={"penultimate": features},
        labels=rng.integers(0, 2, (n, 3)),
        ids=[f"é{index}" for index in range(n)],
        label_names=["cat", "dog", "bird"],
        manifest={"split": "val", "n": 3},
        kept={"time": np.arange(n), "who": np.array(["a"] * n, object)},
    )


def _saved(save: Callable[[Path], object], folder: Path, name: str) -> bytes:
    path = folder / name
    path.unlink(missing_ok=True)
    save(path)
    return path.read_bytes()


def _load_outputs(path: Path) -> object:
    return outputs_facts(Outputs.load(path))


def output_kinds(folder: Path, rng: np.random.Generator) -> Iterator[Kind]:
    """Files of outputs in every format."""
    from nescio._io.files import write_table

    outputs = _example(rng)
    whole = _saved(outputs.save, folder, "x.safetensors")
    foreign = encode_tensors({"logits": outputs.logits, "features": outputs.features}, {})
    yield Kind("outputs .safetensors", ".safetensors", (whole,), _load_outputs, hashed=True)
    yield Kind(
        "outputs, valid checksum", ".safetensors", (whole,), _load_outputs, change=change_metadata
    )
    yield Kind("safetensors of others", ".safetensors", (foreign,), _load_outputs)
    npy = _saved(lambda path: np.save(path, outputs.logits), folder, "x.npy")
    yield Kind("outputs .npy", ".npy", (npy,), _load_outputs)
    arrays = {"logits": outputs.logits, "labels": outputs.labels, "ids": outputs.ids}
    names = {"label_names": np.array(outputs.label_names)}
    zipped = [
        _saved(lambda path, save=save: save(path, **arrays, **names), folder, "x.npz")
        for save in (np.savez, np.savez_compressed)
    ]
    yield Kind("outputs .npz", ".npz", tuple(zipped), _load_outputs)
    columns = {"id": outputs.ids, **dict(zip("abc", outputs.logits.T, strict=True))}
    lists = {"id": list(outputs.ids), "logits": outputs.logits.tolist()}
    csv = _saved(lambda path: write_table(path, columns), folder, "x.csv")
    yield Kind("outputs .csv", ".csv", (csv,), _load_outputs)
    parquet = [
        _saved(lambda path, table=table: write_table(path, table), folder, "x.parquet")
        for table in (columns, lists)
    ]
    yield Kind("outputs .parquet", ".parquet", tuple(parquet), _load_outputs)


def detector_kinds(folder: Path, rng: np.random.Generator) -> Iterator[Kind]:
    """Saved detectors, monitors and scored tables."""
    import nescio as ns
    from nescio.monitor import Monitor
    from nescio.monitor.verdict_table import ScoredTable

    train, held_out = _example(rng, 200), _example(rng, 100)
    fitted = [
        ns.JointEnergy().calibrate(train, groups="label_count"),
        ns.Mahalanobis().fit(train).calibrate(held_out),
        ns.IsolationForest(n_trees=4).fit(train).calibrate(held_out),
        ns.NearestNeighbours(k=3).fit(train).calibrate(held_out),
        ns.LocalOutlierFactor(n_neighbors=3).fit(train).calibrate(held_out),
        ns.LabelNeighbours(k=3).fit(train).calibrate(held_out),
    ]
    saved = tuple(_saved(detector.save, folder, "x.nescio") for detector in fitted)
    probe = _example(np.random.default_rng(5), 6)

    def verdicts(path: Path) -> object:
        detector = ns.load(path)
        result = detector.assess(probe)
        return result.scores.tolist(), result.p_values.tolist(), result.in_distribution.tolist()

    yield Kind("detector", ".nescio", saved, verdicts, hashed=True)
    yield Kind("detector, valid checksum", ".nescio", saved, verdicts, change=change_metadata)
    calibrated = ns.JointEnergy().calibrate(train)
    monitor = Monitor(calibrated, window=20)
    monitor.update(calibrated.assess(train))
    state = (_saved(monitor.save, folder, "x.safetensors"),)

    def report(path: Path) -> object:
        loaded = Monitor.load(path, calibrated)
        loaded.update(calibrated.assess(probe))
        return loaded.as_dict()

    yield Kind("monitor state", ".safetensors", state, report, hashed=True)
    assessment = replace(calibrated.assess(train[:20]), kept={"time": np.arange(20)})

    def columns(path: Path) -> object:
        table = ScoredTable(path, time_column="time")
        verdicts, times = next(table.blocks(table.n_rows))
        Monitor(calibrated).update(verdicts)
        return verdicts.scores.tolist(), verdicts.in_distribution.tolist(), times

    for suffix in (".csv", ".jsonl", ".parquet"):
        table = (_saved(assessment.save, folder, f"x{suffix}"),)
        yield Kind(f"scored {suffix}", suffix, table, columns)
        if suffix == ".jsonl":
            yield Kind(f"scored {suffix}, entries", suffix, table, columns, change=change_json)


def network_kinds(folder: Path, rng: np.random.Generator) -> Iterator[Kind]:
    """Networks, weights, tunings and settings."""
    import torch

    from nescio.lab.networks.network import Architecture, Checkpoint, load_checkpoint
    from nescio.lab.networks.weights import read_state_dict
    from nescio.lab.perturbation import Setting, Tuning
    from nescio.lab.settings import TrainSettings, TuneSettings
    from nescio.models.images import Preprocessing

    architecture = Architecture("small-cnn", n_hidden=4)
    torch.manual_seed(0)
    made = Checkpoint(architecture.build(2).eval(), architecture, ("a", "b"), Preprocessing(16))
    saved = (_saved(made.save, folder, "x.safetensors"),)

    def hashes(path: Path) -> object:
        checkpoint = load_checkpoint(path)
        return checkpoint.content_hash(), checkpoint.label_names

    yield Kind("network", ".safetensors", saved, hashes, hashed=True)
    yield Kind("network, valid checksum", ".safetensors", saved, hashes, change=change_metadata)
    state = {"weight": torch.arange(6.0).reshape(2, 3), "bias": torch.zeros(2)}
    pth = (_saved(lambda path: torch.save(state, path), folder, "x.pth"),)

    def tensors(path: Path) -> object:
        weights = read_state_dict(path)
        return {name: (str(tensor.dtype), tensor.tolist()) for name, tensor in weights.items()}

    yield Kind("state dict .pth", ".pth", pth, tensors)
    grid = (Setting("odin", "max", 0.001, 10.0, 0.5), Setting("mahalanobis", "sum", 0.0, None, 0.4))
    tuning = Tuning("ab" * 32, "pooled", grid, {"n_images": 3})
    tuned = (_saved(tuning.save, folder, "x.json"),)

    def steps(path: Path) -> object:
        loaded = Tuning.load(path)
        loaded.check_model("ab" * 32, "pooled")
        for setting in loaded.best:
            inputs = torch.ones(2, 3)
            scored = (inputs - setting.epsilon) / (setting.temperature or 1.0)
            assert torch.isfinite(scored).all(), "not finite after the step"
        return loaded.chosen(), loaded.directions

    yield Kind("tuned.json", ".json", tuned, steps)
    yield Kind("tuned.json, entries", ".json", tuned, steps, change=change_json)
    settings = (
        b'[model]\nname = "small-cnn"\nweights = "none"\nn_hidden = 16\n[images]\nsize = 32\n'
        b"mean = [0.5, 0.5, 0.5]\n[training]\nepochs = 3\nlr_head = 1e-3\n",
    )
    yield Kind(
        "training .toml", ".toml", settings, lambda path: TrainSettings.from_toml(path).as_dict()
    )
    tune = b'images = 10\nsynthetic = ["jigsaw"]\n[odin]\nlabel = "top"\nepsilons = [0.0, 0.1]\n'
    yield Kind("tuning .toml", ".toml", (tune,), lambda path: asdict(TuneSettings.from_toml(path)))


def folder_kinds(folder: Path, rng: np.random.Generator) -> Iterator[Kind]:
    """Folders of a model: their description, their estimator, their graph and its tokenizer."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.multiclass import OneVsRestClassifier

    from nescio import wrap
    from nescio.integrations.hugging_face import (
        DETECTOR_FILE,
        ESTIMATOR_FILE,
        GRAPH_FILE,
        read_model,
        save_pretrained,
    )
    from nescio.models.images import content_hash
    from nescio.models.texts import NAMES, TextTokenizer

    rows = rng.normal(size=(40, 3))
    model = OneVsRestClassifier(LogisticRegression()).fit(rows, rows > 0)
    whole_folder, damaged = folder / "model", folder / "damaged"
    save_pretrained(wrap(model).calibrate(rows), whole_folder, force=True)

    def verdicts(name: str, inputs: Any, path: Path) -> object:
        """Read a folder in which a file is damaged, and its hash is right."""
        shutil.copytree(whole_folder, damaged, dirs_exist_ok=True)
        shutil.copy(path, damaged / name)
        if name != "nescio.json":
            content = json.loads((damaged / "nescio.json").read_text())
            hashes = {file: content_hash(damaged / file) for file in (DETECTOR_FILE, name)}
            (damaged / "nescio.json").write_text(json.dumps({**content, "files": hashes}))
        wrapped = read_model(damaged)
        return wrapped.assess(inputs).scores.tolist(), wrapped.label_names

    settings = ((whole_folder / "nescio.json").read_bytes(),)
    read = partial(verdicts, "nescio.json", rows)
    yield Kind("folder, nescio.json", ".json", settings, read)
    yield Kind("folder, nescio.json, entries", ".json", settings, read, change=change_json)
    estimator = ((whole_folder / ESTIMATOR_FILE).read_bytes(),)
    read = partial(verdicts, ESTIMATOR_FILE, rows)
    yield Kind("folder, estimator .skops", ".skops", estimator, read)
    for name, whole, inputs in graphs_with_metadata():
        read = partial(verdicts, GRAPH_FILE, inputs)
        yield Kind(f"folder, graph of {name}", ".onnx", (whole,), read)
        yield Kind(f"ONNX metadata, {name}", ".onnx", (whole,), read, change=change_onnx_metadata)
    words = (tokenizer_json().encode(),)

    def tokens(path: Path) -> object:
        return TextTokenizer(path, NAMES)(["red cat", "dog"])

    yield Kind("tokenizer.json", ".json", words, tokens)
    yield Kind("tokenizer.json, entries", ".json", words, tokens, change=change_json)


def tokenizer_json() -> str:
    """Return a small tokenizer."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {name: number for number, name in enumerate(("[PAD]", "[UNK]", "red", "cat"))}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.enable_truncation(8)
    return str(tokenizer.to_str())


def graphs_with_metadata() -> Iterator[tuple[str, bytes, Any]]:
    """Give a graph of images and one of texts, with their metadata, and inputs for them."""
    import onnx
    from onnx import TensorProto, helper

    from nescio.models.images import PREPROCESSING_KEY, Preprocessing
    from nescio.models.onnx_models import LABEL_NAMES_KEY
    from nescio.models.texts import TOKENIZER_KEY

    names = {LABEL_NAMES_KEY: json.dumps(["red", "green", "blue"])}
    images = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n", "t"])
    table = onnx.numpy_helper.from_array(np.eye(4, 3, dtype=np.float32), "table")
    axes = onnx.numpy_helper.from_array(np.array([2, 3]), "axes")
    first = onnx.numpy_helper.from_array(np.array([1]), "axes")
    mean = helper.make_node("ReduceMean", ["x", "axes"], ["logits"], keepdims=0)
    embed = helper.make_node("Gather", ["table", "input_ids"], ["x"])
    pixels = np.zeros((2, 3, 8, 8), np.uint8)
    preprocessing = json.dumps(asdict(Preprocessing(8)))
    ways = (
        ("images", [mean], images, [axes], {PREPROCESSING_KEY: preprocessing}, pixels),
        ("texts", [embed, mean], ids, [table, first], {TOKENIZER_KEY: tokenizer_json()}, ["red"]),
    )
    for name, nodes, inputs, constants, metadata, samples in ways:
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 3])
        graph = helper.make_graph(nodes, name, [inputs], [logits], constants)
        opset = [helper.make_opsetid("", 18)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=10)
        helper.set_model_props(model, names | metadata)
        yield name, model.SerializeToString(), samples


def change_onnx_metadata(data: bytes, dice: random.Random) -> bytes:
    """Change an entry of the metadata of a graph: its bytes, or its JSON."""
    import onnx

    model = onnx.load_from_string(data)
    entry = dice.choice(model.metadata_props)
    if dice.random() < 0.5:
        entry.value = json.dumps(mutated_json(json.loads(entry.value), dice))
    else:
        entry.value = mutated(entry.value.encode(), dice).decode("utf-8", "replace")
    return bytes(model.SerializeToString())


def benchmark_kinds(folder: Path, rng: np.random.Generator) -> Iterator[Kind]:
    """Specs, result lines, evidence and lists of data sets."""
    from nescio.lab.benchmark.results import (
        Evidence,
        Line,
        load_evidence,
        read_lines,
        save_evidence,
        write_lines,
    )
    from nescio.lab.benchmark.spec import load_spec, shipped_specs
    from nescio.lab.benchmark.tables import network_table, result_tables
    from nescio.lab.data import load_coco, load_table
    from nescio.metrics import evaluate
    from nescio.metrics.comparison import Scored

    specs = tuple(text.encode() for text in shipped_specs().values())
    yield Kind("benchmark .toml", ".toml", specs, lambda path: asdict(load_spec(path)))
    evaluation = evaluate([1.0, 2.0, 3.0], [0.0, 1.5], n_bootstrap=20)
    tuned = {"method": "odin", "aggregate": "max", "epsilon": 0.1, "temperature": 10.0}
    manifest = {
        "title": "Tiny",
        "protocol": "paper",
        "model": "densenet121",
        "model_hash": "ab" * 32,
        "training": {"best": {"epoch": 3, "val_loss": 0.1, "val_map": 0.7}},
        "tuning": {"best": [tuned]},
    }
    lines = [
        Line("tiny", "pets", ood, "joint_energy", seed, evaluation, manifest=manifest)
        for ood in ("stones", "noise")
        for seed in (0, 1)
    ]
    lines.append(Line("tiny", "pets", "noise", "lof", 0, None, "no features", manifest))
    results = (_saved(lambda path: write_lines(path, lines), folder, "x.jsonl"),)

    def tables(path: Path) -> object:
        read = read_lines(path)
        if not read:
            return None
        return [table.to_markdown() for table in (network_table(read), *result_tables(read))]

    yield Kind("results.jsonl", ".jsonl", results, tables)
    yield Kind("results.jsonl, entries", ".jsonl", results, tables, change=change_json)
    outputs = _example(rng)
    (folder / "seeds").mkdir(exist_ok=True)
    paths = {name: folder / f"{name}.safetensors" for name in ("pets", "noise")}
    for path in paths.values():
        outputs.save(path, force=True)
    scored = Scored(np.arange(12.0), {"noise": np.arange(12.0)})
    evidence = Evidence("pets", 0, outputs, {"noise": outputs}, {"max_logit": scored})
    save = partial(save_evidence, evidence=evidence, outputs_paths=paths, val_path=paths["pets"])
    stored = (_saved(save, folder, "x.safetensors"),)

    def scores(path: Path) -> object:
        read = load_evidence(path)
        values = {
            name: (scored.id_scores, scored.ood_scores) for name, scored in read.scores.items()
        }
        return values, read.seed, read.id_name, outputs_facts(read.id_outputs)

    yield Kind("evidence", ".safetensors", stored, scores, hashed=True)
    yield Kind("evidence, valid checksum", ".safetensors", stored, scores, change=change_metadata)
    yield from _list_kinds(folder, load_coco, load_table)


def _list_kinds(
    folder: Path, load_coco: Callable[..., Any], load_table: Callable[..., Any]
) -> Iterator[Kind]:
    for name in ("a.jpg", "b.jpg"):
        (folder / name).write_bytes(b"x")
    table = b"path,split,labels\na.jpg,train,cat;dog\nb.jpg,val,\n"
    columns = b"path,cat,dog\na.jpg,0,1\nb.jpg,1,0\n"

    def split(path: Path) -> object:
        images = load_table(path, "train" if b"split" in path.read_bytes() else "")
        return images.files, images.labels, images.label_names

    yield Kind("table of images .csv", ".csv", (table, columns), split)
    root = folder / "coco"
    for name in ("val2014", "annotations"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "val2014" / "a.jpg").write_bytes(b"x")
    content = {
        "images": [{"id": 1, "file_name": "a.jpg"}],
        "annotations": [{"image_id": 1, "category_id": 7, "id": 3}],
        "categories": [{"id": 7, "name": "cat"}, {"id": 9, "name": "dog"}],
    }

    def coco(path: Path) -> object:
        target = root / "annotations" / "instances_val2014.json"
        target.write_bytes(path.read_bytes())
        images = load_coco(root, "val")
        return images.files, images.labels, images.label_names

    annotations = (json.dumps(content).encode(),)
    yield Kind("COCO .json", ".json", annotations, coco)
    yield Kind("COCO .json, entries", ".json", annotations, coco, change=change_json)


def image_kinds(folder: Path, rng: np.random.Generator) -> Iterator[Kind]:
    """Images of files, and of requests."""
    from PIL import Image

    from nescio.models.images import read_image

    pixels = rng.integers(0, 256, (24, 24, 3)).astype(np.uint8)
    for name in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"):
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, name)

        def read(path: Path) -> object:
            return read_image(path).tobytes()

        yield Kind(f"image {name}", f".{name.lower()}", (stream.getvalue(),), read)


def body_kinds(folder: Path, rng: np.random.Generator) -> Iterator[Kind]:
    """Bodies of requests to the service."""
    from nescio.models.images import read_image
    from nescio.service.openapi import JSON, SAFETENSORS
    from nescio.service.requests import decode_inputs, decode_outputs

    outputs = _example(rng, 4)
    rows = {"logits": outputs.logits.tolist(), "ids": list("abcd"), "label_names": list("xyz")}
    bodies = {
        JSON: json.dumps(rows).encode(),
        SAFETENSORS: encode_tensors({"logits": outputs.logits}, {"label_names": list("xyz")}),
    }
    inputs = {
        JSON: json.dumps({"inputs": {"x": outputs.logits.tolist()}}).encode(),
        SAFETENSORS: encode_tensors({"x": outputs.logits}, {}),
    }
    ways = (
        ("score", _scored(decode_outputs), bodies),
        ("predict", _named(partial(decode_inputs, numbers=("x",))), inputs),
    )
    for what, decode, whole in ways:
        for kind, name in ((JSON, "JSON"), (SAFETENSORS, "safetensors")):
            read = partial(_body, decode, kind)
            yield Kind(f"body {what}, {name}", ".body", (whole[kind],), read)
    entries = partial(_body, _scored(decode_outputs), JSON)
    yield Kind("body score, entries", ".body", (bodies[JSON],), entries, change=change_json)
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(stream, "PNG")
    yield Kind(
        "body image",
        ".body",
        (stream.getvalue(),),
        lambda path: read_image(path.read_bytes(), max_pixels=10**7).tobytes(),
    )


def _body(decode: Callable[[str, bytes], object], kind: str, path: Path) -> object:
    return decode(kind, path.read_bytes())


def _scored(decode: Callable[..., Outputs]) -> Callable[[str, bytes], object]:
    return lambda kind, data: outputs_facts(decode(kind, data))


def _named(decode: Callable[..., Any]) -> Callable[[str, bytes], object]:
    def decoded(kind: str, data: bytes) -> object:
        arrays, _ = decode(kind, data)
        return {
            name: (array.dtype.str, array.shape, array.tobytes()) for name, array in arrays.items()
        }

    return decoded


MAKERS = (
    output_kinds,
    detector_kinds,
    network_kinds,
    folder_kinds,
    benchmark_kinds,
    image_kinds,
    body_kinds,
)


def all_kinds(folder: Path) -> list[Kind]:
    """Return every kind; their files are made in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [kind for make in MAKERS for kind in make(folder, rng)]
