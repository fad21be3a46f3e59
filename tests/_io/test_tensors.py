import json

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, strategies as st

from nescio._io.tensors import FileKind, Stacked, read_tensors, write_tensors
from nescio.errors import FileFormatError


@pytest.fixture
def arrays(rng):
    return {
        "a": rng.normal(size=(5, 3)).astype(np.float32),
        "b": rng.normal(size=7),
        "flags": np.array([True, False, True]),
        "scalar": np.array(2.5),
        "empty": np.zeros((0, 4), np.int32),
        "transposed": rng.normal(size=(4, 6)).T,
        "half": rng.normal(size=3).astype(np.float16),
    }


def test_what_is_written_is_read(tmp_path, arrays):
    path = tmp_path / "x.safetensors"
    write_tensors(path, arrays, {"note": "größe", "n": 3})
    tensors, metadata = read_tensors(path)
    assert metadata == {"note": "größe", "n": 3}
    assert set(tensors) == set(arrays)
    for name, array in arrays.items():
        assert tensors[name].dtype == array.dtype
        assert tensors[name].shape == array.shape
        np.testing.assert_array_equal(tensors[name], array)


def test_the_safetensors_package_reads_what_we_write_and_we_what_it_writes(tmp_path, arrays):
    ours, theirs = tmp_path / "ours.safetensors", tmp_path / "theirs.safetensors"
    write_tensors(ours, arrays, {"n": 1})
    for name, array in safetensors.numpy.load_file(ours).items():
        np.testing.assert_array_equal(array, arrays[name])
    contiguous = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    safetensors.numpy.save_file(contiguous, theirs, metadata={"other": "x"})
    tensors, metadata = read_tensors(theirs)
    assert metadata == {}
    for name, array in arrays.items():
        np.testing.assert_array_equal(tensors[name], array)


def test_bfloat16_is_widened(tmp_path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.arange(-9.0, 9.0).reshape(6, 3).astype(ml_dtypes.bfloat16)
    safetensors.numpy.save_file({"logits": values}, tmp_path / "x.safetensors")
    tensors, _ = read_tensors(tmp_path / "x.safetensors")
    assert tensors["logits"].dtype == np.float32
    np.testing.assert_array_equal(tensors["logits"], values.astype(np.float32))


def test_reading_maps_the_file_and_cannot_change_it(tmp_path, arrays):
    write_tensors(tmp_path / "x", arrays, {})
    tensors, _ = read_tensors(tmp_path / "x")
    assert not tensors["a"].flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        tensors["a"][0] = 0


def test_the_same_input_gives_the_same_bytes(tmp_path, arrays):
    write_tensors(tmp_path / "x", arrays, {"a": 1, "b": 2})
    write_tensors(tmp_path / "y", dict(reversed(arrays.items())), {"b": 2, "a": 1})
    assert (tmp_path / "x").read_bytes() == (tmp_path / "y").read_bytes()


def test_every_truncation_is_refused(tmp_path, arrays):
    write_tensors(tmp_path / "x", arrays, {"a": 1})
    whole = (tmp_path / "x").read_bytes()
    for length in [0, 3, 8, 9, 100, len(whole) // 2, len(whole) - 1]:
        (tmp_path / "cut").write_bytes(whole[:length])
        with pytest.raises(FileFormatError):
            read_tensors(tmp_path / "cut")
    (tmp_path / "longer").write_bytes(whole + b"x")
    with pytest.raises(FileFormatError, match="do not fill it"):
        read_tensors(tmp_path / "longer")


@given(st.binary(max_size=200))
def test_rubbish_is_refused(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("rubbish") / "x"
    path.write_bytes(content)
    with pytest.raises(FileFormatError):
        read_tensors(path)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [-1], "data_offsets": [0, -4]},
        {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]},
        {"dtype": "O", "shape": [1], "data_offsets": [0, 8]},
        {"dtype": "F32", "shape": "x", "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [0, 2**62], "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": [0, 2**40, 2**40], "data_offsets": [0, 0]},
        {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1] * 100, "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [10**3000] * 8, "data_offsets": [0, 4]},
        [],
        None,
    ],
)
def test_a_header_that_makes_no_sense_is_refused(tmp_path, entry):
    header = json.dumps({"a": entry}).encode()
    (tmp_path / "x").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)
    with pytest.raises(FileFormatError, match="'a' is invalid"):
        read_tensors(tmp_path / "x")


@pytest.mark.parametrize("second", [[0, 4], [2, 6], [8, 12]])
def test_arrays_that_overlap_or_leave_gaps_are_refused(tmp_path, second):
    """Else a small file could ask for the same bytes to be widened a thousand times."""
    entries = {
        name: {"dtype": "BF16", "shape": [2], "data_offsets": place}
        for name, place in (("a", [0, 4]), ("b", second))
    }
    header = json.dumps(entries).encode()
    (tmp_path / "x").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 12)
    with pytest.raises(FileFormatError, match="gaps and overlaps"):
        read_tensors(tmp_path / "x")


@pytest.mark.parametrize("header", [b"[]", b"12", b'{"__metadata__": {"nescio": "["}}'])
def test_other_headers_are_refused(tmp_path, header):
    (tmp_path / "x").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(FileFormatError):
        read_tensors(tmp_path / "x")


# --- file format ---


KIND = FileKind("nescio.test", "test file", schema=2)


ARRAYS = {"a": np.arange(6.0).reshape(2, 3)}


def test_a_changed_value_is_noticed_by_its_checksum(tmp_path):
    KIND.write(tmp_path / "x", ARRAYS, {"note": "n"})
    KIND.read(tmp_path / "x")
    for arrays, note in (({"a": ARRAYS["a"] + 1}, "n"), (ARRAYS, "m"), ({"b": ARRAYS["a"]}, "n")):
        _, metadata = read_tensors(tmp_path / "x")
        write_tensors(tmp_path / "changed", arrays, metadata | {"note": note}, force=True)
        with pytest.raises(FileFormatError, match="do not match their checksum"):
            KIND.read(tmp_path / "changed")
        KIND.read(tmp_path / "changed", verify=False)


def test_files_of_another_kind_or_another_schema_are_refused(tmp_path):
    FileKind("nescio.other", "other file").write(tmp_path / "other", ARRAYS, {})
    with pytest.raises(FileFormatError, match=r"is not a test file: it holds 'nescio\.other'"):
        KIND.read(tmp_path / "other")
    write_tensors(tmp_path / "foreign", ARRAYS, {})
    with pytest.raises(FileFormatError, match="is not a test file: nescio did not write it"):
        KIND.read(tmp_path / "foreign")
    for schema in (1, 3, "2", True, None):
        KIND.write(tmp_path / "newer", ARRAYS, {"schema": schema}, force=True)
        with pytest.raises(FileFormatError, match="written by another version of nescio"):
            KIND.read(tmp_path / "newer")


def test_a_file_without_a_checksum_is_damaged(tmp_path):
    write_tensors(tmp_path / "damaged", ARRAYS, KIND.header())
    with pytest.raises(FileFormatError, match="its checksum is missing"):
        KIND.read(tmp_path / "damaged")


def test_blocks_and_metadata_have_the_checksum_of_what_is_read(tmp_path):
    blocks = Stacked([ARRAYS["a"][:1], ARRAYS["a"][1:].astype(">f8")])
    KIND.write(tmp_path / "x", {"a": blocks}, {"counts": {10: 1, 2: (3, 4)}})
    tensors, metadata = KIND.read(tmp_path / "x")
    assert np.array_equal(tensors["a"], ARRAYS["a"])
    assert metadata["counts"] == {"10": 1, "2": [3, 4]}


def test_a_name_that_is_not_text_is_damage(tmp_path):
    KIND.write(tmp_path / "x", ARRAYS, {})
    content = (tmp_path / "x").read_bytes()
    start = content.index(b'"a":')
    longer = content[8:start] + b'"\\ud800":' + content[start + 4 :]
    length = int.from_bytes(content[:8], "little") + 5
    (tmp_path / "y").write_bytes(length.to_bytes(8, "little") + longer)
    with pytest.raises(FileFormatError, match="do not match their checksum"):
        KIND.read(tmp_path / "y")
