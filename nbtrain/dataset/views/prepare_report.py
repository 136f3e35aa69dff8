"""The report of `prepare`: its steps with their reasons and results, as text, HTML and JSON values."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtrain.base.printing.report import Column, Report, Result, Sentence, Table
from nbtrain.base.workspace import display
from nbtrain.config.arithmetic.splits import SPLIT_NAMES
from nbtrain.dataset.manifest import DatasetManifest, dropped_sentences
from nbtrain.dataset.tables import unread_table
from nbtrain.dataset.views.browser import Documents

if TYPE_CHECKING:
    from nbtrain.dataset.samples.build import GPTDatasets

NUM_EXAMPLES = 3
EXAMPLE_TOKENS = 400
EXAMPLE_CHARS = 1200


@dataclass(frozen=True)
class Step:
    """One step of `nbtrain prepare`."""

    name: str
    action: str
    """Result of the step: its output was "made", "kept", or "used" (supplied by the user and unchanged)."""
    reason: str
    seconds: float


@dataclass(repr=False)
class PrepareReport(Result):
    """The steps with their reasons, the dataset's manifest, and the splits of the run."""

    run: str
    steps: list[Step] = field(default_factory=list)
    dataset: Path | None = None
    manifest: DatasetManifest | None = None
    splits: list[dict[str, Any]] = field(default_factory=list)
    """Name, documents, tokens, samples (in the run's order) and epochs of each split."""
    examples: list[dict[str, Any]] = field(default_factory=list)
    """Up to three documents of a dataset with a loss mask, as Document.to_dict() returns them."""

    @property
    def changed(self) -> bool:
        return any(step.action == "made" for step in self.steps)

    @property
    def seconds(self) -> float:
        return sum(step.seconds for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "dataset": str(self.dataset) if self.dataset else None,
            "changed": self.changed,
            "seconds": self.seconds,
            "steps": [vars(step) for step in self.steps],
            "splits": self.splits,
            "examples": self.examples,
            "manifest": self.manifest.to_dict() if self.manifest else None,
        }

    def as_report(self) -> Report:
        """Return the steps, the splits, the keys that were not read, the counts and the examples."""
        steps = [[step.name, step.action, step.seconds, step.reason] for step in self.steps]
        blocks = [
            Table(["step", "", Column("seconds", "{:.2f}".format), "why"], steps),
            splits_table(self.splits),
            unread_table(self.manifest.sources if self.manifest else []),
            Sentence(self._summary()),
            Documents(self.examples, EXAMPLE_CHARS, "examples"),
        ]
        return Report("", blocks)

    def _summary(self) -> str:
        if self.manifest is None or self.dataset is None:
            return ""
        counts = self.manifest.counts
        parts = [
            f"{display(self.dataset)}: {counts['documents']:,} documents, {counts['tokens']:,} tokens "
            f"({self.manifest.dtype}, vocabulary {self.manifest.vocab_size:,})"
        ]
        if counts["bytes"]:
            parts.append(f"{counts['bytes'] / counts['tokens']:.2f} bytes/token")
        dropped = ", ".join(f"{reason} {count:,}" for reason, count in sorted(counts["dropped"].items()))
        parts.append(f"dropped: {dropped or 'nothing'}")
        if sentences := dropped_sentences(self.manifest.sources):
            parts.append(f"sentences dropped around templates that cannot be evaluated: {sentences}")
        if unknown := self.manifest.unknown_tokens:
            parts.append(f"unknown tokens: {unknown:,} ({unknown / counts['tokens']:.2%})")
        if (loss := self.manifest.loss_tokens) is not None:
            parts.append(f"tokens in the loss: {loss:,} ({loss / counts['tokens']:.1%})")
        return "; ".join(parts) + "."


def split_rows(datasets: "GPTDatasets") -> list[dict[str, Any]]:
    """Return the name, documents, tokens, samples and epochs of each split that is read."""
    figures = ("documents", "tokens", "samples", "epochs")
    return [
        {"name": name, **{figure: getattr(split, f"num_{figure}") for figure in figures}}
        for name in SPLIT_NAMES
        if (split := getattr(datasets, name)) is not None
    ]


def splits_table(
    splits: list[dict[str, Any]],
    documents: str = "documents",
    samples: str = "samples",
    title: str = "",
    is_grid: bool = False,
) -> Table:
    """Return the rows of split_rows() as a table. `documents` and `samples` are headings of two columns."""
    columns: list[str | Column] = ["split", documents, "tokens", samples, Column("epochs", "{:.2f}".format)]
    rows = [[split[key] for key in ("name", "documents", "tokens", "samples", "epochs")] for split in splits]
    return Table(columns, rows, title, is_grid)
