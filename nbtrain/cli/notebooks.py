"""Verbs about notebooks: notebook, demo, lab."""

import argparse
import time


def notebook(options: argparse.Namespace) -> None:
    from nbtrain.cli.notebook_runner import run_notebook, typed_parameters

    parameters = typed_parameters(options.notebook, options.parameter)
    started = time.monotonic()
    executed = run_notebook(options.notebook, parameters, options.output)
    print(f"{executed.notebook}\n{executed.html}\n{time.monotonic() - started:.1f} s")


def demo(options: argparse.Namespace) -> int:
    from nbtrain.base.errors import JobFailed
    from nbtrain.cli.demo import run_demo

    summary = run_demo(options.run, options.overrides)
    print(summary)
    return JobFailed.exit_code if summary.unfinished else 0


def lab(options: argparse.Namespace) -> int:
    from nbtrain.cli.jupyterlab import open_lab

    return open_lab(options.rest)
