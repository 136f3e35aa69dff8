"""Documents that are token ids already, with labels aligned as Hugging Face does.

labels[i] belongs to input_ids[i]: a token is learnt if its label is its id, not learnt if it is -100. Any
other label (mostly a list shifted by one) makes a record broken, and so does no learnt token.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from nbtrain.corpus.records import SourcePart, Tally, TokenIds
from nbtrain.corpus.sources import json_line
from nbtrain.corpus.sources.record_files import RecordFileReader, values_of

IGNORED_LABEL = -100
# The largest id that the widest dtype of a .bin (int32) holds.
LARGEST_ID = 2**31 - 1


class TokensReader(RecordFileReader):
    """Lists of ids in .jsonl (also compressed), .json arrays and .parquet. Empty lists are dropped."""

    kind = "tokens"

    def columns(self) -> dict[str, str]:
        columns = {self.config.input_ids_key: "input_ids_key"}
        if self.config.labels_key is not None:
            columns[self.config.labels_key] = "labels_key"
        return columns

    def table_rows(self, batch: Any) -> Iterator[dict[str, Any] | str]:
        names = list(self.columns())
        for row in zip(*(_lists(batch.column(name)) for name in names)):
            yield dict(zip(names, row))

    def read(self, part: SourcePart, tally: Tally) -> Iterator[TokenIds]:
        ids_key, labels_key = self.config.input_ids_key, self.config.labels_key
        for path, number, record in self.rows(part, tally):
            try:
                ids = _integers(record, ids_key)
                labels = None if labels_key is None else _integers(record, labels_key)
                tokens = _token_ids(ids, labels, ids_key, labels_key)
            except ValueError as error:
                tally.add_broken(path, number, str(error))
                continue
            if len(tokens.ids):
                yield tokens._replace(path=path, line=number)
            else:
                tally.dropped["empty"] += 1


def _lists(column: Any) -> list[Any]:
    """The rows of a column: NumPy arrays if it holds lists of integers without a null."""
    import pyarrow.types as types

    kind = column.type
    is_plain = (types.is_list(kind) or types.is_large_list(kind)) and types.is_integer(kind.value_type)
    if not is_plain or column.values.null_count or column.null_count:
        return values_of(column)
    values, bounds = column.values.to_numpy(), column.offsets.to_numpy()
    return [values[start:stop] for start, stop in pairwise(bounds)]


def _integers(record: dict[str, Any], key: str) -> np.ndarray:
    """Integers [n] under a key. Raises ValueError, with what is wrong, if it holds no list of integers."""
    if key not in record:
        raise ValueError(f"no key {key!r} among {json_line.keys_of(record)}")
    values = record[key]
    if isinstance(values, list):
        if not values:
            return np.empty(0, np.int64)
        try:
            values = np.asarray(values)
        except (ValueError, OverflowError):
            raise ValueError(f"{key!r} is not a list of whole numbers") from None
    if not isinstance(values, np.ndarray):
        raise ValueError(f"{key!r} is not a list but {json_line.kind_of(values)}")
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise ValueError(f"{key!r} is not a list of whole numbers")
    return values


def _token_ids(ids: np.ndarray, labels: np.ndarray | None, ids_key: str, labels_key: str | None) -> TokenIds:
    """The document of ids and labels. Raises ValueError, with what is wrong."""
    if len(ids) and (ids.min() < 0 or ids.max() > LARGEST_ID):
        outside = int(ids.min() if ids.min() < 0 else ids.max())
        raise ValueError(f"{ids_key!r} holds {outside}; ids are 0 to {LARGEST_ID:,}")
    learnt = None
    if labels is not None:
        if len(labels) != len(ids):
            raise ValueError(f"{labels_key!r} has {len(labels):,} entries, {ids_key!r} has {len(ids):,}")
        learnt = labels != IGNORED_LABEL
        if (other := np.flatnonzero(learnt & (labels != ids))).size:
            at = int(other[0])
            raise ValueError(
                f"{labels_key}[{at}] = {labels[at]} is neither {IGNORED_LABEL} nor {ids_key}[{at}] = "
                f"{ids[at]}; labels stand at their own tokens, not shifted"
            )
        if len(learnt) and not learnt.any():
            raise ValueError(f"{labels_key!r} is {IGNORED_LABEL} throughout: nothing of it is learnt")
    return TokenIds(ids.astype(np.uint32), learnt)
