"""Training sequences as the model receives them: their documents, the tokens in the loss, and the padding.

training sequence 0: 512 positions, 3 documents, 171 in the loss, 40 padding
|------###|-----------####|------------------#########.......
positions 0 to 118
    | <|user|>
    | ...
"""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from nbtrain.base.errors import DataError
from nbtrain.base.printing.report import Block, Record, TextForm, heading
from nbtrain.base.text.amounts import counted
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.samples.build import GPTDatasets, build_datasets
from nbtrain.dataset.samples.sample import Sample
from nbtrain.dataset.views import marked
from nbtrain.dataset.views.browser import Browser

NUM_SEQUENCES = 2
SHOWN_DOCUMENTS = 8
SHOWN_TOKENS = 60
"""Maximum number of tokens of each document that are decoded."""
READ, LOSS, PADDING = range(3)
"""Indices into marked.KINDS."""


@dataclass(frozen=True)
class Part:
    """A document in a training sequence, or the part of the document that the sequence holds."""

    first: int
    last: int
    pieces: list[marked.Piece]


@dataclass(frozen=True)
class TrainingSequence(Record):
    """One sample of a run's training split."""

    position: int
    """Position in the run's order of samples, from 0."""
    kinds: list[int]
    """Role of each position's label in training, as an index into marked.KINDS."""
    begins: list[int]
    """Positions at which documents begin."""
    parts: list[Part]
    """The first documents in the sequence, with their beginnings decoded."""

    @property
    def title(self) -> str:
        counts = np.bincount(self.kinds, minlength=len(marked.KINDS)).tolist()
        documents = counted(len(self.begins), "document")
        return (
            f"training sequence {self.position:,}: {len(self.kinds):,} positions, {documents}, "
            f"{counts[LOSS]:,} in the loss, {counts[PADDING]:,} padding"
        )

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "TrainingSequence":
        """Rebuild a sequence from the result of to_dict()."""
        return cls(**{**value, "parts": [Part(**part) for part in value["parts"]]})

    def to_text(self, colour: bool = False) -> str:
        """Return a title, a strip that shows all positions, and the first documents as text."""
        lines = [self.title, marked.strip_text(np.array(self.kinds), self.begins)]
        for part in self.parts:
            lines.append(f"positions {part.first:,} to {part.last:,}")
            lines += [f"  | {line}" for line in marked.text_of(part.pieces, colour).splitlines()]
        if len(self.begins) > len(self.parts):
            lines.append(f"and {counted(len(self.begins) - len(self.parts), 'more document')}")
        return "\n".join(lines)

    def to_html(self) -> str:
        """Return the content of to_text() as HTML; the strip of positions is an SVG image."""
        look = "white-space:pre-wrap;overflow-wrap:anywhere;word-break:normal;margin:2px 0 6px 0"
        parts = "".join(
            f"<div>positions {part.first:,} to {part.last:,}</div>"
            f'<pre style="{look}">{marked.html_of(part.pieces)}</pre>'
            for part in self.parts
        )
        strip = marked.strip_svg(np.array(self.kinds), self.begins)
        return f"<details><summary>{html.escape(self.title)}{strip}</summary>{parts}</details>"


def training_sequences(
    config: RunConfig, browser: Browser, count: int = NUM_SEQUENCES, datasets: GPTDatasets | None = None
) -> list[TrainingSequence]:
    """Return the first samples of a run's training split. Builds the split's indices if they do not exist.

    Pass the run's `datasets` if they are already built, because building them logs warnings again. Raises
    DataError if the dataset is missing or does not fit the run.
    """
    samples = (datasets or build_datasets(config)).train
    return [
        _sequence(position, samples.sample(position), browser) for position in range(min(count, len(samples)))
    ]


def _sequence(position: int, sample: Sample, browser: Browser) -> TrainingSequence:
    length = len(sample.tokens)
    in_loss = np.ones(length, bool) if sample.loss_mask is None else sample.loss_mask != 0
    kinds = np.where(in_loss, LOSS, READ)
    if sample.cu_seqlens is not None:
        begins = np.unique(sample.cu_seqlens[sample.cu_seqlens < length]).tolist()
    else:
        ends = np.flatnonzero(sample.tokens == (-1 if browser.eod_id is None else browser.eod_id))
        begins = sorted({0, *(ends + 1).tolist()} - {length})
    bounds = [*begins, length]
    last = slice(bounds[-2], length)
    if (
        not in_loss[last].any()
        and (sample.tokens[last] == sample.tokens[length - 1]).all()
        and len(begins) > 1
    ):
        kinds[last] = PADDING
        begins.pop()
    parts = []
    for begin, end in list(zip(begins, bounds[1:]))[:SHOWN_DOCUMENTS]:
        stop = min(end, begin + SHOWN_TOKENS)
        # Each label is the next token. In a stream, the first token is the label of the EOD before it.
        follows = begin > 0 and sample.tokens[begin - 1] == browser.eod_id
        ids = np.append(sample.tokens[begin : begin + 1], sample.labels[begin:stop])
        flags = np.append(follows and in_loss[begin - 1], in_loss[begin:stop])
        if stop == end < length and sample.tokens[stop - 1] == browser.eod_id:
            ids, flags = ids[:-1], flags[:-1]
        parts.append(Part(begin, end - 1, _pieces(ids, flags, stop < end, browser)))
    return TrainingSequence(position, kinds.tolist(), begins, parts)


def _pieces(ids: np.ndarray, flags: np.ndarray, is_cut: bool, browser: Browser) -> list[marked.Piece]:
    is_end = np.zeros(len(ids), bool) if browser.eod_id is None else ids == browser.eod_id
    # A piece ends where the loss begins or ends, and around each end-of-document token.
    changes = np.flatnonzero(np.diff(flags) | np.diff(is_end)) + 1
    edges = [0, *changes.tolist(), len(ids)]
    pieces: list[marked.Piece] = []
    for start, stop in pairwise(edges):
        kind: marked.Kind = "loss" if flags[start] else "read"
        if is_end[start]:
            pieces.append((marked.END_OF_DOCUMENT * (stop - start), kind))
        else:
            pieces.append((browser.decode(ids[start:stop], is_cut and stop == len(ids)), kind))
    return [*pieces, (" ...", "read")] if is_cut else pieces


def sequences_of(
    target: Any, browser: Browser, datasets: GPTDatasets | None = None
) -> tuple[list[dict[str, Any]], str]:
    """Return a run's first sequences as dicts, and the reason if there are none.

    Both are empty if `target` is not a run.
    """
    if not isinstance(target, RunConfig):
        return [], ""
    try:
        return [sequence.to_dict() for sequence in training_sequences(target, browser, datasets=datasets)], ""
    except DataError as error:
        return [], str(error)


@dataclass(frozen=True, slots=True)
class Sequences(Block):
    """A run's first training sequences as a block of a report. In HTML, each one can be expanded."""

    sequences: Sequence[Mapping[str, Any]]
    """Results of TrainingSequence.to_dict()."""

    def lines(self, form: TextForm) -> list[str]:
        texts = [TrainingSequence.from_dict(sequence).to_text(form.colors) for sequence in self.sequences]
        legend = f"{marked.LEGEND_COLOUR if form.colors else marked.LEGEND_PLAIN}; {marked.STRIP_LEGEND}"
        return "\n\n".join([legend, *texts]).split("\n") if texts else []

    def html(self) -> str:
        folds = "".join(TrainingSequence.from_dict(sequence).to_html() for sequence in self.sequences)
        return f"{heading(f'training sequences: {marked.LEGEND_HTML}')}{folds}" if folds else ""
