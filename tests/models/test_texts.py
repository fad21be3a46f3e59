"""Texts go into a wrapped model: as a list, a column, one text or batches."""

import json
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import nescio as ns
from fixtures.texts import N_TOKENS, WORDS, word_tokenizer
from nescio.errors import (
    FileError,
    FileFormatError,
    InputError,
    ParameterError,
    TruncatedTextWarning,
)

torch = pytest.importorskip("torch")

TEXTS = ["red cat runs", "blue dog", "green cow sleeps today", ""]


class Bag(torch.nn.Module):
    """The mean of the vectors of the tokens, without padding, and a linear layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = torch.nn.Embedding(N_TOKENS, 5)
        self.head = torch.nn.Linear(5, 3)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask[..., None]
        return self.head((self.table(input_ids) * mask).sum(1) / mask.sum(1))


def own_logits(model, text, **options):
    """Of one text, without nescio."""
    encoded = word_tokenizer(**options).encode(text)
    with torch.no_grad():
        ids, mask = (torch.tensor([part]) for part in (encoded.ids, encoded.attention_mask))
        return model(ids, mask).numpy()[0]


@pytest.fixture
def model():
    return Bag()


# --- what texts may be in ---------------------------------------------------------------------


def column_of(module, make):
    def column(texts):
        return make(pytest.importorskip(module), texts)

    return pytest.param(column, id=module)


@pytest.mark.parametrize(
    "form",
    [
        list,
        tuple,
        iter,
        np.array,
        lambda texts: np.array(texts, dtype=object),
        column_of("pandas", lambda pd, texts: pd.Series(texts, index=[7, 3, 5, 9])),
        column_of("polars", lambda pl, texts: pl.Series(texts)),
        column_of("pyarrow", lambda pa, texts: pa.chunked_array([texts])),
    ],
)
@pytest.mark.parametrize("batch_size", [2, 256])
def test_texts_in_any_form(model, form, batch_size):
    wrapped = ns.wrap(model, tokenizer=word_tokenizer())
    outputs = wrapped.outputs(form(TEXTS), batch_size=batch_size)
    expected = [own_logits(model, text) for text in TEXTS]  # none is padded
    np.testing.assert_allclose(outputs.logits, expected, atol=1e-6)
    assert outputs.kept["text"].tolist() == TEXTS
    assert outputs.manifest["n_truncated"] == 0
    assert outputs.manifest["max_tokens"] is None


def test_batches_of_texts_and_labels(model):
    wrapped = ns.wrap(model, tokenizer=word_tokenizer())
    truth = np.eye(3)[[0, 1, 2, 0]]
    loader = torch.utils.data.DataLoader(list(zip(TEXTS, truth, strict=True)), batch_size=3)
    outputs = wrapped.outputs(loader)
    np.testing.assert_array_equal(outputs.labels, truth)
    np.testing.assert_allclose(outputs.logits, wrapped.outputs(TEXTS).logits, atol=1e-6)
    assert outputs.kept["text"].tolist() == TEXTS
    tokens = {"input_ids": [[2, 4, 3]], "attention_mask": [[1, 1, 1]]}
    assert "text" not in wrapped.outputs(tokens).kept  # it still takes these


def test_verdicts_and_a_saved_file_have_the_texts(model, tmp_path):
    rng = np.random.default_rng(0)
    many = [" ".join(rng.choice(WORDS, 8)) for _ in range(60)]
    wrapped = ns.wrap(model, tokenizer=word_tokenizer()).calibrate(many)
    assert wrapped(TEXTS).columns()["text"].tolist() == TEXTS
    assert len(wrapped.explain(TEXTS).shares) == 4
    wrapped.outputs(TEXTS).save(tmp_path / "o.safetensors")
    assert ns.Outputs.load(tmp_path / "o.safetensors").kept["text"].tolist() == TEXTS


# --- length -----------------------------------------------------------------------------------


def test_truncated_texts_are_counted_and_reported_once(model):
    wrapped = ns.wrap(model, tokenizer=word_tokenizer(max_tokens=4))
    with pytest.warns(
        TruncatedTextWarning, match=r"2 of 4 texts have more than 4 tokens"
    ) as caught:
        outputs = wrapped.outputs(TEXTS, batch_size=2)
    assert len(caught) == 1
    assert outputs.manifest["n_truncated"] == 2
    expected = [own_logits(model, text, max_tokens=4) for text in TEXTS]
    np.testing.assert_allclose(outputs.logits, expected, atol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrapped.outputs(TEXTS[1:2])


def test_padding_that_a_model_does_not_ignore_is_an_error():
    class Unmasked(Bag):
        def forward(self, input_ids):
            return self.head(self.table(input_ids).mean(1))

    class Masked(Bag):
        def forward(self, input_ids):
            return super().forward(input_ids, (input_ids > 0).long())

    class Deaf(Bag):
        def forward(self, input_ids, **unused):
            return self.head(self.table(input_ids).mean(1))

    tokenizer = word_tokenizer()
    for model in (Unmasked(), Deaf()):
        wrapped = ns.wrap(model, tokenizer=tokenizer)
        assert len(wrapped.outputs(["red cat", "blue dog"])) == 2
        with pytest.raises(InputError, match=r"padding changes the logits .*batch_size=1"):
            wrapped.outputs(TEXTS)
    assert len(ns.wrap(Unmasked(), tokenizer=tokenizer).outputs(TEXTS, batch_size=1)) == 4
    logits = ns.wrap(Masked(), tokenizer=tokenizer).outputs(TEXTS).logits
    np.testing.assert_allclose(logits, ns.wrap(Bag(), tokenizer=tokenizer).outputs(TEXTS).logits)


@pytest.mark.parametrize("padding_id", [None, 1])
def test_positions_that_padding_takes_are_not_for_tokens(padding_id):
    model = Bag()
    model.config = SimpleNamespace(max_position_embeddings=8)
    model.position_embeddings = torch.nn.Embedding(8, 4, padding_idx=padding_id)
    expected = 8 if padding_id is None else 6
    assert ns.wrap(model, tokenizer=word_tokenizer()).runner.tokenizer.max_tokens == expected


# --- tokenizers -------------------------------------------------------------------------------


def test_a_file_or_a_folder(model, tmp_path):
    path = tmp_path / "tokenizer.json"
    word_tokenizer().save(str(path))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 4}))
    expected = ns.wrap(model, tokenizer=word_tokenizer(max_tokens=4)).runner.tokenizer
    for source in (path, str(path), tmp_path):
        assert ns.wrap(model, tokenizer=source).runner.tokenizer.json() == expected.json()
    (tmp_path / "saved.json").write_text(expected.json())  # with its maximum length
    assert ns.wrap(model, tokenizer=tmp_path / "saved.json").runner.tokenizer.max_tokens == 4
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 1e30}')
    assert ns.wrap(model, tokenizer=tmp_path).runner.tokenizer.max_tokens is None
    content = json.loads(word_tokenizer().to_str())
    content["model"]["vocab"]["red"] = 2**30  # it would fill the memory
    path.write_text(json.dumps(content))
    with pytest.raises(FileFormatError, match="id above 10,000,000"):
        ns.wrap(model, tokenizer=tmp_path)
    path.write_text('{"version": "1.0"}')
    with pytest.raises(FileFormatError, match=r"tokenizer\.json: this is not a tokenizer\.json"):
        ns.wrap(model, tokenizer=tmp_path)
    path.unlink()
    with pytest.raises(FileError, match=r"tokenizer\.json"):
        ns.wrap(model, tokenizer=tmp_path)


def test_the_tokenizer_of_transformers_stays_unchanged(model):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=word_tokenizer(max_tokens=3),
        pad_token="[PAD]",
        padding_side="left",
        truncation_side="left",
        model_max_length=5,
    )
    before = tokenizer.backend_tokenizer.to_str()
    wrapped = ns.wrap(model, tokenizer=tokenizer)
    assert wrapped.runner.tokenizer.max_tokens == 5  # as transformers itself would truncate
    ids = next(wrapped.runner.batches(TEXTS[:2], 9)).inputs["input_ids"]
    assert tokenizer.backend_tokenizer.to_str() == before
    assert ids[1].tolist() == [0, *tokenizer("blue dog")["input_ids"]]
    [cut] = next(wrapped.runner.batches(TEXTS[2:3], 9)).inputs["input_ids"].tolist()
    assert cut == tokenizer(TEXTS[2], truncation=True)["input_ids"]
    assert cut[1:4] == [tokenizer.vocab[word] for word in ("cow", "sleeps", "today")]


# --- what is not taken ------------------------------------------------------------------------


@pytest.mark.parametrize("texts", ["blue dog", TEXTS, tuple(TEXTS), iter(TEXTS), [TEXTS]])
def test_texts_without_a_tokenizer(model, texts):
    with pytest.raises(InputError, match=r"got text\. Pass .* wrap\(model, tokenizer=\.\.\.\)"):
        ns.wrap(model).outputs(texts)


@pytest.mark.parametrize("bad", [None, float("nan"), 7, b"bytes", ["red"]])
def test_rows_that_are_not_texts_are_named(model, bad):
    wrapped = ns.wrap(model, tokenizer=word_tokenizer())
    mixed = [*TEXTS, bad, bad]
    for rows in (mixed, np.array(mixed, dtype=object)):
        with pytest.raises(InputError, match=r"2 of 6 inputs are not texts: rows 4, 5 \(row 4 is"):
            wrapped.outputs(rows, batch_size=2)
    with pytest.raises(InputError, match=r"1 of 2 inputs are not texts: rows 1"):
        wrapped.outputs([(["red", None], np.eye(3)[:2])])


def test_texts_without_a_token_and_without_meaning(model):
    wrapped = ns.wrap(model, tokenizer=word_tokenizer(special=False))
    with pytest.raises(InputError, match=r"texts without a token, in rows: 3, 5"):
        wrapped.outputs([*TEXTS, "red", " \n"])
    with pytest.raises(InputError, match=r"texts without a token, in rows: 3\."):
        wrapped.outputs(TEXTS, batch_size=2)
    with pytest.raises(InputError, match=r"cannot read these texts: rows 1: not valid Unicode"):
        wrapped.outputs(["red", "\ud800"])


def changed_tokenizer(**entries):
    content = json.loads(word_tokenizer(special=False).to_str())
    content["model"] |= entries.pop("model", {})
    return pytest.importorskip("tokenizers").Tokenizer.from_str(json.dumps(content | entries))


def test_a_tokenizer_that_fails_or_panics(model):
    template = {"single": [{"SpecialToken": {"id": "no", "type_id": 0}}], "special_tokens": {}}
    panics = {"type": "TemplateProcessing", "pair": [], **template}
    for tokenizer in (
        changed_tokenizer(model={"vocab": {"red": 0}}),  # no token for unknown words
        changed_tokenizer(post_processor=panics),
    ):
        with pytest.raises(InputError, match="the tokenizer cannot read these texts: "):
            ns.wrap(model, tokenizer=tokenizer).outputs(["red unheard"])


def test_frames_and_mappings_are_not_texts(model, pipeline):
    pd = pytest.importorskip("pandas")
    wrapped = ns.wrap(model, tokenizer=word_tokenizer())
    frame = pd.DataFrame({"text": TEXTS})
    for taken in (wrapped, ns.wrap(model)):
        with pytest.raises(InputError, match=r'texts, but got a DataFrame.*frame\["text"\]'):
            taken.outputs(frame)
    with pytest.raises(InputError, match=r"list of texts, but got a dict"):
        ns.wrap(pipeline).outputs({"text": TEXTS})
    with pytest.raises(InputError, match=r"takes numbers, got .* as a list or a column"):
        wrapped.outputs({"input_ids": TEXTS})
    column = pd.Series(["red", None, "cat"], index=[2, 7, 1])  # rows count by position
    with pytest.raises(InputError, match=r"1 of 3 inputs are not texts: rows 1 \(row 1 is nan\)"):
        ns.wrap(pipeline).outputs(column)


def test_models_and_tokenizers_that_do_not_fit(model, graph):
    with pytest.raises(ParameterError, match=r"may have 2 tokens, but the tokenizer adds 2"):
        ns.wrap(model, tokenizer=word_tokenizer(max_tokens=2))
    with pytest.raises(ParameterError, match=r"but the graph takes tokens, mask\. Leave out"):
        ns.wrap(graph(names=("tokens", "mask")), tokenizer=word_tokenizer())
    with pytest.raises(ParameterError, match=r"but this Linear takes input\. Name the arguments"):
        ns.wrap(torch.nn.Linear(3, 2), tokenizer=word_tokenizer())
    with pytest.raises(
        ParameterError, match=r"with a tokenizer\.json \(a fast one\).*; got function"
    ):
        ns.wrap(model, tokenizer=lambda texts: texts)


# --- scikit-learn -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pipeline_texts():
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, 8)) for _ in range(60)]


@pytest.fixture(scope="module")
def pipeline(pipeline_texts):
    truth = np.array([["red" in text, "cat" in text] for text in pipeline_texts]).astype(int)
    model = make_pipeline(TfidfVectorizer(), OneVsRestClassifier(LogisticRegression()))
    return model.fit(pipeline_texts, truth)


def test_pipelines_take_texts_themselves(pipeline, pipeline_texts):
    texts = pipeline_texts
    wrapped = ns.wrap(pipeline).calibrate(texts)
    outputs = wrapped.outputs(tuple(texts), batch_size=5)
    np.testing.assert_allclose(outputs.logits, pipeline.decision_function(texts))
    assert outputs.kept["text"].tolist() == texts
    assert wrapped("red cat").columns()["text"].tolist() == ["red cat"]
    with pytest.raises(ParameterError, match="takes no tokenizer"):
        ns.wrap(pipeline, tokenizer=word_tokenizer())


def test_a_pipeline_may_take_the_column_itself(pipeline):
    pd = pytest.importorskip("pandas")
    chosen = make_pipeline(FunctionTransformer(lambda frame: frame["text"]), pipeline)
    outputs = ns.wrap(chosen).outputs(pd.DataFrame({"text": ["red cat"]}))
    np.testing.assert_array_equal(outputs.logits, pipeline.decision_function(["red cat"]))


# --- ONNX -------------------------------------------------------------------------------------


@pytest.fixture
def graph(model, tmp_path):
    """The same model as a graph of a few nodes."""
    onnx = pytest.importorskip("onnx")
    helper, arrays = onnx.helper, onnx.numpy_helper

    def make(length="length", tokenizer=None, names=("input_ids", "attention_mask")):
        weights = {name: part.detach().numpy() for name, part in model.named_parameters()}
        ids, mask = names
        nodes = [
            helper.make_node("Gather", ["table.weight", ids], ["rows"]),
            helper.make_node("Cast", [mask], ["float"], to=1),
            helper.make_node("Unsqueeze", ["float", "last"], ["kept"]),
            helper.make_node("Mul", ["rows", "kept"], ["masked"]),
            helper.make_node("ReduceSum", ["masked", "one"], ["sum"], keepdims=0),
            helper.make_node("ReduceSum", ["kept", "one"], ["count"], keepdims=0),
            helper.make_node("Div", ["sum", "count"], ["mean"]),
            helper.make_node("Gemm", ["mean", "head.weight", "head.bias"], ["logits"], transB=1),
        ]
        constants = {"last": np.array([2]), "one": np.array([1]), **weights}
        built = helper.make_graph(
            nodes,
            "bag",
            [helper.make_tensor_value_info(name, 7, ["batch", length]) for name in names],
            [helper.make_tensor_value_info("logits", 1, ["batch", 3])],
            [arrays.from_array(array, name) for name, array in constants.items()],
        )
        graph_file = helper.make_model(
            built, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        )
        if tokenizer is not None:
            helper.set_model_props(graph_file, {"nescio.tokenizer": tokenizer})
        onnx.save(graph_file, tmp_path / "bag.onnx")
        return tmp_path / "bag.onnx"

    return make


def test_a_graph_takes_texts(model, graph):
    expected = ns.wrap(model, tokenizer=word_tokenizer()).outputs(TEXTS).logits
    logits = ns.wrap(graph(), tokenizer=word_tokenizer()).outputs(TEXTS).logits
    np.testing.assert_allclose(logits, expected, atol=1e-6)
    fixed = ns.wrap(graph(length=6), tokenizer=word_tokenizer())
    assert fixed.runner.tokenizer.max_tokens == 6
    np.testing.assert_allclose(fixed.outputs(TEXTS).logits, expected, atol=1e-6)


def test_a_graph_has_its_own_tokenizer(model, graph):
    stored = ns.wrap(model, tokenizer=word_tokenizer(max_tokens=5)).runner.tokenizer.json()
    wrapped = ns.wrap(graph(tokenizer=stored))
    assert wrapped.runner.tokenizer.json() == stored
    with pytest.raises(FileFormatError, match=r"not a tokenizer\.json"):
        ns.wrap(graph(tokenizer='{"version": 1}'))
