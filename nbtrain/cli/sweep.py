"""`nbtrain sweep FILE`: plan, train and compare many runs that differ in some settings."""

import argparse
import sys
from pathlib import Path
from typing import Any

from nbtrain.cli.output import show, show_json
from nbtrain.cli.verbs import PICTURE_HELP, add_json, add_verb, check_picture, save_picture


def add_verbs(under: Any) -> None:
    """Add the verb `nbtrain sweep` to `under`, the subparsers of nbtrain."""
    parser = add_verb(
        under,
        "sweep",
        sweep,
        "Each run is an ordinary run. To continue an interrupted sweep, run the same command again.",
        "nbtrain sweep lr.yaml --dry-run\nnbtrain sweep lr.yaml --at-once 4\nnbtrain sweep lr-study --status",
    )
    text = "The sweep's YAML (docs/sweeps.md). With --status, a sweep's name is enough."
    parser.add_argument("file", metavar="FILE", help=text)
    text = "Plan every run and add up hours, money and disk space, without starting anything."
    parser.add_argument("--dry-run", action="store_true", help=text)
    text = "Show the results so far without starting anything."
    parser.add_argument("--status", action="store_true", help=text)
    text = "Keep at most N runs active; overrides at_once in the file."
    parser.add_argument("--at-once", type=int, metavar="N", help=text)
    text = (
        "Resume every failed or cancelled run once, and every run that was only evaluated and has steps left."
    )
    parser.add_argument("--again", action="store_true", help=text)
    add_json(parser, "Print the results as JSON.")
    text = f"Plot the loss of each setting in FILE ({PICTURE_HELP})."
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=text)


def sweep(options: argparse.Namespace) -> int:
    """Plan, run or show a sweep. Return the exit code."""
    from nbtrain.api.sweep import sweep as run_sweep
    from nbtrain.api.sweep import sweep_status
    from nbtrain.base.errors import ConfigError, DataError, JobFailed
    from nbtrain.base.workspace import display
    from nbtrain.jobs.sweep.results import SweepResults, sweep_figure
    from nbtrain.jobs.sweep.sweep_record import sweep_folder

    if options.dry_run and options.status:
        raise ConfigError("--dry-run and --status exclude each other: choose one.")
    if options.dry_run and options.output:
        raise ConfigError("--output draws losses, and --dry-run trains nothing. Omit --output.")
    if options.status and (options.again or options.at_once is not None):
        raise ConfigError("--status starts nothing. Omit --again and --at-once.")
    if options.output:
        check_picture(options.output)
    # A path on the command line is relative to the current folder.
    path = Path(options.file)
    name = str(path.absolute()) if path.is_file() or path.suffix in (".yaml", ".yml") else options.file
    if options.status:
        found: Any = sweep_status(name)
    else:
        found = run_sweep(name, dry_run=options.dry_run, at_once=options.at_once, again=options.again)
    if options.json:
        show_json(found.to_dict())
    else:
        show(found)
    if not isinstance(found, SweepResults):
        return ConfigError.exit_code if found.problems else 0
    if options.output:
        figure = sweep_figure(found)
        if figure is None:
            raise DataError(f"{options.output} was not written: no run of the sweep has a curve yet.")
        save_picture(figure, options.output)
    if options.status:
        return 0
    # With --json, stdout holds the JSON alone.
    stream = sys.stderr if options.json else sys.stdout
    show(f"Sweep page: {display(sweep_folder(found.name) / 'page.html')}", stream)
    return 0 if found.succeeded else JobFailed.exit_code
