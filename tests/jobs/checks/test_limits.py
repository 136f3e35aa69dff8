"""The gate at every way in: no run, override, resume, clone or import loosens a workspace's limits."""

import json

import pytest

from nbtrain.base import files
from nbtrain.base.errors import SubmitError
from nbtrain.base.run_directory.jobstate import SUSPENDED
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import workspace as the_workspace
from nbtrain.config.load import load, to_yaml
from nbtrain.foreign.importing import import_files
from nbtrain.jobs.checks.limits import refuse_run_over_limits
from nbtrain.jobs.control.control import ask_pause
from nbtrain.jobs.request import request
from nbtrain.jobs.submission import submit as submit_module
from nbtrain.jobs.submission.clone import clone
from nbtrain.jobs.submission.dry_run import dry_run
from nbtrain.jobs.submission.job_files import make_folder, write_identity
from nbtrain.jobs.submission.submit import refuse_hopeless, resume, submit
from nbtrain.lab.form.answers import answer
from tests.jobs.conftest import FAKE_RANK

LOOSE = {"limits": {"epochs": 1000, "disk_bytes": 10**15, "days": 1000}}


@pytest.fixture
def team(tiny):
    """Return a function that writes the workspace's limits."""
    return lambda text: (the_workspace() / "limits.yaml").write_text(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("disk_bytes: 1000\n", "The workspace limit disk_bytes is exceeded: checkpoints and dataset need"),
        ("epochs: 0.01\n", "The workspace limit epochs is exceeded: the run trains for"),
        ("days: 1.0e-9\n", "The workspace limit days is exceeded: the run takes"),
    ],
)
def test_no_way_in_loosens_the_limits_of_a_workspace(fake, team, text, words, tmp_path):
    """Submission, override, dry run, a file that was exported and imported again, clone and the form."""
    team(text)
    config = load(fake(), LOOSE)
    for attempt in (
        lambda: submit(fake(), command=(FAKE_RANK,)),
        lambda: submit(config, command=(FAKE_RANK,)),
        lambda: refuse_hopeless(config),
    ):
        with pytest.raises(SubmitError, match=words):
            attempt()
    assert not RunDir.named("tiny").exists()
    on_slurm = load(config, {"backend.kind": "slurm", "name": "far"})
    with pytest.raises(SubmitError, match=words):
        dry_run(on_slurm, tmp_path / "job.sh")
    assert not (tmp_path / "job.sh").exists()
    path = the_workspace() / "again.yaml"
    path.write_text(to_yaml(load(config, {"name": "again"})))
    with pytest.raises(SubmitError, match=words):
        submit(load(path), command=(FAKE_RANK,))
    # The form in a notebook, and the server's REST routes, answer by the same function.
    with pytest.raises(SubmitError, match=words):
        answer("submit", {"yaml": "again.yaml", "overrides": None, "typed": {}, "mode": "full"})
    (the_workspace() / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": 1}}))
    imported = import_files([the_workspace() / "ds.json"], None, "again.yaml")
    with pytest.raises(SubmitError, match=words):
        submit(imported.config, command=(FAKE_RANK,))


def test_resume_and_clone_meet_the_limits(fake, team):
    """A run from before the workspace was tighter is refused on resume, and so is its clone."""
    run = RunDir.named("tiny")
    make_folder(run)
    write_identity(run)
    files.write_text(run.config_yaml, to_yaml(fake(steps=10)))
    team("days: 1\nepochs: 0.01\n")
    with pytest.raises(SubmitError, match="The workspace limit epochs is exceeded"):
        resume(run, {"batch.train_tokens": 2560, **LOOSE}, command=(FAKE_RANK,))
    assert run.job_ids() == []
    config = clone(run, "copy", LOOSE)
    with pytest.raises(SubmitError, match="The workspace limit epochs is exceeded"):
        submit(config, command=(FAKE_RANK,))
    assert RunDir.named("copy").job_ids() == []
    with pytest.raises(SubmitError, match="epochs is exceeded"):
        refuse_run_over_limits(config)


def test_a_paused_job_meets_the_limits(fake, team, monkeypatch):
    """A paused job that is resumed unchanged is refused if the workspace was made tighter meanwhile."""
    run = RunDir.named("tiny")
    make_folder(run)
    write_identity(run)
    config = fake(steps=10)
    files.write_text(run.config_yaml, to_yaml(config))
    job = run.job("20260101-120000-abcd")
    job.make_folders()
    JobRecord(job.job_id, "1" * 32, "tiny", SUSPENDED, 0.0, config.world_size).write(job.job_json)
    ask_pause(job, True)
    resumed = []
    monkeypatch.setattr(submit_module, "status_of", lambda job: (SUSPENDED, None))
    monkeypatch.setattr(request, "status_of", lambda job: (SUSPENDED, None))
    monkeypatch.setattr(submit_module, "unpause", resumed.append)
    team("epochs: 0.01\n")
    with pytest.raises(SubmitError, match="The workspace limit epochs is exceeded"):
        resume(run, command=(FAKE_RANK,))
    assert resumed == []
    team("epochs: 1000\n")
    assert resume(run, command=(FAKE_RANK,)).job_id == job.job_id
    assert [job.job_id for job in resumed] == [job.job_id]
