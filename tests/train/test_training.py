"""Complete runs of a small model with torchrun: bit-exact resume, torn checkpoints, requests and rejected
checkpoints.
"""

import os
import time
from pathlib import Path

import pytest
import torch

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.records import ControlRequest, Heartbeat
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.checkpoint.files import manifest as manifests
from nbtrain.checkpoint.weights.model_weights import load_model_weights
from nbtrain.config.load import load_resolved, to_yaml
from nbtrain.dataset.samples.build import build_datasets
from nbtrain.model.gpt import build_model
from tests.train import forked, launch

pytestmark = pytest.mark.slow

STEPS = 24
# Dropout (the schema's 0.1) and accumulation (4 sequences in micro batches of 2) are on.
RUN = {
    "batch.train_tokens": STEPS * 4 * 32,
    "checkpoint.save_interval_steps": 10,
    "checkpoint.keep_last": 5,
    "evaluation.eval_interval_steps": 7,
}


def events(run: RunDir, kind: str) -> list[dict]:
    return [event for job in run.job_ids() for event in read_events(run.job(job)) if event["kind"] == kind]


def assert_same_state(one: Path, other: Path) -> int:
    """Assert that two checkpoints have bit-identical weights, fp32 master weights and moments, and return the
    number of tensors.
    """
    names = sorted(path.name for path in one.glob("*.pt"))
    assert names == sorted(path.name for path in other.glob("*.pt"))
    return sum(
        _compare(*(torch.load(folder / name, weights_only=False) for folder in (one, other)), name)
        for name in names
    )


def _compare(one, other, path: str) -> int:
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), path
        return 1
    if isinstance(one, dict):
        return sum(_compare(one[key], other[key], f"{path}.{key}") for key in one)
    if isinstance(one, list | tuple):
        return sum(
            _compare(*pair, f"{path}.{index}") for index, pair in enumerate(zip(one, other, strict=True))
        )
    return 0


@pytest.mark.parametrize(
    "ranks, overrides",
    [
        (1, {"precision.dtype": "bf16"}),
        (2, {"precision.dtype": "fp32", "parallel.zero_stage": 2, "parallel.data_parallel_size": 2,
             "batch.global_batch_size": 8, "data.num_workers": 1}),
    ],
)  # fmt: skip
def test_a_stopped_and_resumed_run_is_bitwise_the_same(tmp_path, forked, ranks, overrides):
    """A run that SIGTERM stopped between two checkpoints and that was resumed equals an uninterrupted run bit
    for bit.

    The test compares the loss and gradient norm of each step, and everything in the last checkpoint. The
    stopped run evaluates and saves one more time, when it stops.
    """
    overrides = {**RUN, **overrides}
    steps = overrides["batch.train_tokens"] // 32 // overrides.get("batch.global_batch_size", 4)
    straight = launch.make_run(tmp_path, overrides, "straight")
    forked.train(straight, ranks)
    cut = launch.make_run(tmp_path, overrides, "cut")
    stopped = forked.stop_at(cut, 3, ranks)
    assert 3 <= stopped < steps
    launch.new_job(cut)
    forked.train(cut, ranks)

    expected = launch.trace(straight)
    assert sorted(expected) == list(range(1, steps + 1))
    assert launch.trace(cut) == expected
    tensors = assert_same_state(straight.checkpoint(steps), cut.checkpoint(steps))
    assert tensors > 30
    for run in (straight, cut):
        validated = [event["step"] for event in events(run, "validation")]
        assert validated == [step for step in range(1, steps + 1) if step % 7 == 0 or step == steps]
    assert [event["loss"] for event in events(straight, "test")] == [
        event["loss"] for event in events(cut, "test")
    ]
    assert launch.manifest(cut, steps)["data_state"]["consumed_samples"] == STEPS * 4


@pytest.fixture(scope="module")
def finished(tmp_path_factory, forked) -> RunDir:
    """A finished run of 24 steps with checkpoints at 10, 20 and 24. Tests must copy it before they change
    it.
    """
    run = launch.make_run(tmp_path_factory.mktemp("finished"), RUN)
    forked.train(run)
    return run


@pytest.fixture
def copy(finished, tmp_path) -> RunDir:
    """Return a copy of the finished run; a run directory can be moved."""
    import shutil

    shutil.copytree(finished.path, tmp_path / "tiny")
    return RunDir(tmp_path / "tiny")


def test_a_finished_run_has_what_readers_expect(finished):
    """A finished run has complete manifests, a pointer to the newest checkpoint, its progress, phases in
    order, and a trace of all steps.
    """
    assert finished.checkpoint_steps() == [10, 20, 24]
    assert finished.latest.read_text() == "global_step24"
    manifest = launch.manifest(finished, 24)
    assert manifest["run_id"] == finished.record()["run_id"]
    assert manifest["layout"] == {
        "data_parallel_size": 1,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "ds_sequence_parallel_size": 1,
        "context_parallel_size": 1,
        "zero_stage": 1,
        "weights": "fp32",
    }
    assert "mp_rank_00_model_states.pt" in manifest["files"]
    job = finished.newest_job()
    beat = Heartbeat.read(job.heartbeat(0))
    assert (beat.step, beat.progress.total_steps, beat.progress.consumed_tokens) == (24, 24, 24 * 4 * 32)
    assert beat.progress.checkpoint_step == 24
    assert beat.progress.validation_loss == events(finished, "validation")[-1]["loss"]
    assert beat.progress.test_loss == events(finished, "test")[0]["loss"]
    phases = [event["phase"] for event in events(finished, "phase")]
    # A phase of less than 5 ms has no event: on a quick machine, the start of a forked rank, which has torch
    # already, and a validation of so small a model. Loading nothing is longer only on a busy one.
    assert phases[: phases.index("build")] in ([], ["start"]) and "train" in phases
    assert set(phases) <= {"start", "build", "load", "train", "evaluate", "save", "test", "end"}
    assert "DeepSpeed" not in launch.log_of(finished) and "MA " not in launch.log_of(finished)


def test_the_newest_checkpoints_weights_load_without_a_process_group(finished, data_home):
    """Without a process group, weights can be loaded by name into a model, which then has the validation loss
    that the run reported.
    """
    config = load_resolved(finished.config_yaml)
    weights = load_model_weights(finished.path)
    model = build_model(config)
    assert list(weights) == [name for name, _ in model.named_parameters()]
    model.load_state_dict(weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBTRAIN_DATA", str(data_home))
        valid = build_datasets(config).valid
    sequences = torch.stack([torch.from_numpy(valid[position]) for position in range(4)])
    with torch.no_grad():
        loss = model.eval()(sequences[:, :-1], sequences[:, 1:]).item()
    assert loss == pytest.approx(events(finished, "validation")[-1]["loss"], abs=1e-5)
    with pytest.raises(
        CheckpointError,
        match=r"global_step7: there is no such checkpoint\. Checkpoints of this run: 10, 20, 24",
    ):
        load_model_weights(finished.path, 7)


class RunsCode:
    """A class whose pickle calls os.mkdir when it is unpickled."""

    def __init__(self, folder: Path):
        self.folder = str(folder)

    def __reduce__(self):
        return os.mkdir, (self.folder,)


def test_torn_checkpoints_are_passed_over_and_that_is_said(copy, forked):
    """Damaged checkpoints are skipped with a message: one contains executable code and matches its manifest,
    the other has a flipped byte.

    The run resumes from step 10 and has the losses of the uninterrupted run.
    """
    expected = launch.trace(copy)
    torch.save({"module": RunsCode(copy.path / "made")}, copy.checkpoint(24) / "mp_rank_00_model_states.pt")
    manifest = files.read_json(copy.checkpoint_manifest(24))
    described = manifests.describe(copy.checkpoint(24), manifests.payload(copy.checkpoint(24)))
    entries = {name: {**entry, **described[name]} for name, entry in manifest["files"].items()}
    files.write_json(copy.checkpoint_manifest(24), {**manifest, "files": entries})
    weights = copy.checkpoint(20) / "mp_rank_00_model_states.pt"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    launch.new_job(copy)
    log = forked.train(copy)
    said = [event["message"] for event in events(copy, "warning")]
    assert said == [
        "checkpoint global_step24 is not used: mp_rank_00_model_states.pt holds code "
        f"({os.mkdir.__module__}.mkdir); not loaded; trying the previous checkpoint",
        "checkpoint global_step20 is not used: mp_rank_00_model_states.pt does not have the SHA-256 in its "
        "manifest; trying the previous checkpoint",
    ]
    assert all(message in log for message in said)
    assert "weights_only" not in log and not (copy.path / "made").exists()
    assert "resumed from the checkpoint of step 10" in [
        event["message"] for event in events(copy, "checkpoint")
    ]
    assert launch.trace(copy) == expected
    assert copy.checkpoint_steps() == [10, 20, 24]


def test_checkpoints_that_do_not_fit_are_refused_with_every_reason(copy, forked):
    """A checkpoint with another vocabulary and another data order is rejected with both reasons, and nothing
    is overwritten.
    """
    config = load_resolved(copy.config_yaml)
    other = config.model_copy(
        update={
            "tokenizer": config.tokenizer.model_copy(update={"vocab_size": 600}),
            "data": config.data.model_copy(update={"seed": 7}),
        }
    )
    files.write_text(copy.config_yaml, to_yaml(other))
    launch.new_job(copy)
    assert not forked.end(copy).succeeded
    log = launch.log_of(copy)
    folder = copy.checkpoint(24)
    assert (
        f"CheckpointError: {folder}: does not fit this run: "
        "tokenizer.vocab_size is 500 in the checkpoint and 600 in the run; "
        "data.seed is 1234 in the checkpoint and 7 in the run. "
        "Restore the checkpoint's settings"
    ) in log
    assert copy.checkpoint_steps() == [10, 20, 24]


def test_a_save_request_is_carried_out_and_the_run_goes_on(tmp_path, data_home, fork_server):
    """After a save request in control/request.json, the run saves at the next step, acknowledges, and
    continues; a stop request ends it.
    """
    run = launch.make_run(
        tmp_path, {**RUN, "batch.train_tokens": 4 * 32 * 20_000, "checkpoint.save_interval_steps": 10**6}
    )
    job = run.newest_job()
    started = forked.start(fork_server, data_home, run)
    forked.wait_while_alive(lambda: len(launch.trace(run)) > 2, started)
    ControlRequest(1, "save", "a test", time.time()).write(job.control_request)
    forked.wait_while_alive(lambda: files.read_json(job.control_ack) is not None, started)
    step = files.read_json(job.control_ack)["step"]
    assert run.checkpoint_manifest(step).exists()
    forked.wait_while_alive(lambda: max(launch.trace(run)) > step, started)
    ControlRequest(2, "stop", "a test", time.time()).write(job.control_request)
    assert fork_server.wait(started).exit_codes == [0]
    assert max(run.checkpoint_steps()) == max(launch.trace(run))


def test_a_save_that_was_asked_for_counts_when_it_is_acknowledged(tmp_path, data_home, fork_server):
    """A requested save is acknowledged only when the checkpoint is complete, also if its files are written in
    the background to a slow disk.
    """
    overrides = {"batch.train_tokens": 4 * 32 * 20_000, "checkpoint.save_interval_steps": 10**6}
    run = launch.make_run(tmp_path, {**RUN, **overrides, "checkpoint.async_save": True})
    job = run.newest_job()
    started = forked.start(
        fork_server, data_home, run, 1, ("slow", 0), program="tests.train.slow_disk_rank:main"
    )
    forked.wait_while_alive(lambda: len(launch.trace(run)) >= 3, started)
    ControlRequest(1, "save", "a test", time.time()).write(job.control_request)
    forked.wait_while_alive(job.control_ack.exists, started, pause_seconds=0.005)
    found = files.read_json(job.control_ack)
    counts = run.checkpoint_manifest(found["step"]).exists()
    ControlRequest(2, "stop", "a test", time.time()).write(job.control_request)
    assert fork_server.wait(started).exit_codes == [0]
    assert counts and found["step"] > 0


def test_one_batch_is_learned_by_heart(tmp_path, forked):
    """Without dropout, a run memorizes one batch: 127 tokens and the end-of-document token are exactly four
    samples of 32, the same at every step.
    """
    launch.make_dataset(tmp_path / "data", documents=1, document_tokens=(127, 128))
    overrides = {
        "data.split": "98,1,1",
        "evaluation.eval_iters": 0,
        "model.hidden_dropout": 0.0,
        "model.attention_dropout": 0.0,
        "batch.train_tokens": 4 * 32 * 200,
        "batch.micro_batch_size": 4,
        "lr_schedule.lr": 5e-3,
        "precision.dtype": "bf16",
    }
    run = launch.make_run(tmp_path, overrides)
    forked.train(run, data_home=tmp_path / "data")
    losses = launch.losses(run)
    assert losses[0] > 6.0
    assert losses[-1] < 0.02


@pytest.mark.soak
def test_gpt_125m_trains_two_steps_at_full_size_saves_and_resumes(tmp_path, forked):
    """The 125M model of the Megatron-DeepSpeed example trains at full size, with a small batch and a short
    sequence.

    The second step runs after a stop and a resume. The optimizer state alone takes 1.5 GB.
    """
    overrides = {
        "name": "gpt-125m",
        "data.name": "test",
        "model.seq_length": 32,
        "batch.micro_batch_size": 1,
        "batch.global_batch_size": 2,
        "batch.max_steps": 2,
        "data.index_samples": 100,
        "data.num_workers": 0,
        "evaluation.eval_iters": 1,
        "precision.dtype": "bf16",
        "resources.device": "cpu",
        "checkpoint.save_interval_steps": 1,
        "checkpoint.keep_last": 1,
    }
    run = launch.make_run(tmp_path, overrides, "gpt-125m", source="gpt-125m")
    assert forked.stop_at(run, 1) == 1
    launch.new_job(run)
    forked.train(run)
    assert run.checkpoint_steps() == [2]
    manifest = launch.manifest(run, 2)
    assert manifest["consumed_tokens"] == 2 * 2 * 32
    assert manifest["architecture"]["hidden_size"] == 768 and manifest["architecture"]["num_layers"] == 12
    weights = load_model_weights(run.path)
    assert sum(value.numel() for value in weights.values()) == 126_638_592
    assert "resumed from the checkpoint of step 1" in [
        event["message"] for event in events(run, "checkpoint")
    ]
    assert sorted(launch.trace(run)) == [1, 2]
