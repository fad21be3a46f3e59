import numpy as np
import pytest

import nescio as ns
from nescio._io.tensors import digest, read_tensors, write_tensors
from nescio.checks import make_outputs
from nescio.detectors import DETECTORS
from nescio.errors import FileError, FileFormatError, ParameterError


@pytest.fixture
def saved(tmp_path):
    """A saved detector by name."""

    def save(name):
        path = tmp_path / f"{name}.nescio"
        if not path.exists():
            detector = DETECTORS[name]().fit(make_outputs(300)).calibrate(make_outputs(200))
            detector.save(path)
        return path

    return save


@pytest.mark.parametrize("name", DETECTORS)
def test_saving_what_was_loaded_gives_the_same_bytes(saved, name, tmp_path):
    path = saved(name)
    loaded = ns.load(path)
    assert type(loaded) is DETECTORS[name]
    assert loaded.label_names_ == tuple(f"label {i}" for i in range(6))
    loaded.save(tmp_path / "again.nescio")
    assert (tmp_path / "again.nescio").read_bytes() == path.read_bytes()


@pytest.mark.parametrize("by", [None, "label_count", "custom"])
def test_the_calibration_is_kept_whole(tmp_path, by):
    outputs = make_outputs(500)
    groups = np.repeat(["a", "b"], 250) if by == "custom" else by
    detector = ns.JointEnergy().calibrate(outputs, tpr=0.9, confidence=0.8, groups=groups)
    detector.save(tmp_path / "x.nescio")
    loaded = ns.load(tmp_path / "x.nescio").calibration_
    kept = detector.calibration_
    assert (loaded.by, loaded.edges, loaded.threshold_values) == (
        kept.by,
        kept.edges,
        kept.threshold_values,
    )
    assert loaded.statement() == kept.statement()
    for name, threshold in kept.thresholds.items():
        assert loaded.thresholds[name].confidence == 0.8
        np.testing.assert_array_equal(loaded.thresholds[name].scores, threshold.scores)


def test_truncation_and_damage_are_refused(saved, tmp_path):
    whole = saved("lof").read_bytes()
    damaged = tmp_path / "damaged.nescio"
    for length in (0, 7, 50, len(whole) // 2, len(whole) - 1):
        damaged.write_bytes(whole[:length])
        with pytest.raises(FileFormatError, match=r"truncated|damaged"):
            ns.load(damaged)
    flipped = bytearray(whole)
    flipped[-20] ^= 1
    damaged.write_bytes(bytes(flipped))
    with pytest.raises(FileFormatError, match="do not match their checksum"):
        ns.load(damaged)


def test_files_of_another_kind_are_refused(saved, tmp_path):
    make_outputs(5).save(tmp_path / "outputs.safetensors")
    with pytest.raises(FileFormatError, match=r"not a saved detector: it holds 'nescio.outputs'"):
        ns.load(tmp_path / "outputs.safetensors")
    write_tensors(tmp_path / "other", {"a": np.zeros(3)}, {})
    with pytest.raises(FileFormatError, match="nescio did not write it"):
        ns.load(tmp_path / "other")
    with pytest.raises(FileError, match="no file"):
        ns.load(tmp_path / "nowhere.nescio")
    path = saved("joint_energy").rename(tmp_path / "x.safetensors")
    with pytest.raises(FileFormatError, match=r"not a file of a model's outputs: it holds"):
        ns.Outputs.load(path)


def tampered(path, *, learned=None, tensors=None, **changes):
    """A file with other contents and, unless that is changed too, the right checksum."""
    stored, metadata = read_tensors(path)
    stored |= {f"learned.{name}": array for name, array in (learned or {}).items()}
    stored |= tensors or {}
    metadata |= changes
    if "sha256" not in changes:
        del metadata["sha256"]
        metadata["sha256"] = digest(stored, metadata)
    other = path.with_name("tampered.nescio")
    write_tensors(other, stored, metadata, force=True)
    return other


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"schema": 3},
            r"another version of nescio \('0.1.0', schema 3; this one reads schema 1\)",
        ),
        ({"schema": "2"}, "another version of nescio"),
        ({"detector": "os.system"}, "'os.system', which is not one of nescio's"),
        ({"params": {"tpr": 0.95, "shell": "rm"}}, "damaged: .*shell"),
        ({"params": {"tpr": 7, "nonfinite": "raise"}}, "damaged: tpr must lie"),
        ({"params": None}, "damaged"),
        (
            {"n_columns": {"logits": "80"}},
            "n_columns must be a whole number of at least 1, got '80'",
        ),
        ({"n_columns": {"logits": 0}}, "n_columns must be a whole number"),
        ({"label_names": "abcdef"}, "not a list"),
        ({"n_columns": {"logits": 5}}, "damaged: label_names must name 5 labels, got 6"),
        ({"label_names": ["x"] * 6}, "must be distinct"),
        ({"calibration": {}}, "damaged: no entry 'groups'"),
        ({"calibration": {"by": None, "edges": [], "groups": []}}, "does not match its scores"),
        ({"calibration": None}, "no calibration"),
        ({"sha256": None}, "checksum"),
    ],
)
def test_tampered_files_are_refused(saved, changes, reason):
    with pytest.raises(FileFormatError, match=reason):
        ns.load(tampered(saved("joint_energy"), **changes))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rank": 0}, "rank must be a whole number"),
        ({"rank": 201}, "got rank 201"),
        ({"n_samples": 199}, "does not match its scores"),
        ({"n_samples": 300}, "does not match its scores"),
        ({"tpr": 2}, "tpr must lie"),
        ({"confidence": "high"}, "confidence must lie"),
        ({"name": "ell"}, r"for the groups \['all'\], got \['ell'\]"),
    ],
)
def test_a_calibration_that_makes_no_sense_is_refused(saved, change, reason):
    path = saved("joint_energy")
    _, metadata = read_tensors(path)
    group = metadata["calibration"]["groups"][0]
    calibration = metadata["calibration"] | {"groups": [group | change]}
    with pytest.raises(FileFormatError, match=reason):
        ns.load(tampered(path, calibration=calibration))


@pytest.mark.parametrize("by", ["label_count", "colour"])
@pytest.mark.parametrize("edges", [[], [1], [0, 0], [1, 0], [0, 5]])
def test_groups_that_do_not_fit_their_edges_are_refused(saved, by, edges):
    path = saved("joint_energy")
    _, metadata = read_tensors(path)
    calibration = metadata["calibration"] | {"by": by, "edges": edges}
    with pytest.raises(FileFormatError, match="damaged"):
        ns.load(tampered(path, calibration=calibration))


def test_calibration_scores_out_of_order_are_refused(saved):
    path = saved("joint_energy")
    tensors, _ = read_tensors(path)
    scores = tensors["calibration.scores"]
    for bad in (scores[::-1], np.where(scores == scores[50], np.nan, scores)):
        with pytest.raises(FileFormatError, match="ascending order"):
            ns.load(tampered(path, tensors={"calibration.scores": bad}))


def test_a_hostile_forest_cannot_read_out_of_bounds_or_walk_in_circles(saved):
    path = saved("isolation_forest")
    forest = ns.load(path)

    def changed(name, index, value):
        array = getattr(forest, name).copy()
        array[index] = value
        return {name: array}

    circle = forest.children_.copy()
    circle[0, 0], circle[0, 1] = [1, 1], [0, 0]
    for learned in (
        changed("children_", (0, 0), 10**6),
        changed("children_", (0, 5), [1, 1]),
        {"children_": circle},
        changed("features_", (0, 0), 99),
        changed("features_", (0, 0), -1),
        changed("thresholds_", (0, 0), np.nan),
        changed("lengths_", (0, 0), np.nan),
        {"scale_": np.array(np.inf)},
        {name: getattr(forest, name)[:0] for name in list(forest.learned)[:4]},
    ):
        with pytest.raises(FileFormatError, match="damaged"):
            ns.load(tampered(path, learned=learned))


@pytest.mark.parametrize(
    "name", [name for name, kind in DETECTORS.items() if kind().learned and name != "combined"]
)
def test_learned_arrays_of_another_kind_are_refused(saved, name):
    detector = ns.load(saved(name))
    for key in detector.learned:
        array = np.asarray(getattr(detector, key))
        is_float = array.dtype.kind == "f"
        damaged = [array[None], array.astype(np.int64 if is_float else np.float64)]
        damaged += [np.full_like(array, value) for value in (np.nan, np.inf) if is_float]
        for wrong in damaged:
            with pytest.raises(FileFormatError, match="damaged"):
                ns.load(tampered(saved(name), learned={key: wrong}))


@pytest.mark.parametrize(
    ("name", "learned"),
    [
        ("mahalanobis", {"center_": np.zeros(3)}),
        ("relative_mahalanobis", {"means_": np.zeros((6, 9))}),
        ("vim", {"outside_": np.zeros((8, 0))}),
        ("nnguide", {"bank_": np.zeros((49, 8))}),
        ("knn", {"bank_": np.zeros((300, 7))}),
        ("knn", {"bank_": np.zeros((4, 8)), "rows_": np.arange(4)}),
        ("knn", {"rows_": np.arange(299)}),
        ("dice", {"kept_": np.ones((6, 7), bool)}),
        ("lof", {"reach_": np.zeros(3)}),
        ("lof", {"k_": np.array(300)}),
        ("isolation_forest", {"lengths_": np.zeros((2, 2))}),
    ],
)
def test_learned_arrays_that_do_not_fit_are_refused(saved, name, learned):
    with pytest.raises(FileFormatError, match="damaged"):
        ns.load(tampered(saved(name), learned=learned))


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"profile.medians.labels": np.zeros((2, 6))}, "do not fit its labels"),
        ({"profile.medians.labels": np.zeros((1, 5))}, "do not fit its labels"),
        ({"profile.medians.ranks": np.full((1, 6), np.nan)}, "do not fit its labels"),
    ],
)
def test_medians_that_make_no_sense_are_refused(saved, tensors, reason):
    with pytest.raises(FileFormatError, match=f"damaged: .*{reason}"):
        ns.load(tampered(saved("joint_energy"), tensors=tensors))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["joint_energy", "lof", "isolation_forest"])
def test_no_flipped_bit_goes_unnoticed(saved, name, rng):
    path = saved(name)
    whole = path.read_bytes()
    header = int.from_bytes(whole[:8], "little") + 8
    # all of the header, where the settings are, and a sample of the arrays
    places = [*range(header), *rng.integers(header, len(whole), 200)]
    damaged = path.with_name("flipped.nescio")
    outputs = make_outputs(5)
    before = ns.load(path).assess(outputs)
    for place in places[:: 1 + len(places) // 600]:
        flipped = bytearray(whole)
        flipped[place] ^= 1 << int(rng.integers(8))
        damaged.write_bytes(bytes(flipped))
        try:
            after = ns.load(damaged).assess(outputs)
        except FileFormatError:
            continue
        # a flip in white space, or in the case of an escape: nothing has changed
        assert np.array_equal(after.scores, before.scores), place
        assert np.array_equal(after.p_values, before.p_values), place


def test_parameters_that_numpy_made_can_be_saved(tmp_path):
    detector = ns.TopKLogit(k=np.int64(2), tpr=np.float64(0.9)).calibrate(make_outputs(50))
    detector.save(tmp_path / "x.nescio")
    assert ns.load(tmp_path / "x.nescio").get_params() == {
        "k": 2, "tpr": 0.9, "nonfinite": "raise",
    }  # fmt: skip


def test_a_detector_without_a_name_cannot_be_saved(tmp_path):
    class Nameless(ns.Detector):
        def _score(self, arrays):
            return arrays.logits.sum(1)

    with pytest.raises(ParameterError, match="needs a class attribute name"):
        Nameless().calibrate(make_outputs(50)).save(tmp_path / "x.nescio")


def test_a_class_reads_only_its_own_files(saved):
    with pytest.raises(FileFormatError, match="holds a detector 'max_logit', not 'joint_energy'"):
        ns.JointEnergy.load(saved("max_logit"))
    assert isinstance(ns.MaxLogit.load(saved("max_logit")), ns.MaxLogit)


@pytest.mark.parametrize(
    ("name", "content", "hint"),
    [
        (
            "net.onnx",
            b"\x08\x08\x12\x07pytorch\x1a\x05",
            ": it is an ONNX model, .*. Pass the file of a detector here",
        ),
        ("day.parquet", b"PAR1\x15\x04\x15\x10\x15\x14", ". Pass"),
    ],
)
def test_what_is_no_detector_at_all_is_called_by_its_name(tmp_path, name, content, hint):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(
        FileFormatError, match=rf"{name} is not a detector saved by nescio calibrate{hint}"
    ):
        ns.load(tmp_path / name)


def test_the_columns_of_features_are_matched_by_name_after_loading(tmp_path):
    pandas = pytest.importorskip("pandas")
    values = np.random.default_rng(0).normal(size=(90, 4))
    frame = pandas.DataFrame(values, columns=list("abcd"))
    detector = ns.NearestNeighbours().fit(frame[:40]).calibrate(frame[40:])
    detector.save(tmp_path / "x.nescio")
    loaded = ns.load(tmp_path / "x.nescio")
    wanted = detector.score_samples(frame[40:])
    np.testing.assert_array_equal(loaded.score_samples(frame[40:][list("dcba")]), wanted)


def test_a_file_overwritten_in_place_does_not_change_what_was_loaded(saved):
    """As with "cp new.nescio tagger.nescio"; a mapped file would change, or raise SIGBUS."""
    path = saved("mahalanobis")
    loaded, asked = ns.load(path), make_outputs(50)
    before = loaded.score_samples(asked)
    with path.open("r+b") as stream:
        stream.write(bytes(path.stat().st_size))
    np.testing.assert_array_equal(loaded.score_samples(asked), before)
