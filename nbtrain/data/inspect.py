"""A .bin/.idx pair looked at from outside: what its header says, and whether all of it is right."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from nbtrain import files
from nbtrain.config.schema import RunConfig
from nbtrain.data.dataset_files import DatasetFiles
from nbtrain.data.indexed import IndexedDataset
from nbtrain.data.tables import html_table, text_table
from nbtrain.errors import DataError
from nbtrain.workspace import display


@dataclass(frozen=True)
class Inspection:
    """Facts of one pair, name and value; `checks` are what verify has read and found right."""

    prefix: str
    facts: dict[str, str]
    checks: list[str]

    def to_dict(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [self.prefix, "", text_table(["", ""], self._rows())]
        return "\n".join([*lines, "", *(f"ok: {check}" for check in self.checks)]).rstrip()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return html_table([self.prefix, ""], self._rows() + [["ok", check] for check in self.checks])

    def _rows(self) -> list[list[str]]:
        return [[name, value] for name, value in self.facts.items()]


def inspect(target: str | RunConfig) -> Inspection:
    """What the header and the manifest of a dataset say; reads no token.

    Raises DataError where it is missing, truncated, or written by Megatron-DeepSpeed with uncounted EOD.
    """
    dataset = DatasetFiles.find(target)
    indexed = IndexedDataset(dataset.prefix)
    manifest = dataset.manifest()
    facts = {
        "sequences": f"{len(indexed):,}",
        "documents": f"{len(indexed.document_indices) - 1:,}",
        "tokens": f"{indexed.num_tokens:,}",
        "dtype": indexed.dtype.name,
        ".bin bytes": f"{dataset.bin.stat().st_size:,}",
        ".idx bytes": f"{dataset.idx.stat().st_size:,}",
        "vocabulary": f"{manifest.vocab_size:,}" if manifest else "no manifest",
        "EOD id": str(manifest.eod_id) if manifest else "no manifest",
        "dataset sha256": manifest.dataset_sha256 if manifest else "no manifest",
        "tokenizer sha256": str(manifest.tokenizer_sha256) if manifest else "no manifest",
    }
    return Inspection(display(dataset.prefix), facts, [])


def verify(target: str | RunConfig) -> Inspection:
    """As inspect, and every byte is read: offsets, ids, EOD at each document's end, sha256 of the manifest.

    Raises DataError at the first thing that is wrong.
    """
    seen = inspect(target)
    dataset = DatasetFiles.find(target)
    indexed = IndexedDataset(dataset.prefix)
    manifest = dataset.manifest()
    largest = indexed.verify(manifest.vocab_size if manifest else None)
    checks = ["header, sizes, offsets and document array agree", f"largest token id {largest:,}"]
    if manifest:
        checks[-1] += f", vocabulary {manifest.vocab_size:,}"
        if manifest.eod_id is not None:
            checks.append(_check_eod(dataset, indexed, manifest.eod_id))
        for name, entry in manifest.files.items():
            found = files.sha256_of(dataset.directory / name)
            if found != entry["sha256"]:
                raise DataError(
                    f"{display(dataset.directory / name)}: sha256 {found[:16]}, its manifest says "
                    f"{entry['sha256'][:16]}: the content has changed. Restore it, or make the dataset again with "
                    "`nbtrain prepare RUN.yaml --force`."
                )
        checks.append("sha256 of both files is the manifest's")
    return Inspection(seen.prefix, seen.facts, checks)


def _check_eod(dataset: DatasetFiles, indexed: IndexedDataset, eod_id: int) -> str:
    ends = np.cumsum(indexed.lengths, dtype=np.int64)[np.asarray(indexed.document_indices)[1:] - 1] - 1
    without = int((indexed.tokens[ends] != eod_id).sum())
    if without:
        raise DataError(
            f"{display(dataset.bin)}: {without:,} of {len(ends):,} documents do not end in EOD (id {eod_id}). Encode "
            "again with it: a model that never sees the end of a document cannot end one."
        )
    return f"every document ends in EOD (id {eod_id})"
