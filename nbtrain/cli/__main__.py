"""The entry point of the command line. It finds the verb, turns errors into exit codes, and survives a closed
pipe.

`nbtrain help` lists the verbs (cli/verb_table.py). The module of a verb is loaded when the verb is used; it
calls the function that notebooks call.
"""

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper

from nbtrain.base.errors import NbtrainError
from nbtrain.base.process.signals import hear_signals
from nbtrain.base.version import __version__
from nbtrain.cli import completion
from nbtrain.cli.output import show
from nbtrain.cli.verb_table import ALIASES, VERBS, common_verbs, unknown_verb
from nbtrain.cli.verbs import Parser, TopVerbs, is_override

GARBAGE_OBJECTS = 100_000
"""Number of new objects after which Python searches for unused cycles. With Python's default of 700 objects,
a tenth of a command's time is spent on that.
"""
NO_JOBS = ("queue", "cancel", "delete", "help", "completion", "schema")
"""Verbs that do not first restart jobs which ended when the machine restarted."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. An NbtrainError is printed as its message and becomes its exit code."""
    if completion.is_asked():
        completion.answer_shell(parser(ALIASES.get(word := completion.typed_verb(), word)))
    is_process = arguments is None
    if is_process:
        hear_signals()
        # Modules are a hundred thousand objects that stay until the end.
        gc.set_threshold(GARBAGE_OBJECTS)
    words = sys.argv[1:] if arguments is None else list(arguments)
    # A model's text, or a path that is not UTF-8, in a locale that lacks its characters.
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        if words in ([], ["-h"], ["--help"]):
            show(common_verbs())
            return 0
        options = parse(words)
        if options.word not in NO_JOBS:
            from nbtrain.jobs.queue.after_boot import start_after_boot

            start_after_boot(say=lambda text: show(text, sys.stderr))
        code = options.verb(options) or 0
        # Flush here, so that a closed pipe or a full disk is reported now and not when Python exits.
        sys.stdout.flush()
        return code
    except NbtrainError as error:
        show(f"{type(error).__name__}: {error}", sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # `nbtrain logs | head`: the reader closed the pipe.
        _write_no_more()
        return 0
    except PermissionError as error:
        from nbtrain.base import files

        show(f"{type(error).__name__}: {files.not_allowed(error)}", sys.stderr)
        return 1
    except OSError as error:
        # A full disk, a folder without permission, a FILE that is a folder: the system's message says which.
        show(f"{type(error).__name__}: {error}", sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:
            _write_no_more()
        return 1
    finally:
        if is_process:
            # The interpreter would look through all of them again before it exits.
            gc.freeze()


def _write_no_more() -> None:
    """Discard the text that stdout still buffers, because writing it would fail again when Python exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Return the options of one call; unknown options of `lab` are passed to JupyterLab.

    argparse fills a list argument only up to the first flag, so words after a flag are added here.
    """
    word = ALIASES.get(words[0], words[0])
    if word not in VERBS and not word.startswith("-"):
        parser().error(unknown_verb(word))
    options, rest = parser(word).parse_known_args([word, *words[1:]])
    late = not any(word.startswith("-") for word in rest)
    if options.word == "lab":
        options.rest = rest
    elif late and "more" in options:
        setattr(options, options.more, [*getattr(options, options.more), *rest])
    elif late and "overrides" in options and all(map(is_override, rest)):
        options.overrides += rest
    elif rest:
        options.parser.refuse_words(rest)
    return options


def parser(word: str = "") -> Parser:
    """Return a parser with the verbs of the module that defines `word`, or with all verb names."""
    top = Parser(prog="nbtrain")
    top.add_argument(
        "--version", action="version", version=f"nbtrain {__version__}", help="Show the version."
    )
    under = top.add_subparsers(required=True, metavar="VERB", dest="word", prog=top.prog)
    if word in VERBS:
        import_module(f"nbtrain.cli.{VERBS[word].module}").add_verbs(TopVerbs(under))
    else:
        for verb in VERBS.values():
            under.add_parser(verb.name, help=verb.summary)
    return top


if __name__ == "__main__":
    sys.exit(main())
