"""`nbtrain runs` over an output directory of 1,000 generated runs: CPU seconds of the whole process.

    python tests/benchmarks/list_runs.py [--runs 1000] [--rounds 7]

The result is compared with the minimum that any listing must do: a Python process that finds the newest job
of each run and loads its job.json with json.load. One run in a hundred is active and one is LOST; both are
read completely. Modules are compiled in advance, as pip does, because compiling them in each call takes 20
ms.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from nbtrain.base import files
from nbtrain.base.run_directory.records import (
    AttemptRecord,
    Heartbeat,
    JobRecord,
    ProcessIdentity,
    Stamp,
    TrainingProgress,
)
from nbtrain.base.run_directory.rundir import SCHEMA_VERSION, RunDir, new_job_id

PEER = """
import json, os, sys
root = sys.argv[1]
found = []
for name in os.listdir(root):
    jobs = f"{root}/{name}/jobs"
    with open(f"{jobs}/{max(os.listdir(jobs))}/job.json") as stream:
        found.append(json.load(stream)["state"])
print(len(found))
"""
CAUSE = (
    "rank 3 failed at step 412: RuntimeError: The size of tensor a (7) must match the size of tensor b (8)"
)


def make_run(root: Path, number: int) -> None:
    """Write a run with two jobs, in the form that supervisors and ranks write."""
    run = RunDir(root / f"gpt-{number % 40}-try-{number:05}")
    alive = ProcessIdentity.of(os.getpid())
    assert alive is not None
    gone = ProcessIdentity(alive.pid, alive.start_ticks + 1, alive.boot_id, alive.host)
    created = time.time() - 3600 * number
    state = {0: "RUNNING", 1: "RUNNING"}.get(number % 100, ("SUCCEEDED", "FAILED", "CANCELLED")[number % 3])
    for age in (7200.0, 0.0):
        job = run.job(new_job_id(created - age))
        job.make_folders()
        now, ended = Stamp.now(), created - age + 3000
        record = JobRecord(job.job_id, "id", run.name, state, created - age, 8)
        record.supervisor = gone if number % 100 == 1 else alive
        record.stamps = {"created_at": now, "started_at": now, "ended_at": now}
        record.attempts = [
            AttemptRecord(one, created - age, 8, 8, ended_at=ended, reached_step=412, cause=CAUSE)
            for one in (0, 1)
        ]
        if state != "RUNNING":
            record.ended_at, record.cause = ended, CAUSE
        record.write(job.job_json)
        progress = TrainingProgress(1000, 10**9, 412 * 10**6, 412_000, 2.34, 0.7, 1e-4, 5e5, 500.0, 99.0, 2.5)
        beat = Heartbeat(0, 1, alive, ended, 412, "end", ended, progress, stamps={"time": now})
        beat.write(job.heartbeat(0))
    identity = {"schema_version": SCHEMA_VERSION, "run_id": "id", "name": run.name, "parent": None}
    files.write_json(run.run_json, {**identity, "created_at": created})


def cpu_seconds(command: list[str], environment: dict[str, str]) -> float:
    """Return the user and system time of a process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "output"
        for number in range(options.runs):
            make_run(root, number)
        environment = {**os.environ, "NBTRAIN_OUTPUT": str(root), "PYTHONPYCACHEPREFIX": f"{folder}/compiled"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        runs = [sys.executable, "-m", "nbtrain.cli", "runs"]
        commands = {
            "json.load of each newest job.json": [sys.executable, "-c", PEER, str(root)],
            "nbtrain runs": runs,
            "nbtrain runs --json": [*runs, "--json"],
            "nbtrain runs --state failed --sort loss": [*runs, "--state", "failed", "--sort", "loss"],
            "nbtrain runs gpt-7-": [*runs, "gpt-7-"],
        }
        for command in commands.values():
            cpu_seconds(command, environment)
        found: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(options.rounds):
            for name, command in commands.items():
                found[name].append(cpu_seconds(command, environment))
    peer, *_ = medians = [statistics.median(times) for times in found.values()]
    print(f"{options.runs:,} runs, CPU seconds of a process, median of {options.rounds}:")
    for name, median in zip(commands, medians):
        print(f"  {name:42} {median:6.3f} s, {median / peer:4.1f} x the peer")


if __name__ == "__main__":
    main()
