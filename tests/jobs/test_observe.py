"""The records of a run as input for advice, and `nbtrain advise` from these records to a changed YAML."""

import shlex

import pytest

from nbtrain.base.run_directory import end_kinds
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import output_root
from nbtrain.cli.__main__ import main
from nbtrain.config.load import load
from nbtrain.jobs.observe import observe
from tests.lab.widgets.fake_run import FakeJob

OUT_OF_MEMORY = (
    "rank 0 failed at step 3: out of GPU memory: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
    "total capacity of 79.15 GiB of which 1.10 GiB is free. Of the allocated memory 76.00 GiB is allocated "
    "by PyTorch, and 512.00 MiB is reserved by PyTorch but unallocated."
)


@pytest.fixture
def ended(workspace):
    """Return a function that writes a job of 10 steps with these scalars, which ended in this way."""

    def write(state="SUCCEEDED", cause="all steps are trained and saved", reason=None, **scalars):
        job = FakeJob(RunDir(output_root() / "gpt-fake"), steps=10)
        for _ in range(10):
            job.one_step()
            job.scalars(**scalars)
        job.finish(state, cause, reason)
        return job.run

    return write


def test_shares_of_a_step_and_of_the_memory_are_read_from_the_scalars(ended):
    run = ended(
        iteration_time=2.0,
        data_seconds=0.5,
        pipeline_seconds=0.25,
        device_memory_bytes=3 << 33,
        device_memory_fraction=0.375,
        mfu=0.41,
        loss_spikes=2,
    )
    seen = observe(run)
    assert (seen.state, seen.steps, seen.step_seconds) == ("SUCCEEDED", 10, 2.0)
    assert (seen.data_fraction, seen.bubble_fraction, seen.memory_fraction) == (0.25, 0.125, 0.375)
    assert (seen.memory_bytes, seen.device_bytes) == (24 << 30, 64 << 30)
    assert seen.mfu == pytest.approx(0.41) and seen.loss_spikes == 2 and seen.planned_step_seconds > 0
    assert not (seen.failed or seen.out_of_device_memory or seen.hang or seen.unstable)


def test_a_run_without_scalars_has_shown_nothing(ended):
    seen = observe(ended())
    assert (seen.step_seconds, seen.data_fraction, seen.memory_fraction, seen.mfu) == (None,) * 4


@pytest.mark.parametrize(
    ("reason", "found"),
    [
        (end_kinds.HANG, ["hang"]),
        (end_kinds.TIMEOUT, ["hang"]),
        (end_kinds.LOST_PEER, []),
        (end_kinds.HOST_MEMORY, ["out_of_host_memory"]),
        (end_kinds.KILLED, []),
        (end_kinds.UNSTABLE, ["unstable"]),
        (end_kinds.ROLLBACK, ["unstable"]),
        (end_kinds.SMALLEST_LOSS_SCALE, ["smallest_loss_scale"]),
        ("", []),
        (None, []),
    ],
)
def test_the_recorded_kind_of_a_failure_is_observed(ended, reason, found):
    """The kind in the attempt's record counts. The words of its cause may name what did not happen."""
    words = "killed by SIGKILL, not by nbtrain: by hand, or out of host memory; the loss is NaN; a rank hangs"
    seen = observe(ended("FAILED", words, reason))
    kinds = ("hang", "out_of_host_memory", "out_of_device_memory", "unstable", "smallest_loss_scale")
    assert seen.failed and [kind for kind in kinds if getattr(seen, kind)] == found


def test_out_of_device_memory_keeps_the_figures_of_the_message(ended):
    oom = observe(ended("FAILED", OUT_OF_MEMORY, end_kinds.DEVICE_MEMORY)).out_of_memory
    assert oom is not None and oom.tried_bytes == 2 << 30 and oom.allocated_bytes == 76 << 30
    assert oom.unallocated_bytes == 512 << 20


def test_the_verb_advises_and_writes_the_changed_run(ended, workspace, capsys):
    """`nbtrain advise` prints a table; --use writes a new YAML and shows the diff, but never overwrites a
    file.
    """
    ended("FAILED", OUT_OF_MEMORY, end_kinds.DEVICE_MEMORY)
    assert main(["advise", "gpt-fake"]) == 0
    assert "\n1  " in (table := capsys.readouterr().out) and "the device ran out of memory" in table
    path = workspace / "gpt-smaller.yaml"
    assert main(["advise", "gpt-fake", "--use", "1", "-o", str(path)]) == 0
    assert f"{path}: written. Run `nbtrain submit {shlex.quote(str(path))}` " in (
        said := capsys.readouterr().out
    )
    assert said.startswith("--- gpt-fake\n+++ changed\n-") and load(path).name == "gpt-smaller"
    assert main(["advise", "gpt-fake", "--use", "1", "-o", str(path)]) == 2
    assert "already exists" in capsys.readouterr().err
    assert main(["advise", "gpt-fake", "--use", "1"]) == 2
    assert "--use N and -o FILE together" in capsys.readouterr().err
    assert main(["advise", "gpt-fake", "--json"]) == 0
    assert '"reason": "the device ran out of memory"' in capsys.readouterr().out
