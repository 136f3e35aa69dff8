"""One rank of `nbtrain calibrate --network`: all-reduce and all-gather over all ranks of a run, by size.

    torchrun ... -m nbtrain.train.calibration.network --seconds 60 output/<run>

The run's backend starts it instead of the trainer, with the same launcher, variables and process group, so
that the collectives use the links that training uses. Rank 0 writes network.json into the job's directory:

    {"nodes", "ranks", "figures": [{"collective", "bytes", "seconds", "spread"}, ...]}
"""

import argparse
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from nbtrain.base import files
from nbtrain.base.process.parent_death import die_with_parent
from nbtrain.base.process.signals import hear_signals
from nbtrain.base.run_directory.outcomes import FAILED, FINISHED
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.config.load import load_resolved
from nbtrain.config.schema import RunConfig
from nbtrain.train.health.attempt import find_job, report_outcome, this_attempt_number
from nbtrain.train.health.heartbeat import HeartbeatWriter

KINDS = ("all_reduce", "all_gather")
CPU_BYTES = (4 << 10, 64 << 10, 1 << 20, 4 << 20, 16 << 20)
GPU_BYTES = (4 << 10, 256 << 10, 4 << 20, 32 << 20, 256 << 20, 1 << 30)


def main(run_path: str, seconds: float) -> int:
    """Measure together with the job's other ranks, and report the outcome in the same way as the trainer."""
    run = RunDir(run_path)
    job = find_job(run)
    rank = int(os.environ.get("RANK", "0"))
    heartbeat = HeartbeatWriter(job, rank, this_attempt_number())
    heartbeat.start()
    try:
        measured = measure(load_resolved(run.config_yaml), job, heartbeat, seconds)
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        report_outcome(FAILED, None, message.partition("\n")[0], traceback.format_exc())
        traceback.print_exc()
        return 1
    finally:
        heartbeat.stop()
    report_outcome(FINISHED, 0, f"measured {measured} collectives")
    return 0


def measure(config: RunConfig, job: JobDir, heartbeat: HeartbeatWriter, seconds: float) -> int:
    """Time every collective at every size and write network.json; return the number of measurements."""
    with heartbeat.phase("start"):
        # Importing torch takes seconds, so the first heartbeat is written before the import.
        from nbtrain.parallel import startup
        from nbtrain.train.calibration.collectives import task
        from nbtrain.train.calibration.stopwatch import Stopwatch

        if "NBTRAIN_EXIT_FD" not in os.environ:
            die_with_parent()
        world = startup.start(config.resources.device, config.parallel.process_group_timeout_seconds)
    sizes = GPU_BYTES if world.device.type == "cuda" else CPU_BYTES
    watch = Stopwatch(world.device, time.monotonic() + seconds, len(KINDS) * len(sizes))
    figures: list[dict[str, Any]] = []
    for kind in KINDS:
        for size in sizes:
            figure = {
                "collective": kind,
                "bytes": size,
                "seconds": watch.seconds(beating(task(kind, size, world.device), heartbeat)),
            }
            figures.append({**figure, "spread": watch.take_spread()})
            if world.rank == 0:
                print(f"{kind} of {size:,} bytes: {figure['seconds']:.6f} s", flush=True)
    if world.rank == 0:
        record = {"nodes": config.resources.nodes, "ranks": world.size, "figures": figures}
        files.write_json(job.network_json, record)
    with heartbeat.phase("end"):
        startup.finish()
    return len(figures)


def beating(run: Callable[[], object], heartbeat: HeartbeatWriter) -> Callable[[], object]:
    """Return `run` as a task that reports progress at each call. Without it, a measurement that takes longer
    than backend.heartbeat_timeout_seconds would be ended as a hang.
    """

    def call() -> object:
        heartbeat.beat()
        return run()

    return call


if __name__ == "__main__":
    hear_signals()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("run")
    options = parser.parse_args()
    sys.exit(main(options.run, options.seconds))
