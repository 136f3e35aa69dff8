"""The profiler's files: one timeline and one table a cycle, named by the step that ended it."""

import gzip
import json

import torch

from nbtrain.config.schema import ProfileConfig
from nbtrain.rundir import EventWriter, RunDir, read_events
from nbtrain.train.profiler import profiling


def test_two_cycles_leave_two_timelines_and_tables(tmp_path):
    """Waiting 1, warming up 1, keeping 3, twice, from step 20 on: cycles end at steps 25 and 30."""
    run = RunDir(tmp_path / "run")
    job = run.job("20261121-031500-a1b2")
    events = EventWriter(job, "rank0")
    with profiling(ProfileConfig(enabled=True), run, 0, 20, events) as step:
        for _ in range(12):
            torch.ones(8, 8) @ torch.ones(8, 8)
            step()
    names = sorted(path.name for path in run.profiling.iterdir())
    assert names == [
        "rank0.step25.trace.json.gz",
        "rank0.step25.txt",
        "rank0.step30.trace.json.gz",
        "rank0.step30.txt",
    ]
    trace = json.loads(gzip.decompress((run.profiling / names[0]).read_bytes()))
    kept = [event for event in trace["traceEvents"] if event.get("name") == "aten::mm"]
    assert len(kept) == 3
    assert "aten::mm" in (run.profiling / names[1]).read_text()
    assert [event["step"] for event in read_events(job)] == [25, 30]


def test_other_ranks_and_runs_without_profile_write_nothing(tmp_path):
    """Off by default, and rank 1 never profiles."""
    run = RunDir(tmp_path / "run")
    for settings, rank in ((ProfileConfig(), 0), (ProfileConfig(enabled=True), 1)):
        with profiling(settings, run, rank, 0, None) as step:
            step()
    assert not run.profiling.exists()
