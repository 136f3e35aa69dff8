"""`nbtrain compare RUN RUN ...`: settings that differ and metrics, as text, JSON or a picture."""

import argparse
from pathlib import Path
from typing import Any

from nbtrain.cli import completers
from nbtrain.cli.output import show, show_json
from nbtrain.cli.verbs import add_json, add_picture, add_verb, check_picture, complete, save_picture


def add_verbs(under: Any) -> None:
    """Add the verb `nbtrain compare` to `under`, the subparsers of nbtrain."""
    parser = add_verb(
        under,
        "compare",
        compare,
        "",
        "nbtrain compare gpt-a gpt-b --picture curves.png\nnbtrain compare -l sweep=lr-study",
    )
    text = (
        "Names, folders or YAMLs of at least two runs; with --published, one run is enough. A picture shows "
        "at most 12."
    )
    runs = parser.add_argument("runs", metavar="RUN", nargs="*", help=text)
    complete(runs, completers.runs)
    parser.set_defaults(more="runs")
    text = "Also compare the runs that `nbtrain runs -l RULES` lists, for example sweep=lr-study."
    parser.add_argument("-l", "--label", action="append", default=[], metavar="RULES", help=text)
    text = "YAML with published results of other models, which become columns of the table (docs/runs.md)."
    parser.add_argument("--published", type=Path, metavar="FILE", help=text)
    add_json(parser)
    add_picture(parser, "Also draw the curves to FILE")


def compare(options: argparse.Namespace) -> None:
    """Compare runs."""
    # Not nb.compare(): it would load the libraries of widgets, which takes as long as comparing fifty runs.
    from nbtrain.api.run import open_run
    from nbtrain.base.errors import ConfigError, DataError
    from nbtrain.monitor.runs.compare import compared
    from nbtrain.monitor.runs.compare_picture import comparison_figure, comparison_report
    from nbtrain.monitor.runs.published import read_published
    from nbtrain.monitor.runs.run_filter import run_filter
    from nbtrain.monitor.runs.runs import list_runs

    if options.picture:
        check_picture(options.picture)
    labelled = list_runs(wanted=run_filter(sort="name", label=options.label)) if options.label else []
    if not labelled and (options.label or not options.runs):
        wanted = (
            f"No run has the labels {', '.join(options.label)}."
            if options.label
            else "Name the runs to compare."
        )
        raise ConfigError(f"{wanted} `nbtrain runs` lists all runs.")
    names = [*options.runs, *(status.name for status in labelled if status.name not in options.runs)]
    runs = [open_run(name).directory for name in names]
    # Draw the picture first, so that an error is not printed below the tables.
    figure = comparison_figure(runs) if options.picture else None
    if options.picture and figure is None:
        raise DataError(f"{options.picture} was not written: none of these runs has a curve yet.")
    tables = compared(runs, read_published(options.published) if options.published else ())
    if options.json:
        show_json(tables)
    else:
        show(comparison_report(runs, tables))
    if figure is not None:
        save_picture(figure, options.picture)
