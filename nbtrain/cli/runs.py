"""Verbs about runs, from submit to profile."""

import argparse
import contextlib
import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError, JobFailed, SubmitError
from nbtrain.cli.verbs import (
    PICTURE_HELP,
    add_verb,
    check_picture,
    config_verb,
    run_of,
    run_verb,
    save_picture,
)


def add_verbs(under: Any) -> None:
    """Add the verbs below `under`, the subparsers of nbtrain."""
    one = config_verb(under, "submit", submit, "Start a run as a detached job, join it, or resume it.")
    one.add_argument("--wait", action="store_true", help="wait for its end; exit 7 if it fails")
    text = "write Slurm's batch script, Kubernetes manifest or commands for hosts to FILE; submit nothing"
    one.add_argument("--dry-run", type=Path, metavar="FILE", help=text)
    text = "beside other jobs, without a place in this machine's queue: backend.share_devices=true"
    one.add_argument("--now", action="store_true", help=text)
    one = add_verb(under, "runs", runs, "Every run under the output root and its state.")
    one.add_argument("name", metavar="NAME", nargs="?", default="", help="a part of the name, or gpt-*")
    one.add_argument("--state", default="", help="e.g. failed,lost; active and ended stand for several")
    text = "with these labels: team=nlp,stage!=trial; team: any value; !team: without"
    one.add_argument("-l", "--label", action="append", default=[], metavar="RULES", help=text)
    one.add_argument("--archived", action="store_true", help="archived runs too")
    one.add_argument("--newer-than", metavar="AGE", help="submitted within this time: 90s, 30m, 12h, 2d, 1w")
    one.add_argument("--older-than", metavar="AGE", help="submitted before this time")
    one.add_argument("--sort", default="submitted", help="or: ended name state step loss validation restarts")
    one.add_argument("--reverse", action="store_true", help="the other way round")
    one.add_argument("-n", "--limit", type=int, help="at most so many runs")
    one.add_argument("--json", action="store_true", help="as JSON, one run in each line")
    text = "Jobs that have this machine's devices, and those that wait; RUN: change its place."
    one = add_verb(under, "queue", queue, text)
    one.add_argument("run", metavar="RUN", nargs="?", help="a run whose job waits")
    one.add_argument("--priority", type=int, metavar="N", help="of RUN: the greater number comes first")
    one.add_argument("--now", action="store_true", help="start RUN at once, beside other jobs")
    one.add_argument("--restart", action="store_true", help="start all lost jobs of the queue again")
    one.add_argument("--json", action="store_true", help="as JSON")
    one = run_verb(under, "status", status, "State, progress, cause and last events of a run.")
    one.add_argument("--json", action="store_true", help="the snapshot that the panel draws")
    text = "The page of a run's job: conditions, replicas, resources, events."
    one = run_verb(under, "job", job, text)
    one.add_argument("--job", metavar="JOB_ID", help="an earlier job of the run; default: the newest")
    one.add_argument("-n", "--events", type=int, default=20, metavar="N", help="the newest N (20)")
    one.add_argument("--yaml", action="store_true", help="the run's resolved YAML alone")
    one.add_argument("--json", action="store_true", help="everything as JSON, with the curves")
    one.add_argument("-o", "--output", type=Path, metavar="FILE", help=f"resources over time: {PICTURE_HELP}")
    one = run_verb(under, "logs", logs, "A rank's log; of a failed run, first the last traceback.")
    one.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")
    text = "or supervisor, or node0; default: 0, or the rank that failed; with --grep, all"
    one.add_argument("--rank", metavar="RANK", help=text)
    text = "of this job; default: the newest, with --grep all, the newest first"
    one.add_argument("--job", metavar="JOB_ID", help=text)
    one.add_argument("-n", "--lines", type=int, help="default: the last 50; with --grep, all")
    text = "lines with this text, of all jobs, ranks and attempts"
    one.add_argument("--grep", metavar="TEXT", help=text)
    one.add_argument("-i", "--ignore-case", action="store_true", help="with --grep")
    one.add_argument("--json", action="store_true", help="with --grep: each line found as a JSON object")
    run_verb(under, "wait", wait, "Wait for a run's end; exit 7 if it fails.")
    one = run_verb(under, "cancel", cancel, "Ask the job to save a checkpoint and leave.")
    one.add_argument("--now", action="store_true", help="kill it without saving")
    text = "Save, end the ranks and give their devices up; resume goes on with the same job."
    run_verb(under, "pause", pause, text)
    one = run_verb(under, "save", save, "Ask the job for a checkpoint; it goes on.")
    one.add_argument("--wait", type=float, metavar="SECONDS", help="wait so long for it, and say its step")
    text = "Go on from the newest whole checkpoint as a new job; a paused job goes on itself."
    one = run_verb(under, "resume", resume, text)
    text = "e.g. batch.train_tokens=5e6"
    one.add_argument("overrides", nargs="*", default=[], metavar="key=value", help=text)
    one.add_argument("--wait", action="store_true", help="wait for its end")
    one = run_verb(under, "clone", clone, "Submit a run's configuration under a new name.")
    one.add_argument("name", metavar="NAME", help="of the new run")
    one.add_argument("overrides", nargs="*", default=[], metavar="key=value")
    text = "Change a run's labels; without changes, list them."
    one = run_verb(under, "label", label, text)
    one.add_argument(
        "changes", metavar="key=value|key-", nargs="*", default=[], help="set a label; key- removes it"
    )
    one = run_verb(under, "notes", notes, "What is noted about a run; with TEXT, note this instead.")
    one.add_argument(
        "text", metavar="TEXT", nargs="?", help='at most 10,000 characters; "" removes the notes'
    )
    one = run_verb(under, "archive", archive, "Leave a run out of `nbtrain runs`; its files stay.")
    one.add_argument("--undo", action="store_true", help="list it again")
    one = run_verb(under, "clean", clean, "Remove what failed attempts left.")
    one.add_argument("--yes", action="store_true", help="remove; without it the list is only shown")
    one = run_verb(under, "delete", delete, "Delete a run with all its files; asks first.")
    one.add_argument("--yes", action="store_true", help="without asking")
    one.add_argument("--force", action="store_true", help="even if other run YAMLs name its files")
    one = run_verb(under, "curves", curves, "Draw loss, perplexity, learning rate and throughput.")
    one.add_argument("-o", "--output", type=Path, default="curves.png", metavar="FILE", help=PICTURE_HELP)
    text = "What the profiler saw of a run: a page each, and where its pictures are."
    run_verb(under, "profile", profile, text)


def submit(options: argparse.Namespace) -> int:
    from nbtrain.api import verbs as api

    now = ["backend.share_devices=true"] if options.now else []
    config = api.load(options.run, [*options.overrides, *now])
    if options.dry_run is not None:
        if str(options.dry_run) == "-":
            raise ConfigError("--dry-run -: must name a file; nothing was written.")
        # A path on the command line is relative to the current folder.
        path = api.submit(config, dry_run=options.dry_run.absolute())
        hosts = config.backend.kind == "hosts"
        says = "what `nbtrain submit` asks the machines first" if hosts else "what must be there first"
        print(f"{path}: written; nothing was submitted. Its first lines say {says}.")
        return 0
    return _started(api.submit(config), config, options.wait)


def queue(options: argparse.Namespace) -> None:
    from nbtrain.api import verbs as api

    if options.run:
        if options.priority is None and not options.now:
            raise ConfigError("say what to change: --priority N or --now. `nbtrain queue` alone lists all.")
        run_of(options).queue(options.priority, options.now)
    elif options.priority is not None or options.now:
        raise ConfigError("--priority and --now need a RUN: `nbtrain queue RUN --priority 5`.")
    # JSON stands alone on stdout: what is started again is said elsewhere.
    with contextlib.redirect_stdout(sys.stderr if options.json else sys.stdout):
        entries = api.queue(restart=options.restart)
    print(json.dumps(entries.to_dicts(), indent=2) if options.json else entries)


def resume(options: argparse.Namespace) -> int:
    from nbtrain.api import verbs as api

    run = run_of(options).resume(options.overrides)
    return _started(run, api.load(run, options.overrides), options.wait)


def _started(run: Any, asked: Any, wait: bool) -> int:
    """0, or the exit code of the run's end; SubmitError's if an active run keeps settings of its own."""
    from nbtrain.jobs.changes import typed_changes

    print(f"{run.name}: job {run.job.job_id} is {run.state}. Watch it: nbtrain logs -f {run.name}")
    # A run that was started has the settings that were asked for; an active run that was joined has its own.
    if typed_changes(run.config, asked):
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
    from nbtrain.monitor.run_filter import run_filter
    from nbtrain.monitor.runs import list_runs, runs_json, runs_table

    ages = (options.newer_than, options.older_than)
    order = (options.sort, options.reverse, options.limit)
    wanted = run_filter(options.name, options.state, *ages, *order, options.label, options.archived)
    entries = list_runs(wanted=wanted)
    if options.json:
        print(runs_json(entries))
    elif entries or not (every := list_runs()):
        print(runs_table(entries))
    else:
        archived = " --archived" if any(run.archived for run in every) else ""
        print(f"No run matches; `nbtrain runs{archived}` lists all.")


def status(options: argparse.Namespace) -> None:
    from nbtrain.monitor.lines import status_text

    run = run_of(options)
    if run.directory.newest_job():
        # The view reads files alone: have an engine asked before.
        _ = run.state
    print(json.dumps(run.view.snapshot(), indent=2) if options.json else status_text(run.view))


def job(options: argparse.Namespace) -> None:
    from nbtrain.monitor.job_text import job_text
    from nbtrain.monitor.usage_picture import usage_figure

    if options.events < 0:
        raise ConfigError(f"--events {options.events}: must be at least 0.")
    check_picture(options.output)
    page = run_of(options).job_page(options.job)
    if options.json:
        print(json.dumps(page.to_dict(), indent=2, ensure_ascii=False))
    elif options.yaml:
        print(page.yaml, end="")
    else:
        print(job_text(page, options.events))
    if options.output:
        save_picture(usage_figure(page), options.output)
        print(options.output, file=sys.stderr)


def logs(options: argparse.Namespace) -> None:
    from nbtrain.base.jobstate import ACTIVE, FAILED
    from nbtrain.jobs.backends.base import status_of
    from nbtrain.monitor.job_page import job_of
    from nbtrain.monitor.lines import no_log_line, waiting_line
    from nbtrain.monitor.logs import log_path
    from nbtrain.monitor.tracebacks import failed_rank, whose

    run = run_of(options)
    if options.lines is not None and options.lines < 0:
        raise ConfigError(f"--lines {options.lines}: must be at least 0.")
    rank = _rank_of(options.rank, run)
    if options.grep is not None:
        if options.follow:
            raise ConfigError(
                "--follow shows lines as they come, --grep looks through those that are there: leave one out."
            )
        if isinstance(rank, str):
            raise ConfigError("--grep looks through all logs, or with --rank N through those of one rank.")
        found = run.search(options.grep, rank, options.ignore_case, options.job)
        hits = 0
        for hit in islice(found, options.lines):
            hits += 1
            print(json.dumps(vars(hit), ensure_ascii=False) if options.json else hit)
        if not hits and options.lines != 0:
            print(f"{run.name}: no line of its logs holds {options.grep!r}.", file=sys.stderr)
        return
    if options.json:
        raise ConfigError("--json goes with --grep.")
    if options.ignore_case:
        raise ConfigError("--ignore-case goes with --grep.")
    if options.follow and options.job:
        raise ConfigError("--follow is of the newest job: leave --job out.")
    lines = 50 if options.lines is None else options.lines
    job = job_of(run.directory, options.job) if options.job else run.directory.newest_job()
    state, cause = status_of(job) if job else (None, None)
    if rank is None and job and state == FAILED:
        rank = failed_rank(job, cause)
        if traceback := run.traceback(rank, job.job_id):
            which = f"job {job.job_id} of {run.name}" if options.job else run.name
            print(f"{which} is FAILED. The last traceback of {whose(rank)}:\n\n{traceback}\n")
        if isinstance(rank, str):
            print(f"No rank has a log. The end of {whose(rank)}:\n")
        elif traceback or rank:
            print(f"The end of the log of rank {rank}:\n")
    rank = rank or 0
    # What a pod says before its rank has a log is followed from its start.
    if not (options.follow and job and state in ACTIVE and not log_path(job, rank).exists()):
        said = run.log(lines, rank, options.job)
        for line in said:
            print(line)
        if job and not said and lines and not options.follow:
            print(no_log_line(job, rank), file=sys.stderr)
    if options.follow:
        if waits := waiting_line(run.directory, rank):
            print(waits, file=sys.stderr, flush=True)
        for line in run.follow(rank):
            print(line, flush=True)
        print(run.progress_line())


def _rank_of(text: str | None, run: Any) -> int | str | None:
    """What --rank says: a rank of the run, supervisor or a machine's log. Raises ConfigError."""
    from nbtrain.base.amounts import counted
    from nbtrain.monitor.logs import NODE, SUPERVISOR

    if text is None or text == SUPERVISOR or NODE.fullmatch(text):
        return text
    ranks = run.config.world_size
    if not text.isdecimal() or int(text) >= ranks:
        has = f"{run.name} has {counted(ranks, 'rank')}: 0{f' to {ranks - 1}' if ranks > 1 else ''}"
        raise ConfigError(f"--rank {text}: {has}; beside them supervisor and, on several machines, node0.")
    return int(text)


def wait(options: argparse.Namespace) -> int:
    return _waited(run_of(options))


def cancel(options: argparse.Namespace) -> None:
    from nbtrain.base.jobstate import SUCCEEDED
    from nbtrain.jobs.control import advice_to_resume

    run = run_of(options)
    run.stop(now=options.now)
    state = run.state
    print(f"{run.name}: {state}.{'' if state == SUCCEEDED else f' {advice_to_resume(run.directory)}'}")


def pause(options: argparse.Namespace) -> None:
    from nbtrain.base.jobstate import QUEUED
    from nbtrain.jobs.control import pause as pause_job

    run = run_of(options)
    state, cause = pause_job(run.job)
    if state == QUEUED:
        cause = (
            f"its engine is asked to hold it and has not said yet that it does; `nbtrain status {run.name}` "
            f"says when it has{f' ({cause})' if cause else ''}"
        )
    print(f"{run.name}: {state}{f': {cause}' if cause else ''}.")


def save(options: argparse.Namespace) -> None:
    run = run_of(options)
    step = run.save(options.wait)
    print(f"{run.name}: {'asked to save at the next step' if step is None else f'saved at step {step:,}'}.")


def label(options: argparse.Namespace) -> None:
    from nbtrain.base.terminal import printable
    from nbtrain.monitor.notes import label_changes

    run, changes = run_of(options), label_changes(options.changes)
    labels = run.label(changes) if changes else run.labels
    for key, value in sorted(labels.items()):
        print(printable(f"{key}={value}"))
    if not labels:
        print(f"{run.name} has no labels.")


def notes(options: argparse.Namespace) -> None:
    from nbtrain.base.terminal import printable

    run = run_of(options)
    if options.text is not None:
        run.note(options.text)
    print(printable(run.notes) or f"{run.name} has no notes.")


def archive(options: argparse.Namespace) -> None:
    from nbtrain.base.jobstate import ACTIVE

    run = run_of(options)
    run.archive(not options.undo)
    if options.undo:
        print(f"{run.name}: listed again.")
        return
    active = run.directory.newest_job() and run.state in ACTIVE
    until = " Until its job ends it is still listed." if active else ""
    print(f"{run.name}: archived; `nbtrain runs --archived` lists it.{until}")


def clean(options: argparse.Namespace) -> None:
    found = run_of(options).clean(options.yes)
    print(*found or ["Nothing to clean."], sep="\n")
    if found and not options.yes:
        print("Nothing was removed; add --yes to remove these.")


def delete(options: argparse.Namespace) -> None:
    from nbtrain.base import amounts
    from nbtrain.jobs.delete import delete as delete_run
    from nbtrain.jobs.delete import survey

    run = run_of(options)
    print(survey(run.directory, options.force))
    if not options.yes:
        if not sys.stdin.isatty():
            raise ConfigError(f"nobody is here to be asked whether {run.name} is to be deleted: add --yes.")
        try:
            answer = input(f"Delete {run.name} with all these files? [y/N] ")
        except EOFError:  # Ctrl-D
            print()
            answer = ""
        if answer.strip().lower() not in ("y", "yes"):
            print("Nothing was deleted.")
            return
    gone = delete_run(run.directory, options.force)
    print(f"{run.name} is deleted; {amounts.size(gone.size_bytes)} are free again.")


def curves(options: argparse.Namespace) -> None:
    check_picture(options.output)
    save_picture(run_of(options).curves(), options.output)
    print(options.output)


def profile(options: argparse.Namespace) -> None:
    from nbtrain.base.workspace import display

    for one in run_of(options).profile():
        print(
            f"{one}picture: {display(one.picture)}\n"
            f"timeline: {display(one.timeline)} (https://ui.perfetto.dev)\n"
        )
