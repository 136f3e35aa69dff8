"""Verbs about runs, from submit to profile."""

import argparse
import contextlib
import json
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError, JobFailed, SubmitError
from nbtrain.base.run_directory.jobstate import ACTIVE, FAILED, QUEUED, RUN_MEANING, SUCCEEDED
from nbtrain.cli import completers
from nbtrain.cli.output import show, show_json
from nbtrain.cli.verbs import (
    PICTURE_HELP,
    Parser,
    add_json,
    add_overrides,
    add_picture,
    add_verb,
    check_picture,
    complete,
    config_verb,
    run_of,
    run_verb,
    save_picture,
)
from nbtrain.monitor.runs.run_filter import SORTS

WAIT_HELP = "Wait until the job ends, and exit with 7 unless it succeeds."
NO_TRY_HELP = "Start the job without first trying the run's Python file (`code`) on a two-layer model."
JOB_JSON_HELP = "Print the run as JSON, in the form of `nbtrain runs --json`; messages go to stderr."


def add_verbs(under: Any) -> None:
    """Add the verbs from `submit` to `profile` to `under`, the subparsers of nbtrain."""
    parser = config_verb(
        under,
        "submit",
        submit,
        "The job continues after this terminal is closed. If the run is active, no second job is started; if "
        "it ended early, it is resumed.",
        "nbtrain submit gpt-tiny\n"
        "nbtrain submit gpt-125m batch.micro_batch_size=4 --wait\n"
        "nbtrain submit gpt-125m backend.kind=slurm --dry-run job.sh",
    )
    parser.add_argument("--wait", action="store_true", help=WAIT_HELP)
    text = (
        "Write Slurm's batch script, the Kubernetes manifest or the commands for hosts to FILE without "
        "submitting anything."
    )
    parser.add_argument("--dry-run", type=Path, metavar="FILE", help=text)
    text = (
        "Start alongside other jobs instead of waiting for devices; the same as backend.share_devices=true."
    )
    parser.add_argument("--now", action="store_true", help=text)
    parser.add_argument("--no-try", action="store_true", help=NO_TRY_HELP)
    add_json(parser, JOB_JSON_HELP)

    parser = add_verb(
        under,
        "runs",
        runs,
        "The newest run comes first.",
        "nbtrain runs --state failed,lost\nnbtrain runs 'gpt-*' -n 5",
    )
    parser.add_argument(
        "name", metavar="NAME", nargs="?", default="", help="Part of a run's name, or a pattern."
    )
    text = (
        "List runs in these states, for example failed,lost. `active` and `ended` each stand for several "
        "states."
    )
    states = parser.add_argument("--state", default="", metavar="STATES", help=text)
    complete(states, lambda **_: [*map(str.lower, RUN_MEANING), "active", "ended"])
    text = (
        "List runs whose labels match these rules, for example team=nlp,stage!=trial. `team` matches any "
        "value of the label, `!team` matches runs without it. May be repeated."
    )
    parser.add_argument("-l", "--label", action="append", default=[], metavar="RULES", help=text)
    parser.add_argument("--archived", action="store_true", help="List archived runs too.")
    text = "List runs submitted within this time, for example 90s, 30m, 12h, 2d or 1w."
    parser.add_argument("--newer-than", metavar="AGE", help=text)
    parser.add_argument("--older-than", metavar="AGE", help="List runs submitted longer ago than this.")
    sort = parser.add_argument(
        "--sort", default="submitted", metavar="BY", help=f"Sort by one of {', '.join(SORTS)}."
    )
    complete(sort, lambda **_: SORTS)
    parser.add_argument("--reverse", action="store_true", help="Reverse the order.")
    parser.add_argument("-n", "--limit", type=int, metavar="N", help="List at most N runs.")
    add_json(parser, "Print JSON, one run per line.")

    parser = add_verb(
        under,
        "queue",
        queue,
        "Jobs of all workspaces share one queue. With RUN, changes the position of that run's job.",
        "nbtrain queue gpt-125m --priority 5",
    )
    run = parser.add_argument("run", metavar="RUN", nargs="?", help="A run whose job is waiting.")
    complete(run, completers.runs)
    text = "New priority for RUN's job; jobs with greater numbers start first."
    parser.add_argument("--priority", type=int, metavar="N", help=text)
    parser.add_argument("--now", action="store_true", help="Start RUN's job now, alongside other jobs.")
    parser.add_argument("--restart", action="store_true", help="Start all lost jobs in the queue again.")
    add_json(parser)

    parser = run_verb(under, "status", status)
    add_json(parser, "Print everything that the panel in JupyterLab shows, as JSON.")

    parser = run_verb(under, "job", job, "Lists conditions, replicas with their ranks, resources and events.")
    _add_job(parser)
    text = "Show the newest N events."
    parser.add_argument("-n", "--events", type=int, default=20, metavar="N", help=text)
    parser.add_argument("--yaml", action="store_true", help="Print only the run's resolved YAML.")
    add_json(parser, "Print JSON, including the curves of resource use.")
    add_picture(parser, "Also draw the job's timeline and its resource use to FILE")

    parser = run_verb(
        under,
        "logs",
        logs,
        "For a failed run, the last traceback comes first.",
        "nbtrain logs -f gpt-tiny\n"
        "nbtrain logs gpt-tiny --rank 3 -n 200\n"
        "nbtrain logs gpt-tiny --grep 'out of memory'",
    )
    parser.add_argument("-f", "--follow", action="store_true", help="Print new lines until the job ends.")
    text = (
        "Show the log of this rank, of `supervisor`, or of a machine (node0). Default: rank 0, or the rank "
        "that failed; with --grep, all ranks."
    )
    parser.add_argument("--rank", metavar="RANK", help=text)
    _add_job(parser, "Show the logs of this job. Default: the newest job; with --grep, all jobs.")
    text = (
        "Show the rank's log of this attempt, counted from 0. Default: the newest attempt; with --grep, all."
    )
    parser.add_argument("--attempt", type=int, metavar="N", help=text)
    text = "Show the last N lines. Default: 50; with --grep, all lines."
    parser.add_argument("-n", "--lines", type=int, metavar="N", help=text)
    text = "Show only lines that contain TEXT. Searches all jobs, ranks and attempts."
    parser.add_argument("--grep", metavar="TEXT", help=text)
    parser.add_argument("-i", "--ignore-case", action="store_true", help="Ignore case in --grep.")
    add_json(parser, "Print each line that --grep finds as a JSON object.")

    parser = run_verb(under, "wait", wait, "Progress is printed whenever it changes.")
    add_json(parser, JOB_JSON_HELP)
    parser = run_verb(under, "cancel", cancel, "`nbtrain resume` continues the run.")
    parser.add_argument("--now", action="store_true", help="Kill the job without saving.")
    run_verb(under, "pause", pause, "`nbtrain resume` continues the same job.")
    parser = run_verb(under, "save", save)
    text = "Wait up to this many seconds for the checkpoint, and print its step."
    parser.add_argument("--wait", type=float, metavar="SECONDS", help=text)

    parser = run_verb(
        under,
        "resume",
        resume,
        "Starts a new job, or continues the same job if it was paused.",
        "nbtrain resume gpt-tiny batch.train_tokens=5e6",
    )
    add_overrides(parser)
    parser.add_argument("--wait", action="store_true", help=WAIT_HELP)
    parser.add_argument("--no-try", action="store_true", help=NO_TRY_HELP)
    add_json(parser, JOB_JSON_HELP)

    parser = run_verb(under, "clone", clone, "", "nbtrain clone gpt-tiny gpt-tiny-hot lr_schedule.lr=4e-3")
    parser.add_argument("name", metavar="NAME", help="The name of the new run.")
    add_overrides(parser)
    parser.add_argument("--wait", action="store_true", help=WAIT_HELP)
    parser.add_argument("--no-try", action="store_true", help=NO_TRY_HELP)
    add_json(parser, JOB_JSON_HELP)

    parser = run_verb(
        under, "label", label, "Without changes, lists the labels.", "nbtrain label gpt-tiny team=nlp stage-"
    )
    text = "Labels to set; `key-` removes the label `key`."
    parser.add_argument("changes", metavar="key=value|key-", nargs="*", default=[], help=text)
    parser = run_verb(under, "notes", notes)
    text = 'New notes, at most 10,000 characters; "" removes the notes.'
    parser.add_argument("text", metavar="TEXT", nargs="?", help=text)
    parser = run_verb(
        under, "archive", archive, "Keeps the run's files; `nbtrain runs --archived` still lists it."
    )
    parser.add_argument("--undo", action="store_true", help="List the run again.")
    parser = run_verb(under, "clean", clean, "Finds processes, temporary files and incomplete checkpoints.")
    parser.add_argument(
        "--yes", action="store_true", help="Remove the leftovers. Without --yes they are only listed."
    )

    parser = run_verb(
        under, "delete", delete, "Keeps datasets and tokenizers, because other runs may use them."
    )
    parser.add_argument("--yes", action="store_true", help="Delete without confirmation.")
    text = "Delete the run even if other runs or run YAMLs refer to its files."
    parser.add_argument("--force", action="store_true", help=text)

    parser = run_verb(under, "curves", curves)
    text = f"The picture to write ({PICTURE_HELP})."
    parser.add_argument("-o", "--output", type=Path, default="curves.png", metavar="FILE", help=text)
    run_verb(
        under, "profile", profile, "Each profile is a page of text, a picture and a timeline for Perfetto."
    )


def _add_job(
    parser: Parser, help_text: str = "Show an earlier job of the run instead of the newest."
) -> None:
    complete(parser.add_argument("--job", metavar="JOB_ID", help=help_text), completers.jobs)


def submit(options: argparse.Namespace) -> int:
    """Start or resume a run, or write the files that a scheduler would receive. Return the exit code."""
    from nbtrain.api import verbs as api

    now = ["backend.share_devices=true"] if options.now else []
    config = api.load(options.run, [*options.overrides, *now])
    if options.dry_run is not None:
        if options.json or options.wait:
            raise ConfigError("--dry-run submits nothing: omit --json and --wait.")
        if str(options.dry_run) == "-":
            raise ConfigError(
                "--dry-run - must name a file, for example --dry-run job.sh; nothing was written."
            )
        path = api.submit(config, dry_run=options.dry_run)
        hosts = config.backend.kind == "hosts"
        what = "what `nbtrain submit` checks on the machines" if hosts else "what the cluster must have first"
        show(f"{path}: written; nothing was submitted. Its first lines list {what}.")
        return 0
    run = _quietly(options, api.submit, config, try_code=not options.no_try)
    return _started(run, config, options)


def queue(options: argparse.Namespace) -> None:
    """Show the queue, or change the position of a job in the queue."""
    from nbtrain.api import verbs as api

    if options.run:
        if options.priority is None and not options.now:
            raise ConfigError(
                "name a change: --priority N or --now. To list all jobs, run `nbtrain queue` without RUN."
            )
        run_of(options).queue(options.priority, options.now)
    elif options.priority is not None or options.now:
        raise ConfigError("--priority and --now need a run, for example `nbtrain queue RUN --priority 5`.")
    entries = _quietly(options, api.queue, restart=options.restart)
    if options.json:
        show_json(entries.to_dicts())
    else:
        show(entries)


def _quietly(options: argparse.Namespace, function: Any, *arguments: Any, **settings: Any) -> Any:
    """Call a function; with --json, print its messages to stderr, because stdout holds only JSON."""
    with contextlib.redirect_stdout(sys.stderr if options.json else sys.stdout):
        return function(*arguments, **settings)


def resume(options: argparse.Namespace) -> int:
    """Resume a run. Return the exit code."""
    from nbtrain.api import verbs as api

    run = _quietly(options, run_of(options).resume, options.overrides, not options.no_try)
    return _started(run, api.load(run, options.overrides), options)


def _started(run: Any, wanted: Any, options: argparse.Namespace) -> int:
    """Show the job of a submitted run, wait for its end with --wait, and return the exit code.

    A run that was already active keeps its settings. If `wanted` has other settings, the exit code is that
    of SubmitError.
    """
    from nbtrain.config.load.changes import typed_changes

    kept = bool(typed_changes(run.config, wanted))
    if not options.json:
        show(
            f"{run.name}: job {run.job.job_id} is {run.state}. To watch it, run `nbtrain logs -f {run.name}`."
        )
    if kept:
        show(
            f"{run.name}: its job is active and keeps its settings; nothing was submitted. To change the "
            f"settings, run `nbtrain cancel {run.name}`, then submit again.",
            sys.stderr,
        )
    code = SubmitError.exit_code if kept else _waited(run, options) if options.wait else 0
    if options.json:
        _show_run_json(run)
    return code


def clone(options: argparse.Namespace) -> int:
    """Submit a run's settings under another name. Return the exit code."""
    from nbtrain.api.run import Run
    from nbtrain.jobs.submission.clone import submit_clone

    job, config = _quietly(
        options,
        lambda: submit_clone(
            run_of(options).directory, options.name, options.overrides, tries_code=not options.no_try
        ),
    )
    return _started(Run(job.run), config, options)


def wait(options: argparse.Namespace) -> int:
    """Wait for the end of a run's job. Return the exit code."""
    run = run_of(options)
    code = _waited(run, options)
    if options.json:
        _show_run_json(run)
    return code


def _waited(run: Any, options: argparse.Namespace) -> int:
    """Wait for the run's end; return 0 if it succeeded, else 7, so that batch scripts notice a failure."""
    try:
        run.wait(say=lambda text: show(text, sys.stderr if options.json else sys.stdout, flush=True))
    except JobFailed as error:
        if not options.json:
            raise
        show(f"JobFailed: {error}", sys.stderr)
    return 0 if run.state == SUCCEEDED else JobFailed.exit_code


def _show_run_json(run: Any) -> None:
    from nbtrain.monitor.status.status_records import read_status

    show_json(read_status(run.directory, time.time()).to_dict())


def runs(options: argparse.Namespace) -> None:
    """List runs."""
    from nbtrain.monitor.runs.run_filter import run_filter
    from nbtrain.monitor.runs.runs import list_runs, runs_json

    ages = (options.newer_than, options.older_than)
    order = (options.sort, options.reverse, options.limit)
    wanted = run_filter(options.name, options.state, *ages, *order, options.label, options.archived)
    entries = list_runs(wanted=wanted)
    if options.json:
        print(runs_json(entries))
    elif entries or not (every := list_runs()):
        show(entries)
    else:
        archived = " --archived" if any(run.archived for run in every) else ""
        show(f"No run matches. `nbtrain runs{archived}` lists all runs.")


def status(options: argparse.Namespace) -> None:
    """Show a run on one screen."""
    from nbtrain.monitor.run.status_text import status_report

    run = run_of(options)
    if run.directory.newest_job():
        # The view only reads files, so query the scheduler first.
        _ = run.state
    if options.json:
        show_json(run.view.describe().to_dict())
    else:
        show(status_report(run.directory))


def job(options: argparse.Namespace) -> None:
    """Show everything about a job."""
    from nbtrain.monitor.run.usage_picture import usage_figure

    if options.events < 0:
        raise ConfigError(f"--events {options.events}: must be at least 0.")
    check_picture(options.picture)
    page = run_of(options).job_page(options.job)
    if options.json:
        show_json(page.to_dict())
    elif options.yaml:
        print(page.yaml, end="")
    else:
        show(page.as_report(options.events))
    if options.picture:
        save_picture(usage_figure(page), options.picture)
        show(options.picture, sys.stderr)


def logs(options: argparse.Namespace) -> None:
    """Show, follow or search the logs of a run."""
    from nbtrain.jobs.attempt.backend import status_of
    from nbtrain.monitor.logs.logs import log_path
    from nbtrain.monitor.logs.tracebacks import failed_rank, whose
    from nbtrain.monitor.run.status_text import no_log_line, waiting_line

    run = run_of(options)
    if options.lines is not None and options.lines < 0:
        raise ConfigError(f"--lines {options.lines}: must be at least 0.")
    rank = _rank_of(options.rank, run)
    if options.grep is not None:
        _search_logs(options, run, rank)
        return
    for name in ("json", "ignore_case"):
        if getattr(options, name):
            raise ConfigError(f"--{name.replace('_', '-')} needs --grep TEXT.")
    if options.follow and options.job:
        raise ConfigError("--follow prints the log of the newest job: omit --job.")
    if options.follow and options.attempt is not None:
        raise ConfigError("--follow prints the log of the newest attempt: omit --attempt.")
    lines = 50 if options.lines is None else options.lines
    job = run.directory.existing_job(options.job) if options.job else run.directory.newest_job()
    state = status_of(job)[0] if job else None
    if rank is None and job and state == FAILED and options.attempt is None:
        rank = failed_rank(job)
        if traceback := run.traceback(rank, job.job_id):
            which = f"job {job.job_id} of {run.name}" if options.job else run.name
            print(f"{which} is FAILED. The last traceback of {whose(rank)}:\n\n{traceback}\n")
        if isinstance(rank, str):
            print(f"No rank has written a log. The end of {whose(rank)}:\n")
        elif traceback or rank:
            print(f"The end of the log of rank {rank}:\n")
    rank = rank or 0
    # Until the rank has a log, follow() prints the pod's output from its beginning.
    if not (options.follow and job and state in ACTIVE and not log_path(job, rank).exists()):
        log = run.log(lines, rank, options.job, options.attempt)
        for line in log:
            print(line)
        if job and not log and lines and not options.follow:
            show(no_log_line(job, rank), sys.stderr)
    if options.follow:
        if waits := waiting_line(run.directory, rank):
            show(waits, sys.stderr, flush=True)
        for line in run.follow(rank):
            print(line, flush=True)
        show(run.progress_line())


def _search_logs(options: argparse.Namespace, run: Any, rank: int | str | None) -> None:
    """Print the log lines that contain the text of --grep."""
    if options.follow:
        raise ConfigError("--follow prints new lines, --grep searches existing lines: use one of the two.")
    if options.attempt is not None:
        raise ConfigError("--grep searches the logs of all attempts: omit --attempt.")
    if isinstance(rank, str):
        raise ConfigError(
            "--grep searches only the logs of ranks: omit --rank, or name one rank with --rank N."
        )
    hits = 0
    for hit in islice(run.search(options.grep, rank, options.ignore_case, options.job), options.lines):
        hits += 1
        print(json.dumps(vars(hit), ensure_ascii=False) if options.json else hit)
    if not hits and options.lines != 0:
        show(f"{run.name}: no line of its logs contains {options.grep!r}.", sys.stderr)


def _rank_of(text: str | None, run: Any) -> int | str | None:
    """Return the rank, "supervisor" or the machine that --rank names. Raises ConfigError for other texts."""
    from nbtrain.monitor.logs.logs import NODE, SUPERVISOR, checked_rank

    if text is None or text == SUPERVISOR or NODE.fullmatch(text):
        return text
    if not text.isdecimal():
        raise ConfigError(
            f"--rank {text}: must be a rank, `supervisor` or, on several machines, a node such as `node0`."
        )
    return checked_rank(run.name, int(text), run.config.world_size)


def cancel(options: argparse.Namespace) -> None:
    """Stop a run's job."""
    from nbtrain.jobs.control.control import advice_to_resume

    run = run_of(options)
    run.stop(now=options.now)
    state = run.state
    show(f"{run.name}: {state}.{'' if state == SUCCEEDED else f' {advice_to_resume(run.directory)}'}")


def pause(options: argparse.Namespace) -> None:
    """Pause the job of a run."""
    from nbtrain.jobs.control.control import pause as pause_job

    run = run_of(options)
    state, cause = pause_job(run.job)
    if state == QUEUED:
        cause = (
            "the scheduler was asked to hold the job and has not confirmed this yet; "
            f"`nbtrain status {run.name}` shows when the job is held{f' ({cause})' if cause else ''}"
        )
    show(f"{run.name}: {state}{f': {cause}' if cause else ''}.")


def save(options: argparse.Namespace) -> None:
    """Save a checkpoint of a run that is training."""
    run = run_of(options)
    step = run.save(options.wait)
    show(f"{run.name}: {'will save after the current step' if step is None else f'saved at step {step:,}'}.")


def label(options: argparse.Namespace) -> None:
    """Change or list the labels of a run."""
    from nbtrain.base.text.terminal import printable
    from nbtrain.monitor.status.notes import label_changes

    run, changes = run_of(options), label_changes(options.changes)
    labels = run.label(changes) if changes else run.labels
    for key, value in sorted(labels.items()):
        print(printable(f"{key}={value}"))
    if not labels:
        show(f"{run.name} has no labels.")


def notes(options: argparse.Namespace) -> None:
    """Replace or show the notes about a run."""
    from nbtrain.base.text.terminal import printable

    run = run_of(options)
    if options.text is not None:
        run.note(options.text)
    show(printable(run.notes) or f"{run.name} has no notes.")


def archive(options: argparse.Namespace) -> None:
    """Hide a run from lists, or list it again."""
    run = run_of(options)
    run.archive(not options.undo)
    if options.undo:
        show(f"{run.name}: listed again.")
        return
    active = run.directory.newest_job() and run.state in ACTIVE
    until = " It is still listed until its job ends." if active else ""
    show(f"{run.name}: archived. `nbtrain runs --archived` lists it.{until}")


def clean(options: argparse.Namespace) -> None:
    """Remove leftovers of killed jobs."""
    left = run_of(options).clean(options.yes)
    for line in left or ["Nothing to clean."]:
        show(line)
    if left and not options.yes:
        show("Nothing was removed. Add --yes to remove these leftovers.")


def delete(options: argparse.Namespace) -> None:
    """Delete a run after confirmation."""
    from nbtrain.base.text import amounts
    from nbtrain.jobs.control.delete import delete as delete_run
    from nbtrain.jobs.control.delete import survey

    run = run_of(options)
    show(survey(run.directory, options.force))
    if not options.yes:
        if not sys.stdin.isatty():
            raise ConfigError(f"cannot ask whether to delete {run.name} without a terminal: add --yes.")
        try:
            answer = input(f"Delete {run.name} with all these files? [y/N] ")
        except EOFError:  # Ctrl-D
            print()
            answer = ""
        if answer.strip().lower() not in ("y", "yes"):
            show("Nothing was deleted.")
            return
    deleted = delete_run(run.directory, options.force)
    show(f"{run.name} was deleted, which freed {amounts.size(deleted.size_bytes)}.")


def curves(options: argparse.Namespace) -> None:
    """Draw the curves of a run."""
    check_picture(options.output)
    save_picture(run_of(options).curves(), options.output)
    show(options.output)


def profile(options: argparse.Namespace) -> None:
    """Show the profiles of a run."""
    from nbtrain.base.workspace import display

    for profile in run_of(options).profile():
        show(
            f"{profile}picture: {display(profile.picture)}\n"
            f"timeline: {display(profile.timeline)} (open it in https://ui.perfetto.dev)\n"
        )
