"""`nbtrain data ...`: one verb for each thing that is done to a dataset.

    nbtrain data prepare RUN [key=value ...]   whatever is missing; the same as `nbtrain prepare`
    nbtrain data download RUN                  the steps one by one: sources that are downloaded,
    nbtrain data extract RUN                   text of costly sources,
    nbtrain data tokenizer RUN                 the tokenizer,
    nbtrain data encode RUN                    tokens as .bin/.idx
    nbtrain data inspect DATA                  header, counts, a few documents
    nbtrain data verify DATA                   every byte against index, vocabulary and manifest
    nbtrain data card DATA                     what is in it, as text, HTML or JSON
    nbtrain data merge OUT DATA DATA ...       several pairs as one
    nbtrain data repair DATA                   Megatron-DeepSpeed's uncounted end-of-document tokens

DATA is a dataset's name in the data home, a run YAML, or the prefix of any .bin/.idx.
"""

import argparse
import contextlib
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.cli.verbs import Parser, add_verb, config_verb

DATA_HELP = "a dataset's name, a run YAML, or the prefix of a .bin/.idx"


def add_verbs(top: Any) -> None:
    """Add `prepare` and `data ...` below `top`, the subparsers of nbtrain."""
    text = "Make what is missing of a run's tokenizer, dataset and indices."
    one = config_verb(top, "prepare", prepare, text)
    one.add_argument("--force", action="store_true", help="make it anew")
    verbs = "prepare, download, extract, tokenizer, encode, inspect, verify, card, merge, repair"
    group = top.add_parser("data", help=f"Datasets, step by step: {verbs}.")
    under = group.add_subparsers(required=True, metavar="VERB", title="verbs")
    for name, text in (
        ("prepare", "The same as `nbtrain prepare`."),
        ("download", "Fetch the sources of a run that come from elsewhere."),
        ("extract", "As download, and read the text of costly sources (Wikipedia dumps, docstrings) once."),
        ("tokenizer", "As extract, and train or take over the tokenizer."),
        ("encode", "As tokenizer, and write the tokens as .bin/.idx; `prepare` adds the sample indices."),
    ):
        one = config_verb(under, name, prepare, text)
        one.add_argument("--force", action="store_true", help="make it anew")
        one.set_defaults(through="index" if name == "prepare" else name)

    one = _data_verb(under, "inspect", inspect, "Header, counts and a few documents of a .bin/.idx pair.")
    _with_tokenizer(one).add_argument("--json", action="store_true", help="as JSON")
    one = _data_verb(under, "verify", verify, "Check a .bin/.idx pair and its manifest from end to end.")
    one.add_argument("--json", action="store_true", help="as JSON")
    one = _data_verb(under, "card", card, "Documents, tokens, lengths, duplicates and samples of a dataset.")
    one.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="of a run YAML, e.g. data.split=9,1,0"
    )
    _with_tokenizer(one)
    one.add_argument("--html", type=Path, metavar="FILE", help="write it as a page")
    one.add_argument("--json", type=Path, metavar="FILE", help="write it as JSON")

    one = add_verb(under, "merge", merge, "Join several .bin/.idx pairs, in order, to a new one.")
    one.add_argument("output", metavar="OUT", help="a new dataset's name, or a new prefix")
    one.add_argument("data", metavar="DATA", nargs="+", help=DATA_HELP)
    text = "Repair Megatron-DeepSpeed's uncounted end-of-document tokens."
    one = _data_verb(under, "repair", repair, text)
    one.add_argument("--eod-id", type=int, metavar="N", help="the token that documents must end in")
    one.add_argument("--yes", action="store_true", help="repair; without it the change is only shown")


def _data_verb(under: Any, name: str, function: Callable, text: str) -> Parser:
    one = add_verb(under, name, function, text)
    one.add_argument("data", metavar="DATA", help=DATA_HELP)
    return one


def _with_tokenizer(one: Parser) -> Parser:
    text = "decode with this one instead of the manifest's"
    one.add_argument("--tokenizer", metavar="NAME|PATH", help=text)
    return one


def prepare(options: argparse.Namespace) -> int:
    without_idle_threads()
    with _kept_from_the_collector():
        from nbtrain.config.load import load
        from nbtrain.dataset.prepare.prepare import prepare as prepare_data

        config = load(options.run, options.overrides)
    through: Any = getattr(options, "through", "index")
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        print(prepare_data(config, force=options.force, through=through))
    except KeyboardInterrupt as stop:
        print("Stopped. What is done is kept: the same command goes on from there.", file=sys.stderr)
        return 128 + (stop.args[0] if stop.args else signal.SIGINT)
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def without_idle_threads() -> None:
    """Before NumPy is imported: OpenBLAS' threads spin for 0.1 s at start, and no data step needs them."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")


@contextlib.contextmanager
def _kept_from_the_collector() -> Iterator[None]:
    """Objects made inside live as long as the process: Python's garbage collector need not look at them."""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def _interrupt(number: int, frame: Any) -> None:
    """A batch system's SIGTERM acts like Ctrl-C: workers are ended, and nothing half-written stays."""
    raise KeyboardInterrupt(number)


def card(options: argparse.Namespace) -> None:
    from nbtrain.base import files
    from nbtrain.dataset.look.card import data_card as make_card

    for path, ending in ((options.html, ".html"), (options.json, ".json")):
        if path is None:
            continue
        # Not of a device, such as /dev/stdout.
        if path.suffix.lower() != ending and (path.is_file() or not path.exists()):
            raise ConfigError(
                f"{path}: --{ending[1:]} writes a file that ends in {ending}; name one that does."
            )
        if not path.parent.is_dir() or path.is_dir() or not path.name:
            raise ConfigError(f"{path}: cannot be written: name a file in a folder that exists.")
    made = make_card(target_of(options.data, options.overrides), options.tokenizer)
    print(made)
    if options.html:
        files.write_output(options.html, made.to_page())
    if options.json:
        files.write_output(options.json, files.json_text(made.to_dict()))


def inspect(options: argparse.Namespace) -> None:
    from nbtrain.dataset.look.inspect import inspect as make_inspection

    _print(make_inspection(target_of(options.data), options.tokenizer), options.json)


def verify(options: argparse.Namespace) -> None:
    from nbtrain.dataset.look.inspect import verify as make_verification

    _print(make_verification(target_of(options.data)), options.json)


def merge(options: argparse.Namespace) -> None:
    from nbtrain.dataset.merge import merge as merge_data

    print(merge_data(options.output, [target_of(text) for text in options.data]))


def repair(options: argparse.Namespace) -> None:
    from nbtrain.dataset.repair import plan_repair

    plan = plan_repair(target_of(options.data), options.eod_id)
    print(plan if plan is not None else f"{options.data}: nothing to repair.")
    if plan is not None and options.yes:
        plan.apply()
        print("Repaired.")
    elif plan is not None:
        print("Nothing was changed; --yes does it.")


def target_of(text: str, overrides: list[str] | None = None) -> Any:
    """A run YAML as its configuration; a dataset's name or prefix as it is."""
    from nbtrain.config.load import find, load

    if text.endswith((".bin", ".idx")):
        return text[:-4]
    try:
        find(text)
    except ConfigError:
        if overrides:
            raise
        return text
    return load(text, overrides or [])


def _print(result: Any, as_json: bool) -> None:
    print(json.dumps(result.to_dict(), indent=2) if as_json else result)
