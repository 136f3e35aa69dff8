"""torch.profiler over a few steps of rank 0, into output/<run>/profiling/.

    rank0.step<N>.trace.json.gz   the timeline of one cycle, for chrome://tracing or Perfetto
    rank0.step<N>.txt             the same as a table: operators by own time, with shapes and FLOPs

N is the last step of the cycle. The cycle is profile.wait_steps, warmup_steps, active_steps, `repeat` times:
by default steps 3 to 5 and 8 to 10 of the job are kept.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import profiler

from nbtrain import files
from nbtrain.config.schema import ProfileConfig
from nbtrain.rundir import EventWriter, RunDir

TABLE_ROWS = 40


@contextlib.contextmanager
def profiling(
    settings: ProfileConfig, run: RunDir, rank: int, first_step: int, events: EventWriter | None
) -> Iterator[Callable[[], None]]:
    """Profile what happens inside; the caller calls the yielded function after each step.

    On ranks other than 0, and where profiling is off, it does nothing.
    """
    if not settings.enabled or rank != 0:
        yield lambda: None
        return
    run.profiling.mkdir(parents=True, exist_ok=True)

    def keep(trace: profiler.profile) -> None:
        step = first_step + trace.step_num
        path = write_trace(trace, run.profiling, step)
        if events is not None:
            events.write("profile", f"step {step}: profile in {path.relative_to(run.path)}", step=step)

    schedule = profiler.schedule(
        wait=settings.wait_steps,
        warmup=settings.warmup_steps,
        active=settings.active_steps,
        repeat=settings.repeat,
    )
    activities = [profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(profiler.ProfilerActivity.CUDA)
    with (
        warnings.catch_warnings(),
        profiler.profile(
            activities=activities,
            schedule=schedule,
            on_trace_ready=keep,
            record_shapes=True,
            profile_memory=True,
            with_flops=True,
        ) as trace,
    ):
        # Each cycle is written before the next one begins: that its events are cleared then is what we want.
        warnings.filterwarnings("ignore", "Warning: Profiler clears events")
        yield trace.step


def write_trace(trace: profiler.profile, folder: Path, step: int) -> Path:
    """Write the timeline and the table of one cycle; the timeline's path."""
    path = folder / f"rank0.step{step}.trace.json.gz"
    # torch writes by name, and compresses by its ending: a hidden neighbour first, then a rename.
    temporary = path.with_name(f".{path.name}")
    try:
        trace.export_chrome_trace(str(temporary))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    averages = trace.key_averages(group_by_input_shape=True)
    table = averages.table(sort_by=f"self_{device}_time_total", row_limit=TABLE_ROWS)
    files.write_text(folder / f"rank0.step{step}.txt", table)
    return path
