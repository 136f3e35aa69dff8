"""Runs torch.profiler over a few steps and writes into output/<run>/profiling/.

    rank0.step<N>.trace.json.gz     the timeline of one cycle, for Perfetto or chrome://tracing
    rank0.step<N>.txt, .json, .svg  its summary as a page, as data and as a picture (summary.py)
    rank0.step<N>.memory.pickle     on a GPU, with profile.memory_snapshot: every allocation, for
                                    pytorch.org/memory_viz

N is the last step of the cycle. A cycle is profile.wait_steps, warmup_steps and active_steps, and is repeated
`repeat` times. By default, steps 3 to 5 and 8 to 10 of the job are recorded.
"""

import contextlib
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import profiler

from nbtrain.base.run_directory.events import EventWriter
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.sections.watch_section import ProfileConfig
from nbtrain.train.profile.summary import write_summary

# Maximum number of entries in a memory snapshot: enough for some steps of a large model. The oldest entries
# are dropped first.
SNAPSHOT_ENTRIES = 1_000_000

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def profiling(
    settings: ProfileConfig, run: RunDir, rank: int, first_step: int, events: EventWriter | None
) -> Iterator[Callable[[], None]]:
    """Profile the body if the settings select this rank. Yields a function that must be called after each
    step.
    """
    if not settings.enabled or (rank != 0 and not settings.all_ranks):
        yield lambda: None
        return
    run.profiling.mkdir(parents=True, exist_ok=True)
    on_gpu = torch.cuda.is_available()
    snapshots = Snapshots(settings.memory_snapshot and on_gpu)

    ended = False

    def keep(trace: profiler.profile) -> None:
        if ended:
            # The cycle's last "step" would contain the final validation and save.
            text = "unfinished profile discarded: the run ended during a profiling cycle"
            logger.info("step %6s | %s", f"{first_step + trace.step_num:,}", text)
            return
        started = time.perf_counter()
        step = first_step + trace.step_num
        stem = run.profiling / f"rank{rank}.step{step}"
        snapshots.end(stem)
        first = step - settings.active_steps + 1
        title = f"{run.name}, rank {rank}, steps {first} to {step}"
        path = write_trace(trace, stem, title).relative_to(run.path)
        logger.info("step %6s | profile in %s | %.2f s", f"{step:,}", path, time.perf_counter() - started)
        if events is not None:
            events.write("profile", f"step {step}: profile in {path}", step=step, path=str(path))

    schedule = profiler.schedule(
        wait=settings.wait_steps,
        warmup=settings.warmup_steps,
        active=settings.active_steps,
        repeat=settings.repeat,
    )
    activities = [profiler.ProfilerActivity.CPU, *([profiler.ProfilerActivity.CUDA] if on_gpu else [])]
    with (
        warnings.catch_warnings(),
        profiler.profile(
            activities=activities,
            schedule=schedule,
            on_trace_ready=keep,
            record_shapes=settings.record_shapes,
            profile_memory=settings.profile_memory,
            with_stack=settings.with_stack,
            with_flops=settings.with_flops,
            with_modules=settings.with_modules,
        ) as trace,
    ):
        # torch warns that it clears a cycle's events when the next cycle begins, but by then the cycle has
        # been written.
        warnings.filterwarnings("ignore", "Warning: Profiler clears events")

        def follow() -> None:
            if schedule(trace.step_num) is not profiler.ProfilerAction.NONE:
                snapshots.begin()

        def step() -> None:
            trace.step()
            follow()

        follow()
        try:
            yield step
        finally:
            # On exit, torch calls keep() once more with the events of an unfinished cycle.
            ended = True


def write_trace(trace: profiler.profile, stem: Path, title: str) -> Path:
    """Write the timeline of one cycle and its summary, and return the path of the summary's text."""
    path = stem.with_name(f"{stem.name}.trace.json.gz")
    with _hidden_until_whole(path) as temporary:
        trace.export_chrome_trace(temporary)
    return write_summary(path, title)


@contextlib.contextmanager
def _hidden_until_whole(path: Path) -> Iterator[str]:
    """Yield a temporary name for `path`; the file is renamed when it is complete. torch opens the file itself
    and compresses if the name ends in .gz, so the suffix is kept.
    """
    temporary = path.with_name(f".{path.name}")
    try:
        yield str(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


class Snapshots:
    """Records a GPU allocator's history from a cycle's warm-up to its end."""

    def __init__(self, wanted: bool):
        self._wanted = wanted
        self._recording = False

    def begin(self) -> None:
        """Start recording if recording is enabled and has not started."""
        if self._wanted and not self._recording:
            torch.cuda.memory._record_memory_history(max_entries=SNAPSHOT_ENTRIES)
            self._recording = True

    def end(self, stem: Path) -> None:
        """Write the recorded memory history next to the timeline."""
        if not self._recording:
            return
        with _hidden_until_whole(stem.with_name(f"{stem.name}.memory.pickle")) as temporary:
            torch.cuda.memory._dump_snapshot(temporary)
        torch.cuda.memory._record_memory_history(enabled=None)
        self._recording = False
