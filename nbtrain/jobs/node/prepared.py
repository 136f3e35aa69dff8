"""Create a dry run's job inside its pods or allocation: the first process writes the run directory.

Environment variables in the manifest or batch script contain the resolved configuration, the run id, and the
Python file that `code` names. They are ignored once job.json exists.
"""

import os
import time
from typing import TYPE_CHECKING

from nbtrain.base.errors import JobError
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.config.code_file import RUN_CODE
from nbtrain.config.load.one_line import RUN_ID, RUN_YAML, from_one_line

if TYPE_CHECKING:
    from nbtrain.jobs.node.agent import Leaving

POLL_SECONDS = 0.2


def prepared(job: JobDir, number: int, leaving: "Leaving") -> bool:
    """Write the job of a dry run's manifest on node 0; on other nodes, wait until node 0 has written it.

    Does nothing if the manifest's variables are not set or the job is already written. Returns False if this
    process receives a signal to exit meanwhile; otherwise True. Raises ConfigError and SubmitError as
    submit() does, and JobError if node 0 does not write the job in time.
    """
    text, run_id = os.environ.pop(RUN_YAML, ""), os.environ.pop(RUN_ID, "")
    if not text or job.job_json.is_file():
        os.environ.pop(RUN_CODE, "")
        return True
    # Imported here because agents of other jobs do not need it.
    from nbtrain.jobs.submission.submit import prepare_job

    config = from_one_line(text, RUN_YAML)
    if number == 0:
        prepare_job(config, job, run_id)
    # From now on, the run's copy of the file is used.
    os.environ.pop(RUN_CODE, "")
    if number == 0:
        return True
    seconds = config.backend.node_timeout_seconds
    deadline = time.monotonic() + seconds
    while not job.job_json.is_file():
        if leaving.signal is not None:
            return False
        if time.monotonic() > deadline:
            raise JobError(
                f"{job.job_json}, which node 0 writes, does not exist after {seconds:g} s "
                "(backend.node_timeout_seconds). See the log of node 0's pod for the reason; if node 0 has "
                "written the file, put the output folder on a volume that all pods mount."
            )
        time.sleep(POLL_SECONDS)
    return True


def prepared_in_allocation(job: JobDir) -> str:
    """Write the job of a dry run's batch script, and redirect this process's output to supervisor.log.

    Does nothing if the script's variables are not set. If another allocation already runs the job, returns a
    sentence that says so, and this process must exit; otherwise returns "". Raises ConfigError and
    SubmitError as submit() does.
    """
    text, run_id = os.environ.pop(RUN_YAML, ""), os.environ.pop(RUN_ID, "")
    if not text:
        return ""
    from nbtrain.jobs.attempt.backend import backend_of
    from nbtrain.jobs.submission.submit import prepare_job

    config = from_one_line(text, RUN_YAML)
    # If the allocation was requeued or the same file was started twice, the job is already written.
    if not job.job_json.is_file():
        prepare_job(config, job, run_id)
    os.environ.pop(RUN_CODE, "")
    if words := backend_of(config.backend.kind).taken_elsewhere(job, run_id):
        return f"job {job.job_id} of {config.name} is already running: {words}"
    print(f"job {job.job_id} of {config.name}: the output continues in {job.supervisor_log}", flush=True)
    log = os.open(job.supervisor_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    return ""
