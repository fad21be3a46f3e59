import numpy as np
import pytest

from nescio.errors import DatasetError
from nescio.lab.data import load_nus_wide

CONCEPTS = ("sky", "animal", "lake")  # the official order is not the alphabet's
N_TEST = 9


def truth(part):
    """Labels by hand: the second image of a list has none."""
    rows = {"Train": 4, "Test": N_TEST}[part]
    labels = np.array([[1, row % 2, row % 3 == 0] for row in range(rows)], dtype=np.uint8)
    labels[1] = 0
    return labels


def name_of(part, row):
    return f"{part.lower()}{row % 2}\\{row:04}_77.jpg"


@pytest.fixture
def nus_wide(tmp_path):
    """NUS-WIDE in its official layout."""
    labels = tmp_path / "Groundtruth" / "TrainTestLabels"
    labels.mkdir(parents=True)
    (tmp_path / "ImageList").mkdir()
    (tmp_path / "ConceptsList").mkdir()
    (tmp_path / "ConceptsList" / "Concepts81.txt").write_text("\n".join(CONCEPTS))
    for part in ("Train", "Test"):
        rows = truth(part)
        names = [name_of(part, row) for row in range(len(rows))]
        (tmp_path / "ImageList" / f"{part}Imagelist.txt").write_text("\r\n".join(names) + "\r\n")
        for column, concept in enumerate(CONCEPTS):
            text = "".join(f"{value}\n" for value in rows[:, column])
            (labels / f"Labels_{concept}_{part}.txt").write_text(text)
        for name in names:
            file = tmp_path / "Flickr" / name.replace("\\", "/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    return tmp_path


def labels_file(root, concept, part):
    return root / "Groundtruth" / "TrainTestLabels" / f"Labels_{concept}_{part}.txt"


def test_train_is_the_official_list_without_unlabelled_images(nus_wide):
    split = load_nus_wide(nus_wide, "train")
    assert split.title == "nus-wide-train"
    assert split.root == nus_wide / "Flickr"
    assert split.files == ("train0/0000_77.jpg", "train0/0002_77.jpg", "train1/0003_77.jpg")
    assert split.label_names == CONCEPTS
    np.testing.assert_array_equal(split.labels, truth("Train")[[0, 2, 3]])


def test_val_and_test_are_the_halves_of_the_test_list(nus_wide):
    val, test = (load_nus_wide(nus_wide, split) for split in ("val", "test"))
    labelled = {name_of("Test", row).replace("\\", "/") for row in range(N_TEST) if row != 1}
    assert (len(val), len(test)) == (4, 4)
    assert set(val.files) | set(test.files) == labelled
    assert not set(val.files) & set(test.files)
    for split in (val, test):
        rows = [int(file.split("/")[1][:4]) for file in split.files]
        np.testing.assert_array_equal(split.labels, truth("Test")[rows])
        assert split.notes == {"halves_seed": 2021}


def test_the_halves_never_change(nus_wide):
    half = tuple(f"test{row % 2}/{row:04}_77.jpg" for row in (0, 3, 4, 7))
    assert load_nus_wide(nus_wide, "val").files == half
    (nus_wide / "Flickr" / half[0]).unlink()
    assert load_nus_wide(nus_wide, "val", skip_bad=True).files == half[1:]


def test_the_authors_halves_follow_the_order_of_their_list(nus_wide):
    """Their loader seeds the global generator with 999 and shuffles the labelled images."""
    order = [8, 3, 1, 0, 7, 4, 2, 6]  # their list lacks some images; the second has no label
    names = [name_of("Test", row).replace("\\", "/") for row in order]
    lines = [f"Flickr/{name} {row}\n" for row, name in enumerate(names)]
    (nus_wide / "nus_wide_test_imglist.txt").write_text("".join(lines))
    labelled = [name for name, row in zip(names, order, strict=True) if row != 1]
    np.random.RandomState(999).shuffle(labelled)
    val, test = (load_nus_wide(nus_wide, f"authors-{name}") for name in ("val", "test"))
    assert set(val.files) == set(labelled[:3])
    assert set(test.files) == set(labelled[3:])
    assert val.notes == test.notes == {"halves_seed": 999}
    assert test.title == "nus-wide-authors-test"
    for split in (val, test):
        rows = [int(file.split("/")[1][:4]) for file in split.files]
        np.testing.assert_array_equal(split.labels, truth("Test")[rows])


def test_the_authors_halves_need_their_list(nus_wide):
    with pytest.raises(DatasetError, match=r"no file .*imglist.txt\. Copy it .*nus_wide_halves"):
        load_nus_wide(nus_wide, "authors-val")
    (nus_wide / "nus_wide_test_imglist.txt").write_text("Flickr/elsewhere/0001_1.jpg 2\n")
    with pytest.raises(DatasetError, match="names no image of the official Test list"):
        load_nus_wide(nus_wide, "authors-val")


def test_images_may_be_in_other_folders(nus_wide):
    (nus_wide / "Flickr").rename(nus_wide / "images")
    assert load_nus_wide(nus_wide, "train").root == nus_wide / "images"
    for folder in (nus_wide / "images").iterdir():
        folder.rename(nus_wide / folder.name)
    (nus_wide / "images").rmdir()
    assert load_nus_wide(nus_wide, "train").root == nus_wide
    for name in ("train0", "train1"):
        (nus_wide / name).rename(nus_wide / f"elsewhere {name}")
    with pytest.raises(DatasetError, match=r"no folder .*Flickr or .*images. See docs"):
        load_nus_wide(nus_wide, "train")


@pytest.mark.parametrize("prefix", ["Flickr\\", "C:\\ImageData\\Flickr\\", "flickr/", "./Flickr/"])
def test_the_lists_may_name_the_folder_of_the_images(nus_wide, prefix):
    expected = load_nus_wide(nus_wide, "train")
    path = nus_wide / "ImageList" / "TrainImagelist.txt"
    path.write_text("".join(f"{prefix}{line}\n" for line in path.read_text().splitlines()))
    assert load_nus_wide(nus_wide, "train").fingerprint == expected.fingerprint


@pytest.mark.parametrize("folder", ["Flickr", "images", "."])
def test_all_images_may_be_in_one_folder(nus_wide, folder):
    val = load_nus_wide(nus_wide, "val")
    photos = list((nus_wide / "Flickr").glob("*/*.jpg"))
    (nus_wide / folder).mkdir(exist_ok=True)
    for photo in photos:
        photo.rename(nus_wide / folder / f"{photo.parent.name}-{photo.name}")
    for part in ("Train", "Test"):
        path = nus_wide / "ImageList" / f"{part}Imagelist.txt"
        names = [line.replace("\\", "-") for line in path.read_text().splitlines()]
        path.write_text("".join(f"someclass\\{name}\n" for name in names))
    for old in (nus_wide / "Flickr").glob("*"):
        if old.is_dir():
            old.rmdir()
    flat = load_nus_wide(nus_wide, "val")
    assert flat.root == nus_wide / folder
    assert flat.files == tuple(file.replace("/", "-") for file in val.files)
    np.testing.assert_array_equal(flat.labels, val.labels)
    assert len(load_nus_wide(nus_wide, "train")) == 3


def test_images_in_one_folder_need_different_names(nus_wide):
    path = nus_wide / "ImageList" / "TrainImagelist.txt"
    path.write_text("a\\1.jpg\nb\\1.jpg\na\\2.jpg\na\\3.jpg\n")
    (nus_wide / "Flickr" / "1.jpg").touch()
    with pytest.raises(DatasetError, match="different folders have the same name"):
        load_nus_wide(nus_wide, "train")


def test_the_slip_in_the_official_file_is_not_a_lake(nus_wide):
    labels_file(nus_wide, "lake", "Train").write_text("1\n0\n-1130179\n1\n")
    split = load_nus_wide(nus_wide, "train")
    np.testing.assert_array_equal(split.labels[:, 2], [1, 0, 1])
    assert split.skipped == ()
    labels_file(nus_wide, "lake", "Train").write_text("1\n0\n2\n1\n")
    with pytest.raises(DatasetError, match=r"lake_Train\.txt, line 3: invalid label value '2'"):
        load_nus_wide(nus_wide, "train")
    labels_file(nus_wide, "lake", "Train").write_text("1\n0\n")
    with pytest.raises(DatasetError, match=r"Labels_lake_Train\.txt has 2 lines, but .* has 4"):
        load_nus_wide(nus_wide, "train")


def test_missing_files_are_named(nus_wide):
    labels_file(nus_wide, "sky", "Test").unlink()
    with pytest.raises(DatasetError, match=r"concept 'sky' not found: .*Labels_sky_Test\.txt"):
        load_nus_wide(nus_wide, "test")
    (nus_wide / "Flickr" / "train0" / "0002_77.jpg").unlink()
    with pytest.raises(DatasetError, match=r"do not exist: .*Flickr/train0/0002_77\.jpg"):
        load_nus_wide(nus_wide, "train")
    assert len(load_nus_wide(nus_wide, "train", skip_bad=True)) == 2
    (nus_wide / "ImageList" / "TrainImagelist.txt").unlink()
    with pytest.raises(DatasetError, match=r"no file .*TrainImagelist\.txt"):
        load_nus_wide(nus_wide, "train")
    with pytest.raises(DatasetError, match=r"no folder .*nowhere/Groundtruth/TrainTestLabels"):
        load_nus_wide(nus_wide / "nowhere", "train")
