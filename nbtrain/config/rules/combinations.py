"""Which kinds of parallelism, memory saving and precision go together: the table of the rules and of the
docs.

A kind is something that a run turns on. It may need another kind (ZeRO++ needs ZeRO 3), and a pair of kinds
may be refused, with a reason. Every pair that is not refused can be trained. docs/parallelism.md is generated
from this table, and tests/config/rules/test_combinations.py compares each of its cells with the rules. Facts
about DeepSpeed were read in the code of 0.19.8 or measured with it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nbtrain.config.rules.wording import Problems, found, value_of
from nbtrain.config.schema import RunConfig
from nbtrain.config.yaml_source import show


@dataclass(frozen=True)
class Kind:
    """Something that a run turns on."""

    name: str
    """Its name in this table."""
    short: str
    """A few characters, for the head of a column."""
    words: str
    """What it is."""
    key: str
    """The field that turns it on."""
    settings: Mapping[str, Any]
    """Overrides that turn it on, what it needs left out."""
    present: Callable[[RunConfig], bool]
    axis: str = ""
    """A run has one kind of an axis, so that two of them are no pair."""
    needs: tuple[str, ...] = ()
    """One of these kinds."""
    needs_words: str = ""
    """The same as a setting, e.g. "parallel.zero_stage: 3"."""
    off: str = ""
    """What turns it off."""
    gpu_only: bool = False


def _zero(stage: int, words: str) -> Kind:
    return Kind(
        f"zero{stage}",
        f"Z{stage}",
        f"ZeRO {stage}: {words}",
        "parallel.zero_stage",
        {"parallel.zero_stage": stage},
        lambda config: config.parallel.zero_stage == stage,
        axis="zero",
    )


def _offload(what: str, device: str, short: str, needs: tuple[str, ...], needs_words: str) -> Kind:
    place = {"cpu": "host memory", "nvme": "files on an NVMe disk"}[device]
    held = {"optimizer": "masters and moments", "param": "parameters"}[what]
    settings = {f"parallel.offload_{what}.device": device}
    if device == "nvme":
        settings[f"parallel.offload_{what}.nvme_path"] = "/nvme"
    return Kind(
        f"offload_{what}_{device}",
        short,
        f"{held} in {place}",
        f"parallel.offload_{what}.device",
        settings,
        lambda config: getattr(config.parallel, f"offload_{what}").device == device,
        axis=f"offload_{what}",
        needs=needs,
        needs_words=needs_words,
        off="device: none",
    )


ZERO_3 = "parallel.zero_stage: 3"

KINDS: tuple[Kind, ...] = (
    Kind(
        "data",
        "DP",
        "data parallelism: ranks take different samples",
        "parallel.data_parallel_size",
        {"parallel.data_parallel_size": 2},
        lambda config: config.parallel.data_parallel_size > 1,
    ),
    _zero(0, "nothing is shared out"),
    _zero(1, "optimizer state is shared out"),
    _zero(2, "gradients too"),
    _zero(3, "parameters too"),
    Kind(
        "tensor",
        "TP",
        "tensor parallelism: ranks share each layer's matrices",
        "parallel.tensor_parallel_size",
        {"parallel.tensor_parallel_size": 2},
        lambda config: config.parallel.tensor_parallel_size > 1,
    ),
    Kind(
        "sequence",
        "SP",
        "Megatron sequence parallelism, inside the tensor-parallel group",
        "parallel.sequence_parallel",
        {"parallel.sequence_parallel": True},
        lambda config: config.parallel.sequence_parallel,
        needs=("tensor",),
        needs_words="tensor_parallel_size > 1",
        off="sequence_parallel: false",
    ),
    Kind(
        "pipeline",
        "PP",
        "pipeline parallelism: ranks hold runs of layers",
        "parallel.pipeline_parallel_size",
        {"parallel.pipeline_parallel_size": 2},
        lambda config: config.parallel.pipeline_parallel_size > 1,
    ),
    Kind(
        "ulysses",
        "US",
        "Ulysses: ranks share each sequence, and its attention heads",
        "parallel.ds_sequence_parallel_size",
        {"parallel.ds_sequence_parallel_size": 2},
        lambda config: config.parallel.ds_sequence_parallel_size > 1,
    ),
    Kind(
        "fpdt",
        "FPDT",
        "FPDT: a long sequence in chunks",
        "parallel.fpdt_chunk_tokens",
        {"parallel.fpdt_chunk_tokens": 32},
        lambda config: config.parallel.fpdt_chunk_tokens > 0,
        needs=("bf16", "autocast", "fp16"),
        needs_words="precision.dtype: bf16 or fp16",
        off="fpdt_chunk_tokens: 0",
        gpu_only=True,
    ),
    _offload("optimizer", "cpu", "OC", ("zero1", "zero2", "zero3"), "parallel.zero_stage: 1, 2 or 3"),
    _offload("optimizer", "nvme", "ON", ("zero3",), ZERO_3),
    _offload("param", "cpu", "PC", ("zero3",), ZERO_3),
    _offload("param", "nvme", "PN", ("zero3",), ZERO_3),
    Kind(
        "hpz",
        "hpZ",
        "ZeRO++ hpZ: a second copy of the parameters inside each machine",
        "parallel.zero_hpz",
        {"parallel.zero_hpz": True},
        lambda config: config.parallel.zero_hpz,
        off="zero_hpz: false",
        needs=("zero3",),
        needs_words=ZERO_3,
    ),
    Kind(
        "qwz",
        "qwZ",
        "ZeRO++ qwZ: parameters gathered in INT8",
        "parallel.zero_quantized_weights",
        {"parallel.zero_quantized_weights": True},
        lambda config: config.parallel.zero_quantized_weights,
        off="zero_quantized_weights: false",
        gpu_only=True,
        needs=("zero3",),
        needs_words=ZERO_3,
    ),
    Kind(
        "qgz",
        "qgZ",
        "ZeRO++ qgZ: gradients reduced in INT4",
        "parallel.zero_quantized_gradients",
        {"parallel.zero_quantized_gradients": True},
        lambda config: config.parallel.zero_quantized_gradients,
        off="zero_quantized_gradients: false",
        gpu_only=True,
        needs=("zero3",),
        needs_words=ZERO_3,
    ),
    Kind(
        "fp32",
        "fp32",
        "precision.dtype: fp32",
        "precision.dtype",
        {"precision.dtype": "fp32"},
        lambda config: config.precision.dtype == "fp32",
        axis="precision",
    ),
    Kind(
        "bf16",
        "bf16",
        "precision.dtype: bf16, with bf16 weights",
        "precision.dtype",
        {"precision.dtype": "bf16"},
        lambda config: config.precision.dtype == "bf16" and not config.precision.autocast,
        axis="precision",
    ),
    Kind(
        "autocast",
        "cast",
        "precision.dtype: bf16 by autocast, with fp32 weights",
        "precision.autocast",
        {"precision.dtype": "bf16", "precision.autocast": True},
        lambda config: config.precision.autocast,
        axis="precision",
    ),
    Kind(
        "fp16",
        "fp16",
        "precision.dtype: fp16, with a loss scale",
        "precision.dtype",
        {"precision.dtype": "fp16"},
        lambda config: config.precision.dtype == "fp16",
        axis="precision",
    ),
    Kind(
        "fp8",
        "fp8",
        "FP8: the products of the blocks' linear layers",
        "precision.fp8",
        {"precision.fp8": True},
        lambda config: config.precision.fp8,
        needs=("bf16", "autocast"),
        needs_words="precision.dtype: bf16",
        off="fp8: false",
        gpu_only=True,
    ),
    Kind(
        "selective",
        "sel",
        "selective recomputation of activations",
        "parallel.activation_checkpointing.granularity",
        {"parallel.activation_checkpointing.granularity": "selective"},
        lambda config: config.parallel.activation_checkpointing.granularity == "selective",
        axis="recomputation",
    ),
    Kind(
        "full",
        "full",
        "full recomputation of activations",
        "parallel.activation_checkpointing.granularity",
        {"parallel.activation_checkpointing.granularity": "full"},
        lambda config: config.parallel.activation_checkpointing.granularity == "full",
        axis="recomputation",
    ),
    Kind(
        "compile",
        "comp",
        "torch.compile, block by block",
        "model.compile",
        {"model.compile": True},
        lambda config: config.model.compile,
    ),
    Kind(
        "async_save",
        "save",
        "asynchronous saving of checkpoints",
        "checkpoint.async_save",
        {"checkpoint.async_save": True},
        lambda config: config.checkpoint.async_save,
    ),
    Kind(
        "cpu",
        "CPU",
        "resources.device: cpu",
        "resources.device",
        {"resources.device": "cpu"},
        lambda config: config.resources.device == "cpu",
    ),
)

BY_NAME = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True)
class Refusal:
    """Kinds that do not go together."""

    kind: str
    others: tuple[str, ...]
    reason: str
    """A clause, as it stands behind a colon."""
    fix: str
    """A sentence."""


REFUSALS: tuple[Refusal, ...] = (
    Refusal(
        "zero0",
        ("bf16", "fp16"),
        "with 16-bit weights DeepSpeed's stage 0 makes an extra optimizer step at start, so that Adam is one "
        "step ahead",
        "Set zero_stage: 1, which costs nothing, or precision.dtype: fp32.",
    ),
    Refusal(
        "zero0",
        ("tensor", "pipeline"),
        "gradients would be clipped by the norm of one part of the model",
        "Set zero_stage: 1, which costs nothing.",
    ),
    Refusal(
        "zero2",
        ("pipeline",),
        "DeepSpeed's pipeline engine keeps gradients whole between micro batches",
        "Set zero_stage: 1.",
    ),
    Refusal(
        "zero3",
        ("pipeline",),
        "DeepSpeed's pipeline engine keeps parameters and gradients whole between micro batches",
        "Set zero_stage: 1.",
    ),
    Refusal(
        "ulysses",
        ("tensor", "pipeline"),
        "such a run has not been compared with one process yet",
        "Set ds_sequence_parallel_size: 1, or keep Ulysses with ZeRO 3 and an uncut model. For long "
        "sequences, tensor parallelism has sequence_parallel.",
    ),
    Refusal(
        "hpz",
        ("tensor",),
        "DeepSpeed lets ranks with consecutive numbers share the second copy, but these are tensor-parallel "
        "ranks, whose parameters differ",
        "Set zero_hpz: false, or tensor_parallel_size: 1.",
    ),
    Refusal(
        "qgz",
        ("tensor",),
        "DeepSpeed exchanges INT4 gradients among all ranks of a machine, but tensor-parallel ranks hold "
        "different gradients",
        "Set zero_quantized_gradients: false, or tensor_parallel_size: 1.",
    ),
    Refusal(
        "qwz",
        ("cpu",),
        "DeepSpeed's quantization runs on GPUs only",
        "Set zero_quantized_weights: false.",
    ),
    Refusal(
        "qgz",
        ("cpu",),
        "DeepSpeed's quantization runs on GPUs only",
        "Set zero_quantized_gradients: false.",
    ),
    Refusal(
        "fpdt",
        ("cpu",),
        "FPDT streams chunks of attention between GPU and host",
        "Set fpdt_chunk_tokens: 0.",
    ),
    Refusal(
        "fpdt",
        ("tensor", "pipeline", "zero3"),
        "such a run has not been compared with one without FPDT yet",
        "Set fpdt_chunk_tokens: 0, or take FPDT with Ulysses and ZeRO 1 or 2.",
    ),
    Refusal("fp8", ("cpu",), "only GPUs from Hopper on have FP8 units", "Set fp8: false."),
    Refusal(
        "compile",
        ("zero3",),
        "torch's compiler cannot follow parameters that are cut and gathered again between their uses",
        "Set compile: false, or zero_stage: 2.",
    ),
    Refusal(
        "async_save",
        ("offload_optimizer_nvme", "offload_param_nvme"),
        "state on NVMe passes through host memory in pieces, so that there is no moment at which all of it "
        "can be copied",
        "Set async_save: false, or device: cpu.",
    ),
)


# --- rules ----------------------------------------------------------------------------------------


def kinds_have_what_they_need(config: RunConfig) -> Problems:
    """ZeRO++ has its stage, sequence parallelism its group, FP8 its 16-bit format."""
    for kind in KINDS:
        if (
            kind.needs
            and kind.present(config)
            and not any(BY_NAME[name].present(config) for name in kind.needs)
        ):
            key = BY_NAME[kind.needs[0]].key
            yield (
                f"{found(config, kind.key)}\n"
                f"  needs {kind.needs_words}, but it is {show(value_of(config, key))}. Set {kind.off}, or "
                f"{kind.needs_words}."
            )


def kinds_go_together(config: RunConfig) -> Problems:
    """No pair of kinds is one that trains wrongly, fails late or has no code."""
    for refusal in REFUSALS:
        kind = BY_NAME[refusal.kind]
        others = [BY_NAME[name] for name in refusal.others if BY_NAME[name].present(config)]
        if others and kind.present(config):
            sizes = " and ".join(
                f"{other.key.removeprefix('parallel.')}({show(value_of(config, other.key))})"
                for other in others
            )
            yield f"{found(config, kind.key)}\n  does not go with {sizes}: {refusal.reason}.\n  {refusal.fix}"
