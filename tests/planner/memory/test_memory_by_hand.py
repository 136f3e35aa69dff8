"""Every part of one rank's memory, for a model that is small enough to count by hand.

L = 4 layers, h = 8, a = 2 heads, f = 24, s = 16, micro batch 3 (48 tokens), V = 128:
N = 1,024 (words) + 128 (positions) + 4 * 288 (attention) + 4 * 416 (MLP) + 144 (LayerNorms) = 4,112.
"""

import pytest

from nbtrain.config.arithmetic.devices import GIB
from nbtrain.config.arithmetic.parameters import count_parameters, count_stage_parameters
from nbtrain.config.load import load
from nbtrain.config.schema import RunConfig
from nbtrain.config.shape import Shape
from nbtrain.planner.memory import estimate_memory
from nbtrain.planner.memory.activations import own_kernel
from nbtrain.planner.memory.buffers import CPU_RUNTIME_BYTES, CUDA_CONTEXT_BYTES, NCCL_BYTES, RESERVE_FRACTION
from nbtrain.planner.setup.setup import Setup, setup_of
from tests.planner.of_config import activation_bytes, host_memory, logits_bytes, nvme_bytes, stage_memory

N = 4112
WORDS, ATTENTION, MLP = 1024, 4 * 288, 4 * 416
TOKENS = 48
# Adam counts the steps of both groups in an fp32 number each, or of each of 52 parameters without ZeRO.
STEPS, PARAMETERS = 8, 52
# DeepSpeed's buckets are reduced to multiples of 2**20 elements.
BUCKET = 2**20
FULL = "parallel.activation_checkpointing.granularity=full"
ON_CPU = "resources={device: cpu, gpu_type: null}"
WORD_GRADIENT = 4 * 128 * 8
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


def _keeps_scores(config: RunConfig) -> bool:
    return setup_of(config).keeps_scores


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
        (["parallel={zero_stage: 3, data_parallel_size: 2, context_parallel_size: 2}"], N // 2, N, 3 * N),
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
    optimizer += STEPS if "parallel.zero_stage=0" not in overrides else STEPS * PARAMETERS // 2
    assert (found["weights"], found["gradients"]) == (weights, gradients)
    assert found["master_copy"] + found["optimizer"] == optimizer


# --- activations ----------------------------------------------------------------------------------

# In bf16, per token and unit: norm inputs 2 * 2, product inputs 2 * 2, masks 2; query, key, value, output 4 *
# 2 and two of the MLP with width f / h = 3. Per token: mean and deviation of two norms in fp32.
UNIT = TOKENS * 8
LAYER = UNIT * (10 + (4 + 2 * 3) * 2) + 16 * TOKENS
LSE = 4 * 2 * TOKENS
# Token ids and the mask of the embedding; input and statistics of the final norm.
MASK, IDS, NORM = UNIT, 8 * TOKENS, 2 * UNIT + 8 * TOKENS
ENDS = MASK + IDS + NORM
STREAM = 2 * UNIT
# torch's math kernel: fp32 copies of query, key and value, and for each pair the softmax, dropout's mask of
# one byte, and the result of dropout.
MATH = UNIT * 3 * 2 + (4 + 1 + 4) * 2 * TOKENS * 16


@pytest.mark.parametrize(
    ("overrides", "held"),
    [
        ([], 4 * (LAYER + LSE) + ENDS),
        (["model.hidden_dropout=0"], 4 * (LAYER - 2 * UNIT + LSE) + ENDS - MASK),
        # Autocast: the inputs of the norms in fp32.
        (["precision.autocast=true"], 4 * (LAYER + 4 * UNIT + LSE) + ENDS + 2 * UNIT),
        (["precision.dtype=fp32"], 4 * (2 * LAYER - 2 * UNIT - 16 * TOKENS + LSE) + ENDS + 2 * UNIT),
        (["model.attention_backend=math"], 4 * (LAYER + MATH) + ENDS),
        (
            ["model={attention_backend: math, attention_dropout: 0}"],
            4 * (LAYER + MATH - (1 + 4) * 2 * TOKENS * 16) + ENDS,
        ),
        # The GELU's output (3 * 2) is dropped, and exists again for one layer.
        ([SELECTIVE], 4 * (LAYER - 6 * UNIT + LSE) + ENDS + 6 * UNIT),
        (
            [SELECTIVE, "model.attention_backend=math"],
            4 * (LAYER - 6 * UNIT) + ENDS + 6 * UNIT + MATH,
        ),
        ([FULL], 4 * STREAM + LAYER + LSE + ENDS),
        (
            [FULL, "parallel.activation_checkpointing.interval_layers=3"],
            2 * STREAM + 3 * (LAYER + LSE) + ENDS,
        ),
        ([FULL, "parallel.activation_checkpointing.interval_layers=9"], STREAM + 4 * (LAYER + LSE) + ENDS),
        # Two tensor ranks: all of 10 and half of 20; with sequence parallelism half of everything except the
        # ids.
        (["parallel.tensor_parallel_size=2"], 4 * (UNIT * 20 + 16 * TOKENS + LSE // 2) + ENDS),
        (
            ["parallel={tensor_parallel_size: 2, sequence_parallel: true}"],
            (4 * (LAYER + LSE) + ENDS + IDS) // 2,
        ),
        (
            ["parallel={tensor_parallel_size: 2, sequence_parallel: true}", FULL],
            (4 * STREAM + LAYER + LSE + ENDS + IDS) // 2,
        ),
        # After Ulysses' all-to-all, the output of attention exists twice.
        (["parallel.ds_sequence_parallel_size=2"], (4 * (LAYER + 2 * UNIT + LSE) + ENDS) // 2),
        # With context parallelism too. There are keys and values of both ranks, and heads of 4 numbers need a
        # mask: the middle rank's chunks of 4 tokens attend to 8 and 12 of 16.
        (
            ["parallel.context_parallel_size=2", "model.attention_dropout=0"],
            (4 * (LAYER + 6 * UNIT + LSE) + ENDS + IDS) // 2 + 4 * 2 * 4 * (8 + 12),
        ),
        # FPDT keeps attention's tensors in host memory, and of the MLP only its input. On the device there is
        # a chunk of 8 tokens: ten 16-bit tensors and three in fp32.
        (
            ["parallel.fpdt_chunk_tokens=8", "model.attention_dropout=0"],
            4 * (UNIT * 8 + 16 * TOKENS) + ENDS + 3 * 8 * 8 * (10 * 2 + 3 * 4),
        ),
        # FP8 keeps the inputs of products in their format.
        (["precision.fp8=true"], 4 * (LAYER + LSE) + ENDS),
    ],
)
def test_activations(overrides, held):
    assert activation_bytes(small(*overrides), 0) == held


def test_activations_of_a_pipeline():
    """Stage k of 2 keeps the activations of 2 - k micro batches, or of one if there is only one."""
    cut = "parallel={pipeline_parallel_size: 2, pipeline_stage_layers: [2, 2]}"
    layers, first = 2 * (LAYER + LSE), MASK + IDS
    config = small(cut)
    assert activation_bytes(config, 0) == 2 * (layers + first)
    assert activation_bytes(config, 1) == layers + NORM
    assert activation_bytes(small(cut, "batch.global_batch_size=3"), 0) == layers + first
    config = small(cut, FULL)
    assert activation_bytes(config, 0) == 2 * (2 * STREAM + first) + LAYER + LSE
    assert activation_bytes(config, 1) == 2 * STREAM + LAYER + LSE + NORM


def test_what_a_pipeline_sends_stays():
    """A pipeline stage keeps the outputs it has sent for each micro batch in flight, and a buffer for an
    output or gradient that it receives.
    """
    cut = "parallel={pipeline_parallel_size: 2, pipeline_stage_layers: [2, 2]}"
    assert parts(cut)["pipeline"] == 2 * STREAM + STREAM
    assert parts(cut, "batch.global_batch_size=3")["pipeline"] == STREAM + STREAM
    assert parts(cut, stage=1)["pipeline"] == STREAM
    assert parts()["pipeline"] == 0


def test_who_keeps_the_scores():
    """torch's math kernel keeps the scores. `auto` uses it on a CPU with dropout, because no other kernel has
    dropout there.
    """
    on_cpu = "resources={device: cpu, gpu_type: null}"
    none = "model.attention_dropout=0"
    assert not _keeps_scores(small())
    assert _keeps_scores(small("model.attention_backend=math"))
    assert _keeps_scores(small(on_cpu))
    assert not _keeps_scores(small(on_cpu, none))
    assert not _keeps_scores(small(on_cpu, "model.attention_backend=flash"))
    assert _keeps_scores(small(on_cpu, none, "model.attention_backend=math"))


# --- logits and workspace -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "held"),
    [
        ([], TOKENS * 128 * 10 + WORD_GRADIENT + 4 * UNIT),
        (["model.cross_entropy_chunk_tokens=10"], 10 * 128 * 10 + WORD_GRADIENT + 4 * UNIT),
        (["model.cross_entropy_chunk_tokens=0"], TOKENS * 128 * 10 + WORD_GRADIENT + 4 * UNIT),
        (["precision.dtype=fp16"], TOKENS * 128 * 6 + WORD_GRADIENT + 4 * UNIT),
        (
            ["precision.dtype=fp16", "parallel.tensor_parallel_size=2"],
            TOKENS * 128 * 10 + WORD_GRADIENT + 4 * UNIT,
        ),
        (["precision.dtype=fp32"], TOKENS * 128 * 8 + WORD_GRADIENT + 8 * UNIT),
        (["precision.autocast=true"], TOKENS * 128 * 10 + WORD_GRADIENT + 8 * UNIT),
        (["parallel.tensor_parallel_size=2"], TOKENS * 128 * 10 + WORD_GRADIENT + 4 * UNIT),
        (
            ["parallel={tensor_parallel_size: 2}", "model.make_vocab_size_divisible_by=64"],
            TOKENS * 64 * 10 + WORD_GRADIENT // 2 + 4 * UNIT,
        ),
        (["parallel.ds_sequence_parallel_size=2"], 24 * 128 * 10 + WORD_GRADIENT + 4 * UNIT // 2),
        ([ON_CPU], TOKENS * 128 * 2 + WORD_GRADIENT + 4 * UNIT),
    ],
)
def test_logits(overrides, held):
    """The logits need a chunk in bf16 (on a GPU also in fp32, with the log-softmax), the fp32 gradient of the
    embedding, and the hidden states with their gradient.
    """
    assert logits_bytes(small(*overrides), 0) == held


@pytest.mark.parametrize(
    ("overrides", "buffers"),
    [
        # DeepSpeed's BF16_Optimizer reduces all sums at once.
        ([], 0),
        (["parallel.zero_stage=0", "precision.dtype=fp32"], 0),
        # fp32 sums in stage 1, the weights' format in stage 2; two buckets with overlap, which needs another
        # rank.
        (["precision.dtype=fp16", "parallel.data_parallel_size=2"], 2 * 4 * BUCKET),
        (["precision.dtype=fp16"], 4 * BUCKET),
        (["precision.dtype=fp16", "parallel={data_parallel_size: 2, overlap_comm: false}"], 4 * BUCKET),
        (["precision.dtype=fp16", "parallel.contiguous_gradients=false"], 0),
        (["precision.dtype=fp16", "parallel.reduce_bucket_size=1000"], 4 * 1000),
        (["parallel={zero_stage: 2, data_parallel_size: 2}"], 2 * 2 * BUCKET),
        (["parallel={zero_stage: 2, offload_optimizer: {device: cpu}}"], 2 * BUCKET),
        # bf16 with stage 1 and an offloaded optimizer does not use BF16_Optimizer.
        (["parallel={zero_stage: 1, offload_optimizer: {device: cpu}}"], 4 * BUCKET),
        (["parallel.zero_stage=3"], 2 * N + 2 * BUCKET),
        (["parallel={zero_stage: 3, stage3_max_live_parameters: 100}"], 2 * 100 + 2 * BUCKET),
        # ZeRO++: int8 copies of what is prefetched, and int4 halves of the bucket.
        (["parallel={zero_stage: 3, zero_quantized_weights: true}"], 2 * N + 2 * BUCKET + N),
        (["parallel={zero_stage: 3, zero_quantized_gradients: true}"], 2 * N + 3 * BUCKET),
    ],
)
def test_buffers_of_a_gpu(overrides, buffers):
    found = parts(*overrides)
    assert found["communication"] == buffers
    ranks = small(*overrides).world_size
    assert found["runtime"] == CUDA_CONTEXT_BYTES + (NCCL_BYTES if ranks > 1 else 0)
    allocated = sum(found.values()) - found["runtime"] - found["reserve"]
    assert found["reserve"] == int(RESERVE_FRACTION * allocated)


def test_a_pipeline_has_one_bucket():
    """A pipeline has one reduction bucket instead of two, because its engine reduces gradients after the last
    micro batch.
    """
    config = small("parallel={pipeline_parallel_size: 2, zero_stage: 1}", "precision.dtype=fp16")
    for stage in range(2):
        assert stage_memory(config, stage)["communication"] == 4 * BUCKET


def test_the_workspace_is_what_the_activations_do_not_leave():
    """The workspace holds the gradients of the MLP's two inner tensors and of the residual, less the logits
    freed by then. The step's flat gradient fits where the activations were.
    """
    first = "parallel={pipeline_parallel_size: 2, pipeline_stage_layers: [2, 2]}"
    inner = 2 * 2 * TOKENS * 24 + STREAM
    assert parts(first)["workspace"] == inner
    assert parts(first, "precision.fp8=true")["workspace"] == inner + 9 * TOKENS * 24
    assert parts("precision.dtype=fp16")["workspace"] == 0
    few = ["batch.micro_batch_size=1", "model.seq_length=1", "model.max_position_embeddings=16"]
    held = parts("precision.dtype=fp16", *few)
    assert held["workspace"] == 4 * N - held["activations"] - held["logits"]


@pytest.mark.parametrize(
    ("overrides", "buffers"),
    [
        (["precision.dtype=fp32", "parallel.zero_stage=1"], 4 * N),
        (["precision.dtype=fp32", "parallel={zero_stage: 1, reduce_bucket_size: 1000}"], 4 * 1000),
        (["precision.dtype=fp32", "parallel.zero_stage=3"], 2 * 4 * N),
        (["precision.dtype=fp32", "parallel={zero_stage: 3, reduce_bucket_size: 1000}"], 4 * (N + 1000)),
    ],
)
def test_buffers_of_a_cpu(overrides, buffers):
    """On a CPU, the unused part of a bucket takes no memory, and the allocator keeps no free blocks."""
    found = parts(ON_CPU, *overrides)
    assert (found["communication"], found["runtime"], found["reserve"]) == (buffers, CPU_RUNTIME_BYTES, 0)


# --- outside of the device ----------------------------------------------------------------------------

ON_NVME = "{device: nvme, nvme_path: /nvme, buffer_count: 6}"


def test_state_on_nvme():
    """With ZeRO 3 on NVMe and 2 ranks, host memory holds four fp32 tensors of a sub-group, six bf16 buffers
    of the size of the largest parameter, and the states that are not on NVMe.
    """
    offload = f"offload_optimizer: {ON_NVME}, offload_param: {ON_NVME}"
    both = f"parallel={{zero_stage: 3, data_parallel_size: 2, {offload}}}"
    config = small(both)
    assert nvme_bytes(config, 0) == 2 * N // 2 + 12 * N // 2 + STEPS
    share, largest = N // 2, WORDS // 2
    expected = {
        "weights": 0,
        "gradients": 4 * share,
        "master_copy": 0,
        "optimizer": 0,
        "activations": 0,
        "buffers": 4 * 4 * share + 2 * 6 * largest + 2 * share,
        "snapshot": 0,
    }
    assert host_memory(config, 0) == expected
    fewer = small(both, "parallel.sub_group_size=100")
    assert host_memory(fewer, 0)["buffers"] == 4 * 4 * 100 + 2 * 6 * largest + 2 * share
    # On a CPU the same buffers are workspace on the device.
    on_cpu = small(both, "resources={device: cpu, gpu_type: null}")
    found = stage_memory(on_cpu, 0)
    assert found["workspace"] == expected["buffers"]
    assert found["communication"] == 2 * N * 2
    assert (found["weights"], found["gradients"], found["optimizer"]) == (0, 4 * share, 0)


def test_the_optimizer_alone_on_nvme_and_on_the_host():
    config = small(f"parallel={{zero_stage: 3, offload_optimizer: {ON_NVME}}}")
    assert (nvme_bytes(config, 0), host_memory(config, 0)["buffers"]) == (12 * N + STEPS, 4 * 4 * N)
    config = small("parallel={zero_stage: 1, offload_optimizer: {device: cpu}}")
    assert (host_memory(config, 0)["master_copy"], host_memory(config, 0)["optimizer"]) == (
        4 * N,
        8 * N + STEPS,
    )
    # Stage 1 reduces after the last micro batch: until then the gradients are on the device. The optimizer
    # steps from a copy in host memory.
    assert (host_memory(config, 0)["gradients"], stage_memory(config, 0)["gradients"]) == (4 * N, 4 * N)


@pytest.mark.parametrize(("mode", "copies"), [("full", 1), ("perf", 0), ("eval", 0)])
def test_a_snapshot_of_asynchronous_saving(mode, copies):
    """A run that saves asynchronously keeps a copy of the rank's weights and optimizer states in host
    memory.
    """
    config = small("checkpoint.async_save=true", f"mode={mode}")
    assert host_memory(config, 0)["snapshot"] == copies * (14 * N + STEPS)
    assert host_memory(small(f"mode={mode}"), 0)["snapshot"] == 0


def test_the_fullest_stage_and_its_share_of_the_host():
    """The first of two stages needs more memory, because it keeps two micro batches; 8 GPUs share the
    machine's host memory.
    """
    config = small(
        "parallel={pipeline_parallel_size: 2, pipeline_stage_layers: [3, 1]}",
        "resources={gpus_per_node: 8, memory_per_node_bytes: 80_000_000, gpu_type: A100-40GB}",
        "checkpoint.async_save=true",
    )
    memory = estimate_memory(config)
    assert memory.stage == 0
    assert memory.parts == stage_memory(config, 0)
    assert (memory.device, memory.device_bytes, memory.fits) == ("A100-40GB", int(0.99 * 40 * GIB), True)
    assert (memory.host_bytes, memory.fits_host) == (10_000_000, True)
    assert (
        memory.total_host_bytes
        == sum(memory.host_parts.values())
        == 14 * count_stage_parameters(config, 0).total + STEPS
    )
    last = small(
        "parallel={pipeline_parallel_size: 2, pipeline_stage_layers: [1, 3]}",
        FULL,
        "batch.global_batch_size=3",
    )
    assert estimate_memory(last).stage == 1


def test_a_cpu_rank_has_its_share_of_its_machine():
    """With 4 CPU ranks on 2 machines, two ranks share the memory of a machine, and host memory has no
    separate parts.
    """
    config = small(
        "resources={device: cpu, gpu_type: null, nodes: 2, memory_per_node_bytes: 1_000_001}",
        "parallel={data_parallel_size: 4}",
    )
    memory = estimate_memory(config)
    assert (memory.device, memory.device_bytes, memory.fits) == ("host memory / 2 ranks", 500_000, False)
    assert (memory.host_bytes, memory.fits_host, memory.nvme_bytes) == (None, None, 0)


def test_the_start_of_a_run_takes_host_memory_too():
    """When a run starts, each rank of a node initializes its part of the model in fp32, one matrix after the
    other; with ZeRO 3, only the rank's shard is kept.
    """
    matrix = 4 * WORDS
    for overrides, made in (([], 4 * N), (["parallel.zero_stage=3"], 0)):
        memory = estimate_memory(
            small(
                "parallel.data_parallel_size=2",
                "resources.gpus_per_node=2",
                "checkpoint.async_save=false",
                *overrides,
            )
        )
        assert memory.initial_host_bytes == made + matrix + CPU_RUNTIME_BYTES
        assert memory.node_host_bytes == 2 * memory.initial_host_bytes
    offload = "parallel={zero_stage: 2, offload_optimizer: {device: cpu}}"
    memory = estimate_memory(small(offload, "checkpoint.async_save=false"))
    # Sums, the gradient of the step, masters and moments.
    assert memory.total_host_bytes == (4 + 4 + 4 + 8) * N + STEPS
    assert memory.node_host_bytes == memory.total_host_bytes + CPU_RUNTIME_BYTES


def test_fpdt_waits_in_host_memory():
    """FPDT moves the input, query, key, value and output of each layer (bf16) and its log-sum-exp (fp32) to
    host memory.
    """
    config = small("parallel.fpdt_chunk_tokens=8", "model.attention_dropout=0")
    assert host_memory(config, 0)["activations"] == 4 * (5 * 2 * UNIT + LSE)
    whole = small("parallel.fpdt_chunk_tokens=16", "model.attention_dropout=0")
    assert host_memory(whole, 0)["activations"] == 0
    full = small("parallel.fpdt_chunk_tokens=8", "model.attention_dropout=0", FULL)
    assert host_memory(full, 0)["activations"] == 5 * 2 * UNIT + LSE


@pytest.mark.parametrize(
    ("dtype", "device", "changed", "own"),
    [
        ("bf16", "cpu", {}, True),
        ("fp32", "cpu", {}, False),
        ("bf16", "gpu", {}, False),
        # On a CPU, torch's kernels support no window; no kernel supports a cap.
        ("fp32", "cpu", {"window": True}, True),
        ("bf16", "gpu", {"window": True}, False),
        ("fp32", "gpu", {"softcap": True}, True),
    ],
)
def test_whose_attention_kernel_a_layer_has(dtype, device, changed, own):
    """On a CPU, layers use nbtrain's attention kernel (model/attention.py), because torch's math kernel
    rounds sums to 16 bits.
    """
    shape = Shape(2, 128, 4, 512, 512, 128, 4, 32, attn_softcap="softcap" in changed)
    setup = Setup(shape, on_gpu=device == "gpu", micro_batch_size=1, global_batch_size=1, dtype=dtype)
    assert own_kernel(setup, window="window" in changed) is own
