"""The command line: each command parses, calls the library and prints.

Exit codes: 0 success, 1 invalid input (with a one-line reason), 2 wrong usage, 130 interrupted
(Ctrl-C), 141 nobody reads the output; `nescio monitor` also has 3 for an alarm.
"""

from __future__ import annotations

from nescio.cli import deploy, evaluate, experiments, monitor, networks, verdicts
from nescio.cli.console import add_commands, app, main

__all__ = ["app", "main"]

add_commands(
    "Verdicts",
    {
        "calibrate": verdicts.calibrate,
        "score": verdicts.score,
        "explain": verdicts.explain,
        "monitor": monitor.monitor,
        "eval": evaluate.evaluate_detectors,
        "choose": evaluate.choose,
        "detectors": verdicts.detectors,
        "info": verdicts.info,
        "report": evaluate.report,
        "export": deploy.export,
        "serve": deploy.serve,
        "demo": experiments.demo,
    },
)
add_commands(
    "Experiments of the paper",
    {
        "train": networks.train,
        "tune": networks.tune,
        "extract": networks.extract,
        "convert": networks.convert,
        "bench": experiments.bench,
        "tables": experiments.tables,
        "datasets": experiments.datasets,
    },
)
