"""`nbtrain compare RUN RUN ...`: settings that differ and metrics, as text, JSON or a picture."""

import argparse
from pathlib import Path
from typing import Any

from nbtrain.cli import completers
from nbtrain.cli.output import show, show_json
from nbtrain.cli.verbs import PICTURE_HELP, add_json, add_verb, check_picture, complete, save_picture


def add_verbs(under: Any) -> None:
    """Add the verb below `under`, the subparsers of nbtrain."""
    parser = add_verb(under, "compare", compare, "", "nbtrain compare gpt-a gpt-b -o curves.png")
    text = "The names, folders or YAMLs of 2 to 12 runs; of one run with --published."
    runs = parser.add_argument("runs", metavar="RUN", nargs="+", help=text)
    complete(runs, completers.runs)
    parser.set_defaults(more="runs")
    text = "Add others' published figures as columns, from a YAML of names and figures."
    parser.add_argument("--published", type=Path, metavar="FILE", help=text)
    add_json(parser)
    text = f"Draw the curves to FILE ({PICTURE_HELP})."
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=text)


def compare(options: argparse.Namespace) -> None:
    """Compare runs."""
    from nbtrain.api.compare import compare as compared
    from nbtrain.base.errors import DataError
    from nbtrain.monitor.runs.compare_picture import comparison_figure

    if options.output:
        check_picture(options.output)
    comparison = compared(options.runs, options.published)
    if options.json:
        show_json(comparison.tables)
    else:
        show(comparison)
    if options.output:
        figure = comparison_figure(comparison.runs)
        if figure is None:
            raise DataError(f"{options.output} is not written: none of these runs has a curve yet.")
        save_picture(figure, options.output)
