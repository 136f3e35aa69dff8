"""Adapters in the format of `peft`: adapter_config.json, and two tensors for each adapted module.

    base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight    [r, inputs]
    base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight    [outputs, r]

In a Llama model, queries, keys and values are separate modules, and so are nbtrain's adapters
(parallel/lora.py). peft_tokens.py handles trained token rows.

GPT-2 has a single module for queries, keys and values (attn.c_attn). Its adapter is written with three times
the rank, and each third of the rank has its own rows. In an adapter trained by peft, all rows share the first
matrix, so that matrix is read three times.

This module does not use torch, so that processes with and without torch can import it.
checkpoint/weights/peft_adapters.py reads the tensors, and checkpoint/pretrained/adapters.py writes them.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtrain.base.errors import CheckpointError
from nbtrain.base.text.terminal import shortened
from nbtrain.base.workspace import display
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.lora_section import TARGETS
from nbtrain.config.yaml_source import show
from nbtrain.pretrained import peft_ia3, peft_tokens
from nbtrain.pretrained.folder import PEFT_SETTINGS
from nbtrain.pretrained.peft_files import PREFIX, name_problems, read_settings, read_tensors, targets_module
from nbtrain.pretrained.tensors import PACKED, Piece, Sizes
from nbtrain.pretrained.written import family_of

# Settings of adapter_config.json that can change the meaning of the tensors, each with its only supported
# value.
PLAIN = {"use_dora": False, "bias": "none", "modules_to_save": None}
# Further settings of this kind in peft 0.21.2's LoraConfig. They are not written, because older releases of
# peft warn about them.
ALSO_PLAIN = {
    **dict.fromkeys(("lora_bias", "use_qalora"), False),
    **dict.fromkeys(("alora_invocation_tokens", "layer_replication", "target_parameters"), None),
    **dict.fromkeys(("arrow_config", "kasa_config", "monteclora_config", "use_bdlora"), None),
}
# Values of init_lora_weights, besides true, false and null, with which peft does not change the base model.
# With any other value (pissa, olora, corda, loftq, lora_ga), the adapters belong to a changed base model.
KEEP_THE_BASE = ("gaussian", "orthogonal", "eva", "mica")
# Values of init_lora_weights for which peft can convert the adapters to adapters of the unchanged base model.
CONVERTED = ("pissa", "olora", "corda", "lora_ga")


@dataclass(frozen=True)
class AdaptedModule:
    """A module of the family's model that has an adapter, and the rows of nbtrain's matrix that it stores."""

    name: str
    """Name in the family's model, such as model.layers.0.self_attn.q_proj."""
    weight: str
    """Canonical name of nbtrain's matrix."""
    pieces: tuple[Piece, ...]
    """Ranges of rows of nbtrain's matrix that the module stores."""
    projections: tuple[int, ...]
    """For each piece, the index of the adapter's projection that produces the piece's rows.

    In GPT-2's packed module, 0 is the queries, 1 the keys and 2 the values. In other modules, all are 0.
    """
    inputs: int
    outputs: int

    @property
    def count(self) -> int:
        """Number of projections in the module: 3 for GPT-2's packed queries, keys and values, else 1."""
        return len(set(self.projections))

    @property
    def target(self) -> str:
        """Name of nbtrain's module in the setting lora.targets."""
        return self.weight.rpartition(".")[0].rpartition(".")[2]

    @property
    def tensors(self) -> tuple[str, str]:
        """Names of the adapter's matrices A and B in the file."""
        return f"{PREFIX}{self.name}.lora_A.weight", f"{PREFIX}{self.name}.lora_B.weight"


def adapted_modules(config: RunConfig, targets: Collection[str] | None = None) -> list[AdaptedModule]:
    """Return the modules with an adapter, in the model's order; `targets` defaults to the run's lora.targets.

    Raises ConfigError if no family can express the run's model.
    """
    assert config.lora is not None
    targets = config.lora.targets if targets is None else targets
    sizes = Sizes.of(config.model, config.tokenizer.vocab_size)
    known = family_of(config).tensors(sizes)
    size = sizes.head_size
    # The rows of a query group are its queries, followed by one key and one value.
    queries = sizes.num_attention_heads // sizes.num_query_groups * size
    found = []
    for weight, shape in known.shapes.items():
        inner = weight.split(".", 2)[-1].rpartition(".")[0]
        if not weight.startswith("layers.") or not weight.endswith("weight"):
            continue
        if inner.rpartition(".")[2] not in targets:
            continue
        for tensor in dict.fromkeys(piece.tensor for piece in known.pieces[weight]):
            pieces = tuple(piece for piece in known.pieces[weight] if piece.tensor == tensor)
            places = [piece.first % (queries + 2 * size) for piece in pieces]
            packed = tuple(0 if place < queries else 1 + (place - queries) // size for place in places)
            found.append(
                AdaptedModule(
                    tensor.removesuffix(".weight"),
                    weight,
                    pieces,
                    packed if inner == PACKED else (0,) * len(pieces),
                    shape[1],
                    sum(piece.count for piece in pieces),
                )
            )
    return found


def shapes_of(config: RunConfig) -> dict[str, tuple[int, ...]]:
    """Return {tensor: shape} for the adapter file that a run writes."""
    assert config.lora is not None
    if config.lora.kind == "ia3":
        return peft_ia3.shapes_of(config)
    shapes: dict[str, tuple[int, ...]] = {}
    for module in adapted_modules(config):
        rank = module.count * config.lora.rank
        a, b = module.tensors
        shapes |= {a: (rank, module.inputs), b: (module.outputs, rank)}
    return shapes | peft_tokens.shapes_of(config)


def settings_of(config: RunConfig) -> dict[str, Any]:
    """Return the content of the adapter_config.json that a run writes."""
    lora, modules = config.lora, adapted_modules(config)
    assert lora is not None
    # "attn.c_proj" and "mlp.c_proj" are two modules of GPT-2.
    targets = {".".join(module.name.split(".")[-2:]): module for module in modules}
    wider = {name: module.count for name, module in targets.items() if module.count > 1}
    # A module with several times the rank needs another alpha, so that its scale equals the other modules'.
    root = math.sqrt if lora.use_rslora else float
    grown = {name: lora.alpha * root(count) for name, count in wider.items()}
    transposed = any(piece.transposed for module in modules for piece in module.pieces)
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": config.init_from,
        "inference_mode": True,
        "r": lora.rank,
        "lora_alpha": _short(lora.alpha),
        "lora_dropout": lora.dropout,
        "use_rslora": lora.use_rslora,
        "target_modules": sorted(targets),
        "rank_pattern": {name: count * lora.rank for name, count in wider.items()},
        "alpha_pattern": {name: _short(alpha) for name, alpha in grown.items()},
        "fan_in_fan_out": transposed,
        peft_tokens.SETTING: peft_tokens.setting_of(config),
        "layers_to_transform": None,
        **PLAIN,
    }


def _short(value: float) -> float | int:
    return int(value) if value == int(value) else value


def adapter_problems(folder: Path, config: RunConfig) -> list[str]:
    """Return the reasons why a folder's adapters do not fit a run; [] if they fit.

    Settings, names and shapes are checked, but not values. Raises CheckpointError if files are missing or
    damaged.
    """
    lora = config.lora
    assert lora is not None
    if lora.kind == "ia3":
        return peft_ia3.problems_of(folder, config)
    found = read_settings(folder)
    problems = [*_other_meanings(found)]
    if found.get("peft_type") != "LORA":
        return [f"peft_type is {found.get('peft_type')!r}, but the run's lora.kind is lora"]
    tensors = read_tensors(folder, wanted_tensors(config))
    modules, scales = adapted_modules(config), _Scales(found, folder / PEFT_SETTINGS)
    known = {tensor for module in modules for tensor in module.tensors}
    with_rows = peft_tokens.said_by(found, config)
    rows = {one.tensor for one in peft_tokens.modules_of_vocabulary(config) if one.rows in with_rows}
    if whole := peft_tokens.whole_matrix_problem(tensors, config):
        return [*problems, whole]
    begun = {tensor for module in modules_begun(found, tensors, config) for tensor in module.tensors}
    missing, surplus = known - begun - tensors.keys(), tensors.keys() - known - rows
    problems += name_problems(missing, surplus, f"the run has lora.targets = {', '.join(lora.targets)}")
    problems += peft_tokens.problems_of(found, tensors, config)
    for module in modules:
        if not set(module.tensors) <= set(tensors):
            continue
        a, b = (tensors[name].shape for name in module.tensors)
        ranks = {lora.rank, module.count * lora.rank}
        if len(a) != 2 or a[0] not in ranks or a != (a[0], module.inputs) or b != (module.outputs, a[0]):
            problems.append(
                f"{module.name} has matrices of shape {list(a)} and {list(b)}, but lora.rank is {lora.rank}"
            )
        elif not math.isclose(scale := scales.of(module.name, a[0]), lora.scale, rel_tol=1e-6):
            problems.append(
                f"{module.name} is scaled by {scale:g}, but the run's lora.alpha and lora.use_rslora give "
                f"{lora.scale:g}"
            )
        else:
            continue
        break
    return problems


def wanted_tensors(config: RunConfig) -> list[str]:
    """Return peft's names of all tensors that an adapter folder for this model may contain."""
    modules = adapted_modules(config, TARGETS)
    rows = peft_tokens.modules_of_vocabulary(config)
    return [*(tensor for module in modules for tensor in module.tensors), *(one.tensor for one in rows)]


def modules_begun(
    found: Mapping[str, Any], tensors: Collection[str], config: RunConfig
) -> list[AdaptedModule]:
    """Return the run's modules for which a folder has no adapter; their adapters start at zero.

    For example, peft's defaults adapt only q_proj and v_proj, whereas nbtrain's query_key_value adapter has
    all three projections.
    """
    return [
        module
        for module in adapted_modules(config)
        if not targets_module(found, module.name) and not set(module.tensors) & set(tensors)
    ]


def notes_of(folder: Path, config: RunConfig) -> list[str]:
    """Return a list with a sentence that names the run's modules for which `folder` has no adapter.

    The list is empty if the folder has an adapter (or IA3 vector) for every module, and for a run without
    lora. Raises CheckpointError if files are missing or damaged.
    """
    if config.lora is None:
        return []
    if config.lora.kind == "ia3":
        held = read_tensors(folder, peft_ia3.shapes_of(config))
        begun = [module.name for module in peft_ia3.rescaled_modules(config) if module.tensor not in held]
        what, begin = "vectors", "1"
    else:
        held = read_tensors(folder, wanted_tensors(config))
        begun = [module.name for module in modules_begun(read_settings(folder), held, config)]
        what, begin = "adapters", "0"
    if not begun:
        return []
    names = dict.fromkeys(name.rpartition(".")[2] for name in begun)
    modules = ", ".join(names)
    return [f"{display(folder)} has no {what} for {modules}, so the run's {what} for these start at {begin}."]


def section_fix(folder: Path, config: RunConfig) -> str:
    """Return a sentence that says which settings would make a folder's adapters fit; "" if none would.

    Raises CheckpointError if files are missing or damaged.
    """
    lora, found = config.lora, read_settings(folder)
    assert lora is not None
    kind = {"LORA": "lora", "IA3": "ia3"}.get(str(found.get("peft_type")))
    if kind is not None and kind != lora.kind:
        return f"Set lora.kind: {kind}."
    if kind != "lora" or any(_other_meanings(found)):
        return ""
    tensors = read_tensors(folder, wanted_tensors(config))
    held = [module for module in adapted_modules(config, TARGETS) if set(module.tensors) & set(tensors)]
    wanted: dict[str, Any] = {
        "targets": [target for target in TARGETS if any(module.target == target for module in held)],
        "rank": found.get("r", 8),
        "alpha": found.get("lora_alpha", 8),
        "use_rslora": bool(found.get("use_rslora")),
    }
    if set(wanted["targets"]) <= set(lora.targets):
        # The run may have more targets than the folder: their adapters start at zero.
        del wanted["targets"]
    differ = {name: value for name, value in wanted.items() if value != getattr(lora, name)}
    if not differ:
        return "Copy the folder again, or save the adapters again."
    changed = config.model_copy(update={"lora": lora.model_copy(update=differ)})
    if adapter_problems(folder, changed):
        return ""
    return f"Set {', '.join(f'lora.{name}: {show(value)}' for name, value in differ.items())}."


def _other_meanings(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield a clause for each setting with which the tensors are not plain adapters of an unchanged model.

    `found` is the content of adapter_config.json. Examples are use_dora, and an initialization that changes
    the base model.
    """
    for key, plain in (PLAIN | ALSO_PLAIN).items():
        if found.get(key, plain) not in (plain, []):
            yield f"{key} is {shortened(repr(found[key]))}, but only {plain!r} is supported"
    first = found.get("init_lora_weights", True)
    called = first.lower() if isinstance(first, str) else ""
    if first is None or isinstance(first, bool) or called in KEEP_THE_BASE:
        return
    fix = (
        "; peft's save_pretrained converts them to adapters for the original base model if you pass "
        "path_initial_model_for_weight_conversion"
        if called.startswith(CONVERTED)
        else ""
    )
    yield (
        f"init_lora_weights is {shortened(repr(first))}, which changes the base model; only adapters for an "
        f"unchanged base model are supported (true, false, {', '.join(KEEP_THE_BASE)}){fix}"
    )


class _Scales:
    """The scale of each adapter in a folder: alpha / rank, or alpha / sqrt(rank) with use_rslora.

    Raises CheckpointError for an invalid value in adapter_config.json.
    """

    def __init__(self, found: Mapping[str, Any], path: Path):
        self.path = path
        self.is_rank_stabilized = bool(found.get("use_rslora"))
        self.alpha = self._number("lora_alpha", found.get("lora_alpha", 8))
        patterns = found.get("alpha_pattern")
        if patterns is not None and not isinstance(patterns, dict):
            raise self._refused("alpha_pattern", patterns, "must be an object")
        self.patterns = [self._pattern(key, value) for key, value in (patterns or {}).items()]

    def of(self, module: str, rank: int) -> float:
        # The first matching pattern applies, as in peft's get_pattern_key.
        alphas = (alpha for pattern, alpha in self.patterns if pattern.match(module))
        alpha = next(alphas, self.alpha)
        return alpha / (math.sqrt(rank) if self.is_rank_stabilized else rank)

    def _pattern(self, key: str, value: Any) -> tuple[re.Pattern[str], float]:
        try:
            pattern = re.compile(rf"(.*\.)?({key})$")
        except (re.error, OverflowError, RecursionError) as error:
            # The error's position is omitted, because it would count the prefix that is added here.
            why = error.msg if isinstance(error, re.error) else error
            raise self._refused("alpha_pattern", key, f"is not a regular expression: {why}") from None
        return pattern, self._number(f"alpha_pattern.{key}", value)

    def _number(self, key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1e300:
            raise self._refused(key, value, "must be a number")
        return float(value)

    def _refused(self, key: str, value: Any, rule: str) -> CheckpointError:
        return CheckpointError(
            f"{display(self.path)}: {shortened(key)} = {shortened(repr(value))}: {rule}. Save the adapters "
            "again, or correct the file."
        )
