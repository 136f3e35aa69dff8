"""The data card: describes a dataset in numbers, plots and documents, read from its .bin/.idx.

data_card("my-dataset")             a dataset by its name in the data directory, or by prefix
data_card(config)                   a run's dataset, with its splits and the epochs that the run reads
data_card(config with data.blend)   a BlendCard: each dataset with its share, and their cards
"""

import html
import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from nbtrain.base.errors import DataError
from nbtrain.base.findings import Finding
from nbtrain.base.printing.report import (
    Block,
    Column,
    Facts,
    Findings,
    InNotebook,
    InText,
    Picture,
    Record,
    Report,
    Result,
    Table,
    record_of,
)
from nbtrain.base.workspace import display, tokenizer_dir
from nbtrain.config.arithmetic.splits import SPLIT_NAMES
from nbtrain.config.schema import RunConfig
from nbtrain.corpus.tokenizer.folder import folder_of
from nbtrain.corpus.tokenizer.other_text import other_text_of
from nbtrain.dataset.blend import BlendFiles
from nbtrain.dataset.files import in_loss
from nbtrain.dataset.indexed import IndexedDataset
from nbtrain.dataset.manifest import UNKNOWN_WARNED_FRACTION, DatasetManifest, dropped_sentences
from nbtrain.dataset.samples.build import GPTDatasets, build_datasets
from nbtrain.dataset.samples.split_ranges import stream_range
from nbtrain.dataset.tables import sources_table, unread_table
from nbtrain.dataset.views.browser import Browser, Documents
from nbtrain.dataset.views.card_pictures import bars_svg, histogram_svg
from nbtrain.dataset.views.duplicates import Duplicates, find_duplicates
from nbtrain.dataset.views.prepare_report import split_rows, splits_table
from nbtrain.dataset.views.sequences import Sequences, sequences_of

NUM_SAMPLES = 12
NAMED_TEMPLATES = 10
NUM_TEXT_SAMPLES = 4
SAMPLE_TOKENS = 400
TEXT_SAMPLE_CHARS = 800
MAX_EPOCHS = 4.0
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body{{font-family:system-ui,sans-serif;max-width:1000px;margin:24px auto;padding:0 16px;line-height:1.4;
color-scheme:light dark}}
summary{{cursor:pointer}}pre{{font-size:12px}}
</style></head><body>
{body}
</body></html>
"""


class Card(Result):
    """Base class of DataCard and BlendCard."""

    @abstractmethod
    def summary(self) -> Report:
        """Return the warnings, tables and plots, without the documents below them."""

    def to_page(self) -> str:
        """Return the card as an HTML page."""
        report = self.as_report()
        return PAGE.format(title=html.escape(f"data card of {report.title}"), body=report.html())


def _warned(warnings: Sequence[str]) -> Findings:
    return Findings([Finding("warning", "data_card", "", "", warning) for warning in warnings])


@dataclass(frozen=True, repr=False)
class DataCard(Card, Record):
    """A description of a dataset, displayed as text or as HTML."""

    prefix: str
    documents: int
    tokens: int
    text_bytes: int | None
    dtype: str
    vocab_size: int | None
    eod_id: int | None
    dataset_sha256: str | None
    tokenizer: str | None
    """Folder of the tokenizer that decodes the dataset; None if no such tokenizer is known."""
    sources: list[dict[str, Any]]
    """The manifest's sources, each with name, documents, bytes, tokens, licence, attribution and settings."""
    dropped: dict[str, int]
    lengths: dict[str, float]
    """Tokens per document, EOD included: minimum, median, mean, 95th percentile, maximum."""
    histogram: dict[str, list[int]]
    """Histogram of documents by length: edges (powers of 2, in tokens) and counts (documents)."""
    splits: list[dict[str, Any]]
    """Name, documents, tokens, samples and epochs of each split that the run reads; empty without a run."""
    samples: list[dict[str, Any]]
    """Documents spread over the dataset, as Document.to_dict() returns them.

    Each has its number, its tokens, the beginning of its text (token ids if no tokenizer is known), and the
    pieces of the text if the dataset has a loss mask.
    """
    sequences: int = 0
    empty_documents: int = 0
    learnt_tokens: int | None = None
    """Number of tokens in the loss; None without a loss mask, which puts every token in the loss."""
    unknown_tokens: int | None = None
    """Number of tokens that replace text the tokenizer cannot encode; None if they were not counted."""
    duplicates: dict[str, int] | None = None
    """Fields of Duplicates: copies, checked and documents; None if copies were not searched for."""
    seq_length: int | None = None
    warnings: list[str] = field(default_factory=list)
    training_sequences: list[dict[str, Any]] = field(default_factory=list)
    """The first training sequences (sequences.py), if the card describes a run."""
    derived = ("bytes_per_token",)

    @property
    def bytes_per_token(self) -> float | None:
        """Text bytes per token, EOD included; None if the size of the text is unknown."""
        return self.text_bytes / self.tokens if self.text_bytes and self.tokens else None

    def as_report(self) -> Report:
        """Return the summary, some documents and, for a run, its first training sequences."""
        # The documents for text output are spread over the dataset, as the whole list is.
        step = max(1, len(self.samples) // NUM_TEXT_SAMPLES)
        some = Documents(self.samples[step // 2 :: step][:NUM_TEXT_SAMPLES], TEXT_SAMPLE_CHARS)
        summary = self.summary()
        samples = [InText(some), InNotebook(Documents(self.samples)), InNotebook(self.sequences_shown)]
        return Report(summary.title, [*summary.blocks, *samples])

    @property
    def sequences_shown(self) -> Sequences:
        """A run's first training sequences as a block of a report."""
        return Sequences(self.training_sequences)

    def summary(self) -> Report:
        lengths = Picture(self._histogram, "documents by length in tokens")
        blocks: list[Block] = [_warned(self.warnings), *self._tables(), lengths]
        tokens = [source["tokens"] for source in self.sources]
        if len(tokens) > 1 and all(tokens):
            names = [source["name"] for source in self.sources]
            blocks.append(Picture(lambda: bars_svg(names, tokens, "tokens"), "tokens by source"))
        return Report(self.prefix, blocks)

    def _histogram(self) -> bytes:
        return histogram_svg(self.histogram["edges"], self.histogram["counts"], self.seq_length)

    def _tables(self) -> list[Block]:
        documents, learnt = f"{self.documents:,}", self.learnt_tokens
        if self.empty_documents:
            documents += f", {self.empty_documents:,} of them empty"
        facts = [
            ["documents", documents],
            *([["sequences", f"{self.sequences:,}"]] if self.sequences not in (0, self.documents) else []),
            ["tokens (EOD counted)", f"{self.tokens:,}"],
            *([["tokens in the loss", _share(learnt, self.tokens, ".1%")]] if learnt is not None else []),
            ["text bytes", f"{self.text_bytes:,}" if self.text_bytes else "unknown"],
            ["bytes/token", f"{self.bytes_per_token:.3f}" if self.bytes_per_token else "unknown"],
            ["stored as", self.dtype],
            ["vocabulary", f"{self.vocab_size:,}" if self.vocab_size else "unknown"],
            ["EOD id", str(self.eod_id) if self.eod_id is not None else "unknown"],
            ["tokenizer", self.tokenizer or "not in the data directory"],
            ["dataset sha256", (self.dataset_sha256 or "no manifest")[:16]],
            *([["exact duplicates", str(Duplicates(**self.duplicates))]] if self.duplicates else []),
            *([["unknown tokens", _share(self.unknown_tokens, self.tokens)]] if self.unknown_tokens else []),
            *([f"dropped: {reason}", f"{count:,}"] for reason, count in sorted(self.dropped.items())),
            *([["dropped: sentences", sentences]] if (sentences := dropped_sentences(self.sources)) else []),
            *([["templates not evaluated", templates]] if (templates := _templates(self.sources)) else []),
        ]
        lengths = ["tokens per document", *(f"{value:,.0f}" for value in self.lengths.values())]
        what = "documents" if self.sequences == self.documents else "sequences"
        more: dict[str, Any] = {}
        if any(source["unknown_tokens"] for source in self.sources):
            more["unknown_tokens"] = lambda source: _share(source["unknown_tokens"], source["tokens"])
        more |= {
            "licence": lambda source: _licence(source["licence"]),
            "attribution": lambda source: source["attribution"],
        }
        return [
            Facts([(name, value) for name, value in facts], "Dataset"),
            Table(["", *self.lengths], [lengths], "Lengths", is_grid=True),
            splits_table(self.splits, what, "samples read", "Splits", is_grid=True),
            sources_table(self.sources, "Sources", is_grid=True, **more),
            unread_table(self.sources, "Keys not read", is_grid=True),
        ]


@dataclass(frozen=True, repr=False)
class BlendCard(Card):
    """Card of a run that mixes datasets: their shares and epochs, then the card of each dataset."""

    name: str
    entries: list[dict[str, Any]]
    """Name, weight, share, tokens and train_tokens of each dataset, and its training samples and epochs."""
    cards: list[DataCard]
    warnings: list[str]

    def to_dict(self) -> dict[str, Any]:
        return {**record_of(self), "cards": [card.to_dict() for card in self.cards]}

    def as_report(self) -> Report:
        """Return the summary, then the card of each dataset."""
        summary = self.summary()
        return Report(summary.title, [*summary.blocks, *(card.as_report() for card in self.cards)])

    def summary(self) -> Report:
        columns: list[str | Column] = [
            "dataset",
            Column("weight", "{:g}".format),
            Column("share", "{:.1%}".format),
            *("tokens", "training tokens", "samples"),
            Column("epochs", "{:.2f}".format),
        ]
        keys = ("name", "weight", "share", "tokens", "train_tokens", "samples", "epochs")
        rows = [[entry[key] for key in keys] for entry in self.entries]
        table = Table(columns, rows, "Datasets", is_grid=True)
        picture = Picture(self._samples, "training samples by dataset")
        return Report(f"blend {self.name}", [_warned(self.warnings), table, picture])

    def _samples(self) -> bytes:
        names, samples = zip(*((entry["name"], entry["samples"]) for entry in self.entries))
        return bars_svg(names, samples, "training samples")


def data_card(target: str | os.PathLike | RunConfig, tokenizer: str | None = None) -> DataCard | BlendCard:
    """Return the card of a run's dataset, of a dataset by name, or of any .bin/.idx by prefix.

    `tokenizer` is a name or a path; None uses the tokenizer with the manifest's hash. Reads the index, the
    loss mask, and the tokens that find_duplicates() needs. Raises DataError if the dataset is missing or
    damaged.
    """
    if isinstance(target, RunConfig) and target.data.blend:
        return _blend_card(target, tokenizer)
    return _card(target, tokenizer, target if isinstance(target, RunConfig) else None)


def _card(target: Any, tokenizer: str | None, config: RunConfig | None) -> DataCard:
    browser = Browser(target, tokenizer)
    indexed, manifest = browser.indexed, browser.manifest
    if not browser.num_documents or not indexed.num_tokens:
        raise DataError(f"{display(browser.dataset.prefix)}: the dataset contains no documents.")
    lengths = np.diff(indexed.document_bounds())
    # The manifest's text, sources and drops describe the training pair, not the other pairs in its folder.
    own = manifest if manifest and manifest.stem == browser.dataset.stem else None
    datasets = None
    if config is not None and config.data.resolved_packing == "best_fit":
        datasets = build_datasets(config)
    splits = _splits(config, indexed, datasets) if config is not None else []
    sequences, _ = sequences_of(config, browser, datasets)
    return DataCard(
        prefix=display(browser.dataset.prefix),
        documents=browser.num_documents,
        tokens=indexed.num_tokens,
        text_bytes=own.counts["bytes"] if own else None,
        dtype=indexed.dtype.name,
        **{name: getattr(manifest, name, None) for name in ("vocab_size", "eod_id", "dataset_sha256")},
        tokenizer=browser.tokenizer,
        sources=own.sources if own else [],
        dropped=own.counts["dropped"] if own else {},
        unknown_tokens=own.unknown_tokens if own else None,
        lengths={
            "minimum": float(lengths.min()),
            "median": float(np.median(lengths)),
            "mean": float(lengths.mean()),
            "95th percentile": float(np.percentile(lengths, 95)),
            "maximum": float(lengths.max()),
        },
        histogram=_histogram(lengths),
        splits=splits,
        samples=[document.to_dict() for document in browser.spread(NUM_SAMPLES, SAMPLE_TOKENS)],
        sequences=len(indexed),
        empty_documents=int((lengths == 0).sum()),
        learnt_tokens=_loss_tokens(browser, own),
        duplicates=asdict(find_duplicates(indexed)),
        seq_length=config.model.seq_length if config is not None else None,
        warnings=[*_epoch_warnings(splits), *_unknown_warnings(own), *_other_text_warnings(own, config)],
        training_sequences=sequences,
    )


def _loss_tokens(browser: Browser, manifest: DatasetManifest | None) -> int | None:
    """Return the number of tokens in the loss, from the manifest or the mask; None without a mask."""
    if browser.mask is None:
        return None
    if manifest is not None and manifest.loss_tokens is not None:
        return manifest.loss_tokens
    return sum(int(np.count_nonzero(in_loss(chunk))) for chunk in browser.mask.chunks())


def _histogram(lengths: np.ndarray) -> dict[str, list[int]]:
    last = max(1, int(lengths.max()).bit_length())
    edges = [0, *(1 << power for power in range(last + 1))]
    counts, _ = np.histogram(lengths, bins=edges)
    # Omit the empty bins before the shortest document.
    first = int(np.flatnonzero(counts)[0])
    return {"edges": edges[first:], "counts": counts[first:].tolist()}


def _splits(config: RunConfig, indexed: IndexedDataset, packed: GPTDatasets | None) -> list[dict[str, Any]]:
    """Return a row for each split: its size, and what training, a validation or a test reads from it.

    `packed` holds the run's datasets if data.packing is best_fit. Their splits are cut within each source and
    read by weight, so they provide the numbers.
    """
    if packed is not None:
        return split_rows(packed)
    train = max(config.data.index_samples or 0, config.batch_schedule.samples_after(config.train_steps))
    rows = []
    for name in SPLIT_NAMES:
        first, last = stream_range(config, len(indexed), name)
        tokens = int(indexed.lengths[first:last].sum(dtype=np.int64))
        samples = (train if name == "train" else config.evaluation_samples) if tokens else 0
        epochs = samples * config.model.seq_length / tokens if tokens else 0.0
        figures = {"documents": last - first, "tokens": tokens, "samples": samples, "epochs": epochs}
        rows.append({"name": name, **figures})
    return rows


def _share(part: int, whole: int, digits: str = ".2%") -> str:
    return f"{part:,} ({part / whole:{digits}})" if whole else f"{part:,}"


def _unknown_warnings(manifest: DatasetManifest | None) -> list[str]:
    return [
        f"{source['name']}: {unknown:,} of {tokens:,} tokens ({unknown / tokens:.2%}) are the unknown "
        "token: the tokenizer has no token for this text, so the text is lost. Use a tokenizer made "
        "for this text, or train one."
        for source in (manifest.sources if manifest else [])
        if (unknown := source["unknown_tokens"]) > UNKNOWN_WARNED_FRACTION * (tokens := source["tokens"])
    ]


def _other_text_warnings(manifest: DatasetManifest | None, config: RunConfig | None) -> list[str]:
    if not manifest or not manifest.tokenizer_sha256 or (config and config.init_from is not None):
        return []
    folder = folder_of(manifest.tokenizer_sha256, [tokenizer_dir(config.tokenizer.name)] if config else [])
    clause = other_text_of(folder, manifest.settings or {}) if folder else ""
    if not clause:
        return []
    return [f"{clause}: this tokenizer needs more tokens for the text than a tokenizer trained on the text."]


def _epoch_warnings(splits: list[dict[str, Any]], of: str = "") -> list[str]:
    return [
        f"training reads {split['tokens']:,} tokens{of} {split['epochs']:.1f} times. Beyond "
        f"{MAX_EPOCHS:g} epochs, repeated text adds less and less (arXiv:2305.16264). Use more text, or "
        "fewer train_tokens."
        for split in splits
        if split["name"] == "train" and split["epochs"] > MAX_EPOCHS
    ]


def _blend_card(config: RunConfig, tokenizer: str | None) -> BlendCard:
    entries = BlendFiles.of(config).entries
    total = sum(entry.weight for entry in entries)
    samples = config.batch_schedule.samples_after(config.train_steps)
    rows, cards, warnings = [], [], []
    for entry in entries:
        indexed = IndexedDataset(entry.files.prefix)
        first, last = stream_range(config, len(indexed), "train")
        train_tokens = int(indexed.lengths[first:last].sum(dtype=np.int64))
        share = entry.weight / total
        taken = round(samples * share)
        epochs = taken * config.model.seq_length / train_tokens if train_tokens else 0.0
        row = {"name": entry.name, "weight": entry.weight, "share": share, "tokens": indexed.num_tokens}
        rows.append({**row, "train_tokens": train_tokens, "samples": taken, "epochs": epochs})
        train = {"name": "train", "epochs": epochs, "tokens": train_tokens}
        warnings += _epoch_warnings([train], f" of {entry.name}")
        cards.append(_card(entry.files, tokenizer, None))
    return BlendCard(config.data.name, rows, cards, warnings)


def _templates(sources: list[dict[str, Any]]) -> str:
    """Return the wikitext templates that were most often not evaluated, with their counts."""
    counts: Counter[str] = Counter()
    for source in sources:
        counts.update(source.get("unknown_templates", {}))
    return ", ".join(f"{name} {count:,}" for name, count in counts.most_common(NAMED_TEMPLATES))


def _licence(licence: Any) -> str:
    if isinstance(licence, dict):
        names = sorted({str(value) for value in licence.values()})
        return f"{len(names)} licences of {len(licence)} packages: see manifest.json"
    return licence or "not stated"
