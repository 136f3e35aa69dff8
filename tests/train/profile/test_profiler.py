"""The files of the profiler: a timeline and a summary for each cycle, named after the last step of the
cycle.
"""

import gzip
import json
from pathlib import Path

import pytest
import torch

from nbtrain.base.run_directory.events import EventWriter, read_events
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.sections.watch_section import ProfileConfig
from nbtrain.train.figures.throughput import StepTimer
from nbtrain.train.profile.profiler import SNAPSHOT_ENTRIES, Snapshots, profiling

ENDINGS = ("json", "svg", "trace.json.gz", "txt")


def work(step, steps=12):
    for _ in range(steps):
        with StepTimer(torch.device("cpu")).part("forward"):
            torch.ones(8, 8) @ torch.ones(8, 8)
        step()


@pytest.mark.slow
def test_two_cycles_leave_two_timelines_and_summaries(tmp_path):
    """Two profiler cycles from step 20 on, each with 1 step waiting, 1 warming up and 3 recorded, write files
    at steps 25 and 30.
    """
    run = RunDir(tmp_path / "run")
    job = run.job("20261121-031500-a1b2")
    events = EventWriter(job, "rank0")
    with profiling(ProfileConfig(enabled=True), run, 0, 20, events) as step:
        work(step)
    names = sorted(path.name for path in run.profiling.iterdir())
    assert names == sorted(f"rank0.step{step}.{ending}" for step in (25, 30) for ending in ENDINGS)
    trace = json.loads(gzip.decompress((run.profiling / "rank0.step25.trace.json.gz").read_bytes()))
    kept = [event for event in trace["traceEvents"] if event.get("name") == "aten::mm"]
    assert len(kept) == 3
    # Counted from 0, as in PyTorch's profiler: these are the job's steps 2 to 4.
    steps = [
        event["name"] for event in trace["traceEvents"] if event.get("name", "").startswith("ProfilerStep")
    ]
    assert sorted(steps) == ["ProfilerStep#2", "ProfilerStep#3", "ProfilerStep#4"]
    summary = json.loads((run.profiling / "rank0.step25.json").read_text())
    assert summary["title"] == "run, rank 0, steps 23 to 25"
    assert (summary["steps"], summary["flops"]) == (3, 3 * 2 * 8**3)
    assert set(summary["parts"]) == {"forward"}
    assert "aten::mm [8, 8] x [8, 8]" in (run.profiling / "rank0.step25.txt").read_text()
    assert [(event["step"], event["path"]) for event in read_events(job)] == [
        (25, "profiling/rank0.step25.txt"),
        (30, "profiling/rank0.step30.txt"),
    ]


@pytest.mark.slow
def test_a_cycle_that_the_end_cuts_off_is_not_written(tmp_path):
    """A cycle that is cut off by the end of the run is not written: torch's trace would be incomplete, with
    the final validation as a step.
    """
    run = RunDir(tmp_path / "run")
    with profiling(ProfileConfig(enabled=True), run, 0, 0, None) as step:
        work(step, 8)
    assert sorted(path.name for path in run.profiling.iterdir()) == sorted(
        f"rank0.step5.{ending}" for ending in ENDINGS
    )


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "all_ranks", "written"), [(1, True, True), (1, False, False)])
def test_other_ranks_write_where_they_are_asked_to(tmp_path, rank, all_ranks, written):
    run = RunDir(tmp_path / "run")
    settings = ProfileConfig(enabled=True, all_ranks=all_ranks, wait_steps=0, repeat=1)
    with profiling(settings, run, rank, 0, None) as step:
        work(step, 4)
    expected = {f"rank1.step4.{ending}" for ending in ENDINGS} if written else set()
    assert {path.name for path in run.profiling.glob("*")} == expected


@pytest.mark.slow
def test_fields_reach_the_profiler(tmp_path):
    """The settings for shapes, memory and module stacks reach torch's profiler, on and off."""
    found = []
    for on in (False, True):
        run = RunDir(tmp_path / str(on))
        settings = ProfileConfig(
            enabled=True,
            wait_steps=0,
            active_steps=1,
            repeat=1,
            record_shapes=on,
            profile_memory=on,
            with_stack=on,
            with_flops=on,
        )
        with profiling(settings, run, 0, 0, None) as step:
            work(step, 2)
        trace = json.loads(gzip.decompress((run.profiling / "rank0.step2.trace.json.gz").read_bytes()))
        events = trace["traceEvents"]
        found.append(
            (
                any("Input Dims" in event.get("args", {}) for event in events),
                any(event.get("name") == "[memory]" for event in events),
                any(event.get("cat") == "python_function" for event in events),
            )
        )
    assert found == [(False, False, False), (True, True, True)]


def test_a_snapshot_lasts_from_a_cycles_warm_up_to_its_end(tmp_path, monkeypatch):
    """On a (simulated) GPU, a memory snapshot is recorded from the warm-up of a cycle to its end; it is
    written atomically.
    """
    calls = []

    def dump(path):
        calls.append("dump")
        Path(path).write_text("history")

    monkeypatch.setattr(
        torch.cuda.memory, "_record_memory_history", lambda **settings: calls.append(settings)
    )
    monkeypatch.setattr(torch.cuda.memory, "_dump_snapshot", dump)
    snapshots = Snapshots(True)
    for _ in range(3):
        snapshots.begin()
    snapshots.end(tmp_path / "rank0.step5")
    snapshots.end(tmp_path / "rank0.step6")
    assert calls == [{"max_entries": SNAPSHOT_ENTRIES}, "dump", {"enabled": None}]
    assert [path.name for path in tmp_path.iterdir()] == ["rank0.step5.memory.pickle"]
    calls.clear()
    Snapshots(False).begin()
    assert calls == []


def test_runs_without_profile_write_nothing(tmp_path):
    """Without a profile section, no profile is written."""
    run = RunDir(tmp_path / "run")
    with profiling(ProfileConfig(), run, 0, 0, None) as step:
        step()
    assert not run.profiling.exists()
