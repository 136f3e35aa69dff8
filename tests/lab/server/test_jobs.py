"""The job page, which the server caches for a short time."""

import json
from pathlib import Path

import pytest

from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.lab.server import jobs
from tests.lab.widgets.fake_run import FakeJob


def test_a_page_that_is_kept_is_not_given_after_the_jobs_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the end of a job, a cached page is not returned any more, because a panel requests the page once
    at the end.
    """
    monkeypatch.setenv("NBTRAIN_OUTPUT", str(tmp_path))
    monkeypatch.setattr(jobs.PAGES, "seconds", 10.0)
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=4)
    job.one_step()

    def page() -> dict:
        found = json.loads(jobs._page("gpt-fake", None))
        return {"active": found["active"], **dict(found["basics"])}

    first = page()
    job.one_step()
    assert page() == first
    assert first["active"] and first["state"] == "RUNNING" and "ended" not in first
    job.finish("SUCCEEDED", "all tokens are done")
    last = page()
    assert not last["active"] and last["state"].startswith("SUCCEEDED") and "ended" in last
