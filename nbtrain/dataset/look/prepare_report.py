"""The report of `prepare`: its steps, their reasons and results, as text, as HTML and as JSON values."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtrain.base.html_table import html_table
from nbtrain.base.terminal import printable
from nbtrain.base.workspace import display
from nbtrain.dataset.look import marked
from nbtrain.dataset.look.browser import samples_html, samples_text
from nbtrain.dataset.manifest import DatasetManifest, dropped_sentences
from nbtrain.dataset.samples.gpt_index import SPLIT_NAMES
from nbtrain.dataset.tables import UNREAD_COLUMNS, Table, text_table, unread_rows

if TYPE_CHECKING:
    from nbtrain.dataset.samples.build import GPTDatasets

NUM_EXAMPLES = 3
EXAMPLE_TOKENS = 400
EXAMPLE_CHARS = 1200


@dataclass(frozen=True)
class Step:
    name: str
    action: str
    """made, kept, or used (supplied by the user and unchanged)."""
    reason: str
    seconds: float


@dataclass
class PrepareReport:
    """Steps with their reasons, the dataset's manifest, and the splits of this run."""

    run: str
    steps: list[Step] = field(default_factory=list)
    dataset: Path | None = None
    manifest: DatasetManifest | None = None
    splits: list[dict[str, Any]] = field(default_factory=list)
    """Name, documents, tokens, samples (in the order), epochs of each split."""
    examples: list[dict[str, Any]] = field(default_factory=list)
    """Three documents of a dataset with a loss mask, as Document.to_dict returns them (look/browser.py)."""

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

    def to_text(self, colour: bool = False) -> str:
        """Return the report for a terminal, with tokens in the loss coloured, or marked with brackets."""
        parts = [*(text_table(header, rows) for header, rows in self._tables()), printable(self._summary())]
        if self.examples:
            parts.append(marked.LEGEND_COLOUR if colour else marked.LEGEND_PLAIN)
            parts += samples_text(self.examples, EXAMPLE_CHARS, colour)
        return "\n\n".join(filter(None, parts))

    __str__ = to_text

    def __repr__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        import html

        tables = "".join(html_table(header, rows) for header, rows in self._tables())
        examples = f"<p>{marked.LEGEND_HTML}</p>{samples_html(self.examples)}" if self.examples else ""
        return f"{tables}<p>{html.escape(self._summary())}</p>{examples}"

    def _tables(self) -> list[Table]:
        steps = [[step.name, step.action, f"{step.seconds:.2f}", step.reason] for step in self.steps]
        tables: list[Table] = [(["step", "", "seconds", "why"], steps)]
        if self.splits:
            tables.append(splits_table(self.splits))
        if unread := unread_rows(self.manifest.sources if self.manifest else []):
            tables.append((UNREAD_COLUMNS, unread))
        return tables

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
    """Return name, documents, tokens, samples and epochs of each split that is read."""
    figures = ("documents", "tokens", "samples", "epochs")
    return [
        {"name": name, **{figure: getattr(split, f"num_{figure}") for figure in figures}}
        for name in SPLIT_NAMES
        if (split := getattr(datasets, name)) is not None
    ]


def splits_table(
    splits: list[dict[str, Any]], documents: str = "documents", samples: str = "samples"
) -> Table:
    """Return the rows of split_rows as a table; `documents` and `samples` are the headings of two columns."""
    cells = ("{name}", "{documents:,}", "{tokens:,}", "{samples:,}", "{epochs:.2f}")
    rows = [[cell.format(**split) for cell in cells] for split in splits]
    return ["split", documents, "tokens", samples, "epochs"], rows
