"""The run directories of a twin: the twin's own, and one for each run that it is compared with.

    output/<run>-twin/                an ordinary run directory, with the report in twin.json
    output/<run>-twin/proof/<name>/   the compared runs: resumed, exact, rounded, reference, reshaped
    output/.twins/<run>-twin/         an empty folder, locked by the process that creates the twin

Forked ranks have no supervisor, so the process that starts them writes job.json. A reproduction
(reproduce.py) has a run directory and a lock of the same kind.
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

# Key in run.json that marks a folder as a twin, which may be deleted and created again.
TWIN_OF = "twin_of"
# Key in run.json that marks a folder as a reproduction (reproduce.py).
REPRODUCTION_OF = "reproduction_of"
WORDS = {TWIN_OF: "twin", REPRODUCTION_OF: "reproduction"}
PROMPTS = 2
# The launcher form stores its files about twins in the same folder.
LOCKS = ".twins"


@contextlib.contextmanager
def alone(run: RunDir, word: str = "twin") -> Iterator[None]:
    """Lock the folder of a twin or reproduction inside the `with` block.

    `word` is "twin" or "reproduction", for the message. Raises SubmitError if another process has locked the
    folder. The lock of the run directory is not enough, because submit acquires that lock for each job, and a
    twin consists of several jobs in several directories.
    """
    folder = run.path.parent / LOCKS / run.name
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = flock_folder(folder, blocking=False)
    if descriptor is None:
        raise SubmitError(
            f"{display(run.path)}: another process or notebook is creating this {word}. Wait until it "
            "has finished, or interrupt it where it was started."
        )
    try:
        yield
    finally:
        os.close(descriptor)


def renew(run: RunDir, marker: str, source: str) -> None:
    """Empty or create the folder for a twin or reproduction of the run `source`, and write its run.json.

    `marker` is TWIN_OF or REPRODUCTION_OF. Raises SubmitError if the folder belongs to another run, or if a
    job is active in it.
    """
    word = WORDS[marker]
    refuse_foreign(run)
    record = run.record()
    if record is not None and marker not in record:
        raise SubmitError(
            f"{display(run.path)} is not a {word} but an ordinary run that was submitted. Rename that "
            f"folder, or give {source} another name."
        )
    run.path.mkdir(parents=True, exist_ok=True)
    with run.locked(blocking=False) as taken:
        if not taken or active_job(run):
            raise SubmitError(
                f"{display(run.path)}: a job of this {word} is active. Wait for it, or run "
                f"`nbtrain cancel {run.name} --now` to end it."
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
    """Create a job whose ranks are forked. Its job.json names the forking process instead of a supervisor.

    `forked_by` is the id of that process, by default this process. Canceling the job kills the process, and
    the ranks end with it. Pass `forked_by` if this process must survive, such as a notebook's kernel.
    """
    run.path.mkdir(parents=True, exist_ok=True)
    run_id = write_identity(run, twin_of=twin_of)
    files.write_text(run.config_yaml, to_yaml(config))
    code = code_file(config)
    # If the user skipped the trial of the run's code file, skip the trial for its proofs too.
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
    """Record how the ranks of a job from new_job() ended: `cause` if they failed, None if they succeeded."""
    record = JobRecord.read(job.job_json)
    if record is None:
        raise JobError(
            f"{display(job.job_json)} is missing: the twin's folder was deleted while its ranks were "
            "training. Create the twin again."
        )
    record.state = SUCCEEDED if cause is None else FAILED
    record.cause = cause or "the forked ranks of a twin ended normally"
    record.mark("ended_at")
    record.write(job.job_json)


def abandon(run: RunDir, cause: str) -> None:
    """Record that the newest job failed with `cause`, if the record says that the job is still running.

    Otherwise the job would look active as long as this process lives, which may be days.
    """
    job = run.newest_job()
    record = JobRecord.read(job.job_json) if job else None
    if job and record and record.state == RUNNING:
        end_job(job, cause)


def write_prompts(folder: Path) -> None:
    """Write the prompts and completions for twins of fine-tuning runs. Their content is always the same."""
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
