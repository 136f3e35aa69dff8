"""`nbtrain twin`: a run's layout proven small, on this machine's CPU, before a cluster is taken."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from nbtrain.base.errors import ConfigError, JobFailed


def add_verb(verb: Callable[..., argparse.ArgumentParser], with_config: Callable) -> None:
    """Add the verb; `verb` and `with_config` are the command line's own."""
    one = with_config(
        verb(
            "twin",
            twin,
            "Train a small run of the same shape on CPU: data, steps, checkpoint, resume, export. Exit 7 where it fails.",
        )
    )
    one.add_argument(
        "--submit", action="store_true", help="send its straight run through supervisor and torchrun"
    )
    one.add_argument("--json", action="store_true", help="the report as JSON")
    one.add_argument("--picture", type=Path, metavar="FILE", help="also draw its curves: .png or .svg")


def twin(options: argparse.Namespace) -> int:
    from nbtrain.base.rundir import RunDir
    from nbtrain.base.workspace import display
    from nbtrain.config.load import load
    from nbtrain.jobs.twin.prove import run_twin
    from nbtrain.monitor.twin_picture import draw

    if options.picture and options.picture.suffix.lower() not in (".png", ".svg"):
        raise ConfigError(f"{options.picture}: no picture format of this ending; write .png or .svg.")
    report = run_twin(load(options.run, options.overrides), submitted=options.submit)
    if options.json:
        print(json.dumps(report.to_dict(), indent=2))
    else:
        print(report)
        print(f"Report: {display(RunDir.named(report.twin).path / 'twin.json')}")
    if options.picture:
        draw(report.to_dict()).savefig(options.picture)
    return 0 if report.passed else JobFailed.exit_code
