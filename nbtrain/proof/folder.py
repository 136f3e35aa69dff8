"""The run directories of a twin: its own, which is created again every time, and one for each run to compare
it with.

    output/<run>-twin/                an ordinary run directory, with the report in twin.json
    output/<run>-twin/proof/<name>/   further run directories: resumed, exact, rounded, reference, reshaped
    output/.twins/<run>-twin/         empty: the lock that a process holds from the first file to the report

Forked ranks have no supervisor, so the process that starts them writes job.json.
"""

import contextlib
import json
import os
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

from nbtrain.base import files
from nbtrain.base.errors import JobError, SubmitError
from nbtrain.base.process.locks import flock_folder
from nbtrain.base.run_directory.jobstate import FAILED, RUNNING, SUCCEEDED
from nbtrain.base.run_directory.records import JobRecord, ProcessIdentity
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.base.workspace import display
from nbtrain.config.code_file import OMITTED, code_file
from nbtrain.config.load import to_yaml
from nbtrain.config.load.attempt import attempt_record
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.checks.existing_run import HARMLESS_ENTRIES, refuse_foreign
from nbtrain.jobs.request.own_code import tried_before, write_code
from nbtrain.jobs.request.request import active_job
from nbtrain.jobs.submission.job_files import write_identity
from nbtrain.proof.small_sections import NUM_DOCUMENTS

# A key of run.json that marks a folder as a twin, which may be deleted and created again.
TWIN_OF = "twin_of"
# The same for a reproduction (reproduce.py).
REPRODUCTION_OF = "reproduction_of"
WORDS = {TWIN_OF: "twin", REPRODUCTION_OF: "reproduction"}
PROMPTS = 2
# Beside the form's files about twins.
LOCKS = ".twins"


@contextlib.contextmanager
def alone(run: RunDir, word: str = "twin") -> Iterator[None]:
    """Lock a twin, or another kind of proof, until its report is written. Raises SubmitError if another call
    is creating it.

    The run's own lock is not sufficient: submit acquires it for each job, and only one of a twin's runs is
    its newest job.
    """
    folder = run.path.parent / LOCKS / run.name
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = flock_folder(folder, blocking=False)
    if descriptor is None:
        raise SubmitError(
            f"{display(run.path)}: another process or notebook is making this {word}. Wait until it "
            "has ended, or interrupt it where it was started."
        )
    try:
        yield
    finally:
        os.close(descriptor)


def renew(run: RunDir, marker: str, source: str) -> None:
    """Create an empty folder for a proof of the run `source`, with run.json.

    `marker` is TWIN_OF or REPRODUCTION_OF. Raises SubmitError if the folder is another run's, or if a job
    runs in it.
    """
    word = WORDS[marker]
    refuse_foreign(run)
    record = run.record()
    if record is not None and marker not in record:
        raise SubmitError(
            f"{display(run.path)} is an ordinary run, not a {word}: it has been submitted. Rename that run's "
            f"folder, or give {source} another name."
        )
    run.path.mkdir(parents=True, exist_ok=True)
    with run.locked(blocking=False) as taken:
        if not taken or active_job(run):
            raise SubmitError(
                f"{display(run.path)}: a job of this {word} is active. Wait for it, or end it: "
                f"`nbtrain cancel {run.name} --now`."
            )
        for entry in run.path.iterdir():
            if entry.name in HARMLESS_ENTRIES:
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()
        write_identity(run, **{marker: source})


def new_job(run: RunDir, config: RunConfig, twin_of: str, forked_by: int | None = None) -> JobDir:
    """Create a job of a run with forked ranks; job.json names `forked_by` instead of a supervisor.

    `forked_by` is the process that forks the ranks, by default this process. A cancel kills that process, and
    the ranks end with it; this process may be a notebook's kernel.
    """
    run.path.mkdir(parents=True, exist_ok=True)
    run_id = write_identity(run, twin_of=twin_of)
    files.write_text(run.config_yaml, to_yaml(config))
    code = code_file(config)
    # A user who has omitted the trial of this file has omitted it for its proofs too.
    before = tried_before(RunDir.named(twin_of), code)
    write_code(run, config, code, before if before == OMITTED else "")
    job = run.job(run.unused_job_id())
    job.make_folders()
    now = time.time()
    record = JobRecord(job.job_id, run_id, run.name, RUNNING, now, config.world_size, started_at=now)
    for moment in ("created_at", "started_at"):
        record.mark(moment)
    record.supervisor = ProcessIdentity.of(forked_by or os.getpid())
    record.attempts = [attempt_record(config, 0)]
    record.write(job.job_json)
    return job


def end_job(job: JobDir, cause: str | None) -> None:
    """Record how the ranks of new_job() ended, with `cause` if they failed."""
    record = JobRecord.read(job.job_json)
    if record is None:
        raise JobError(
            f"{display(job.job_json)}: is gone: the twin's folder was removed while its ranks trained. Make "
            "the twin again."
        )
    record.state = SUCCEEDED if cause is None else FAILED
    record.cause = cause or "a launch of a twin: its ranks ended normally"
    record.mark("ended_at")
    record.write(job.job_json)


def abandon(run: RunDir, cause: str) -> None:
    """Record the end of the newest job if that has not happened yet: this process may run for days."""
    job = run.newest_job()
    record = JobRecord.read(job.job_json) if job else None
    if job and record and record.state == RUNNING:
        end_job(job, cause)


def write_prompts(folder: Path) -> None:
    """Write prompts with completions, always the same, for the twins of fine-tuning runs."""
    for number in range(PROMPTS):
        path = folder / f"prompts-{number}.jsonl"
        if path.is_file():
            continue
        folder.mkdir(parents=True, exist_ok=True)
        generator = random.Random(number)
        pairs = ((generator.randint(0, 99), generator.randint(0, 99)) for _ in range(NUM_DOCUMENTS))
        made = ({"prompt": f"{one} and {two} are ", "completion": f"{one + two}."} for one, two in pairs)
        lines = [json.dumps(example) for example in made]
        files.write_text(path, "\n".join(lines) + "\n")
