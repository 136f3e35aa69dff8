"""The rules between fields: each message, and the report of all problems at once."""

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.config.load import load
from nbtrain.config.names.keys import field_keys
from nbtrain.config.rules.check import RULES, check_config, find_problems
from nbtrain.config.rules.data import own_dataset_is_alone
from nbtrain.config.rules.dpo import preferences_have_their_own_loss
from nbtrain.config.rules.own_layer import own_layer_goes_alone

# Four ranks that share each sequence.
ULYSSES = ["parallel.ds_sequence_parallel_size=4", "parallel.data_parallel_size=1"]
ON_CPU = ["resources.device=cpu", "resources.gpu_type=null"]
PAIRS = ["data.sources=[{kind: preference, path: pairs.jsonl}]", "data.packing=best_fit"]
TENSOR_2 = ["parallel.tensor_parallel_size=2", "resources.nodes=2"]
FOUR_BITS = ["lora.load_in_4bit=true", "init_from=a-run"]
ZERO_3 = ["parallel.zero_stage=3"]

# (run, overrides) -> the complete message of the one broken rule. "@" is the place of the key that follows
# it, or of the first override if no key follows.
BROKEN = {
    "an unknown network": (
        "gpt-125m-2xdp",
        ["resources.network=ethernet"],
        "@: resources.network = ethernet\n"
        "  is not in the network table. Nearest: ethernet-1, ethernet-50, ethernet-40, ethernet-10. For "
        "another network, set network: null, and set resources.network_bytes_per_second to the one-way "
        "bandwidth of a machine, the sum over all its network devices.",
    ),
    "a batch that does not divide": (
        "gpt-125m-2xdp",
        ["batch.global_batch_size=250"],
        "@: batch.global_batch_size = 250\n"
        "  must be a multiple of micro_batch_size(16) * data_parallel_size(2) = 32; nearest: 224, 256.",
    ),
    "a batch below the smallest": (
        "gpt-125m-2xdp",
        ["batch.global_batch_size=8"],
        "@: batch.global_batch_size = 8\n"
        "  must be a multiple of micro_batch_size(16) * data_parallel_size(2) = 32; nearest: 32.",
    ),
    "a source on the Hub": (
        "gpt-tiny",
        ["data.sources=[{kind: hf-dataset, path: 'hf://datasets/stas/openwebtext-10k'}]"],
        "@: data.sources[0].path = hf://datasets/stas/openwebtext-10k\n"
        "  is a dataset on the Hugging Face Hub, but sources are read from disk. Download it with `hf "
        "download stas/openwebtext-10k --repo-type dataset --local-dir corpus/openwebtext-10k`, then set the "
        "path to corpus/openwebtext-10k.",
    ),
    "text that is cut in two ways": (
        "gpt-tiny",
        ["data.sources=[{kind: text, path: books, document_separator: '---', document_bytes: 1000}]"],
        "@: data.sources[0] sets both document_separator and document_bytes, but a file is split either at "
        "a separator or by size. Remove one of the two.",
    ),
    "tasks between validations": (
        "gpt3-tiny",
        [
            "evaluation.tasks_interval_steps=150",
            "evaluation.eval_interval_steps=100",
            "evaluation.tasks=[{task: mmlu, path: mmlu.jsonl}]",
        ],
        "@: evaluation.tasks_interval_steps = 150\n"
        "  must be a multiple of eval_interval_steps(100); nearest: 100, 200.",
    ),
    "an interval of no tasks": (
        "gpt-125m",
        ["evaluation.tasks_interval_steps=1000"],
        "@: evaluation.tasks_interval_steps = 1000\n"
        "  sets how often evaluation.tasks are evaluated, but the run has no tasks. Add a task, or remove "
        "tasks_interval_steps.",
    ),
    "tasks without validations": (
        "gpt-125m",
        ["evaluation.eval_iters=0", "evaluation.tasks=[{task: mmlu, path: mmlu.jsonl}]"],
        "@: evaluation.eval_iters = 0\n"
        "  turns validation off, but evaluation.tasks are evaluated as part of a validation. Set eval_iters "
        "to at least 1, or remove the tasks.",
    ),
    "a ramp that starts at its end": (
        "gpt-175b",
        ["batch.rampup.start_batch_size=1536"],
        "@: batch.rampup.start_batch_size = 1536\n"
        "  must be less than global_batch_size(1536). To train without a ramp-up, set rampup: null.",
    ),
    "a ramp that misses its end": (
        "gpt-175b",
        ["batch.rampup.batch_size_increment=18"],
        "@: batch.rampup.batch_size_increment = 18\n"
        "  must divide global_batch_size(1536) - start_batch_size(16) = 1520; nearest: 16, 19.",
    ),
    "a ramp whose steps do not divide among the ranks": (
        "gpt-125m",
        ["batch.rampup={start_batch_size: 16, batch_size_increment: 24, ramp_samples: 1000}"],
        "override batch.rampup.batch_size_increment=24: batch.rampup.batch_size_increment = 24\n"
        "  must be a multiple of micro_batch_size(16) * data_parallel_size(1) = 16; nearest: 16, 32.",
    ),
    "heads that do not divide the width": (
        "gpt3-tiny",
        ["model.hidden_size=250"],
        "@: model.hidden_size = 250\n  must be a multiple of num_attention_heads(4); nearest: 248, 252.",
    ),
    "48 heads of a 13B model": (
        "gpt-13b-4xdp-4xpp",
        ["model.num_attention_heads=48"],
        "@: model.num_attention_heads = 48\n"
        "  must divide hidden_size(5120); nearest: 40 (heads of 128) or 64 (heads of 80).\n"
        "  Or set hidden_size to a multiple of 48; nearest: 5088, 5136.",
    ),
    "tensor ranks that do not divide the heads": (
        "gpt-13b-4xdp-4xpp-4xtp",
        ["parallel.tensor_parallel_size=3", "resources.nodes=6", "model.ffn_hidden_size=15360"],
        "@: parallel.tensor_parallel_size = 3\n  must divide num_attention_heads(40); nearest: 2, 4.",
    ),
    "tensor ranks that do not divide the MLP": (
        "gpt-13b-4xdp-4xpp-4xtp",
        ["model.ffn_hidden_size=20482"],
        "@: MLP width = 20482\n  must be a multiple of tensor_parallel_size(4); nearest: 20480, 20484.",
    ),
    "more stages than layers": (
        "gpt-13b-4xdp-4xpp",
        ["parallel.pipeline_parallel_size=64", "resources.nodes=32"],
        "@: parallel.pipeline_parallel_size = 64\n"
        "  must be at most num_layers(40), because each stage needs at least one layer.",
    ),
    "a cut into another number of stages": (
        "gpt-13b-4xdp-4xpp",
        ["parallel.pipeline_stage_layers=[20, 10, 10]"],
        "@: parallel.pipeline_stage_layers = [20, 10, 10]\n"
        "  lists 3 stages, but pipeline_parallel_size is 4. To divide the layers by cost, set "
        "pipeline_stage_layers: null.",
    ),
    "a cut of other layers": (
        "gpt-13b-4xdp-4xpp",
        ["parallel.pipeline_stage_layers=[10, 10, 10, 9]"],
        "@: parallel.pipeline_stage_layers = [10, 10, 10, 9]\n"
        "  adds up to 39 layers, but num_layers is 40. To divide the layers by cost, set "
        "pipeline_stage_layers: null.",
    ),
    "an interleaved pipeline": (
        "gpt-13b-4xdp-4xpp",
        ["parallel.num_layers_per_virtual_pipeline_stage=5"],
        "@: parallel.num_layers_per_virtual_pipeline_stage = 5\n"
        "  turns on the interleaved pipeline schedule, which is not supported: DeepSpeed's PipelineModule "
        "uses the 1F1B schedule (one forward, one backward), with consecutive layers on each rank.\n"
        "  Set num_layers_per_virtual_pipeline_stage: null. To shrink the pipeline bubble, lower "
        "micro_batch_size instead.",
    ),
    "a recomputed piece larger than a stage": (
        "gpt-13b-4xdp-8xpp",
        ["parallel.activation_checkpointing.interval_layers=6"],
        "@: parallel.activation_checkpointing.interval_layers = 6\n"
        "  must be at most 5, the number of layers in the largest of 8 pipeline stages.",
    ),
    "a recomputed piece larger than the model": (
        "gpt-1-3b-4xdp",
        ["parallel.activation_checkpointing.interval_layers=25"],
        "@: parallel.activation_checkpointing.interval_layers = 25\n"
        "  must be at most 24, the number of layers in the model.",
    ),
    "a sequence longer than the positions": (
        "gpt-125m",
        ["model.seq_length=4096"],
        "@: model.seq_length = 4096\n"
        "  must be at most max_position_embeddings(2048). Set seq_length: 2048, or raise "
        "max_position_embeddings to 4096.",
    ),
    "rotary positions of half a pair": (
        "gpt-125m",
        ["model.position_embedding_type=rope", "model.rotary_percent=0.4"],
        "@: model.rotary_percent = 0.4\n"
        "  makes rope rotate 25 of the 64 dimensions of each head, but rope rotates dimensions in pairs, so "
        "the number must be even and more than 0; nearest: 24, 26.",
    ),
    "sequence parallelism without tensor ranks": (
        "gpt-125m",
        ["parallel.sequence_parallel=true"],
        "@: parallel.sequence_parallel = true\n"
        "  needs tensor_parallel_size > 1, but parallel.tensor_parallel_size is 1. Set sequence_parallel: "
        "false, or set tensor_parallel_size > 1.",
    ),
    "a sequence that tensor ranks cannot cut": (
        "gpt-13b-4xdp-4xpp-4xtp",
        ["model.seq_length=2046", "parallel.sequence_parallel=true"],
        "@: model.seq_length = 2046\n"
        "  must be a multiple of tensor_parallel_size(4) with sequence_parallel; nearest: 2044, 2048.",
    ),
    "a sequence that Ulysses cannot cut": (
        "gpt-125m-4xdp",
        ["model.seq_length=2046", *ULYSSES],
        "@: model.seq_length = 2046\n"
        "  must be a multiple of ds_sequence_parallel_size(4); nearest: 2044, 2048.",
    ),
    "chunks that do not fill the sequence": (
        "gpt-125m-4xdp",
        ["parallel.fpdt_chunk_tokens=300", "model.attention_dropout=0.0"],
        "@: model.seq_length = 2048\n  must be a multiple of fpdt_chunk_tokens(300); nearest: 1800, 2100.",
    ),
    "chunks that ranks cannot share": (
        "gpt-125m-4xdp",
        ["parallel.fpdt_chunk_tokens=2", "model.attention_dropout=0.0", *ULYSSES],
        "@: parallel.fpdt_chunk_tokens = 2\n"
        "  must be a multiple of ds_sequence_parallel_size(4), because these ranks share each chunk; "
        "nearest: 4.",
    ),
    "chunks with dropout": (
        "gpt-125m",
        ["parallel.fpdt_chunk_tokens=512"],
        "@: parallel.fpdt_chunk_tokens = 512\n"
        "  turns FPDT on, which needs model.attention_dropout: 0, but attention_dropout is 0.1. FPDT's "
        "backward pass would draw other random numbers than its forward pass.",
    ),
    "chunks across documents": (
        "gpt-125m",
        ["parallel.fpdt_chunk_tokens=512", "model.attention_dropout=0.0", "data.inter_document_masking=true"],
        "@: parallel.fpdt_chunk_tokens = 512\n"
        "  turns FPDT on, which cannot isolate documents from each other as data.inter_document_masking: "
        "true requires. Set fpdt_chunk_tokens: 0, or change data.inter_document_masking.",
    ),
    "chunks across examples": (
        "gpt-125m",
        [
            "parallel.fpdt_chunk_tokens=512",
            "model.attention_dropout=0.0",
            "data.sources=[{kind: alpaca, path: x}]",
        ],
        "@: parallel.fpdt_chunk_tokens = 512\n"
        "  turns FPDT on, which cannot isolate documents from each other as data.packing: best_fit "
        "requires. Set fpdt_chunk_tokens: 0, or change data.packing.",
    ),
    "chunks in fp32": (
        "gpt-125m",
        ["parallel.fpdt_chunk_tokens=512", "model.attention_dropout=0.0", "precision.dtype=fp32"],
        "@: parallel.fpdt_chunk_tokens = 512\n"
        "  needs precision.dtype: bf16 or fp16, but precision.dtype is fp32. Set fpdt_chunk_tokens: 0, or "
        "set precision.dtype: bf16 or fp16.",
    ),
    "chunks of parameters in parts": (
        "gpt-125m",
        ["parallel.fpdt_chunk_tokens=512", "model.attention_dropout=0.0", *ZERO_3],
        "@: parallel.fpdt_chunk_tokens = 512\n"
        "  cannot be combined with zero_stage(3): the combination has not been verified against a run "
        "without FPDT yet.\n"
        "  Set fpdt_chunk_tokens: 0, or use FPDT with Ulysses and ZeRO 1 or 2.",
    ),
    "FP8 of odd numbers of tokens": (
        "gpt-125m",
        [
            "precision.fp8=true",
            "model.seq_length=2047",
            "batch.micro_batch_size=8",
            "precision.dtype=bf16",
            "resources.gpu_type=H100",
        ],
        "@: precision.fp8 = true\n"
        "  needs a multiple of 16 tokens on each rank, but micro_batch_size(8) * seq_length(2047) / "
        "ds_sequence_parallel_size(1) = 16376. Set fp8: false, or change seq_length.",
    ),
    "FP8 of a chunk's odd number of tokens": (
        "gpt-125m",
        [
            "precision.fp8=true",
            "precision.dtype=bf16",
            "parallel.fpdt_chunk_tokens=8",
            "model.attention_dropout=0.0",
            "batch.micro_batch_size=1",
            "resources.gpu_type=H100",
        ],
        "@: precision.fp8 = true\n"
        "  needs a multiple of 16 tokens on each rank, but micro_batch_size(1) * fpdt_chunk_tokens(8) / "
        "ds_sequence_parallel_size(1) = 8. Set fp8: false, or change fpdt_chunk_tokens.",
    ),
    "Ulysses ranks that do not divide the heads": (
        "gpt-125m-4xdp",
        [
            "parallel.ds_sequence_parallel_size=8",
            "parallel.data_parallel_size=1",
            "resources.gpus_per_node=8",
        ],
        "@: parallel.ds_sequence_parallel_size = 8\n  must divide num_attention_heads(12); nearest: 6, 12.",
    ),
    "Ulysses ranks that no GPU is there for": (
        "gpt-125m-4xdp",
        ["parallel.ds_sequence_parallel_size=2"],
        "gpt-125m-4xdp.yaml:18: data(4) * pipeline(1) * tensor(1) * sequence(2) = 8 processes,\n"
        "  but resources has nodes(1) * gpus_per_node(4) = 4 GPUs. Set nodes: 2, or data_parallel_size: 2.",
    ),
    "a layout that is larger than its machines": (
        "gpt-1-3b-4xdp-4xpp",
        ["resources.gpus_per_node=4"],
        "@: data(4) * pipeline(4) * tensor(1) = 16 processes,\n"
        "  but resources has nodes(2) * gpus_per_node(4) = 8 GPUs. Set nodes: 4, or data_parallel_size: 2.",
    ),
    "a layout without any GPU": (
        "gpt-125m",
        ["resources.gpus_per_node=0"],
        "@: data(1) * pipeline(1) * tensor(1) = 1 process,\n"
        "  but resources has nodes(1) * gpus_per_node(0) = 0 GPUs. Set gpus_per_node: 1.",
    ),
    "CPU ranks that do not spread evenly": (
        "gpt3-tiny",
        [
            "resources.nodes=3",
            "parallel.data_parallel_size=4",
            "batch.micro_batch_size=2",
            "parallel.zero_stage=1",
        ],
        "@: data(4) * pipeline(1) * tensor(1) = 4 processes,\n"
        "  which cannot be divided evenly among nodes(3). Nearest numbers of nodes: 2, 4.",
    ),
    "a GPU that no table knows": (
        "gpt-125m",
        ["resources.gpu_type=A100"],
        "@: resources.gpu_type = A100\n"
        "  is not in the device table. Nearest: A100-40GB, A100-80GB, A100-PCIe-40GB. To plan without the "
        "device's memory and peak FLOP/s, set gpu_type: null.",
    ),
    "bf16 on a GPU before Ampere": (
        "gpt-125m",
        ["precision.dtype=bf16", "resources.gpu_type=V100-32GB"],
        "@: precision.dtype = bf16\n"
        "  is not supported by the hardware of resources.gpu_type = V100-32GB, which has compute capability "
        "7.0; bf16 needs 8.0 (Ampere) or higher.\n"
        "  Set precision.dtype: fp16 or fp32, or change gpu_type.",
    ),
    "bf16 on another maker's device": (
        "gpt-125m",
        ["precision.dtype=bf16", "resources.gpu_type=Ascend-910A"],
        "@: precision.dtype = bf16\n"
        "  is not supported by the hardware of resources.gpu_type = Ascend-910A from Huawei.\n"
        "  Set precision.dtype: fp16, or change gpu_type.",
    ),
    "flash attention with dropout on a CPU": (
        "gpt-125m",
        ["model.attention_backend=flash", *ON_CPU],
        "@: model.attention_backend = flash\n"
        "  does not support this run: on a CPU, only the math kernel supports dropout, but "
        "attention_dropout is 0.1.\n"
        "  Set attention_backend: auto.",
    ),
    "efficient attention on a CPU": (
        "gpt3-tiny",
        ["model.attention_backend=efficient"],
        "@: model.attention_backend = efficient\n"
        "  does not support this run: on a CPU, only the flash and math kernels exist.\n"
        "  Set attention_backend: auto.",
    ),
    "flash attention in fp32 on a GPU": (
        "gpt-125m",
        ["model.attention_backend=flash", "precision.dtype=fp32"],
        "@: model.attention_backend = flash\n"
        "  does not support this run: on a GPU, flash attention needs bf16 or fp16, but precision.dtype is "
        "fp32.\n"
        "  Set attention_backend: auto.",
    ),
    "flash attention on an old GPU": (
        "gpt-125m",
        ["model.attention_backend=flash", "resources.gpu_type=T4"],
        "@: model.attention_backend = flash\n"
        "  does not support this run: flash attention needs an Ampere GPU or newer, but resources.gpu_type "
        "is T4.\n"
        "  Set attention_backend: auto.",
    ),
    "flash attention with wide heads": (
        "gpt-125m",
        ["model.attention_backend=flash", "model.num_attention_heads=2"],
        "@: model.attention_backend = flash\n"
        "  does not support this run: flash attention supports head sizes up to 256, but this model's head "
        "size is 384.\n"
        "  Set attention_backend: auto.",
    ),
    "flash attention of a window with dropout": (
        "gpt-125m",
        ["model.attention_backend=flash", "model.window_size=512"],
        "@: model.attention_backend = flash\n"
        "  does not support this run: flash attention takes sequence lengths instead of a mask, which with "
        "window_size(512) requires attention_dropout: 0, but attention_dropout is 0.1.\n"
        "  Set attention_backend: auto.",
    ),
    "flash attention of a window in compiled layers": (
        "gpt-125m",
        ["model={attention_backend: flash, window_size: 512, attention_dropout: 0, compile: true}"],
        "@: model.attention_backend = flash\n"
        "  does not support this run: flash attention takes sequence lengths instead of a mask, which with "
        "window_size(512) requires compile: false, but compile is true.\n"
        "  Set attention_backend: auto.",
    ),
    "flash attention of a window with odd heads": (
        "gpt-125m",
        ["model={attention_backend: flash, attention_dropout: 0, kv_channels: 100, window_size: 512}"],
        "@: model.attention_backend = flash\n"
        "  does not support this run: flash attention takes sequence lengths instead of a mask, which with "
        "window_size(512) requires a head size divisible by 8, but the head size of this model is 100.\n"
        "  Set attention_backend: auto.",
    ),
    "FP8 on a GPU without it": (
        "gpt-125m",
        ["precision.fp8=true", "precision.dtype=bf16"],
        "@: precision.fp8 = true\n"
        "  needs an NVIDIA GPU of generation Hopper (compute capability 9.0) or newer, but "
        "resources.gpu_type = A100-40GB has compute capability 8.0. Set fp8: false.",
    ),
    "FP8 on another maker's GPU": (
        "gpt-125m",
        ["precision.fp8=true", "precision.dtype=bf16", "resources.gpu_type=MI300X"],
        "@: precision.fp8 = true\n"
        "  needs an NVIDIA GPU of generation Hopper (compute capability 9.0) or newer, but "
        "resources.gpu_type = MI300X is made by AMD. Set fp8: false.",
    ),
    "FP8 of odd sides": (
        "gpt-125m",
        [
            "model.ffn_hidden_size=3080",
            "precision.fp8=true",
            "precision.dtype=bf16",
            "resources.gpu_type=H100",
        ],
        "override model.ffn_hidden_size=3080: model.ffn_hidden_size = 3080\n"
        "  gives matrices a dimension of 3080 on each rank, with tensor_parallel_size(1), but FP8 "
        "needs matrix dimensions that are multiples of 16. Set fp8: false, or change the size.",
    ),
    "groups that do not divide the heads": (
        "gpt3-tiny",
        ["model.num_query_groups=3"],
        "@: model.num_query_groups = 3\n  must divide num_attention_heads(4); nearest: 2, 4.",
    ),
    "tensor ranks that neither divide the groups nor are divided": (
        "gpt-125m",
        ["model.num_query_groups=3", "parallel.tensor_parallel_size=4", "resources.gpus_per_node=4"],
        "override parallel.tensor_parallel_size=4: parallel.tensor_parallel_size = 4\n"
        "  must be a divisor or a multiple of num_query_groups(3), so that each rank has complete groups or "
        "an equal part of one group; nearest: 3, 6.",
    ),
    "rows of a group that the ranks cannot cut": (
        "gpt-125m",
        [
            "model={num_query_groups: 1, kv_channels: 65}",
            "parallel.tensor_parallel_size=4",
            "resources.gpus_per_node=4",
        ],
        "override parallel.tensor_parallel_size=4: parallel.tensor_parallel_size = 4\n"
        "  must divide the rows of the query, key and value matrix, (num_attention_heads(12) + 2 * "
        "num_query_groups(1)) * kv_channels(65) = 910, because with fewer groups than ranks the rows are "
        "split evenly. Change tensor_parallel_size, or set kv_channels to a multiple of 2.",
    ),
    "a pattern of no window": (
        "gpt3-tiny",
        ["model.window_attn_skip_freq=2"],
        "@: model.window_attn_skip_freq = 2\n"
        "  applies only with model.window_size, which is null. Set window_size, or remove "
        "window_attn_skip_freq.",
    ),
    "a pattern of other layers": (
        "gpt3-tiny",
        ["model={window_size: 64, window_attn_skip_freq: [1, 0]}"],
        "override model.window_attn_skip_freq=[1, 0]: model.window_attn_skip_freq = [1, 0]\n"
        "  has length 2, but must have one entry for each layer: num_layers is 4.",
    ),
    "a window that no layer uses": (
        "gpt3-tiny",
        ["model={window_size: 64, window_attn_skip_freq: 1}"],
        "override model.window_attn_skip_freq=1: model.window_attn_skip_freq = 1\n"
        "  skips the window in every layer. Set window_attn_skip_freq to at least 2, or set window_size: "
        "null.",
    ),
    "layers without rope that are none": (
        "gpt3-tiny",
        ["model={position_embedding_type: rope, no_rope_freq: [0, 0, 1]}"],
        "override model.no_rope_freq=[0, 0, 1]: model.no_rope_freq = [0, 0, 1]\n"
        "  has length 3, but must have one entry for each layer: num_layers is 4.",
    ),
    "capped scores with dropout": (
        "gpt-125m",
        ["model.attn_logit_softcapping=50"],
        "override model.attn_logit_softcapping=50: model.attn_logit_softcapping = 50.0\n"
        "  needs attention_dropout: 0, but attention_dropout is 0.1. The kernel that caps attention scores "
        "does not support dropout.",
    ),
    "capped scores of a named kernel": (
        "gpt3-tiny",
        ["model={attn_logit_softcapping: 50, attention_backend: math}"],
        "override model.attn_logit_softcapping=50: model.attn_logit_softcapping = 50.0\n"
        "  needs attention_backend: auto, but attention_backend is math. Torch's kernels cannot cap "
        "attention scores; auto uses nbtrain's own kernel.",
    ),
    "FPDT with a window": (
        "gpt-125m",
        ["parallel.fpdt_chunk_tokens=512", "model={window_size: 64, attention_dropout: 0.0}"],
        "override model.window_size=64: model.window_size = 64\n"
        "  is not supported with FPDT, which parallel.fpdt_chunk_tokens(512) turns on. Set "
        "fpdt_chunk_tokens: 0, or remove window_size.",
    ),
    "FPDT with groups": (
        "gpt-125m",
        ["parallel.fpdt_chunk_tokens=512", "model={num_query_groups: 4, attention_dropout: 0.0}"],
        "override model.num_query_groups=4: model.num_query_groups = 4\n"
        "  is not supported with FPDT, which parallel.fpdt_chunk_tokens(512) turns on. Set "
        "fpdt_chunk_tokens: 0, or remove num_query_groups.",
    ),
    "FP8 beside fp16": (
        "gpt-125m",
        ["precision.fp8=true", "resources.gpu_type=H100"],
        "@: precision.fp8 = true\n"
        "  needs precision.dtype: bf16, but precision.dtype is fp16. Set fp8: false, or set "
        "precision.dtype: bf16.",
    ),
    "FP8 on a CPU": (
        "gpt-125m",
        ["precision.fp8=true", "precision.dtype=bf16", *ON_CPU],
        "@: precision.fp8 = true\n"
        "  cannot be combined with resources.device(cpu): only NVIDIA GPUs since Hopper have FP8 units.\n"
        "  Set fp8: false.",
    ),
    "FPDT on a CPU": (
        "gpt-125m",
        ["parallel.fpdt_chunk_tokens=512", "model.attention_dropout=0.0", *ON_CPU],
        "@: parallel.fpdt_chunk_tokens = 512\n"
        "  cannot be combined with resources.device(cpu): FPDT moves chunks of the attention computation "
        "between GPU and host.\n"
        "  Set fpdt_chunk_tokens: 0.",
    ),
    "FPDT on a GPU without flash attention": (
        "gpt-125m",
        ["parallel.fpdt_chunk_tokens=512", "model.attention_dropout=0.0", "resources.gpu_type=T4"],
        "@: parallel.fpdt_chunk_tokens = 512\n"
        "  turns FPDT on, which needs flash-attn 2 and therefore a GPU of generation Ampere (compute "
        "capability 8.0) or newer, but resources.gpu_type is T4. Set fpdt_chunk_tokens: 0.",
    ),
    "quantized weights on a CPU": (
        "gpt-125m",
        ["parallel.zero_quantized_weights=true", *ZERO_3, *ON_CPU],
        "@: parallel.zero_quantized_weights = true\n"
        "  cannot be combined with resources.device(cpu): DeepSpeed's quantization runs on GPUs only.\n"
        "  Set zero_quantized_weights: false.",
    ),
    "quantized gradients without ZeRO 3": (
        "gpt-125m",
        ["parallel.zero_quantized_gradients=true"],
        "@: parallel.zero_quantized_gradients = true\n"
        "  needs parallel.zero_stage: 3, but parallel.zero_stage is 2. Set zero_quantized_gradients: false, "
        "or set parallel.zero_stage: 3.",
    ),
    "quantized gradients that are summed everywhere": (
        "gpt-125m",
        ["parallel.reduce_scatter=false", "parallel.zero_quantized_gradients=true", *ZERO_3],
        "@: parallel.reduce_scatter = false\n"
        "  must be true with zero_quantized_gradients: true, because DeepSpeed quantizes gradients only in "
        "its reduce-scatter.",
    ),
    "hpZ with tensor ranks": (
        "gpt-125m-4xdp",
        ["parallel.zero_hpz=true", *ZERO_3, "parallel.tensor_parallel_size=4", "resources.nodes=4"],
        "@: parallel.zero_hpz = true\n"
        "  cannot be combined with tensor_parallel_size(4): DeepSpeed shards the second copy across "
        "consecutive ranks, but consecutive ranks are tensor-parallel ranks, whose parameters differ.\n"
        "  Set zero_hpz: false, or tensor_parallel_size: 1.",
    ),
    "hpZ with tensor ranks alone on their machine": (
        "gpt-125m-2xdp",
        [
            "parallel.zero_hpz=true",
            *ZERO_3,
            "parallel.tensor_parallel_size=2",
            "parallel.data_parallel_size=1",
        ],
        "@: parallel.zero_hpz = true\n"
        "  cannot be combined with tensor_parallel_size(2): DeepSpeed shards the second copy across "
        "consecutive ranks, but consecutive ranks are tensor-parallel ranks, whose parameters differ.\n"
        "  Set zero_hpz: false, or tensor_parallel_size: 1.",
    ),
    "hpZ in unequal groups": (
        "gpt-125m-4xdp",
        ["parallel.zero_hpz_partition_size=3", "parallel.zero_hpz=true", *ZERO_3],
        "@: parallel.zero_hpz_partition_size = 3\n"
        "  must divide data_parallel_size * ds_sequence_parallel_size * context_parallel_size = 4; nearest: "
        "2, 4.",
    ),
    "a size of hpZ without hpZ": (
        "gpt-125m-4xdp",
        ["parallel.zero_hpz_partition_size=2"],
        "@: parallel.zero_hpz_partition_size = 2\n"
        "  applies only to zero_hpz: true, but zero_hpz is false. Set zero_hpz: true, or set "
        "zero_hpz_partition_size: null.",
    ),
    "parameters offloaded below ZeRO 3": (
        "gpt-125m",
        ["parallel.offload_param.device=cpu"],
        "@: parallel.offload_param.device = cpu\n"
        "  needs parallel.zero_stage: 3, but parallel.zero_stage is 2. Set device: none, or set "
        "parallel.zero_stage: 3.",
    ),
    "an optimizer offloaded without ZeRO": (
        "gpt3-tiny",
        ["parallel.offload_optimizer.device=cpu"],
        "@: parallel.offload_optimizer.device = cpu\n"
        "  needs parallel.zero_stage: 1, 2 or 3, but parallel.zero_stage is 0. Set device: none, or set "
        "parallel.zero_stage: 1, 2 or 3.",
    ),
    "NVMe below ZeRO 3": (
        "gpt-125m",
        ["parallel.offload_optimizer.device=nvme", "parallel.offload_optimizer.nvme_path=/nvme"],
        "@: parallel.offload_optimizer.device = nvme\n"
        "  needs parallel.zero_stage: 3, but parallel.zero_stage is 2. Set device: none and "
        "nvme_path: null, or set parallel.zero_stage: 3.",
    ),
    "initial weights in swap files": (
        "gpt-125m",
        [
            "init_from=models/gpt2",
            "parallel.offload_optimizer.device=nvme",
            "parallel.offload_optimizer.nvme_path=/nvme",
            *ZERO_3,
        ],
        "@: parallel.offload_optimizer.device = nvme\n"
        "  cannot be combined with init_from, because initial weights cannot be loaded into state on NVMe. "
        "Set offload_optimizer.device: cpu and offload_optimizer.nvme_path: null.",
    ),
    "added tokens without a tokenizer": (
        "gpt3-tiny",
        ["tokenizer.added_tokens=[<|a|>]"],
        "@: tokenizer.added_tokens = [<|a|>]\n"
        "  need an existing tokenizer to extend, but tokenizer.path is null. Set tokenizer.path to the "
        "tokenizer of the initial weights (if they come from a run: data/tokenizer/NAME, with that run's "
        "tokenizer.name), and set tokenizer.name to a new name.",
    ),
    "a token added twice": (
        "gpt3-tiny",
        ["tokenizer.added_tokens=[<|a|>, <|a|>]", "tokenizer.path=somewhere"],
        "@: tokenizer.added_tokens = [<|a|>, <|a|>]\n  lists <|a|> more than once. List each token once.",
    ),
    "an added token that is not seen": (
        "gpt3-tiny",
        ['tokenizer.added_tokens=["<|a|>\\n"]', "tokenizer.path=somewhere"],
        'override tokenizer.added_tokens=["<|a|>\\n'
        '"]: tokenizer.added_tokens = ["<|a|>\\n'
        '"]\n'
        "  contains '<|a|>\\n"
        "', which is not visible text. A token may contain letters and symbols, with spaces between them, "
        "but no line breaks, tabs or control characters.",
    ),
    "an added letter": (
        "gpt3-tiny",
        ["tokenizer.added_tokens=[a]", "tokenizer.path=somewhere"],
        "@: tokenizer.added_tokens = [a]\n"
        "  contains a, a single ASCII character: every a in the text would become this token. Use a longer "
        "marker, such as <|user|>.",
    ),
    "an added end of documents": (
        "gpt3-tiny",
        ["tokenizer.added_tokens=[<|endoftext|>]", "tokenizer.path=somewhere"],
        "@: tokenizer.added_tokens = [<|endoftext|>]\n"
        "  contains tokenizer.eod_token(<|endoftext|>). That token marks the end of a document, so it must "
        "not occur in text. Remove this token from added_tokens.",
    ),
    "preferences without weights": (
        "gpt3-tiny",
        ["dpo.beta=0.1", *PAIRS],
        "override dpo.beta=0.1: dpo\n"
        "  scores answers relative to the model named by init_from, but init_from is null. Set init_from to "
        "a fine-tuned run, or to a folder with a Hugging Face model.",
    ),
    "pairs without dpo": (
        "gpt3-tiny",
        PAIRS,
        "@: data.sources[0].kind = preference\n"
        "  needs the section dpo; without it, the model would be trained on rejected answers. Set dpo: "
        "{beta: 0.1}, or use another kind of source.",
    ),
    "preferences of plain text": (
        "gpt3-tiny",
        ["dpo.beta=0.1", "init_from=a-run", "data.packing=best_fit"],
        "gpt-tiny.yaml:22: data.sources[0].kind = python-docs\n  with dpo, every source must have kind: "
        "preference, and at least one source is required.",
    ),
    "preferences in a stream": (
        "gpt3-tiny",
        ["dpo.beta=0.1", "init_from=a-run", PAIRS[0], "data.packing=stream"],
        "@: data.packing = stream\n"
        "  must be best_fit with dpo: best_fit puts both answers of a pair into one sequence, where they "
        "cannot attend to each other. Set packing: best_fit.",
    ),
    "preferences and Ulysses": (
        "gpt3-tiny",
        ["dpo.beta=0.1", "init_from=a-run", *PAIRS, "parallel.ds_sequence_parallel_size=2"],
        "@: parallel.ds_sequence_parallel_size = 2\n"
        "  must be 1 with dpo, because the log-probability of an answer is not summed across ranks that "
        "share its sequence. Use tensor_parallel_size or pipeline_parallel_size instead.",
    ),
    "adapters without weights": (
        "gpt3-tiny",
        ["lora.rank=8"],
        "override lora.rank=8: lora\n"
        "  trains adapters for frozen weights, but init_from, which names these weights, is null. Set "
        "init_from to a run, or to a folder with a Hugging Face model.",
    ),
    "adapters and Muon": (
        "gpt3-tiny",
        ["optimizer.type=Muon", "lora.rank=8", "init_from=a-run"],
        "@: optimizer.type = Muon\n"
        "  orthogonalizes whole matrices, but an adapter consists of the two factors of a matrix. Set "
        "optimizer.type: AdamW.",
    ),
    "vectors of IA3 and Muon": (
        "gpt3-tiny",
        ["optimizer.type=Muon", "lora.kind=ia3", "init_from=a-run"],
        "@: optimizer.type = Muon\n"
        "  orthogonalizes whole matrices, but IA3 adapters are vectors. Set optimizer.type: AdamW.",
    ),
    "two adapters of one matrix": (
        "gpt3-tiny",
        ["lora.targets=[dense, query_key_value, dense]", "init_from=a-run"],
        "@: lora.targets = [dense, query_key_value, dense]\n"
        "  lists a matrix more than once. List each matrix once.",
    ),
    "a row that is not there": (
        "gpt3-tiny",
        ["lora.trainable_token_indices=[7, 1024]", "init_from=a-run"],
        "@: lora.trainable_token_indices\n"
        "  contains the token id 1,024, but with tokenizer.vocab_size(1,024) the ids are 0 to 1,023. Remove "
        "the id, or set tokenizer.vocab_size: 1025.",
    ),
    "a row twice": (
        "gpt3-tiny",
        ["lora.trainable_token_indices=[7, 9, 7]", "init_from=a-run"],
        "@: lora.trainable_token_indices\n  lists the token id 7 more than once. List each id once.",
    ),
    "rows beside IA3": (
        "gpt3-tiny",
        ["lora.kind=ia3", "lora.trainable_token_indices=[7]", "init_from=a-run"],
        "@: lora.trainable_token_indices = [7]\n"
        "  applies only to lora.kind: lora, but lora.kind is ia3. IA3 trains vectors that scale keys, "
        "values and the MLP. Remove trainable_token_indices.",
    ),
    "matrices of IA3": (
        "gpt3-tiny",
        ["lora.kind=ia3", "lora.rank=8", "init_from=a-run"],
        "@: lora.rank = 8\n"
        "  applies only to lora.kind: lora, but lora.kind is ia3. IA3 trains vectors that scale keys, "
        "values and the MLP. Remove rank.",
    ),
    "4 bits that are not configured": (
        "gpt3-tiny",
        ["lora.bnb_4bit_use_double_quant=true", "init_from=a-run"],
        "@: lora.bnb_4bit_use_double_quant = true\n"
        "  applies only to load_in_4bit: true, but load_in_4bit is false. Set load_in_4bit: true, or remove "
        "bnb_4bit_use_double_quant.",
    ),
    "4 bits and ZeRO 3": (
        "gpt-125m",
        [*FOUR_BITS, *ZERO_3],
        "@: parallel.zero_stage = 3\n"
        "  shards each parameter across the ranks, but 4-bit matrices (lora.load_in_4bit) must be complete "
        "on each rank. Set zero_stage: 2, or set load_in_4bit: false to shard the frozen weights.",
    ),
    "4 bits and a pipeline": (
        "gpt-2-7b-2xdp-2xpp-2xtp",
        [*FOUR_BITS, "parallel.tensor_parallel_size=1", "parallel.data_parallel_size=4"],
        "@: parallel.pipeline_parallel_size = 2\n"
        "  splits the model into pipeline stages, which do not support 4-bit matrices (lora.load_in_4bit). "
        "Set pipeline_parallel_size: 1, or set load_in_4bit: false.",
    ),
    "4 bits and the compiler": (
        "gpt3-tiny",
        [*FOUR_BITS, "model.compile=true"],
        "@: model.compile = true\n"
        "  needs matrices of 16 or 32 bits, but lora.load_in_4bit stores them in 4 bits. Set model.compile: "
        "false, or set lora.load_in_4bit: false.",
    ),
    "4 bits twice, cut": (
        "gpt-125m",
        [*FOUR_BITS, "lora.bnb_4bit_use_double_quant=true", *TENSOR_2],
        "@: lora.bnb_4bit_use_double_quant = true\n"
        "  needs the mean over a complete matrix, but tensor_parallel_size(2) shards the matrices. Set "
        "bnb_4bit_use_double_quant: false, which needs 0.373 bits more per weight, or set "
        "tensor_parallel_size: 1.",
    ),
    "4 bits that are cut apart": (
        "gpt-125m",
        [*FOUR_BITS, "model.ffn_hidden_size=3136", *TENSOR_2],
        "@: parallel.tensor_parallel_size = 2\n"
        "  would split blocks of 64 4-bit numbers (lora.load_in_4bit), because ffn_hidden_size(3136) is not "
        "a multiple of 128. Set tensor_parallel_size: 1.",
    ),
    "adapters of a shared group": (
        "gpt-2-7b-2xdp-2xpp-2xtp",
        ["parallel.tensor_parallel_size=2", "model.num_query_groups=1", "lora.rank=8", "init_from=a-run"],
        "@: parallel.tensor_parallel_size = 2\n"
        "  must divide model.num_query_groups(1), because lora.targets contains query_key_value. Lower "
        "tensor_parallel_size, or remove query_key_value from lora.targets.",
    ),
    "adapters and FPDT": (
        "gpt-125m",
        ["parallel.fpdt_chunk_tokens=512", "model.attention_dropout=0", "lora.rank=8", "init_from=a-run"],
        "@: parallel.fpdt_chunk_tokens = 512\n"
        "  turns FPDT on, whose kernel applies the attention matrices without their adapters (lora). Set "
        "fpdt_chunk_tokens: 0.",
    ),
    "NVMe without a folder": (
        "gpt-125m",
        ["parallel.offload_param.device=nvme", *ZERO_3],
        "@: parallel.offload_param.device = nvme\n"
        "  needs offload_param.nvme_path. Set nvme_path to a folder on a local NVMe disk, or set device: "
        "cpu.",
    ),
    "a folder for nothing": (
        "gpt-125m",
        ["parallel.offload_param.nvme_path=/nvme"],
        "@: parallel.offload_param.nvme_path = /nvme\n"
        "  applies only to device: nvme, but offload_param.device is none. Set device: nvme, or set "
        "nvme_path: null.",
    ),
    "pinned memory of nothing": (
        "gpt-125m",
        ["parallel.offload_param.pin_memory=true"],
        "@: parallel.offload_param.pin_memory = true\n"
        "  applies only to device: cpu or nvme, but offload_param.device is none. Set pin_memory: false.",
    ),
    "pinned memory on a CPU": (
        "gpt-125m",
        ["parallel.offload_optimizer.pin_memory=true", "parallel.offload_optimizer.device=cpu", *ON_CPU],
        "@: parallel.offload_optimizer.pin_memory = true\n"
        "  speeds up copies between host and GPU, but resources.device is cpu. Set pin_memory: false.",
    ),
    "too few buffers for Adam": (
        "gpt-125m",
        [
            "parallel.offload_optimizer.buffer_count=3",
            "parallel.offload_optimizer.device=nvme",
            "parallel.offload_optimizer.nvme_path=/nvme",
            *ZERO_3,
        ],
        "@: parallel.offload_optimizer.buffer_count = 3\n"
        "  must be at least 4: one buffer each for master weights, gradients and Adam's two moments.",
    ),
    "state on NVMe saved in the background": (
        "gpt-125m",
        [
            "checkpoint.async_save=true",
            "parallel.offload_param.device=nvme",
            "parallel.offload_param.nvme_path=/nvme",
            *ZERO_3,
        ],
        "@: checkpoint.async_save = true\n"
        "  cannot be combined with offload_param.device(nvme): state on NVMe passes through host memory in "
        "chunks, so host memory never holds a complete state to copy.\n"
        "  Set async_save: false, or device: cpu and nvme_path: null.",
    ),
    "a local folder that is not absolute": (
        "gpt-125m",
        ["checkpoint.local_dir=nvme/{host}"],
        "@: checkpoint.local_dir = nvme/{host}\n"
        "  must be an absolute path, because every node opens it; e.g. /local/nvme/nbtrain.",
    ),
    "a local folder of an unknown placeholder": (
        "gpt-125m",
        ["checkpoint.local_dir=/nvme/{rank}/{host}"],
        "@: checkpoint.local_dir = /nvme/{rank}/{host}\n"
        "  contains {rank}, but the only placeholders are {node} and {host}: the number and the name of the "
        "node.",
    ),
    "swap files on a local disk": (
        "gpt-125m",
        [
            "checkpoint.local_dir=/local",
            "parallel.offload_optimizer.device=nvme",
            "parallel.offload_optimizer.nvme_path=/nvme",
            *ZERO_3,
        ],
        "@: checkpoint.local_dir = /local\n"
        "  cannot be combined with parallel.offload_optimizer.device = nvme, because DeepSpeed copies its "
        "swap files into the checkpoint unchanged. Set local_dir: null, or set offload_optimizer.device: "
        "cpu and offload_optimizer.nvme_path: null.",
    ),
    "local checkpoints without a place": (
        "gpt-125m",
        ["checkpoint.local_save_interval_steps=10"],
        "@: checkpoint.local_save_interval_steps = 10\n"
        "  applies to checkpoints on the nodes' local disks, but checkpoint.local_dir is null. Set "
        "local_dir, e.g. to /local/nvme/nbtrain, or set local_save_interval_steps: null.",
    ),
    "local checkpoints that are rarer": (
        "gpt-125m",
        ["checkpoint.local_dir=/local", "checkpoint.local_save_interval_steps=1000"],
        "@: checkpoint.local_save_interval_steps = 1000\n"
        "  must be less than save_interval_steps(100): at that interval, a checkpoint is written to the "
        "nodes' local disks anyway. Set it to 10, for example, or to null.",
    ),
    "saves on the nodes' disks of a run that saves after every step": (
        "gpt-125m",
        [
            "checkpoint.local_dir=/local",
            "checkpoint.local_save_interval_steps=1",
            "checkpoint.save_interval_steps=1",
        ],
        "@: checkpoint.local_save_interval_steps = 1\n"
        "  must be less than save_interval_steps(1): at that interval, a checkpoint is written to the "
        "nodes' local disks anyway. Set it to null.",
    ),
    "Ulysses ranks that do not divide a tensor rank's heads": (
        "gpt-13b-4xdp-4xpp-4xtp",
        ["parallel.ds_sequence_parallel_size=4", "parallel.data_parallel_size=1"],
        "@: parallel.ds_sequence_parallel_size = 4\n"
        "  must divide num_attention_heads(40) / tensor_parallel_size(4) = 10; nearest: 2, 5.",
    ),
    "a sequence without two chunks for each context-parallel rank": (
        "gpt-13b-4xdp-4xpp-4xtp",
        [
            "parallel.context_parallel_size=4",
            "parallel.data_parallel_size=1",
            "model.seq_length=2044",
        ],
        "@: model.seq_length = 2044\n"
        "  must be a multiple of 2 * context_parallel_size(4) = 8, because each rank gets two chunks; "
        "nearest: 2040, 2048.",
    ),
    "Ulysses with context parallelism": (
        "gpt-13b-4xdp-4xpp-4xtp",
        [
            "parallel.context_parallel_size=2",
            "parallel.ds_sequence_parallel_size=2",
            "parallel.data_parallel_size=1",
        ],
        "@: parallel.context_parallel_size = 2\n"
        "  cannot be combined with ds_sequence_parallel_size(2): the combination has not been verified "
        "against a single-process run yet.\n"
        "  Set one of the two sizes to 1.",
    ),
    "a sequence that Ulysses and tensor ranks cannot share": (
        "gpt-13b-4xdp-4xpp-4xtp",
        [
            "parallel.ds_sequence_parallel_size=2",
            "parallel.data_parallel_size=2",
            "model.seq_length=2045",
            "model.max_position_embeddings=2048",
            "parallel.sequence_parallel=true",
        ],
        "@: model.seq_length = 2045\n"
        "  must be a multiple of tensor_parallel_size(4) * ds_sequence_parallel_size(2) = 8 with "
        "sequence_parallel; nearest: 2040, 2048.",
    ),
    "a compiled model in parts": (
        "gpt-125m",
        ["model.compile=true", *ZERO_3],
        "@: model.compile = true\n"
        "  cannot be combined with zero_stage(3): torch's compiler cannot trace parameters that are sharded "
        "and gathered again between their uses.\n"
        "  Set compile: false, or zero_stage: 2.",
    ),
    "gradients divided beforehand": (
        "gpt-125m",
        ["parallel.prescale_gradients=true"],
        "@: parallel.prescale_gradients = true\n"
        "  applies only to zero_stage: 0, but zero_stage is 2. Set prescale_gradients: false; gradients are "
        "summed in communication_data_type(fp32) either way.",
    ),
    "an elastic checkpoint": (
        "gpt-125m",
        ["parallel.elastic_checkpoint=true"],
        "@: parallel.elastic_checkpoint = true\n"
        "  turns on DeepSpeed's older format for loading a checkpoint on another number of ranks. Set "
        "elastic_checkpoint: false. Every nbtrain checkpoint loads into any layout (docs/parallelism.md).",
    ),
    "ZeRO 0 with 16-bit weights": (
        "gpt-125m",
        ["parallel.zero_stage=0"],
        "@: parallel.zero_stage = 0\n"
        "  cannot be combined with precision.dtype(fp16): with 16-bit weights, DeepSpeed's stage 0 runs an "
        "extra optimizer step at the start, so that Adam is one step ahead.\n"
        "  Set zero_stage: 1, which costs nothing, or precision.dtype: fp32.",
    ),
    "ZeRO 2 with a pipeline": (
        "gpt-1-3b-4xdp-4xpp",
        ["parallel.zero_stage=2"],
        "@: parallel.zero_stage = 2\n"
        "  cannot be combined with pipeline_parallel_size(4): DeepSpeed's pipeline engine keeps unsharded "
        "gradients between micro batches.\n"
        "  Set zero_stage: 1.",
    ),
    "autocast in another format": (
        "gpt-125m",
        ["precision.autocast=true"],
        "@: precision.autocast = true\n"
        "  needs precision.dtype: bf16, but precision.dtype is fp16. Set precision.dtype: bf16, or set "
        "precision.autocast: false.",
    ),
    "a loss scale that starts too low": (
        "gpt-125m",
        ["precision.fp16.min_loss_scale=4096"],
        "@: precision.fp16.initial_scale_power = 11\n"
        "  starts the loss scale at 2048, but it must be at least min_loss_scale(4096).",
    ),
    "a fixed loss scale that is too low": (
        "gpt-125m",
        ["precision.fp16.loss_scale=0.5"],
        "@: precision.fp16.loss_scale = 0.5\n"
        "  starts the loss scale at 0.5, but it must be at least min_loss_scale(1).",
    ),
    "a DeepSpeed key that a field decides": (
        "gpt-125m",
        ["parallel.deepspeed_extra={optimizer: {type: Adam}}"],
        "@: parallel.deepspeed_extra sets optimizer, but nbtrain controls that key through the setting "
        "optimizer. Remove optimizer from deepspeed_extra, and change optimizer instead.",
    ),
    "a DeepSpeed key that is never read": (
        "gpt-125m",
        ["parallel.deepspeed_extra={foo: 1}"],
        "@: parallel.deepspeed_extra sets foo, which DeepSpeed does not read. Remove the key, or correct "
        "its name.",
    ),
    "a typing error inside a section of DeepSpeed": (
        "gpt-125m",
        ["parallel.deepspeed_extra={zero_optimization: {sub_grup_size: 5}}"],
        "@: parallel.deepspeed_extra: DeepSpeed 0.19.8 has no key sub_grup_size in zero_optimization. "
        "Nearest: sub_group_size. Remove the key, or correct its name. To set sub_group_size, use "
        "parallel.sub_group_size.",
    ),
    "a value that DeepSpeed does not take": (
        "gpt-125m",
        ["parallel.deepspeed_extra={csv_monitor: {enabled: perhaps}}"],
        "@: parallel.deepspeed_extra: csv_monitor.enabled must be true or false, not perhaps.",
    ),
    "a value that DeepSpeed reads without a model": (
        "gpt-125m",
        ["parallel.deepspeed_extra={aio: {block_size: 1M}}"],
        "@: parallel.deepspeed_extra: aio.block_size must be a whole number, not 1M.",
    ),
    "a value below DeepSpeed's bound": (
        "gpt-125m",
        ["parallel.deepspeed_extra={zero_optimization: {stage3_max_reuse_distance: -1}}"],
        "@: parallel.deepspeed_extra: zero_optimization.stage3_max_reuse_distance must be at "
        "least 0, not -1.",
    ),
    "a section that is not a mapping": (
        "gpt-125m",
        ["parallel.deepspeed_extra={aio: 4}"],
        "@: parallel.deepspeed_extra: aio must be a mapping of keys, not 4.",
    ),
    "a key that DeepSpeed reads in silence": (
        "gpt-125m",
        ["parallel.deepspeed_extra={aio: {thread_count: 2}}"],
        "@: parallel.deepspeed_extra: DeepSpeed 0.19.8 has no key thread_count in aio. "
        "Nearest: intra_op_parallelism. Remove the key, or correct its name.",
    ),
    "what DeepSpeed had and rejects": (
        "gpt-125m",
        ["parallel.deepspeed_extra={sparse_attention: {mode: fixed}}"],
        "@: parallel.deepspeed_extra: DeepSpeed 0.19.8 rejects sparse_attention, because the "
        "feature was removed. Remove the key.",
    ),
    "what ZeRO had and rejects": (
        "gpt-125m",
        ["parallel.deepspeed_extra={zero_optimization: {mics_shard_size: 8}}"],
        "@: parallel.deepspeed_extra: DeepSpeed 0.19.8 rejects zero_optimization.mics_shard_size, "
        "because the feature was removed. Remove the key.",
    ),
    "a DeepSpeed key with a typing error": (
        "gpt-125m",
        ["parallel.deepspeed_extra={flops_profilr: {enabled: true}}"],
        "@: parallel.deepspeed_extra sets flops_profilr, which DeepSpeed does not read. Nearest: "
        "flops_profiler. Remove the key, or correct its name.",
    ),
    "a length that no run has": (
        "gpt-125m",
        ["batch.train_samples=1e13", "batch.train_tokens=null"],
        "@: batch.train_samples = 10000000000000\n  must be at most 488281250000 = 1e+15 tokens.",
    ),
    "the same in steps": (
        "gpt-125m",
        ["batch.train_steps=1e13", "batch.train_tokens=null"],
        "@: batch.train_steps = 10000000000000\n  must be at most 1907348632 = 1e+15 tokens.",
    ),
    "keys of records that have none": (
        "gpt3-tiny",
        ["data.extra_json_keys=[title]"],
        "@: data.extra_json_keys = [title]\n"
        "  names keys of records, but data.sources has sources of kind python-docs, whose records have no "
        "named keys.\n"
        "  Set extra_json_keys: [], or use only sources of kind jsonl, parquet, hf-dataset, wikiextractor.",
    ),
    "a separator of two lines": (
        "gpt-125m",
        ['data.sources=[{kind: text, path: x, document_separator: "a\\nb"}]'],
        '@: data.sources[0].document_separator = "a\\n'
        'b"\n'
        "  is compared with single lines, so it must be one line without a line break, such as ---.",
    ),
    "a language that is none": (
        "gpt-125m",
        ["data.split_sentences=xx"],
        "@: data.split_sentences = xx\n"
        "  is not a language that the sentence splitter knows. It must be an ISO 639 code such as en, de or "
        "zh.\n"
        "  Set the language of the text. For a language without its own rules, the splitter uses the rules "
        "of a related language, or the English rules.",
    ),
    "a DeepSpeed key that is derived": (
        "gpt-125m",
        ["parallel.deepspeed_extra={zero_optimization: {stage: 3}}"],
        "@: parallel.deepspeed_extra sets zero_optimization.stage, which nbtrain derives as 2. "
        "Remove the key, and change the field of the run from which nbtrain derives it.",
    ),
    "a part of DeepSpeed's offloading": (
        "gpt-125m",
        ["parallel.deepspeed_extra={zero_optimization: {offload_optimizer: {device: cpu}}}"],
        "@: parallel.deepspeed_extra sets zero_optimization.offload_optimizer, but nbtrain controls that "
        "key through the setting parallel.offload_optimizer. Remove zero_optimization.offload_optimizer "
        "from deepspeed_extra, and change parallel.offload_optimizer instead.",
    ),
    "a warm-up from above": (
        "gpt-125m",
        ["lr_schedule.lr_warmup_init=6e-4"],
        "@: lr_schedule.lr_warmup_init = 0.0006\n  must be less than lr(0.0006).",
    ),
    "a beginning of no warm-up": (
        "gpt-125m",
        ["lr_schedule.lr_warmup_init=1e-5", "lr_schedule.lr_warmup_tokens=0"],
        "@: lr_schedule.lr_warmup_init = 1.0e-05\n"
        "  is the learning rate at the start of the warm-up, but this run has no warm-up. Set "
        "lr_warmup_tokens to add a warm-up, or set lr_warmup_init: 0.",
    ),
    "a warm-up in a share and in tokens": (
        "gpt-125m",
        ["lr_schedule.lr_warmup_fraction=0.01"],
        "@: lr_schedule.lr_warmup_tokens = 25000000\n"
        "  and override lr_schedule.lr_warmup_fraction=0.01: lr_schedule.lr_warmup_fraction = 0.01\n"
        "  set the same length in different units. Keep one of them, and set the others to null.",
    ),
    "a warm-up as long as the decay": (
        "gpt-125m",
        ["lr_schedule.lr_warmup_fraction=1.0", "lr_schedule.lr_warmup_tokens=null"],
        "@: lr_schedule.lr_warmup_fraction = 1.0 = 2500000000 tokens\n"
        "  must be less than lr_decay_tokens(2500000000); a usual warm-up is 2.1% of lr_decay_tokens: "
        "52428800 tokens.",
    ),
    "a weight decay with a start that nothing leaves": (
        "gpt-125m",
        ["optimizer.start_weight_decay=0.01"],
        "@: optimizer.start_weight_decay = 0.01\n"
        "  differs from weight_decay(0.1), but weight_decay_incr_style is constant. Set start_weight_decay: "
        "null, or set weight_decay_incr_style to linear or cosine.",
    ),
    "a weight decay without a start": (
        "gpt-125m",
        ["optimizer.weight_decay_incr_style=cosine"],
        "@: optimizer.weight_decay_incr_style = cosine\n"
        "  changes the weight decay from start_weight_decay to weight_decay(0.1), but start_weight_decay is "
        "null. Set start_weight_decay, or set weight_decay_incr_style: constant.",
    ),
    "matrices in another order than Muon's": (
        "gpt-125m",
        [
            "parallel.deepspeed_extra={zero_optimization: {round_robin_gradients: true}}",
            "optimizer.type=Muon",
        ],
        "@: parallel.deepspeed_extra sets zero_optimization.round_robin_gradients, which makes DeepSpeed "
        "reorder parameters, so that Muon could not find its matrices. Remove round_robin_gradients, or set "
        "optimizer.type: AdamW.",
    ),
    "settings of Muon for AdamW": (
        "gpt-125m",
        ["optimizer.muon_lr=0.02"],
        "@: optimizer.muon_lr = 0.02\n"
        "  applies only to optimizer.type: Muon, but optimizer.type is AdamW. Remove muon_lr, or set "
        "optimizer.type: Muon.",
    ),
    "the best of no validation": (
        "gpt-125m",
        ["checkpoint.keep_best=true", "evaluation.eval_iters=0"],
        "@: checkpoint.keep_best = true\n"
        "  compares validation losses, but validation is off because evaluation.eval_iters is 0. Set "
        "evaluation.eval_iters, e.g. to 10, or set keep_best: false.",
    ),
    "a way back to no checkpoint": (
        "gpt-125m",
        ["stability.on_nan=rollback", "batch.max_steps=100"],
        "@: stability.on_nan = rollback\n"
        "  returns to a checkpoint, but with save_interval_steps(100) no checkpoint is written before the "
        "run ends at step 100.\n"
        "  Lower checkpoint.save_interval_steps, or set on_nan: stop.",
    ),
    "a way back in a measurement": (
        "gpt-125m",
        ["stability.on_loss_spike=rollback", "mode=perf"],
        "@: stability.on_loss_spike = rollback\n"
        "  returns to a checkpoint, but a run with mode: perf writes no checkpoints. Set on_loss_spike: "
        "stop.",
    ),
    "a snapshot of no allocator": (
        "gpt3-tiny",
        ["profile.memory_snapshot=true", "profile.enabled=true"],
        "@: profile.memory_snapshot = true\n"
        "  records the allocator of a GPU, but resources.device is cpu. Set memory_snapshot: false. "
        "profile_memory works on CPUs too.",
    ),
    "a rate that rises": (
        "gpt-125m",
        ["lr_schedule.min_lr=0.01"],
        "@: lr_schedule.min_lr = 0.01\n  must be at most lr(0.0006).",
    ),
    "a warm-up without an end": (
        "gpt-125m",
        ["lr_schedule.lr_warmup_tokens=2.5e9"],
        "@: lr_schedule.lr_warmup_tokens = 2500000000\n"
        "  must be less than lr_decay_tokens(2500000000); a usual warm-up is 2.1% of lr_decay_tokens: "
        "52428800 tokens.",
    ),
    "a warm-up longer than the run": (
        "gpt3-tiny",
        ["batch.train_tokens=4096"],
        "@: lr_schedule.lr_warmup_tokens = 61440\n"
        "  must be less than train_tokens(4096); a usual warm-up is 10.0% of train_tokens: 409 tokens.",
    ),
    "checkpoints kept that are not written": (
        "gpt-125m",
        ["checkpoint.keep_every_steps=250"],
        "@: checkpoint.keep_every_steps = 250\n"
        "  must be a multiple of save_interval_steps(100); nearest: 200, 300.",
    ),
    "a profile that does not fit": (
        "gpt-125m",
        ["profile.enabled=true", "batch.max_steps=4"],
        "@: profile.enabled = true\n"
        "  needs a run of at least one profiler cycle, wait_steps(1) + warmup_steps(1) + active_steps(3) = "
        "5 steps, but the run has 4 steps.",
    ),
    "a split in the wrong form": (
        "gpt-125m",
        ["data.split=90/10"],
        "@: data.split = 90/10\n"
        "  must be three relative sizes separated by commas, for training, validation and test, e.g. "
        "949,50,1.",
    ),
    "a key that is not valid in a file's name": (
        "gpt-125m",
        ["data.json_key=../text"],
        "@: data.json_key = ../text\n"
        "  becomes part of a file name: use only letters, digits, '_', '.' and '-', e.g. text.",
    ),
    "an extra key that is not valid in a file's name": (
        "gpt-125m",
        ["data.extra_json_keys=[title, a/b]", "data.sources=[]"],
        "@: data.extra_json_keys = [title, a/b]\n"
        "  contains a/b, which becomes part of a file name: use only letters, digits, '_', '.' and '-', "
        "e.g. text.",
    ),
    "a plain scheduler that others reach": (
        "gpt-125m",
        ["data.workers.address=tcp://10.0.0.5:8786", "data.workers.kind=dask"],
        "@: data.workers.address = tcp://10.0.0.5:8786\n"
        "  must be tls://HOST:PORT, or tcp://127.0.0.1:PORT on this machine. Without TLS, anyone who can "
        "reach the port can run code as you.\n"
        "  Start the scheduler and its workers with --protocol tls, --tls-ca-file, --tls-cert and "
        "--tls-key, and set data.workers.tls_ca_file, tls_cert_file and tls_key_file. Or set cluster: local "
        "or slurm, and nbtrain starts them with TLS.",
    ),
    "a scheduler for local workers": (
        "gpt-125m",
        ["data.workers.cluster=local"],
        "@: data.workers.cluster = local\n"
        "  applies only to a Dask scheduler, but data.workers.kind is local. Set data.workers.kind: dask, "
        "or remove cluster.",
    ),
    "Dask without a scheduler": (
        "gpt-125m",
        ["data.workers.kind=dask"],
        "@: data.workers.kind = dask\n"
        "  needs a Dask scheduler, but neither address nor cluster is set. Set one of the two: address to "
        "use a running scheduler, or cluster: local or slurm to start one.",
    ),
    "a Slurm cluster without a size": (
        "gpt-125m",
        ["data.workers.num_workers=0", "data.workers.kind=dask", "data.workers.cluster=slurm"],
        "@: data.workers.num_workers = 0\n"
        "  must be at least 1 with cluster: slurm. The default, the number of cores of this machine, does "
        "not apply to a cluster.",
    ),
    "processes here and on a cluster": (
        "gpt-125m",
        ["data.num_prepare_workers=2", "data.workers.kind=dask", "data.workers.cluster=local"],
        "@: data.num_prepare_workers = 2\n"
        "  applies only to processes on this machine, but data.workers.kind is dask. Remove "
        "num_prepare_workers; to size a cluster that nbtrain starts, set data.workers.num_workers.",
    ),
    "a key that is encoded twice": (
        "gpt-125m",
        ["data.extra_json_keys=[title, text]", "data.sources=[]"],
        "@: data.extra_json_keys = [title, text]\n"
        "  and data.json_key(text) together list text more than once. List each key once.",
    ),
    "an entry of a blend that is not a dataset": (
        "gpt-125m",
        ["data.blend=[{weight: 1}]", "data.sources=[]"],
        "override data.blend=[{weight: 1}]: data.blend[0] sets neither name nor prefix. Set one of the two: "
        "name for a dataset in data/dataset/, or prefix for any pair of .bin and .idx files.",
    ),
    "an entry of a blend that is two": (
        "gpt-125m",
        ["data.blend=[{name: a, prefix: b, weight: 1}]", "data.sources=[]"],
        "override data.blend=[{name: a, prefix: b, weight: 1}]: data.blend[0] sets both name and prefix. "
        "Set one of the two: name for a dataset in data/dataset/, or prefix for any pair of .bin and .idx "
        "files.",
    ),
    "a blend of itself": (
        "gpt-125m",
        ["data.name=wiki-en", "data.blend=[{name: wiki-en, weight: 1}]", "data.sources=[]"],
        "override data.blend=[{name: wiki-en, weight: 1}]: data.blend[0].name = wiki-en is the same as "
        "data.name, but data.name is the folder of the blend's own index. Set data.name to another name.",
    ),
    "a blend with sources": (
        "gpt3-tiny",
        ["data.blend=[{name: a, weight: 1}]"],
        "override data.blend=[{name: a, weight: 1}]: data.blend mixes existing datasets, and data.sources "
        "builds a dataset from text; a run can use only one of the two.\n"
        "  Prepare the sources as a dataset with its own name and add it to the blend, or set sources: [] "
        "or blend: [].",
    ),
    "packing with an option of streams": (
        "gpt-125m",
        ["data.inter_document_masking=true", "data.packing=best_fit"],
        "@: data.inter_document_masking = true\n"
        "  applies only to packing: stream. With best_fit, examples are always isolated from each other in "
        "attention, positions and loss. Set inter_document_masking: false.",
    ),
    "packing a blend": (
        "gpt-125m",
        ["data.packing=best_fit", "data.blend=[{name: a, weight: 1}]", "data.sources=[]"],
        "@: data.packing = best_fit\n"
        "  packs examples from data.sources, weighted by source, and cannot read data.blend. Set packing: "
        "stream, or list the data in data.sources instead.",
    ),
    "packing with a shuffle of streams": (
        "gpt-125m",
        ["data.shuffle=per_epoch", "data.packing=best_fit"],
        "@: data.shuffle = per_epoch\n"
        "  applies only to packing: stream. best_fit always packs and shuffles each epoch separately. "
        "Remove data.shuffle.",
    ),
    "a weight that is never read": (
        "gpt-125m",
        ["data.sources=[{kind: alpaca, path: x, weight: 2.0}]", "data.packing=stream"],
        "override data.sources=[{kind: alpaca, path: x, weight: 2.0}]: data.sources[0].weight = 2\n"
        "  applies only to packing: best_fit. With packing: stream, each epoch reads all documents once. "
        "Set packing: best_fit, or remove the weight.",
    ),
    "an order that depends on no number": (
        "gpt-125m",
        ["data.index_samples=5", "data.shuffle=per_epoch"],
        "@: data.index_samples = 5\n"
        "  has no effect with shuffle: per_epoch, because the order of the data does not depend on the "
        "number of samples. Set index_samples: null.",
    ),
    "a kernel without a mask": (
        "gpt-125m",
        ["model.attention_backend=flash", "data.inter_document_masking=true"],
        "@: model.attention_backend = flash\n"
        "  does not support masks between documents, which data.inter_document_masking: true requires. Set "
        "attention_backend: auto, which uses flash attention within each document where possible.",
    ),
    "a kernel without a mask, and examples": (
        "gpt-125m",
        ["model.attention_backend=flash", "data.sources=[{kind: alpaca, path: x}]"],
        "@: model.attention_backend = flash\n"
        "  does not support masks between documents, which data.packing: best_fit requires. Set "
        "attention_backend: auto, which uses flash attention within each document where possible.",
    ),
    "a dump on disk that is downloaded": (
        "gpt-125m",
        ["data.sources=[{kind: wiki, path: x.xml, date: '20260101'}]"],
        "override data.sources=[{kind: wiki, path: x.xml, date: '20260101'}]: data.sources[0] sets path, so "
        "that no dump is downloaded, but it also sets date, which only a download uses. Remove path to "
        "download the dump, or remove date to read the file.",
    ),
    "documents that are too short and too long": (
        "gpt-125m",
        ["data.cleaning.min_bytes=100", "data.cleaning.max_bytes=100"],
        "@: data.cleaning.min_bytes = 100\n"
        "  must be less than max_bytes(100); otherwise every document would be dropped.",
    ),
    "a split without training": (
        "gpt-125m",
        ["data.split='0,1,1'"],
        "@: data.split = 0,1,1\n"
        "  leaves no data for training; the first size must be more than 0, e.g. 949,50,1.",
    ),
    "a split without validation": (
        "gpt-125m",
        ["data.split='1,0,0'"],
        "@: data.split = 1,0,0\n"
        "  leaves no data for validation, but evaluation.eval_iters is 10. Set evaluation.eval_iters: 0, or "
        "use a split such as 949,50,1.",
    ),
    "an impossible name of a variable": (
        "gpt-125m",
        ["backend.env={2X: a}"],
        "override backend.env: backend.env: '2X' is not a valid variable name. Use letters, digits and _, "
        "and start with a letter or _.",
    ),
    "a length in two units": (
        "gpt-125m",
        ["batch.train_steps=100"],
        "@: batch.train_tokens = 2500000000\n"
        "  and override batch.train_steps=100: batch.train_steps = 100\n"
        "  set the same length in different units. Keep one of them, and set the others to null.",
    ),
    "a warm-up in steps beyond the run's end": (
        "gpt-125m",
        ["lr_schedule.lr_warmup_steps=4769", "lr_schedule.lr_warmup_tokens=null"],
        "@: lr_schedule.lr_warmup_steps = 4769 = 2500329472 tokens\n"
        "  must be less than lr_decay_tokens(2500000000); a usual warm-up is 2.1% of lr_decay_tokens: "
        "52428800 tokens.",
    ),
    "an evaluation of nothing": (
        "gpt-125m",
        ["mode=eval", "evaluation.eval_iters=0"],
        "@: mode = eval\n"
        "  evaluates no batches, because evaluation.eval_iters is 0. Set evaluation.eval_iters, e.g. to 10, "
        "or set mode: full.",
    ),
    "WSD whose warm-up leaves little": (
        "gpt-125m",
        [
            "lr_schedule={lr_decay_style: WSD, lr_decay_tokens: 1000000000}",
            "lr_schedule.lr_warmup_tokens=950000000",
        ],
        "@: lr_schedule.lr_decay_style = WSD\n"
        "  needs lr_wsd_decay_tokens, the length of the final decay. A usual length is 10 % of the decay "
        "tokens: 100000000, but only 50000000 tokens follow the warm-up.",
    ),
    "WSD without its last part": (
        "gpt-125m",
        ["lr_schedule.lr_decay_style=WSD"],
        "@: lr_schedule.lr_decay_style = WSD\n"
        "  needs lr_wsd_decay_tokens, the length of the final decay. A usual length is 10 % of the decay "
        "tokens: 250000000.",
    ),
    "WSD whose last part begins within the warm-up": (
        "gpt-125m",
        ["lr_schedule.lr_wsd_decay_tokens=2475000001", "lr_schedule.lr_decay_style=WSD"],
        "@: lr_schedule.lr_wsd_decay_tokens = 2475000001\n"
        "  must be at most lr_decay_tokens(2500000000) - lr_warmup_tokens(25000000) = 2475000000 tokens.",
    ),
    "WSD's last part with another style": (
        "gpt-125m",
        ["lr_schedule.lr_wsd_decay_tokens=5e6"],
        "@: lr_schedule.lr_wsd_decay_tokens = 5000000\n"
        "  applies only with lr_decay_style: WSD, but lr_decay_style is cosine. Set lr_decay_style: WSD, or "
        "remove the setting.",
    ),
    "an inverse square root without a warm-up": (
        "gpt-125m",
        ["lr_schedule.lr_decay_style=inverse-square-root", "lr_schedule.lr_warmup_tokens=0"],
        "@: lr_schedule.lr_decay_style = inverse-square-root\n"
        "  decays the learning rate as sqrt(lr_warmup_tokens / tokens), so it needs a warm-up. A usual "
        "length is 2.1% of the decay tokens: set lr_warmup_tokens: 52428800.",
    ),
    "a variable of the launcher's": (
        "gpt-125m",
        ["backend.env={MASTER_PORT: '1'}"],
        "override backend.env: backend.env.MASTER_PORT: nbtrain sets this variable for each rank. Remove it.",
    ),
    "the paths of Python's modules": (
        "gpt-125m",
        ["backend.env={PYTHONPATH: /mine}"],
        "override backend.env: backend.env.PYTHONPATH: it would replace the paths from which ranks import "
        "nbtrain and other modules. Remove the variable; ranks inherit it from the shell that submits the "
        "job, or on Kubernetes from the image.",
    ),
    "a folder of the whole job": (
        "gpt-125m",
        ["backend.env={NBTRAIN_OUTPUT: /mine}"],
        "override backend.env: backend.env.NBTRAIN_OUTPUT: all processes of a job must have the same value, "
        "which comes from the shell that submits the job, or on Kubernetes from "
        "backend.kubernetes.workspace_path. Remove it, and change the value there.",
    ),
    "the accelerator": (
        "gpt-125m",
        ["backend.env={DS_ACCELERATOR: cpu}"],
        "override backend.env: backend.env.DS_ACCELERATOR: resources.device determines this variable. "
        "Remove it.",
    ),
    "a secret among the arguments of a notification": (
        "gpt-125m",
        ["notify.command=[curl, https://me:s3cret@host/x]"],
        "override notify.command: notify.command: entry 1 looks like a secret, or a URL that contains one, "
        "and config.yaml would show it.\n"
        "  Let the program read the secret from the environment, or use notify.url_variable.",
    ),
    "a secret among the arguments of a preemption notice": (
        "gpt-125m",
        ["backend.preemption_notice=[curl, https://me:s3cret@host/x]"],
        "override backend.preemption_notice: backend.preemption_notice: entry 1 looks like a secret, or a "
        "URL that contains one, and config.yaml would show it.\n"
        "  Let the program read the secret from the environment.",
    ),
    "a secret by its name": (
        "gpt-125m",
        ["backend.env.HF_TOKEN=abc"],
        "override backend.env.HF_TOKEN: backend.env.HF_TOKEN looks like a secret, and config.yaml and "
        "environment.json would show it.\n"
        "  Remove it from backend.env, and set it in the shell that submits the job, from which ranks "
        "inherit it; for pods, list its Secret in backend.kubernetes.secret_variables.",
    ),
    "a vocabulary of one token": (
        "gpt-125m",
        ["tokenizer.vocab_size=1"],
        "@: tokenizer.vocab_size = 1\n"
        "  must be at least 2: one end-of-document token (<|endoftext|>) and one text token. A tokenizer "
        "that nbtrain trains needs at least 257: the end-of-document token and 256 bytes.",
    ),
    "hosts without machines": (
        "gpt-125m",
        ["backend.kind=hosts"],
        "@: backend.kind = hosts needs a list of machines. Set backend.hosts.hosts: [name, ...], or set "
        "backend.hosts.hostfile to the path of a DeepSpeed hostfile.",
    ),
    "hosts from two places": (
        "gpt-125m",
        ["backend.hosts.hostfile=h", "backend.kind=hosts", "backend.hosts.hosts=[a]"],
        "@: backend.hosts lists machines both in `hosts` and in `hostfile`. Remove one of the two.",
    ),
    "one machine where two are needed": (
        "gpt-125m-2xdp",
        ["backend.hosts.hosts=[a]", "backend.kind=hosts", "resources.nodes=2", "resources.gpus_per_node=1"],
        "@: backend.hosts.hosts lists 1 machine, but resources.nodes is 2. Add machines, or lower "
        "resources.nodes.",
    ),
    "a machine named twice": (
        "gpt-125m",
        ["backend.hosts.hosts=[a, b, a]", "backend.kind=hosts"],
        "@: backend.hosts.hosts lists a more than once. List each machine once: one agent starts all ranks "
        "of a machine.",
    ),
    "an option that nbtrain writes into the batch script": (
        "gpt-125m",
        ["backend.slurm.sbatch_options=[--nodes=4]", "backend.kind=slurm"],
        "@: backend.slurm.sbatch_options: nbtrain writes --nodes itself. Set resources.nodes instead.",
    ),
    "GPUs that the run's nodes request already": (
        "gpt-125m",
        ["backend.slurm.sbatch_options=[--gpus-per-node=a100:1]", "backend.kind=slurm"],
        "@: backend.slurm.sbatch_options: --gpus-per-node requests the same resource as --gres, which "
        "nbtrain writes because resources.gpus_per_node = 1. Remove --gpus-per-node; to request another "
        "amount, change backend.slurm.gres.",
    ),
    "memory requested twice": (
        "gpt-125m",
        [
            "backend.slurm.sbatch_options=[--mem-per-cpu=4G]",
            "backend.kind=slurm",
            "resources.memory_per_node_bytes=68719476736",
        ],
        "@: backend.slurm.sbatch_options: --mem-per-cpu requests the same resource as --mem, which nbtrain "
        "writes because resources.memory_per_node_bytes = 68719476736. Remove --mem-per-cpu; to request "
        "another amount, change resources.memory_per_node_bytes.",
    ),
    "such an option with its value behind it": (
        "gpt-125m",
        ["backend.slurm.sbatch_options=[-N2]", "backend.kind=slurm"],
        "@: backend.slurm.sbatch_options: nbtrain writes -N itself. Set resources.nodes instead.",
    ),
    "such an option behind another one": (
        "gpt-125m",
        ["backend.slurm.sbatch_options=[--exclude=n1 --time=10]", "backend.kind=slurm"],
        "@: backend.slurm.sbatch_options: nbtrain writes --time itself. Set "
        "backend.slurm.time_limit_seconds instead.",
    ),
    "another folder for the batch step": (
        "gpt-125m",
        ["backend.slurm.sbatch_options=[--chdir /tmp]", "backend.kind=slurm"],
        "@: backend.slurm.sbatch_options: --chdir moves the job out of its working directory, where its log "
        "is. Remove it.",
    ),
    "another cluster for sbatch alone": (
        "gpt-125m",
        ["backend.slurm.sbatch_options=[-Meast]", "backend.kind=slurm"],
        "@: backend.slurm.sbatch_options: -M changes the cluster for sbatch only; sinfo, scontrol and "
        "scancel would still use the default cluster. Remove it, and run `export SLURM_CLUSTERS=NAME` "
        "before you submit.",
    ),
    "an sbatch that waits for the job": (
        "gpt-125m",
        ["backend.slurm.sbatch_options=[--wait]", "backend.kind=slurm"],
        "@: backend.slurm.sbatch_options: --wait makes sbatch wait until the job ends. Remove it.",
    ),
    "shell among the options of sbatch": (
        "gpt-125m",
        ["backend.slurm.sbatch_options=[module load cuda]", "backend.kind=slurm"],
        "@: backend.slurm.sbatch_options: 'module load cuda' is not an sbatch option such as "
        "--mail-type=END. Put shell commands into backend.slurm.setup.",
    ),
    "a time limit without time to train": (
        "gpt-125m",
        ["backend.slurm.time_limit_seconds=120", "backend.kind=slurm"],
        "@: backend.slurm.time_limit_seconds = 120 leaves no time to train: Slurm sends the ranks the "
        "signal to save 120 s before the limit (signal_before_seconds), or up to 60 s earlier than that. Set "
        "time_limit_seconds to at least 240.",
    ),
    "two ways to continue after the time limit": (
        "gpt-125m",
        ["backend.slurm.array=1-4%1", "backend.slurm.resubmissions=3", "backend.kind=slurm"],
        "@: backend.slurm.array = 1-4%1 and backend.slurm.resubmissions = 3 both continue the run after the "
        "time limit. Set only one of the two: an array queues all allocations at once, resubmissions queue "
        "one after another.",
    ),
    "pods whose run directory ends with them": (
        "gpt-125m",
        [
            "backend.kubernetes.workspace_path=/work",
            "backend.kind=kubernetes",
            "resources.image=registry.example.com/nbtrain:0.1.0",
        ],
        "@: backend.kubernetes.workspace_path = /work\n"
        "  must be on a volume from backend.kubernetes.mounts. Otherwise the run directory is deleted with "
        "its pod.",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_rule_says_where_what_and_how_to_mend_it(case):
    """Each broken rule is reported with its complete message: the place, the cause and the fix."""
    run, overrides, expected = BROKEN[case]
    config = load(run, overrides, check=False)
    named = expected.removeprefix("@: ").partition(" = ")[0]
    key = named if named in field_keys() else overrides[0].partition("=")[0]
    found = [str(finding) for finding in find_problems(config)]
    assert found == [expected.replace("@", config.where(key), 1)]


def test_all_problems_of_a_run_are_reported_at_once():
    """Three problems are reported in one error, in the order of the rules."""
    overrides = ["batch.global_batch_size=250", "lr_schedule.min_lr=1", "parallel.zero_stage=0"]
    with pytest.raises(ConfigError) as raised:
        load("gpt-125m-2xdp", overrides)
    lines = [line for line in str(raised.value).splitlines() if not line.startswith("  ")]
    assert [line.partition(":")[0] for line in lines] == [
        "override batch.global_batch_size=250",
        "override parallel.zero_stage=0",
        "override lr_schedule.min_lr=1",
    ]


def test_the_place_is_the_file_and_line_that_set_the_value(run_yaml):
    """The place is the file and line that set the value: the run's own file, or a base that it extends."""
    path = run_yaml("batch:\n  global_batch_size: 17\n")
    with pytest.raises(ConfigError, match=r"^my-run\.yaml:3: batch\.global_batch_size = 17\n"):
        load(path)
    with pytest.raises(ConfigError, match=r"^gpt-tiny\.yaml:\d+: batch\.global_batch_size = 8\n"):
        load(run_yaml("batch:\n  micro_batch_size: 5\n"))


@pytest.mark.parametrize(
    "overrides",
    [
        ["precision.dtype=bf16", "precision.autocast=true", "parallel.zero_stage=0"],
        ["parallel.zero_stage=3"],
        ["lr_schedule.lr_decay_style=constant", "lr_schedule.lr_warmup_tokens=0"],
        ["lr_schedule.lr_decay_style=WSD", "lr_schedule.lr_wsd_decay_tokens=2475000000"],
        ["data.split='1,0,0'", "evaluation.eval_iters=0"],
        ["backend.env={TOKENIZERS_PARALLELISM: 'false', OMP_NUM_THREADS: '1', MAX_TOKENS: '3'}"],
        [
            "parallel.deepspeed_extra={zero_optimization: {round_robin_gradients: true}, aio: "
            "{intra_op_parallelism: 2}, timers: {throughput: {synchronized: false}}, csv_monitor: null}"
        ],
        ["data.split_sentences=sv"],
        ["data.split_sentences=yi"],
        ["data.split_sentences=gsw"],
        ["data.extra_json_keys=[title]", "data.sources=[{kind: jsonl, path: x}]"],
        ["data.index_samples=1220864"],
        ["data.workers.kind=dask", "data.workers.address=localhost:8786"],
        ["data.workers.kind=dask", "data.workers.address=tls://10.0.0.5:8786"],
        ["data.index_samples=1000", "batch.max_steps=10"],
        ["batch.max_steps=2", "batch.global_batch_size=2", "batch.micro_batch_size=1", "model.seq_length=64"],
        ["resources.gpu_type=null"],
        [
            "data.blend=[{name: a, weight: 1}, {prefix: x/y_document, weight: 2}]",
            "data.inter_document_masking=true",
            "data.sources=[]",
        ],
        ["data.packing=best_fit", "data.sources=[{kind: alpaca, path: x}]", "data.cleaning.max_bytes=10"],
        ["resources.device=cpu", "resources.gpus_per_node=0"],
        ["model.attention_backend=math", *ON_CPU],
        ["model.attention_backend=flash", "model.attention_dropout=0.0", *ON_CPU],
        ["precision.fp8=true", "precision.dtype=bf16", "resources.gpu_type=H200"],
        ["optimizer.start_weight_decay=0.01", "optimizer.weight_decay_incr_style=linear"],
        ["stability.on_nan=rollback", "stability.on_loss_spike=rollback"],
        ["parallel.pipeline_parallel_size=5", "parallel.zero_stage=1", "resources.gpus_per_node=5"],
        [
            "parallel.pipeline_parallel_size=2",
            "parallel.zero_stage=1",
            "parallel.pipeline_stage_layers=[9, 3]",
            "resources.gpus_per_node=2",
        ],
        [
            "lr_schedule.lr_warmup_tokens=null",
            "lr_schedule.lr_warmup_fraction=0.01",
            "lr_schedule.lr_warmup_init=1e-6",
        ],
    ],
)
def test_what_is_allowed_passes(overrides):
    """No rule refuses the runs in this table, which must be allowed."""
    check_config(load("gpt-125m", overrides, check=False))


@pytest.mark.slow
def test_every_rule_is_broken_by_some_case():
    """Every rule is broken by at least one case in this file; those of a run's own code need a file, and are
    broken in tests/config/test_code_file.py.
    """
    broken = {own_dataset_is_alone, own_layer_goes_alone, preferences_have_their_own_loss}
    for run, overrides, _ in BROKEN.values():
        config = load(run, overrides, check=False)
        broken |= {rule for rule in RULES if any(rule(config))}
    assert set(RULES) - broken == set()
