"""Verbs about notebooks: notebook, demo, lab."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from nbtrain.cli.verbs import add_verb, config_verb


def add_verbs(under: Any) -> None:
    """Add the verbs below `under`, the subparsers of nbtrain."""
    one = add_verb(under, "notebook", notebook, "Run one of the notebooks headless and save it and its HTML.")
    one.add_argument("notebook", metavar="NOTEBOOK", help="e.g. 03_launch")
    one.add_argument("-p", "--parameter", nargs=2, action="append", default=[], metavar=("NAME", "VALUE"))
    one.add_argument("-o", "--output", type=Path, metavar="FILE", help="where the executed notebook goes")
    config_verb(under, "demo", demo, "Run notebooks 01 to 05 for a run and sum up.", default="gpt-tiny")
    text = "Open JupyterLab on the notebooks: loopback, token, TensorBoard tile; takes its options too."
    add_verb(under, "lab", lab, text)


def notebook(options: argparse.Namespace) -> int:
    """0, or the exit code that `nbtrain wait` gives for the run that the notebook waited for."""
    from nbtrain.base.errors import JobFailed
    from nbtrain.cli.notebook_runner import run_notebook, typed_parameters

    parameters = typed_parameters(options.notebook, options.parameter)
    started = time.monotonic()
    executed = run_notebook(options.notebook, parameters, options.output)
    print(f"{executed.notebook}\n{executed.html}\n{time.monotonic() - started:.1f} s")
    if executed.unfinished is None:
        return 0
    print(executed.unfinished, file=sys.stderr)
    return JobFailed.exit_code


def demo(options: argparse.Namespace) -> int:
    from nbtrain.base.errors import JobFailed
    from nbtrain.cli.demo import run_demo

    summary = run_demo(options.run, options.overrides)
    print(summary)
    return JobFailed.exit_code if summary.run.unfinished else 0


def lab(options: argparse.Namespace) -> int:
    from nbtrain.cli.jupyterlab import open_lab

    return open_lab(options.rest)
