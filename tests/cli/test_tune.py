"""nescio tune."""

import json


def test_tuning_is_for_its_own_network(nescio, checkpoint, coco_tree, tmp_path):
    coco = coco_tree(sizes=(("train", 30), ("val", 14)))
    for seed in (0, 1):
        checkpoint(seed=seed).save(tmp_path / f"{seed}.safetensors")
    command = ("tune", tmp_path / "0.safetensors", f"coco:{coco}", "--images", 4)
    code, said, err = nescio(*command, "-o", "tuned.json", "--aggregate", "max", "--json")
    assert code == 0, err
    assert [best["method"] for best in json.loads(said)["best"]] == ["mahalanobis", "odin"]
    code, _, err = nescio(
        *("extract", tmp_path / "1.safetensors", f"coco@val:{coco}", "-o", "out"),
        *("--tuned", "tuned.json"),
    )
    assert (code, "tuned for another network" in err) == (1, True)


def test_tune_makes_its_folder_and_leaves_out_bad_images(nescio, checkpoint, coco_tree, tmp_path):
    coco = coco_tree(sizes=(("train", 30), ("val", 14)))
    bad = sorted((coco / "val2014").iterdir())[0]
    bad.write_bytes(b"no image")
    for seed in (0, 1):
        checkpoint(seed=seed).save(tmp_path / f"{seed}.safetensors")
    target = tmp_path / "new" / "folder" / "tuned.json"
    command = ("--aggregate", "max", "--images", 14, "-o", target)
    code, _, err = nescio("tune", tmp_path / "0.safetensors", f"coco:{coco}", *command)
    assert (code, bad.name in err) == (1, True)
    code, _, err = nescio(
        "tune", tmp_path / "0.safetensors", f"coco:{coco}", *command, "--skip-bad"
    )
    assert code == 0, err
    assert json.loads(target.read_text())["data"]["n_images"] == 13
    # Another network: the training outputs beside the settings are replaced with them.
    again = ("tune", tmp_path / "1.safetensors", f"coco:{coco}", *command, "--skip-bad")
    assert nescio(*again)[0] == 1
    code, _, err = nescio(*again, "--force")
    assert code == 0, err


def test_settings_come_from_a_file(nescio, checkpoint, coco_tree, tmp_path):
    coco = coco_tree(sizes=(("train", 30), ("val", 14)))
    checkpoint().save(tmp_path / "0.safetensors")
    config = tmp_path / "tune.toml"
    config.write_text('images = 9\nsynthetic = ["jigsaw"]\n[odin]\nlabel = "predicted"\n')
    target = tmp_path / "tuned.json"
    command = ("tune", tmp_path / "0.safetensors", f"coco:{coco}", "-o", target, "--images", 4)
    code, _, err = nescio(*command, "--aggregate", "max", "--config", config)
    assert code == 0, err
    tuned = json.loads(target.read_text())
    assert tuned["data"]["n_images"] == 4
    assert tuned["data"]["synthetic"] == ["jigsaw"]
    assert [best["direction"] for best in tuned["best"]] == ["max", "predicted_max"]
    config.write_text("imags = 9\n")
    code, _, err = nescio(*command, "--config", config, "--force")
    assert (code, "there is no key 'imags'. Did you mean 'images'" in err) == (1, True)
