"""Twins: their folders and messages, and complete twins of every shape that the examples are scaled down
to.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nbtrain.api import verbs as api
from nbtrain.api.run import open_run
from nbtrain.base import files
from nbtrain.base.errors import JobError, JobFailed, SubmitError
from nbtrain.base.run_directory.jobstate import FAILED, RUNNING, SUCCEEDED
from nbtrain.base.run_directory.observed_state import read_state
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.cli import __main__ as cli
from nbtrain.config.load import load
from nbtrain.jobs.machine.processes import children
from nbtrain.proof import prove
from nbtrain.proof.folder import TWIN_OF, alone, end_job, new_job, renew, write_prompts
from nbtrain.proof.fork_client import Ended, Launch
from nbtrain.proof.prove import _Proof, cause_of, format_of, layout_of, run_twin
from nbtrain.proof.shape import make_twin
from nbtrain.proof.small_sections import STEPS, STOP_STEP, Abilities
from tests.jobs.conftest import TINY
from tests.waiting import wait_until


@pytest.fixture
def tiny(workspace):
    path = workspace / "tiny.yaml"
    path.write_text(TINY)
    return load(path)


# --- folders --------------------------------------------------------------------------------------


def test_a_twins_folder_is_made_anew_but_not_what_is_in_notebooks(workspace):
    run = RunDir.named("tiny-twin")
    renew(run, TWIN_OF, "tiny")
    (run.path / "model").mkdir()
    (run.path / "twin.json").write_text("{}")
    (run.notebooks).mkdir()
    (run.notebooks / "03_launch.ipynb").write_text("{}")
    renew(run, TWIN_OF, "tiny")
    assert sorted(path.name for path in run.path.iterdir()) == ["notebooks", "run.json"]
    assert (run.notebooks / "03_launch.ipynb").is_file()
    assert run.record()[TWIN_OF] == "tiny" and run.record()["name"] == "tiny-twin"


def test_no_run_of_that_name_is_removed(workspace):
    """Before a twin is made, a submitted run, a folder that is not a run, or an active twin of that name is
    never removed.
    """
    run = RunDir.named("mine-twin")
    run.path.mkdir(parents=True)
    (run.path / "notes.txt").write_text("x")
    with pytest.raises(SubmitError, match=r"no run\.json, but it contains notes\.txt"):
        renew(run, TWIN_OF, "mine")
    files.write_json(run.run_json, {"schema_version": 1, "run_id": "a", "name": "mine-twin"})
    with pytest.raises(SubmitError, match="is not a twin but an ordinary run"):
        renew(run, TWIN_OF, "mine")
    assert (run.path / "notes.txt").is_file()


def test_a_twin_at_work_is_left_alone(workspace, tiny):
    """A twin that is still active is not replaced; when it has ended, it can be made again."""
    run = RunDir.named("tiny-twin")
    renew(run, TWIN_OF, "tiny")
    job = new_job(run, make_twin(tiny).config, "tiny")
    assert read_state(job, time.time())[0] == RUNNING
    with pytest.raises(SubmitError, match="a job of this twin is active"):
        renew(run, TWIN_OF, "tiny")
    end_job(job, None)
    assert read_state(job, time.time())[0] == SUCCEEDED
    other = new_job(run, make_twin(tiny).config, "tiny")
    assert run.job_ids() == [job.job_id, other.job_id]
    end_job(other, "rank 3 ended with code 1")
    assert read_state(other, time.time()) == (FAILED, "rank 3 ended with code 1")
    renew(run, TWIN_OF, "tiny")


class NeverEnds:
    """A server whose launches never end; waiting for one raises `error`."""

    pid = os.getppid()

    def __init__(self, error):
        self.error = error

    def start(self, ranks, *_, log, **__):
        return Launch(1, [1] * ranks, str(log))

    def wait(self, launch):
        raise self.error


@pytest.mark.parametrize(
    ("error", "cause"),
    [(KeyboardInterrupt(), "interrupted"), (JobError("it ended.\nBye"), "JobError: it ended.")],
)
def test_a_twin_that_is_interrupted_can_be_made_again(workspace, tiny, error, cause):
    """If a cell is interrupted, the twin's jobs end, the kernel survives, and the twin can be made again."""
    proof = object.__new__(_Proof)
    proof.server, proof.twin, proof.run = NeverEnds(error), make_twin(tiny), RunDir.named("tiny-twin")
    proof.runs = {"straight": proof.run, "exact": RunDir(proof.run.path / "proof" / "exact")}
    renew(proof.run, TWIN_OF, "tiny")
    with pytest.raises(type(error)):
        proof._launch({"straight": proof.twin.config, "exact": proof.twin.config})
    job = proof.run.newest_job()
    assert read_state(job, time.time()) == (FAILED, cause)
    assert JobRecord.read(job.job_json).supervisor.pid == NeverEnds.pid
    renew(proof.run, TWIN_OF, "tiny")
    assert not proof.runs["exact"].path.exists()
    with pytest.raises(
        JobError, match=r"^output/tiny-twin/jobs/.*/job\.json is missing: the twin's folder was"
    ):
        end_job(job, None)


def test_one_call_at_a_time_makes_a_twin(workspace, tiny):
    """Only one call at a time can make a twin, also while none of its jobs is active."""
    run = RunDir.named("tiny-twin")
    with alone(run), pytest.raises(SubmitError, match=r"^output/tiny-twin: another process or notebook is "):
        run_twin(tiny, server=NeverEnds(AssertionError()))
    assert not run.path.exists()
    with alone(run):
        pass


def test_prompts_are_the_same_every_time(tmp_path):
    """Generated prompts are identical every time, because a dataset is identified by its bytes."""
    write_prompts(tmp_path / "one")
    write_prompts(tmp_path / "two")
    for name in ("prompts-0.jsonl", "prompts-1.jsonl"):
        content = (tmp_path / "one" / name).read_bytes()
        assert content == (tmp_path / "two" / name).read_bytes()
        assert set(json.loads(content.splitlines()[0])) == {"prompt", "completion"}


# --- messages -------------------------------------------------------------------------------------


def test_how_a_layout_is_called():
    assert layout_of(load("gpt-tiny")) == "1 rank, ZeRO 0"
    config = load("gpt-13b-4xdp-4xpp-4xtp")
    assert layout_of(config) == "64 ranks: data 4 x pipeline 4 x tensor 4, ZeRO 1, full recomputation"
    assert [
        format_of(load("gpt-tiny", change))
        for change in ({}, {"precision.dtype": "bf16", "precision.autocast": True})
    ] == [
        "fp32",
        "autocast",
    ]


@pytest.mark.parametrize(
    "codes, late, words",
    [
        ([1, 1], False, "all 2 ranks ended with code 1: ValueError: no"),
        ([-9, 1, -9], False, "rank 0 ended with code -9, rank 1 ended with code 1, rank 2 ended with code "
            "-9: ValueError: no"),
        ([1], False, "rank 0 ended with code 1: ValueError: no"),
        ([-9, -9], True, "the ranks did not finish within 900 s"),
    ],
)  # fmt: skip
def test_why_a_launch_ended(tmp_path, codes, late, words):
    """The cause of a launch's end is the first rank that failed by itself, not a rank that was killed as a
    consequence.
    """
    for rank, code in enumerate(codes):
        (tmp_path / f"{rank}.log").write_text("Traceback\nValueError: no\n" if code == 1 else "killed\n")
    launch = Launch(1, list(range(len(codes))), str(tmp_path / "{rank}.log"))
    assert cause_of(Ended(launch, codes, late, 1.0, 1.0)) == words


# --- whole twins ----------------------------------------------------------------------------------

WIDE = {
    "model.num_layers": 8,
    "model.num_attention_heads": 16,
    "model.hidden_size": 512,
    "parallel.zero_stage": 1,
    "parallel.sequence_parallel": True,
}
# Shapes that no example has. The last two are published layouts: 32 ranks, and 128 whose twin has 16.
OWN = {
    "2-tensor-2-pipeline": {
        "parallel.tensor_parallel_size": 2,
        "parallel.sequence_parallel": True,
        "parallel.pipeline_parallel_size": 2,
        "parallel.zero_stage": 1,
    },
    "ulysses": {
        "parallel.ds_sequence_parallel_size": 2,
        "parallel.data_parallel_size": 2,
        "parallel.zero_stage": 3,
    },
    "sequence-parallel": {
        "parallel.tensor_parallel_size": 2,
        "parallel.sequence_parallel": True,
        "parallel.activation_checkpointing.granularity": "selective",
        "parallel.data_parallel_size": 2,
        "parallel.zero_stage": 2,
        "precision": {"dtype": "bf16", "autocast": True},
        "model.hidden_dropout": 0.1,
    },
    "offloaded": {
        "parallel.zero_stage": 3,
        "parallel.data_parallel_size": 4,
        "parallel.zero_hpz": True,
        "parallel.zero_hpz_partition_size": 2,
        "parallel.offload_optimizer.device": "cpu",
        "parallel.offload_param.device": "cpu",
        "checkpoint.async_save": True,
        "precision.dtype": "bf16",
    },
    "8-tensor-2-pipeline-2-ulysses": {
        **WIDE,
        "parallel.tensor_parallel_size": 8,
        "parallel.pipeline_parallel_size": 2,
        "parallel.ds_sequence_parallel_size": 2,
    },
    "8-tensor-4-pipeline-2-ulysses-2-data": {
        **WIDE,
        "parallel.tensor_parallel_size": 8,
        "parallel.pipeline_parallel_size": 4,
        "parallel.ds_sequence_parallel_size": 2,
        "parallel.data_parallel_size": 2,
        "precision.dtype": "bf16",
    },
}  # fmt: skip
# Tensor and sequence parallelism in a pipeline. `make soak` runs the rest;
# tests/end_to_end/test_twin_notebook.py has the twin of an ordinary run.
HERE = ("2-tensor-2-pipeline",)


def shape(config):
    """Return the properties of a run's twin that differ from run to run."""
    twin = make_twin(config, Abilities(fp16=True)).config
    values = twin.model_dump()
    return json.dumps(
        [values["parallel"], values["precision"], values["batch"], values["model"], values["data"]],
        sort_keys=True,
    )


def different_runs() -> list[str]:
    """Return examples whose twins differ from one another and from those in test_twin_notebook.py."""
    from tests.config.conftest import EXAMPLES, UPSTREAM

    seen = {shape(load(name)) for name in UPSTREAM}
    chosen = []
    for path in sorted(EXAMPLES.parent.glob("*/*.yaml")):
        known = shape(config := load(path))
        if known not in seen and config.name not in UPSTREAM:
            seen.add(known)
            chosen.append(str(path))
    return chosen


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Create a workspace that all twins share, so that their data is prepared once."""
    folder = tmp_path_factory.mktemp("twins")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBTRAIN_WORKSPACE", str(folder))
        patch.delenv("NBTRAIN_OUTPUT", raising=False)
        patch.delenv("NBTRAIN_DATA", raising=False)
        yield folder


def with_marks(run: str):
    """Return the run as a test parameter, marked `soak` unless it is in HERE."""
    name = run.rpartition("/")[2]
    return pytest.param(run, id=name, marks=[] if name in HERE else [pytest.mark.soak])


def test_the_twins_here_are_examples():
    """Every name in HERE is an example; if one were renamed, it would move to `make soak` unnoticed."""
    assert set(HERE) <= {run.rpartition("/")[2] for run in (*different_runs(), *OWN)}


@pytest.mark.slow
@pytest.mark.parametrize("run", [with_marks(run) for run in (*different_runs(), *OWN)])
def test_every_shape_goes_the_whole_way(home, fork_server, run):
    """Every shape of twin goes through data preparation, steps, a checkpoint, a resume, another layout and an
    export.
    """
    settings = {"name": f"own-{run}", "batch.global_batch_size": 64, **OWN[run]} if run in OWN else {}
    config = load("gpt3-tiny" if run in OWN else run, settings)
    report = run_twin(config, server=fork_server)
    assert report.passed, str(report)
    names = [check.name for check in report.checks]
    assert [name for name in names if name not in ("precision", "export fp32")] == [
        "data",
        "train",
        "resume",
        "layout",
        "reshape",
        "export",
    ]
    assert ("precision" in names) == (format_of(make_twin(config).config) != "fp32")
    twin = RunDir.named(report.twin)
    assert files.read_json(twin.path / "twin.json")["passed"] is True
    assert (twin.export / "weights.pt").is_file()


@pytest.mark.slow
def test_a_twin_that_cannot_train_says_where_and_ends(home, fork_server, tiny, monkeypatch):
    """If the ranks of a twin fail, the remaining parts are skipped, cause and logs are reported, and the
    notebook cell fails.
    """
    monkeypatch.setattr(prove, "TRAINER", "no_such_module:nothing")
    report = run_twin(tiny, server=fork_server)
    outcomes = {check.name: check.outcome for check in report.checks}
    assert outcomes.pop("data") == "passed" and outcomes.pop("train") == "failed"
    assert set(outcomes.values()) == {"skipped"}
    assert "rank 0 ended with code 1: ModuleNotFoundError: No module named 'no_such_module'" in str(report)
    assert f"output/{report.twin}/jobs/" in str(report)
    shown = api.TwinRun(report)
    assert "data:image/png;base64," in shown._repr_html_() and "Twin of tiny: FAILED" in repr(shown)
    with pytest.raises(JobFailed, match="Twin of tiny: FAILED"):
        shown.wait_if("no")


@pytest.mark.slow
def test_a_resume_that_is_not_exact_is_seen(home, fork_server, monkeypatch):
    """A resume with a different dropout is detected at the first step after the stop, and no other check
    fails: the twin, of packed examples of prompts and completions, goes the whole way.
    """
    start = prove.new_job

    def other_seed(run, config, *rest):
        if run.name == "resumed" and run.job_ids():
            model = config.model.model_copy(update={"attention_dropout": 0.2})
            config = config.model_copy(update={"model": model})
        return start(run, config, *rest)

    monkeypatch.setattr(prove, "new_job", other_seed)
    report = run_twin(load("gpt-tiny-instructions"), server=fork_server)
    outcomes = {check.name: check.outcome for check in report.checks}
    assert outcomes.pop("resume") == "failed"
    assert set(outcomes.values()) == {"passed"}
    assert f"first at step {STOP_STEP + 1}:" in str(report) and STOP_STEP + 1 <= STEPS


@pytest.mark.slow
def test_the_command_line_says_it_in_its_exit_code(
    workspace, fork_server, tiny, capsys, tmp_path, monkeypatch
):
    """The command prints the table and the paths of the report and the picture; its exit code says that the
    twin failed. tests/end_to_end/test_example_commands.py has one that passes.
    """
    # A server of its own would import torch once more; the next test has one.
    monkeypatch.setattr(prove, "ForkServer", lambda: contextlib.nullcontext(fork_server))
    monkeypatch.setattr(prove, "TRAINER", "no_such_module:nothing")
    picture = tmp_path / "twin.png"
    code = cli.main(["twin", str(workspace / "tiny.yaml"), "--picture", str(picture)])
    shown = capsys.readouterr().out
    assert "Twin of tiny: FAILED" in shown and "Report: output/tiny-twin/twin.json" in shown
    assert (code, open_run("tiny-twin").state) == (JobFailed.exit_code, FAILED)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_twin_that_a_script_starts_in_the_background_can_be_cancelled(workspace, tiny):
    """A twin that a script runs in the background can be cancelled by sending SIGQUIT to its fork server."""
    script = 'trap "" INT QUIT HUP TERM; exec "$0" -m nbtrain twin tiny.yaml'
    command = ["bash", "-c", script, sys.executable]
    with subprocess.Popen(command, cwd=workspace, stderr=subprocess.PIPE, text=True) as twin:

        def fork_server() -> int:
            assert twin.poll() is None
            return hearing_child(twin.pid)

        server = wait_until(fork_server, "no fork server")
        os.kill(server, signal.SIGQUIT)
        assert twin.stderr.read().endswith("JobError: the fork server was ended by SIGQUIT.\n")
    assert twin.returncode == JobError.exit_code


def hearing_child(pid: int) -> int:
    """Return a child of the process that no longer ignores SIGQUIT, or 0 if there is none yet."""
    for child in children(pid):
        try:
            status = Path(f"/proc/{child}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            # It has ended since it was listed.
            continue
        if not int(re.search(r"^SigIgn:\s*(\w+)", status, re.M)[1], 16) & 1 << signal.SIGQUIT - 1:
            return child
    return 0
