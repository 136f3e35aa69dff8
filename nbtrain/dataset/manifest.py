"""The manifest of a dataset: its files, their origin, and one hash that identifies all of them."""

import hashlib
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.printing.report import Record
from nbtrain.base.workspace import display

if TYPE_CHECKING:
    import numpy as np

SCHEMA_VERSION = 1
MASK_SUFFIX = "_loss_mask"
LEVELS = ("document", "sentence")
MAKE_AGAIN = "Run `nbtrain prepare RUN.yaml --force` to make the dataset again."
# Keys that every source in a manifest has in addition to its settings.
SOURCE_KEYS = frozenset(
    [
        "kind",
        "name",
        "licence",
        "attribution",
        "fingerprint",
        "documents",
        "tokens",
        "bytes",
        "unknown_tokens",
        "dropped",
        "unread_keys",
        "sha256",
    ]
)
# With code as text, BERT's vocabulary yields 2.7 % unknown tokens and T5's 6.9 %; with text in the language
# that they were made for, almost none.
UNKNOWN_WARNED_FRACTION = 0.001


@dataclass(frozen=True)
class DatasetManifest(Record):
    """Contents of a dataset's manifest.json."""

    json_key: str
    """Key of the pair that the model is trained on; the folder may hold other pairs."""
    sources: list[dict[str, Any]]
    """The sources; empty if another program wrote the files.

    Each source has its settings, name, licence, attribution, versions, documents, bytes, tokens, sha256, its
    range of sequences [first, last), and unread_keys {key: number of records with a value under that key}.
    A wikitext source also has sentences, dropped_sentences and unknown_templates {name: count}.
    """
    counts: dict[str, Any]
    """Counts of json_key's pair: documents, tokens, bytes and dropped {reason: count}.

    tokens includes EOD; bytes is the size of the text, None if unknown. Optional counts are unknown_tokens,
    which replace text that the tokenizer cannot encode, and loss_tokens, if the dataset has a loss mask.
    """
    vocab_size: int
    dtype: str
    eod_id: int | None
    tokenizer_sha256: str | None
    files: dict[str, dict[str, Any]]
    """Size and hash of each file of all pairs, {name: {bytes, sha256}}."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings that determined the content. prepare compares them with the run's settings."""
    software: dict[str, str] = field(default_factory=dict)
    schema_version: int = SCHEMA_VERSION
    derived = ("dataset_sha256",)

    @property
    def stem(self) -> str:
        """Stem (file name without suffix) of the pair that the model is trained on."""
        known = [f"{self.json_key}_{level}" for level in LEVELS]
        return next((stem for stem in (*known, *self.stems) if f"{stem}.bin" in self.files), known[0])

    @property
    def stems(self) -> list[str]:
        """Stems of all pairs of token ids; loss masks are not included."""
        stems = sorted(Path(name).stem for name in self.files if name.endswith(".bin"))
        return [stem for stem in stems if not is_mask(stem, stems)]

    @property
    def dataset_sha256(self) -> str:
        """One hash of all .bin and .idx files, by which runs and checkpoints refer to the dataset."""
        lines = "".join(
            f"{Path(name).suffix} {entry['sha256']}\n" for name, entry in sorted(self.files.items())
        )
        return hashlib.sha256(lines.encode()).hexdigest()

    @property
    def unknown_tokens(self) -> int | None:
        """Number of tokens that replace text the tokenizer cannot encode; None if they were not counted."""
        return self.counts.get("unknown_tokens")

    @property
    def loss_tokens(self) -> int | None:
        """Number of tokens in the loss; None without a loss mask, or if they were not counted."""
        return self.counts.get("loss_tokens")


def read_manifest(path: Path) -> DatasetManifest | None:
    """Return the manifest at `path`, or None if it is missing. Raises DataError if it cannot be read."""
    try:
        value = files.read_json(path)
    except ValueError as error:
        raise DataError(f"{error}. {MAKE_AGAIN}") from None
    if value is None:
        return None
    if not isinstance(value, dict):
        value = {}
    if value.get("schema_version") != SCHEMA_VERSION:
        raise DataError(
            f"{display(path)}: schema_version is {value.get('schema_version')}, but must be "
            f"{SCHEMA_VERSION}. {MAKE_AGAIN}"
        )
    known = {entry.name for entry in fields(DatasetManifest)}
    try:
        manifest = DatasetManifest(**{key: entry for key, entry in value.items() if key in known})
        if not all({"bytes", "sha256"} <= entry.keys() for entry in manifest.files.values()):
            raise TypeError("each entry of files must have bytes and sha256")
        if not {"documents", "tokens", "bytes", "dropped"} <= manifest.counts.keys():
            raise TypeError("counts must have documents, tokens, bytes and dropped")
        for number, source in enumerate(manifest.sources):
            if missing := sorted(SOURCE_KEYS - source.keys()):
                raise TypeError(f"sources[{number}] must have {missing[0]}")
        return manifest
    except (TypeError, AttributeError) as error:
        raise DataError(f"{display(path)}: the manifest is incomplete ({error}). {MAKE_AGAIN}") from None


def data_hashes(manifest: DatasetManifest) -> dict[str, str]:
    """Return SHA-256 hashes of the text of each source and of each file of the dataset, {name: hash}.

    A source's name omits its folder, which may differ on another machine.
    """
    sources = {
        f"data.sources.{number} ({Path(source.get('path') or source['name']).name})": source["sha256"]
        for number, source in enumerate(manifest.sources)
    }
    return sources | {name: entry["sha256"] for name, entry in sorted(manifest.files.items())}


def is_mask(stem: str, stems: Container[str]) -> bool:
    """Return whether the pair `stem` is the loss mask of another pair in `stems`."""
    return stem.endswith(MASK_SUFFIX) and stem.removesuffix(MASK_SUFFIX) in stems


def manifest_dtype(dtype: "np.dtype") -> str:
    """Return the dtype's plain name, e.g. uint16."""
    return dtype.newbyteorder("=").name


def dropped_sentences(sources: Sequence[dict[str, Any]]) -> str:
    """Return the share of dropped sentences, e.g. "159 of 28,113 (0.57%)"; "" without wikitext sources."""
    sentences, dropped = (
        sum(source.get(key, 0) for source in sources) for key in ("sentences", "dropped_sentences")
    )
    return f"{dropped:,} of {sentences:,} ({dropped / sentences:.2%})" if sentences else ""


def added_counts(manifests: Sequence[DatasetManifest]) -> dict[str, Any]:
    """Return the sums of several manifests' counts.

    If one manifest lacks an optional count, its sum is omitted; if one has `bytes` None, so is the sum.
    """
    counts = [manifest.counts for manifest in manifests]
    dropped: Counter[str] = Counter()
    for entry in counts:
        dropped.update(entry["dropped"])
    texts = [entry["bytes"] for entry in counts]
    optional = {key: [entry.get(key) for entry in counts] for key in ("unknown_tokens", "loss_tokens")}
    return {
        "documents": sum(entry["documents"] for entry in counts),
        "tokens": sum(entry["tokens"] for entry in counts),
        "bytes": None if None in texts else sum(texts),
        "dropped": dict(dropped),
        **{key: sum(found) for key, found in optional.items() if None not in found},
    }
