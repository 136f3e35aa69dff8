"""Verbs about notebooks: notebook, demo, lab."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from nbtrain.cli import completers
from nbtrain.cli.output import show
from nbtrain.cli.verbs import add_verb, complete, config_verb


def add_verbs(under: Any) -> None:
    """Add the verbs `notebook`, `demo` and `lab` to `under`, the subparsers of nbtrain."""
    parser = add_verb(
        under,
        "notebook",
        notebook,
        "Saves the executed notebook, and an HTML page of it.",
        "nbtrain notebook 03_launch -p run gpt-tiny -p overrides batch.max_steps=20\n"
        "nbtrain notebook --again output/gpt-tiny/notebooks/03_launch.ipynb",
    )
    text = "A notebook's file, or the name of one of nbtrain's own notebooks, such as 03_launch."
    complete(parser.add_argument("notebook", metavar="NOTEBOOK", help=text), completers.notebooks)
    text = "Set a notebook parameter. May be repeated."
    parser.add_argument(
        "-p",
        "--parameter",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "VALUE"),
        help=text,
    )
    text = (
        "Run an executed notebook again with its recorded parameters and report the differences. If its run "
        "still exists, the new run gets a different name."
    )
    parser.add_argument("--again", action="store_true", help=text)
    text = "File for the executed notebook. Default: a file in the folder of the notebook's run."
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=text)
    text = "Runs notebooks 01 to 05 for RUN, in about five minutes on two cores, and prints a summary."
    config_verb(under, "demo", demo, text, default="gpt-tiny")
    text = (
        "Listens on this machine only and requires a token. JupyterLab's own options may follow, for example "
        "--port 8899."
    )
    add_verb(under, "lab", lab, text)


def notebook(options: argparse.Namespace) -> int:
    """Run a notebook. Return 0, or 7 if the run that it waited for did not finish."""
    from nbtrain.base.errors import ConfigError, JobFailed
    from nbtrain.cli.notebook_runner import run_notebook, typed_parameters

    started = time.monotonic()
    if options.again:
        if options.parameter:
            raise ConfigError(
                "--again uses the recorded parameters: omit -p, or run the notebook without --again."
            )
        from nbtrain.cli.notebook_again import run_again

        again = run_again(options.notebook, options.output)
        show(again)
        executed = again.executed
    else:
        parameters = typed_parameters(options.notebook, options.parameter)
        executed = run_notebook(options.notebook, parameters, options.output)
    show(f"{executed.notebook}\n{executed.html}\n{time.monotonic() - started:.1f} s")
    if executed.unfinished is None:
        return 0
    show(executed.unfinished, sys.stderr)
    return JobFailed.exit_code


def demo(options: argparse.Namespace) -> int:
    """Run the demo's notebooks one after the other. Return 0, or 7 if the run did not finish."""
    from nbtrain.base.errors import JobFailed
    from nbtrain.cli.demo import run_demo

    summary = run_demo(options.run, options.overrides)
    show(summary)
    return JobFailed.exit_code if summary.run.unfinished else 0


def lab(options: argparse.Namespace) -> int:
    """Replace this process with JupyterLab."""
    from nbtrain.cli.jupyterlab import open_lab

    return open_lab(options.rest)
