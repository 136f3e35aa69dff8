"""A batch size that grows during training, compared with a plain loop, and resumed in the middle of the
ramp.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from nbtrain.base import files
from nbtrain.base.run_directory.records import Heartbeat
from nbtrain.config.arithmetic.lr_schedule import LrSchedule
from nbtrain.config.load import load_resolved, to_yaml
from nbtrain.dataset.samples.build import build_datasets
from nbtrain.model.gpt import build_model
from nbtrain.train.engine.optimizer import build_optimizer, set_batch_size, set_rates
from tests.train import launch

# Equal distances of 8 samples up to 16; of the 96 samples of 32 tokens, 92 + 16 are the first total to reach
# them.
SIZES = [4, 4, 8, 12, 16, 16, 16, 16, 16]
RAMP = {
    "batch.global_batch_size": 16,
    "batch.rampup": {"start_batch_size": 4, "batch_size_increment": 4, "ramp_samples": 24},
    "batch.train_tokens": 96 * 32,
    "checkpoint.save_interval_steps": 100,
    "evaluation.eval_iters": 0,
}


class Engine:
    """A stand-in with the attributes of DeepSpeed that set_batch_size uses, for micro batches of 2 on 2
    ranks.
    """

    def __init__(self):
        self.optimizer = type("Zero", (), {"gradient_accumulation_steps": 4})()
        self.size = 16

    def train_batch_size(self):
        return self.size

    def set_train_batch_size(self, size):
        self.size = size

    def gradient_accumulation_steps(self):
        return self.size // 4


@pytest.mark.parametrize("ulysses", [1, 2])
def test_the_batch_of_a_step_reaches_the_engine_and_its_optimizer(ulysses):
    """The batch size of a step is set in the engine and in ZeRO's copy of it, which with offloading decides
    where the norm is computed.
    """
    engine = Engine()
    held = SimpleNamespace(
        deepspeed=engine, groups=SimpleNamespace(sequence_parallel=SimpleNamespace(size=ulysses))
    )
    for size, micro_batches in ((16, 4), (4, 1), (8, 2), (8, 2)):
        size //= ulysses
        assert set_batch_size(held, size) == micro_batches
        size *= ulysses
        assert engine.size == size and engine.optimizer.gradient_accumulation_steps == micro_batches


def bare_loop(config):
    """Train with plain PyTorch in one process, one batch per step, and return [(loss, gradient norm)]."""
    datasets = build_datasets(config, None)
    model, schedule = build_model(config), LrSchedule.of(config)
    optimizer = build_optimizer(model.named_parameters(), config)
    consumed, curve = 0, []
    for size in SIZES:
        samples = [datasets.train.sample(position) for position in range(consumed, consumed + size)]
        tokens, labels = (
            torch.from_numpy(np.stack([getattr(sample, name) for sample in samples]).astype(np.int64))
            for name in ("tokens", "labels")
        )
        rate = schedule.learning_rate(consumed * config.model.seq_length)
        set_rates(optimizer, rate, config.optimizer.weight_decay)
        loss = model(tokens, labels)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), config.optimizer.clip_grad)
        optimizer.step()
        optimizer.zero_grad()
        curve.append((loss.item(), norm.item()))
        consumed += size
    return np.array(curve)


@pytest.mark.slow
def test_a_ramp_follows_a_bare_loop(tmp_path, data_home, forked, monkeypatch):
    """With a ramp of 1, 1, 2, 3, 4 micro batches on 2 ranks with ZeRO 2, losses, norms and counts equal those
    of a plain loop.
    """
    run = launch.make_run(
        tmp_path,
        {
            **RAMP,
            "parallel.data_parallel_size": 2,
            "parallel.zero_stage": 2,
            "model.hidden_dropout": 0.0,
            "model.attention_dropout": 0.0,
        },
    )
    forked.train(run, 2)
    monkeypatch.setenv("NBTRAIN_DATA", str(data_home))
    config = load_resolved(run.config_yaml)
    assert config.train_steps == len(SIZES)
    ours = np.array(
        [[float.fromhex(value) for value in pair] for _, pair in sorted(launch.trace(run).items())]
    )
    np.testing.assert_allclose(ours, bare_loop(config), rtol=0, atol=4e-6)
    progress = Heartbeat.read(run.newest_job().heartbeat(0)).progress
    assert (progress.consumed_samples, progress.consumed_tokens) == (sum(SIZES), sum(SIZES) * 32)
    assert progress.eta_seconds == 0
    assert launch.manifest(run, len(SIZES))["data_state"]["consumed_samples"] == sum(SIZES)


@pytest.mark.slow
def test_a_run_cut_in_the_middle_of_the_ramp_is_bitwise_the_same(tmp_path, forked):
    """A run with dropout that is resumed in the middle of the ramp has bit-identical losses and norms.

    The resumed run has the same batch sizes, as an explicit list.
    """
    straight = launch.make_run(tmp_path, RAMP, "straight")
    forked.train(straight)
    named = {"batch.rampup": None, "batch.step_batch_size_schedule": "0:4 256:8 512:12 768:16"}
    cut = launch.make_run(tmp_path, {**RAMP, **named, "batch.max_steps": 3}, "cut")
    forked.train(cut)
    assert cut.checkpoint_steps() == [3]
    config = load_resolved(cut.config_yaml)
    whole = config.model_copy(update={"batch": config.batch.model_copy(update={"max_steps": None})})
    files.write_text(cut.config_yaml, to_yaml(whole))
    launch.new_job(cut)
    forked.train(cut)
    assert sorted(launch.trace(straight)) == list(range(1, len(SIZES) + 1))
    assert launch.trace(cut) == launch.trace(straight)
