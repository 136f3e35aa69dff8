"""Deleting a run: what is removed, what is kept, and when it is rejected; no job is started here."""

import dataclasses
import os
import shlex
import time

import pytest

from nbtrain.base import files
from nbtrain.base.errors import JobError
from nbtrain.base.run_directory.records import JobRecord, ProcessIdentity
from nbtrain.base.run_directory.rundir import RunDir, new_job_id
from nbtrain.base.workspace import bundled
from nbtrain.cli import __main__ as cli
from nbtrain.config.yaml_source import to_text
from nbtrain.jobs.control.delete import delete, survey
from tests.messages import lacks


@pytest.fixture
def run(workspace):
    """Create a run that has ended; its checkpoint is a symlink to another disk."""
    run = RunDir.named("run")
    job = run.job(new_job_id())
    job.make_folders()
    files.write_json(run.run_json, {"schema_version": 1, "run_id": "id", "name": "run"})
    JobRecord(job.job_id, "id", "run", "FAILED", time.time(), 1, "it ended").write(job.job_json)
    disk = workspace / "other disk" / "global_step4"
    disk.mkdir(parents=True)
    (disk / "state.pt").write_bytes(bytes(1 << 20))
    run.model.mkdir()
    run.checkpoint(4).symlink_to(disk)
    run.checkpoint(8).mkdir()
    (run.checkpoint(8) / "state.pt").write_bytes(bytes(2 << 20))
    return run


def test_a_run_goes_with_its_files_and_not_with_what_it_links_to(run, workspace):
    """Delete lists and removes the files of the run, but not the targets of its symlinks, and no other
    runs.
    """
    other = RunDir.named("other")
    other.path.mkdir()
    (run.path.parent / ".run.00ff.deleted").mkdir()
    listed = str(survey(run))
    assert listed == (
        "output/run: 1 job, 2 checkpoints, 2.0 MiB\n"
        f"  - model/global_step4 -> {workspace}/other disk/global_step4: only the link is removed"
    )
    (run.export / "step4-hf").mkdir(parents=True)
    listed = listed.replace("2 checkpoints, ", "2 checkpoints, 1 exported model, ")
    assert str(delete(run)) == listed
    assert os.listdir(workspace / "output") == ["other"]
    assert (workspace / "other disk" / "global_step4" / "state.pt").stat().st_size == 1 << 20


def test_what_lies_elsewhere_is_refused(run, workspace):
    """A symlink in the output directory and a run outside of it are rejected."""
    elsewhere = workspace / "elsewhere"
    run.path.rename(elsewhere)
    with pytest.raises(
        JobError, match=r"^elsewhere is not in the output directory output\. Set NBTRAIN_OUTPUT"
    ):
        delete(RunDir(elsewhere))
    run.path.symlink_to(elsewhere)
    with pytest.raises(
        JobError, match=r"^output/run is a link to .*/elsewhere, and nbtrain deletes nothing outside"
    ):
        delete(run)
    run.path.unlink()
    with pytest.raises(JobError, match=r"^output/run: there is no run to delete\."):
        delete(run)
    assert (elsewhere / "run.json").is_file()


@pytest.mark.parametrize(
    ("closed", "mode", "words"),
    [
        (".", 0o755, "run belongs to root, and you are not allowed to remove anything from it. Nothing was "),
        ("model", 0o755, "run/model belongs to root, and you are not allowed to remove anything from it. "),
        ("jobs", 0o700, "run: the run belongs to root, and this user may not act on it: Permission denied."),
        ("model", 0o700, "run/model belongs to root, and you are not allowed to remove anything from it. "),
        (".", 0o700, "run: the run belongs to root, and this user may not act on it: Permission denied."),
    ],
)
def test_a_run_of_another_user_stays(open_output, another_user, run, closed, mode, words):
    """A run of another user is rejected; in a shared directory, it could be renamed but not emptied."""
    for folder in (open_output, run.path, *(path for path in run.path.rglob("*") if path.is_dir())):
        folder.chmod(0o777)
    (run.path / closed).chmod(mode)
    with another_user(), pytest.raises(JobError) as refused:
        delete(run)
    assert words in str(refused.value) and str(refused.value).endswith("Ask root, or use that account.")
    assert os.listdir(open_output) == ["run"]


def test_an_own_folder_that_is_closed_to_writing_is_named_with_its_fix(open_output, another_user, run):
    for path in (open_output, run.path, *run.path.rglob("*")):
        os.chown(path, 65534, 65534, follow_symlinks=False)
    run.checkpoint(8).chmod(0o555)
    with another_user(), pytest.raises(JobError) as refused:
        delete(run)
    shown = shlex.quote(str(run.checkpoint(8)))
    place = f"/run/model/global_step8 belongs to {files.user_name(65534)}"
    assert lacks(refused, place, "Nothing was deleted.", f"`chmod u+rwx {shown}`.") == []
    assert run.exists()


def test_what_a_lost_job_left_on_machines_that_are_gone_is_passed_over_by_force_alone(run, caplog):
    """Files that a lost job left on machines that cannot be reached are ignored only with --force, as the
    message says.
    """
    job = run.newest_job()
    record = JobRecord.read(job.job_json)
    record.state, record.backend = "RUNNING", "hosts"
    record.supervisor = dataclasses.replace(ProcessIdentity.of(os.getpid()), start_ticks=1)
    record.write(job.job_json)
    with pytest.raises(JobError, match=r"config\.yaml.*`nbtrain delete --force run` deletes the run anyway"):
        delete(run)
    assert run.exists()
    delete(run, force=True)
    assert not run.path.exists() and "run: deleted anyway: " in caplog.text


def test_an_active_run_is_refused(run):
    """A run is rejected if its state is active or its supervisor still holds the lock."""
    job = run.newest_job()
    with run.locked(), pytest.raises(JobError, match="a job is active"):
        delete(run)
    record = JobRecord.read(job.job_json)
    record.state, record.supervisor = "RUNNING", ProcessIdentity.of(os.getpid())
    record.write(job.job_json)
    with pytest.raises(JobError) as refused:
        delete(run, force=True)
    assert lacks(refused, "output/run: a job is active.", "`nbtrain cancel run`") == []
    record.state = "SUSPENDED"
    record.write(job.job_json)
    with pytest.raises(
        JobError,
        match=r"^output/run: its job is SUSPENDED \(paused\) and may continue\. .*`nbtrain cancel run`",
    ):
        delete(run)
    assert run.exists()


def test_a_run_whose_files_others_name_is_refused(run, workspace):
    """A run is rejected if other runs or their YAMLs refer to it in any field, unless the other run is being
    deleted itself; --force deletes it anyway.
    """
    config = (
        "data: {sources: [{kind: mock}, {kind: jsonl, path: output/run/export/text.jsonl}]}\nname: run-2\n"
    )
    other = RunDir.named("other")
    other.path.mkdir()
    other.config_yaml.write_text(config)
    training = workspace / "examples" / "megatron-gpt" / "training"
    training.mkdir(parents=True)
    (training / "mine.yaml").write_text(to_text({"start": {"from": f"{run.path}/model/global_step4"}}))
    (training / "torn.yaml").write_text("run: {")
    # An unchanged copy of a shipped example is not the user's.
    finetuning = training.with_name("finetuning")
    finetuning.mkdir()
    shipped = bundled("examples/megatron-gpt") / "finetuning" / "gpt-tiny-instructions.yaml"
    copy = finetuning / shipped.name
    copy.write_bytes(shipped.read_bytes())
    (finetuning / "own.yaml").write_text(to_text({"name": "own", "init_from": "run"}))
    deleted = RunDir(run.path.parent / ".third.00ff.deleted")
    deleted.path.mkdir()
    deleted.config_yaml.write_text(config)
    with pytest.raises(JobError) as refused:
        delete(run)
    first, *references, last = str(refused.value).splitlines()
    assert first.startswith("output/run: ")
    assert references == [
        "  output/other/config.yaml: data.sources.1.path = output/run/export/text.jsonl",
        "  examples/megatron-gpt/finetuning/own.yaml: starts from run",
        f"  examples/megatron-gpt/training/mine.yaml: start.from = {run.path}/model/global_step4",
    ]
    assert lacks(last, "Nothing was deleted.", "`nbtrain delete --force run`") == []
    delete(run, force=True)
    assert not run.path.exists()


def test_the_command_asks_first(run, capsys, monkeypatch):
    """The command asks for confirmation, and without a terminal it fails."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert cli.main(["delete", "run"]) == 2
    assert "cannot ask whether to delete run without a terminal: add --yes." in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda question: "")
    assert cli.main(["delete", "run"]) == 0
    assert capsys.readouterr().out.endswith("Nothing was deleted.\n")
    assert run.exists()
    assert cli.main(["delete", "run", "--yes"]) == 0
    assert capsys.readouterr().out.endswith("run was deleted, which freed 2.0 MiB.\n")
    assert not run.path.exists()


def test_a_damaged_record_is_deleted_by_force_alone(run):
    """If a damaged record makes it impossible to tell whether the job is active, --force is required, as the
    message says.
    """
    run.newest_job().job_json.write_text("{")
    with pytest.raises(
        JobError, match=r"job\.json:1: not JSON.*It is therefore unknown whether a job is active\. If"
    ):
        delete(run)
    assert run.path.is_dir()
    delete(run, force=True)
    assert not run.path.exists()
