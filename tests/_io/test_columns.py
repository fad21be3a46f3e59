"""Which columns of a table are labels, ids, kept or ignored."""

import numpy as np
import pytest

from nescio._io.columns import Columns
from nescio._io.csv_table import CsvTable
from nescio.errors import InputError, LabelMismatchError


class Made:
    """A table in memory."""

    def __init__(self, columns, index=(), lists=()):
        self.columns = {name: np.asarray(column) for name, column in columns.items()}
        self.names, self.index, self.lists = tuple(columns), tuple(index), frozenset(lists)
        self.partitions = frozenset()

    def read(self, numbers, others):
        return {name: self.columns[name] for name in (*numbers, *others)}, {}


@pytest.fixture
def logits(rng):
    return {name: rng.normal(size=60) for name in ("cat", "dog", "zebra")}


def roles_of(columns, **said):
    content = Columns(**said).read(Made(columns))
    return content["label_names"], content.get("manifest", {}).get("ignored_columns", [])


@pytest.mark.parametrize(
    ("name", "values", "reason"),
    [
        ("text", ["x"] * 60, "text"),
        ("flag", [True, False] * 30, "true or false"),
        ("when", np.arange(60).astype("datetime64[s]"), "times"),
        ("user_id", np.arange(60)[::-1] * 7 % 61, "named like an id"),
        ("photoId", np.zeros(60), "named like an id"),
        ("Unnamed: 0", np.arange(60), "named like an id"),
        ("user_id", [np.nan, *range(59)], "named like an id"),
        ("age", [31, 62, 19] * 20, "only whole numbers, unlike other columns"),
        ("year", [2024.0] * 60, "only whole numbers"),
        ("truth", [0, 1] * 30, "only whole numbers"),
        ("seconds", np.arange(60) + 1.7e9 + 0.25, "too large for logits"),
        ("taken_at", np.arange(60) * 7 % 61 / 8 + 0.1, "named like a time"),
        ("dateTime", 45000 + np.arange(60) * 7 % 61 / 8, "named like a time"),
        ("price", 10 + np.arange(60) * 7 % 61 / 0.8, "never negative and up to 85"),
        ("top_prob", np.arange(60) * 7 % 61 / 61, "from 0 to 1, unlike other columns"),
        ("elapsed", np.arange(60) / 8, "never negative and in sorted order"),
        ("price", np.round(np.arange(60) * 7 % 61 / 7, 2), "two digits after the point"),
        ("cost", np.arange(60) * 7 % 61 * 13 * 0.01, "two digits"),  # as Arrow makes of a decimal
        ("fee", np.round(np.arange(60) * 7 % 61 / 7, 2).astype(np.float32), "two digits"),
        ("note", [np.nan] * 60, "empty"),
        ("note", np.array([None] * 60), "empty"),
    ],
)
def test_a_column_that_may_not_be_a_label_is_an_error(logits, name, values, reason):
    with pytest.raises(InputError) as raised:
        roles_of(logits | {name: values})
    message = str(raised.value)
    assert message.startswith("1 column does not look like the logits of a label: ")
    assert f"{name!r} (" in message
    assert reason in message
    assert "--labels (labels=)" in message
    assert f"ignore=[{name!r}]" in message
    assert roles_of(logits | {name: values}, ignore=[name]) == (("cat", "dog", "zebra"), [name])


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("covid", np.arange(60) - 9.5),
        ("photo_id", np.arange(60) - 0.5),  # a label of identity cards, with fractions
        ("masked", [-np.inf] * 60),
        ("never", np.zeros(60)),
        ("some", [np.nan] * 30 + [0.5] * 30),
        ("date", np.arange(60) * 7 % 61 / 8 - 1),  # the fruit
        ("person", np.arange(60) * 7 % 61 / 8 + 0.1),  # in every picture
        ("half", (np.arange(60) * 7 % 61 / 8 - 1).astype(np.float16)),
    ],
)
def test_columns_that_stay_labels(logits, name, values):
    assert roles_of(logits | {name: values}) == (("cat", "dog", "zebra", name), [])


def test_logits_may_be_rounded_to_two_digits(rng):
    rounded = {name: np.round(rng.normal(size=60), 2) for name in ("cat", "dog", "fox")}
    sure = np.round(rng.uniform(1, 5, 60), 2)  # in every picture
    assert roles_of(rounded | {"person": sure})[0] == ("cat", "dog", "fox", "person")


def test_a_label_is_like_the_others_if_most_are_so(rng):
    sizes = {name: rng.uniform(0, 80, 60) for name in ("cat", "dog", "fox")}
    assert roles_of(sizes | {"cow": rng.normal(size=60)})[0] == ("cat", "dog", "fox", "cow")
    large = {name: rng.normal(0, 200, 60) for name in ("cat", "dog", "fox")}
    assert roles_of(large | {"cow": rng.uniform(50, 400, 60)})[0][3] == "cow"
    few = {name: rng.normal(size=9) for name in ("cat", "dog", "fox")}
    assert roles_of(few | {"price": np.arange(9) + 50.5})[0][3] == "price"


def test_features_may_have_any_scale(logits):
    columns = logits | {"wide": np.arange(60) + 50.5}
    with pytest.raises(InputError, match=r"'wide' .never negative"):
        roles_of(columns)
    assert roles_of(columns, of_features=True)[0][3] == "wide"
    with pytest.raises(InputError, match=r"^2 columns do not look like a feature: .* Drop them"):
        roles_of(columns | {"text": ["x"] * 60, "user_id": np.arange(60)}, of_features=True)


def test_tables_of_whole_numbers_are_quantised_logits(rng):
    columns = {name: rng.integers(-20, 20, 60) for name in ("cat", "dog")}
    assert roles_of(columns)[0] == ("cat", "dog")
    with pytest.raises(InputError, match=r"'user'.*all different"):
        roles_of(columns | {"user": rng.permutation(60) + 5})
    with pytest.raises(InputError, match=r"'step'.*sorted order"):
        roles_of(columns | {"step": np.repeat(np.arange(20), 3)})
    toy = {"cat": [1, 2, 3], "dog": [0.5, 1.0, 2.0]}
    assert roles_of(toy)[0] == ("cat", "dog")


def test_a_scored_table_does_not_hold_logits(logits):
    scored = {"score": np.ones(60) / 3, "p_value": np.ones(60) / 2}
    with pytest.raises(InputError, match=r"'score' .written by nescio score., 'p_value' "):
        roles_of(logits | scored | {"in_distribution": [True] * 60})


def test_the_message_names_the_option_in_a_form_that_works(logits):
    with pytest.raises(InputError, match=r"--ignore 'a text,\"b, c\"' \(in Python") as raised:
        roles_of(logits | {"a text": ["x"] * 60, "b, c": ["y"] * 60})
    assert "If one of them holds the ids, pass --id-column." in str(raised.value)
    many = {f"truth {i}": np.arange(60) % 2 for i in range(30)}
    with pytest.raises(InputError, match=r"30 columns do not .* and 20 more. To choose") as raised:
        roles_of(logits | many)
    assert "--ignore" not in str(raised.value)


def test_chosen_labels_are_taken_in_order_and_all_others_ignored(logits):
    columns = {"text": ["x"] * 60, **logits, "n": [1] * 60}
    assert roles_of(columns, labels=["zebra", "cat"]) == (("zebra", "cat"), ["text", "dog", "n"])
    assert roles_of(columns, labels="[a-z][a-z]*", ignore="text")[0] == ("cat", "dog", "zebra")
    assert roles_of(columns, labels=["n", "*a*", "c*"])[0] == ("n", "cat", "zebra")
    odd = {"far[v2]": logits["cat"], "far2": logits["dog"]}
    assert roles_of(odd, labels=["far[v2]"])[0] == ("far[v2]",)


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"labels": ["cta"]}, "there is no column 'cta' .labels, --labels.. Did you mean 'cat'"),
        ({"labels": ["x*"]}, r"no column 'x\*'.*The columns are 'cat', 'dog'"),
        ({"labels": ["cat", "cat"]}, "labels names 'cat' twice"),
        ({"labels": []}, "at least one column"),
        ({"labels": ["cat", "text"]}, "column 'text' does not hold numbers, but text"),
        ({"labels": ["cat"], "ignore": ["cat"]}, "ignored or kept"),
        ({"keep": ["text"], "ignore": ["t*"]}, "'text' cannot be kept and also be ignored"),
        ({"id_column": "cta"}, "there is no column 'cta' .id_column, --id-column"),
        ({"id_column": "cat", "ignore": "cat"}, "holds the ids, so it cannot be"),
        ({"ignore": "*"}, "no columns of logits"),
        ({"ignore": "txet"}, "Did you mean 'text'"),
    ],
)
def test_mistakes_are_explained(logits, said, reason):
    with pytest.raises(InputError, match=reason):
        roles_of({"id": ["a"] * 60, **logits, "text": ["x"] * 60}, **said)


def test_ids_come_from_a_column_or_the_index(logits):
    def ids(columns, index=(), **said):
        return Columns(**said).read(Made(columns, index)).get("ids")

    named = {"ID": np.arange(60) + 5, **logits}
    assert ids(named)[:2] == ["5", "6"]
    assert ids({"path": ["p"] * 60, **logits}, id_column="path")[0] == "p"
    assert ids({"at": np.arange(60)[::-1], **logits}, index=["at"])[0] == "59"
    assert ids({"at": np.arange(60), **logits}, index=["at"]) is None
    assert ids({"n": [np.nan, *range(59)], **logits}, id_column="n")[:2] == ["", "0"]
    levels = {"a": np.arange(60), "b": np.arange(60), **logits}
    assert ids(levels, index=["a", "b"]) is None
    assert ids(levels, index=["a", "b"], id_column="b")[1] == "1"
    with pytest.raises(InputError, match="'id'"):
        ids({"ID": [1] * 60, "id": [2] * 60, **logits})
    assert ids({"id": [0.5] * 60, **logits}, labels=["id", "cat"]) is None


def test_the_labels_of_a_detector_are_looked_for_by_name(logits):
    columns = {"text": ["x"] * 60, **logits}
    assert roles_of(columns, expected=("zebra", "cat")) == (("zebra", "cat"), ["text", "dog"])
    with pytest.raises(
        LabelMismatchError, match=r"Missing: 'lion'\. Not known to the detector: 'text', 'dog'"
    ):
        roles_of(columns, expected=("lion", "cat"))
    numbered = {str(at): column for at, column in enumerate(logits.values())}
    assert roles_of(numbered, expected=("lion", "cat", "fish"))[0] is None
    lists = Made({"logits": np.ones((60, 2)) / 3, "text": ["x"] * 60}, lists=["logits"])
    content = Columns(expected=("lion", "cat")).read(lists)
    assert content["logits"].shape == (60, 2)
    assert content["manifest"] == {"ignored_columns": ["text"]}


def test_columns_of_lists(rng):
    lists = {"a": rng.normal(size=(60, 2)), "features": rng.normal(size=(60, 4))}
    table = Made(lists | {"text": ["x"] * 60}, lists=lists)
    with pytest.raises(InputError, match="no column of lists named logits; there are 'a', 'feat"):
        Columns().read(table)
    assert Columns(labels="a").read(table)["logits"].shape == (60, 2)
    with pytest.raises(InputError, match="no column of lists named logits"):
        Columns(labels=["a", "features"]).read(table)
    with pytest.raises(InputError, match="holds lists and cannot be kept"):
        Columns(keep="a").read(table)


def test_a_chosen_label_with_text_names_the_line(tmp_path):
    (tmp_path / "x.csv").write_text("cat,dog\n1,2\n3,two\n")
    with pytest.raises(InputError, match="column 'dog', line 3: 'two' is not a number"):
        Columns(labels="dog").read(CsvTable(tmp_path / "x.csv"))
    assert Columns(labels="cat").read(CsvTable(tmp_path / "x.csv"))["logits"].tolist() == [[1], [3]]


def test_lists_do_not_replace_columns_of_numbers(logits, rng):
    columns = {**logits, "embedding": rng.normal(size=(60, 8)), "text": ["x"] * 60}
    table = Made(columns, lists=["embedding"])
    reason = "lists of 'embedding', or in the columns of numbers 'cat', 'dog', 'zebra'. Choose"
    for said in ({}, {"expected": ("lion", "fox")}):
        with pytest.raises(InputError, match=reason):
            Columns(**said).read(table)
    assert Columns(labels="embedding").read(table)["logits"].shape == (60, 8)
    assert Columns(ignore=["embedding", "text"]).read(table)["logits"].shape == (60, 3)
    assert Columns(ignore=[*logits]).read(table)["logits"].shape == (60, 8)
    named = Made({"logits": columns["embedding"], **logits}, lists=["logits"])
    assert Columns().read(named)["logits"].shape == (60, 8)


def test_numbers_are_names_unless_they_only_count_the_columns(logits):
    def renamed(*names):
        return dict(zip(names, logits.values(), strict=True))

    for names in ("012", "123"):
        assert roles_of(renamed(*names))[0] is None
    assert roles_of(renamed("17", "3", "44"))[0] == ("17", "3", "44")
    expected = ("3", "44", "17")
    assert roles_of(renamed("17", "3", "44"), expected=expected)[0] == expected
    with pytest.raises(LabelMismatchError, match=r"Missing: 'lion', 'cat', 'fish'\. Not .*'7'"):
        roles_of(renamed("7", "5", "3"), expected=("lion", "cat", "fish"))
    for names in ("201", "321"):
        with pytest.raises(InputError, match="numbered, but not in order: "):
            roles_of(renamed(*names))
        assert roles_of(renamed(*names), labels=[*names])[0] == tuple(names)


def test_ids_are_exact_and_missing_ones_are_empty(logits):
    def ids(column, **said):
        return Columns(**{"id_column": "n", **said}).read(Made({"n": column, **logits}))["ids"][:3]

    large = np.array([2**53 + 1, None, 2**53 + 3, *range(57)], dtype=object)
    assert ids(large) == ["9007199254740993", "", "9007199254740995"]
    assert ids([1.0, np.inf, np.nan, *range(57)]) == ["1", "inf", ""]
    assert ids([None] * 60) == ["", "", ""]
    assert ids(np.full(60, np.nan)) == ["", "", ""]
    times = np.array(["2024-01-01", "NaT", *["2024-01-02"] * 58], dtype="datetime64[ns]")
    assert ids(times)[:2] == ["2024-01-01T00:00:00.000000000", ""]
    kept = Columns(keep="n").read(Made({"n": large, **logits}))["kept"]["n"]
    assert kept[:3].tolist() == [2**53 + 1, None, 2**53 + 3]


def test_a_column_named_id_that_may_be_a_label_is_an_error(logits):
    columns = {"cat": logits["cat"], "id": logits["dog"], "zebra": logits["zebra"]}
    written = columns | {"id": np.array([f"{value:.4f}" for value in logits["dog"]], dtype=object)}
    for given in (columns, written):
        with pytest.raises(InputError, match=r"'id' holds numbers with fractions.*id_column='id'"):
            Columns().read(Made(given))
        assert Columns(id_column="id").read(Made(given))["logits"].shape == (60, 2)
    assert roles_of(columns, labels=["cat", "id"])[0] == ("cat", "id")
