import hashlib
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
pytest.importorskip("tokenizers")

NAMES = ("cat", "dog", "cow")


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
    wrapped.save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    """A copy to change."""
    return shutil.copytree(saved, tmp_path / "copy")


def changed(path, **entries):
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def rehashed(folder, name):
    """Write the hash of a file that was changed, as if it had been saved so."""
    description = folder / "nescio.json"
    files = json.loads(description.read_text())["files"]
    digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
    changed(description, files=files | {name: digest})


def test_a_folder_gives_the_wrapped_model_back(wrapped, saved):
    loaded = ns.from_pretrained(saved)
    texts = some_texts(20, seed=1)
    np.testing.assert_array_equal(loaded(texts).probs, wrapped(texts).probs)
    np.testing.assert_array_equal(loaded.assess(texts).p_values, wrapped.assess(texts).p_values)
    assert loaded.label_names == NAMES
    assert loaded.runner.layers == ("penultimate",)
    assert not loaded.runner.model.training


def test_transformers_reads_the_folder_too(wrapped, saved):
    assert {path.name for path in saved.iterdir()} == {
        "README.md",
        "config.json",
        "detector.nescio",
        "model.safetensors",
        "nescio.json",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    kind = transformers.AutoModelForSequenceClassification
    model = kind.from_pretrained(saved, local_files_only=True)
    tokenizer = transformers.AutoTokenizer.from_pretrained(saved, local_files_only=True)
    texts = some_texts(5, seed=1)
    with torch.no_grad():
        logits = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits.numpy()
    np.testing.assert_allclose(logits, wrapped.outputs(texts).logits, rtol=1e-4, atol=1e-4)


def test_the_model_card(wrapped, tmp_path):
    detectors = {"joint_energy": ns.JointEnergy(), "max_logit": ns.MaxLogit()}
    known, unknown = (wrapped.outputs(some_texts(50, seed=at)) for at in (3, 4))
    result = compare_outputs(detectors, known, {"a|b": unknown}, n_bootstrap=0)
    wrapped.save_pretrained(tmp_path / "tagger", evaluation=result)
    text = (tmp_path / "tagger" / "README.md").read_text()
    header, _, body = text.removeprefix("---\n").partition("---\n")
    yaml = pytest.importorskip("yaml")
    assert yaml.safe_load(header) == {
        "library_name": "transformers",
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


def test_a_model_that_changed_is_not_used_with_the_old_calibration(wrapped, folder):
    model = type(wrapped.runner.model).from_pretrained(folder)
    model.classifier.weight.data *= 2
    model.save_pretrained(folder)
    with pytest.raises(FileFormatError, match=r"safetensors has changed since .* calibrate it"):
        ns.from_pretrained(folder)


def test_a_config_that_changed_is_rejected(folder):
    changed(folder / "config.json", num_attention_heads=1)  # the weights fit this too
    with pytest.raises(FileFormatError, match=r"config\.json has changed"):
        ns.from_pretrained(folder)


def test_the_detector_of_another_model_is_rejected(wrapped, folder):
    other = ns.wrap(wrapped.runner).calibrate(some_texts(300, seed=1))
    other.save(folder / "detector.nescio", force=True)
    with pytest.raises(FileFormatError, match=r"detector\.nescio has changed"):
        ns.from_pretrained(folder)


@pytest.mark.parametrize(
    "name", ["old.safetensors", "model.safetensors.index.json", "old.bin", "adapter_config.json"]
)
def test_files_of_another_model_are_rejected_and_removed_by_force(wrapped, folder, name):
    (folder / name).write_text("{}")
    with pytest.raises(FileFormatError, match=f"{name} does not belong to the model"):
        ns.from_pretrained(folder)
    wrapped.save_pretrained(folder, force=True)
    assert not (folder / name).exists()
    assert ns.from_pretrained(folder).label_names == NAMES


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"auto_map": {"AutoModel": "code.Model"}}, r"code from elsewhere \(auto_map\)"),
        ({"attn_implementation": "someone/kernel"}, r"elsewhere \(attn_implementation\)"),
        ({"inner": [{"_attn_implementation": "some/kernel"}]}, "elsewhere"),
        ({"architectures": ["PreTrainedModel", "BertModel"]}, "not name one architecture"),
        ({"architectures": ["Trainer"]}, "'Trainer', which is not a model"),
        ({"architectures": ["BertForTokenClassification"]}, "do not fit its config"),
        ({"hidden_size": 16}, "cannot load the model|do not fit"),
    ],
)
def test_a_config_that_chooses_other_code_is_rejected(folder, entries, message):
    changed(folder / "config.json", **entries)
    rehashed(folder, "config.json")
    with pytest.raises(FileFormatError, match=message):
        ns.from_pretrained(folder)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"model": "pickle"}, "unknown kind of model: 'pickle'"),
        ({"files": {}}, "names no file"),
        ({"files": {"../model.safetensors": "0"}}, "elsewhere"),
        ({"features": 3}, "features must be a list of strings"),
        ({"schema": 99}, "newer nescio"),
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


def test_a_folder_with_files_is_replaced_only_by_force(wrapped, tmp_path, saved):
    target = tmp_path / "model"
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    (target / "model.onnx").write_text("of an earlier model")
    with pytest.raises(FileError, match="is not empty"):
        wrapped.save_pretrained(target)
    wrapped.save_pretrained(target, force=True)
    assert (target / "notes.txt").read_text() == "mine"
    assert not (target / "model.onnx").exists()
    assert ns.from_pretrained(target).label_names == NAMES
    with pytest.raises(FileError, match="is a file"):
        wrapped.save_pretrained(target / "notes.txt", force=True)


def test_what_cannot_be_saved_leaves_nothing(wrapped, tmp_path):
    target = tmp_path / "model"
    with pytest.raises(ns.NotCalibratedError):
        ns.wrap(wrapped.runner).save_pretrained(target)
    linear = ns.wrap(torch.nn.Linear(4, 3), detector="lof", features="input")
    rows = np.random.default_rng(0).normal(size=(300, 4)).astype("f4")
    linear = linear.fit(rows[:150]).calibrate(rows[150:])
    with pytest.raises(ExportError, match="lof cannot be exported"):
        linear.save_pretrained(target)
    assert list(tmp_path.iterdir()) == []


def test_a_torch_module_becomes_a_graph(tmp_path):
    pytest.importorskip("onnxscript")
    rows = np.random.default_rng(0).normal(size=(300, 4)).astype("f4")
    wrapped = ns.wrap(torch.nn.Linear(4, 3), label_names=NAMES).calibrate(rows)
    wrapped.save_pretrained(tmp_path / "model", samples=rows[:4])
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert names == {"README.md", "detector.nescio", "model.onnx", "nescio.json"}
    loaded = ns.from_pretrained(tmp_path / "model", device="cpu")
    assert loaded.label_names == NAMES
    np.testing.assert_allclose(loaded.assess(rows).scores, wrapped.assess(rows).scores, rtol=1e-5)


def test_a_model_that_comes_back_different_is_not_written(wrapped, saved, monkeypatch, tmp_path):
    other = ns.from_pretrained(saved)
    other.runner.model.classifier.weight.data *= 2
    monkeypatch.setattr("nescio.registries.folder.read_model", lambda folder, trusted: other)
    with pytest.raises(ExportError, match="gives other logits than"):
        wrapped.save_pretrained(tmp_path / "model", samples=some_texts(5))
    assert list(tmp_path.iterdir()) == []


def test_a_changed_model_that_transformers_would_not_build_again(wrapped, saved, tmp_path):
    model = ns.from_pretrained(saved).runner.model
    model.bert.pooler.activation = torch.nn.ReLU()  # the config knows nothing of it
    changed = ns.wrap(model, tokenizer=word_tokenizer()).calibrate(some_texts(300))
    with pytest.raises(ExportError, match="gives other logits than"):
        changed.save_pretrained(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


# --- the hub ------------------------------------------------------------------------------------


def test_the_hub_is_asked_only_if_the_caller_says_so(wrapped, saved):
    with pytest.raises(FileError, match=r"from_pretrained\('owner/name', download=True\)"):
        ns.from_pretrained("owner/name")
    with pytest.raises(FileError, match="no revision"):
        ns.from_pretrained(saved, revision="main")


def test_a_hub_that_does_not_answer(wrapped):
    """The tests run with HF_ENDPOINT at a port where nobody listens."""
    pytest.importorskip("huggingface_hub")
    with pytest.raises(
        FileError, match=r"cannot download the repository 'owner/name'.*HF_ENDPOINT"
    ):
        ns.from_pretrained("owner/name", download=True)
    with pytest.raises(FileError, match=r"cannot write the repository 'owner/name'.*refused"):
        wrapped.push_to_hub("owner/name", token="none")


def test_files_of_an_earlier_model_are_deleted_in_the_hub(wrapped, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    there = ["README.md", "mine.txt", "model-1-of-2.safetensors", "old/model.safetensors"]
    deleted = []

    def upload_folder(self, *, repo_id, folder_path, delete_patterns):
        deleted.extend(hub.utils.filter_repo_objects(there, allow_patterns=delete_patterns))
        return SimpleNamespace(commit_url=f"{repo_id}/commit/1")

    monkeypatch.setattr(hub.HfApi, "create_repo", lambda self, name, **options: None)
    monkeypatch.setattr(hub.HfApi, "list_repo_files", lambda self, name: there)
    monkeypatch.setattr(hub.HfApi, "upload_folder", upload_folder)
    assert wrapped.push_to_hub("owner/name") == "owner/name/commit/1"
    assert deleted == ["model-1-of-2.safetensors"]  # none of a folder, which nescio does not read
