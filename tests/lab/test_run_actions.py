"""The buttons of a run in each state, with tooltips that match."""

from pathlib import Path

import pytest

from nbtrain.base.files import write_json
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.lab.run_actions import SLOTS, actions, off, run_shown
from nbtrain.monitor.run.run_view import RunView
from tests.lab.widgets.fake_run import FakeJob


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=40)
    job.one_step()
    return job


@pytest.mark.parametrize(
    ("state", "asked", "keys"),
    [
        ("RUNNING", None, ["save", "pause", "clone", "stop"]),
        ("QUEUED", None, ["pause", "clone", "stop"]),
        ("RUNNING", "stop", ["clone", "kill"]),
        ("SUSPENDED", "pause", ["resume", "clone", "stop"]),
        ("FAILED", None, ["resume", "clone", "delete"]),
        ("LOST", None, ["resume", "clone", "delete"]),
        ("CANCELLED", None, ["resume", "clone", "delete"]),
        ("SUCCEEDED", None, ["clone", "delete"]),
        ("NEW", None, ["clone", "delete"]),
    ],
)
def test_buttons_follow_the_state(job, state, asked, keys):
    """Each position of the toolbar has either an action or a disabled button, and the actions are in the
    order of the positions.
    """
    found = actions(job.run, state, asked)
    assert [action["key"] for action in found] == keys
    disabled = off(job.run, found, state, asked)
    taken = [slot for action in found for slot, keys in SLOTS.items() if action["key"] in keys]
    assert sorted([*taken, *disabled]) == sorted(SLOTS)
    assert taken == [slot for slot in SLOTS if slot in taken]
    assert all(button["title"].endswith(".") for button in disabled.values())


def test_a_job_that_waits_is_taken_out_of_the_queue(job):
    """Stopping a waiting job removes it from the queue without saving; pausing it keeps it from getting
    devices.
    """
    pause, _, stop = (action["title"] for action in actions(job.run, "QUEUED"))
    assert stop == "Remove the job from the queue."
    assert pause == "Hold the job without devices until Resume puts it back into the queue."
    assert actions(job.run, "RUNNING")[1]["title"].startswith("Save a checkpoint and free the devices;")


def save(run: RunDir, step: int) -> None:
    run.checkpoint(step).mkdir(parents=True, exist_ok=True)
    write_json(run.checkpoint_manifest(step), {"schema_version": 2, "files": {}})


def test_a_paused_job_goes_on_from_what_is_there(job):
    assert actions(job.run, "SUSPENDED")[0]["title"] == "Continue this job from its beginning."
    job.run.checkpoint(1200).mkdir(parents=True)
    assert actions(job.run, "SUSPENDED")[0]["title"].endswith("no checkpoint is complete (global_step1200).")
    save(job.run, 1200)
    assert actions(job.run, "SUSPENDED")[0]["title"].endswith("from the checkpoint of step 1,200.")


def test_a_snapshot_with_its_buttons(job):
    shown = run_shown(RunView(job.run))
    assert (shown["state"], [one["key"] for one in shown["actions"]]) == (
        "RUNNING",
        ["save", "pause", "clone", "stop"],
    )
    assert "after 60 s" in shown["actions"][3]["title"]
    assert shown["off"]["delete"]["title"] == "Stop the job before you delete its run."


def test_resume_and_delete_name_the_checkpoint(job):
    titles = {one["key"]: one for one in actions(job.run, "FAILED")}
    assert titles["resume"]["title"].endswith("It starts at step 0, because no checkpoint was saved.")
    assert titles["delete"]["ask"] == "Delete gpt-fake with all its files and logs? This cannot be undone."
    job.run.checkpoint(1200).mkdir(parents=True)
    (resume,) = (one["title"] for one in actions(job.run, "FAILED") if one["key"] == "resume")
    assert resume.endswith("It will be refused: no checkpoint is complete (global_step1200).")
    text = job.run.config_yaml.read_text()
    job.run.config_yaml.write_text(text.replace("mode: full", "mode: perf"))
    # A resume after mode: perf is refused, however the job ended.
    found = actions(job.run, "FAILED")
    assert [one["key"] for one in found] == ["clone", "delete"]
    assert off(job.run, found, "FAILED")["pause"]["title"].startswith("The last job only measured")
    job.run.config_yaml.write_text(text)
    save(job.run, 1200)
    titles = {one["key"]: one for one in actions(job.run, "FAILED")}
    assert titles["resume"]["title"].endswith("continues from the checkpoint of step 1,200.")
    assert "(the newest is from step 1,200)" in titles["delete"]["ask"]


def test_a_mode_that_saves_nothing_says_so(job):
    text = job.run.config_yaml.read_text()
    job.run.config_yaml.write_text(text.replace("mode: full", "mode: eval"))
    found = actions(job.run, "RUNNING")
    stop = found[-1]
    assert stop["title"] == "End the job. With mode: eval, no checkpoint is saved."
    assert [action["key"] for action in found] == ["clone", "stop"]
    buttons = off(job.run, found, "RUNNING")
    assert buttons["pause"]["title"].startswith("With mode: eval, no checkpoint is saved")
    assert buttons["save"]["title"] == "With mode: eval, no checkpoint is saved."


def test_a_run_that_was_evaluated_before_its_end_can_be_resumed(job):
    """After mode: eval, SUCCEEDED is the end of the training only if the last step is saved; after mode: perf
    it never is.
    """
    text = job.run.config_yaml.read_text()
    job.run.config_yaml.write_text(text.replace("mode: full", "mode: eval"))
    save(job.run, 20)
    resume, *_ = found = actions(job.run, "SUCCEEDED")
    assert resume["key"] == "resume" and "from the checkpoint of step 20" in resume["title"]
    assert "pause" not in off(job.run, found, "SUCCEEDED")
    save(job.run, 40)
    found = actions(job.run, "SUCCEEDED")
    assert off(job.run, found, "SUCCEEDED")["pause"]["title"] == "The run has trained on all its tokens."
    job.run.config_yaml.write_text(text.replace("mode: full", "mode: perf"))
    found = actions(job.run, "SUCCEEDED")
    assert off(job.run, found, "SUCCEEDED")["pause"]["title"].startswith("The last job only measured")
