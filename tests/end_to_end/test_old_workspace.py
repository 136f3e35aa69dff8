"""A workspace that an earlier revision left opens, and its runs go on: tests/fixtures/make_old_workspace.py.

That a run goes on unchanged means two things here. The checkpoint that the earlier revision wrote, and the
one that this revision writes of the state in it, lead to the same losses, weights, moments and Adam steps,
bit for bit, on this machine. And those losses are the ones that the earlier revision went on to, except for
the rounding of another CPU.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from nbtrain.base.rundir import RunDir
from nbtrain.checkpoint.store import ADAM, MASTER, CheckpointStore
from nbtrain.config.load import load_resolved
from tests.fixtures.make_old_workspace import RUNS, STEPS, STOPPED_AT, losses, tensors_sha256
from tests.train import launch
from tests.train.launch import ForkedRuns

TESTS = Path(__file__).parents[1]
# Six steps of a loss near 5.9 in fp32, whose last bit there is 4.8e-7.
LOSS_TOLERANCE = 1e-5


@pytest.fixture
def old(tmp_path) -> Path:
    """The workspace as it was left."""
    with tarfile.open(TESTS / "fixtures" / "old_workspace.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path / "workspace"


def nbtrain(workspace: Path, *arguments: str, code: int = 0) -> str:
    """What the command line prints in the workspace."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("NBTRAIN_")}
    variables["NBTRAIN_QUEUE"] = os.environ["NBTRAIN_QUEUE"]
    done = subprocess.run(
        [sys.executable, "-m", "nbtrain.cli", *arguments],
        cwd=workspace,
        env={**variables, "NBTRAIN_WORKSPACE": str(workspace)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == code, (arguments, done.stdout, done.stderr)
    assert "Traceback" not in done.stdout + done.stderr
    return done.stdout + done.stderr


def found_in(folder: Path) -> dict[str, str]:
    """{state: SHA-256 of it over all parameters of a checkpoint}."""
    store = CheckpointStore(folder)
    states = {
        state: {name: store.full(name, state) for name in store.parameters} for state in (MASTER, *ADAM)
    }
    states["weights"] = {name: store.weights(name) for name in store.parameters}
    hashes = {state: tensors_sha256(tensors) for state, tensors in states.items()}
    return {**hashes, "adam_steps": sorted({store.step(name) for name in store.parameters})}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize("name", RUNS)
def test_configurations_open(old, name):
    """If this fails, the schema has a new field: nbtrain.config.load names those added later."""
    config = load_resolved(old / "output" / name / "config.yaml")
    assert (config.name, config.train_steps) == (name, STEPS)


@pytest.mark.parametrize("name", RUNS)
def test_checkpoints_hold_what_was_saved(old, name):
    """Weights, masters, moments, Adam's steps and the place in the data, by their recorded hashes."""
    folder = old / "output" / name / "model" / f"global_step{STOPPED_AT}"
    expected = json.loads((old / "expected.json").read_text())[name]
    found = found_in(folder)
    assert found == {key: expected[key] for key in found}
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["data_state"] == expected["data_state"]


@pytest.mark.slow
def test_runs_and_data_are_shown_and_verified_unchanged(old):
    """And nothing that was asked writes anything, or makes the data anew."""
    before = contents(old)
    rows = {line.split()[0]: line for line in nbtrain(old, "runs").splitlines() if line.split()}
    for name in RUNS:
        assert "CANCELLED" in rows[name]
        status = nbtrain(old, "status", name)
        assert "CANCELLED" in status and "batch.exit_interval_steps = 6 is reached" in status
        assert "checkpoint saved" in nbtrain(old, "logs", name)
        assert "not whole" not in nbtrain(old, "checkpoint", "list", name)
        assert (
            "have their SHA-256" in (said := nbtrain(old, "checkpoint", "verify", name)) or "has its" in said
        )
        inspected = json.loads(nbtrain(old, "checkpoint", "inspect", name, "--json"))
        assert inspected["consumed_samples"] == 4 * STOPPED_AT
        assert "13.2k" in nbtrain(old, "plan", f"{name}.yaml")
    prefix = "data/dataset/stories/text_document"
    assert "documents         120" in nbtrain(old, "data", "inspect", prefix)
    nbtrain(old, "data", "verify", prefix)
    assert nbtrain(old, "prepare", "one.yaml").count(" kept ") == 3
    after = contents(old)
    assert {path for path in before if after.get(path) != before[path]} == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.soak] if name == "two" else []) for name in RUNS]
)
def test_runs_go_on_as_they_would_have(old, name, tmp_path, fork_server):
    """The next batch is the recorded one to the token; see above for the steps after it."""
    expected = json.loads((old / "expected.json").read_text())[name]
    ranks = 1 if name == "one" else 2
    again = tmp_path / "again"
    shutil.copytree(old, again)
    # What this revision loads of the checkpoint, as it saves it, in place of what it has loaded.
    run, to = again / "output" / name, tmp_path / "resaved"
    ended = fork_server.run(
        ranks,
        "tests.train.resaving_rank:main",
        [str(run), str(to)],
        log=tmp_path / "{rank}.log",
        environment={"NBTRAIN_DATA": str(again / "data")},
        sys_path=[TESTS.parent],
        timeout_seconds=900,
    )
    assert ended.succeeded, ended.last_words(40)
    shutil.rmtree(run / "model")
    shutil.copytree(to / "model", run / "model")
    assert found_in(run / "model" / f"global_step{STOPPED_AT}") == found_in(
        old / "output" / name / "model" / f"global_step{STOPPED_AT}"
    )
    # The old run goes on as a user's does, the other one with forked ranks, which have one thread each.
    nbtrain(old, "resume", name, "backend.env={OMP_NUM_THREADS: '1'}")
    launch.new_job(RunDir(run))
    ForkedRuns(fork_server, again / "data").train(RunDir(run), ranks)
    assert "SUCCEEDED" in nbtrain(old, "wait", name)
    ends = []
    for workspace in (old, again):
        run = workspace / "output" / name
        newest = max(run.glob("jobs/*/job.json")).parent
        resumed = json.loads((newest / "resume.json").read_text())
        assert resumed["next_batch_sha256"] == expected["next_batch_sha256"]
        # Of this machine, device and versions may differ; of the settings, nothing does.
        assert resumed["kind"] != "changed", resumed["reasons"]
        ends.append((losses(run), found_in(run / "model" / f"global_step{STEPS}")))
    assert sorted(ends[0][0]) == list(range(STOPPED_AT + 1, STEPS + 1))
    assert ends[0] == ends[1]
    if RUNS[name][1] == 0.0:
        went_on = {int(step): loss for step, loss in expected["losses"].items()}
        assert ends[0][0] == pytest.approx(went_on, abs=LOSS_TOLERANCE)
