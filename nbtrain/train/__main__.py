"""One rank of a training run.

    torchrun --nproc-per-node 2 -m nbtrain.train output/<run>

The job and the attempt come from NBTRAIN_JOB and NBTRAIN_ATTEMPT; without these variables, the rank belongs
to the run's newest job and to attempt 0. Exit code 0 means that the run finished, that it was stopped on
request or by a limit, or that the supervisor is to roll it back.
"""

import contextlib
import json
import logging
import os
import sys
import time
import traceback

from nbtrain.base.errors import NbtrainError, RollbackError
from nbtrain.base.process.garbage import kept_from_the_collector
from nbtrain.base.process.parent_death import die_with_parent
from nbtrain.base.process.signals import hear_signals
from nbtrain.base.run_directory.events import EventWriter
from nbtrain.base.run_directory.outcomes import FAILED, ROLLBACK
from nbtrain.base.run_directory.records import TrainingProgress
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.config.load import load_resolved
from nbtrain.config.load.attempt import attempt_config
from nbtrain.train.health.attempt import find_job, report_outcome, this_attempt, this_attempt_number
from nbtrain.train.health.heartbeat import HeartbeatWriter


def main(run_path: str) -> int:
    heartbeat = None
    try:
        run = RunDir(run_path)
        job = find_job(run)
        rank, attempt = int(os.environ.get("RANK", "0")), this_attempt_number()
        heartbeat = HeartbeatWriter(job, rank, attempt)
        heartbeat.start()
        word, limit = train(run, job, heartbeat)
    except RollbackError as error:
        first, last = error.positions
        detail = json.dumps({"step": error.step, "first": first, "last": last})
        report_outcome(ROLLBACK, error.step, str(error), detail)
        return error.exit_code
    except Exception as error:
        step = heartbeat.step if heartbeat else None
        known = isinstance(error, NbtrainError)
        message = str(error) if known else f"{type(error).__name__}: {error}"
        detail = traceback.format_exc()
        # Report to the supervisor first: on a full disk, writing to the log fails, and that failure would
        # hide the original error.
        named = type(error).__name__ if known else ""
        report_outcome(FAILED, step, message.partition("\n")[0], message if known else detail, named)
        with contextlib.suppress(OSError):
            print(f"{type(error).__name__}: {error}" if known else detail, file=sys.stderr, flush=True)
        return getattr(error, "exit_code", 1)
    finally:
        if heartbeat is not None:
            heartbeat.stop()
    report_outcome(word, heartbeat.step, f"{word} at step {heartbeat.step}", limit)
    return 0


def train(run: RunDir, job: JobDir, heartbeat: HeartbeatWriter) -> tuple[str, str]:
    """Run a rank from start to end; return its outcome (FINISHED or STOPPED) and the limit that stopped the
    run, "" if none did.
    """
    config = attempt_config(load_resolved(run.config_yaml), this_attempt(run))
    level = logging.INFO if heartbeat.rank == 0 else logging.WARNING
    # Ranks may be in different time zones.
    logging.Formatter.converter = time.gmtime
    form = "%(asctime)s UTC %(message)s"
    logging.basicConfig(level=level, format=form, datefmt="%H:%M:%S", stream=sys.stdout)
    if heartbeat.rank == 0:
        heartbeat.events = EventWriter(job, "rank0")
        heartbeat.progress = TrainingProgress(config.train_steps, config.train_tokens)
        heartbeat.progress.target_tokens = config.target_tokens

    with heartbeat.phase("start"):
        # Importing torch takes seconds, so the first heartbeat is written before the import.
        with kept_from_the_collector():
            from nbtrain.train.requests import Requests

            # From here on, SIGTERM is a request to stop and no longer ends the rank at once.
            requests = Requests(job, heartbeat.rank)
            from nbtrain.checkpoint.files.torch_files import written_bytes
            from nbtrain.parallel import startup
            from nbtrain.train.build import refuse_unsupported
            from nbtrain.train.health.collectives import CollectiveWatch
            from nbtrain.train.trainer import train_run

        refuse_unsupported(config)
        if "NBTRAIN_EXIT_FD" not in os.environ:
            die_with_parent()
        if "anomaly" in config.backend.debug:
            import torch

            torch.autograd.set_detect_anomaly(True)
        world = startup.start(config.resources.device, config.parallel.process_group_timeout_seconds)
        heartbeat.written = written_bytes
        heartbeat.collectives = CollectiveWatch()
        heartbeat.collectives.install()
    try:
        result = train_run(run, config, world, requests, heartbeat)
    except RollbackError:
        # Every rank has seen the bad step, so all ranks shut down in an orderly way, as at the end of a run.
        startup.finish()
        raise
    with heartbeat.phase("end"):
        startup.finish()
    return result, requests.limit


if __name__ == "__main__":
    hear_signals()
    if len(sys.argv) != 2:
        sys.exit("usage: torchrun --nproc-per-node N -m nbtrain.train output/<run>")
    sys.exit(main(sys.argv[1]))
