"""`nbtrain compare RUN RUN ...`: settings that differ and figures, as text, JSON or a picture."""

import argparse
import json
from pathlib import Path
from typing import Any

from nbtrain.cli.verbs import PICTURE_HELP, add_verb, check_picture, save_picture


def add_verbs(under: Any) -> None:
    """Add the verb below `under`, the subparsers of nbtrain."""
    one = add_verb(under, "compare", compare, "Runs side by side: settings that differ, figures, curves.")
    one.add_argument("runs", metavar="RUN", nargs="+", help="2 to 12 runs: names, folders or YAMLs")
    one.set_defaults(more="runs")
    one.add_argument("--json", action="store_true", help="both tables as JSON")
    one.add_argument("-o", "--output", type=Path, metavar="FILE", help=f"the curves: {PICTURE_HELP}")


def compare(options: argparse.Namespace) -> None:
    from nbtrain.api.compare import compare as compared
    from nbtrain.base.errors import DataError
    from nbtrain.monitor.compare_picture import comparison_figure

    if options.output:
        check_picture(options.output)
    found = compared(options.runs)
    print(json.dumps(found.tables, indent=1) if options.json else found)
    if options.output:
        figure = comparison_figure(found.runs)
        if figure is None:
            raise DataError(f"{options.output} is not written: none of these runs has a curve yet.")
        save_picture(figure, options.output)
