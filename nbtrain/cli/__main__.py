"""nbtrain on the command line: one verb per call, the same functions that the notebooks call.

    nbtrain doctor                       is this machine ready
    nbtrain init DIR                     notebooks, example YAMLs and docs to a folder of yours
    nbtrain import FILE... [-o YAML]     another program's manifest, script or DeepSpeed JSON as a run YAML
    nbtrain check RUN [key=value ...]    the YAML alone, or FILE...: other programs' files
    nbtrain plan RUN [key=value ...]     parameters, memory, time, disk
    nbtrain search RUN --gpus 64         every layout on those GPUs, ranked; largest: what fits at all
    nbtrain prepare RUN [key=value ...]  corpus, tokenizer, .bin/.idx
    nbtrain twin RUN [key=value ...]     a small run of the same shape, on this machine's CPU
    nbtrain submit RUN [key=value ...]   start it; status, logs -f, cancel, resume, clean follow
    nbtrain advise RUN                   what to change after a failed or slow run
    nbtrain generate RUN -p TEXT         text from the newest checkpoint; serve RUN: to OpenAI's clients
    nbtrain evaluate RUN                 perplexity and bits per byte; --task hellaswag=FILE: questions
    nbtrain export RUN DIR               its model for transformers, vLLM, SGLang; --to megatron-lm: its flags
    nbtrain import-model DIR NAME        a run that starts from a model's folder

RUN is a YAML's path, an example's name (gpt-tiny), a preset (13B) or, once submitted, the run's name or
folder. Exit codes: 0 done, 1 doctor found an error or the system refused a file, 2 config or usage, or check
found that a run cannot work, 3 data, 4 checkpoint, 5 job, 6 not submitted (an active run keeps its settings),
7 job failed or was stopped, 130 interrupted.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper

from nbtrain.base import files
from nbtrain.base.errors import NbtrainError
from nbtrain.base.signals import hear_signals
from nbtrain.base.version import __version__
from nbtrain.cli.verbs import OneVerb, Parser, is_override

# {module: its verbs}, in the order of a run's life. A call loads the module of its own verb alone: all
# modules, and the parsers of all verbs, take 25 ms.
VERBS = {
    "nbtrain.cli.planning": "doctor init import check schema plan advise calibrate",
    "nbtrain.cli.layouts": "search largest",
    "nbtrain.cli.data": "prepare data",
    "nbtrain.cli.twin": "twin",
    "nbtrain.cli.runs": (
        "submit runs queue status job logs wait cancel pause save resume clone label notes "
        "archive clean delete curves profile"
    ),
    "nbtrain.cli.models": "export import-model",
    "nbtrain.cli.serve": "generate serve",
    "nbtrain.cli.evaluate": "evaluate",
    "nbtrain.cli.compare": "compare",
    "nbtrain.cli.checkpoint": "checkpoint",
    "nbtrain.cli.tensorboard": "tensorboard",
    "nbtrain.cli.notebooks": "notebook demo lab",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; every NbtrainError becomes its message and exit code."""
    if arguments is None:
        hear_signals()
    options = parse(arguments)
    # A model's text, or a path that is no UTF-8, in a locale that lacks its characters.
    if isinstance(sys.stdout, TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        if options.word not in ("queue", "cancel", "delete"):
            # These say which of the jobs that a restart of the machine has ended are not to go on.
            from nbtrain.jobs.queue.after_boot import start_after_boot

            start_after_boot(say=lambda said: print(said, file=sys.stderr))
        code = options.verb(options) or 0
        # What is still held back meets a closed pipe or a full disk here, and not when Python ends.
        sys.stdout.flush()
        return code
    except NbtrainError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # `nbtrain logs | head`: the reader has seen enough.
        _write_no_more()
        return 0
    except PermissionError as error:
        print(f"{type(error).__name__}: {files.not_allowed(error)}", file=sys.stderr)
        return 1
    except OSError as error:
        # A full disk, a folder without rights, a FILE that names a folder: the words of the system say which.
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:
            _write_no_more()
        return 1


def _write_no_more() -> None:
    """What stdout still holds back would fail once more when Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of one call; JupyterLab gets what `lab` does not know.

    argparse fills a list of words once, before the first flag: words that follow a flag are added here.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    options, rest = parser(words[0] if words else "").parse_known_args(words)
    late = not any(word.startswith("-") for word in rest)
    if options.word == "lab":
        options.rest = rest
    elif late and "more" in options:
        setattr(options, options.more, [*getattr(options, options.more), *rest])
    elif late and "overrides" in options and all(map(is_override, rest)):
        options.overrides += rest
    elif rest:
        parser().error(f"unrecognized arguments: {' '.join(rest)}")
    return options


def parser(word: str = "") -> argparse.ArgumentParser:
    """With the verb `word` alone; with all verbs if it is none of them."""
    modules = [module for module, words in VERBS.items() if word in words.split()]
    summary, _, rest = (__doc__ or "").partition("\n")
    top = Parser(
        prog="nbtrain", description=summary, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top.add_argument("--version", action="version", version=f"nbtrain {__version__}")
    verbs = top.add_subparsers(required=True, metavar="VERB", title="verbs", dest="word", prog=top.prog)
    for module in modules or VERBS:
        import_module(module).add_verbs(OneVerb(verbs, word) if modules else verbs)
    return top


if __name__ == "__main__":
    sys.exit(main())
