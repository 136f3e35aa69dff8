"""Read the observations of a run's newest job from its records: the input of planner/advice/advice.py.

These records are read:

    job.json                 how the newest attempt ended
    exit records             the numbers in an error message about memory
    scalars                  parts of a step, memory and MFU over the last steps
    summary.json             the number of steps
    environment.json         the machine's number of CPU cores
"""

import statistics
import time
from typing import Any

from nbtrain.base import files
from nbtrain.base.hardware.cgroup import usable_cores
from nbtrain.base.run_directory import end_kinds
from nbtrain.base.run_directory.records import ExitRecord
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.config.load import load_resolved
from nbtrain.monitor.run.run_view import RunView
from nbtrain.monitor.status.status_records import job_with_end
from nbtrain.planner.advice.observations import Observations, OutOfMemory, out_of_memory_of
from nbtrain.planner.time.duration import estimate_duration

# Number of last steps that are used. The first steps allocate, compile and choose kernels.
LAST_STEPS = 100


def observe(run: RunDir) -> Observations:
    """Return the observations of a run's newest job. Raises RecordError for a damaged record."""
    config = load_resolved(run.config_yaml)
    view, summary = RunView(run), files.read_json(run.summary_json) or {}
    job = run.newest_job()
    cause = (view.cause or "") if job else ""
    record = job_with_end(job, time.time())[0] if job else None
    reason = record.newest_attempt.reason if record and record.newest_attempt else None
    step = _median(view, "iteration_time")
    memory = _peak(view, "device_memory_bytes")
    fraction = _peak(view, "device_memory_fraction")
    planned = estimate_duration(config, use_measured=False).step
    return Observations(
        state=view.state,
        cause=cause,
        steps=summary.get("steps") or _last(view, "iteration_time"),
        step_seconds=step,
        planned_step_seconds=planned.seconds if planned else None,
        out_of_memory=_out_of_memory(job, cause) if job and reason == end_kinds.DEVICE_MEMORY else None,
        out_of_host_memory=reason == end_kinds.HOST_MEMORY,
        hang=reason in (end_kinds.HANG, end_kinds.TIMEOUT),
        unstable=reason in (end_kinds.UNSTABLE, end_kinds.ROLLBACK),
        loss_spikes=int(_peak(view, "loss_spikes") or 0),
        overflow_steps=int(_peak(view, "overflow_steps") or 0),
        smallest_loss_scale=reason == end_kinds.SMALLEST_LOSS_SCALE,
        data_fraction=_share(view, "data_seconds", step),
        bubble_fraction=_share(view, "pipeline_seconds", step),
        memory_fraction=fraction,
        memory_bytes=int(memory) if memory else None,
        device_bytes=round(memory / fraction) if memory and fraction else None,
        mfu=_median(view, "mfu"),
        cpus=_cpus(job),
        notes=_notes(view),
    )


def _words(job: JobDir) -> str:
    """Return the errors of the newest attempt's ranks, from their exit records."""
    folder = job.path / "exit"
    records = [ExitRecord.read(path) for path in sorted(folder.glob("*.json"))] if folder.is_dir() else []
    known = [record for record in records if record is not None]
    newest = max((record.attempt for record in known), default=0)
    return "\n".join(f"{record.message}\n{record.detail}" for record in known if record.attempt == newest)


def _out_of_memory(job: JobDir, cause: str) -> OutOfMemory:
    return out_of_memory_of(f"{cause}\n{_words(job)}")


def _values(view: RunView, name: str) -> list[float]:
    return [float(value) for value in view.scalars(name).values][-LAST_STEPS:]


def _median(view: RunView, name: str) -> float | None:
    values = _values(view, name)
    return statistics.median(values) if values else None


def _peak(view: RunView, name: str) -> float | None:
    return max((float(value) for value in view.scalars(name).values), default=None)


def _last(view: RunView, name: str) -> int:
    steps = view.scalars(name).steps
    return int(steps[-1]) if len(steps) else 0


def _share(view: RunView, name: str, step: float | None) -> float | None:
    """Return the share of the step time that a part such as "data_seconds" takes; None if it is not measured.

    The share is the part's mean time divided by the mean step time.

    Means are used because waits come in bursts.
    """
    values = _values(view, name)
    whole = _values(view, "iteration_time")
    return sum(values) / len(values) / statistics.fmean(whole) if values and step and sum(whole) else None


def _cpus(job: JobDir | None) -> int | None:
    record: dict[str, Any] = (files.read_json(job.environment_json) if job else None) or {}
    return (record.get("cpu") or {}).get("cores") or usable_cores()


def _notes(view: RunView) -> tuple[str, ...]:
    slow = _median(view, "rank_slowdown")
    if slow and slow > 0.1:
        return (f"the slowest rank computes {slow:.0%} longer than the median rank: check its machine.",)
    return ()
