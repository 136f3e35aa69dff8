"""A sweep of 50 generated runs: CPU seconds of its status and of a comparison of all, without pictures.

    python -m tests.benchmarks.sweep_cost [--runs 50] [--rounds 5]

The CPU seconds are those of whole processes, with their imports. One run in ten is active and one is LOST;
the others have ended, one of three after a killed attempt. Each has 150 events of its ranks. Modules are
compiled in advance, as pip does.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from nbtrain.base import files
from nbtrain.base.run_directory.events import EventWriter
from nbtrain.base.run_directory.jobstate import RESTARTING, RUNNING, STARTING, SUCCEEDED
from nbtrain.base.run_directory.records import (
    AttemptRecord,
    DevicePrice,
    Heartbeat,
    JobRecord,
    ProcessIdentity,
    TrainingProgress,
)
from nbtrain.base.run_directory.rundir import SCHEMA_VERSION, RunDir, new_job_id
from nbtrain.config.load import to_yaml
from nbtrain.jobs.supervisor.summary import write_summary
from nbtrain.jobs.sweep.sweep_file import Sweep, SweepRun, read_sweep
from nbtrain.jobs.sweep.sweep_record import SweepRecord, sweep_folder
from nbtrain.planner.plan import plan
from tests.benchmarks.list_runs import cpu_seconds

REPOSITORY = Path(__file__).parents[2]
SWEEP = """
sweep: lr-study
run: gpt-125m
overrides: {{batch.max_steps: 2000}}
grid:
  lr_schedule.lr: {rates}
  model.seed: [1, 2, 3, 4, 5]
"""
PHASES = 150


def read(workspace: Path, runs: int) -> Sweep:
    """Write the sweep's file, and return the sweep."""
    path = workspace / "lr-study.yaml"
    path.write_text(SWEEP.format(rates=[round(1e-4 * (1 + rate), 5) for rate in range(-(-runs // 5))]))
    sweep = read_sweep(path)
    return replace(sweep, runs=sweep.runs[:runs])


def make_run(run: SweepRun, number: int, planned: dict) -> None:
    """Write a run in the form that supervisors and ranks write."""
    directory, now = RunDir.named(run.name), time.time()
    created = now - 7200.0 - 60 * number
    kind = {0: "active", 1: "lost"}.get(number % 10, "ended")
    alive = ProcessIdentity.of(os.getpid())
    assert alive is not None
    gone = replace(alive, start_ticks=alive.start_ticks + 1)
    job = directory.job(new_job_id(created))
    job.make_folders()
    identity = {"schema_version": SCHEMA_VERSION, "run_id": f"id-{number}", "name": run.name, "parent": None}
    files.write_json(directory.run_json, {**identity, "created_at": created})
    files.write_text(directory.config_yaml, to_yaml(run.config))
    files.write_json(directory.plan_json, planned)
    record = JobRecord(job.job_id, f"id-{number}", run.name, RUNNING, created, run.config.world_size)
    record.supervisor = gone if kind == "lost" else alive
    record.labels, record.price = run.config.all_labels, DevicePrice.of_plan(planned)
    ended = created + 3600.0
    attempts = 2 if kind == "ended" and number % 3 == 0 else 1
    events = EventWriter(job, "supervisor")
    lines = []
    for attempt in range(attempts):
        begin = created + 60 + 1000.0 * attempt
        end = begin + 900.0 if attempt < attempts - 1 else ended
        states = [(STARTING, begin), (RUNNING, begin + 60), *([(RESTARTING, end)] if end < ended else [])]
        lines += [(state, moment) for state, moment in states]
        entry = AttemptRecord(attempt, begin, run.config.world_size, run.config.world_size)
        entry.running_at, entry.reached_step = begin + 60, 1000 * (attempt + 1)
        entry.first_step = entry.resumed_from_step = 900 * attempt or None
        if end < ended:
            entry.cause = f"rank 0 was killed by SIGKILL at step {entry.reached_step}"
        if end < ended or kind == "ended":
            entry.ended_at = end
        record.attempts.append(entry)
    for state, moment in lines:
        events.write("state", state, state=state)
        _set_time(events.path, moment)
    rank = EventWriter(job, "rank0")
    for at in range(PHASES):
        name = ("save", "evaluate")[at % 2]
        rank.write("phase", f"{name} took 2.00 s", phase=name, seconds=2.0, step=10 * at)
        _set_time(rank.path, created + 130 + 20.0 * at)
    progress = TrainingProgress(2000, 10**9, 10**9, 10**6, 2.3 + number / 100, 0.7, 1e-4, 5e5, 500.0, 99.0)
    progress.validation_loss = progress.best_validation_loss = 2.4 + number / 100
    beat = Heartbeat(0, attempts - 1, record.supervisor, ended, 2000, "end", ended, progress)
    beat.write(job.heartbeat(0))
    if kind == "ended":
        record.state, record.cause, record.ended_at = SUCCEEDED, "all steps are trained and saved", ended
    record.mark("created_at")
    record.created_at = created
    record.write(job.job_json)
    if kind == "ended":
        write_summary(directory, run.config, record, beat)


def _set_time(path: Path, moment: float) -> None:
    """Set the time of a file's newest event."""
    *before, last = path.read_text().splitlines()
    head, _, tail = last.partition('"time": ')
    files.write_text(path, "\n".join([*before, f'{head}"time": {moment}{tail[tail.index(",") :]}', ""]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write the runs to FOLDER and stop")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = str(options.keep or temporary)
        Path(folder).mkdir(parents=True, exist_ok=True)
        os.environ["NBTRAIN_WORKSPACE"] = folder
        (Path(folder) / "examples").symlink_to(REPOSITORY / "examples")
        sweep = read(Path(folder), options.runs)
        planned = plan(sweep.runs[0].config).to_dict()
        for number, run in enumerate(sweep.runs):
            make_run(run, number, planned)
        names = [run.name for run in sweep.runs]
        record = SweepRecord(sweep.name, str(sweep.path), names, [dict(run.settings) for run in sweep.runs])
        sweep_folder(sweep.name).mkdir(parents=True)
        record.write(sweep_folder(sweep.name) / "sweep.json")
        if options.keep:
            return
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": f"{folder}/compiled"}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        nbtrain = [sys.executable, "-m", "nbtrain.cli"]
        commands = {
            "nbtrain --version": [*nbtrain, "--version"],
            "nbtrain sweep lr-study --status": [*nbtrain, "sweep", sweep.name, "--status"],
            "nbtrain sweep lr-study --status --json": [*nbtrain, "sweep", sweep.name, "--status", "--json"],
            "nbtrain compare -l sweep=lr-study": [*nbtrain, "compare", "-l", f"sweep={sweep.name}"],
            "nbtrain compare -l sweep=lr-study --json": [
                *nbtrain,
                *("compare", "-l", f"sweep={sweep.name}", "--json"),
            ],
        }
        for command in commands.values():
            cpu_seconds(command, environment)
        print(f"{len(names)} runs, CPU seconds of a process, median of {options.rounds}:")
        for name, command in commands.items():
            found = [cpu_seconds(command, environment) for _ in range(options.rounds)]
            print(f"  {name:42} {statistics.median(found):6.3f} s", flush=True)


if __name__ == "__main__":
    main()
