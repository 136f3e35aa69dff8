"""The rules of layout.py at their limits: the last value that passes and the first that does not."""

import pytest

from nbtrain.config.load import load
from nbtrain.config.rules import layout

PIPELINE = "parallel={pipeline_parallel_size: 3, pipeline_stage_layers: null}"
FP8 = ("precision.fp8=true", "resources.gpu_type=H100", "model.seq_length=24")
FULL = "parallel.activation_checkpointing.granularity=full"


def messages(rule: str, *overrides: str, run: str = "gpt-125m") -> list[str]:
    """Return one rule's messages about a run.

    125M has 12 layers of width 768, 12 heads and 2,048 positions.
    """
    return [str(finding) for finding in getattr(layout, rule)(load(run, list(overrides), check=False))]


@pytest.mark.parametrize(
    ("rule", "overrides"),
    [
        ("heads_divide", ["parallel.tensor_parallel_size=12"]),
        ("heads_divide", ["parallel.ds_sequence_parallel_size=6"]),
        # Heads of a separate size.
        ("heads_fill_the_width", ["model.kv_channels=80", "model.hidden_size=770"]),
        ("layers_fill_the_stages", [PIPELINE, "model.num_layers=3"]),
        ("layers_fill_the_stages", [PIPELINE, "parallel.pipeline_stage_layers=[1, 1, 10]"]),
        ("recomputed_pieces_fit", [FULL, "parallel.activation_checkpointing.interval_layers=12"]),
        ("recomputed_pieces_fit", ["parallel.activation_checkpointing.interval_layers=99"]),
        # Another rule reports the stages.
        (
            "recomputed_pieces_fit",
            [FULL, PIPELINE, "model.num_layers=2", "parallel.activation_checkpointing.interval_layers=9"],
        ),
        ("sequence_fits_positions", ["model.max_position_embeddings=2048"]),
        ("sequence_divides", ["model.seq_length=2047"]),
        ("sequence_divides", ["model.seq_length=2047", "parallel.tensor_parallel_size=2"]),
        # Any number of heads.
        ("heads_divide", ["parallel.context_parallel_size=5"]),
        ("sequence_divides", ["parallel.context_parallel_size=1024"]),
        ("sequence_divides", ["parallel={fpdt_chunk_tokens: 512, ds_sequence_parallel_size: 4}"]),
        (
            "layout_fits_resources",
            ["parallel.data_parallel_size=4", "resources={nodes: 2, gpus_per_node: 2}"],
        ),
        ("gpu_type_is_known", ["resources.gpu_type=null"]),
        ("attention_backend_serves", ["model.attention_backend=flash", "resources.gpu_type=null"]),
        ("attention_backend_serves", ["model.attention_backend=flash", "resources.gpu_type=A100-40GB"]),
        ("attention_backend_serves", ["model.attention_backend=flash", "model.num_attention_heads=3"]),
        ("attention_backend_serves", ["model.attention_backend=efficient", "precision.dtype=fp32"]),
        (
            "attention_backend_serves",
            [
                "model={attention_backend: flash, attention_dropout: 0}",
                "resources={device: cpu, gpu_type: null}",
            ],
        ),
        ("format_has_its_units", ["precision.dtype=fp16", "resources.gpu_type=V100-32GB"]),
        ("format_has_its_units", ["precision.dtype=bf16", "resources.gpu_type=A100-PCIe-40GB"]),
        ("format_has_its_units", ["precision.dtype=bf16", "resources.gpu_type=null"]),
        ("format_has_its_units", ["precision.dtype=bf16", "resources={device: cpu, gpu_type: T4}"]),
        ("fpdt_has_its_kernels", ["parallel.fpdt_chunk_tokens=512", "model.attention_dropout=0"]),
        ("attention_backend_serves", ["model.attention_backend=flash", "resources.gpu_type=MI300X"]),
        ("fp8_has_its_units", ["precision.fp8=true", "resources.gpu_type=H100"]),
        ("fp8_has_its_units", ["precision.fp8=true", "resources.gpu_type=null"]),
        ("fp8_has_its_units", ["model.ffn_hidden_size=3080"]),
        ("fp8_has_its_units", [*FP8, "parallel.ds_sequence_parallel_size=3", "batch.micro_batch_size=16"]),
        (
            "fp8_has_its_units",
            ["precision.fp8=true", "resources={device: cpu, gpu_type: null}", "model.ffn_hidden_size=3080"],
        ),
    ],
)
def test_what_just_passes(rule, overrides):
    """Values at the limit pass, such as a head size of 256, an A100 for flash
    attention, or an H100 for FP8.
    """
    assert messages(rule, *overrides) == []


@pytest.mark.parametrize(
    ("rule", "overrides", "words"),
    [
        ("layers_fill_the_stages", [PIPELINE, "model.num_layers=2"], "must be at most num_layers(2)"),
        ("layers_fill_the_stages", [PIPELINE, "parallel.pipeline_stage_layers=[6, 6]"], "lists 2 stages"),
        (
            "layers_fill_the_stages",
            [PIPELINE, "parallel.pipeline_stage_layers=[4, 4, 5]"],
            "adds up to 13 layers",
        ),
        (
            "recomputed_pieces_fit",
            [FULL, "parallel.activation_checkpointing.interval_layers=13"],
            "must be at most 12, the number of layers in the model.",
        ),
        (
            "recomputed_pieces_fit",
            [
                FULL,
                "parallel.pipeline_parallel_size=2",
                "parallel.activation_checkpointing.interval_layers=8",
            ],
            "must be at most 7, the number of layers in the largest of 2 pipeline stages.",
        ),
        ("sequence_fits_positions", ["model.max_position_embeddings=2047"], "Set seq_length: 2047, or"),
        (
            "sequence_divides",
            ["model.seq_length=2047", "parallel={tensor_parallel_size: 2, sequence_parallel: true}"],
            "must be a multiple of tensor_parallel_size(2) with sequence_parallel; nearest: 2046, 2048.",
        ),
        (
            "attention_backend_serves",
            ["model.attention_backend=flash", "resources.gpu_type=T4"],
            "needs an Ampere GPU or newer",
        ),
        (
            "attention_backend_serves",
            ["model.attention_backend=efficient", "resources={device: cpu, gpu_type: null}"],
            "only the flash and math kernels exist",
        ),
        (
            "attention_backend_serves",
            ["model.attention_backend=flash", "model={hidden_size: 771, num_attention_heads: 3}"],
            "up to 256, but this model's head size is 257.",
        ),
        ("fp8_has_its_units", ["precision.fp8=true", "resources.gpu_type=L4"], "capability 8.9"),
        (
            "fp8_has_its_units",
            [*FP8, "model={kv_channels: 66}"],
            "model.kv_channels = 66\n"
            "  gives matrices a dimension of 792 on each rank, with tensor_parallel_size(1)",
        ),
        (
            "fp8_has_its_units",
            [*FP8, "model={hidden_size: 1040, ffn_hidden_size: 4096, kv_channels: 86}"],
            "model.kv_channels = 86\n"
            "  gives matrices a dimension of 1032 on each rank, with tensor_parallel_size(1)",
        ),
        (
            "fp8_has_its_units",
            [*FP8, "model={kv_channels: 68, num_query_groups: 1}"],
            "model.num_query_groups = 1\n"
            "  gives matrices a dimension of 952 on each rank, with tensor_parallel_size(1)",
        ),
        (
            "fp8_has_its_units",
            [
                "precision.fp8=true",
                "resources.gpu_type=H100",
                "parallel.tensor_parallel_size=2",
                "model.hidden_size=784",
            ],
            "gives matrices a dimension of 392 on each rank, with tensor_parallel_size(2), but FP8 needs",
        ),
        (
            "fp8_has_its_units",
            [*FP8, "parallel.tensor_parallel_size=2", "model.ffn_hidden_size=3088"],
            "gives matrices a dimension of 1544 on each rank, with tensor_parallel_size(2),",
        ),
        (
            "attention_backend_serves",
            ["model.attention_backend=flash", "resources={device: cpu, gpu_type: null}"],
            "only the math kernel supports dropout, but attention_dropout is 0.1.",
        ),
        (
            "gpu_type_is_known",
            ["resources.gpu_type=a100"],
            "Nearest: A100-40GB, A100-80GB, A100-PCIe-40GB. To plan without",
        ),
        (
            "gpu_type_is_known",
            ["resources.gpu_type=qqqqqqqq"],
            "Known devices: V100-16GB, V100-32GB, V100-PCIe",
        ),
        (
            "fp8_has_its_units",
            [*FP8, "parallel.ds_sequence_parallel_size=3", "batch.micro_batch_size=15"],
            "micro_batch_size(15) * seq_length(24) / ds_sequence_parallel_size(3) = 120",
        ),
        (
            "fp8_has_its_units",
            [*FP8, "parallel.context_parallel_size=3", "batch.micro_batch_size=15"],
            "micro_batch_size(15) * seq_length(24) / context_parallel_size(3) = 120",
        ),
        (
            "attention_backend_serves",
            ["model.attention_backend=flash", "parallel.context_parallel_size=2"],
            "which with context_parallel_size(2) requires attention_dropout: 0",
        ),
        (
            "sequence_divides",
            ["parallel={context_parallel_size: 2, tensor_parallel_size: 3, sequence_parallel: true}"],
            "must be a multiple of tensor_parallel_size(3) * context_parallel_size(2) = 6 with",
        ),
    ],
)
def test_what_just_does_not(rule, overrides, words):
    """A value one step beyond the limit gives one message."""
    [message] = messages(rule, *overrides)
    assert words in message


def test_the_width_of_the_mlp_is_blamed_on_the_field_that_sets_it():
    """A message about the MLP's width names ffn_hidden_size if that is set, else 4 * hidden_size."""
    two, twelve = ("parallel.tensor_parallel_size=" + size for size in ("2", "12"))
    [message] = messages("heads_divide", two, "model.ffn_hidden_size=3073")
    assert message == (
        "override model.ffn_hidden_size=3073: MLP width = 3073\n"
        "  must be a multiple of tensor_parallel_size(2); nearest: 3072, 3074."
    )
    [message] = messages("heads_divide", twelve, "model.hidden_size=770")
    assert message == (
        "override model.hidden_size=770: MLP width = 3080\n"
        "  must be a multiple of tensor_parallel_size(12); nearest: 3072, 3084."
    )
    assert messages("heads_divide", twelve, "model.hidden_size=774") == []


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["model.attention_dropout=0"], None),
        (["parallel.fpdt_chunk_tokens=0", "data.packing=best_fit"], None),
        ([], "needs model.attention_dropout: 0, but attention_dropout is 0.1."),
        (
            ["model.attention_dropout=0", "data.inter_document_masking=true"],
            "data.inter_document_masking: true",
        ),
        (["model.attention_dropout=0", "data.packing=best_fit"], "data.packing: best_fit"),
    ],
)
def test_fpdt_takes_neither_dropout_nor_bounds_of_documents(overrides, words):
    found = messages("fpdt_has_its_kernels", "parallel.fpdt_chunk_tokens=512", *overrides)
    assert len(found) == (words is not None)
    assert words is None or words in found[0]


def test_only_the_interleaved_pipeline_is_refused():
    assert messages("pipeline_is_not_interleaved") == []
    [message] = messages("pipeline_is_not_interleaved", "parallel.num_layers_per_virtual_pipeline_stage=2")
    assert message.startswith(
        "override parallel.num_layers_per_virtual_pipeline_stage=2: "
        "parallel.num_layers_per_virtual_pipeline_stage = 2\n  turns on the interleaved pipeline"
    )


@pytest.mark.parametrize(
    ("overrides", "resources", "advice"),
    [
        (["parallel.data_parallel_size=8"], (1, 4), " Set nodes: 2, or data_parallel_size: 4."),
        (
            ["parallel={data_parallel_size: 3, tensor_parallel_size: 2}"],
            (1, 4),
            " Set gpus_per_node: 6, or data_parallel_size: 2.",
        ),
        (["parallel={data_parallel_size: 3, tensor_parallel_size: 2}"], (1, 0), " Set gpus_per_node: 6."),
        (
            ["parallel={data_parallel_size: 6, tensor_parallel_size: 4}"],
            (4, 2),
            " Set nodes: 12, or data_parallel_size: 2.",
        ),
        (
            ["parallel={tensor_parallel_size: 2, ds_sequence_parallel_size: 2}"],
            (1, 8),
            " Set gpus_per_node: 4, or data_parallel_size: 2.",
        ),
        (["parallel={tensor_parallel_size: 3}"], (2, 2), ""),
        (["parallel={pipeline_parallel_size: 2, tensor_parallel_size: 4}"], (1, 4), " Set nodes: 2."),
        (["parallel={ds_sequence_parallel_size: 8}"], (1, 4), " Set nodes: 2."),
        (["parallel={context_parallel_size: 8}"], (1, 4), " Set nodes: 2."),
        (["parallel={pipeline_parallel_size: 2, tensor_parallel_size: 3}"], (2, 4), " Set gpus_per_node: 3."),
    ],
)
def test_a_layout_that_does_not_fit_comes_with_what_would(overrides, resources, advice):
    """The message about a layout that does not fit suggests numbers of machines or
    replicas that would fit.
    """
    nodes, gpus = resources
    [message] = messages(
        "layout_fits_resources", *overrides, f"resources={{nodes: {nodes}, gpus_per_node: {gpus}}}"
    )
    assert message.endswith(f"nodes({nodes}) * gpus_per_node({gpus}) = {nodes * gpus} GPUs.{advice}")
    shares = "ds_sequence" in overrides[0] or "context" in overrides[0]
    assert (" * sequence(" in message) == shares


def test_processes_spread_evenly_over_machines_without_gpus():
    on_cpu = "resources={device: cpu, gpu_type: null, nodes: 2, gpus_per_node: 7}"
    assert messages("layout_fits_resources", on_cpu, "parallel.data_parallel_size=4") == []
    [message] = messages("layout_fits_resources", on_cpu, "parallel.data_parallel_size=3")
    assert message.endswith("which cannot be divided evenly among nodes(2). Nearest numbers of nodes: 1, 3.")


@pytest.mark.parametrize(
    ("hidden", "wanted", "ranks", "expected"),
    [
        (5120, 48, 1, [40, 64]),
        (5120, 48, 16, [32, 64]),
        (768, 7, 1, [6, 8]),
        (768, 100, 1, [24]),
        (250, 4, 1, []),
    ],
)
def test_head_counts_that_are_named_are_legal(hidden, wanted, ranks, expected):
    """Suggested head counts are legal: head sizes of 32 to 256 in multiples of 8,
    divided evenly among the ranks.
    """
    assert layout.legal_heads(hidden, wanted, ranks) == expected


LLAMA_3 = "model.rope_scaling={kind: llama3, factor: 8, original_max_position_embeddings: 8192}"


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        [LLAMA_3, "model.rotary_base=500000"],
        ["model.rope_scaling={kind: linear, factor: 1}", "model.rotary_percent=0.25"],
        ["model.rope_scaling={kind: yarn, factor: 4, original_max_position_embeddings: 512, beta_fast: 16}"],
    ],
)
def test_rotary_positions_that_fit(overrides):
    assert messages("rotary_positions_fit", "model.position_embedding_type=rope", *overrides) == []


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["model.rotary_percent=0.4"],
            "rotate 25 of the 64 dimensions of each head",
        ),
        (["model.rotary_percent=0.4"], "nearest: 24, 26."),
        (
            ["model.rotary_percent=0.001"],
            "rotate 0 of the 64 dimensions of each head, but rope rotates dimensions in pairs, so the number "
            "must be even and more than 0; nearest: 2.",
        ),
        (
            ["parallel.fpdt_chunk_tokens=512"],
            "does not support model.position_embedding_type: rope.",
        ),
        ([LLAMA_3, "model.rope_scaling.beta_fast=16"], "does not apply to kind: llama3, which uses factor, "),
        (["model.rope_scaling={kind: yarn, factor: 4}"], "original_max_position_embeddings is missing"),
        ([LLAMA_3, "model.rope_scaling.low_freq_factor=4"], "must be less than high_freq_factor(4)."),
        (
            ["model.rope_scaling={kind: linear, factor: 2, original_max_position_embeddings: 9}"],
            "does not apply to kind: linear, which uses factor. Remove",
        ),
    ],
)
def test_rotary_positions_that_do_not(overrides, words):
    found = "\n".join(messages("rotary_positions_fit", "model.position_embedding_type=rope", *overrides))
    assert words in found


@pytest.mark.parametrize("override", ["model.rotary_base=5e5", "model.rotary_percent=0.5", LLAMA_3])
def test_rotary_fields_are_read_with_rope_alone(override):
    (found,) = messages("rotary_positions_fit", override)
    assert (
        "applies only to position_embedding_type: rope, but position_embedding_type is learned_absolute."
        in found
    )
    assert "RopeScalingConfig" not in found
