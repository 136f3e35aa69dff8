"""Lays out the examples in packed sequences: a split's sources, their pieces, and the bins of each epoch.

    sources      [first, last) sequences of the .bin/.idx with a name and a weight; one rule splits them all
    pieces       [pieces, 3]  sequence, first token, slots: the units of packing
    bins         of epoch e: each source's pieces by its weight -> shuffled -> best fit -> bins shuffled

An example of L tokens takes L - 1 slots: the first L - 1 tokens, with the L - 1 tokens that follow them as
labels, so no label ever belongs to another example. If an example has more than seq_length + 1 tokens and
only part of it is in the loss, it is truncated to that length. Text, which is in the loss everywhere, becomes
several pieces without losing a label.

A source of n pieces and weight w is a stream of shuffled rounds of all n pieces, one round after the other.
Epoch e uses positions ceil(e w n) to ceil((e + 1) w n) of this stream. With weight 0.5, one epoch has one
half and the next epoch the other half, and no epoch depends on how many epochs are requested.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from nbtrain.base.errors import DataError
from nbtrain.base.text.amounts import counted
from nbtrain.base.workspace import display
from nbtrain.config.arithmetic.splits import SPLIT_NAMES, split_bounds
from nbtrain.dataset.files import DatasetFiles, in_loss
from nbtrain.dataset.indexed import IndexedDataset
from nbtrain.dataset.manifest import DatasetManifest
from nbtrain.dataset.samples.packing import pack_best_fit

LEAST_PASS_SAMPLES = 1024
SCAN_TOKENS = 1 << 22


@dataclass(frozen=True)
class MixedSource:
    """A source's sequences in the .bin/.idx, [first, last)."""

    name: str
    first: int
    last: int
    weight: float = 1.0

    def __len__(self) -> int:
        return self.last - self.first


def mixed_sources(
    files_: DatasetFiles, manifest: DatasetManifest, configured: Sequence[Any], num_sequences: int
) -> list[MixedSource]:
    """Return the sources in a manifest; if the manifest has no ranges, return the dataset as one source.

    Names and weights come from `configured`, the run's data.sources. They are not part of the prepared text,
    so a run may change them. A run without data.sources uses the names and weights in the manifest. Raises
    DataError if the manifest, the files and the run do not agree.
    """
    places: list[Any] = [source.get("sequences") for source in manifest.sources]
    if not places or None in places:
        return [MixedSource(files_.directory.name, 0, num_sequences)]
    if configured and len(configured) != len(places):
        raise DataError(
            f"{display(files_.manifest_json)}: the dataset was made from {counted(len(places), 'source')}, "
            f"but data.sources has {len(configured)}. Run `nbtrain prepare RUN.yaml` to prepare the dataset "
            "again."
        )
    settings = [source.model_dump() for source in configured] or manifest.sources
    sources = []
    end = 0
    for number, ((first, last), own) in enumerate(zip(places, settings, strict=True)):
        if not end == first <= last <= num_sequences:
            raise DataError(
                f"{display(files_.manifest_json)}: sources[{number}].sequences is {[first, last]}, but must "
                f"begin at {end:,}, where the previous source ends, and stay within the {num_sequences:,} "
                f"sequences of {display(files_.idx)}. Make the dataset again."
            )
        end = last
        sources.append(MixedSource(own["name"] or own["kind"], first, last, own.get("weight", 1.0)))
    if end != num_sequences:
        raise DataError(
            f"{display(files_.manifest_json)}: the sources hold {end:,} sequences, but {display(files_.idx)} "
            f"has {num_sequences:,}. Make the dataset again."
        )
    return sources


def of_split(sources: list[MixedSource], split: str, rule: str, name: str) -> list[MixedSource]:
    """Return each source's part of one split. Every source is split separately.

    If the concatenated sources were split once, the validation split would contain only the last source.
    """
    parts = []
    for source in sources:
        first, last = split_bounds(split, rule, len(source))[SPLIT_NAMES.index(name)]
        parts.append(replace(source, first=source.first + first, last=source.first + last))
    return parts


class Pieces(NamedTuple):
    """The pieces of a split that can be packed, ordered by source."""

    rows: np.ndarray
    """int32 or int64 [pieces, 3]: sequence, first token in the sequence, slots (labels).

    A piece reads slots + 1 tokens.
    """
    source_offsets: np.ndarray
    """int64 [sources + 1]: first row of each source, then the number of rows."""
    counts: np.ndarray
    """Numbers of sequences, in the order of COUNTS."""


COUNTS = ("examples", "cut", "truncated", "nothing_learnt", "too_short")
"""Names of the counts in Pieces.counts, all of them numbers of sequences.

Sequences that are packed; packed sequences that are cut into several pieces; packed sequences that are
truncated; sequences dropped because no label is in the loss; sequences dropped because they have fewer than 2
tokens."""


def build_pieces(
    indexed: IndexedDataset, mask: IndexedDataset | None, sources: list[MixedSource], seq_length: int
) -> Pieces:
    """Build the pieces of `sources`. Reads their entire loss mask."""
    rows = []
    offsets = [0]
    counts = np.zeros(len(COUNTS), np.int64)
    largest = max([source.last for source in sources] + [int(indexed.lengths.max(initial=0))])
    dtype = np.int32 if largest <= np.iinfo(np.int32).max else np.int64
    for source in sources:
        lengths = np.asarray(indexed.lengths[source.first : source.last], np.int64)
        if mask is None:
            is_text, is_learnt = np.ones(len(lengths), bool), np.ones(len(lengths), bool)
        else:
            is_text, is_learnt = _learnt(mask, source.first, source.last, seq_length)
        is_short = lengths < 2
        kept = ~is_short & is_learnt
        sequences = np.flatnonzero(kept) + source.first
        slots, is_text = lengths[kept] - 1, is_text[kept]
        is_long = slots > seq_length
        fates = (kept, is_long & is_text, is_long & ~is_text, ~is_short & ~is_learnt, is_short)
        counts += np.array([np.count_nonzero(fate) for fate in fates])
        each = np.where(is_text, -(-slots // seq_length), 1)
        ends = np.cumsum(each)
        starts = (np.arange(int(each.sum())) - np.repeat(ends - each, each)) * seq_length
        own_slots = np.minimum(np.repeat(slots, each) - starts, seq_length)
        rows.append(np.stack([np.repeat(sequences, each), starts, own_slots], axis=1).astype(dtype))
        offsets.append(offsets[-1] + len(rows[-1]))
    return Pieces(np.concatenate(rows), np.array(offsets, np.int64), counts)


def _learnt(mask: IndexedDataset, first: int, last: int, seq_length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return two bool arrays [sequences], computed from the loss mask.

    The first array says whether all tokens of a sequence are in the loss. The second says whether at least
    one label of its first seq_length + 1 tokens is in the loss.
    """
    is_text, is_learnt = np.zeros(last - first, bool), np.zeros(last - first, bool)
    for start, stop in spans(mask, first, last):
        lengths = np.asarray(mask.lengths[start:stop], np.int64)
        ends = np.cumsum(lengths)
        begins = ends - lengths
        token = int(mask.pointers[start]) // mask.dtype.itemsize
        sums = np.zeros(int(ends[-1]) + 1, np.int64)
        np.cumsum(in_loss(mask.tokens[token : token + int(ends[-1])]), out=sums[1:])
        is_text[start - first : stop - first] = sums[ends] - sums[begins] == lengths
        # The first token of an example is never a label.
        labels = begins + np.minimum(lengths, 1)
        reached = begins + np.minimum(lengths, seq_length + 1)
        is_learnt[start - first : stop - first] = sums[reached] > sums[labels]
    return is_text, is_learnt


def spans(dataset: IndexedDataset, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield [start, stop) ranges of about SCAN_TOKENS tokens, with at least one sequence each."""
    itemsize = dataset.dtype.itemsize
    while first < last:
        limit = int(dataset.pointers[first]) + SCAN_TOKENS * itemsize
        stop = max(first + 1, int(np.searchsorted(dataset.pointers[:last], limit, side="left")))
        yield first, stop
        first = stop


class PackedIndex(NamedTuple):
    """Samples of a pass: sample k consists of the rows items[offsets[k]:offsets[k + 1]] of Pieces."""

    items: np.ndarray
    """int32 or int64: row numbers of Pieces."""
    offsets: np.ndarray
    epoch_ends: np.ndarray
    """int64 [epochs in the pass]: number of samples up to the end of each epoch."""

    def __len__(self) -> int:
        return len(self.offsets) - 1


def epochs_per_pass(pieces: Pieces, weights: list[float], seq_length: int) -> int:
    """Return the number of epochs in a pass, which is enough for about LEAST_PASS_SAMPLES samples.

    Raises DataError if an epoch has less than one example.
    """
    sizes = np.diff(pieces.source_offsets).tolist()
    examples = sum(weight * size for weight, size in zip(weights, sizes, strict=True))
    if examples < 1:
        raise DataError(
            f"data.sources: weights {weights} of sources with {sizes} examples give {examples:.3g} examples "
            "per epoch, but at least 1 is needed. Raise the weights; only their ratio shapes the mixture."
        )
    slots = sum(
        weight * int(pieces.rows[start:stop, 2].sum(dtype=np.int64))
        for weight, (start, stop) in zip(weights, itertools.pairwise(pieces.source_offsets), strict=True)
    )
    return max(1, math.ceil(LEAST_PASS_SAMPLES / max(1.0, slots / seq_length)))


def build_pass(
    pieces: Pieces, weights: list[float], seq_length: int, seed: int, first_epoch: int, num_epochs: int
) -> PackedIndex:
    """Build the samples of epochs [first_epoch, first_epoch + num_epochs)."""
    slots = np.asarray(pieces.rows[:, 2], np.int64)
    dtype = np.int32 if len(slots) <= np.iinfo(np.int32).max else np.int64
    items, sizes, epoch_ends = [], [], []
    num_samples = 0
    # One generator is reseeded for each epoch: creating one takes ten times as long, and a small dataset has
    # 1,024 epochs.
    generator = np.random.RandomState(0)
    for epoch in range(first_epoch, first_epoch + num_epochs):
        chosen = _chosen(generator, pieces.source_offsets, weights, seed, epoch)
        generator.seed((seed + epoch) % 2**32)
        generator.shuffle(chosen)
        packed = pack_best_fit(slots[chosen], seq_length)
        order = generator.permutation(len(packed))
        counts = np.diff(packed.offsets)[order]
        ends = np.cumsum(counts)
        places = np.arange(len(chosen)) + np.repeat(packed.offsets[:-1][order] - (ends - counts), counts)
        items.append(chosen[packed.items[places]].astype(dtype))
        sizes.append(counts)
        num_samples += len(packed)
        epoch_ends.append(num_samples)
    offsets = np.zeros(num_samples + 1, np.int64)
    np.cumsum(np.concatenate(sizes), out=offsets[1:])
    return PackedIndex(np.concatenate(items), offsets, np.array(epoch_ends, np.int64))


def _chosen(
    generator: "np.random.RandomState",
    source_offsets: np.ndarray,
    weights: list[float],
    seed: int,
    epoch: int,
) -> np.ndarray:
    chosen = [np.empty(0, np.int64)]
    for number, weight in enumerate(weights):
        first, size = int(source_offsets[number]), int(source_offsets[number + 1] - source_offsets[number])
        if not size:
            continue
        # A fraction of the decimal as written, so that ten epochs of weight 0.1 are exactly one round.
        share = Fraction(str(weight)) * size
        start, stop = math.ceil(epoch * share), math.ceil((epoch + 1) * share)
        while start < stop:
            turn, place = divmod(start, size)
            generator.seed([seed % 2**32, number, turn])
            order = generator.permutation(size)
            taken = order[place : place + stop - start]
            chosen.append(first + taken)
            start += len(taken)
    return np.concatenate(chosen)
