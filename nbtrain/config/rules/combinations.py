"""The combinations of parallelism, memory-saving techniques and number formats that a run may use.

A feature may need another feature (ZeRO++ needs ZeRO 3), and CLASHES lists the pairs that cannot be combined,
each with a reason. In the code, a feature is also called a kind. Every other pair can be trained. The table
in docs/parallelism.md is generated from this module, and tests/config/rules/test_combinations.py compares
each of its cells with the rules. Statements about DeepSpeed come from the source code of 0.19.8 or from
measurements with it.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Set
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
    """Identifier of the feature in this module."""
    short: str
    """Abbreviation of the feature, a few characters for column headings."""
    words: str
    """Description of the feature, for messages and the docs."""
    key: str
    """Field that turns the feature on."""
    value: bool | int | str
    """Value of the field `key` that turns the feature on; if `above` is set, an example of such a value."""
    above: int | None = None
    """Threshold of a numeric field `key`: every larger value turns the feature on. None for other fields."""
    also: Mapping[str, Any] = field(default_factory=dict)
    """Further overrides without which the feature is not valid."""
    axis: str = ""
    """Group of mutually exclusive features, such as the ZeRO stages; "" if the feature is in no group."""
    instead: str = ""
    """Name of another feature, which takes precedence if a run matches both; "" if there is none."""
    needs: tuple[str, ...] = ()
    """Names of other features, at least one of which must be on too."""
    needs_words: str = ""
    """Setting that turns on one of the features in `needs`, e.g. "parallel.zero_stage: 3"."""
    only_with: tuple[str, ...] = ()
    """Fields that may be set only with this feature, and must be null otherwise."""
    gpu_only: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        """Overrides that turn on this feature, but not the features in `needs`."""
        return {self.key: self.value, **self.also}

    def off(self, config: RunConfig, in_section: str = "") -> str:
        """Return the settings that turn the feature off in a run.

        Fields that apply only with the feature are reset too.

        With `in_section`, such as "parallel.", keys are relative to that section.
        """
        values: dict[type, str] = {bool: "false", int: "0", str: "none"}
        written = self.key.removeprefix(in_section) if in_section else self.key.rpartition(".")[2]
        settings = [f"{written}: {values[type(self.value)]}"]
        settings += [
            f"{key.rpartition('.')[2]}: null"
            for key in (*self.also, *self.only_with)
            if key.rpartition(".")[0] == self.key.rpartition(".")[0] and value_of(config, key) is not None
        ]
        return " and ".join(settings)

    def present(self, config: RunConfig) -> bool:
        """Return whether a run has this feature."""
        return self.matches(lambda key: value_of(config, key))

    def matches(self, value_of_key: Callable[[str], Any]) -> bool:
        """Return whether a run has this feature; `value_of_key` returns the run's value of a dotted key."""
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
    return Feature(
        name,
        short,
        f"ZeRO++ {words}",
        f"parallel.{key}",
        True,
        only_with=("parallel.zero_hpz_partition_size",) if name == "hpz" else (),
        needs=("zero3",),
        needs_words=ZERO_3,
        gpu_only=gpu_only,
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
    Feature("fp32", "fp32", "fp32: weights and computation in fp32", DTYPE, "fp32", axis="precision"),
    Feature(
        "bf16",
        "bf16",
        "bf16 weights: weights and computation in bf16",
        DTYPE,
        "bf16",
        axis="precision",
        instead="autocast",
    ),
    Feature(
        "autocast",
        "cast",
        "bf16 autocast: fp32 weights, computation in bf16",
        "precision.autocast",
        True,
        also={DTYPE: "bf16"},
        axis="precision",
    ),
    Feature(
        "fp16",
        "fp16",
        "fp16: weights and computation in fp16, with a loss scale",
        DTYPE,
        "fp16",
        axis="precision",
    ),
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
    Feature("cpu", "CPU", "CPUs: the ranks run on CPU cores", "resources.device", "cpu"),
)

BY_NAME = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True)
class Clash:
    """A feature, and other features that cannot be combined with it."""

    kind: str
    others: tuple[str, ...]
    reason: str
    """Reason why the features cannot be combined, as a clause without a capital letter or a period."""
    fix: str
    """Sentence that says which settings resolve the clash."""


_CLASHES = """
zero0 | bf16 fp16 | with 16-bit weights, DeepSpeed's stage 0 runs an extra optimizer step at the start, so
    that Adam is one step ahead | Set zero_stage: 1, which costs nothing, or precision.dtype: fp32.
zero2 | pipeline | DeepSpeed's pipeline engine keeps unsharded gradients between micro batches | Set
    zero_stage: 1.
zero3 | pipeline | DeepSpeed's pipeline engine keeps unsharded parameters and gradients between micro
    batches | Set zero_stage: 1.
hpz | tensor | DeepSpeed shards the second copy across consecutive ranks, but consecutive ranks are
    tensor-parallel ranks, whose parameters differ | Set zero_hpz: false, or tensor_parallel_size: 1.
qgz | tensor | DeepSpeed exchanges INT4 gradients among all ranks of a machine, but the gradients of
    tensor-parallel ranks belong to different parameters | Set zero_quantized_gradients: false, or
    tensor_parallel_size: 1.
qwz | cpu | DeepSpeed's quantization runs on GPUs only | Set zero_quantized_weights: false.
qgz | cpu | DeepSpeed's quantization runs on GPUs only | Set zero_quantized_gradients: false.
fpdt | cpu | FPDT moves chunks of the attention computation between GPU and host | Set fpdt_chunk_tokens: 0.
context | ulysses | the combination has not been verified against a single-process run yet | Set one of the
    two sizes to 1.
fpdt | context | each context-parallel rank attends to the keys of all tokens, but FPDT never holds all keys
    on the GPU at once | Set context_parallel_size: 1, and split sequences with ds_sequence_parallel_size.
fpdt | tensor pipeline zero3 | the combination has not been verified against a run without FPDT yet |
    Set fpdt_chunk_tokens: 0, or use FPDT with Ulysses and ZeRO 1 or 2.
muon | offload_optimizer_cpu offload_optimizer_nvme | each step orthogonalizes whole matrices, which takes
    minutes on CPU cores | Set offload_optimizer.device: none and nvme_path: null, or optimizer.type:
    AdamW.
muon | offload_param_nvme | the combination has not been verified against a single-process run yet | Set
    offload_param.device: cpu and nvme_path: null, or optimizer.type: AdamW.
muon | qwz qgz | the combination has not been verified against a single-process run yet | Set
    zero_quantized_weights: false and zero_quantized_gradients: false, or optimizer.type: AdamW.
fp8 | cpu | only NVIDIA GPUs since Hopper have FP8 units | Set fp8: false.
compile | zero3 | torch's compiler cannot trace parameters that are sharded and gathered again between their
    uses | Set compile: false, or zero_stage: 2.
async_save | offload_optimizer_nvme offload_param_nvme | state on NVMe passes through host memory in chunks,
    so host memory never holds a complete state to copy | Set async_save: false, or device: cpu and
    nvme_path: null.
"""
CLASHES = tuple(
    Clash(kind, tuple(others.split()), reason, fix) for kind, others, reason, fix in rows(_CLASHES)
)


def clashes(present: Collection[str]) -> Iterator[str]:
    """Yield the reasons why the features with the names `present` cannot be combined, each as a clause."""
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
    return kind.words.partition(":")[0]


def kinds_have_what_they_need(config: RunConfig) -> Problems:
    """Check that the run turns on what each of its features needs, e.g. ZeRO 3 for ZeRO++."""
    present = {kind.name for kind in KINDS if kind.present(config)}
    for kind in KINDS:
        needed = [BY_NAME[name] for name in kind.needs]
        if needed and kind.name in present and present.isdisjoint(kind.needs):
            key = needed[0].key
            settings = kind.needs_words
            if all(other.key == key for other in needed):
                # A value that clashes with the rest of the run is not proposed.
                others = {name for name in present if BY_NAME[name].key != key}
                possible = [other for other in needed if not _clashes_with(other.name, others)]
                if len(possible) < len(needed):
                    values = " or ".join(show(other.value) for other in possible)
                    settings = f"{key}: {values}" if values else ""
            yield broken(
                config,
                kind.key,
                f"needs {kind.needs_words}, but {key} is {show(value_of(config, key))}.",
                f"Set {kind.off(config)}{f', or set {settings}' if settings else ''}.",
            )


def _clashes_with(name: str, present: Set[str]) -> bool:
    """Return whether the feature `name` cannot be combined with one of the features in `present`."""
    return any(
        clash.kind in present if name in clash.others else name == clash.kind and present & set(clash.others)
        for clash in CLASHES
    )


def kinds_go_together(config: RunConfig) -> Problems:
    """Check that the run combines no features that train wrongly, fail late or are not implemented."""
    for clash in CLASHES:
        kind = BY_NAME[clash.kind]
        others = [BY_NAME[name] for name in clash.others if BY_NAME[name].present(config)]
        if others and kind.present(config):
            sizes = " and ".join(
                f"{other.key.removeprefix('parallel.')}({show(value_of(config, other.key))})"
                for other in others
            )
            fix = _complete_fix(config, kind, clash.fix)
            yield broken(config, kind.key, f"cannot be combined with {sizes}: {clash.reason}.\n  {fix}")


def _complete_fix(config: RunConfig, kind: Feature, fix: str) -> str:
    """Return the fix of a clash, completed by the settings that must change along with it.

    If the fix turns `kind` off, the fields that apply only with `kind` are reset. If the fix lowers the ZeRO
    stage, the features that need the higher stage are turned off.
    """
    turned_off = f"{kind.key.rpartition('.')[2]}: false"
    fix = fix.replace(turned_off, kind.off(config)) if turned_off in fix else fix
    if (lower := re.search(r"zero_stage: \d", fix)) is None:
        return fix
    stage = f"zero{lower[0][-1]}"
    dependent = [
        other.off(config, "parallel.")
        for other in KINDS
        if "zero3" in other.needs and stage not in other.needs and other.present(config)
    ]
    return fix.replace(lower[0], " and ".join((lower[0], *dependent)))
