"""`nbtrain help`: list the verbs, or show the help of one verb."""

import argparse
import sys
from typing import Any

from nbtrain.cli.output import columns_of, show
from nbtrain.cli.verb_table import all_verbs, common_verbs
from nbtrain.cli.verbs import add_verb


def add_verbs(under: Any) -> None:
    """Add the verb `nbtrain help` to `under`, the subparsers of nbtrain."""
    parser = add_verb(
        under, "help", show_help, "", "nbtrain help all\nnbtrain help submit\nnbtrain help data card"
    )
    text = "A verb, such as plan or data card; `all` lists every verb."
    parser.add_argument("words", metavar="VERB", nargs="*", help=text)


def show_help(options: argparse.Namespace) -> None:
    """Show the common verbs, all verbs, or the help of one verb."""
    from nbtrain.cli.__main__ import parse

    if options.words in ([], ["all"]):
        show(all_verbs(columns_of(sys.stdout) or 80) if options.words else common_verbs())
    else:
        parse([*options.words, "--help"])
