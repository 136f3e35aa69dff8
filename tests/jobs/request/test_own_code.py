"""The file of `code` in a submission: tried, recorded, copied, and bound once the run has trained."""

import json
import os
import re

import pytest

import nbtrain as nb
from nbtrain.base import files
from nbtrain.base.errors import CodeError, ConfigError, SubmitError
from nbtrain.base.run_directory.records import JobRecord, ProcessIdentity
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import bundled
from nbtrain.config.arithmetic.parameters import count_layers, count_parameters, count_stage_parameters
from nbtrain.config.code_file import OMITTED, RUN_CODE
from nbtrain.config.load import load, load_resolved
from nbtrain.config.load.edits import with_values
from nbtrain.jobs.attempt.backend import backend_of
from nbtrain.jobs.backends.local import LocalBackend
from nbtrain.jobs.code_start import BOUNDS, DATASET, START, code_text, start_code
from nbtrain.jobs.node.agent import Leaving
from nbtrain.jobs.node.prepared import prepared
from nbtrain.jobs.request.own_code import submitted_path
from nbtrain.jobs.submission.dry_run import request_text
from nbtrain.jobs.submission.submit import prepare_job, resume, submit
from nbtrain.jobs.sweep.drive import drive
from nbtrain.jobs.sweep.sweep_file import read_sweep
from nbtrain.monitor.runs.compare import compared
from nbtrain.planner.plan import plan
from tests.jobs.submission.test_submit import end

SCALARS = "def scalars(step):\n    return {'twice': 2 * step}\n"


@pytest.fixture
def tried(monkeypatch):
    """Start no process; return the requests that a trial would send to the GPU side."""
    requests = []

    def answer(module, request):
        requests.append(request)
        yield {"kind": "tried"}

    monkeypatch.setattr("nbtrain.jobs.request.own_code.stream", answer)

    def become_the_supervisor(backend, job):
        record = JobRecord.read(job.job_json)
        record.state, record.supervisor = "RUNNING", ProcessIdentity.of(os.getpid())
        record.write(job.job_json)

    monkeypatch.setattr(LocalBackend, "submit", become_the_supervisor)
    return requests


@pytest.fixture
def own(tiny, workspace, tried):
    """Return a function that creates the tiny run with a file of its own in the workspace."""
    (workspace / "my_code.py").write_text(SCALARS)
    return lambda **overrides: tiny(code="my_code.py", **overrides)


def trained(job, state="FAILED"):
    """End a job that has made a step."""
    end(job, state, step=3)
    return job.run


def test_the_file_is_tried_recorded_and_copied(own, tried, workspace):
    config = own()
    job = submit(config)
    record = files.read_json(job.run.own_code_json)
    assert len(tried) == 1 and tried[0]["path"] == str(workspace / "my_code.py")
    assert (job.run.own_code / "my_code.py").read_text() == SCALARS
    assert record["tried"] == "passed" and record["functions"] == ["scalars"]
    assert record["sha256"] == files.sha256_of(workspace / "my_code.py")
    assert files.read_json(job.environment_json)["code_sha256"] == record["sha256"]
    # The same file is not tried again.
    trained(job)
    resume(job.run)
    assert len(tried) == 1


def test_a_trial_that_is_omitted_is_recorded(own, tried):
    run = nb.submit(own(), try_code=False)
    assert not tried and files.read_json(run.directory.own_code_json)["tried"] == OMITTED
    # Nobody is there to omit it again when a lost job is resumed after a reboot.
    trained(run.directory.newest_job())
    resume(run.directory)
    assert not tried and files.read_json(run.directory.own_code_json)["tried"] == OMITTED


def test_an_error_of_the_trial_starts_nothing(own, monkeypatch):
    def answer(module, request):
        raise CodeError("my_code.py:2, scalars: NameError: name 'stepp' is not defined.")
        yield

    monkeypatch.setattr("nbtrain.jobs.request.own_code.stream", answer)
    with pytest.raises(CodeError, match=r"my_code\.py:2"):
        submit(own())
    assert not RunDir.named("tiny").exists()


def test_a_problem_that_needs_no_trial_is_refused_with_all_others(own, workspace, tried):
    (workspace / "my_code.py").write_text("def scalar(step):\n    return {}\n")
    with pytest.raises(
        SubmitError,
        match=r"my_code.py:1: (.|\n)*scalar is not one of the functions (.|\n)*Nearest: scalars",
    ):
        submit(own())
    found = nb.check(own())
    assert not found.works and any(finding.place == "my_code.py:1" for finding in found.findings)
    assert not tried


def test_a_file_that_has_changed_is_refused_once_the_run_has_trained(own, workspace):
    run = trained(submit(own()))
    (workspace / "my_code.py").write_text(SCALARS.replace("2 *", "3 *"))
    for again in (lambda: resume(run), lambda: submit(own())):
        with pytest.raises(SubmitError) as raised:
            again()
        said = str(raised.value)
        assert "code: my_code.py has changed since output/tiny was submitted, first in line 2" in said
        assert "To restore the file, run `cp output/tiny/own_code/my_code.py my_code.py`" in said
        assert "`nbtrain clone tiny NEWNAME`" in said and "init_from=tiny" in said
    (workspace / "my_code.py").write_text(SCALARS)
    assert resume(run).job_id in run.job_ids()


def test_a_file_that_is_gone_is_read_from_the_run(own, workspace):
    """The run directory is enough to resume a run."""
    run = trained(submit(own()))
    (workspace / "my_code.py").unlink()
    resume(run)
    assert (run.own_code / "my_code.py").read_text() == SCALARS
    assert load_resolved(run.config_yaml).code == "my_code.py"


def test_a_sweep_prepares_no_data_for_a_dataset_of_ones_own(own, workspace, monkeypatch):
    """Only the ranks read its samples; prepare() refuses such a run."""
    (workspace / "my_code.py").write_text("def dataset(split):\n    return None\n")
    ready = []

    def drive(sweep, prepare, **_):
        for run in sweep.runs:
            prepare(run)
            ready.append(run.name)
        raise InterruptedError

    monkeypatch.setattr("nbtrain.jobs.sweep.drive.drive", drive)
    overrides = {"code": "my_code.py", "data.sources": [], "data.split": "949,50,1"}
    file = {"sweep": "sums", "run": "tiny.yaml", "overrides": overrides, "grid": {"model.seed": [1, 2]}}
    with pytest.raises(InterruptedError):
        nb.sweep(file)
    assert len(ready) == 2


def test_a_sweep_tries_a_file_once_and_pins_it(own, tried, workspace):
    """Runs that differ in what no trial reads share one; a file that changes is refused from then on."""
    own()
    path = workspace / "sweep.yaml"
    grid = {"lr_schedule.lr": [1e-3, 2e-3], "model.seed": [1, 2]}
    file = {"sweep": "rates", "run": "tiny.yaml", "overrides": {"code": "my_code.py"}, "grid": grid}
    path.write_text(json.dumps({**file, "at_once": 4}))

    def interrupt(turn):
        raise InterruptedError

    with pytest.raises(InterruptedError):
        drive(read_sweep(path), turn_done=interrupt)
    runs = [RunDir.named(run.name) for run in read_sweep(path).runs]
    assert len(tried) == 1
    assert [files.read_json(run.own_code_json)["tried"] for run in runs] == ["passed"] * 4
    (workspace / "my_code.py").write_text(f"{SCALARS}\n")
    with pytest.raises(
        ConfigError,
        match=r"sweep\.yaml: code = .*my_code\.py has changed since the sweep was first started: its "
        r"SHA-256 is .* same file",
    ):
        drive(read_sweep(path), turn_done=interrupt)


def test_a_plan_counts_the_blocks_that_the_trial_has_counted(own, tried, workspace, monkeypatch):
    """Before, it counts nbtrain's own block and says so; the plan that is recorded has the counted ones."""
    (workspace / "my_code.py").write_text("def layer(config, index, parts):\n    return parts.mlp()\n")
    config = own()
    (before,) = [found for found in plan(config).findings if found.rule == "own_blocks_are_counted"]
    assert before.level == "warning" and "have not been counted yet" in before.message
    ours = count_parameters(config)
    block = {"sharded": 300, "whole": 30, "sharded_matrices": 280, "whole_matrices": 0}
    block |= {"largest_sharded": 200, "largest_whole": 20, "tensors": 5}
    answer = {"kind": "tried", "own_block": block}
    monkeypatch.setattr("nbtrain.jobs.request.own_code.stream", lambda module, request: iter([answer]))
    job = submit(config)
    (after,) = [found for found in plan(config).findings if found.rule == "own_blocks_are_counted"]
    assert after.level == "note" and "Each block has 330 parameters" in after.message
    of_blocks = ours.total - count_layers(config.shape, 0, first=True, last=True, tensor=1).total
    counted = ours.total - of_blocks + 330 * config.model.num_layers
    assert count_parameters(config).total == counted
    assert files.read_json(job.run.plan_json)["parameters"]["total"] == counted
    split = with_values(config, {"parallel.tensor_parallel_size": 2})
    assert count_stage_parameters(split, 0).mlp == config.model.num_layers * 180


def test_a_reproduction_is_trained_with_the_copy_if_the_file_has_changed_or_is_gone(own, workspace):
    config = own()
    run = trained(submit(config))
    assert submitted_path(run, config) == "my_code.py"
    (workspace / "my_code.py").write_text(f"{SCALARS}\n")
    assert submitted_path(run, config) == "output/tiny/own_code/my_code.py"
    (workspace / "my_code.py").unlink()
    assert submitted_path(run, config) == "output/tiny/own_code/my_code.py"


def test_a_run_that_has_not_trained_takes_the_changed_file(own, workspace, tried):
    job = submit(own())
    end(job, "FAILED")
    (workspace / "my_code.py").write_text(SCALARS.replace("2 *", "3 *"))
    submit(own())
    assert "3 *" in (job.run.own_code / "my_code.py").read_text() and len(tried) == 2


def test_code_cannot_be_added_to_a_trained_run(tiny, own):
    run = trained(submit(tiny()))
    with pytest.raises(SubmitError, match=r"code: null -> my_code\.py"):
        resume(run, {"code": "my_code.py"})


def test_runs_with_files_of_one_name_are_told_apart(own, workspace):
    first = trained(submit(own()), "SUCCEEDED")
    (workspace / "my_code.py").write_text(SCALARS.replace("2 *", "3 *"))
    second = trained(submit(own(name="other")), "SUCCEEDED")
    (row,) = [row for row in compared([first, second])["settings"]["rows"] if row[0] == "code"]
    assert row[1] != row[2] and all(text.startswith("my_code.py, SHA-256 ") for text in row[1:])


@pytest.mark.parametrize("kind", ["slurm", "kubernetes"])
def test_the_file_of_a_dry_run_carries_the_code(kind, own, workspace, monkeypatch):
    """The job that a scheduler starts from the file has the code, though my_code.py is not on its machine."""
    mounts = [{"claim": "work", "mount_path": "/workspace"}]
    pods = {"backend.kubernetes.image": "repo/image:1", "backend.kubernetes.mounts": mounts}
    config = own(**{"backend.kind": kind, **pods})
    text = request_text(config, alone=True)
    assert RUN_CODE in text
    (workspace / "my_code.py").unlink()
    monkeypatch.setenv(RUN_CODE, re.search(rf"{RUN_CODE}\W+(?:value: )?'?([\w+/=]+)", text)[1])
    run = RunDir.named("tiny")
    job = run.job(run.unused_job_id())
    monkeypatch.setattr(type(backend_of(kind)), "was_started", lambda *_: None)
    monkeypatch.setattr(type(backend_of(kind)), "await_first_word", lambda *_: None)
    prepare_job(config, job, "1" * 32)
    assert (run.own_code / "my_code.py").read_text() == SCALARS
    assert files.read_json(run.own_code_json)["tried"].startswith("not tried")
    # The pods of the other nodes, and those that start later, use the copy too.
    assert prepared(job, 1, Leaving()) and RUN_CODE not in os.environ


@pytest.mark.slow
def test_a_file_starts_as_a_copy_of_our_own_functions(workspace):
    tiny = load("gpt-tiny")
    path = start_code(["loss", "scalars"], workspace / "my_code.py", tiny)
    text = path.read_text()
    assert "vocabulary.cross_entropy(logits, labels)" in text and "def scalars(step: int)" in text
    assert "import logging" not in text and "on_step" not in text
    with pytest.raises(ConfigError, match="already exists; nothing was written"):
        start_code(["loss"], path, tiny)
    with pytest.raises(ConfigError, match="Nearest: loss"):
        code_text(["los"], tiny)
    with pytest.raises(ConfigError, match="requires the name of one of these functions"):
        code_text([], tiny)
    # gpt-tiny is the run that start.py itself reads.
    own = bundled(START).read_text()
    assert DATASET in own and BOUNDS in own and BOUNDS in code_text(["dataset"], tiny)
    other = load("gpt-tiny", {"data.name": "mine", "data.split": "8,1,1", "model.seq_length": 64})
    text = code_text(["dataset"], other)
    assert '_Windows("data/dataset/mine/text_document", 64,' in text
    assert '"train": (0.0, 0.8), "valid": (0.8, 0.9), "test": (0.9, 1.0)' in text
    with pytest.raises(ConfigError, match="not windows of one dataset"):
        code_text(["dataset"], load("gpt-tiny", {"data.packing": "best_fit"}))
