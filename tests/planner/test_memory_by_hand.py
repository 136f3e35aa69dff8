"""Every part of one rank's memory for a model small enough to count by hand.

L = 4 layers, h = 8, a = 2 heads, f = 24, s = 16, micro batch 3 (48 tokens), V = 128:
N = 1,024 (words) + 128 (positions) + 4 * 288 (attention) + 4 * 416 (MLP) + 144 (LayerNorms) = 4,112.
"""

import pytest

from nbtrain.config.arithmetic.devices import GIB
from nbtrain.config.arithmetic.parameters import count_parameters, count_stage_parameters
from nbtrain.config.load import load
from nbtrain.config.schema import RunConfig
from nbtrain.planner.memory import (
    CPU_RUNTIME_BYTES,
    activation_bytes,
    estimate_memory,
    host_memory,
    keeps_scores,
    logits_bytes,
    nvme_bytes,
    stage_memory,
)

N = 4112
WORDS, ATTENTION, MLP = 1024, 4 * 288, 4 * 416
TOKENS = 48
# DeepSpeed's buckets are cut down to whole 2**20 elements.
BUCKET = 2**20
FULL = "parallel.activation_checkpointing.granularity=full"
SELECTIVE = "parallel.activation_checkpointing.granularity=selective"


def small(*overrides: str) -> RunConfig:
    return load(
        "gpt-125m",
        [
            "model={num_layers: 4, hidden_size: 8, num_attention_heads: 2, ffn_hidden_size: 24, seq_length: "
            "16}",
            "model={max_position_embeddings: null, make_vocab_size_divisible_by: 128, attention_backend: "
            "auto}",
            "tokenizer.vocab_size=100",
            "batch={micro_batch_size: 3, global_batch_size: 12}",
            "parallel={zero_stage: 1, overlap_comm: true, contiguous_gradients: true}",
            "precision.dtype=bf16",
            FULL.replace("full", "none"),
            *overrides,
        ],
        check=False,
    )


def parts(*overrides: str, stage: int = 0) -> dict[str, int]:
    return stage_memory(small(*overrides), stage)


def test_the_parameters_are_those_of_the_headline():
    counted = count_parameters(small())
    assert (counted.total, counted.attention, counted.mlp) == (N, ATTENTION, MLP)


# --- model state ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "weights", "gradients", "optimizer"),
    [
        ([], 2 * N, 6 * N, 12 * N),
        (["precision.dtype=fp16"], 2 * N, 4 * N, 12 * N),
        (["precision.dtype=fp32"], 4 * N, 4 * N, 12 * N),
        (["precision.dtype=fp32", "parallel.zero_stage=0"], 4 * N, 4 * N, 8 * N),
        # fp32 weights, and the cast matrices of one forward pass.
        (["precision.autocast=true"], 4 * N + 2 * (WORDS + ATTENTION + MLP), 4 * N, 12 * N),
        (["parallel={zero_stage: 1, data_parallel_size: 2}"], 2 * N, 6 * N, 6 * N),
        (["parallel={zero_stage: 2, data_parallel_size: 2}"], 2 * N, 2 * N, 6 * N),
        (["parallel={zero_stage: 3, data_parallel_size: 2}"], N, 2 * N, 6 * N),
        (["parallel={zero_stage: 3, data_parallel_size: 2, ds_sequence_parallel_size: 2}"], N // 2, N, 3 * N),
        (
            ["parallel={zero_stage: 3, data_parallel_size: 2, zero_hpz: true, zero_hpz_partition_size: 4}"],
            N + N // 2,
            2 * N,
            6 * N,
        ),
    ],
)
def test_model_state(overrides, weights, gradients, optimizer):
    found = parts(*overrides)
    assert (found["weights"], found["gradients"], found["optimizer"]) == (weights, gradients, optimizer)


# --- activations ----------------------------------------------------------------------------------

# In bf16, a token and unit: LayerNorm inputs 2 * 2, product inputs 2 * 2, masks 2; query, key, value, output
# 4 * 2 and the MLP's two of width f / h = 3.
LAYER = TOKENS * 8 * (10 + (4 + 2 * 3) * 2)
LSE = 4 * 2 * TOKENS
ENDS = (1 + 4) * TOKENS * 8
STREAM = 2 * TOKENS * 8


@pytest.mark.parametrize(
    ("overrides", "held"),
    [
        ([], 4 * (LAYER + LSE) + ENDS),
        (["model.hidden_dropout=0"], 4 * (LAYER - 2 * TOKENS * 8 + LSE) + 4 * TOKENS * 8),
        # Autocast: LayerNorm inputs in fp32.
        (["precision.autocast=true"], 4 * (LAYER + 4 * TOKENS * 8 + LSE) + (1 + 6) * TOKENS * 8),
        (["precision.dtype=fp32"], 4 * (TOKENS * 8 * (18 + 40) + LSE) + (1 + 8) * TOKENS * 8),
        # Scores: softmax 2, dropout's mask 1 and what it leaves 2, for 2 heads and 16 positions.
        (["model.attention_backend=math"], 4 * (LAYER + 5 * 2 * TOKENS * 16) + ENDS),
        (["model={attention_backend: math, attention_dropout: 0}"], 4 * (LAYER + 2 * 2 * TOKENS * 16) + ENDS),
        # The GELU's output (3 * 2) is dropped; of one layer it is there again.
        ([SELECTIVE], 4 * (LAYER - 6 * TOKENS * 8 + LSE) + ENDS + 6 * TOKENS * 8),
        (
            [SELECTIVE, "model.attention_backend=math"],
            4 * (LAYER - 6 * TOKENS * 8) + ENDS + 6 * TOKENS * 8 + 5 * 2 * TOKENS * 16,
        ),
        ([FULL], 4 * STREAM + LAYER + LSE + ENDS),
        (
            [FULL, "parallel.activation_checkpointing.interval_layers=3"],
            2 * STREAM + 3 * (LAYER + LSE) + ENDS,
        ),
        ([FULL, "parallel.activation_checkpointing.interval_layers=9"], STREAM + 4 * (LAYER + LSE) + ENDS),
        # Two tensor ranks: 10 whole and half of 20; with sequence parallelism half of everything.
        (["parallel.tensor_parallel_size=2"], 4 * (TOKENS * 8 * 20 + LSE // 2) + ENDS),
        (["parallel={tensor_parallel_size: 2, sequence_parallel: true}"], (4 * (LAYER + LSE) + ENDS) // 2),
        (
            ["parallel={tensor_parallel_size: 2, sequence_parallel: true}", FULL],
            (4 * STREAM + LAYER + LSE + ENDS) // 2,
        ),
        (["parallel.ds_sequence_parallel_size=2"], (4 * (LAYER + LSE) + ENDS) // 2),
    ],
)
def test_activations(overrides, held):
    assert activation_bytes(small(*overrides), 0) == held


def test_activations_of_a_pipeline():
    """Stage k of 2 holds 2 - k micro batches and what it sent on of each; one micro batch is held once."""
    cut = "parallel={pipeline_parallel_size: 2, pipeline_stage_layers: [2, 2]}"
    layers, mask, norm = 2 * (LAYER + LSE), TOKENS * 8, 4 * TOKENS * 8
    config = small(cut)
    assert activation_bytes(config, 0) == 2 * (layers + STREAM + mask)
    assert activation_bytes(config, 1) == layers + norm
    assert activation_bytes(small(cut, "batch.global_batch_size=3"), 0) == layers + STREAM + mask
    config = small(cut, FULL)
    assert activation_bytes(config, 0) == 2 * 3 * STREAM + LAYER + LSE + mask
    assert activation_bytes(config, 1) == 2 * STREAM + LAYER + LSE + norm


def test_who_keeps_the_scores():
    """math always keeps scores; so does auto on a CPU with dropout, which no other kernel has there."""
    on_cpu = "resources={device: cpu, gpu_type: null}"
    none = "model.attention_dropout=0"
    assert not keeps_scores(small())
    assert keeps_scores(small("model.attention_backend=math"))
    assert keeps_scores(small(on_cpu))
    assert not keeps_scores(small(on_cpu, none))
    assert not keeps_scores(small(on_cpu, "model.attention_backend=flash"))
    assert keeps_scores(small(on_cpu, none, "model.attention_backend=math"))


# --- logits and workspace -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "held"),
    [
        ([], TOKENS * 128 * 6 + 4 * 128 * 8 + 4 * TOKENS * 8),
        (["model.cross_entropy_chunk_tokens=10"], 10 * 128 * 6 + 4 * 128 * 8 + 4 * TOKENS * 8),
        (["model.cross_entropy_chunk_tokens=0"], TOKENS * 128 * 6 + 4 * 128 * 8 + 4 * TOKENS * 8),
        (["precision.dtype=fp32"], TOKENS * 128 * 8 + 4 * 128 * 8 + 4 * TOKENS * 8),
        (["parallel.tensor_parallel_size=2"], TOKENS * 128 * 6 + 4 * 128 * 8 + 4 * TOKENS * 8),
        (
            ["parallel={tensor_parallel_size: 2}", "model.make_vocab_size_divisible_by=64"],
            TOKENS * 64 * 6 + 4 * 64 * 8 + 4 * TOKENS * 8,
        ),
        (["parallel.ds_sequence_parallel_size=2"], 24 * 128 * 6 + 4 * 128 * 8 + 4 * 24 * 8),
    ],
)
def test_logits(overrides, held):
    """A chunk in bf16 and its log-softmax in fp32; fp32 gradients of the embeddings and of the hidden
    states."""
    assert logits_bytes(small(*overrides), 0) == held


@pytest.mark.parametrize(
    ("overrides", "buffers"),
    [
        # DeepSpeed's BF16_Optimizer reduces the sums whole.
        ([], 0),
        (["parallel.zero_stage=0", "precision.dtype=fp32"], 0),
        # The fp32 sums of stage 1, the weights' format of stage 2; two buckets with overlap, and the flat
        # gradient.
        (["precision.dtype=fp16"], 2 * 4 * BUCKET + 4 * N),
        (["precision.dtype=fp16", "parallel.overlap_comm=false"], 4 * BUCKET + 4 * N),
        (["precision.dtype=fp16", "parallel.contiguous_gradients=false"], 4 * N),
        (["precision.dtype=fp16", "parallel.reduce_bucket_size=1000"], 2 * 4 * 1000 + 4 * N),
        (["parallel={zero_stage: 2, data_parallel_size: 2}"], 2 * 2 * BUCKET + 4 * N // 2),
        (["parallel={zero_stage: 2, offload_optimizer: {device: cpu}}"], 2 * 2 * BUCKET),
        # bf16 with stage 1 and an offloaded optimizer is no BF16_Optimizer.
        (["parallel={zero_stage: 1, offload_optimizer: {device: cpu}}"], 2 * 4 * BUCKET),
        (["parallel.zero_stage=3"], 2 * N + 2 * BUCKET),
        (["parallel={zero_stage: 3, stage3_max_live_parameters: 100}"], 2 * 100 + 2 * BUCKET),
    ],
)
def test_workspace_of_a_gpu(overrides, buffers):
    """Buffers come on top of 1 GiB of CUDA and its libraries."""
    assert parts(*overrides)["workspace"] == buffers + GIB


def test_a_pipeline_has_one_bucket():
    """A pipeline's engine reduces after the last micro batch: there is nothing to overlap."""
    config = small("parallel={pipeline_parallel_size: 2, zero_stage: 1}", "precision.dtype=fp16")
    for stage in range(2):
        count = count_stage_parameters(config, stage).total
        assert stage_memory(config, stage)["workspace"] == 4 * BUCKET + 4 * count + GIB


@pytest.mark.parametrize(
    ("overrides", "buffers"),
    [
        (["precision.dtype=fp32", "parallel.zero_stage=1"], 2 * 4 * N + 4 * N),
        (
            ["precision.dtype=fp32", "parallel={zero_stage: 1, reduce_bucket_size: 1000}"],
            2 * 4 * 1000 + 4 * N,
        ),
        (["precision.dtype=fp32", "parallel.zero_stage=3"], 2 * 4 * N),
        (["precision.dtype=fp32", "parallel={zero_stage: 3, reduce_bucket_size: 1000}"], 4 * (N + 1000)),
    ],
)
def test_workspace_of_a_cpu(overrides, buffers):
    """A CPU gives no memory to the part of a bucket that is never filled."""
    on_cpu = "resources={device: cpu, gpu_type: null}"
    assert parts(on_cpu, *overrides)["workspace"] == buffers + CPU_RUNTIME_BYTES


# --- beside the device ----------------------------------------------------------------------------

ON_NVME = "{device: nvme, nvme_path: /nvme, buffer_count: 6}"


def test_state_on_nvme():
    """ZeRO 3 on 2 ranks: four fp32 tensors of a sub-group, six bf16 buffers of the largest parameter, and the
    rest."""
    offload = f"offload_optimizer: {ON_NVME}, offload_param: {ON_NVME}"
    both = f"parallel={{zero_stage: 3, data_parallel_size: 2, {offload}}}"
    config = small(both)
    assert nvme_bytes(config, 0) == 2 * N // 2 + 12 * N // 2
    share, largest = N // 2, WORDS // 2
    expected = {
        "weights": 0,
        "gradients": 4 * share,
        "optimizer": 0,
        "buffers": 4 * 4 * share + 2 * 6 * largest + 2 * share,
        "snapshot": 0,
    }
    assert host_memory(config, 0) == expected
    fewer = small(both, "parallel.sub_group_size=100")
    assert host_memory(fewer, 0)["buffers"] == 4 * 4 * 100 + 2 * 6 * largest + 2 * share
    # On a CPU the same buffers are the device's workspace.
    on_cpu = small(both, "resources={device: cpu, gpu_type: null}")
    found = stage_memory(on_cpu, 0)
    assert found["workspace"] == 2 * N * 2 + expected["buffers"] + CPU_RUNTIME_BYTES
    assert (found["weights"], found["gradients"], found["optimizer"]) == (0, 4 * share, 0)


def test_the_optimizer_alone_on_nvme_and_on_the_host():
    config = small(f"parallel={{zero_stage: 3, offload_optimizer: {ON_NVME}}}")
    assert (nvme_bytes(config, 0), host_memory(config, 0)["buffers"]) == (12 * N, 4 * 4 * N)
    config = small("parallel={zero_stage: 1, offload_optimizer: {device: cpu}}")
    assert host_memory(config, 0)["optimizer"] == 12 * N
    # Stage 1 reduces after the last micro batch: until then the gradients are on the device.
    assert (host_memory(config, 0)["gradients"], stage_memory(config, 0)["gradients"]) == (0, 4 * N)


@pytest.mark.parametrize(("mode", "copies"), [("full", 1), ("perf", 0), ("eval", 0)])
def test_a_snapshot_of_asynchronous_saving(mode, copies):
    """Weights and optimizer state of the rank, in a run that saves."""
    config = small("checkpoint.async_save=true", f"mode={mode}")
    assert host_memory(config, 0)["snapshot"] == copies * 14 * N
    assert host_memory(small(f"mode={mode}"), 0)["snapshot"] == 0


def test_the_fullest_stage_and_its_share_of_the_host():
    """The first of two stages: it holds two micro batches. 8 GPUs share the machine's memory."""
    config = small(
        "parallel={pipeline_parallel_size: 2, pipeline_stage_layers: [3, 1]}",
        "resources={gpus_per_node: 8, memory_per_node_bytes: 80_000_000, gpu_type: A100-40GB}",
        "checkpoint.async_save=true",
    )
    memory = estimate_memory(config)
    assert memory.stage == 0
    assert memory.parts == stage_memory(config, 0)
    assert (memory.device, memory.device_bytes, memory.fits) == ("A100-40GB", 40 * GIB, True)
    assert (memory.host_bytes, memory.fits_host) == (10_000_000, True)
    assert (
        memory.total_host_bytes
        == sum(memory.host_parts.values())
        == 14 * count_stage_parameters(config, 0).total
    )
    last = small(
        "parallel={pipeline_parallel_size: 2, pipeline_stage_layers: [1, 3]}",
        FULL,
        "batch.global_batch_size=3",
    )
    assert estimate_memory(last).stage == 1


def test_a_cpu_rank_has_its_share_of_its_machine():
    """4 ranks on 2 machines: two share one machine's memory, and there are no host parts beside it."""
    config = small(
        "resources={device: cpu, gpu_type: null, nodes: 2, memory_per_node_bytes: 1_000_001}",
        "parallel={data_parallel_size: 4}",
    )
    memory = estimate_memory(config)
    assert (memory.device, memory.device_bytes, memory.fits) == ("host memory / 2 ranks", 500_000, False)
    assert (memory.host_bytes, memory.fits_host, memory.nvme_bytes) == (None, None, 0)
