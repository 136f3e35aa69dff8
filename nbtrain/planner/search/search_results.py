"""Results of a layout search for readers: a table as text, HTML and JSON, a picture, the YAML of a choice.

found = nb.search("13B", gpus=64, gpu_type="A100-80GB")
found               the best layouts, the reasons for the first one, and the refused layouts
found.why(3)        the decisions of the third, one by one
found.use(3, "run.yaml")
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
# A table row does not name the parts of a step that differ by fewer seconds than this.
SMALL_SECONDS = 0.005


@dataclass(frozen=True, slots=True, repr=False)
class FoundLayouts(Result):
    """The best layouts of a search, shown as a table in a notebook cell."""

    result: SearchResult
    top: int = TOP
    """Number of rows to show."""

    @property
    def best(self) -> ScoredLayout | None:
        """The first layout; None if nothing fits."""
        return self.result.best

    def __len__(self) -> int:
        return len(self.result.ranked)

    def __getitem__(self, number: int) -> ScoredLayout:
        """Return the layout with a number in the table, counted from 1. Raises ConfigError for an unknown
        number.
        """
        if not isinstance(number, int) or not 1 <= number <= len(self):
            raise ConfigError(
                f"layout number {number!r}: the search of {self.result.name} has {len(self)} layouts that "
                "fit, numbered from 1."
            )
        return self.result.ranked[number - 1]

    def why(self, number: int = 1) -> list[Reason]:
        """Explain every decision of a layout, in the usual order: precision, recomputation, ZeRO, ..."""
        return reasons(self.result, self[number])

    def why_not(self, **wanted: Any) -> str:
        """Explain why another layout is not the best. Names are as in the YAML: tensor_parallel_size=8."""
        return why_not(self.result, _layout(self.result, wanted))

    def use(self, number: int, path: str | Path, overwrite: bool = False) -> Path:
        """Write the run YAML of a layout and return its path; the run is named after the file.

        Raises ConfigError if the file exists and `overwrite` is False, or if a rule of the run is broken.
        """
        chosen = self[number]
        why = "\n".join(f"  {topic}: {words}" for topic, words in self.why(number))
        note = (
            f"Written by `nbtrain search`: layout {number} of {len(self)} for {self.result.name}.\n"
            f"{chosen.layout.words}: {amounts.step(chosen.seconds)} a step, "
            f"{amounts.size(chosen.memory.total_bytes)} on the fullest GPU, both estimated.\n{why}"
        )
        return write_run(self.result.space.run(chosen.layout), path, note, overwrite)

    def picture(self) -> "Figure":
        """Draw time against memory of every layout that fits."""
        from nbtrain.planner.search.search_picture import draw

        return draw(self.result, self.top)

    @property
    def title(self) -> str:
        """Title of the table: the model, the GPUs that were searched, and how many layouts fit."""
        base = self.result.space.base
        device = base.device.name if base.device else "GPU"
        world = f"{base.nodes * base.devices_per_node:,} x {device}"
        if base.nodes > 1:
            world += f" on {base.nodes:,} machines ({self.network})"
        return (
            f"Layouts of {self.result.name} on {world}: {len(self)} fit of {self.result.estimated} estimated"
        )

    @property
    def network(self) -> str:
        """Description of the network between machines."""
        rates = rates_of(self.result.space)
        return rates.network if rates else "the network is not known"

    def rows(self) -> list[tuple[str, ...]]:
        """Return the cells of the table, in the order of HEADS."""
        return [_row(self.result, number, one) for number, one in enumerate(self._shown, start=1)]

    @property
    def _shown(self) -> Sequence[ScoredLayout]:
        return self.result.ranked[: self.top]

    def as_report(self) -> Report:
        """Return the best layouts, the reasons for the first one, and the refused layouts."""
        if len(self):
            why = Facts(self.why(1), f"Why number 1: {self[1].layout.words}")
            blocks: list[Block] = [Table(HEADS, self.rows()), why]
        elif self.result.estimated:
            words = "No layout fits. {} says which model and which sequence would."
            blocks = [Sentence(words.format("`nbtrain largest`"), words.format("`nb.largest`"))]
        else:
            limit = self.result.limit or "The rules that they break are listed below."
            blocks = [Sentence(f"No layout is legal. {limit}")]
        folded = Fold(f"Refused, for {len(self.result.refused)} reasons", [Items(self.refusals(every=True))])
        return Report(self.title, [*blocks, InText(Items(self.refusals(), "Refused")), folded])

    def refused(self, every: bool = False) -> Report:
        """Return the rejected layouts with the reasons: the reasons that reject the most layouts, or `every`
        reason.
        """
        return Report("", [Items(self.refusals(every), "Refused")])

    def refusals(self, every: bool = False) -> list[str]:
        """Return the lines of refused()."""
        found = sorted(self.result.refused, key=lambda refused: -refused.count)
        shown = found if every else found[:REASONS]
        items = [f"{refused.words} ({refused.count}): {refused.reason}" for refused in shown]
        if len(shown) < len(found):
            more = amounts.counted(len(found) - len(shown), "more reason")
            items.append(f"{more}: --refused, or found.refused(True)")
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
    """Return the seconds of a step by part."""
    assert one.step is not None
    return {part.name: getattr(one.step, part.name) for part in fields(one.step)}


def _run_seconds(result: SearchResult, one: ScoredLayout) -> float | None:
    """Return the seconds of the whole run; None if only a model shape was searched."""
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
    """Format the difference between a layout's step and the best layout's: "+4 %: bubble +0.21 s"."""
    best = result.best
    assert best is not None
    if one is best:
        return "-"
    ours, theirs = step_parts(one), step_parts(best)
    changes = {part: ours[part] - theirs[part] for part in ours}
    largest = sorted(changes, key=lambda part: -abs(changes[part]))[:2]
    rounded = {part: float(f"{changes[part]:.2g}") for part in largest}
    words = [f"{part} {rounded[part]:+,g} s" for part in largest if abs(changes[part]) > SMALL_SECONDS]
    # round() and + 0.0: never "-0.0%".
    change = f"{round(one.seconds / best.seconds - 1, 3) + 0.0:+.1%}"
    if one.headroom < ROOMY_FRACTION:
        words.append(f"only {one.headroom:.0%} headroom")
    return f"{change}: {', '.join(words)}" if words else change


# The values of those settings of a layout that are not sizes.
SETTINGS: dict[str, tuple[Any, ...]] = {
    "zero_stage": (0, 1, 2, 3),
    "sequence_parallel": (False, True),
    "recompute": RECOMPUTATIONS,
    "offload_optimizer": ("none", "cpu", "nvme"),
    "offload_param": ("none", "cpu", "nvme"),
    "zero_hpz": (False, True),
}


def _setting_problems(wanted: Mapping[str, object], names: Iterable[str]) -> Iterator[Finding]:
    """Yield the settings that a layout does not have, and values that no layout has."""
    for name, value in wanted.items():
        words, known = "", SETTINGS.get(name)
        if name not in names:
            words = f"why_not has no setting {name!r}; it has {', '.join(names)}."
        elif known is not None:
            if not any(value == choice and type(value) is type(choice) for choice in known):
                words = f"{name} = {value!r} must be one of {', '.join(map(str, known))}."
        elif not isinstance(value, int) or isinstance(value, bool) or value < 1:
            words = f"{name} = {value!r} must be a whole number of at least 1."
        if words:
            yield Finding("error", "why_not", name, "", words, cost=FATAL)


def _layout(result: SearchResult, wanted: dict[str, Any]) -> Layout:
    """Return the best layout with some settings changed. Unless it is given, the data-parallel size follows
    from the others."""
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
