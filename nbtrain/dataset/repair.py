"""Repairs the only kind of damage that can be undone: end-of-document tokens that were not counted.

Megatron-DeepSpeed's preprocess_data.py --append-eod appends the EOD to a document after it has measured the
document's lengths:

    .bin     a a a E b b E c E        9 tokens
    lengths  3 2 1                    6 tokens: document 1 would begin at E, document 2 at b

The damage is recognized if the .bin holds one more token for each non-empty document, and all these tokens
are equal. The repair makes the last sequence of each document one token longer. The .bin and the document
array do not change.
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.printing.report import Items, Report, Result, Sentence
from nbtrain.base.process.locks import locked_directory
from nbtrain.base.text.amounts import counted
from nbtrain.base.workspace import display
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.files import DatasetFiles
from nbtrain.dataset.indexed import IndexedDataset
from nbtrain.dataset.indexed_writer import write_index
from nbtrain.dataset.of_run import find_dataset

SHOWN_TOKENS = 8
COPY_BYTES = 1 << 22
ANOTHER = "A repair of the index cannot undo this damage: make the dataset again."


@dataclass(frozen=True, repr=False)
class Repair(Result):
    """The planned repair of one pair, displayed as a report; `apply` carries it out."""

    dataset: DatasetFiles
    documents: int
    eod_id: int
    counted_tokens: int
    """Number of tokens according to the current index."""
    found_tokens: int
    """Number of tokens in the .bin."""
    endings: list[str]
    """The last tokens that the first documents would have after the repair, as text."""

    @property
    def kept_idx(self) -> Path:
        return self.dataset.idx.with_name(f"{self.dataset.idx.name}.before-repair")

    def as_report(self) -> Report:
        """Return a report of what is missing, how the first documents would end, and what would change."""
        missing = (
            f"{display(self.dataset.idx)}: the index counts {self.counted_tokens:,} tokens, but the .bin "
            f"holds {self.found_tokens:,}: {counted(self.documents, 'document')}, each with an uncounted "
            f"end-of-document token (id {self.eod_id})."
        )
        endings = [f"document {number} would end in {ending}" for number, ending in enumerate(self.endings)]
        change = (
            "The repair adds 1 to the length of each document. The .bin does not change, and the old index "
            f"is kept as {self.kept_idx.name}."
        )
        return Report("", [Sentence(missing), Items(endings), Sentence(change)])

    def apply(self) -> None:
        """Replace the index by rename and update its manifest entry.

        Raises DataError if an earlier repair's copy of the index exists.
        """
        with locked_directory(self.dataset.directory):
            broken = IndexedDataset(self.dataset.prefix, surplus_allowed=True)
            lengths, _ = _repaired_lengths(broken)
            manifest = self.dataset.manifest()
            if self.kept_idx.exists():
                raise DataError(
                    f"{display(self.kept_idx)}: the file already exists, from an earlier repair. Move it "
                    "away first."
                )
            with self.dataset.idx.open("rb") as old, files.atomic_writer(self.kept_idx) as kept:
                shutil.copyfileobj(old, kept, COPY_BYTES)
            sha256 = write_index(self.dataset.idx, broken.dtype, lengths, broken.document_indices)
            if manifest is not None and self.dataset.idx.name in manifest.files:
                entry = {"bytes": self.dataset.idx.stat().st_size, "sha256": sha256}
                manifest.files[self.dataset.idx.name] = entry
                if self.dataset.stem == manifest.stem:
                    manifest.counts["tokens"] = self.found_tokens
                files.write_json(self.dataset.manifest_json, manifest.to_dict())


def plan_repair(target: str | os.PathLike | RunConfig, eod_id: int | None = None) -> Repair | None:
    """Return the planned repair of a pair, or None if it is intact. Raises DataError for any other damage.

    `eod_id` is the token that documents must end in. None uses the manifest's token or, without one, the
    token that all documents would end in.
    """
    dataset = find_dataset(target)
    broken = IndexedDataset(dataset.prefix, surplus_allowed=True)
    if len(broken.tokens) == broken.num_tokens:
        # Raises DataError if something else is wrong.
        IndexedDataset(dataset.prefix).check()
        return None
    lengths, ends = _repaired_lengths(broken)
    where = display(dataset.bin)
    if not len(ends) or len(broken.tokens) != int(lengths.sum(dtype=np.int64)):
        raise DataError(
            f"{where}: the file holds {len(broken.tokens):,} tokens. With one uncounted EOD for each of "
            f"{len(ends):,} documents, it would hold {int(lengths.sum(dtype=np.int64)):,}. {ANOTHER}"
        )
    found = np.unique(broken.tokens[ends])
    if len(found) != 1:
        raise DataError(
            f"{where}: the documents would end in {len(found):,} different tokens, not in one EOD. {ANOTHER}"
        )
    manifest = dataset.manifest()
    if eod_id is None and manifest is not None:
        eod_id = manifest.eod_id
    if eod_id is not None and int(found[0]) != eod_id:
        raise DataError(
            f"{where}: the documents would end in token {int(found[0]):,}, but the EOD is {eod_id:,}. "
            f"{ANOTHER}"
        )
    return Repair(
        dataset=dataset,
        documents=len(ends),
        eod_id=int(found[0]),
        counted_tokens=broken.num_tokens,
        found_tokens=len(broken.tokens),
        endings=[
            " ".join(map(str, broken.tokens[max(begin, end - SHOWN_TOKENS + 1) : end + 1].tolist()))
            for begin, end in zip([0, *(ends[:2] + 1).tolist()], ends[:3].tolist())
        ],
    )


def _repaired_lengths(broken: IndexedDataset) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths with each document's EOD counted, and the positions of the EODs in the .bin.

    Empty documents have no EOD.
    """
    broken.check()
    documents = broken.document_indices
    last = documents[1:][documents[1:] > documents[:-1]] - 1
    lengths = np.array(broken.lengths)
    if len(lengths) and int(lengths[last].max()) == np.iinfo(np.int32).max:
        raise DataError(
            f"{display(broken.prefix)}: a document already has the maximum length of the .idx format, "
            f"{np.iinfo(np.int32).max:,} tokens. {ANOTHER}"
        )
    lengths[last] += 1
    return lengths, np.cumsum(lengths, dtype=np.int64)[last] - 1
