"""Results of a layout search, shown as a table (text, HTML, JSON) and a plot, or written as a run YAML.

found = nb.search("13B", gpus=64, gpu_type="A100-80GB")
found                       shows the best layouts, the reasons for layout 1, and the refused layouts
found.why(3)                explains every decision of layout 3
found.use(3, "run.yaml")    writes layout 3 as a run YAML
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtrain.base.errors import ConfigError, refuse
from nbtrain.base.findings import FATAL, Finding
from nbtrain.base.printing.report import Block, Facts, Fold, InText, Items, Report, Result, Sentence, Table
from nbtrain.base.text import amounts
from nbtrain.planner.run_file import write_run
from nbtrain.planner.search.legal import PLAIN, RECOMPUTATIONS, Cut, Layout, Options
from nbtrain.planner.search.reasons import Reason, reasons
from nbtrain.planner.search.search import (
    ROOMY_FRACTION,
    ScoredLayout,
    SearchResult,
    rates_of,
    run_seconds,
    why_not,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA_VERSION = 1
TOP = 10
REASONS = 8
HEADS = ("", "layout", "step", "MFU", "total time", "memory", "headroom", "idle", "compared with the first")
# Parts of a step that differ by fewer seconds than this are not mentioned in a table row.
SMALL_SECONDS = 0.005


@dataclass(frozen=True, slots=True, repr=False)
class FoundLayouts(Result):
    """The best layouts of a search, shown as a table in a notebook cell."""

    result: SearchResult
    top: int = TOP
    """Number of rows to show."""

    @property
    def best(self) -> ScoredLayout | None:
        """The best layout; None if no layout fits."""
        return self.result.best

    def __len__(self) -> int:
        return len(self.result.ranked)

    def __getitem__(self, number: int) -> ScoredLayout:
        """Return the layout with this number in the ranking, counted from 1.

        Raises ConfigError if there is no layout with this number.
        """
        if not isinstance(number, int) or not 1 <= number <= len(self):
            raise ConfigError(
                f"layout number {number!r} does not exist: the search for {self.result.name} found "
                f"{len(self)} layouts that fit, numbered from 1."
            )
        return self.result.ranked[number - 1]

    def why(self, number: int = 1) -> list[Reason]:
        """Explain every decision of layout `number`, in the order in which practitioners decide."""
        return reasons(self.result, self[number])

    def why_not(self, **wanted: Any) -> str:
        """Explain why the best layout would be worse with other values of some settings.

        An example is why_not(tensor_parallel_size=8): all other settings stay as in the best layout. The
        names are the keys of the run YAML, and `recompute`, `offload_optimizer` and `offload_param`.
        """
        return why_not(self.result, _layout(self.result, wanted))

    def use(self, number: int, path: str | Path, overwrite: bool = False) -> Path:
        """Write a run YAML with this layout and return its path. The run is named after the file.

        Raises ConfigError if the file exists and `overwrite` is False, or if the run violates a rule.
        """
        chosen = self[number]
        why = "\n".join(f"  {topic}: {words}" for topic, words in self.why(number))
        note = (
            f"Written by `nbtrain search`: layout {number} of {len(self)} for {self.result.name}.\n"
            f"{chosen.layout.words}: an estimated {amounts.step(chosen.seconds)} per step and "
            f"{amounts.size(chosen.memory.total_bytes)} on the fullest GPU.\n{why}"
        )
        return write_run(self.result.space.run(chosen.layout), path, note, overwrite)

    def picture(self) -> "Figure":
        """Plot the step time of every layout that fits against its memory."""
        from nbtrain.planner.search.search_picture import draw

        return draw(self.result, self.top)

    @property
    def title(self) -> str:
        """Title of the table: the model, the GPUs, and the number of layouts that fit."""
        base = self.result.space.base
        device = base.device.name if base.device else "GPU"
        world = f"{base.nodes * base.devices_per_node:,} x {device}"
        if base.nodes > 1:
            world += f" on {base.nodes:,} machines (network: {self.network})"
        return (
            f"Layouts of {self.result.name} on {world}: {len(self)} of {self.result.estimated} estimated "
            "layouts fit"
        )

    @property
    def network(self) -> str:
        """Description of the network between machines, with its source."""
        rates = rates_of(self.result.space)
        return rates.network if rates else "not known"

    def rows(self) -> list[tuple[str, ...]]:
        """Return the rows of the table, with cells in the order of HEADS."""
        return [_row(self.result, number, one) for number, one in enumerate(self._shown, start=1)]

    @property
    def _shown(self) -> Sequence[ScoredLayout]:
        return self.result.ranked[: self.top]

    def as_report(self) -> Report:
        """Return a report of the best layouts, the reasons for the first layout, and the refused layouts."""
        if len(self):
            why = Facts(self.why(1), f"Why number 1: {self[1].layout.words}")
            blocks: list[Block] = [Table(HEADS, self.rows()), why]
        elif self.result.estimated:
            words = "No layout fits. To find a model and a sequence length that fit, {} `{}`."
            blocks = [
                Sentence(words.format("run", "nbtrain largest"), words.format("call", "nb.largest(...)"))
            ]
        else:
            limit = self.result.limit or "The list below shows the rules that the layouts violate."
            blocks = [Sentence(f"No layout is legal. {limit}")]
        reasons_count = amounts.counted(len(self.result.refused), "reason")
        folded = Fold(f"Refused, for {reasons_count}", [Items(self.refusals(every=True))])
        return Report(self.title, [*blocks, InText(Items(self.refusals(), "Refused")), folded])

    def refused(self, every: bool = False) -> Report:
        """Return a report of the rejected layouts, grouped by reason.

        By default, only the REASONS reasons that reject the most layouts are included; `every` includes all.
        """
        return Report("", [Items(self.refusals(every), "Refused")])

    def refusals(self, every: bool = False) -> list[str]:
        """Return the lines of refused(), one for each reason."""
        found = sorted(self.result.refused, key=lambda refused: -refused.count)
        shown = found if every else found[:REASONS]
        items = [f"{refused.words} ({refused.count:,}): {refused.reason}" for refused in shown]
        if len(shown) < len(found):
            more = amounts.counted(len(found) - len(shown), "more reason")
            items.append(f"{more}; to list all, use --refused, or found.refused(True) in a notebook")
        return items

    def to_dict(self) -> dict[str, Any]:
        """Return the search as a JSON object."""
        base = self.result.space.base
        return {
            "schema_version": SCHEMA_VERSION,
            "name": self.result.name,
            "nodes": base.nodes,
            "gpus_per_node": base.devices_per_node,
            "gpu_type": base.device.name if base.device else None,
            "network": self.network if base.nodes > 1 else None,
            "fitting": len(self),
            "estimated": self.result.estimated,
            "layouts": [self._record(number) for number in range(1, len(self._shown) + 1)],
            "refused": [
                {"layouts": one.words, "count": one.count, "kind": one.kind, "reason": one.reason}
                for one in self.result.refused
            ],
        }

    def _record(self, number: int) -> dict[str, Any]:
        one = self[number]
        return {
            "settings": one.layout.settings,
            "step_seconds": one.seconds,
            "step_parts": step_parts(one),
            "tokens_per_second": one.setup.tokens_per_step / one.seconds,
            "mfu": one.mfu,
            "run_seconds": _run_seconds(self.result, one),
            "device_bytes": one.memory.total_bytes,
            "headroom_bytes": one.headroom_bytes,
            "host_bytes": one.memory.total_host_bytes,
            "reasons": dict(self.why(number)),
        }


def step_parts(one: ScoredLayout) -> dict[str, float]:
    """Return the seconds of each part of a step. The layout must fit."""
    assert one.step is not None
    return {part.name: getattr(one.step, part.name) for part in fields(one.step)}


def _run_seconds(result: SearchResult, one: ScoredLayout) -> float | None:
    """Return the seconds of the whole run with this layout; None if only a model's shape was searched."""
    if result.space.config is None:
        return None
    return run_seconds(result.space.run(one.layout, check=False), one.setup, one.step)


def _row(result: SearchResult, number: int, one: ScoredLayout) -> tuple[str, ...]:
    whole = _run_seconds(result, one)
    parts = step_parts(one)
    idle = one.seconds - parts["compute"] - parts["recompute"]
    return (
        str(number),
        one.layout.words,
        amounts.step(one.seconds),
        f"{one.mfu:.0%}",
        amounts.duration(whole) if whole is not None else "",
        amounts.size(one.memory.total_bytes),
        f"{one.headroom:.0%}",
        f"{idle / one.seconds:.0%}",
        against(result, one),
    )


def against(result: SearchResult, one: ScoredLayout) -> str:
    """Format how a layout's step time differs from the best layout's, such as "+4.0%: bubble +0.21 s".

    The two parts of a step that differ most are listed. The result is "-" for the best layout itself.
    """
    best = result.best
    assert best is not None
    if one is best:
        return "-"
    ours, theirs = step_parts(one), step_parts(best)
    changes = {part: ours[part] - theirs[part] for part in ours}
    largest = sorted(changes, key=lambda part: -abs(changes[part]))[:2]
    rounded = {part: float(f"{changes[part]:.2g}") for part in largest}
    words = [f"{part} {rounded[part]:+,g} s" for part in largest if abs(changes[part]) > SMALL_SECONDS]
    # round() and + 0.0 avoid "-0.0%".
    change = f"{round(one.seconds / best.seconds - 1, 3) + 0.0:+.1%}"
    if one.headroom < ROOMY_FRACTION:
        words.append(f"only {one.headroom:.0%} headroom")
    return f"{change}: {', '.join(words)}" if words else change


# Allowed values of each setting of a layout that is not a size.
SETTINGS: dict[str, tuple[Any, ...]] = {
    "zero_stage": (0, 1, 2, 3),
    "sequence_parallel": (False, True),
    "recompute": RECOMPUTATIONS,
    "offload_optimizer": ("none", "cpu", "nvme"),
    "offload_param": ("none", "cpu", "nvme"),
    "zero_hpz": (False, True),
}


def _setting_problems(wanted: Mapping[str, object], names: Iterable[str]) -> Iterator[Finding]:
    """Yield an error-level finding for each unknown setting and each invalid value."""
    for name, value in wanted.items():
        words, known = "", SETTINGS.get(name)
        if name not in names:
            words = f"{name!r} is not a setting of why_not. The settings are {', '.join(names)}."
        elif known is not None:
            if not any(value == choice and type(value) is type(choice) for choice in known):
                words = f"{name} = {value!r} must be one of {', '.join(map(str, known))}."
        elif not isinstance(value, int) or isinstance(value, bool) or value < 1:
            words = f"{name} = {value!r} must be a whole number of at least 1."
        if words:
            yield Finding("error", "why_not", name, "", words, cost=FATAL)


def _layout(result: SearchResult, wanted: dict[str, Any]) -> Layout:
    """Return the best layout with the settings in `wanted` changed.

    If `wanted` has no data_parallel_size, it follows from the other sizes and the number of GPUs. Raises
    ConfigError for an unknown setting or an invalid value.
    """
    start = result.best.layout if result.best else None
    base = result.space.base
    cut, options = (start.cut, start.options) if start else (Cut(1, 1, 1, 1), PLAIN)
    names = {
        "tensor_parallel_size": cut.tensor,
        "pipeline_parallel_size": cut.pipeline,
        "ds_sequence_parallel_size": cut.ulysses,
        "context_parallel_size": cut.context,
        "data_parallel_size": None,
        "micro_batch_size": start.micro_batch_size if start else 1,
        "zero_stage": options.zero_stage,
        "sequence_parallel": options.sequence_parallel,
        "recompute": options.recompute,
        "offload_optimizer": options.offload_optimizer,
        "offload_param": options.offload_param,
        "zero_hpz": options.hpz,
    }
    refuse(_setting_problems(wanted, names), ConfigError)
    tensor, pipeline, ulysses, context, data, micro, *rest = (names | wanted).values()
    cut = Cut(tensor, pipeline, ulysses, 1, context)
    data = data or max(base.nodes * base.devices_per_node // cut.parts, 1)
    return Layout(cut._replace(data=data), micro, Options(*rest))
