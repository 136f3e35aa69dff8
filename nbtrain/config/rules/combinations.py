"""Table of the supported combinations of parallelism, memory saving and precision, for rules and docs.

A kind is a feature that a run turns on. It may need another kind (ZeRO++ needs ZeRO 3), and a pair of kinds
may be refused, with a reason. Every pair that is not refused can be trained. docs/parallelism.md is generated
from this table, and tests/config/rules/test_combinations.py compares each of its cells with the rules. Facts
about DeepSpeed were read in the code of 0.19.8 or measured with it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from nbtrain.base.text.table import rows
from nbtrain.config.rules.wording import Problems, broken, value_of
from nbtrain.config.schema import RunConfig
from nbtrain.config.yaml_source import show


@dataclass(frozen=True)
class Feature:
    """A feature that a run turns on, such as ZeRO 3 or a pipeline."""

    name: str
    """Name of the kind in this table."""
    short: str
    """Abbreviation of a few characters, for the head of a column."""
    words: str
    """Name of the kind, for messages."""
    key: str
    """Field that turns the kind on."""
    value: bool | int | str
    """Value of the field that turns the kind on. If `above` is set, an example of such a value."""
    above: int | None = None
    """Threshold: every larger value of the field turns the kind on."""
    also: Mapping[str, Any] = field(default_factory=dict)
    """Other overrides that belong to the kind."""
    axis: str = ""
    """Axis of the kind. A run has one kind of each axis, so two kinds of the same axis are never combined."""
    instead: str = ""
    """Kind that counts instead of this one if a run matches both."""
    needs: tuple[str, ...] = ()
    """Kinds of which this one needs at least one."""
    needs_words: str = ""
    """Setting that the kind needs, e.g. "parallel.zero_stage: 3"."""
    gpu_only: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """Overrides that turn the kind on, without the settings that it needs."""
        return {self.key: self.value, **self.also}

    @property
    def off(self) -> str:
        """Setting that turns the kind off."""
        values: dict[type, str] = {bool: "false", int: "0", str: "none"}
        return f"{self.key.rpartition('.')[2]}: {values[type(self.value)]}"

    def present(self, config: RunConfig) -> bool:
        """Return whether a run has this kind."""
        return self.matches(lambda key: value_of(config, key))

    def matches(self, value_of_key: Callable[[str], Any]) -> bool:
        """Return whether a run has this kind, where `value_of_key` returns the run's values."""
        if self.instead and BY_NAME[self.instead].matches(value_of_key):
            return False
        value = value_of_key(self.key)
        return value == self.value if self.above is None else value > self.above


def _size(name: str, short: str, words: str, key: str) -> Feature:
    return Feature(name, short, words, f"parallel.{key}", 2, above=1)


def _offload(what: str, device: str, short: str, needs: tuple[str, ...], needs_words: str) -> Feature:
    place = {"cpu": "host memory", "nvme": "files on an NVMe disk"}[device]
    held = {"optimizer": "masters and moments", "param": "parameters"}[what]
    section = f"parallel.offload_{what}"
    also = {f"{section}.nvme_path": "/nvme"} if device == "nvme" else {}
    name, words, key = f"offload_{what}_{device}", f"{held} in {place}", f"{section}.device"
    axis = f"offload_{what}"
    return Feature(name, short, words, key, device, None, also, axis, needs=needs, needs_words=needs_words)


def _zero_plus(name: str, short: str, words: str, key: str, gpu_only: bool) -> Feature:
    key, needs = f"parallel.{key}", ("zero3",)
    return Feature(
        name, short, f"ZeRO++ {words}", key, True, needs=needs, needs_words=ZERO_3, gpu_only=gpu_only
    )


ZERO_3 = "parallel.zero_stage: 3"
ZERO = ("nothing is sharded", "optimizer state is sharded", "gradients too", "parameters too")
DTYPE, RECOMPUTED = "precision.dtype", "parallel.activation_checkpointing.granularity"

KINDS: tuple[Feature, ...] = (
    _size("data", "DP", "data parallelism: ranks take different samples", "data_parallel_size"),
    *(
        Feature(
            f"zero{stage}", f"Z{stage}", f"ZeRO {stage}: {words}", "parallel.zero_stage", stage, axis="zero"
        )
        for stage, words in enumerate(ZERO)
    ),
    _size("tensor", "TP", "tensor parallelism: ranks share each layer's matrices", "tensor_parallel_size"),
    Feature(
        "sequence",
        "SP",
        "Megatron sequence parallelism, inside the tensor-parallel group",
        "parallel.sequence_parallel",
        True,
        needs=("tensor",),
        needs_words="tensor_parallel_size > 1",
    ),
    _size("pipeline", "PP", "pipeline parallelism: ranks hold consecutive layers", "pipeline_parallel_size"),
    _size(
        "ulysses",
        "US",
        "Ulysses: ranks share each sequence, and its attention heads",
        "ds_sequence_parallel_size",
    ),
    _size(
        "context",
        "CP",
        "context parallelism: ranks share each sequence, and gather its keys and values",
        "context_parallel_size",
    ),
    Feature(
        "fpdt",
        "FPDT",
        "FPDT: a long sequence in chunks",
        "parallel.fpdt_chunk_tokens",
        32,
        above=0,
        needs=("bf16", "autocast", "fp16"),
        needs_words="precision.dtype: bf16 or fp16",
        gpu_only=True,
    ),
    _offload("optimizer", "cpu", "OC", ("zero1", "zero2", "zero3"), "parallel.zero_stage: 1, 2 or 3"),
    _offload("optimizer", "nvme", "ON", ("zero3",), ZERO_3),
    _offload("param", "cpu", "PC", ("zero3",), ZERO_3),
    _offload("param", "nvme", "PN", ("zero3",), ZERO_3),
    _zero_plus("hpz", "hpZ", "hpZ: a second copy of the parameters inside each machine", "zero_hpz", False),
    _zero_plus("qwz", "qwZ", "qwZ: parameters gathered in INT8", "zero_quantized_weights", True),
    _zero_plus("qgz", "qgZ", "qgZ: gradients reduced in INT4", "zero_quantized_gradients", True),
    Feature("fp32", "fp32", "precision.dtype: fp32", DTYPE, "fp32", axis="precision"),
    Feature(
        "bf16",
        "bf16",
        "precision.dtype: bf16, with bf16 weights",
        DTYPE,
        "bf16",
        axis="precision",
        instead="autocast",
    ),
    Feature(
        "autocast",
        "cast",
        "precision.dtype: bf16 by autocast, with fp32 weights",
        "precision.autocast",
        True,
        also={DTYPE: "bf16"},
        axis="precision",
    ),
    Feature("fp16", "fp16", "precision.dtype: fp16, with a loss scale", DTYPE, "fp16", axis="precision"),
    Feature(
        "fp8",
        "fp8",
        "FP8: the products of the blocks' linear layers",
        "precision.fp8",
        True,
        needs=("bf16", "autocast"),
        needs_words="precision.dtype: bf16",
        gpu_only=True,
    ),
    *(
        Feature(
            value, short, f"{value} recomputation of activations", RECOMPUTED, value, axis="recomputation"
        )
        for value, short in (("selective", "sel"), ("full", "full"))
    ),
    Feature("muon", "Muon", "Muon for the blocks' matrices", "optimizer.type", "Muon"),
    Feature("compile", "comp", "torch.compile, block by block", "model.compile", True),
    Feature("async_save", "save", "asynchronous saving of checkpoints", "checkpoint.async_save", True),
    Feature("cpu", "CPU", "resources.device: cpu", "resources.device", "cpu"),
)

BY_NAME = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True)
class Clash:
    """Kinds that cannot be combined."""

    kind: str
    others: tuple[str, ...]
    reason: str
    """Reason, as a clause that follows a colon."""
    fix: str
    """Fix, as a sentence."""


_CLASHES = """
zero0 | bf16 fp16 | with 16-bit weights DeepSpeed's stage 0 makes an extra optimizer step at start, so that
    Adam is one step ahead | Set zero_stage: 1, which costs nothing, or precision.dtype: fp32.
zero2 | pipeline | DeepSpeed's pipeline engine keeps gradients whole between micro batches | Set zero_stage:
    1.
zero3 | pipeline | DeepSpeed's pipeline engine keeps parameters and gradients whole between micro batches |
    Set zero_stage: 1.
hpz | tensor | DeepSpeed lets ranks with consecutive numbers share the second copy, but these are
    tensor-parallel ranks, whose parameters differ | Set zero_hpz: false, or tensor_parallel_size: 1.
qgz | tensor | DeepSpeed exchanges INT4 gradients among all ranks of a machine, but tensor-parallel ranks hold
    different gradients | Set zero_quantized_gradients: false, or tensor_parallel_size: 1.
qwz | cpu | DeepSpeed's quantization runs on GPUs only | Set zero_quantized_weights: false.
qgz | cpu | DeepSpeed's quantization runs on GPUs only | Set zero_quantized_gradients: false.
fpdt | cpu | FPDT streams chunks of attention between GPU and host | Set fpdt_chunk_tokens: 0.
context | ulysses | such a run has not been compared with one process yet | Set one of the two to 1.
fpdt | context | each context-parallel rank attends to the keys of all tokens, which FPDT never has on the GPU
    together | Set context_parallel_size: 1, and share sequences by Ulysses.
fpdt | tensor pipeline zero3 | such a run has not been compared with one without FPDT yet | Set
    fpdt_chunk_tokens: 0, or use FPDT with Ulysses and ZeRO 1 or 2.
muon | offload_optimizer_cpu offload_optimizer_nvme | each step orthogonalizes whole matrices, which takes
    minutes on a host's cores | Set offload_optimizer.device: none and nvme_path: null, or optimizer.type:
    AdamW.
muon | offload_param_nvme | such a run has not been compared with one process yet | Set
    offload_param.device: cpu and nvme_path: null, or optimizer.type: AdamW.
muon | qwz qgz | such a run has not been compared with one process yet | Set zero_quantized_weights: false and
    zero_quantized_gradients: false, or optimizer.type: AdamW.
fp8 | cpu | only GPUs from Hopper on have FP8 units | Set fp8: false.
compile | zero3 | torch's compiler cannot follow parameters that are sharded and gathered again between
    their uses | Set compile: false, or zero_stage: 2.
async_save | offload_optimizer_nvme offload_param_nvme | state on NVMe passes through host memory in pieces
    and is never there as a whole to be copied | Set async_save: false, or device: cpu and nvme_path: null.
"""
CLASHES = tuple(
    Clash(kind, tuple(others.split()), reason, fix) for kind, others, reason, fix in rows(_CLASHES)
)


def clashes(present: Collection[str]) -> Iterator[str]:
    """Yield the reasons why the kinds with these names cannot be combined, each as a clause."""
    for kind in KINDS:
        if kind.needs and kind.name in present and not any(name in present for name in kind.needs):
            yield f"{_name(kind)} needs {kind.needs_words}"
    for clash in CLASHES:
        if clash.kind not in present:
            continue
        if others := [BY_NAME[name] for name in clash.others if name in present]:
            words = " and ".join(_name(other) for other in others)
            yield f"{_name(BY_NAME[clash.kind])} cannot be combined with {words}: {clash.reason}"


def _name(kind: Feature) -> str:
    return kind.words.removeprefix("precision.dtype: ").partition(":")[0]


def kinds_have_what_they_need(config: RunConfig) -> Problems:
    """ZeRO++ needs its ZeRO stage, sequence parallelism its tensor-parallel group, and FP8 its 16-bit
    format.
    """
    for kind in KINDS:
        needed = [BY_NAME[name] for name in kind.needs]
        if needed and kind.present(config) and not any(other.present(config) for other in needed):
            key = needed[0].key
            yield broken(
                config,
                kind.key,
                f"needs {kind.needs_words}, but it is {show(value_of(config, key))}.",
                f"Set {kind.off}, or {kind.needs_words}.",
            )


def kinds_go_together(config: RunConfig) -> Problems:
    """No two kinds are combined that train wrongly, fail late or are not implemented."""
    for clash in CLASHES:
        kind = BY_NAME[clash.kind]
        others = [BY_NAME[name] for name in clash.others if BY_NAME[name].present(config)]
        if others and kind.present(config):
            sizes = " and ".join(
                f"{other.key.removeprefix('parallel.')}({show(value_of(config, other.key))})"
                for other in others
            )
            yield broken(config, kind.key, f"cannot be combined with {sizes}: {clash.reason}.\n  {clash.fix}")
