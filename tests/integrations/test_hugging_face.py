"""Folders of a model and its detector: a graph, or a file of skops; and the hub."""

import hashlib
import itertools
import json
import re
import shutil
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

import nescio as ns
from fixtures.offline import run_offline
from fixtures.texts import N_TOKENS, WORDS, word_tokenizer
from nescio.errors import (
    ExportError,
    FileError,
    FileFormatError,
    ParameterError,
)
from nescio.integrations.hugging_face import (
    _PATH_KEY,
    push_to_hub,
    read_estimator,
    save_pretrained,
    write_estimator,
)
from nescio.integrations.sklearn import WithVerdict
from nescio.models.table_features import TableFeatures

NAMES = ("cat", "dog", "location")  # also the key of a path in a graph
ROWS = np.random.default_rng(0).normal(size=(500, 4))
TREES = "sklearn.ensemble._hist_gradient_boosting.predictor.TreePredictor"


# --- a graph ----------------------------------------------------------------------------------


def some_texts(n=200, seed=0):
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, draw.integers(6, 14))) for _ in range(n)]


@pytest.fixture(scope="module")
def wrapped():
    torch, transformers = map(pytest.importorskip, ("torch", "transformers"))
    for package in ("tokenizers", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=N_TOKENS,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        initializer_range=1.0,
        max_position_embeddings=16,
        id2label=dict(enumerate(NAMES)),
        problem_type="multi_label_classification",
    )
    model = transformers.BertForSequenceClassification(config)
    wrapped = ns.wrap(model, features="penultimate", tokenizer=word_tokenizer())
    return wrapped.calibrate(some_texts(800), groups="label_count")


@pytest.fixture(scope="module")
def saved(wrapped, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub") / "tagger"
    wrapped.save_pretrained(folder, samples=some_texts(8))
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy to change."""
    return shutil.copytree(saved, tmp_path / "copy")


def changed(path, **entries):
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def test_a_folder_gives_the_wrapped_model_back_without_torch_and_transformers(wrapped, saved):
    assert {path.name for path in saved.iterdir()} == {
        "README.md",
        "detector.nescio",
        "model.onnx",
        "nescio.json",
    }
    loaded = ns.from_pretrained(saved, device="cpu")
    assert loaded.runner.kind == "onnx"
    assert loaded.label_names == NAMES
    texts = some_texts(20, seed=1)
    np.testing.assert_allclose(loaded(texts).probs, wrapped(texts).probs, rtol=1e-4)
    expected = wrapped.assess(texts)
    np.testing.assert_allclose(loaded.assess(texts).p_values, expected.p_values, atol=0.01)
    assert loaded.assess(texts).in_distribution.tolist() == expected.in_distribution.tolist()


def test_the_model_card(wrapped, saved):
    text = (saved / "README.md").read_text()
    header, _, body = text.removeprefix("---\n").partition("---\n")
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load(header) == {
        "library_name": "nescio",
        "pipeline_tag": "text-classification",
        "tags": ["nescio", "multi-label-classification", "out-of-distribution-detection"],
    }
    assert body.startswith("\n# tagger\n")
    for line in wrapped.detector.calibration_.statement().splitlines():
        assert f"> {line}" in body
    assert "`cat`, `dog`, `location`" in body


@pytest.mark.parametrize("name", ["detector.nescio", "model.onnx"])
def test_a_file_that_changed_does_not_fit_the_calibration(folder, name):
    with (folder / name).open("ab") as stream:
        stream.write(b"\0")
    with pytest.raises(FileFormatError, match=rf"{name} has changed since .* calibrate it"):
        ns.from_pretrained(folder)


HARMFUL = {
    "config.json": {
        "architectures": ["TimmWrapperForImageClassification"],
        "model_args": {"checkpoint_path": "weights.pth"},
        "architecture": "hf-hub:someone/else",
        "auto_map": {"AutoModel": "code.Model"},
    },
    "tokenizer_config.json": {"tokenizer_class": "Own", "auto_map": {"AutoTokenizer": "code.Own"}},
    "adapter_config.json": {"base_model_name_or_path": "someone/else"},
}


@pytest.mark.slow
def test_a_folder_chooses_no_code_and_opens_no_connection(wrapped, folder, pipeline, tmp_path):
    """Every kind of folder; files of other libraries in it are not read, whatever they name."""
    table = WithVerdict(pipeline.runner.model).fit(ROWS, ROWS[:, :3] > 0)  # has features.skops
    pipeline.save_pretrained(tmp_path / "pipeline")
    save_pretrained(table, tmp_path / "table")
    samples = {"copy": some_texts(5, seed=1), "pipeline": ROWS[:5], "table": ROWS[:5]}
    for name in samples:
        for file, content in HARMFUL.items():
            (tmp_path / name / file).write_text(json.dumps(content))
        (tmp_path / name / "code.py").write_text("raise SystemExit('code of the folder')")
    lists = {str(tmp_path / name): list(map(plain, rows)) for name, rows in samples.items()}
    line = run_offline(
        "import json, nescio as ns\n"
        f"lists = {lists!r}\n"
        "loaded = {folder: ns.from_pretrained(folder) for folder in lists}\n"
        "scores = [loaded[folder].assess(rows).scores.tolist() for folder, rows in lists.items()]\n"
        "print(json.dumps(scores))",
        without=("torch", "transformers", "timm", "huggingface_hub", "onnx"),
    )
    models = zip((wrapped, pipeline, table), samples.values(), strict=True)
    expected = [model.assess(rows).scores for model, rows in models]
    np.testing.assert_allclose(json.loads(line), expected, rtol=1e-4)


def plain(row):
    return row if isinstance(row, str) else row.tolist()


def with_hashes(folder):
    """Let the description of a folder fit its files, as whoever made them can."""
    description = json.loads((folder / "nescio.json").read_text())
    for name in description["files"]:
        description["files"][name] = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    (folder / "nescio.json").write_text(json.dumps(description))


@pytest.mark.parametrize("length", [b"\x08", b"\x88\x00", b"\x88\x80\x00"])
def test_the_key_of_a_path_is_found_in_any_form(length):
    assert _PATH_KEY.search(b"\n" + length + b"location\x12\x01x")
    assert _PATH_KEY.search(b'{"location": 1}') is None


def test_a_graph_that_is_empty_and_one_with_a_tensor_named_location(folder):
    onnx = pytest.importorskip("onnx")
    model = onnx.load(folder / "model.onnx")
    model.graph.node[0].name = "location"
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    with_hashes(folder)
    assert ns.from_pretrained(folder).label_names == NAMES
    (folder / "model.onnx").write_bytes(b"")
    with_hashes(folder)
    with pytest.raises(FileFormatError, match=r"cannot read .*model\.onnx as ONNX"):
        ns.from_pretrained(folder)


@pytest.mark.parametrize("place", ["weights.bin", "../weights.bin", "/etc/hostname"])
def test_a_graph_names_no_other_file(folder, place):
    onnx = pytest.importorskip("onnx")
    model = onnx.load(folder / "model.onnx")
    tensor = next(value for value in model.graph.initializer if value.raw_data)
    (folder / "weights.bin").write_bytes(tensor.raw_data)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=place)
    tensor.ClearField("raw_data")
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    with_hashes(folder)
    with pytest.raises(FileFormatError, match="has weights in other files"):
        ns.from_pretrained(folder)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"model": "pickle"}, "no key 'model'"),
        ({"files": {}}, "names no model"),
        ({"files": {"model.onnx": "0"}}, "no detector"),
        ({"files": {"detector.nescio": "0", "model.onnx": "0", "../x": "0"}}, "has changed"),
        ({"features": 3}, "features must be a list of strings"),
        ({"schema": 99}, "another version of nescio"),
        ({"kind": "nescio.detector"}, "is not a description"),
    ],
)
def test_a_damaged_description_is_rejected(folder, entries, message):
    changed(folder / "nescio.json", **entries)
    with pytest.raises(FileFormatError, match=message):
        ns.from_pretrained(folder)


def test_what_is_not_a_folder_of_nescio(folder, tmp_path):
    (folder / "nescio.json").write_text("[")
    with pytest.raises(FileFormatError, match="is not JSON"):
        ns.from_pretrained(folder)
    (folder / "nescio.json").unlink()
    with pytest.raises(FileError, match="load it and wrap it"):
        ns.from_pretrained(folder)


def test_what_cannot_be_saved_leaves_nothing(wrapped, tmp_path):
    target = tmp_path / "model"
    with pytest.raises(ns.NotCalibratedError):
        ns.wrap(wrapped.runner).save_pretrained(target)
    local = ns.wrap(wrapped.runner, detector="lof").fit(some_texts(150))
    local = local.calibrate(some_texts(150, seed=1))
    with pytest.raises(ExportError, match=r"lof cannot be exported.*save the detector alone"):
        local.save_pretrained(target, samples=some_texts(8))
    assert list(tmp_path.iterdir()) == []


# --- a file of skops -------------------------------------------------------------------------


class Own(StandardScaler):
    """A step that only the training code has."""


def trained(*steps):
    pytest.importorskip("skops")
    model = make_pipeline(*steps, OneVsRestClassifier(LogisticRegression()))
    return ns.wrap(model.fit(ROWS[:100], ROWS[:100, :3] > 0), label_names=NAMES)


@pytest.fixture(scope="module")
def pipeline():
    return trained(StandardScaler()).calibrate(ROWS[100:])


def test_a_pipeline_with_the_layer_that_its_detector_reads(tmp_path):
    wrapped = trained(StandardScaler()).calibrate(ROWS[200:])
    wrapped.save_pretrained(tmp_path / "model")
    loaded = ns.from_pretrained(tmp_path / "model")
    assert loaded.runner.layers == wrapped.runner.layers == ("penultimate",)
    np.testing.assert_array_equal(loaded.assess(ROWS).scores, wrapped.assess(ROWS).scores)
    header = (tmp_path / "model" / "README.md").read_text().partition("\n---")[0]
    assert 'library_name: "sklearn"' in header
    assert 'pipeline_tag: "tabular-classification"' in header


def test_steps_of_your_own_need_your_word(tmp_path):
    own = f"{Own.__module__}.Own"
    wrapped = trained(Own()).calibrate(ROWS[100:])
    with pytest.raises(ParameterError, match=rf"trusted=\['{own}'\].*only where your code is"):
        wrapped.save_pretrained(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ParameterError, match=rf"trusted=\['mine', '{own}'\]"):
        wrapped.save_pretrained(tmp_path / "model", trusted=["mine"])  # all of them
    with pytest.raises(ParameterError, match="must be a sequence of names"):
        wrapped.save_pretrained(tmp_path / "model", trusted=own)
    wrapped.save_pretrained(tmp_path / "model", trusted=[own])
    card = (tmp_path / "model" / "README.md").read_text()
    assert f"""from_pretrained("path/of/this/folder", trusted=['{own}'])""" in card
    with pytest.raises(ParameterError, match="skops does not trust"):
        ns.from_pretrained(tmp_path / "model")
    assert len(ns.from_pretrained(tmp_path / "model", trusted=[own])(ROWS)) == 500


def test_what_has_no_name_or_no_form_cannot_be_written(tmp_path):
    wrapped = trained(FunctionTransformer(lambda x: x + 1)).calibrate(ROWS[100:])
    with pytest.raises(ParameterError, match="<lambda>, which cannot be found by this name"):
        wrapped.save_pretrained(tmp_path / "model")
    wrapped.runner.model.steps[0][1].inverse_func = (letter for letter in "ab")
    with pytest.raises(ParameterError, match="skops cannot write this Pipeline"):
        wrapped.save_pretrained(tmp_path / "model")


def test_a_file_of_skops_names_no_other_code(tmp_path, monkeypatch):
    """Each type in a file, in each version of the format, becomes os.system in turn."""
    calls = []
    monkeypatch.setattr("os.system", calls.append)
    steps = (
        FunctionTransformer(np.exp),
        StandardScaler(),
        OneVsRestClassifier(LogisticRegression()),
    )
    good, bad = tmp_path / "good.skops", tmp_path / "bad.skops"
    write_estimator(make_pipeline(*steps).fit(ROWS, ROWS[:, :3] > 0), good)
    with zipfile.ZipFile(good) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    text = files.pop("schema.json").decode()
    n_rejected = 0
    for number, version in itertools.product(range(len(nodes(json.loads(text)))), range(3)):
        schema = json.loads(text) | {"protocol": version}
        nodes(schema)[number].update(__module__="os", __class__="system")
        with zipfile.ZipFile(bad, "w") as archive:
            for name, content in {**files, "schema.json": json.dumps(schema)}.items():
                archive.writestr(name, content)
        try:
            assert type(read_estimator(bad, [])).__name__ == "Pipeline"  # the name was not used
        except (FileFormatError, ParameterError):
            n_rejected += 1
    assert n_rejected > 50
    assert calls == []
    bad.write_bytes(b"PK not a zip file")
    with pytest.raises(FileFormatError, match=r"cannot read the estimator of .*bad\.skops"):
        read_estimator(bad, [])


def nodes(schema):
    """The parts of a file of skops that name a type, except plain JSON values."""
    inner = schema.values() if isinstance(schema, dict) else schema
    parts = [node for part in inner if isinstance(part, dict | list) for node in nodes(part)]
    is_node = isinstance(schema, dict) and schema.get("__loader__", "JsonNode") != "JsonNode"
    return [schema, *parts] if is_node else parts


@pytest.mark.parametrize(
    ("steps", "trusted"),
    [
        ((MultiOutputClassifier(HistGradientBoostingClassifier(max_iter=2)),), [TREES]),
        ((StandardScaler(), OneVsRestClassifier(LogisticRegression())), []),
    ],
)
def test_with_verdict_by_default(tmp_path, steps, trusted):
    model = WithVerdict(make_pipeline(*steps)).fit(ROWS, ROWS[:, :3] > 0)
    assert model.wrapped_.runner.layers == ("prepared",)
    save_pretrained(model, tmp_path / "model", trusted=trusted)
    names = {path.name for path in (tmp_path / "model").iterdir()}
    skops = {"model.skops", "features.skops"}
    assert names == {"README.md", "detector.nescio", "nescio.json", *skops}
    loaded = ns.from_pretrained(tmp_path / "model", trusted=trusted)
    assert loaded.runner.layers == ("prepared",)
    np.testing.assert_array_equal(loaded.assess(ROWS).scores, model.assess(ROWS).scores)
    # The nearest training samples are rows of X in one, and of the split in the other.
    of_rows = re.compile(r'"nearest": \[[^]]*\]')
    texts = [json.dumps(one.explain(50 * ROWS[:9]).as_dict()) for one in (loaded, model)]
    assert of_rows.sub("", texts[0]) == of_rows.sub("", texts[1])
    write_estimator(StandardScaler().fit(ROWS), tmp_path / "model" / "features.skops")
    with pytest.raises(FileFormatError, match=r"features\.skops has changed"):
        ns.from_pretrained(tmp_path / "model", trusted=trusted)


def test_the_words_and_missing_values_of_a_table(tmp_path):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(ROWS[:, :2], columns=["a", "b"])
    table["kind"] = np.where(ROWS[:, 2] > 0, "red", "blue")
    table.loc[::9, "b"] = np.nan
    features = TableFeatures().fit(table)
    write_estimator(features, tmp_path / "features.skops")
    loaded = read_estimator(tmp_path / "features.skops", [])
    np.testing.assert_array_equal(loaded.transform(table), features.transform(table))


def test_the_usual_pipeline_of_a_table(tmp_path):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(ROWS[:, :2], columns=["a", "b"])
    table["kind"] = np.where(ROWS[:, 2] > 0, "red", "blue")
    columns = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), ["a", "b"]),
        (OneHotEncoder(handle_unknown="ignore"), ["kind"]),  # it keeps a numpy.dtype
    )
    wrapped = make_pipeline(columns, MultiOutputClassifier(LogisticRegression()))
    wrapped = ns.wrap(wrapped.fit(table, ROWS[:, :3] > 0)).calibrate(table)
    wrapped.save_pretrained(tmp_path / "model")
    loaded = ns.from_pretrained(tmp_path / "model")
    np.testing.assert_array_equal(loaded.assess(table).scores, wrapped.assess(table).scores)


def test_what_is_no_wrapped_model(tmp_path):
    logistic = OneVsRestClassifier(LogisticRegression())
    with pytest.raises(ns.NotCalibratedError):
        save_pretrained(logistic.fit(ROWS, ROWS[:, :3] > 0), tmp_path / "model")
    with pytest.raises(ParameterError, match="WithVerdict has no classes_: it is not fitted"):
        save_pretrained(WithVerdict(logistic), tmp_path / "model")


def test_a_folder_with_files_is_replaced_only_by_force(pipeline, tmp_path):
    target = tmp_path / "model"
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    (target / "model.onnx").write_text("of an earlier model")
    with pytest.raises(FileError, match="is not empty"):
        pipeline.save_pretrained(target)
    pipeline.save_pretrained(target, force=True)
    assert (target / "notes.txt").read_text() == "mine"
    assert not (target / "model.onnx").exists()
    assert ns.from_pretrained(target).label_names == NAMES
    with pytest.raises(FileError, match="cannot write"):
        pipeline.save_pretrained(target / "notes.txt", force=True)


# --- the hub ------------------------------------------------------------------------------------


def test_the_hub_is_asked_only_if_the_caller_says_so(saved):
    with pytest.raises(FileError, match=r"from_pretrained\('owner/name', download=True\)"):
        ns.from_pretrained("owner/name")
    with pytest.raises(FileError, match="no revision"):
        ns.from_pretrained(saved, revision="main")


def test_a_hub_that_does_not_answer(pipeline):
    """The tests run with HF_ENDPOINT at a port where nobody listens."""
    pytest.importorskip("huggingface_hub")
    with pytest.raises(
        FileError, match=r"cannot download the repository 'owner/name'.*HF_ENDPOINT"
    ):
        ns.from_pretrained("owner/name", download=True)
    with pytest.raises(FileError, match=r"cannot write the repository 'owner/name'.*refused"):
        push_to_hub(pipeline, "owner/name", token="none")


def test_files_of_an_earlier_model_are_deleted_in_the_hub(pipeline, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    there = ["README.md", "mine.txt", "model.skops", "old/model.skops"]
    deleted = []

    def upload_folder(self, *, repo_id, folder_path, delete_patterns):
        deleted.extend(hub.utils.filter_repo_objects(there, allow_patterns=delete_patterns))
        return SimpleNamespace(commit_url=f"{repo_id}/commit/1")

    monkeypatch.setattr(hub.HfApi, "create_repo", lambda self, name, **options: None)
    monkeypatch.setattr(hub.HfApi, "upload_folder", upload_folder)
    assert push_to_hub(pipeline, "owner/name") == "owner/name/commit/1"
    assert deleted == ["model.skops"]  # none of a folder, which nescio does not read
