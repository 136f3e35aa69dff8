"""`nbtrain twin`: try a run's layout with a tiny model on the CPU, before GPUs are reserved."""

import argparse
from typing import Any

from nbtrain.base.errors import JobFailed
from nbtrain.cli.output import show, show_json
from nbtrain.cli.verbs import add_json, add_picture, check_picture, config_verb, save_picture


def add_verbs(under: Any) -> None:
    """Add the verb `nbtrain twin` to `under`, the subparsers of nbtrain."""
    text = (
        "A twin is a scaled-down run with the same layout. It prepares data, trains, saves, resumes and "
        "exports. Exit code 7 means that a check failed."
    )
    parser = config_verb(under, "twin", twin, text, "nbtrain twin 13B")
    text = "Submit the twin as a job, with the same checks and supervisor as `nbtrain submit`."
    parser.add_argument("--submit", action="store_true", help=text)
    add_json(parser, "Print the report as JSON.")
    add_picture(parser, "Also draw the twin's curves to FILE")


def twin(options: argparse.Namespace) -> int:
    """Train the twin of a run. Return 7 if one of its checks failed, else 0."""
    from nbtrain.base.run_directory.rundir import RunDir
    from nbtrain.base.workspace import display
    from nbtrain.config.load import load
    from nbtrain.monitor.metrics.finite_json import finite
    from nbtrain.monitor.run.twin_picture import draw
    from nbtrain.proof.prove import run_twin

    # Check this before training for minutes.
    check_picture(options.picture)
    report = run_twin(load(options.run, options.overrides), submitted=options.submit)
    if options.json:
        show_json(finite(report.to_dict()))
    else:
        show(report)
        show(f"Report: {display(RunDir.named(report.twin).path / 'twin.json')}")
    if options.picture:
        save_picture(draw(report.to_dict()), options.picture)
    return 0 if report.passed else JobFailed.exit_code
