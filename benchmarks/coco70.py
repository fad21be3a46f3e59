"""The paper's experiment on real images: train, tune, extract and evaluate with nescio's commands.

In-distribution: 7,600 MS-COCO images with 70 labels. Out-of-distribution: 1,200 textures and 1,620
objects of classes that COCO does not have. Each line of the result is one detector against one OOD
set for one seed. Interrupted work goes on where it stopped.

    python benchmarks/coco70.py --data ../shared/data --work build/coco70
    python benchmarks/coco70.py --tables        the committed lines as Markdown
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from nescio.outputs import Outputs

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "coco70.jsonl"
SEEDS = range(5)
TUNING_IMAGES = 64
MEASURES = ("fpr", "auroc", "aupr")


def nescio(*arguments: object) -> str:
    """Run a command; progress and errors go to the terminal."""
    command = [sys.executable, "-m", "nescio", *map(str, arguments)]
    print("$ nescio", *arguments, file=sys.stderr, flush=True)
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def run_seed(seed: int, data: Path, work: Path) -> list[dict[str, object]]:
    """One network from nothing to numbers; gives the lines of the result."""
    coco, folder = f"coco:{data / 'coco70'}", work / f"seed-{seed}"
    run, outputs = folder / "run", folder / "outputs"
    outputs.mkdir(parents=True, exist_ok=True)
    network, tuned = run / "best.safetensors", outputs / "tuned.json"
    training = json.loads(
        nescio(
            *("train", coco, "--config", HERE / "coco70.toml", "--seed", seed, "-o", run),
            *("--cache", work / "features", "--resume", "--json"),
        )
    )
    if not tuned.exists():
        nescio(
            *("tune", network, coco, "-o", tuned, "--aggregate", "max"),
            *("--images", TUNING_IMAGES, "--seed", seed),
        )
    nescio(
        *("extract", network, f"coco@test:{data / 'coco70'}", f"textures:{data / 'textures10'}"),
        *(f"folder:{data / 'objects54'}", "--tuned", tuned, "-o", outputs),
    )
    found = json.loads(
        nescio(
            *("eval", "--id", outputs / "coco-test.safetensors"),
            *(
                "--ood",
                outputs / "textures.safetensors",
                "--ood",
                outputs / "objects54.safetensors",
            ),
            *("--train", outputs / "coco-train.safetensors", "--bootstrap", 0, "--json"),
        )
    )
    settings = json.loads(tuned.read_text("utf-8"))
    facts = {
        path.stem: Outputs.load(path).manifest for path in sorted(outputs.glob("*.safetensors"))
    }
    first = next(iter(facts.values()))
    manifest = {
        "model": first["model"],
        "model_hash": settings["model_hash"],
        "data": {name: one["data_fingerprint"] for name, one in facts.items()},
        "versions": {"nescio": first["nescio_version"], "torch": first["torch_version"]},
        "tuning_images": settings["data"]["n_images"],
        "val_map": training["best"]["val_map"],
        "val_loss": training["best"]["val_loss"],
        "best_epoch": training["best"]["epoch"],
        "tuned": {
            one["method"]: {"epsilon": one["epsilon"], "temperature": one["temperature"]}
            for one in settings["best"]
        },
    }
    return [
        {
            "seed": seed,
            "ood": line["ood"],
            "detector": line["detector"],
            **{name: line[name]["value"] for name in MEASURES},
            "n_id": line["n_id"],
            "n_ood": line["n_ood"],
            **manifest,
        }
        for line in found["results"]
    ]


def table(lines: list[dict[str, object]], ood: str) -> str:
    """Mean and standard deviation over seeds in per cent, as Markdown, best FPR95 first."""
    found: dict[str, dict[str, list[float]]] = {}
    for line in lines:
        if line["ood"] == ood:
            values = found.setdefault(str(line["detector"]), {name: [] for name in MEASURES})
            for name in MEASURES:
                values[name].append(100 * float(str(line[name])))
    rows = ["| detector | FPR95 ↓ | AUROC ↑ | AUPR ↑ |", "|---|---:|---:|---:|"]
    for detector in sorted(found, key=lambda name: statistics.mean(found[name]["fpr"])):
        cells = [
            f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"
            for values in found[detector].values()
        ]
        rows.append(f"| `{detector}` | {' | '.join(cells)} |")
    return "\n".join(rows)


def networks(lines: list[dict[str, object]]) -> str:
    """What was trained and tuned for each seed, as Markdown."""
    rows = [
        "| seed | best epoch | val loss | val mAP | ODIN epsilon | Mahalanobis epsilon |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for seed in sorted({int(str(line["seed"])) for line in lines}):
        line = next(line for line in lines if line["seed"] == seed)
        tuned: dict[str, dict[str, float]] = line["tuned"]  # type: ignore[assignment]
        rows.append(
            f"| {seed} | {line['best_epoch']} | {line['val_loss']:.4f} | {line['val_map']:.4f} "
            f"| {tuned['odin']['epsilon']:g} | {tuned['mahalanobis']['epsilon']:g} |"
        )
    return "\n".join(rows)


def tables(path: Path = RESULTS) -> dict[str, str]:
    """Every table of docs/explanation/coco70.md, from the lines of a result."""
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    by_ood = {ood: table(lines, ood) for ood in dict.fromkeys(line["ood"] for line in lines)}
    return {"networks": networks(lines), **by_ood}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=HERE.parent.parent / "shared" / "data")
    parser.add_argument("--work", type=Path, default=HERE.parent / "build" / "coco70")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where to write the lines")
    parser.add_argument("--tables", action="store_true", help="only print the lines as Markdown")
    arguments = parser.parse_args()
    if arguments.tables:
        print("\n\n".join(tables(arguments.output).values()))
        return
    if not (arguments.data / "coco70").is_dir():
        sys.exit(f"there is no {arguments.data / 'coco70'}: this needs the project's image data.")
    lines = [line for seed in SEEDS for line in run_seed(seed, arguments.data, arguments.work)]
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line) + "\n" for line in lines)
    temporary = arguments.output.with_suffix(".tmp")
    temporary.write_text(text, "utf-8")
    temporary.replace(arguments.output)
    print(f"wrote {len(lines)} lines to {arguments.output}")


if __name__ == "__main__":
    main()
