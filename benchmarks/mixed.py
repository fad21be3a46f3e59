"""Mixed inputs: scenes of two halves from different sets, by the whole image and by its crops.

    nescio calibrate val.safetensors -o tagger.nescio
    nescio export tagger.nescio --model best.safetensors -o best.onnx
    python benchmarks/mixed.py best.onnx --data DATA --outputs FOLDER

The model is a network of the benchmark coco70. DATA has coco70, textures10 and objects54: see
docs/explanation/coco70.md. Outputs are computed once and kept in FOLDER.

A scene of 256 x 256 pixels has the middle half of one image on the left and that of another on the
right. Half of the scenes with an unknown half have it on the left. Images of the training part are
learned from, images of the validation part calibrate, and only images of the test part are in
scenes. FPR95 is the share of a set that scores at least as high as the lowest 5 % of the
in-distribution images.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
from PIL import Image

from nescio import data
from nescio.data.images import read_image
from nescio.detectors import as_detector
from nescio.metrics import fpr_at_tpr
from nescio.outputs import Outputs
from nescio.runners import wrap

DETECTORS = ("joint_energy", "knn")
SIDE = 256
N_TRAIN, N_VAL, N_TEST, N_SCENES, N_OOD = 200, 400, 200, 100, 60


def halves(left: Image.Image, right: Image.Image) -> Image.Image:
    """Return the middle half of one image beside that of another."""
    scene = Image.new("RGB", (SIDE, SIDE))
    for image, start in ((left, 0), (right, SIDE // 2)):
        middle = image.resize((SIDE, SIDE)).crop((SIDE // 4, 0, 3 * SIDE // 4, SIDE))
        scene.paste(middle, (start, 0))
    return scene


def draw(split, n_images, seed):
    """Return some images of a split, in random order."""
    rows = np.random.default_rng(seed).permutation(len(split))[:n_images]
    return [read_image(split.path(int(row))) for row in rows]


def make_sets(folder):
    """Return the images of each set; in scenes with an unknown half, every second one is left."""
    coco = f"coco@{{}}:{folder}/coco70"
    test = draw(data.load(coco.format("test")), N_TEST + 4 * N_SCENES, 2)
    plain, others = test[:N_TEST], test[N_TEST:]
    textures = draw(data.load(f"textures:{folder}/textures10"), N_SCENES + N_OOD, 3)
    objects = draw(data.load(f"folder:{folder}/objects54"), N_SCENES + N_OOD, 4)

    def scenes(start, unknown):
        known = others[start : start + N_SCENES]
        pairs = zip(known, unknown[:N_SCENES], strict=True)
        return [halves(*(pair[::-1] if at % 2 else pair)) for at, pair in enumerate(pairs)]

    return {
        "train": draw(data.load(coco.format("train")), N_TRAIN, 0),
        "val": draw(data.load(coco.format("val")), N_VAL, 1),
        "ID": plain,
        "ID | ID": scenes(0, others[N_SCENES:]),
        "ID | texture": scenes(2 * N_SCENES, textures),
        "ID | object": scenes(3 * N_SCENES, objects),
        "texture": textures[N_SCENES:],
        "object": objects[N_SCENES:],
    }


def outputs_of(model, folder, kept):
    """Return the outputs of each set, with crops, from the folder if they are there."""
    wrapped = wrap(model, detector="mixed(detector=knn)", features="pooled")
    made, sets = {}, None
    for name in ("train", "val", "ID", "ID | ID", "ID | texture", "ID | object", *OOD):
        path = Path(kept) / f"{name.replace(' | ', '-')}.safetensors"
        if not path.is_file():
            sets = sets or make_sets(folder)
            started = time.process_time()
            prepare = wrapped.runner.preprocessing.pixels
            pixels = np.stack([prepare(image) for image in sets[name]])
            wrapped.outputs(pixels, batch_size=32).save(path)
            print(f"{path.name}: {time.process_time() - started:.0f} s", flush=True)
        made[name] = Outputs.load(path)
    return made


SCENES = ("ID | texture", "ID | object")
OOD = ("texture", "object")


def calibrated(name, outputs):
    """Return a detector that has learned and is calibrated."""
    detector = as_detector(name)
    if detector.learns_from:
        detector.fit(outputs["train"])
    return detector.calibrate(outputs["val"])


def print_detector(name, outputs):
    """Print what a detector says by the whole image, and by its crops."""
    whole, crops = (calibrated(one, outputs) for one in (name, f"mixed(detector={name})"))
    scores = {
        how: {of: one.score_samples(outputs[of]) for of in outputs if of not in ("train", "val")}
        for how, one in (("whole", whole), ("crops", crops))
    }
    print(f"\n## {name}\n\nFPR95 in per cent, against the in-distribution set of each column\n")
    print("| set | ID, whole | ID, crops | ID \\| ID, whole | ID \\| ID, crops |")
    print("|---|---:|---:|---:|---:|")
    for of in (*SCENES, *OOD):
        cells = [
            100 * fpr_at_tpr(scores[how][known], scores[how][of])
            for known in ("ID", "ID | ID")
            for how in ("whole", "crops")
        ]
        print(f"| {in_cell(of)} | " + " | ".join(f"{cell:.0f}" for cell in cells) + " |")
    print("\nVerdicts in per cent, calibrated on validation images to keep 95 % of plain images\n")
    print("| set | OUT by the whole image | in | MIXED | OUT | hotter half is the unknown one |")
    print("|---|---:|---:|---:|---:|---:|")
    for of in scores["whole"]:
        found = crops.assess(outputs[of])
        flagged = 100 * np.mean(~whole.assess(outputs[of]).in_distribution)
        shares = [100 * np.mean(found.verdicts == word) for word in ("in", "MIXED", "OUT")]
        where = f"{100 * right_half(found):.0f}" if of in SCENES else ""
        cells = " | ".join(f"{share:.0f}" for share in (flagged, *shares))
        print(f"| {in_cell(of)} | {cells} | {where} |")


def in_cell(name):
    """Return a name as a cell of a table."""
    return name.replace("|", "\\|")


def right_half(found):
    """Return how often the half with more heat is the unknown one; ties count half."""
    heat = np.stack([found.heat_map(row) for row in range(len(found))])
    more_left = np.sign(heat[:, :, :2].sum((1, 2)) - heat[:, :, 2:].sum((1, 2)))
    unknown_left = np.where(np.arange(len(found)) % 2, 1, -1)
    return np.mean(0.5 + 0.5 * more_left * unknown_left)


def main() -> None:
    """Compute the outputs and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--data", required=True)
    parser.add_argument("--outputs", required=True)
    given = parser.parse_args()
    Path(given.outputs).mkdir(parents=True, exist_ok=True)
    outputs = outputs_of(given.model, given.data, given.outputs)
    print(", ".join(f"{name}: {len(one)}" for name, one in outputs.items()))
    for name in DETECTORS:
        print_detector(name, outputs)


if __name__ == "__main__":
    main()
