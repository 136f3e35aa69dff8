"""A cache of the keys and values of earlier tokens, with one slot per sequence.

GPT.new_cache in gpt.py allocates the memory; this module reads and writes it.

    cache = model.new_cache(2)
    model(tokens, cache=cache)                    tokens [2, s]: the next s tokens of slots 0 and 1
    cache.place([0, 3], [1, 5])                   the next pass reads 1 token of slot 0 and 5 of slot 3
    model(tokens, cache=cache, logits_at=last)    tokens [1, 6]: the token of slot 0, then those of slot 3
    cache.lengths                                 tokens in each slot; lower it to drop the newest tokens

Placed tokens are concatenated without padding, so each weight is read only once for the tokens of all
sequences. Attention is computed sequence by sequence. For all sequences with a single token, as in
decoding, it is computed in one call if that call reads few unneeded keys. A GPU always uses one call, because
launching a kernel takes longer than reading keys.

Shapes: b slots, s tokens per slot, T placed tokens, n heads, g groups, p positions, d head size
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import torch

# Maximum share of unneeded keys in a joint call. Above it, one call per sequence is faster on a CPU.
PADDED_SHARE = 0.2
# Number of positions of a slot that are initialized at a time.
CLEARED_POSITIONS = 128

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""Attention function: (query, key, value, mask of visible keys or None for a causal mask) -> result."""


class Span(NamedTuple):
    """The tokens of one sequence in a pass.

    `tokens` is their range among the pass's tokens; `start` and `end` are their range in the slot.
    """

    slot: int
    tokens: slice
    start: int
    end: int


@dataclass(frozen=True)
class Singles:
    """The sequences with a single token in a pass; they come first."""

    count: int
    slots: torch.Tensor
    """[count]: slot of each sequence."""
    positions: torch.Tensor
    """[count]: position of each token in its slot."""
    in_order: slice | None
    """Range of the slots if they are consecutive; otherwise None."""
    longest: int
    """Number of keys in the longest sequence."""
    are_equal: bool
    """Whether all sequences have the same number of keys."""
    together: bool
    """Whether attention for all of these sequences is computed in one call."""
    ends: torch.Tensor
    """[count, 1, 1, 1]: number of keys in each sequence, including the new key."""
    masks: dict[int | None, torch.Tensor | None] = field(default_factory=dict)
    """Results of mask() by window size, so that layers with the same window compute them once."""

    def mask(self, window: int | None) -> torch.Tensor | None:
        """Return the mask of the keys that each sequence sees, bool [count, 1, 1, longest].

        Returns None if all sequences have the same number of keys.
        """
        if self.are_equal:
            return None
        if window not in self.masks:
            keys = torch.arange(self.longest, device=self.ends.device)
            mask = keys < self.ends
            self.masks[window] = mask if window is None else mask & (keys >= self.ends - window)
        return self.masks[window]


@dataclass(frozen=True)
class Placed:
    """The tokens of one pass, and the slots that they belong to."""

    singles: Singles | None
    spans: list[Span]
    """Spans of all sequences, those with a single token first."""
    position_ids: torch.Tensor
    """[1, T]: position of each token in its slot."""


class KVCache:
    """A cache of keys and values, created by GPT.new_cache.

    After place(), a pass reads the placed tokens; otherwise, it reads [b, s] tokens, s for each slot.
    """

    def __init__(self, tensor: torch.Tensor):
        """Use `tensor`, [layers, 2, b, g, p, d], as memory. Its contents need not be initialized."""
        self.tensor = tensor
        self.lengths = [0] * tensor.shape[2]
        # Number of initialized positions in each slot. The rest is uninitialized memory that may contain NaN,
        # and masking does not remove NaN: the weight is 0, but 0 * NaN is NaN.
        self._written = [0] * tensor.shape[2]
        self.placed: Placed | None = None
        self.layers = [LayerCache(self, keys, values) for keys, values in tensor]

    @property
    def length(self) -> int:
        """Number of tokens in each slot. Raises ValueError if the slots have different numbers of tokens."""
        if len(set(self.lengths)) > 1:
            raise ValueError(f"slots hold different numbers of tokens: {sorted(set(self.lengths))}")
        return self.lengths[0]

    def place(self, slots: Sequence[int], counts: Sequence[int]) -> None:
        """Make the next pass read counts[i] tokens for slots[i]. Sequences with one token must come first."""
        starts = [self.lengths[slot] for slot in slots]
        stops = list(accumulate(counts))
        spans = [
            Span(slot, slice(stop - count, stop), start, start + count)
            for slot, count, start, stop in zip(slots, counts, starts, stops, strict=True)
        ]
        positions = [position for span in spans for position in range(span.start, span.end)]
        count = next((number for number, count in enumerate(counts) if count != 1), len(counts))
        position_ids = torch.tensor([positions], device=self.tensor.device)
        singles = self._singles(spans[:count], position_ids) if count else None
        self.placed = Placed(singles, spans, position_ids)

    def _singles(self, spans: list[Span], position_ids: torch.Tensor) -> Singles:
        tensor, count = self.tensor, len(spans)
        slots, ends = [span.slot for span in spans], [span.end for span in spans]
        first, longest, total = slots[0], max(ends), sum(ends)
        in_order = slice(first, first + count) if slots == list(range(first, first + count)) else None
        # For slots that are not consecutive, keys and values would be copied, which costs as much as
        # attention.
        little_waste = in_order is not None and total >= (1 - PADDED_SHARE) * longest * count
        together, are_equal = tensor.is_cuda or little_waste, total == longest * count
        if together and not are_equal:
            self._write(slots, longest)
        index, positions = torch.tensor(slots, device=tensor.device), position_ids[0, :count]
        reached = positions.view(-1, 1, 1, 1) + 1
        return Singles(count, index, positions, in_order, longest, are_equal, together, reached)

    def _write(self, slots: list[int], end: int) -> None:
        """Initialize all positions before `end` in the given slots."""
        for slot in slots:
            if (begin := self._written[slot]) < end:
                end = min(-(-end // CLEARED_POSITIONS) * CLEARED_POSITIONS, self.tensor.shape[4])
                self.tensor[:, :, slot, :, begin:end] = 0
                self._written[slot] = end

    def reach(self, tokens: torch.Tensor) -> tuple[int, int, torch.Tensor | None]:
        """Return (start, end, position ids) for the tokens of the next pass.

        For placed tokens, start is 0, end is one more than the largest position, and the position ids are
        [1, T]. For others, the position ids are None, and the positions are start .. end - 1.
        """
        if self.placed is not None:
            return 0, max(span.end for span in self.placed.spans), self.placed.position_ids
        return self.length, self.length + tokens.shape[1], None

    def read(self, tokens: torch.Tensor) -> None:
        """Record that a pass is complete, so that its tokens are now in the cache."""
        if self.placed is None:
            self.lengths = [self.length + tokens.shape[1]] * len(self.lengths)
        else:
            for span in self.placed.spans:
                self.lengths[span.slot] = span.end
        self._written = [max(pair) for pair in zip(self._written, self.lengths)]
        self.placed = None

    def reorder(self, targets: Sequence[int], sources: Sequence[int], lengths: Sequence[int]) -> None:
        """Copy the first lengths[i] tokens of slot sources[i] to slot targets[i].

        All sources are read before any target is written.
        """
        longest = max(lengths)
        if len(targets) == 1:
            # A single copy needs no buffer.
            (target,), (source,) = targets, sources
            self.tensor[:, :, target, :, :longest] = self.tensor[:, :, source, :, :longest]
        else:
            index = torch.tensor([*sources], device=self.tensor.device)
            taken = self.tensor[:, :, :, :, :longest].index_select(2, index)
            self.tensor[:, :, [*targets], :, :longest] = taken
        written = [min(self._written[source], longest) for source in sources]
        for target, length, end in zip(targets, lengths, written, strict=True):
            self.lengths[target], self._written[target] = length, end


@dataclass
class LayerCache:
    """The part of a KVCache that belongs to one layer."""

    cache: KVCache
    keys: torch.Tensor
    values: torch.Tensor
    """Keys and values of all slots, [b, g, p, d] each."""

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        window: int | None,
        attend: Attend,
    ) -> torch.Tensor:
        """Store the keys and values of this pass, and attend from its queries to all keys in their slots.

        query is [b, n, s, d], key and value are [b, g, s, d]; for placed tokens, [1, n, T, d] and [1, g, T,
        d].
        """
        if (placed := self.cache.placed) is None:
            start = self.cache.length
            end = start + key.shape[-2]
            self.keys[:, :, start:end], self.values[:, :, start:end] = key, value
            return attend(query, self.keys[:, :, :end], self.values[:, :, :end], None)
        alone, singles = placed.spans, placed.singles
        if singles is not None:
            self._store(singles, key, value)
            if singles.together:
                alone = alone[singles.count :]
                if not alone:
                    return self._together(singles, query, window, attend)
        attended = torch.empty_like(query)
        if singles is not None and singles.together:
            part = slice(0, singles.count)
            attended[:, :, part] = self._together(singles, query[:, :, part], window, attend)
        stored = singles.count if singles is not None else 0
        for slot, tokens, start, end in alone:
            keys, values = self.keys[slot : slot + 1], self.values[slot : slot + 1]
            if tokens.start >= stored:
                keys[:, :, start:end], values[:, :, start:end] = key[:, :, tokens], value[:, :, tokens]
            attended[:, :, tokens] = attend(query[:, :, tokens], keys[:, :, :end], values[:, :, :end], None)
        return attended

    def _store(self, singles: Singles, key: torch.Tensor, value: torch.Tensor) -> None:
        # [1, g, T, d] -> [count, g, d]
        key, value = (tensor[0, :, : singles.count].transpose(0, 1) for tensor in (key, value))
        if singles.are_equal and (rows := singles.in_order) is not None:
            position = singles.longest - 1
            self.keys[rows, :, position], self.values[rows, :, position] = key, value
        else:
            where = singles.slots, slice(None), singles.positions
            self.keys[where], self.values[where] = key, value

    def _together(
        self, singles: Singles, query: torch.Tensor, window: int | None, attend: Attend
    ) -> torch.Tensor:
        rows = singles.in_order if singles.in_order is not None else singles.slots
        keys, values = self.keys[rows, :, : singles.longest], self.values[rows, :, : singles.longest]
        # [1, n, count, d] -> [count, n, 1, d] and back
        return attend(query.transpose(0, 2), keys, values, singles.mask(window)).transpose(0, 2)
