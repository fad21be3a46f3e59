"""The committed results of coco70 and voc20 beside the paper's numbers, and the FPR95 of voc20.

    python benchmarks/detection/beside_paper.py

They are of another network (EfficientNet-Lite0, frozen) and of other images than the paper's, so
only the order of the rows can be compared. Prints tables in Markdown, which
docs/explanation/coco70.md and voc20.md show.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from nescio.lab.benchmark.paper import PaperCell, find_paper_table
from nescio.lab.benchmark.results import MEASURES, read_lines, summarise
from nescio.lab.benchmark.tables import fpr_table, mean_fprs

RESULTS = Path(__file__).parents[1] / "results"
PAPER = {"ImageNet": ("main", "ablation"), "Textures": ("texture", "texture-ablation")}
SETS = {"MS-COCO": "coco70", "PASCAL-VOC": "voc20"}


def rows_of_the_paper() -> dict[str, str]:
    """Return the published rows of its Tables 1 and 2: detector and name."""
    cells = [cell for key in PAPER["ImageNet"] for cell in find_paper_table(key).cells]
    published = [cell for cell in cells if cell.detector and "not published" not in cell.row]
    return {
        cell.detector: f"{cell.row}, sum" if cell.aggregation else cell.row
        for cell in reversed(published)  # joint energy is in both, without "sum" in the first
    }


def papers(ood: str, id_name: str, detector: str) -> str:
    """Return FPR95, AUROC and AUPR of the paper."""
    cells: list[PaperCell] = [
        cell
        for key in PAPER[ood]
        for cell in find_paper_table(key).cells
        if (cell.id, cell.detector) == (id_name, detector)
    ]
    return " / ".join(cell.text for cell in cells[: len(MEASURES)])


def beside_paper() -> Iterator[str]:
    """Yield the lines of one table, with the rows of the paper that were run, means over seeds."""
    heads = ("paper, DenseNet-121, ImageNet", "paper, ResNet-101, Textures")
    heads += ("EfficientNet-Lite0, textures", "EfficientNet-Lite0, objects")
    yield f"| ID set | FPR95 / AUROC / AUPR | {' | '.join(heads)} |"
    yield "|---|---|---:|---:|---:|---:|"
    for id_name, run in SETS.items():
        spreads = summarise(read_lines(RESULTS / f"{run}.jsonl"))
        for detector, name in reversed(rows_of_the_paper().items()):
            if detector not in spreads[run, "textures"]:
                continue
            cells = [papers(ood, id_name, detector) for ood in PAPER]
            for ood in ("textures", "objects"):
                measures = spreads[run, ood][detector]
                cells.append(" / ".join(f"{measures[name].printed:.2f}" for name in MEASURES))
            yield f"| {id_name}, `{run}` | {name} | {' | '.join(cells)} |"


def main() -> None:
    """Print all tables."""
    print(*beside_paper(), "", sep="\n")
    lines = read_lines(RESULTS / "voc20.jsonl")
    print(fpr_table(lines, list(mean_fprs(lines)), "", ()).to_markdown())


if __name__ == "__main__":
    main()
