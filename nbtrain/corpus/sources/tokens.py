"""Reads documents that are already token ids, with the loss masks that other programs store next to them.

    labels           aligned with the tokens: the token's id, or -100 outside the loss (as in Hugging Face)
    loss_mask, ...   1 for each token in the loss
    prompt_length    number of tokens at the beginning that are outside the loss
    attention_mask   0 for padding at either end, which is dropped
    seq_lens, ...    boundaries of the documents in a packed record, which is split there

A token is in the loss if all labels and masks of its record include it. A record counts as broken if a label
has any other value (usually because labels are shifted by one token), or if no token is in the loss.
"""

from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from nbtrain.corpus.files import json_line
from nbtrain.corpus.records import SourcePart, Tally, TokenIds
from nbtrain.corpus.sources.keys import (
    DOCUMENT_LENGTHS,
    DOCUMENT_PLACES,
    LABELS,
    LOSS_MASKS,
    PROMPT_LENGTHS,
    TOKEN_COUNT,
    TOKEN_VALUES,
    KeyPolicy,
    KeyRule,
    RecordNotes,
    holds_value,
    looks_like_length,
    record_policy,
)
from nbtrain.corpus.sources.parquet import OpenParquet
from nbtrain.corpus.sources.record_files import RecordFileReader, values_of
from nbtrain.corpus.sources.shapes import way_forward

IGNORED_LABEL = -100
# The largest id that fits the widest dtype of a .bin file (int32).
LARGEST_ID = 2**31 - 1


class TokensReader(RecordFileReader):
    """Reads lists of token ids from .jsonl and .json (also compressed) and .parquet; drops empty lists."""

    kind = "tokens"

    @cached_property
    def keys(self) -> KeyPolicy:
        """Rules for the keys of a record."""
        return record_policy(self.config)

    def required_columns(self) -> dict[str, str]:
        columns = {self.config.input_ids_key: "input_ids_key"}
        if self.config.labels_key is not None:
            columns[self.config.labels_key] = "labels_key"
        return columns

    def is_read(self, column: str) -> bool:
        return not self.keys.is_counted(column)

    def columns(self, file: OpenParquet) -> list[str]:
        import pyarrow.types as types

        wanted = super().columns(file)
        # A column without a rule is read if it may specify which tokens are in the loss.
        for field in file.schema:
            kinds = (types.is_list, types.is_large_list, types.is_fixed_size_list)
            is_list = any(is_kind(field.type) for is_kind in kinds)
            is_numbers = is_list and _is_number(field.type.value_type)
            is_length = looks_like_length(field.name) and _is_number(field.type)
            if field.name not in wanted and not self.keys.has_rule(field.name) and (is_numbers or is_length):
                wanted.append(field.name)
        return wanted

    def _doubt(self, key: str, value: Any, length: int) -> KeyRule | None:
        """Return the rule for an unknown key that may specify which tokens are in the loss, else None."""
        if self.keys.has_rule(key):
            return None
        if looks_like_length(key) and not isinstance(value, bool) and isinstance(value, int | np.integer):
            return TOKEN_COUNT
        is_list = isinstance(value, list | np.ndarray) and len(value) == length
        if is_list and np.asarray(value).dtype.kind in "biuf":
            return TOKEN_VALUES
        return None

    def bears_mask(self) -> bool:
        """Return whether `labels_key` is set or the first record has a mask.

        If this is False, no later record may have a mask.
        """
        if self.config.labels_key is not None:
            return True
        for part in self.parts():
            for row in self.rows(part, Tally()):
                return any(holds_value(row.record.get(key)) for key in self._mask_keys)
        return False

    @property
    def _mask_keys(self) -> tuple[str, ...]:
        return self.keys.readable((self.config.labels_key or LABELS, *LOSS_MASKS, *PROMPT_LENGTHS))

    def table_rows(self, batch: Any) -> Iterator[dict[str, Any] | str]:
        names = batch.schema.names
        for row in zip(*map(_lists, batch.columns)):
            yield dict(zip(names, row))

    def read(self, part: SourcePart, tally: Tally) -> Iterator[TokenIds]:
        for path, number, record in self.rows(part, tally):
            notes = RecordNotes()
            try:
                documents = self._documents(record, notes)
                notes.check(self.kind)
            except ValueError as error:
                tally.add_broken(path, number, str(error))
                continue
            tally.add_unread(notes.unread)
            for tokens in documents:
                if len(tokens.ids):
                    yield tokens._replace(path=path, line=number)
                else:
                    tally.dropped["empty"] += 1

    def _documents(self, record: dict[str, Any], notes: RecordNotes) -> list[TokenIds]:
        """Return the documents of one record. Raises ValueError with a description of the problem."""
        config, read = self.config, [self.config.input_ids_key]
        ids = _integers(record, config.input_ids_key, self.kind)
        if len(ids) and (ids.min() < 0 or ids.max() > LARGEST_ID):
            outside = int(ids.min() if ids.min() < 0 else ids.max())
            raise ValueError(
                f"{config.input_ids_key!r} contains {outside}; token ids must be from 0 to {LARGEST_ID:,}"
            )
        held = {key for key, value in record.items() if holds_value(value)}
        masks: list[np.ndarray] = []
        labels_key = config.labels_key or LABELS
        if config.labels_key is not None or labels_key in held.intersection(self.keys.readable((LABELS,))):
            read.append(labels_key)
            masks.append(_labelled(ids, _integers(record, labels_key), config.input_ids_key, labels_key))
        for key in self.keys.readable(LOSS_MASKS):
            if key in held:
                read.append(key)
                masks.append(_zeros_and_ones(record, key, len(ids)))
        for key in self.keys.readable(PROMPT_LENGTHS):
            if key in held:
                read.append(key)
                masks.append(np.arange(len(ids)) >= _prompt_length(record[key], key, len(ids)))
        learnt = np.logical_and.reduce(masks) if masks else None
        if learnt is not None and len(learnt) and not learnt.any():
            if len(read) == 2 and read[1] == labels_key:
                raise ValueError(f"every entry of {labels_key!r} is {IGNORED_LABEL}: no token is in the loss")
            raise ValueError(f"{', '.join(map(repr, read[1:]))}: no token is in the loss")
        bounds = np.array([0, len(ids)])
        for key in self.keys.readable(DOCUMENT_PLACES):
            if key in held:
                read.append(key)
                bounds = np.union1d(bounds, _document_bounds(_integers(record, key), key, len(ids)))
        kept = None
        if "attention_mask" in held.intersection(self.keys.readable(("attention_mask",))):
            read.append("attention_mask")
            kept = _zeros_and_ones(record, "attention_mask", len(ids))
            inner = np.flatnonzero(kept)
            if len(inner) and not kept[inner[0] : inner[-1] + 1].all():
                raise ValueError(
                    "'attention_mask' is 0 between tokens; only zeros for padding at either end are "
                    "supported. For packed documents, add seq_lens"
                )
        self.keys.note_unread(record, read, notes)
        for key in held.difference(read):
            if (rule := self._doubt(key, record[key], len(ids))) is not None:
                notes.unread.discard(key)
                notes.refused[repr(key)] = key, rule
        ids = ids.astype(np.uint32)
        documents = []
        for start, stop in pairwise(bounds.tolist()):
            own = slice(start, stop)
            chosen = slice(None) if kept is None else kept[own]
            documents.append(TokenIds(ids[own][chosen], None if learnt is None else learnt[own][chosen]))
        return documents or [TokenIds(ids, learnt)]


def _is_number(kind: Any) -> bool:
    """Return whether a pyarrow.DataType holds numbers or flags."""
    import pyarrow.types as types

    return types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)


def _lists(column: Any) -> list[Any]:
    """Return the rows of a column; rows of lists of integers without nulls become NumPy arrays."""
    import pyarrow.types as types

    kind = column.type
    is_plain = (types.is_list(kind) or types.is_large_list(kind)) and types.is_integer(kind.value_type)
    if not is_plain or column.values.null_count or column.null_count:
        return values_of(column)
    values, bounds = column.values.to_numpy(), column.offsets.to_numpy()
    return [values[start:stop] for start, stop in pairwise(bounds)]


def _integers(record: dict[str, Any], key: str, kind: str = "") -> np.ndarray:
    """Return the list of integers under a key as an array [n]. Raises ValueError if there is no such list.

    If `kind` (the kind of the source) is given, the message suggests another way to read the record.
    """
    if key not in record:
        forward = way_forward(record, kind) if kind else ""
        raise ValueError(f"no key {key!r} among {json_line.keys_of(record)}{forward}")
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


def _labelled(ids: np.ndarray, labels: np.ndarray, ids_key: str, labels_key: str) -> np.ndarray:
    """Return which tokens have a label, bool [n]. Raises ValueError if a label is not the id of its token."""
    if len(labels) != len(ids):
        raise ValueError(f"{labels_key!r} has {len(labels):,} entries, {ids_key!r} has {len(ids):,}")
    learnt = labels != IGNORED_LABEL
    if (other := np.flatnonzero(learnt & (labels != ids))).size:
        at = int(other[0])
        raise ValueError(
            f"{labels_key}[{at}] = {labels[at]} is neither {IGNORED_LABEL} nor {ids_key}[{at}] = {ids[at]}; "
            "labels must be aligned with the tokens, not shifted by one"
        )
    return learnt


def _zeros_and_ones(record: dict[str, Any], key: str, length: int) -> np.ndarray:
    """Return the mask under a key, bool [length].

    Raises ValueError if the value is not a list of `length` zeros and ones.
    """
    values = record[key]
    try:
        array = np.asarray(values)
    except (ValueError, OverflowError):
        array = np.empty((0, 0))
    if array.ndim != 1 or array.dtype.kind not in "biuf":
        raise ValueError(f"{key!r} is not a list of 0 and 1")
    if len(array) != length:
        raise ValueError(f"{key!r} has {len(array):,} entries, but the number of ids is {length:,}")
    if (other := np.flatnonzero((array != 0) & (array != 1))).size:
        at = int(other[0])
        raise ValueError(
            f"{key}[{at}] = {array[at]} is neither 0 nor 1; masks that hold other weights, or the document "
            f"numbers of packed records, are not supported"
        )
    return array != 0


def _prompt_length(value: Any, key: str, length: int) -> int:
    if isinstance(value, bool | float) or not isinstance(value, int | np.integer) or not 0 <= value <= length:
        raise ValueError(f"{key!r} = {value!r} must be a number of tokens from 0 to {length:,}")
    return int(value)


def _document_bounds(values: np.ndarray, key: str, length: int) -> np.ndarray:
    """Return the bounds of a packed record's documents, int64 [documents + 1].

    Raises ValueError if they do not match the number of ids.
    """
    if key == "position_ids":
        if len(values) != length:
            raise ValueError(f"{key!r} has {len(values):,} entries, but the number of ids is {length:,}")
        starts = np.flatnonzero(values == 0)
        begins = np.zeros(length, np.int64)
        begins[starts] = starts
        if not np.array_equal(values, np.arange(length) - np.maximum.accumulate(begins)):
            raise ValueError(f"{key!r} does not count up from 0 in each document")
        return np.append(starts, length)
    bounds = np.concatenate([[0], np.cumsum(values)]) if key in DOCUMENT_LENGTHS else values
    if not len(bounds) or bounds[0] != 0 or bounds[-1] != length or (np.diff(bounds) < 0).any():
        if key in DOCUMENT_LENGTHS:
            raise ValueError(
                f"the lengths in {key!r} must not be negative and must add up to the number of ids, "
                f"{length:,}; their sum is {bounds[-1]:,}"
            )
        raise ValueError(f"the positions in {key!r} must ascend from 0 to the number of ids, {length:,}")
    return bounds
