"""`nbtrain compare RUN RUN ...`: settings that differ and metrics, as text, JSON or a picture."""

import argparse
from pathlib import Path
from typing import Any

from nbtrain.cli import completers
from nbtrain.cli.output import show, show_json
from nbtrain.cli.verbs import add_json, add_picture, add_verb, check_picture, complete, save_picture


def add_verbs(under: Any) -> None:
    """Add the verb below `under`, the subparsers of nbtrain."""
    parser = add_verb(under, "compare", compare, "", "nbtrain compare gpt-a gpt-b --picture curves.png")
    text = "The names, folders or YAMLs of 2 to 12 runs; of one run with --published."
    runs = parser.add_argument("runs", metavar="RUN", nargs="+", help=text)
    complete(runs, completers.runs)
    parser.set_defaults(more="runs")
    text = "Add others' published figures as columns, from a YAML of names and figures."
    parser.add_argument("--published", type=Path, metavar="FILE", help=text)
    add_json(parser)
    add_picture(parser, "Also draw the curves to FILE")


def compare(options: argparse.Namespace) -> None:
    """Compare runs."""
    from nbtrain.api.compare import compare as compared
    from nbtrain.base.errors import DataError
    from nbtrain.monitor.runs.compare_picture import comparison_figure

    if options.picture:
        check_picture(options.picture)
    comparison = compared(options.runs, options.published)
    if options.json:
        show_json(comparison.tables)
    else:
        show(comparison)
    if options.picture:
        figure = comparison_figure(comparison.runs)
        if figure is None:
            raise DataError(f"{options.picture} is not written: none of these runs has a curve yet.")
        save_picture(figure, options.picture)
