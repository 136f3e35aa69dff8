"""Code that the command-line verbs share: parsers, help texts and writing pictures."""

import argparse
import difflib
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from nbtrain.base.errors import ConfigError
from nbtrain.base.text import terminal
from nbtrain.base.text.alternatives import alternatives
from nbtrain.cli import completers
from nbtrain.cli.output import show
from nbtrain.cli.verb_table import VERBS

if TYPE_CHECKING:
    from nbtrain.api.run import Run

PICTURE_ENDINGS = (".png", ".svg", ".pdf", ".jpg")
PICTURE_HELP = alternatives(PICTURE_ENDINGS)
CONFIG_HELP = "A run YAML, an example's name such as gpt-tiny, a preset such as 13B, or a run's name."
RUN_HELP = "The name, folder or YAML of a run that was submitted."
KEYS_HELP = (
    "Settings to change, for example batch.max_steps=2. `nbtrain check RUN --resolved` prints all keys of a "
    "run with their values; docs/config.md explains each key."
)

Completer = Callable[..., Iterable[str]]
"""Function that argcomplete calls with prefix, action, parser and parsed_args; it returns the completions."""


class HelpFormatter(argparse.HelpFormatter):
    """Help formatter that shows each option's default after its help text and keeps the examples on separate
    lines.
    """

    def _get_help_string(self, action: argparse.Action) -> str:
        default = default_text(action).replace("%", "%%")
        return f"{action.help} Default: {default}." if default else action.help or ""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return terminal.folded(text, width)


def default_text(action: argparse.Action) -> str:
    """Return an argument's default as the help shows it; "" for a flag or an argument without a default."""
    value = action.default
    if action.nargs == 0 or value in (None, "", [], argparse.SUPPRESS):
        return ""
    if isinstance(value, float):
        return f"{value:,.12g}"
    return f"{value:,}" if isinstance(value, int) and abs(value) >= 10_000 else str(value)


class Parser(argparse.ArgumentParser):
    """Parser whose errors explain a missing argument and suggest the word that was probably meant."""

    def __init__(self, **settings: Any):
        super().__init__(**{"formatter_class": HelpFormatter, "add_help": False, **settings})
        self.add_argument("-h", "--help", action="help", help="Show this help.")

    def error(self, message: str) -> NoReturn:
        """Exit with the usage, the error, and the help of a missing argument."""
        words, _, names = message.partition(" are required: ")
        missing = names.split(", ") if words.endswith("arguments") else []
        for action in self._actions:
            if action.metavar in missing and action.help:
                message += f"\n  {action.metavar}: {action.help}"
        self.print_usage(sys.stderr)
        show(f"{self.prog}: error: {message}", sys.stderr)
        self.exit(ConfigError.exit_code)

    def refuse_words(self, words: list[str]) -> NoReturn:
        """Exit with this verb's usage, the unknown words, and options with similar names."""
        known = [option for action in self._actions for option in action.option_strings]
        near = [
            difflib.get_close_matches(word.partition("=")[0], known, n=1) for word in words if word[0] == "-"
        ]
        meant = ", ".join(option for options in near for option in options)
        self.error(f"unrecognized arguments: {' '.join(words)}{f'. Did you mean {meant}?' if meant else ''}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        near = difflib.get_close_matches(str(value), known, n=1)
        meant = f"Did you mean {near[0]}? " if near else ""
        raise argparse.ArgumentError(action, f"{value!r} is unknown. {meant}Choose from {', '.join(known)}.")


class TopVerbs:
    """nbtrain's own subparsers, which take each verb's summary from the table of verbs."""

    def __init__(self, under: Any):
        self._under = under

    def add_parser(self, name: str, description: str, **settings: Any) -> Parser:
        """Add a verb; `description` continues its summary."""
        verb = VERBS[name]
        settings |= {"help": verb.summary, "aliases": verb.aliases}
        return self._under.add_parser(name, description=f"{verb.summary} {description}".rstrip(), **settings)


def add_verb(under: Any, name: str, function: Callable, text: str = "", examples: str = "") -> Parser:
    """Add a verb that calls `function` with its options below `under`, the subparsers of nbtrain or a group.

    For a top-level verb, `text` continues the verb's summary; for a verb in a group, `text` is the whole
    description. `examples` are command lines, one per line.
    """
    epilog = "\n".join(["Examples:", *(f"  {line}" for line in examples.splitlines())]) if examples else None
    parser = under.add_parser(name, help=text, description=text, epilog=epilog)
    parser.set_defaults(verb=function, parser=parser)
    return parser


def add_group(under: Any, name: str, text: str) -> Any:
    """Add a group of verbs, such as `data`, and return the subparsers for its verbs."""
    parser = under.add_parser(name, description=text)
    return parser.add_subparsers(required=True, metavar="VERB", title="verbs")


def config_verb(
    under: Any, name: str, function: Callable, text: str = "", examples: str = "", default: str | None = None
) -> Parser:
    """Add a verb that reads a run YAML and changes its settings: `nbtrain VERB RUN [key=value ...]`."""
    parser = add_verb(under, name, function, text, examples)
    nargs = "?" if default else None
    run = parser.add_argument("run", metavar="RUN", nargs=nargs, default=default, help=CONFIG_HELP)
    complete(run, completers.configs)
    add_overrides(parser)
    return parser


def add_overrides(parser: Parser, help_text: str = KEYS_HELP) -> None:
    """Add the arguments [key=value ...], which change settings of the run."""
    words = parser.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=help_text)
    complete(words, completers.overrides)


def run_verb(under: Any, name: str, function: Callable, text: str = "", examples: str = "") -> Parser:
    """Add a verb that opens a submitted run: `nbtrain VERB RUN`."""
    parser = add_verb(under, name, function, text, examples)
    complete(parser.add_argument("run", metavar="RUN", help=RUN_HELP), completers.runs)
    return parser


def complete(action: argparse.Action, completer: Completer) -> None:
    """Let the shell complete an argument's value."""
    action.completer = completer  # type: ignore[attr-defined]  # where argcomplete looks for it


def add_json(parser: Parser, help_text: str = "Print JSON.") -> None:
    """Add --json: JSON alone on stdout, messages and progress on stderr."""
    parser.add_argument("--json", action="store_true", help=help_text)


def add_step(
    parser: Parser, help_text: str = "Use the checkpoint from step N instead of the newest."
) -> None:
    """Add --step N, which selects a run's checkpoint."""
    complete(parser.add_argument("--step", type=int, metavar="N", help=help_text), completers.steps)


def add_picture(parser: Parser, help_text: str) -> None:
    """Add --picture FILE."""
    parser.add_argument("--picture", type=Path, metavar="FILE", help=f"{help_text} ({PICTURE_HELP}).")


def is_override(word: str) -> bool:
    """Return whether a word is key=value and not a path with `=` after a slash, such as out/lr=3e-4."""
    key, equals, _ = word.partition("=")
    if not equals or "/" not in key:
        return bool(equals)
    from nbtrain.config.schema import RunConfig

    # Keys of labels and similar tables may contain slashes: labels.team/x=a.
    return key.partition(".")[0] in RunConfig.model_fields


def run_of(options: argparse.Namespace) -> "Run":
    """Return the run named on the command line of a verb added by run_verb."""
    from nbtrain.api.run import open_run  # Imported here: a data verb would spend 30 ms on it.

    return open_run(options.run)


def check_picture(path: Path | None) -> None:
    """Raise ConfigError, before any work begins, if a picture cannot be written to `path`."""
    if path is None:
        return
    if path.suffix.lower() not in PICTURE_ENDINGS:
        raise ConfigError(
            f"{path}: a picture must be a {PICTURE_HELP} file; name a file with one of these suffixes."
        )
    if not path.parent.is_dir():
        raise ConfigError(f"{path}: its folder does not exist. Name a file in a folder that exists.")


def save_picture(figure: Any, path: Path) -> None:
    """Write a plot. Raises ConfigError if the file cannot be written or has no picture suffix."""
    check_picture(path)
    try:
        figure.savefig(path)
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be written ({error.strerror}). Name a file in a folder that exists."
        ) from None
