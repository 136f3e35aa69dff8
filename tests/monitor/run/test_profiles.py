"""A run's profiles, their order, and how they are displayed."""

import pytest

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.monitor.run.profiles import profiles


def test_profiles_by_step_and_rank(tmp_path):
    run = RunDir(tmp_path / "run")
    run.profiling.mkdir(parents=True)
    for rank, step in ((1, 5), (0, 10), (0, 5)):
        stem = run.profiling / f"rank{rank}.step{step}"
        files.write_text(stem.with_name(f"{stem.name}.txt"), f"page of {rank} at {step}\n")
        files.write_text(stem.with_name(f"{stem.name}.svg"), f"<svg><text>{rank} {step}</text></svg>")
        files.write_json(stem.with_name(f"{stem.name}.json"), {"seconds": step / 10, "words": ["a < b"]})
    files.write_text(run.profiling / "rank0.notes.txt", "none of ours")
    found = profiles(run)
    assert [(profile.step, profile.rank) for profile in found] == [(5, 0), (5, 1), (10, 0)]
    assert repr(found) == "page of 0 at 5\n\npage of 1 at 5\n\npage of 0 at 10"
    assert found[2].data == {"seconds": 1.0, "words": ["a < b"]}
    assert found[0].timeline.name == "rank0.step5.trace.json.gz"
    shown = found._repr_html_()
    assert shown.count("<svg>") == 3 and shown.count("<details open>") == 1
    assert shown.count(">a &lt; b</li>") == 3


def test_a_run_without_profiles_says_how_to_make_one(tmp_path):
    with pytest.raises(DataError, match=r"profile\.enabled=true"):
        profiles(RunDir(tmp_path / "run"))
