"""The command line's entry point: finds the verb, turns errors into exit codes, and handles a closed pipe.

`nbtrain help` lists the verbs (cli/verb_table.py). A verb's module is imported when the verb is used; it
calls the same functions that notebooks call.
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
"""Number of new objects after which Python collects cyclic garbage. With Python's default of 700 objects, a
tenth of a command's time is spent on garbage collection.
"""
NO_JOBS = ("queue", "cancel", "delete", "help", "completion", "schema")
"""Verbs that run without first restarting the jobs that a reboot of the machine ended."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb. An NbtrainError is printed as its message and becomes its exit code."""
    if completion.is_asked():
        completion.answer_shell(parser(ALIASES.get(word := completion.typed_verb(), word)))
    is_process = arguments is None
    if is_process:
        hear_signals()
        # The loaded modules are about a hundred thousand objects, which live until the process ends.
        gc.set_threshold(GARBAGE_OBJECTS)
    words = sys.argv[1:] if arguments is None else list(arguments)
    # Generated text and paths that are not UTF-8 may contain characters that the locale's encoding lacks.
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
        # For example a full disk, or a FILE that is a folder: the system's message says which.
        show(f"{type(error).__name__}: {error}", sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:
            _write_no_more()
        return 1
    finally:
        if is_process:
            # Otherwise the garbage collector would scan all of these objects again before the process exits.
            gc.freeze()


def _write_no_more() -> None:
    """Discard the text that stdout still buffers, because writing it would fail again when Python exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Parse one command line and return its options; unknown options of `lab` are kept for JupyterLab.

    argparse fills a list argument only up to the first flag, so this function adds the words after a flag.
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
