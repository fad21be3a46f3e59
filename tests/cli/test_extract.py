"""nescio extract."""

import json

import numpy as np

from nescio.outputs import Outputs


def test_extract_again_is_up_to_date_and_refuses_another_network(
    nescio, checkpoint, coco_tree, tmp_path
):
    data = f"coco@val:{coco_tree()}"
    for seed in (0, 1):
        checkpoint(seed=seed).save(tmp_path / f"{seed}.safetensors")
    command = ("extract", tmp_path / "0.safetensors", data, "-o", tmp_path / "out")
    assert nescio(*command)[0] == 0
    code, said, _ = nescio(*command)
    assert (code, "up to date" in said) == (0, True)
    code, _, err = nescio("extract", tmp_path / "1.safetensors", *command[2:])
    assert code == 1
    assert "made by another network" in err


def test_several_layers(nescio, own_module, class_tree, tmp_path):
    command = ("extract", f"module:{own_module}", f"folder:{class_tree()}", "-o", tmp_path)
    assert nescio(*command, "--image-size", "32", "--features", "pooled,0,penultimate")[0] == 0
    outputs = Outputs.load(tmp_path / "objects.safetensors")
    assert (outputs.features.shape[1], set(outputs.arrays)) == (4, {"0", "penultimate"})
    assert outputs.head is not None


def test_bad_images_end_the_command_or_are_counted(nescio, checkpoint, class_tree, tmp_path):
    root = class_tree()
    (root / "anchor" / "0000.jpg").write_bytes(b"")
    checkpoint().save(tmp_path / "net.safetensors")
    command = ("extract", tmp_path / "net.safetensors", f"folder:{root}", "-o", tmp_path / "out")
    code, _, err = nescio(*command)
    assert code == 1
    assert "0000.jpg" in err
    assert not (tmp_path / "out" / "objects.safetensors").exists()
    code, said, _ = nescio(*command, "--skip-bad", "--json")
    assert code == 0
    (report,) = json.loads(said)
    assert (report["n_images"], len(report["skipped"])) == (5, 1)


def test_corrupted_images_have_the_rows_of_the_images(nescio, checkpoint, coco_tree, tmp_path):
    checkpoint().save(tmp_path / "net.safetensors")
    command = ("extract", tmp_path / "net.safetensors", f"coco@val:{coco_tree()}", "-o", tmp_path)
    assert nescio(*command)[0] == 0
    names = ("jigsaw", "arithmetic_mean")
    code, _, err = nescio(*command, "--corruption", names[0], "--corruption", names[1])
    assert (code, err) == (0, "")
    plain = Outputs.load(tmp_path / "coco-val.safetensors")
    made = [Outputs.load(tmp_path / f"coco-val-{name}.safetensors") for name in names]
    for outputs, name in zip(made, names, strict=True):
        assert outputs.manifest["corruption"] == name
        assert outputs.ids.tolist() == plain.ids.tolist()
        assert not np.allclose(outputs.logits, plain.logits)
    code, _, err = nescio(*command, "--corruption", "jigsav")
    assert code == 1
    assert "corruption must be 'gaussian_noise' or" in err


def test_the_runtime_is_reported(nescio, checkpoint, class_tree, tmp_path):
    checkpoint().save(tmp_path / "net.safetensors")
    command = ("extract", tmp_path / "net.safetensors", f"folder:{class_tree()}", "-o", tmp_path)
    code, said, _ = nescio(*command, "--runtime", "torch", "--json")
    (result,) = json.loads(said)
    assert (code, result["runtime"]["runtime"]) == (0, "torch")
    assert Outputs.load(tmp_path / "objects.safetensors").manifest["runtime"] == "torch"
    code, said, _ = nescio(*command, "--force", "--batch-size", "3")
    assert (code, "there are few batches" in said) == (0, True)
    code, _, err = nescio(*command, "--runtime", "fast")
    assert (code, "runtime must be 'auto' or 'torch' or 'onnxruntime'" in err) == (1, True)
