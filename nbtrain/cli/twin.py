"""`nbtrain twin`: a run's layout proven small, on this machine's CPU, before a cluster is taken."""

import argparse
import json
from pathlib import Path
from typing import Any

from nbtrain.base.errors import JobFailed
from nbtrain.cli.verbs import PICTURE_HELP, check_picture, config_verb, save_picture


def add_verbs(under: Any) -> None:
    """Add the verb below `under`, the subparsers of nbtrain."""
    text = "Train a small run of the same shape on CPU, from data to export; exit 7 if a check fails."
    one = config_verb(under, "twin", twin, text)
    text = "send its straight run through supervisor and torchrun"
    one.add_argument("--submit", action="store_true", help=text)
    one.add_argument("--json", action="store_true", help="the report as JSON")
    one.add_argument("--picture", type=Path, metavar="FILE", help=f"also draw its curves: {PICTURE_HELP}")


def twin(options: argparse.Namespace) -> int:
    from nbtrain.base.rundir import RunDir
    from nbtrain.base.workspace import display
    from nbtrain.config.load import load
    from nbtrain.monitor.snapshot import finite
    from nbtrain.monitor.twin_picture import draw
    from nbtrain.proof.prove import run_twin

    # Before minutes of training.
    check_picture(options.picture)
    report = run_twin(load(options.run, options.overrides), submitted=options.submit)
    words = f"{report}\nReport: {display(RunDir.named(report.twin).path / 'twin.json')}"
    print(json.dumps(finite(report.to_dict()), indent=2) if options.json else words)
    if options.picture:
        save_picture(draw(report.to_dict()), options.picture)
    return 0 if report.passed else JobFailed.exit_code
