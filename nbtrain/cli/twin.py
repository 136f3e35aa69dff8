"""`nbtrain twin`: a run's layout proven small, on this machine's CPU, before a cluster is taken."""

import argparse
import json
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError, JobFailed
from nbtrain.cli.verbs import config_verb, save_picture


def add_verbs(under: Any) -> None:
    """Add the verb below `under`, the subparsers of nbtrain."""
    text = "Train a small run of the same shape on CPU, from data to export; exit 7 if a check fails."
    one = config_verb(under, "twin", twin, text)
    text = "send its straight run through supervisor and torchrun"
    one.add_argument("--submit", action="store_true", help=text)
    one.add_argument("--json", action="store_true", help="the report as JSON")
    one.add_argument("--picture", type=Path, metavar="FILE", help="also draw its curves: .png or .svg")


def twin(options: argparse.Namespace) -> int:
    from nbtrain.base.rundir import RunDir
    from nbtrain.base.workspace import display
    from nbtrain.config.load import load
    from nbtrain.jobs.twin.prove import run_twin
    from nbtrain.monitor.twin_picture import draw

    # Before minutes of training.
    if options.picture and options.picture.suffix.lower() not in (".png", ".svg"):
        raise ConfigError(f"{options.picture}: no picture format of this ending; write .png or .svg.")
    report = run_twin(load(options.run, options.overrides), submitted=options.submit)
    words = f"{report}\nReport: {display(RunDir.named(report.twin).path / 'twin.json')}"
    print(json.dumps(report.to_dict(), indent=2) if options.json else words)
    if options.picture:
        save_picture(draw(report.to_dict()), options.picture)
    return 0 if report.passed else JobFailed.exit_code
