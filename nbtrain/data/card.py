"""The data card: what is in a dataset, in figures, a histogram and a few documents, read from its .bin/.idx."""

import base64
import html
import io
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nbtrain.config.schema import RunConfig
from nbtrain.data import tokenizer
from nbtrain.data.dataset_files import DatasetFiles, DatasetManifest
from nbtrain.data.gpt_index import SPLIT_NAMES, split_bounds
from nbtrain.data.indexed import IndexedDataset
from nbtrain.data.tables import Table, html_table, text_table
from nbtrain.data.tokenizer import Tokenizer
from nbtrain.errors import DataError
from nbtrain.workspace import data_home, display, tokenizer_dir

NUM_SAMPLES = 4
SAMPLE_TOKENS = 160


@dataclass(frozen=True)
class DataCard:
    """A dataset described; shows itself as text and as HTML."""

    prefix: str
    documents: int
    tokens: int
    text_bytes: int | None
    dtype: str
    vocab_size: int | None
    eod_id: int | None
    dataset_sha256: str | None
    tokenizer: str | None
    """Folder of the tokenizer that decodes it, or None where it is not in the data home."""
    sources: list[dict[str, Any]]
    dropped: dict[str, int]
    lengths: dict[str, float]
    """Tokens per document, EOD counted: minimum, median, mean, 95 %, maximum."""
    histogram: dict[str, list[int]]
    """edges (powers of 2, tokens) and counts (documents)."""
    splits: list[dict[str, Any]]
    """name, documents, tokens; empty where the card is not of a run."""
    samples: list[dict[str, Any]]
    """document, tokens, text (its beginning; token ids where there is no tokenizer)."""

    @property
    def bytes_per_token(self) -> float | None:
        """Text bytes per token, EOD counted; None where the text's size is not known."""
        return self.text_bytes / self.tokens if self.text_bytes and self.tokens else None

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {**asdict(self), "bytes_per_token": self.bytes_per_token}

    def __str__(self) -> str:
        parts = [self.prefix, *(text_table(*table) for table in self._tables())]
        for sample in self.samples:
            parts.append(
                f"document {sample['document']:,} ({sample['tokens']:,} tokens)\n{_indented(sample['text'])}"
            )
        return "\n\n".join(parts)

    __repr__ = __str__

    def to_html(self) -> str:
        """A self-contained fragment: tables, histogram as inline SVG, documents."""
        picture = base64.b64encode(self.histogram_svg()).decode()
        samples = "".join(
            f"<details><summary>document {sample['document']:,} ({sample['tokens']:,} tokens)</summary>"
            f"<pre>{html.escape(sample['text'])}</pre></details>"
            for sample in self.samples
        )
        tables = "".join(html_table(*table) for table in self._tables())
        return (
            f"<h3>{html.escape(self.prefix)}</h3>{tables}"
            f'<img alt="documents by length in tokens" src="data:image/svg+xml;base64,{picture}"/>{samples}'
        )

    _repr_html_ = to_html

    def histogram_svg(self) -> bytes:
        """Documents by length, in bins of powers of 2."""
        from matplotlib import rc_context
        from matplotlib.figure import Figure

        edges, counts = self.histogram["edges"], self.histogram["counts"]
        figure = Figure(figsize=(6, 2.4), layout="constrained")
        axes = figure.subplots()
        axes.bar(range(len(counts)), counts, width=0.95)
        axes.set_xticks(np.arange(len(edges)) - 0.5, [f"{edge:,}" for edge in edges], rotation=45, fontsize=7)
        axes.set_xlabel("tokens in a document")
        axes.set_ylabel("documents")
        content = io.BytesIO()
        # A fixed salt and no date: the same card is the same bytes.
        with rc_context({"svg.hashsalt": "nbtrain"}):
            figure.savefig(content, format="svg", metadata={"Date": None})
        return content.getvalue()

    def _tables(self) -> list[Table]:
        facts = [
            ["documents", f"{self.documents:,}"],
            ["tokens (EOD counted)", f"{self.tokens:,}"],
            ["text bytes", f"{self.text_bytes:,}" if self.text_bytes else "unknown"],
            ["bytes/token", f"{self.bytes_per_token:.3f}" if self.bytes_per_token else "unknown"],
            ["stored as", self.dtype],
            ["vocabulary", f"{self.vocab_size:,}" if self.vocab_size else "unknown"],
            ["EOD id", str(self.eod_id) if self.eod_id is not None else "unknown"],
            ["tokenizer", self.tokenizer or "not in the data home"],
            ["dataset sha256", (self.dataset_sha256 or "no manifest")[:16]],
            *([f"dropped: {reason}", f"{count:,}"] for reason, count in sorted(self.dropped.items())),
        ]
        lengths = [[f"{value:,.0f}" for value in self.lengths.values()]]
        tables: list[Table] = [
            (["", ""], facts),
            ([f"tokens/document: {next(iter(self.lengths))}", *list(self.lengths)[1:]], lengths),
        ]
        if self.splits:
            rows = [
                [split["name"], f"{split['documents']:,}", f"{split['tokens']:,}"] for split in self.splits
            ]
            tables.append((["split", "documents", "tokens"], rows))
        if self.sources:
            rows = [
                [
                    source["kind"],
                    f"{source['documents']:,}",
                    f"{source['bytes']:,}",
                    _licence(source["licence"]),
                ]
                for source in self.sources
            ]
            tables.append((["source", "documents", "bytes", "licence"], rows))
        return tables


def data_card(target: str | RunConfig) -> DataCard:
    """The card of a run's dataset, of a dataset by name, or of any .bin/.idx by prefix.

    Raises DataError where it is missing or damaged. Reads the index and a few documents, not all tokens.
    """
    dataset = DatasetFiles.find(target)
    indexed = IndexedDataset(dataset.prefix)
    manifest = dataset.manifest()
    if manifest and f"{dataset.stem}.bin" not in manifest.files:
        manifest = None  # another pair in a folder that holds several
    decoder = _decoder(target, manifest)
    lengths = np.asarray(indexed.lengths)
    if not len(lengths):
        raise DataError(f"{display(dataset.prefix)}: holds no document.")
    counts = manifest.counts if manifest else {"bytes": None, "dropped": {}}
    return DataCard(
        prefix=display(dataset.prefix),
        documents=len(indexed.document_indices) - 1,
        tokens=indexed.num_tokens,
        text_bytes=counts["bytes"],
        dtype=indexed.dtype.name,
        vocab_size=manifest.vocab_size if manifest else None,
        eod_id=manifest.eod_id if manifest else None,
        dataset_sha256=manifest.dataset_sha256 if manifest else None,
        tokenizer=display(decoder.directory) if decoder else None,
        sources=manifest.sources if manifest else [],
        dropped=counts["dropped"],
        lengths={
            "minimum": float(lengths.min()),
            "median": float(np.median(lengths)),
            "mean": float(lengths.mean()),
            "95 %": float(np.percentile(lengths, 95)),
            "maximum": float(lengths.max()),
        },
        histogram=_histogram(lengths),
        splits=_splits(target, indexed) if isinstance(target, RunConfig) else [],
        samples=_samples(indexed, decoder, manifest.eod_id if manifest else None),
    )


def _decoder(target: str | RunConfig, manifest: DatasetManifest | None) -> Tokenizer | None:
    """The tokenizer with the manifest's hash: the run's own, else any in the data home."""
    if manifest is None or manifest.tokenizer_sha256 is None:
        return None
    folders = [tokenizer_dir(target.tokenizer.name)] if isinstance(target, RunConfig) else []
    folders += sorted((data_home() / "tokenizer").glob("[!.]*"))
    for folder in folders:
        entry = tokenizer.read_manifest(folder)
        if entry and entry["sha256"] == manifest.tokenizer_sha256:
            return Tokenizer.load(folder)
    return None


def _histogram(lengths: np.ndarray) -> dict[str, list[int]]:
    last = int(lengths.max()).bit_length()
    edges = [1 << power for power in range(last + 1)]
    counts, _ = np.histogram(lengths, bins=edges)
    return {"edges": edges, "counts": counts.tolist()}


def _splits(config: RunConfig, indexed: IndexedDataset) -> list[dict[str, Any]]:
    bounds = split_bounds(config.data.split, config.data.split_rule, len(indexed))
    return [
        {
            "name": name,
            "documents": last - first,
            "tokens": int(indexed.lengths[first:last].sum(dtype=np.int64)),
        }
        for name, (first, last) in zip(SPLIT_NAMES, bounds, strict=True)
    ]


def _samples(indexed: IndexedDataset, decoder: Tokenizer | None, eod_id: int | None) -> list[dict[str, Any]]:
    """The beginnings of documents at equal distances."""
    chosen = sorted({(2 * part + 1) * len(indexed) // (2 * NUM_SAMPLES) for part in range(NUM_SAMPLES)})
    samples = []
    for document in chosen:
        ids = indexed[document].tolist()
        length = len(ids)
        if ids and ids[-1] == eod_id:
            ids.pop()
        shown = ids[:SAMPLE_TOKENS]
        text = decoder.decode(shown) if decoder else " ".join(map(str, shown))
        samples.append(
            {"document": document, "tokens": length, "text": text + (" ..." if len(ids) > len(shown) else "")}
        )
    return samples


def _licence(licence: Any) -> str:
    if isinstance(licence, dict):
        names = sorted({str(value) for value in licence.values()})
        return f"{len(names)} licences of {len(licence)} packages: see manifest.json"
    return licence or "not stated"


def _indented(text: str) -> str:
    return "\n".join(f"  | {line}" for line in text.splitlines())
