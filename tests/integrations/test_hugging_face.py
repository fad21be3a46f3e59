import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

import nescio as ns
from fixtures.texts import N_TOKENS, WORDS, word_tokenizer
from nescio.errors import ExportError, FileError, FileFormatError
from nescio.metrics.comparison import compare_outputs

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
for package in ("tokenizers", "onnxscript", "onnxruntime"):
    pytest.importorskip(package)

NAMES = ("cat", "dog", "cow")
ROWS = np.random.default_rng(0).normal(size=(300, 4)).astype("f4")


def some_texts(n=200, seed=0):
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, draw.integers(6, 14))) for _ in range(n)]


@pytest.fixture(scope="module")
def wrapped():
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


@pytest.fixture(scope="module")
def linear():
    """A model that is quick to export."""
    torch.manual_seed(0)
    return ns.wrap(torch.nn.Linear(4, 3), label_names=NAMES).calibrate(ROWS)


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


def test_the_model_card(wrapped, tmp_path):
    detectors = {"joint_energy": ns.JointEnergy(), "max_logit": ns.MaxLogit()}
    known, unknown = (wrapped.outputs(some_texts(50, seed=at)) for at in (3, 4))
    result = compare_outputs(detectors, known, {"a|b": unknown}, n_bootstrap=0)
    wrapped.save_pretrained(tmp_path / "tagger", evaluation=result, samples=some_texts(8))
    text = (tmp_path / "tagger" / "README.md").read_text()
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
    assert "`cat`, `dog`, `cow`" in body
    best = result.ranked("a|b")[0]
    measured = result.results["a|b"][best]
    row = f"| a\\|b | {best} | {measured.fpr} | {measured.auroc} | {measured.aupr} |"
    assert row in body
    assert "| OOD set | detector | FPR95 ↓ |" in body


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


def test_a_folder_chooses_no_code_and_downloads_nothing(wrapped, folder, monkeypatch):
    """Files of other libraries are not read, whatever they name."""
    for name, content in HARMFUL.items():
        (folder / name).write_text(json.dumps(content))
    (folder / "code.py").write_text("raise SystemExit('code of the folder')")

    def refuse(*arguments):
        raise AssertionError("a connection was opened")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
    texts = some_texts(5, seed=1)
    loaded = ns.from_pretrained(folder)
    np.testing.assert_allclose(loaded(texts).probs, wrapped(texts).probs, rtol=1e-4)


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


def test_a_folder_with_files_is_replaced_only_by_force(linear, tmp_path):
    target = tmp_path / "model"
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    (target / "model.skops").write_text("of an earlier model")
    with pytest.raises(FileError, match="is not empty"):
        linear.save_pretrained(target, samples=ROWS)
    linear.save_pretrained(target, force=True, samples=ROWS)
    assert (target / "notes.txt").read_text() == "mine"
    assert not (target / "model.skops").exists()
    assert ns.from_pretrained(target).label_names == NAMES
    with pytest.raises(FileError, match="is a file"):
        linear.save_pretrained(target / "notes.txt", force=True, samples=ROWS)


def test_what_cannot_be_saved_leaves_nothing(wrapped, tmp_path):
    target = tmp_path / "model"
    with pytest.raises(ns.NotCalibratedError):
        ns.wrap(wrapped.runner).save_pretrained(target)
    local = ns.wrap(torch.nn.Linear(4, 3), detector="lof", features="input")
    local = local.fit(ROWS[:150]).calibrate(ROWS[150:])
    with pytest.raises(ExportError, match="lof cannot be exported"):
        local.save_pretrained(target, samples=ROWS)
    assert list(tmp_path.iterdir()) == []


# --- the hub ------------------------------------------------------------------------------------


def test_the_hub_is_asked_only_if_the_caller_says_so(saved):
    with pytest.raises(FileError, match=r"from_pretrained\('owner/name', download=True\)"):
        ns.from_pretrained("owner/name")
    with pytest.raises(FileError, match="no revision"):
        ns.from_pretrained(saved, revision="main")


def test_a_hub_that_does_not_answer(linear):
    """The tests run with HF_ENDPOINT at a port where nobody listens."""
    pytest.importorskip("huggingface_hub")
    with pytest.raises(
        FileError, match=r"cannot download the repository 'owner/name'.*HF_ENDPOINT"
    ):
        ns.from_pretrained("owner/name", download=True)
    with pytest.raises(FileError, match=r"cannot write the repository 'owner/name'.*refused"):
        linear.push_to_hub("owner/name", token="none", samples=ROWS)


def test_files_of_an_earlier_model_are_deleted_in_the_hub(linear, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    there = ["README.md", "mine.txt", "model.skops", "old/model.skops"]
    deleted = []

    def upload_folder(self, *, repo_id, folder_path, delete_patterns):
        deleted.extend(hub.utils.filter_repo_objects(there, allow_patterns=delete_patterns))
        return SimpleNamespace(commit_url=f"{repo_id}/commit/1")

    monkeypatch.setattr(hub.HfApi, "create_repo", lambda self, name, **options: None)
    monkeypatch.setattr(hub.HfApi, "upload_folder", upload_folder)
    assert linear.push_to_hub("owner/name", samples=ROWS) == "owner/name/commit/1"
    assert deleted == ["model.skops"]  # none of a folder, which nescio does not read
