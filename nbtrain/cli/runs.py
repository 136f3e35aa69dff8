"""Verbs about runs: submit, resume, clone, status, logs, wait, cancel, save, clean, curves, profile, generate."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from nbtrain.api.run import open_run
from nbtrain.base.errors import ConfigError
from nbtrain.base.jobstate import SUCCEEDED


def _save_picture(figure: Any, path: Path) -> None:
    formats = figure.canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in formats:
        raise ConfigError(f"{path}: no picture format of this ending; write .png or .svg.")
    figure.savefig(path)


def submit(options: argparse.Namespace) -> int:
    from nbtrain.api import verbs as api

    config = api.load(options.run, options.overrides)
    return _started(api.submit(config), config, options.wait)


def resume(options: argparse.Namespace) -> int:
    from nbtrain.api import verbs as api

    run = open_run(options.run).resume(options.overrides)
    return _started(run, api.load(run, options.overrides), options.wait)


def _started(run: Any, asked: Any, wait: bool) -> int:
    """0, or the run's end as a code; that of SubmitError where a run that is active goes on with other settings."""
    from nbtrain.base.errors import SubmitError
    from nbtrain.jobs.changes import changes_between

    print(f"{run.name}: job {run.job.job_id} is {run.state}. Watch it: nbtrain logs -f {run.name}")
    # What was started holds what was asked for; an active run, which was joined, holds its own.
    if changes_between(run.config, asked):
        print(f"{run.name}: goes on with its own settings; nothing was submitted.", file=sys.stderr)
        return SubmitError.exit_code
    return _waited(run) if wait else 0


def clone(options: argparse.Namespace) -> None:
    from nbtrain.api import verbs as api

    run = api.submit(open_run(options.run).clone(options.name, options.overrides))
    print(f"{run.name}: job {run.job.job_id} is {run.state}. Watch it: nbtrain logs -f {run.name}")


def _waited(run: Any) -> int:
    """0 where the run succeeds; a batch script must see that a run was stopped."""
    from nbtrain.base.errors import JobFailed
    from nbtrain.base.jobstate import SUCCEEDED

    return 0 if run.wait().state == SUCCEEDED else JobFailed.exit_code


def runs(options: argparse.Namespace) -> None:
    from nbtrain.monitor.runs import list_runs, runs_table

    entries = list_runs()
    if options.json:
        print(json.dumps([entry.to_dict() for entry in entries], indent=2))
    else:
        print(runs_table(entries))


def status(options: argparse.Namespace) -> None:
    from nbtrain.monitor.lines import status_text

    run = open_run(options.run)
    print(json.dumps(run.view.snapshot(), indent=2) if options.json else status_text(run.view))


def logs(options: argparse.Namespace) -> None:
    from nbtrain.monitor.logs import follow

    run = open_run(options.run)
    if options.lines < 0:
        raise ConfigError(f"--lines {options.lines}: must be at least 0.")
    ranks = run.config.world_size
    if not 0 <= options.rank < ranks:
        raise ConfigError(f"--rank {options.rank}: {run.name} has {ranks} rank(s), 0 to {ranks - 1}.")
    for line in run.log(options.lines, options.rank):
        print(line)
    if options.follow:
        for line in follow(run.directory, options.rank):
            print(line, flush=True)
        print(run.progress_line())


def wait(options: argparse.Namespace) -> int:

    return _waited(open_run(options.run))


def cancel(options: argparse.Namespace) -> None:

    run = open_run(options.run)
    run.stop(now=options.now)
    advice = f" `nbtrain resume {run.name}` goes on from its newest checkpoint."
    print(f"{run.name}: {run.state}.{'' if run.state == SUCCEEDED else advice}")


def save(options: argparse.Namespace) -> None:
    from nbtrain.jobs.control import request_save

    run = open_run(options.run)
    request_save(run.job)
    print(f"{run.name}: asked to save at the next step.")


def clean(options: argparse.Namespace) -> None:
    from nbtrain.jobs.control import clean as clean_run

    found = clean_run(open_run(options.run).directory, dry_run=not options.yes)
    for line in found:
        print(line)
    if found and not options.yes:
        print("Nothing was removed; add --yes to remove these.")
    if not found:
        print("Nothing to clean.")


def curves(options: argparse.Namespace) -> None:
    _save_picture(open_run(options.run).curves(), options.output)
    print(options.output)


def profile(options: argparse.Namespace) -> None:
    from nbtrain.base.workspace import display

    for one in open_run(options.run).profile():
        print(
            f"{one}picture: {display(one.picture)}\ntimeline: {display(one.timeline)} (https://ui.perfetto.dev)\n"
        )


def generate(options: argparse.Namespace) -> None:
    from nbtrain.api import verbs as api

    pieces = api.generate_stream(
        options.run,
        options.prompt,
        options.max_new_tokens,
        options.temperature,
        options.top_k,
        options.top_p,
        options.seed,
        options.step,
    )
    # An error comes before the first piece: then nothing is printed but its message.
    first = next(pieces, "")
    print(options.prompt + first, end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()
