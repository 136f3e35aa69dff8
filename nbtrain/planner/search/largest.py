"""The largest model and the longest sequence that fit on given GPUs, for three kinds of layout.

pure TP x PP   every GPU holds a part of the only replica of the model (DP 1)
pure ZeRO 3    every GPU is a replica and holds a shard of its states (DP only)
fused          any legal layout
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from nbtrain.base.printing.report import Report, Result, Sentence, Table
from nbtrain.base.text import amounts
from nbtrain.config.load.edits import with_values
from nbtrain.config.schema import ModelConfig
from nbtrain.config.sections.markers import Architecture, marked
from nbtrain.config.shape import Shape
from nbtrain.planner.memory import estimate
from nbtrain.planner.search.family import LINE, line, parameters, preset
from nbtrain.planner.search.legal import (
    Cut,
    Layout,
    Space,
    batch_limit,
    cut_problems,
    cuts,
    legal_options,
    micro_batches,
    space_of,
)
from nbtrain.planner.search.search import ScoredLayout, is_worth, offloads, score, shortage, try_cut

Way = Callable[[Layout], bool]
WAYS: dict[str, Way] = {
    "pure TP x PP": lambda layout: layout.cut.data == 1 and layout.cut.sharing == 1,
    "pure ZeRO 3": lambda layout: layout.cut.parts == 1 and layout.options.zero_stage == 3,
    "fused": lambda layout: True,
}
# Sequence lengths are multiples of this, so that a sequence can be split evenly across ranks and kernels get
# whole tiles.
SEQUENCE_STEP = 1024
LONGEST = 2**22
SCHEMA_VERSION = 1
# Fields of the section `model` in which the models of the family differ. Shape has the same names.
SIZES = (
    "num_layers",
    "hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "ffn_hidden_size",
    "seq_length",
)


@dataclass(frozen=True, slots=True)
class Compared:
    """One kind of layout in the comparison: its fastest layout and its longest sequence."""

    name: str
    best: ScoredLayout | None
    """The fastest layout of this kind; None if no layout of this kind fits or is legal."""
    longest_sequence: int | None
    """Longest sequence that fits, in tokens; None if not even SEQUENCE_STEP tokens fit."""
    reason: str
    """Reason why no layout was found; "" if `best` is set."""


@dataclass(frozen=True, slots=True, repr=False)
class Largest(Result):
    """The largest model and the longest sequence that fit on given GPUs, shown as text and a table."""

    name: str
    space: Space
    model: tuple[str, Shape, ScoredLayout] | None
    """(name, shape, layout) of the largest model of the family that fits at the run's sequence length.

    The layout is the one that leaves the most memory free. None if no model fits.
    """
    next_model: tuple[str, Shape] | None
    """(name, shape) of the next larger model, which does not fit; None if there is no larger model."""
    longest_sequence: int | None
    """Longest sequence that fits with the run's own model, in tokens; None if no sequence fits."""
    ways: tuple[Compared, ...]

    def as_report(self) -> Report:
        """Return a report of the largest model, the longest sequence and the comparison table."""
        heads = ("", "layout", "memory", "step", "MFU", "longest sequence")
        sentences = [Sentence(sentence) for sentence in self.sentences()]
        return Report("", [*sentences, Table(heads, [_row(way) for way in self.ways])])

    def sentences(self) -> list[str]:
        """Return the largest model and the longest sequence in sentences, or why no layout is legal."""
        base = self.space.base
        world = f"{base.nodes * base.devices_per_node:,} x {base.device.name if base.device else 'GPU'}"
        own = amounts.count(parameters(base.shape))
        found = []
        if self.model is None and not legal(self.space):
            why = batch_limit(self.space) or (
                "The tensor, pipeline, sequence and data parallel sizes must multiply to the number of GPUs, "
                "and each size must divide what it shards: heads, layers, tokens, and the batch (every batch "
                f"size is a multiple of {self.space.batch_unit:,})."
            )
            return [
                f"No layout of {self.name} on {world} is legal. {why} To see why each layout is "
                "illegal, run `nbtrain search RUN --refused`."
            ]
        if self.model is None:
            found.append(
                f"No model of the GPT family fits on {world} with sequences of {base.shape.seq_length:,} "
                "tokens."
            )
        else:
            name, shape, one = self.model
            found.append(
                f"The largest model of the GPT family that fits on {world} with sequences of "
                f"{base.shape.seq_length:,} tokens has {amounts.count(parameters(shape))} parameters "
                f"({name}). The layout is {one.layout.words}."
            )
        if self.next_model is not None:
            name, shape = self.next_model
            size = amounts.count(parameters(shape))
            found.append(f"The next larger model, with {size} parameters ({name}), does not fit.")
        if self.longest_sequence is None:
            found.append(
                f"{self.name} ({own} parameters) does not fit with sequences of {SEQUENCE_STEP:,} tokens or "
                "more."
            )
        else:
            more = " or more" if self.longest_sequence >= LONGEST else ""
            found.append(
                f"The longest sequence that fits with {self.name} ({own} parameters) is "
                f"{self.longest_sequence:,} tokens{more}, with one sequence per micro batch."
            )
        if base.host_memory_bytes is None:
            found.append(
                "Offloading was not considered, because the host memory is not known. Set "
                "resources.memory_per_node_bytes to include offloading."
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the largest model, the longest sequence and the comparison as a JSON object."""
        base = self.space.base
        return {
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "nodes": base.nodes,
            "gpus_per_node": base.devices_per_node,
            "gpu_type": base.device.name if base.device else None,
            "seq_length": base.shape.seq_length,
            "largest_model": None if self.model is None else _model_record(*self.model),
            "next_model": None if self.next_model is None else _model_record(*self.next_model),
            "longest_sequence": self.longest_sequence,
            "ways": [
                {
                    "name": way.name,
                    "layout": None if way.best is None else _layout_record(way.best),
                    "longest_sequence": way.longest_sequence,
                    "reason": way.reason,
                }
                for way in self.ways
            ],
        }


def _model_record(name: str, shape: Shape, best: ScoredLayout | None = None) -> dict[str, Any]:
    """Return a model of the family as a JSON object; with `best`, its layout is included."""
    record = {
        "name": name,
        "parameters": parameters(shape),
        "num_layers": shape.num_layers,
        "hidden_size": shape.hidden_size,
    }
    return record if best is None else record | {"layout": _layout_record(best)}


def _layout_record(scored: ScoredLayout) -> dict[str, Any]:
    return {
        "words": scored.layout.words,
        "settings": scored.layout.settings,
        "step_seconds": scored.seconds if scored.step is not None else None,
        "mfu": scored.mfu if scored.step is not None else None,
        "device_bytes": scored.memory.total_bytes,
    }


def largest(space: Space, name: str) -> Largest:
    """Find the largest model and the longest sequence that fit, and compare three kinds of layout."""
    model, following = largest_model(space)
    tried = [one for cut in legal(space) for one in try_cut(space, cut)]
    ways = tuple(compare(space, way, tried) for way in WAYS)
    longest = max((way.longest_sequence or 0 for way in ways), default=0)
    return Largest(name, space, model, following, longest or None, ways)


def largest_model(space: Space) -> tuple[tuple[str, Shape, ScoredLayout] | None, tuple[str, Shape] | None]:
    """Return the largest model of the family that fits, and the next larger model (None if there is none)."""
    models = line(space.vocab_size, space.base.shape.seq_length)
    low, high, best = 0, len(models), None
    while low < high:
        middle = (low + high) // 2
        name, shape = models[middle]
        roomy = roomiest(with_model(space, shape))
        if roomy is not None and roomy.fits:
            best, low = (name, shape, roomy), middle + 1
        else:
            high = middle
    return best, models[low] if low < len(models) else None


def compare(space: Space, name: str, tried: list[ScoredLayout]) -> Compared:
    """Return the fastest tried layout of one kind, and the longest sequence that this kind can train.

    `name` is a key of WAYS.
    """
    way = WAYS[name]
    own = [one for one in tried if way(one.layout)]
    best = min((one for one in own if one.step is not None), key=lambda one: one.cost, default=None)
    longest = longest_sequence(space, way)
    if best is not None:
        return Compared(name, best, longest, "")
    if own:
        return Compared(name, None, longest, shortage(min(own, key=lambda one: one.memory.total_bytes)))
    alone = cut_problems(space, Cut(1, 1, 1, space.world_size))
    reason = next(alone, None) if name == "pure ZeRO 3" else None
    gpus = amounts.counted(space.world_size, "GPU")
    return Compared(name, None, longest, reason or f"no layout of this kind is legal on {gpus}")


def longest_sequence(space: Space, way: Way) -> int | None:
    """Return the longest sequence, in tokens, for which a layout of one kind fits.

    `way` is a function that says whether a layout is of this kind. The result may be too short by about a
    sixteenth, and is at most LONGEST. The result is None if SEQUENCE_STEP tokens do not fit.
    """

    def fits(steps: int) -> bool:
        one = roomiest(with_length(space, steps * SEQUENCE_STEP), way)
        return one is not None and one.fits

    if not fits(1):
        return None
    low, high = 1, 2
    while high * SEQUENCE_STEP <= LONGEST and fits(high):
        low, high = high, 2 * high
    if high * SEQUENCE_STEP > LONGEST:
        return LONGEST
    while high - low > max(low // 16, 1):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low * SEQUENCE_STEP


def roomiest(space: Space, way: Way = WAYS["fused"]) -> ScoredLayout | None:
    """Return the layout of one kind that leaves the most device memory free and fits the host memory.

    It may need more device memory than there is. The result is None if no legal layout fits the host memory.
    """
    best: tuple[int, Layout] | None = None
    for layout in _smallest(space):
        if not way(layout):
            continue
        memory = estimate(space.setup(layout))
        spare = (memory.device_bytes or 0) - memory.total_bytes
        if memory.fits_host is not False and (best is None or spare > best[0]):
            best = spare, layout
    return score(space, best[1]) if best else None


def _smallest(space: Space) -> Iterator[Layout]:
    """Yield the layouts that need the least memory: full recomputation, smallest micro batch, no hpZ.

    They are yielded for each legal cut (sizes of the kinds of parallelism), ZeRO stage and kind of
    offloading.
    """
    for cut in legal(space):
        sizes = micro_batches(space, cut)
        for options in legal_options(space, cut):
            small = options.recompute == "full" and not options.hpz and is_worth(space, cut, options)
            if sizes and small and (options.offload_optimizer, options.offload_param) in offloads(space):
                yield Layout(cut, sizes[0], options)


def legal(space: Space) -> list[Cut]:
    """Return the legal cuts (sizes of parallelism) whose tensor-parallel groups are inside one machine."""
    return [
        cut for cut, reason in cuts(space) if reason is None and cut.tensor <= space.base.devices_per_node
    ]


def with_length(space: Space, tokens: int) -> Space:
    """Return the search space of the same run with another sequence length."""
    assert space.config is not None, "the search space must have a run"
    values = {"model.seq_length": tokens}
    if space.base.shape.learned_positions:
        values["model.max_position_embeddings"] = tokens
    longer = space_of(with_values(space.config, values))
    # The parameters of a user's own block were determined for the run's sequence length only.
    shape = replace(longer.base.shape, own_block=space.base.shape.own_block)
    return replace(longer, base=replace(longer.base, shape=shape))


def with_model(space: Space, shape: Shape) -> Space:
    """Return the search space of the run with a model of the family instead of its own model.

    Adapters, batch and machines stay as in the run.
    """
    assert space.config is not None, "the search space must have a run"
    family = preset(LINE[0]).model
    fields = {name: getattr(family, name) for name in marked(ModelConfig, Architecture)}
    for name in SIZES:
        fields[name] = getattr(shape, name)
    fields["max_position_embeddings"] = shape.learned_positions
    model = space.config.model.model_copy(update=fields)
    return space_of(space.config.model_copy(update={"model": model}))


def _row(way: Compared) -> tuple[str, ...]:
    longest = f"{way.longest_sequence:,}" if way.longest_sequence else "none"
    one = way.best
    if one is None:
        return (way.name, way.reason, "", "", "", longest)
    return (
        way.name,
        one.layout.words,
        amounts.size(one.memory.total_bytes),
        amounts.step(one.seconds),
        f"{one.mfu:.0%}",
        longest,
    )
