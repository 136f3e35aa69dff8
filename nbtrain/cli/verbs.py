"""What the verbs of the command line have in common: their parsers, and how they write a picture."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtrain.base.errors import ConfigError

if TYPE_CHECKING:
    from nbtrain.api.run import Run

Parser = argparse.ArgumentParser


def add_verb(under: Any, name: str, function: Callable, help_text: str) -> Parser:
    """A verb below `under`, the subparsers of nbtrain or of a group; `function` gets its options."""
    one = under.add_parser(name, help=help_text, description=help_text)
    one.set_defaults(verb=function)
    return one


def config_verb(under: Any, name: str, function: Callable, text: str, default: str | None = None) -> Parser:
    """RUN [key=value ...]: a verb that reads a run YAML."""
    one, run = add_verb(under, name, function, text), "a run YAML, or the name of an example or of a run"
    one.add_argument("run", metavar="RUN", nargs="?" if default else None, default=default, help=run)
    one.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. batch.max_steps=2")
    return one


def run_verb(under: Any, name: str, function: Callable, text: str) -> Parser:
    """RUN: a verb that opens a run which was submitted."""
    one = add_verb(under, name, function, text)
    one.add_argument("run", metavar="RUN", help="a run's name, folder or YAML")
    return one


def run_of(options: argparse.Namespace) -> "Run":
    """The run that a verb made by run_verb names."""
    from nbtrain.api.run import open_run  # a verb about data would pay 30 ms for records that it never reads

    return open_run(options.run)


def save_picture(figure: Any, path: Path) -> None:
    """Write a figure. Raises ConfigError if matplotlib does not know the file ending, or cannot write it."""
    if path.suffix[1:].lower() not in figure.canvas.get_supported_filetypes():
        raise ConfigError(f"{path}: no picture format of this ending; write .png or .svg.")
    try:
        figure.savefig(path)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written ({error.strerror}): name a file in a folder that exists."
        ) from None
