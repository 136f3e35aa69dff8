"""A cache of the keys and values of earlier tokens, with a slot for each sequence.

    cache = model.new_cache(2)
    model(tokens, cache=cache)                    [2, s]: the next s tokens of slots 0 and 1, of equal length
    cache.place([0, 3], [1, 5])                   the next pass reads 1 token of slot 0 and 5 of slot 3
    model(tokens, cache=cache, logits_at=last)    [1, 6]: the token of slot 0, then the tokens of slot 3
    cache.lengths                                 number of tokens in each slot; lower it to drop the newest

Placed tokens are concatenated: there is no padding, and each weight is read once for the tokens of all
sequences. Attention is computed sequence by sequence. The single tokens that decoding adds are computed
together if that reads few unneeded keys; on a GPU always, because starting a kernel takes longer than reading
them.

Shapes: b slots, s tokens of each, T placed tokens, n heads, g groups, p positions, d head size
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import torch

# Largest share of keys that a joint call may read in vain. Beyond it, a call per sequence is faster on a CPU.
PADDED_SHARE = 0.2
# Positions of a slot that are initialized at a time.
CLEARED_POSITIONS = 128

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]
"""(query, key, value, mask of the keys that each query sees, or None for a causal one) -> attended."""


class Span(NamedTuple):
    """Tokens of one sequence in a pass: their positions in the pass and in the slot."""

    slot: int
    tokens: slice
    start: int
    end: int


@dataclass(frozen=True)
class Singles:
    """The sequences of a pass with one token each, which come first in the pass."""

    count: int
    slots: torch.Tensor
    """[count]"""
    positions: torch.Tensor
    """[count]"""
    in_order: slice | None
    """The range of their slots, if the slots are consecutive."""
    longest: int
    """Number of keys of the longest sequence."""
    are_equal: bool
    """Whether all sequences have this number of keys."""
    together: bool
    """Whether attention for all of them is computed in one call."""
    ends: torch.Tensor
    """[count, 1, 1, 1]: number of keys of each sequence, including the new one."""
    masks: dict[int | None, torch.Tensor | None] = field(default_factory=dict)
    """Masks by window size."""

    def mask(self, window: int | None) -> torch.Tensor | None:
        """Return the keys that each sequence sees, bool [count, 1, 1, longest]; None if it sees all of
        them.
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
    """The assignment of a pass's tokens to slots."""

    singles: Singles | None
    spans: list[Span]
    """Spans of all sequences; sequences with a single token come first."""
    position_ids: torch.Tensor
    """[1, T]: position of each placed token in its slot."""


class KVCache:
    """A cache created by GPT.new_cache. A pass reads the placed tokens or, without these, [b, s] tokens of
    all slots.
    """

    def __init__(self, tensor: torch.Tensor):
        """Use `tensor`, [layers, 2, b, g, p, d], as memory; its content does not matter."""
        self.tensor = tensor
        self.lengths = [0] * tensor.shape[2]
        # Positions of each slot that hold numbers. The rest is memory as it was found, perhaps NaN, and a
        # masked NaN is still one: its weight is 0, but 0 * NaN is NaN.
        self._written = [0] * tensor.shape[2]
        self.placed: Placed | None = None
        self.layers = [LayerCache(self, keys, values) for keys, values in tensor]

    @property
    def length(self) -> int:
        """Number of tokens in each slot. Raises ValueError if the slots hold different numbers."""
        if len(set(self.lengths)) > 1:
            raise ValueError(f"slots hold different numbers of tokens: {sorted(set(self.lengths))}")
        return self.lengths[0]

    def place(self, slots: Sequence[int], counts: Sequence[int]) -> None:
        """Let the next pass read counts[i] tokens of slots[i]. Sequences with one token must come first."""
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
        # Out of order, keys and values would be copied, which costs as much as to attend to them.
        little_waste = in_order is not None and total >= (1 - PADDED_SHARE) * longest * count
        together, are_equal = tensor.is_cuda or little_waste, total == longest * count
        if together and not are_equal:
            self._write(slots, longest)
        index, positions = torch.tensor(slots, device=tensor.device), position_ids[0, :count]
        reached = positions.view(-1, 1, 1, 1) + 1
        return Singles(count, index, positions, in_order, longest, are_equal, together, reached)

    def _write(self, slots: list[int], end: int) -> None:
        """Initialize all positions before `end`."""
        for slot in slots:
            if (begin := self._written[slot]) < end:
                end = min(-(-end // CLEARED_POSITIONS) * CLEARED_POSITIONS, self.tensor.shape[4])
                self.tensor[:, :, slot, :, begin:end] = 0
                self._written[slot] = end

    def reach(self, tokens: torch.Tensor) -> tuple[int, int, torch.Tensor | None]:
        """Return (start, end, position ids) of the next pass's tokens; ids of None mean start, start + 1,
        ...
        """
        if self.placed is not None:
            return 0, max(span.end for span in self.placed.spans), self.placed.position_ids
        return self.length, self.length + tokens.shape[1], None

    def read(self, tokens: torch.Tensor) -> None:
        """Record that a pass is complete and its tokens are in the cache."""
        if self.placed is None:
            self.lengths = [self.length + tokens.shape[1]] * len(self.lengths)
        else:
            for span in self.placed.spans:
                self.lengths[span.slot] = span.end
        self._written = [max(pair) for pair in zip(self._written, self.lengths)]
        self.placed = None

    def reorder(self, targets: Sequence[int], sources: Sequence[int], lengths: Sequence[int]) -> None:
        """Copy the first lengths[i] tokens of sources[i] to targets[i], all as they were before the call."""
        longest = max(lengths)
        if len(targets) == 1:
            # Without the copy in between.
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
    """One layer's part of a KVCache."""

    cache: KVCache
    keys: torch.Tensor
    values: torch.Tensor
    """Keys and values, [b, g, p, d] each."""

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        window: int | None,
        attend: Attend,
    ) -> torch.Tensor:
        """Store the keys and values of this pass, and let its queries attend to all keys in their slots.

        query [b, n, s, d], key and value [b, g, s, d]; for placed tokens [1, n, T, d] and [1, g, T, d].
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
