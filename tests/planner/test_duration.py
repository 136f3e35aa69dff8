"""Times of small models, by hand: waiting for tensor-parallel sums, the pipeline's bubble, the assumed
rate."""

import pytest

from nbtrain.config.load import load
from nbtrain.config.schema import RunConfig
from nbtrain.planner import duration
from nbtrain.planner.duration import bubble_fraction, estimate_duration, tensor_communication_seconds

# NCCL reaches 77 % of an A100's 300 GB/s in each direction.
NVLINK = 0.77 * 300e9


def on_gpus(*overrides: str) -> RunConfig:
    """12 layers of width 64, 8 heads, on A100s."""
    return load(
        "gpt-125m",
        [
            "model={num_layers: 12, hidden_size: 64, num_attention_heads: 8, seq_length: 128}",
            "model.max_position_embeddings=null",
            "tokenizer.vocab_size=1024",
            "resources.gpus_per_node=8",
            *overrides,
        ],
        check=False,
    )


def waiting(*overrides: str) -> float | None:
    return tensor_communication_seconds(on_gpus("parallel.tensor_parallel_size=4", *overrides))


def test_tensor_ranks_wait_for_four_sums_of_each_layer():
    """A ring of 4 sends 2 * 3/4 of 64 bf16 numbers for each of 4 sums of each of 12 layers."""
    one = 12 * 4 * 2 * 3 / 4 * 2 * 64 / NVLINK
    assert waiting() == pytest.approx(one, rel=1e-12)
    assert waiting("precision.dtype=fp32") == pytest.approx(2 * one, rel=1e-12)
    assert waiting("precision.dtype=fp16") == pytest.approx(one, rel=1e-12)
    full = "parallel.activation_checkpointing.granularity=full"
    assert waiting(full) == pytest.approx(1.5 * one, rel=1e-12)
    assert waiting("parallel.pipeline_parallel_size=3") == pytest.approx(one / 3, rel=1e-12)


def test_a_ring_of_two_sends_each_number_once():
    """2 * 1/2 of the message."""
    two = tensor_communication_seconds(on_gpus("parallel.tensor_parallel_size=2"))
    assert two == pytest.approx(12 * 4 * 2 * 64 / NVLINK, rel=1e-12)


def test_ranks_of_several_machines_wait_for_the_slower_link():
    """25 GB/s of network for NVLink's 231; PCIe's 0.77 * 16 GB/s (V100) is slower than the network and
    stays."""
    inside = waiting("resources.gpus_per_node=4")
    assert inside == pytest.approx(waiting(), rel=1e-12)
    assert waiting("resources.gpus_per_node=3") == pytest.approx(inside * NVLINK / 25e9, rel=1e-12)
    pcie = ("resources.gpu_type=V100-PCIe-16GB", "precision.dtype=fp16")
    assert waiting(*pcie, "resources.gpus_per_node=3") == waiting(*pcie)
    assert waiting(*pcie) == pytest.approx(inside * NVLINK / (0.77 * 16e9), rel=1e-12)


def test_who_does_not_wait():
    """0 for one rank, even of an unknown device, and on a CPU; None for an unknown link."""
    unknown = "resources.gpu_type=null"
    assert tensor_communication_seconds(on_gpus(unknown)) == 0.0
    assert waiting("resources.device=cpu") == 0.0
    assert waiting(unknown) is None


# A block costs h (24 h + 4 s) = 64 * 2,048 FLOPs a token, the logits 64 * 2,048: as much as one block.
@pytest.mark.parametrize(
    ("cut", "granularity", "micro_batches", "expected"),
    [
        # Slowest 7 of 13, m = 5: 5 * 13 / 2 of work in 5 * 7 + 6.
        ([6, 6], "none", 5, 1 - 32.5 / 41),
        # 7 blocks, and 5 with the logits: 7 and 6 of 13.
        ([7, 5], "none", 1, 1 - 6.5 / 13),
        # In thirds of a block: 6 blocks of 4, and 6 blocks of 4 with the logits' 3.
        ([6, 6], "full", 5, 1 - 5 * 51 / 2 / (5 * 27 + 24)),
        ([4, 4, 4], "none", 2, 1 - 2 * 13 / 3 / (2 * 5 + 8)),
    ],
)
def test_the_bubble_of_a_cut(cut, granularity, micro_batches, expected):
    """m times the slowest stage, and each other stage once; the work is m times all of them, shared out."""
    config = on_gpus(
        f"parallel.pipeline_parallel_size={len(cut)}",
        f"parallel.pipeline_stage_layers={cut}",
        f"parallel.activation_checkpointing.granularity={granularity}",
        f"batch={{micro_batch_size: 2, global_batch_size: {2 * micro_batches}}}",
    )
    assert bubble_fraction(config) == pytest.approx(expected, rel=1e-12)


def test_the_assumed_rate_of_models_side_by_side():
    """2 models of 4 ranks, each at 27 % of 4 * 312 TFLOP/s, less what they wait."""
    config = on_gpus("parallel={data_parallel_size: 2, tensor_parallel_size: 4}")
    flops = 3 * (12 + 1) * 64 * 2048
    seconds = flops / (4 * 0.27 * 312e12) + 12 * 4 * 2 * 3 / 4 * 2 * 64 / NVLINK
    estimate = estimate_duration(config, use_measured=False)
    assert estimate.tokens_per_second == pytest.approx(2 / seconds, rel=1e-12)
    tokens = config.batch_schedule.tokens_after(config.train_steps)
    assert estimate.seconds == pytest.approx(tokens * seconds / 2, rel=1e-12)


def test_an_evaluation_takes_a_third_of_its_steps():
    """Validation and test: 2 * eval_iters batches, forward only."""
    config = on_gpus("mode=eval", "evaluation.eval_iters=6")
    estimate = estimate_duration(config, use_measured=False)
    assert estimate.seconds == pytest.approx(4 * config.tokens_per_step / estimate.tokens_per_second)


def test_a_pipeline_takes_its_bubble_from_the_assumed_rate():
    """Two stages of [6, 6] and five micro batches: 32.5 of 41 units of time are work."""
    config = on_gpus(
        "parallel={pipeline_parallel_size: 2, pipeline_stage_layers: [6, 6]}",
        "batch={micro_batch_size: 2, global_batch_size: 10}",
    )
    rate = 2 * 0.27 * 312e12 / (3 * 13 * 64 * 2048)
    estimate = estimate_duration(config, use_measured=False)
    assert estimate.tokens_per_second == pytest.approx(rate * 32.5 / 41, rel=1e-12)
    assert "tensor-parallel" not in estimate.basis and "less a pipeline bubble of 21%" in estimate.basis


@pytest.mark.parametrize(("dtype", "share"), [("fp32", 0.43), ("bf16", 0.76), ("fp16", 0.43)])
def test_the_rate_of_cores(monkeypatch, dtype, share):
    """3 cores on each of 2 machines, of 100 GFLOP/s each; without a measurement of 166 GFLOP/s."""
    config = on_gpus(
        "resources={device: cpu, gpu_type: null, cpus_per_node: 3, nodes: 2}", f"precision.dtype={dtype}"
    )
    monkeypatch.setattr(duration, "matmul_flops_per_core", lambda: 100e9)
    flops = 3 * 13 * 64 * 2048
    measured = estimate_duration(config).tokens_per_second
    assert measured == pytest.approx(6 * share * 100e9 / flops, rel=1e-12)
    assumed = estimate_duration(config, use_measured=False).tokens_per_second
    assert assumed == pytest.approx(6 * share * 166e9 / flops, rel=1e-12)
