"""The self-check: how many samples are flagged after faults that need no other data."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler

import nescio as ns
from nescio.checks import make_outputs
from nescio.detectors import DETECTORS
from nescio.errors import BlindSpotWarning, MissingInputError, NonFiniteError, ParameterError
from nescio.models.inputs import changeable
from nescio.self_check import FAULTS, IMAGES, NUMBERS, TABLES, TEXTS, warn_of_blind_spots

TRAIN, HELD_OUT = make_outputs(600, seed=0), make_outputs(600, seed=1)


def faulty(kind, fault, values):
    """What the self-check makes of values."""
    return FAULTS[kind][fault][1](values, np.random.default_rng(0))


# --- the faults -----------------------------------------------------------------------------------


def test_every_fault_changes_the_data_and_keeps_its_shape(rng):
    data = {
        NUMBERS: rng.normal(3, 2, (40, 5)).astype(np.float32),
        IMAGES: rng.random((10, 3, 4, 4)).astype(np.float32),
        TEXTS: ["the cat sat here", "a dog", "one more text"],
    }
    for kind, values in data.items():
        for fault in FAULTS[kind]:
            changed = faulty(kind, fault, values)
            assert len(changed) == len(values)
            if kind == TEXTS:
                assert all(isinstance(text, str) for text in changed)
                assert changed != values
            else:
                assert changed.shape == values.shape, fault
                assert changed.dtype == values.dtype, fault
                assert np.isfinite(changed).all()
                assert not np.array_equal(changed, values), fault
            assert len(FAULTS[kind][fault][0]) <= 40  # a longer cell would be cut


def test_the_faults_are_what_they_say(rng):
    numbers = rng.normal(3, [1, 5], (400, 2))
    np.testing.assert_allclose(faulty(NUMBERS, "shifted", numbers), numbers + 5 * numbers.std(0))
    shuffled = faulty(NUMBERS, "shuffled", numbers)
    np.testing.assert_array_equal(np.sort(shuffled, 0), np.sort(numbers, 0))
    noise = faulty(NUMBERS, "noise", numbers)
    assert (noise.min(0) >= numbers.min(0) - 1e-9).all()
    assert (noise.max(0) <= numbers.max(0) + 1e-9).all()
    ends = np.quantile(numbers, [0.01, 0.99], axis=0)
    np.testing.assert_allclose(noise.std(0), np.ptp(ends, 0) / 12**0.5, rtol=0.1)
    outlier = np.vstack([numbers, 1e6 * numbers[:1]])
    made = faulty(NUMBERS, "noise", outlier)  # one row changes little
    np.testing.assert_allclose(made.std(0), noise.std(0), rtol=0.2)
    images = rng.integers(10, 200, (6, 3, 4, 4), dtype=np.uint8)
    inverted = faulty(IMAGES, "inverted", images)
    assert inverted.dtype == np.uint8
    np.testing.assert_array_equal(
        inverted.astype(int), int(images.min()) + int(images.max()) - images
    )
    assert faulty(IMAGES, "wrong scale", images).dtype == np.float32  # taken as normalised
    np.testing.assert_allclose(faulty(IMAGES, "wrong scale", images / 255), images)
    np.testing.assert_allclose(faulty(IMAGES, "wrong scale", images / 1.0), images / 255)
    np.testing.assert_allclose(faulty(IMAGES, "0 to 1", images), images / 255, rtol=1e-6)
    for made in (faulty(IMAGES, "0 to 1", images / 7 - 9), faulty(IMAGES, "0 to 1", images * 0.0)):
        assert (made.min(), made.max()) in ((0, 1), (0, 0))
    normalised = images / 255 / np.array([0.2, 0.3, 0.4])[:, None, None]
    for fault, of_all in (("black", np.min), ("white", np.max), ("grey", np.mean)):
        for pixels, axes in (
            (normalised, (0, 2, 3)),
            (normalised.transpose(0, 2, 3, 1), (0, 1, 2)),
        ):
            expected = np.broadcast_to(of_all(pixels, axis=axes, keepdims=True), pixels.shape)
            np.testing.assert_allclose(faulty(IMAGES, fault, pixels), expected)
    noise = faulty(IMAGES, "noise", normalised)
    assert (noise.max((0, 2, 3)) <= normalised.max((0, 2, 3))).all()
    texts = ["one two", "", "x  y\nz"]
    assert faulty(TEXTS, "empty", texts) == ["", "", ""]
    assert faulty(TEXTS, "repeated", texts) == ["one one", "", "x x x"]
    letters = faulty(TEXTS, "letters", texts)
    assert [len(text) for text in letters] == [7, 0, 6]
    assert letters[2][1] == " "
    assert [sorted(text.split()) for text in faulty(TEXTS, "shuffled", texts)] == [
        sorted(text.split()) for text in texts
    ]


def test_another_unit_is_tried_in_columns_that_it_moves_out_of_their_range(rng):
    frame = pytest.importorskip("pandas").DataFrame(
        {
            "balance": rng.normal(0, 9, 60),  # a thousandth of it is ordinary
            "age": rng.uniform(18, 90, 60),
            "height": np.where(rng.random(60) < 0.2, np.nan, rng.uniform(100, 200, 60)),
        }
    )
    small, large = (FAULTS[TABLES][f"unit {by} 1000"][1](frame, rng) for by in "/x")
    assert (small["balance"] == frame["balance"]).all()
    np.testing.assert_allclose(small["age"][::2], frame["age"][::2] / 1000)
    np.testing.assert_allclose(small["height"][1::2], frame["height"][1::2] / 1000)
    assert (small["age"][1::2] == frame["age"][1::2]).all()
    np.testing.assert_allclose(large["balance"][::3], frame["balance"][::3] * 1000)
    same = FAULTS[TABLES]["unit / 1000"][1](frame[["balance"]], rng)
    assert (same["balance"] == frame["balance"]).all()


# --- detectors ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DETECTORS)
def test_every_detector_can_check_itself(name):
    detector = DETECTORS[name]()
    train, held_out = (make_outputs(300, seed=seed) for seed in (2, 3))
    if detector.learns_from:
        detector.fit(train)
    detector.calibrate(held_out)
    checked = detector.self_check(held_out, n_samples=60)
    assert list(checked.flagged) == list(FAULTS[NUMBERS])
    assert checked.n_samples == 60
    assert all("error" not in change for change in checked.changes.values())
    assert checked.unchanged < 0.3
    assert checked.flagged == detector.self_check(held_out, n_samples=60).flagged


def test_a_detector_of_directions_is_blind_to_scale():
    blind = ns.NearestNeighbours().fit(TRAIN).calibrate(HELD_OUT).self_check(HELD_OUT)
    sees = ns.Mahalanobis().fit(TRAIN).calibrate(HELD_OUT).self_check(HELD_OUT)
    assert blind.flagged["x 10"] < 0.2
    assert "x 10" in blind.lets_through
    assert "/ 10" in blind.may_be_ordinary  # it leaves no range
    assert sees.flagged["x 10"] == sees.flagged["shifted"] == 1
    assert "x 10" not in sees.lets_through
    assert f"{blind.flagged['x 10']:.0%} of x 10" in blind.summary()
    n_clear = 6 - len(blind.may_be_ordinary)
    assert f"lets {len(blind.lets_through)} of {n_clear} clear faults through" in blind.summary()


def test_what_is_flagged_is_what_assess_flags():
    detector = ns.JointEnergy().calibrate(HELD_OUT)
    checked = detector.self_check(HELD_OUT, n_samples=len(HELD_OUT))
    for fault, factor in (("x 10", 10), ("/ 10", 0.1), ("zeros", 0)):
        expected = detector.assess(factor * HELD_OUT.logits, from_probs=False)
        assert checked.flagged[fault] == pytest.approx(len(expected.flagged) / len(HELD_OUT))


def test_masked_labels_stay_masked_and_bad_rows_are_left_out():
    logits = HELD_OUT.logits.astype(np.float64)
    logits[:, 0] = -np.inf
    detector = ns.JointEnergy(nonfinite="out").calibrate(logits)
    alone = ns.JointEnergy().calibrate(logits[:, 1:]).self_check(logits[:, 1:])
    for fault in ("x 10", "/ 10", "shifted", "zeros"):  # the others are random
        assert detector.self_check(logits).flagged[fault] == alone.flagged[fault]
    logits[100:, 1] = np.nan
    assert detector.self_check(logits, n_samples=500).n_samples == 100
    with pytest.raises(NonFiniteError, match="500 of 600 rows"):
        ns.JointEnergy().calibrate(logits[:100]).self_check(logits)


def test_groups_are_those_of_the_samples():
    names = np.repeat(["usual", "low"], 300)
    logits = HELD_OUT.logits - np.repeat([[0.0], [9.0]], 300, axis=0)
    detector = ns.JointEnergy().calibrate(logits, groups=names)
    assert detector.self_check(logits, groups=names).unchanged < 0.2
    with pytest.raises(MissingInputError, match="pass groups"):  # and no fault counts as seen
        detector.self_check(logits)
    by_count = ns.NearestNeighbours().fit(TRAIN).calibrate(HELD_OUT, groups="label_count")
    assert "error" not in str(by_count.self_check(HELD_OUT))


# --- wrapped models -------------------------------------------------------------------------------


@pytest.fixture
def table(rng):
    x = rng.normal(5, 1, (1000, 4))
    model = OneVsRestClassifier(LogisticRegression()).fit(x[:400], x[:400] > 5)
    return model, x


def test_calibrate_warns_once_of_what_the_detector_lets_through(table):
    model, x = table
    with pytest.warns(BlindSpotWarning) as caught:
        wrapped = ns.wrap(model, detector="joint_energy").calibrate(x[400:])
    [warning] = caught
    message = str(warning.message)
    assert len(message) < 400
    assert "0% of x 10" in message
    assert "(fit) sees more" in message
    assert warning.filename == __file__
    assert (wrapped.checked.what, wrapped.checked.n_samples) == ("input", 50)
    assert wrapped.checked.summary() in message
    html = wrapped._repr_html_()
    assert "NOT SEEN" in html
    assert "all values times 10" in html
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        unchecked = ns.wrap(model, detector="joint_energy").calibrate(x[400:], self_check=False)
    assert unchecked.checked is None
    assert "NOT SEEN" not in unchecked._repr_html_()


def test_faults_within_the_range_of_each_column_are_no_reason_to_warn():
    flagged = {"x 10": 1.0, "/ 10": 0.6, "shuffled": 0.1, "noise": 0.4}
    changes = dict.fromkeys(flagged, "")
    check = ns.SelfCheck("knn", "input", 50, changes, flagged, 0.06, ["shuffled", "noise"])
    assert check.lets_through == {}
    *_, last, unchanged, ordinary = str(check).splitlines()
    assert str(check).startswith("Self-check on 50 inputs: knn lets 0 of 2 clear faults through")
    assert last.split(maxsplit=1) == ["noise", "40%  may be ordinary"]
    assert unchanged == "Flagged without a fault: 3 of 50."
    assert ordinary == "'shuffled', 'noise' may be ordinary: each value by itself is usual."
    assert check.to_dict()["may_be_ordinary"] == [False, False, True, True]
    with warnings.catch_warnings():
        warnings.simplefilter("error", BlindSpotWarning)
        warn_of_blind_spots(check, has_learned=True)
    flagged["x 10"] = 0.4
    with pytest.warns(BlindSpotWarning, match="1 of 2 clear faults.* only 40% of x 10. If such"):
        warn_of_blind_spots(check, has_learned=True)
    images = {"black": 1.0, "noise": 0.4}  # random pixels are no ordinary image
    check = ns.SelfCheck("knn", "input", 30, dict.fromkeys(images, ""), images, 0.05, ["shuffled"])
    with pytest.warns(BlindSpotWarning, match="40% of noise"):
        warn_of_blind_spots(check, has_learned=True)


def test_what_leaves_no_range_is_told_from_the_values(table, rng):
    model, _ = table
    usual, inner = rng.normal(0, 1, (600, 4)), {"shuffled", "noise"}
    far = usual + 5
    for numbers, ordinary in (
        (far, inner),
        (usual, {"/ 10", "zeros", *inner}),
        (np.where(np.arange(4) == 3, far, usual), inner),  # one column is enough
        (np.where(np.arange(600)[:, None] == 9, 1e6, far), inner),  # one row of outliers is not
    ):
        checked = ns.wrap(model, detector="joint_energy").calibrate(numbers).checked
        assert set(checked.may_be_ordinary) == ordinary
        logits = numbers - 20 * (numbers[0, 3] > 2)
        outputs = ns.JointEnergy().calibrate(logits).self_check(logits)
        assert not {"x 10", "shifted"} & set(outputs.may_be_ordinary)
    masked = np.where(usual > 0, usual, -np.inf)
    masked[:, 0] = usual[:, 0] - 1
    assert "x 10" not in ns.JointEnergy().calibrate(masked).self_check(masked).may_be_ordinary


@pytest.fixture
def people(rng):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "age": rng.integers(18, 91, 3000).astype(float),
            "income": np.exp(rng.normal(10, 0.8, 3000)),
            "children": rng.poisson(1, 3000).astype(float),
            "height": np.where(rng.random(3000) < 0.3, np.nan, rng.normal(170, 10, 3000)),
            "city": rng.choice(["Rome", "Bonn"], 3000),
        }
    )
    labels = (frame[["age", "income"]] > frame[["age", "income"]].mean()).to_numpy()
    labels = labels ^ (rng.random(labels.shape) < 0.1)
    columns = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), ["age", "income", "children", "height"]),
        (OneHotEncoder(), ["city"]),
    )
    model = make_pipeline(columns, OneVsRestClassifier(LogisticRegression()))
    return model.fit(frame[:1500], labels[:1500]), frame, labels


def test_a_healthy_table_gives_no_warning_and_a_blind_column_its_name(people):
    model, frame, labels = people
    with warnings.catch_warnings():
        warnings.simplefilter("error", BlindSpotWarning)
        wrapped = ns.wrap(model).fit(frame[:1500], labels[:1500]).calibrate(frame[1500:])
    # A row without a height, or without children, is no fault if these are multiplied.
    assert wrapped.checked.flagged["unit x 1000"] == wrapped.checked.flagged["unit / 1000"] == 1
    assert wrapped.checked.may_be_ordinary == ["shuffled", "noise"]
    assert "is let through in" not in str(wrapped.checked)
    of_age = FunctionTransformer(lambda rows: rows[["age", "income"]])
    guarded = ns.wrap(model, features=of_age.fit(frame)).fit(frame[:1500], labels[:1500])
    checked = guarded.calibrate(frame[1500:]).checked
    assert 0.5 < checked.flagged["unit / 1000"] < 0.9
    assert checked.unseen_columns["unit / 1000"] == ["height"]
    assert "'unit / 1000' is let through in: height." in str(checked)


def test_a_few_wild_rows_hide_nothing(people):
    model, frame, labels = people
    frame, held_out = frame.copy(), frame[1500:].copy()
    frame.loc[:12, "age"] = held_out.loc[1500:1510, "age"] = 999.0
    with warnings.catch_warnings():
        warnings.simplefilter("error", BlindSpotWarning)
        wrapped = ns.wrap(model).fit(frame[:1500], labels[:1500]).calibrate(held_out)
    assert wrapped(frame[500:1000]).in_distribution.mean() > 0.9
    for age in (999.0, 200.0, 0.0):
        assert not wrapped(frame[500:600].assign(age=age)).in_distribution.any()


def test_faults_are_made_in_columns_that_are_read(people, table):
    pandas = pytest.importorskip("pandas")
    model, frame, labels = people
    numbers = frame.assign(customer=np.linspace(1, 9, len(frame)))  # the pipeline drops it
    model = clone(model).fit(numbers[:1500], labels[:1500])
    checked = ns.wrap(model).fit(numbers[:1500], labels[:1500]).calibrate(numbers[1500:]).checked
    assert checked.flagged["unit x 1000"] == 1
    model, x = table
    unnamed = pandas.DataFrame(x)  # its columns have numbers as names
    checked = ns.wrap(model, detector="joint_energy").calibrate(unnamed[400:]).checked
    raised = [fault for fault, change in checked.changes.items() if "raises" in change]
    assert raised == ["missing"]


def test_held_out_values_far_out_of_the_training_ranges_are_named(people):
    model, frame, labels = people
    fitted, held_out = ns.wrap(model).fit(frame[:1500], labels[:1500]), frame[1500:].copy()
    held_out.loc[1500:1600, "age"] = 999.0
    with pytest.warns(BlindSpotWarning, match=r"most often column 0 of features\. Such") as caught:
        fitted.calibrate(held_out)
    share = float(str(caught[0].message).split(" %")[0])
    assert share > 2.5


def test_heavy_tails_are_not_called_wild(rng):
    features = np.column_stack(
        [
            rng.standard_t(2, 4000),
            np.exp(rng.normal(0, 2, 4000)),
            rng.pareto(2, 4000),
            rng.poisson(0.01, 4000),
            rng.random(4000) < 0.001,
            np.ones(4000),
            rng.normal(size=4000),
        ]
    )
    labels = (rng.normal(size=(4000, 3)) + features[:, -1:] > 0).astype(int)
    data = ns.Outputs(rng.normal(labels, 1), features=features, labels=labels)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BlindSpotWarning)
        for n in (500, 2000):
            ns.Combined().fit(data[:n]).calibrate(data[n:])


def test_the_advice_names_no_detector_that_may_be_worse(table):
    model, x = table
    with pytest.warns(BlindSpotWarning, match=r"\(fit\) sees more"):
        ns.wrap(model, detector="joint_energy").calibrate(x[400:])
    with pytest.warns(BlindSpotWarning, match="If such inputs can come") as caught:
        ns.wrap(model, detector="linear_probe").fit(x[:400], x[:400] > 5).calibrate(x[400:])
    assert "(fit)" not in str(caught[0].message)


def test_a_classifier_with_verdicts_is_checked_too(table):
    model, x = table
    with pytest.warns(BlindSpotWarning, match="0% of x 10"):
        guarded = ns.WithVerdict(model, detector="joint_energy").fit(x, x > 5)
    assert "x 10" in guarded.checked.lets_through


def test_a_fault_with_which_the_model_raises_is_noticed(table):
    _, x = table

    def positive(values):
        if np.any(np.asarray(values) <= 0):
            raise ValueError("not positive")
        return values

    steps = FunctionTransformer(positive), OneVsRestClassifier(LogisticRegression())
    model = make_pipeline(*steps).fit(x[:400], x[:400] > 5)
    checked = ns.wrap(model, detector="joint_energy").calibrate(x[400:]).checked
    assert checked.flagged["zeros"] == 1
    assert checked.changes["zeros"] == "raises an error: all values 0"
    assert "error" not in checked.changes["x 10"]


def test_the_numbers_of_a_data_frame_change_and_its_words_stay(table):
    pandas = pytest.importorskip("pandas")
    _, x = table
    frame = pandas.DataFrame(x, columns=list("abcd"), index=range(1000, 2000))
    frame["e"] = np.arange(1000)
    frame["word"] = np.where(x[:, 0] > 5, "high", "low")
    frame["known"] = x[:, 1] > 5
    seen = []

    words = []

    def numbers(part):
        assert part["known"].dtype == bool
        words.append(set(part["word"]))
        seen.append(part["e"].to_numpy())
        return np.nan_to_num(part[list("abcd")].to_numpy())

    steps = FunctionTransformer(numbers), OneVsRestClassifier(LogisticRegression())
    model = make_pipeline(*steps).fit(frame[:400], x[:400] > 5)
    wrapped = ns.wrap(model, detector="joint_energy").calibrate(frame[400:])
    assert wrapped.checked.n_samples == 50
    assert "error" not in str(wrapped.checked)
    assert list(wrapped.checked.flagged)[-7:] == [
        *("unit / 1000", "shifted", "zeros", "shuffled", "noise", "missing", "new words")
    ]
    assert 5 < (seen[-7] < 1).sum() < 15  # one of five columns in each of 50 rows
    assert (seen[-5] == 0).all()
    assert np.isnan(seen[-2]).all()
    assert all(named <= {"high", "low"} for named in words[:-1])
    assert not words[-1] & {"high", "low"}
    assert frame["e"].tolist() == list(range(1000))


def test_texts(rng):
    words = np.array(["goal match team", "engine wheel road", "pasta oven bread"])
    labels = rng.random((900, 3)) < 0.6
    texts = [
        " ".join(rng.choice(f"here there {' '.join(words[row])}".split(), 9)) for row in labels
    ]
    model = make_pipeline(TfidfVectorizer(), OneVsRestClassifier(LogisticRegression()))
    model.fit(texts[:400], labels[:400])
    checked = ns.wrap(model, detector="joint_energy").calibrate(texts[400:]).checked
    assert list(checked.flagged) == ["empty", "letters", "repeated", "shuffled"]
    assert checked.flagged["shuffled"] == checked.unchanged  # the model counts words


def test_images_and_what_cannot_be_changed(rng):
    torch = pytest.importorskip("torch")
    images = torch.rand((400, 3, 8, 8), generator=torch.Generator().manual_seed(0))
    pixels = (255 * images).to(torch.uint8)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 3))
    prepared = ns.Preprocessing(8, mean=(0.5,) * 3, std=(0.5,) * 3)
    wrapped = ns.wrap(net, detector="joint_energy", preprocessing=prepared)
    of_bytes = wrapped.calibrate(pixels).checked
    assert list(of_bytes.flagged) == list(FAULTS[IMAGES])
    assert of_bytes.flagged == wrapped.calibrate(pixels.numpy()).checked.flagged
    assert list(wrapped.calibrate(images).checked.flagged) == list(FAULTS[IMAGES])
    assert list(wrapped.calibrate(images.flatten(2)).checked.flagged) == list(FAULTS[NUMBERS])
    for batches in (iter(images.split(100)), [images[:200], images[200:]]):
        checked = wrapped.calibrate(batches).checked
        assert (checked.what, checked.n_samples) == ("output", 50)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(images), batch_size=40)
    checked = wrapped.calibrate(loader).checked
    assert (checked.what, checked.n_samples) == ("input", 40)
    images[0, 0, 0, :2] = torch.tensor([0.0, 1.0])
    of_1 = wrapped.calibrate(images).checked  # from 0 to 1 already
    assert "0 to 1" not in of_1.flagged
    assert len(of_1.columns()["change"]) == len(of_1.flagged) == len(FAULTS[IMAGES]) - 1
    again = wrapped.calibrate(images).self_check([images])
    assert (again.what, again.n_samples) == ("output", 200)


def test_a_model_that_takes_whole_batches_only_is_checked_by_its_outputs():
    torch = pytest.importorskip("torch")

    class Whole(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x.reshape(100, 5))

    x = torch.randn((300, 5), generator=torch.Generator().manual_seed(0))
    wrapped = ns.wrap(Whole(5, 3), detector="joint_energy").calibrate(x, batch_size=100)
    assert (
        wrapped.checked.what == wrapped.self_check(x, n_samples=9, batch_size=100).what == "output"
    )


def test_a_graph_of_a_fixed_batch_size_gets_whole_batches(table):
    model, x = table
    wrapped = ns.wrap(model, detector="joint_energy")
    wrapped.runner.fixed_batch = 8
    assert wrapped.calibrate(x[400:]).checked.n_samples == 56


def test_groups_of_a_wrapped_model(table):
    model, x = table
    names = np.repeat(["usual", "low"], 300)
    x[700:] -= 4
    wrapped = ns.wrap(model, detector="joint_energy").calibrate(x[400:], groups=names)
    assert wrapped.checked.what == "input"
    assert wrapped.checked.unchanged < 0.2
    assert wrapped.self_check(x[400:], groups=names, n_samples=7).n_samples == 7
    by_count = ns.wrap(model, detector="joint_energy").calibrate(x[400:], groups="label_count")
    assert by_count.checked.what == "input"


@pytest.mark.parametrize("sizes", [(300, 300), (200, 400)])
def test_batches_of_a_table_are_checked_by_their_outputs(table, sizes):
    model, x = table
    batches = np.split(x[400:], sizes[:1])
    wrapped = ns.wrap(model, detector="joint_energy").calibrate(batches)
    assert wrapped.checked.what == wrapped.self_check(batches).what == "output"
    with pytest.raises(ParameterError, match="n_samples must be"):
        wrapped.self_check(x, n_samples="many")


@pytest.mark.parametrize(
    "inputs",
    [np.arange(20).reshape(5, 4), [[1.0, 2.0]], {"x": np.zeros((5, 4))}, np.zeros(5), iter([])],
    ids=["tokens", "list", "mapping", "one dimension", "iterator"],
)
def test_inputs_that_are_no_numbers_images_or_texts(inputs):
    assert changeable(inputs, 3, is_table=False, is_bytes=False) is None


def test_whole_numbers_and_lists_are_numbers_of_a_table():
    for inputs in (np.arange(20).reshape(5, 4), np.arange(20).reshape(5, 4).tolist()):
        part = changeable(inputs, 3, is_table=True, is_bytes=False)
        assert (part.kind, part.values.dtype, part.values.shape) == (NUMBERS, np.float64, (3, 4))
        assert part.rows.tolist() == [0, 2, 4]
    assert changeable([{"a": 1}, {"a": 2}], 3, is_table=True, is_bytes=False) is None
