"""Builds samples of preference pairs, for a run with a `dpo` section.

    .bin/.idx: a pair is a sequence, prompt + chosen + EOD + prompt + rejected + EOD
        -> complete pairs packed into samples by best fit, as packed_dataset.py packs examples

Both answers of a pair are in one sample, so no step sees only one of them. Each answer has the prompt,
positions from 0 and a separate segment of cu_seqlens. A pair of L tokens takes L - 2 positions. A pair that
needs more than seq_length positions is dropped, because cutting an answer would change its log-probability.
"""

import logging
from typing import Any

import numpy as np

from nbtrain.base.errors import DataError
from nbtrain.base.text.amounts import counted
from nbtrain.base.text.terminal import printable
from nbtrain.base.workspace import display
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.files import OpenDataset, in_loss
from nbtrain.dataset.indexed import IndexedDataset
from nbtrain.dataset.samples.packed_dataset import PackedDataset
from nbtrain.dataset.samples.packed_index import COUNTS, MixedSource, Pieces, mixed_sources, of_split, spans
from nbtrain.dataset.samples.sample import Sample

logger = logging.getLogger(__name__)

KIND = "preference"


class PreferenceDataset(PackedDataset):
    """One split of pairs. `reference` holds log-probabilities computed before training (reference.py)."""

    reference: np.ndarray | None = None
    """Log-probabilities of each pair's chosen and rejected answer, float32 [sequences, 2]; None means 0."""

    def sample(self, position: int) -> Sample:
        number, row = self._locate(position)
        index = self._pass(number)
        items = index.items[index.offsets[row] : index.offsets[row + 1]]
        length = self.seq_length
        tokens, labels = np.full(length, self.pad_id, np.int64), np.full(length, self.pad_id, np.int64)
        loss_mask, answers = np.zeros(length, np.float32), np.zeros(length, np.int64)
        position_ids = np.empty(length, np.int64)
        cu_seqlens = np.full(length + 1, length, np.int32)
        start, segment = 0, 0
        for sequence, middle, _ in self.pieces.rows[items].tolist():
            ids = self.indexed.get(sequence)
            learnt = np.ones(len(ids)) if self.mask is None else in_loss(self.mask.get(sequence))
            for first, last in ((0, middle), (middle, len(ids))):
                stop = start + last - first - 1
                tokens[start:stop], labels[start:stop] = ids[first : last - 1], ids[first + 1 : last]
                loss_mask[start:stop] = learnt[first + 1 : last]
                position_ids[start:stop] = np.arange(stop - start)
                answers[start:stop] = segment
                cu_seqlens[segment] = start
                start, segment = stop, segment + 1
        position_ids[start:] = np.arange(length - start)
        cu_seqlens[segment] = start
        pairs = np.asarray(self.pieces.rows[items, 0], np.int64)
        reference = np.zeros((len(pairs), 2), np.float32)
        if self.reference is not None:
            reference = self.reference[pairs]
        return Sample(
            tokens,
            labels,
            loss_mask,
            position_ids,
            cu_seqlens,
            answers=answers,
            pairs=pairs,
            reference=reference,
        )

    def once(self) -> int:
        """Return the number of samples in the first epoch.

        If all weights are 1, the first epoch holds each pair once.
        """
        return int(self._pass(0).epoch_ends[0])

    def _description(self) -> dict[str, Any]:
        return super()._description() | {"kind": KIND}

    def _build_pieces(self) -> Pieces:
        self.indexed.check()
        pieces, left_out = pair_pieces(self.indexed, self.pad_id, self.sources, self.seq_length)
        limit = f"model.seq_length = {self.seq_length:,} positions (the prompt counts twice)"
        if not len(pieces.rows):
            raise DataError(
                f"{display(self.files.prefix)}: no pair of {', '.join(self.dataset_names)} in the "
                f"{self.split} split fits into {limit}. Raise "
                f"model.seq_length{self._without_it}."
            )
        if left_out:
            what = f"skipped {counted(left_out, 'pair')} longer than {limit}."
            logger.warning("%s: %s", printable(display(self.files.prefix)), what)
        return pieces


def pair_pieces(
    indexed: IndexedDataset, eod_id: int, sources: list[MixedSource], seq_length: int
) -> tuple[Pieces, int]:
    """Return the pairs that fit into seq_length, and the number of pairs that do not.

    Each row holds the pair's sequence number, the token at which its second example starts, and the number of
    positions that the pair takes. Raises DataError
    for a sequence that is not a pair.
    """
    rows: list[np.ndarray] = []
    offsets, left_out = [0], 0
    for source in sources:
        found = [np.empty((0, 3), np.int64)]
        for first, last in spans(indexed, source.first, source.last):
            lengths = np.asarray(indexed.lengths[first:last], np.int64)
            ends = np.cumsum(lengths)
            token = int(indexed.pointers[first]) // indexed.dtype.itemsize
            places = np.flatnonzero(indexed.tokens[token : token + int(ends[-1])] == eod_id)
            begins = ends - lengths
            # The first EOD of each sequence, and how many EODs the sequence has.
            which = np.searchsorted(places, begins)
            counts = np.searchsorted(places, ends) - which
            if (bad := np.flatnonzero(counts != 2)).size:
                raise DataError(
                    f"sequence {first + int(bad[0]):,} has {int(counts[bad[0]])} end-of-document tokens, but "
                    "a pair of answers must have 2. Run `nbtrain prepare RUN.yaml --force` to make the "
                    "dataset again."
                )
            middles = places[which] + 1 - begins
            kept = lengths - 2 <= seq_length
            left_out += int((~kept).sum())
            own = np.stack([np.arange(first, last), middles, lengths - 2], axis=1)
            found.append(own[kept])
        rows.append(np.concatenate(found))
        offsets.append(offsets[-1] + len(rows[-1]))
    counts = np.zeros(len(COUNTS), np.int64)
    counts[0] = offsets[-1]
    return Pieces(np.concatenate(rows), np.array(offsets, np.int64), counts), left_out


def build_split(
    opened: OpenDataset, config: RunConfig, split: str, index_samples: int, num_samples: int
) -> PreferenceDataset | None:
    """Return the pairs of a split, or None if the split is empty in every source. Raises DataError."""
    sources = _sources(opened, config)
    own = of_split(sources, config.data.split, config.data.split_rule, split)
    if not any(len(source) for source in own):
        return None
    return PreferenceDataset(
        opened, own, config.model.seq_length, index_samples, num_samples, config.data.seed, split
    )


def all_pairs(opened: OpenDataset, config: RunConfig) -> PreferenceDataset:
    """Return all pairs of the dataset that fit into seq_length, from every split and with weight 1.

    The first epoch holds each pair once (see once()).
    """
    sources = [MixedSource("pairs", 0, _sources(opened, config)[-1].last)]
    return PreferenceDataset(opened, sources, config.model.seq_length, 1, 1, config.data.seed)


def _sources(opened: OpenDataset, config: RunConfig) -> list[MixedSource]:
    kinds = [source.get("kind") for source in opened.manifest.sources]
    if not kinds or set(kinds) != {KIND}:
        raise DataError(
            f"{display(opened.files.manifest_json)}: the dataset was not made from sources of kind: {KIND}, "
            "which dpo needs. Run `nbtrain prepare RUN.yaml` to prepare this run's dataset."
        )
    return mixed_sources(opened.files, opened.manifest, config.data.sources, len(opened.indexed))
