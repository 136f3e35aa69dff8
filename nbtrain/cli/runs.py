"""Verbs about runs, from submit to generate."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError, JobFailed, SubmitError
from nbtrain.cli.verbs import add_verb, config_verb, run_of, run_verb, save_picture


def add_verbs(under: Any) -> None:
    """Add the verbs below `under`, the subparsers of nbtrain."""
    one = config_verb(under, "submit", submit, "Start a run as a detached job, join it, or resume it.")
    one.add_argument("--wait", action="store_true", help="wait for its end; exit 7 if it fails")
    one = add_verb(under, "runs", runs, "Every run under the output root and its state.")
    one.add_argument("--json", action="store_true", help="as JSON")
    one = run_verb(under, "status", status, "State, progress, cause and last events of a run.")
    one.add_argument("--json", action="store_true", help="the snapshot that the panel draws")
    one = run_verb(under, "logs", logs, "A rank's log.")
    one.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")
    one.add_argument("--rank", type=int, default=0)
    one.add_argument("-n", "--lines", type=int, default=50)
    run_verb(under, "wait", wait, "Wait for a run's end; exit 7 if it fails.")
    one = run_verb(under, "cancel", cancel, "Ask the job to save a checkpoint and leave.")
    one.add_argument("--now", action="store_true", help="kill it without saving")
    run_verb(under, "save", save, "Ask the job for a checkpoint; it goes on.")
    one = run_verb(under, "resume", resume, "Go on from the newest whole checkpoint as a new job.")
    one.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. batch.train_tokens=5e6")
    one.add_argument("--wait", action="store_true", help="wait for its end")
    one = run_verb(under, "clone", clone, "Submit a run's configuration under a new name.")
    one.add_argument("name", metavar="NAME")
    one.add_argument("overrides", nargs="*", metavar="key=value")
    one = run_verb(under, "clean", clean, "Remove what failed attempts left.")
    one.add_argument("--yes", action="store_true", help="remove; without it the list is only shown")
    one = run_verb(under, "curves", curves, "Draw loss, perplexity, learning rate and throughput.")
    one.add_argument("-o", "--output", type=Path, default="curves.png", metavar="FILE", help=".png or .svg")
    text = "What the profiler saw of a run: a page each, and where its pictures are."
    run_verb(under, "profile", profile, text)
    one = run_verb(under, "generate", generate, "Text from a run's newest checkpoint.")
    one.add_argument("-p", "--prompt", required=True)
    one.add_argument("-n", "--max-new-tokens", type=int, default=100)
    one.add_argument("--temperature", type=float, default=0.8, help="0 is greedy")
    one.add_argument("--top-k", type=int, default=40, help="0 does not cut")
    one.add_argument("--top-p", type=float, default=1.0)
    one.add_argument("--seed", type=int, default=1234)
    one.add_argument("--step", type=int, help="of this checkpoint instead of the newest")


def submit(options: argparse.Namespace) -> int:
    from nbtrain.api import verbs as api

    config = api.load(options.run, options.overrides)
    return _started(api.submit(config), config, options.wait)


def resume(options: argparse.Namespace) -> int:
    from nbtrain.api import verbs as api

    run = run_of(options).resume(options.overrides)
    return _started(run, api.load(run, options.overrides), options.wait)


def _started(run: Any, asked: Any, wait: bool) -> int:
    """0, or the exit code of the run's end; SubmitError's if an active run keeps settings of its own."""
    from nbtrain.jobs.changes import changes_between

    print(f"{run.name}: job {run.job.job_id} is {run.state}. Watch it: nbtrain logs -f {run.name}")
    # A run that was started has the settings that were asked for; an active run that was joined has its own.
    if changes_between(run.config, asked):
        print(f"{run.name}: goes on with its own settings; nothing was submitted.", file=sys.stderr)
        return SubmitError.exit_code
    return _waited(run) if wait else 0


def clone(options: argparse.Namespace) -> int:
    from nbtrain.api import verbs as api

    config = run_of(options).clone(options.name, options.overrides)
    return _started(api.submit(config), config, wait=False)


def _waited(run: Any) -> int:
    """0 if the run succeeds; a batch script must see that a run was stopped."""
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

    run = run_of(options)
    print(json.dumps(run.view.snapshot(), indent=2) if options.json else status_text(run.view))


def logs(options: argparse.Namespace) -> None:
    from nbtrain.monitor.logs import follow

    run = run_of(options)
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
    return _waited(run_of(options))


def cancel(options: argparse.Namespace) -> None:
    from nbtrain.base.jobstate import SUCCEEDED
    from nbtrain.jobs.control import advice_to_resume

    run = run_of(options)
    run.stop(now=options.now)
    state = run.state
    print(f"{run.name}: {state}.{'' if state == SUCCEEDED else f' {advice_to_resume(run.directory)}'}")


def save(options: argparse.Namespace) -> None:
    from nbtrain.jobs.control import request_save

    run = run_of(options)
    request_save(run.job)
    print(f"{run.name}: asked to save at the next step.")


def clean(options: argparse.Namespace) -> None:
    from nbtrain.jobs.control import clean as clean_run

    found = clean_run(run_of(options).directory, dry_run=not options.yes)
    print(*found or ["Nothing to clean."], sep="\n")
    if found and not options.yes:
        print("Nothing was removed; add --yes to remove these.")


def curves(options: argparse.Namespace) -> None:
    save_picture(run_of(options).curves(), options.output)
    print(options.output)


def profile(options: argparse.Namespace) -> None:
    from nbtrain.base.workspace import display

    for one in run_of(options).profile():
        print(
            f"{one}picture: {display(one.picture)}\n"
            f"timeline: {display(one.timeline)} (https://ui.perfetto.dev)\n"
        )


def generate(options: argparse.Namespace) -> None:
    from nbtrain.api import verbs as api

    sampling = (options.temperature, options.top_k, options.top_p, options.seed, options.step)
    pieces = api.generate_stream(options.run, options.prompt, options.max_new_tokens, *sampling)
    # An error comes before the first piece: then nothing is printed but its message.
    print(options.prompt + next(pieces, ""), end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
    print()
