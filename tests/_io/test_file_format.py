import numpy as np
import pytest

from nescio._io.tensors import FileKind, Stacked, read_tensors, write_tensors
from nescio.errors import FileFormatError

KIND = FileKind("nescio.test", "test file", schema=2)
ARRAYS = {"a": np.arange(6.0).reshape(2, 3)}


def test_what_is_written_is_read(tmp_path):
    KIND.write(tmp_path / "x", ARRAYS, {"note": "n"})
    tensors, metadata = KIND.read(tmp_path / "x")
    assert np.array_equal(tensors["a"], ARRAYS["a"])
    assert (metadata["kind"], metadata["schema"], metadata["note"]) == ("nescio.test", 2, "n")


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
