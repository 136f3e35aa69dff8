"""What the verbs of the command line have in common: their parsers, and how they write a picture."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from nbtrain.base.errors import ConfigError

if TYPE_CHECKING:
    from nbtrain.api.run import Run

PICTURE_ENDINGS = (".png", ".svg", ".pdf", ".jpg")
PICTURE_HELP = f"{', '.join(PICTURE_ENDINGS[:-1])} or {PICTURE_ENDINGS[-1]}"


class Parser(argparse.ArgumentParser):
    """A parser that says of an argument that is missing what it is."""

    def error(self, message: str) -> NoReturn:
        words, _, names = message.partition(" are required: ")
        missing = names.split(", ") if words.endswith("arguments") else []
        for action in self._actions:
            if action.metavar in missing and action.help:
                message += f"\n  {action.metavar}: {action.help}"
        super().error(message)


class OneVerb:
    """Subparsers with one verb: those of other verbs are not made."""

    def __init__(self, under: Any, word: str):
        self._under = under
        self._word = word

    def add_parser(self, word: str, **settings: Any) -> Any:
        return self._under.add_parser(word, **settings) if word == self._word else _NoParser()


class _NoParser:
    """Takes arguments, groups and verbs as a parser does, and keeps none."""

    def __getattr__(self, name: str) -> "_NoParser":
        return self

    def __call__(self, *words: Any, **settings: Any) -> "_NoParser":
        return self


def is_override(word: str) -> bool:
    """Whether a word is key=value, and not a path with `=` after a slash, such as out/lr=3e-4."""
    key, equals, _ = word.partition("=")
    if not equals or "/" not in key:
        return bool(equals)
    from nbtrain.config.schema import RunConfig

    # Labels and other tables of names have slashes in their keys: labels.team/x=a.
    return key.partition(".")[0] in RunConfig.model_fields


def add_verb(under: Any, name: str, function: Callable, help_text: str) -> Parser:
    """A verb below `under`, the subparsers of nbtrain or of a group; `function` gets its options."""
    one = under.add_parser(name, help=help_text, description=help_text)
    one.set_defaults(verb=function)
    return one


def config_verb(under: Any, name: str, function: Callable, text: str, default: str | None = None) -> Parser:
    """RUN [key=value ...]: a verb that reads a run YAML."""
    run = "a run YAML, the name of an example such as gpt-tiny or of a run, or a preset such as 13B"
    one = add_verb(under, name, function, text)
    one.add_argument("run", metavar="RUN", nargs="?" if default else None, default=default, help=run)
    one.add_argument("overrides", nargs="*", default=[], metavar="key=value", help="e.g. batch.max_steps=2")
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


def check_picture(path: Path | None) -> None:
    """Before work begins: raises ConfigError if the picture's ending or folder is none to write to."""
    if path is None:
        return
    if path.suffix.lower() not in PICTURE_ENDINGS:
        raise ConfigError(f"{path}: pictures are written as {PICTURE_HELP}; name a file that ends so.")
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: no such folder: name a file in a folder that exists.")


def save_picture(figure: Any, path: Path) -> None:
    """Write a figure. Raises ConfigError if its ending is none of a picture, or if it cannot be written."""
    check_picture(path)
    try:
        figure.savefig(path)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written ({error.strerror}): name a file in a folder that exists."
        ) from None
