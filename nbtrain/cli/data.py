"""`nbtrain prepare` and `nbtrain data ...`: one verb for each operation on a dataset.

DATA is a dataset's name in the data directory, a run YAML, or the prefix of any .bin/.idx pair.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.base.process.garbage import kept_from_the_collector
from nbtrain.cli import completers
from nbtrain.cli.output import show, show_json
from nbtrain.cli.verbs import Parser, add_group, add_json, add_overrides, add_verb, complete, config_verb

DATA_HELP = "A dataset's name, a run YAML, or the prefix of a .bin/.idx pair."
FORCE_HELP = "Repeat every step, even if its output is up to date."


def add_verbs(under: Any) -> None:
    """Add the verb `prepare` and the group `data ...` to `under`, the subparsers of nbtrain."""
    text = (
        "Downloads and extracts text, trains or imports the tokenizer, writes the tokens as .bin/.idx and "
        "builds the sample indices. Only missing or outdated files are made, so an interrupted command "
        "can simply be run again."
    )
    parser = config_verb(under, "prepare", prepare, text, "nbtrain prepare gpt-tiny")
    parser.add_argument("--force", action="store_true", help=FORCE_HELP)
    add_json(parser)
    group = add_group(
        under,
        "data",
        "The verbs download, extract, tokenizer and encode run `nbtrain prepare` only up to that step.",
    )
    for name, text in (
        ("prepare", "Make a run's dataset; the same as `nbtrain prepare`."),
        ("download", "Download a run's sources."),
        ("extract", "Download the sources, and extract text from Wikipedia dumps and docstrings."),
        ("tokenizer", "Download and extract the text, then train or import the tokenizer."),
        ("encode", "Run all steps of prepare except the last, which builds the sample indices."),
    ):
        parser = config_verb(group, name, prepare, text)
        parser.add_argument("--force", action="store_true", help=FORCE_HELP)
        add_json(parser)
        parser.set_defaults(through="index" if name == "prepare" else name)

    parser = _data_verb(
        group, "inspect", inspect, "Show the header, the counts and a few documents of a .bin/.idx pair."
    )
    _add_tokenizer(parser)
    add_json(parser)
    text = "Check every byte of a .bin/.idx pair against its index, the vocabulary and its manifest."
    add_json(_data_verb(group, "verify", verify, text))
    text = "Show a dataset's data card: documents, tokens, lengths, duplicates and samples."
    parser = _data_verb(group, "card", card, text)
    add_overrides(parser, "Settings to change if DATA is a run YAML, for example data.split=9,1,0.")
    _add_tokenizer(parser)
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="Also write the card to FILE as an HTML page."
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="Also write the card to FILE as JSON.")

    parser = add_verb(group, "merge", merge, "Join .bin/.idx pairs, in the given order, into a new pair.")
    parser.add_argument("output", metavar="OUT", help="Name of the new dataset, or prefix of the new pair.")
    complete(parser.add_argument("data", metavar="DATA", nargs="+", help=DATA_HELP), completers.datasets)
    parser.set_defaults(more="data")
    text = "Repair a Megatron-DeepSpeed index that does not count the end-of-document tokens."
    parser = _data_verb(group, "repair", repair, text)
    text = "Id of the end-of-document token. Default: the id in the dataset's manifest."
    parser.add_argument("--eod-id", type=int, metavar="N", help=text)
    parser.add_argument(
        "--yes", action="store_true", help="Write the repair. Without --yes it is only shown."
    )


def _data_verb(under: Any, name: str, function: Callable, text: str) -> Parser:
    parser = add_verb(under, name, function, text)
    complete(parser.add_argument("data", metavar="DATA", help=DATA_HELP), completers.datasets)
    return parser


def _add_tokenizer(parser: Parser) -> None:
    text = "Decode with this tokenizer instead of the one in the dataset's manifest."
    parser.add_argument("--tokenizer", metavar="NAME|PATH", help=text)


def prepare(options: argparse.Namespace) -> int:
    """Make a run's dataset, or run only the steps up to the one that the verb names. Return the exit code."""
    without_idle_threads()
    with kept_from_the_collector():
        from nbtrain.config.load import load
        from nbtrain.dataset.prepare.prepare import prepare as prepare_data

        config = load(options.run, options.overrides)
    through: Any = getattr(options, "through", "index")
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        _show(prepare_data(config, force=options.force, through=through), options.json)
    except KeyboardInterrupt as stop:
        show("Stopped. Finished work is kept: run the same command again to continue.", sys.stderr)
        return 128 + (stop.args[0] if stop.args else signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def without_idle_threads() -> None:
    """Keep OpenBLAS from starting threads, which spin for 0.1 s when NumPy is imported."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


def _interrupt(number: int, frame: Any) -> None:
    """Treat a batch system's SIGTERM like Ctrl-C, which ends the workers and leaves no partial file."""
    raise KeyboardInterrupt(number)


def card(options: argparse.Namespace) -> None:
    """Show a dataset's data card, and write it to files if the options name them."""
    from nbtrain.base import files
    from nbtrain.dataset.of_run import data_named
    from nbtrain.dataset.views.card import data_card as make_card

    for path, ending in ((options.html, ".html"), (options.json, ".json")):
        if path is None:
            continue
        # The suffix of a device such as /dev/stdout is not checked.
        if path.suffix.lower() != ending and (path.is_file() or not path.exists()):
            raise ConfigError(f"{path}: name a file that ends in {ending} for --{ending[1:]}.")
        if not path.parent.is_dir() or path.is_dir() or not path.name:
            raise ConfigError(f"{path} cannot be written. Name a file in a folder that exists.")
    made = make_card(data_named(options.data, options.overrides or []), options.tokenizer)
    show(made)
    if options.html:
        files.write_output(options.html, made.to_page())
    if options.json:
        files.write_output(options.json, files.json_text(made.to_dict()))


def inspect(options: argparse.Namespace) -> None:
    """Show what is in a .bin/.idx pair."""
    from nbtrain.dataset.of_run import data_named
    from nbtrain.dataset.views.inspect import inspect as make_inspection

    _show(make_inspection(data_named(options.data), options.tokenizer), options.json)


def verify(options: argparse.Namespace) -> None:
    """Check a .bin/.idx pair."""
    from nbtrain.dataset.of_run import data_named
    from nbtrain.dataset.views.inspect import verify as make_verification

    _show(make_verification(data_named(options.data)), options.json)


def merge(options: argparse.Namespace) -> None:
    """Join .bin/.idx pairs."""
    from nbtrain.dataset.merge import merge as merge_data
    from nbtrain.dataset.of_run import data_named

    show(merge_data(options.output, [data_named(text) for text in options.data]))


def repair(options: argparse.Namespace) -> None:
    """Repair a .bin/.idx pair that Megatron-DeepSpeed wrote."""
    from nbtrain.dataset.of_run import data_named
    from nbtrain.dataset.repair import plan_repair

    plan = plan_repair(data_named(options.data), options.eod_id)
    show(plan if plan is not None else f"{options.data}: nothing to repair.")
    if plan is not None and options.yes:
        plan.apply()
        show("Repaired.")
    elif plan is not None:
        show("Nothing was changed. Add --yes to write the repair.")


def _show(result: Any, as_json: bool) -> None:
    if as_json:
        show_json(result.to_dict())
    else:
        show(result)
