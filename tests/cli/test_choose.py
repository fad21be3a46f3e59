"""nescio choose."""

import json
from pathlib import Path

import pytest

from fixtures.labelled import labelled

FEW = ("-d", "joint_energy", "-d", "knn(k=3)")


@pytest.fixture
def outputs(tmp_path):
    """Training and held-out outputs, as files."""
    for name, seed in (("train", 0), ("val", 1)):
        labelled(seed=seed).save(f"{name}.safetensors")
    return ("--train", "train.safetensors", "--held-out", "val.safetensors")


def test_choose_prints_the_ranking_and_writes_json_and_a_page(outputs, nescio):
    written = ("-o", "chosen.json", "--report", "chosen.html")
    code, out, err = nescio("choose", *outputs, *FEW, "-d", "odin", *written)
    assert (code, err) == (0, "")
    found = json.loads(Path("chosen.json").read_text("utf-8"))
    assert {one["name"] for one in found["ranking"]} == {"joint_energy", "knn(k=3)"}
    assert f"{found['pick']} *" in out
    assert found["summary"] in out.replace("\n\n", "\n")
    assert "left out odin: it reads odin_max, but" in out
    assert "saved chosen.json" in out
    assert found["pick"] in Path("chosen.html").read_text("utf-8")
    code, _, err = nescio("choose", *outputs, *FEW, *written)
    assert code == 1
    assert "--force" in err


def test_choose_does_as_it_is_told(outputs, nescio):
    def run(*options):
        code, out, _ = nescio("choose", *outputs, *FEW, "--json", *options)
        assert code == 0
        return json.loads(out)

    plain = run()
    assert (plain["refit"], plain["tpr"], len(plain["folds"])) == ("head", 0.95, 5)
    told = run("--folds", "3", "--tpr", "0.8", "--seed", "4", "--refit", "none")
    assert (told["refit"], told["tpr"], len(told["folds"])) == ("none", 0.8, 3)
    assert told["seed"] == 4
    labelled(seed=1, ids=[f"image {i}" for i in range(400)]).save("jigsaw.safetensors")
    far = run("--far", "jigsaw=jigsaw.safetensors")
    assert list(far["ranking"][0]["far"]) == ["shuffled", "jigsaw"]


def test_all_detectors_can_be_ranked(outputs, nescio):
    code, out, _ = nescio("choose", *outputs, "-d", "all", "--folds", "2", "--json")
    found = json.loads(out)
    assert code == 0
    assert len(found["ranking"]) > 15
    assert "odin" in found["skipped"]


def test_mistakes_say_what_to_do(outputs, nescio):
    def fails(*arguments):
        code, out, err = nescio("choose", *arguments)
        assert (code, out) == (1, "")
        return err

    train = outputs[1]
    assert "given as --train and as --held-out" in fails("--train", train, "--held-out", train)
    assert "expected CORRUPTION=FILE" in fails(*outputs, "--far", "jigsaw")
    assert "must be 'gaussian_noise'" in fails(*outputs, *FEW, "--far", f"textures={train}")
    assert "is an input" in fails(*outputs, "-o", train, "--force")
    labelled(features=False).save("bare.safetensors")
    files = ("--train", "bare.safetensors", "--held-out", "val.safetensors")
    assert "pass --refit none" in fails(*files, *FEW, "--refit", "head")
    for seed in (0, 1):
        labelled(seed=seed, per_sample=6).save(f"crowded{seed}.safetensors")
    files = ("--train", "crowded0.safetensors", "--held-out", "crowded1.safetensors")
    assert "(--folds 2)" in fails(*files, *FEW, "--folds", "8")


def test_there_is_no_option_for_out_of_distribution_data(outputs, nescio):
    code, _, err = nescio("choose", *outputs, "--ood", outputs[1])
    assert code == 2
    assert "No such option" in err
