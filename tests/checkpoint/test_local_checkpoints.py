"""checkpoint.local_dir: checkpoints go to the nodes' disks first, and a resume
uses the newest complete one.
"""

import contextlib
import os
import shutil
import signal
import socket
from pathlib import Path

import pytest

from nbtrain.base.run_directory.checkpoint_files import (
    LocalSaves,
    newest_checkpoint_step,
    on_nodes_words,
    only_on_nodes,
)
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.records import ResumeCertificate
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.checkpoint.files import manifest as manifests
from tests.train import forked, launch

pytestmark = pytest.mark.slow

STEPS = 8
# Dropout is on, so a resume must restore its random state.
RUN = {
    "model.hidden_size": 32,
    "batch.train_tokens": STEPS * 4 * 32,
    "checkpoint.save_interval_steps": 4,
    "parallel.data_parallel_size": 2,
    "evaluation.eval_iters": 0,
}


class Nodes:
    """Two ranks on separate nodes, each with a folder that stands for its local disk."""

    def __init__(self, server, data_home: Path, root: Path):
        self.server, self.data_home, self.root = server, data_home, root

    def make(self, name: str, **overrides) -> RunDir:
        local = {
            "checkpoint.local_dir": f"{self.root}/local/{{node}}",
            "checkpoint.local_save_interval_steps": 1,
        }
        return launch.make_run(self.root, {**RUN, **local, **overrides}, name)

    def local(self, run: RunDir, node: int) -> Path:
        """Return the run's folder on a node's disk."""
        return self.root / "local" / str(node) / f"{run.name}-{run.record()['run_id']}"

    def steps(self, run: RunDir, node: int) -> set[int]:
        """Return the steps for which the node's rank has a record."""
        records = self.local(run, node).glob(f"global_step*/parts/{node}.json")
        return {int(path.parents[1].name.removeprefix("global_step")) for path in records}

    def start(self, run: RunDir, *what, ranks: int = 2):
        return forked.start(
            self.server, self.data_home, run, ranks, what, program="tests.train.node_rank:main"
        )

    def train(self, run: RunDir, *what, ranks: int = 2) -> None:
        ended = self.server.wait(self.start(run, *what, ranks=ranks))
        assert ended.succeeded, ended.last_output(40)

    def kill(self, run: RunDir, step: int, kept: set[int]) -> None:
        """Train until the copy of `step` hangs and both nodes have the steps `kept`, then kill with -9.

        Training is blocked in the step after the last of these.
        """
        launch.order_faults(run, {"step": max(kept) + 1, "do": "sleep", "rank": 0})
        started = self.start(run, "hang", step)
        half = run.checkpoint(step)
        forked.wait_while_alive(
            lambda: all(self.steps(run, node) == kept for node in (0, 1)) and any(half.glob(".*.half.tmp")),
            started,
        )
        for pid in started.pids:
            # A rank whose peer is dead may end by itself first.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.server.wait(started)


@pytest.fixture
def nodes(fork_server, data_home, tmp_path) -> Nodes:
    return Nodes(fork_server, data_home, tmp_path)


@pytest.fixture(scope="module")
def interrupted(fork_server, data_home, tmp_path_factory):
    """Return the losses of an uninterrupted run, and the folder of a run that was killed after step 6.

    The run was killed while step 6 was being copied: both nodes have steps 5 and 6, the run directory has
    step 3.
    """
    nodes = Nodes(fork_server, data_home, tmp_path_factory.mktemp("killed"))
    straight = launch.make_run(nodes.root, RUN, "straight")
    nodes.train(straight)
    run = nodes.make("run", **{"checkpoint.save_interval_steps": 3, "checkpoint.local_keep_last": 2})
    nodes.kill(run, 6, {5, 6})
    return launch.trace(straight), nodes.root


@pytest.fixture
def killed(interrupted, nodes) -> RunDir:
    """Copy the killed run and its nodes' disks, and create a new job."""
    _, before = interrupted
    shutil.copytree(before, nodes.root, dirs_exist_ok=True)
    run = RunDir(nodes.root / "output" / "run")
    text = run.config_yaml.read_text()
    run.config_yaml.write_text(text.replace(str(before), str(nodes.root)))
    launch.new_job(run)
    return run


def events(run: RunDir, kind: str, newest: bool = True) -> list[str]:
    jobs = [run.newest_job()] if newest else [run.job(job) for job in run.job_ids()]
    return [event["message"] for job in jobs for event in read_events(job) if event["kind"] == kind]


def resumed(run: RunDir) -> ResumeCertificate:
    made = ResumeCertificate.read(run.newest_job().resume_json)
    assert made is not None
    return made


def damage(path: Path) -> None:
    """Change a byte in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


def test_kill_9_between_the_local_save_and_the_end_of_its_copy(interrupted, nodes, killed):
    """After kill -9 between a local save and its copy, each node reads its own part,
    and the resume is bit-exact.

    The part is copied to the run directory later.
    """
    host = os.uname().nodename
    assert newest_checkpoint_step(killed) == 3 and only_on_nodes(killed).step == 6
    assert on_nodes_words(killed) == (
        f"the checkpoint of step 6 is only on the local disks of {host} (checkpoint.local_dir): to continue "
        "from it, resume on the same nodes"
    )
    nodes.train(killed)
    straight, _ = interrupted
    assert launch.trace(killed) == straight
    made = resumed(killed)
    assert (made.kind, made.reasons, made.step) == ("bit-exact", [], 6)
    assert made.source == f"step 6 on the disks of 2 nodes ({host}), newer than step 3 in the run directory"
    assert events(killed, "warning") == []
    saved = "checkpoint of step {} saved"
    assert [said for said in events(killed, "checkpoint") if said.endswith("saved")] == [
        saved.format(6), saved.format(8)
    ]  # fmt: skip
    assert killed.checkpoint_steps() == [6, 8] and only_on_nodes(killed) is None
    assert [manifests.problem(killed.checkpoint(step)) for step in (6, 8)] == [None, None]
    # Finished: no files of the run stay on the nodes.
    assert [nodes.local(killed, node).exists() for node in (0, 1)] == [False, False]


def test_an_evaluation_takes_the_newest_of_the_nodes_and_leaves_the_rest_to_a_resume(nodes, killed):
    """An evaluation copies step 6 from the nodes and reads it; the step stays
    listed, so a resume can use it.
    """
    text = killed.config_yaml.read_text()
    for before, now in (("mode: full", "mode: eval"), ("eval_iters: 0", "eval_iters: 1")):
        assert before in text
        text = text.replace(before, now)
    killed.config_yaml.write_text(text)
    nodes.train(killed)
    made = resumed(killed)
    assert made.step == 6 and made.source.endswith("; copied to the run directory for the evaluation")
    assert killed.checkpoint_steps() == [3, 6] and manifests.problem(killed.checkpoint(6)) is None
    assert [(save.step, save.copied) for save in LocalSaves.of(killed).saves][-2:] == [(5, False), (6, True)]
    assert (nodes.local(killed, 0) / "global_step6").is_dir()


def test_an_evaluation_of_an_older_step_keeps_what_the_nodes_may_have(nodes, killed):
    """If the nodes' disks are absent, an evaluation reads step 3 and keeps step 6
    listed for a later resume.
    """
    listed = LocalSaves.of(killed).saves
    (nodes.root / "local").rename(nodes.root / "elsewhere")
    text = killed.config_yaml.read_text()
    killed.config_yaml.write_text(
        text.replace("mode: full", "mode: eval").replace("eval_iters: 0", "eval_iters: 1")
    )
    nodes.train(killed)
    assert resumed(killed).step == 3 and LocalSaves.of(killed).saves == listed
    assert events(killed, "warning")[-1].endswith(" and cannot be used; step 3 is evaluated instead")


def test_a_lost_node_sends_the_resume_to_the_run_directory(interrupted, nodes, killed):
    """If a node is lost with its part, the resume uses the newest copied
    checkpoint and reports the reason.
    """
    shutil.rmtree(nodes.root / "local" / "1")
    nodes.train(killed)
    straight, _ = interrupted
    assert launch.trace(killed) == straight
    reason = "is not used: the files of rank 1 are not on any node"
    assert events(killed, "warning") == [
        *(f"step {step} of the nodes' own disks {reason}" for step in (6, 5)),
        "checkpoint global_step6 is not used: manifest.json is missing: the save was interrupted; trying the "
        "previous checkpoint",
        f"step 6 was saved only on the disks of {socket.gethostname()} and cannot be used; the run "
        "continues from step 3 (3 steps lost)",
    ]
    made = resumed(killed)
    assert (made.kind, made.step) == ("bit-exact", 3)
    assert made.source.startswith(f"the run directory; step 6 of the nodes' own disks {reason}")


def test_parts_count_on_whichever_node_they_lie(interrupted, nodes, killed):
    """Parts can be on any node: if node numbers are swapped, each node sends what the other needs.

    Damaged parts do not count.
    """
    local = nodes.root / "local"
    for before, now in ((0, "x"), (1, 0), ("x", 1)):
        (local / str(before)).rename(local / str(now))
    damage(next(nodes.local(killed, 0).glob("global_step6/*optim_states.pt")))
    nodes.train(killed)
    straight, _ = interrupted
    assert launch.trace(killed) == straight
    said, lost = events(killed, "warning")
    assert lost.endswith(" and cannot be used; the run continues from step 5 (1 step lost)")
    assert "step 6 of the nodes' own disks is not used" in said
    assert said.endswith("zero_pp_rank_1_mp_rank_00_optim_states.pt does not have the SHA-256 in its record")
    assert resumed(killed).step == 5


def test_another_layout_reads_them_too(nodes, killed):
    """With another layout, a node that sees both parts copies them to the run directory before reading."""
    both = nodes.root / "local"
    shutil.copytree(both / "1", both / "0", dirs_exist_ok=True)
    text = killed.config_yaml.read_text()
    killed.config_yaml.write_text(text.replace("data_parallel_size: 2", "data_parallel_size: 1"))
    launch.new_job(killed)
    nodes.train(killed, ranks=1)
    made = resumed(killed)
    assert (made.kind, made.step) == ("data-exact", 6)
    assert made.source.endswith("; copied to the run directory because the layout has changed")
    assert manifests.problem(killed.checkpoint(6)) is None


def test_with_zero_0_one_node_is_enough(nodes):
    """With ZeRO 0, one node is enough for a resume, because each has a complete
    copy, also with async saves.
    """
    overrides = {"parallel.zero_stage": 0, "checkpoint.async_save": True, "checkpoint.save_interval_steps": 5}
    run = nodes.make("copies", **overrides)
    nodes.kill(run, 5, {5, 6})
    shutil.rmtree(nodes.root / "local" / "0")
    launch.new_job(run)
    nodes.train(run)
    made = resumed(run)
    assert (made.kind, made.step) == ("bit-exact", 6)
    assert run.checkpoint_steps() == [6, STEPS]
    names = {path.name for path in manifests.payload(run.checkpoint(6))}
    assert names == {"mp_rank_00_model_states.pt"}


def test_a_full_local_disk_sends_the_files_to_the_run_directory(interrupted, nodes):
    """If a node's disk is full, its files go to the run directory; a save meant only
    for local disks is skipped.
    """
    run = nodes.make("full")
    nodes.train(run, "full", 4)
    straight, _ = interrupted
    assert launch.trace(run) == straight
    [said] = events(run, "warning")
    assert said.startswith("checkpoint of step 4: ") and "File too large" in said
    assert said.endswith(" are written to the run directory instead")
    assert run.checkpoint_steps() == [4, 8] and manifests.problem(run.checkpoint(4)) is None
    assert [save.step for save in LocalSaves.of(run).saves] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_stop_waits_for_the_copy(nodes):
    """Stopping waits until the last step is copied, even if its local save was not due to be copied."""
    run = nodes.make("stopped", **{"checkpoint.local_copy_bytes_per_second": 2_000_000})
    launch.order_faults(run, {"step": 3, "do": "kill", "rank": 0, "signal": int(signal.SIGTERM)})
    nodes.train(run)
    reached = max(launch.trace(run))
    assert reached < STEPS and newest_checkpoint_step(run) == reached and only_on_nodes(run) is None
    # A stopped run may resume here: the newest checkpoint stays on the nodes.
    assert [path.name for path in nodes.local(run, 0).glob("global_step*")] == [f"global_step{reached}"]
