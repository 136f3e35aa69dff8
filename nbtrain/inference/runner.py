"""Runs a model with its key-value cache, on all tensor-parallel ranks.

    runner.read([Reading(slot=0, start=5, tokens=[17])], wanted=[0])     logits [1, v], fp32
    runner.copy([2], [0], [9])                                           copies 9 tokens of slot 0 to slot 2

read() passes tokens of many sequences through the model and returns logits. With several ranks, rank 0 sends
each call to the other ranks (`Orders`), which execute it too (`follow`). All ranks have the same tokens; only
rank 0 uses the logits.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch

from nbtrain.model.gpt import GPT


class Reading(NamedTuple):
    """Tokens of one sequence to read in a pass."""

    slot: int
    start: int
    """Position of the first token. Cached tokens of the slot from this position on are discarded."""
    tokens: list[int]


class Orders(Protocol):
    """A channel for lists of integers from rank 0 to the other ranks."""

    def send(self, numbers: list[int]) -> None: ...

    def receive(self) -> list[int]: ...


READ, COPY, END = range(3)


class Runner:
    """Runs passes of one model with one key-value cache."""

    def __init__(self, model: GPT, slots: int, positions: int | None = None, orders: Orders | None = None):
        self.model = model.eval()
        self.device = model.word_embeddings.weight.device
        self.slots, self.positions = slots, positions or model.config.max_position_embeddings
        self.cache = model.new_cache(slots, self.positions)
        self.orders = orders

    @property
    def vocab_size(self) -> int:
        """Number of token ids in use, without padding."""
        return self.model.config.vocab_size or self.model.config.padded_vocab_size

    def read(self, readings: Sequence[Reading], wanted: Sequence[int]) -> torch.Tensor:
        """Pass tokens through the model, and return fp32 logits with one row for each index in `wanted`.

        The indices count over the tokens of all readings. Readings of a single token must come first.
        """
        if self.orders is not None:
            numbers = [READ, len(wanted), *wanted]
            for slot, start, tokens in readings:
                numbers += [slot, start, len(tokens), *tokens]
            self.orders.send(numbers)
        return self._read(readings, wanted)

    @torch.inference_mode()
    def _read(self, readings: Sequence[Reading], wanted: Sequence[int]) -> torch.Tensor:
        cache = self.cache
        for slot, start, _ in readings:
            cache.lengths[slot] = start
        cache.place([reading.slot for reading in readings], [len(reading.tokens) for reading in readings])
        tokens = torch.tensor([[token for reading in readings for token in reading.tokens]])
        at = torch.tensor([*wanted], dtype=torch.long)
        if self.device.type != "cpu":
            tokens, at = tokens.to(self.device), at.to(self.device)
        return self.model(tokens, cache=cache, logits_at=at)[0, :, : self.vocab_size].float()

    @torch.inference_mode()
    def copy(self, targets: Sequence[int], sources: Sequence[int], lengths: Sequence[int]) -> None:
        """Copy the cached first tokens of each source slot to its target slot.

        All sources are read before any target is written.
        """
        if self.orders is not None:
            self.orders.send([COPY, *targets, *sources, *lengths])
        self._copy(targets, sources, lengths)

    def _copy(self, targets: Sequence[int], sources: Sequence[int], lengths: Sequence[int]) -> None:
        self.cache.reorder(targets, sources, lengths)

    def follow(self) -> None:
        """Execute rank 0's orders until it sends END."""
        assert self.orders is not None
        while (numbers := self.orders.receive())[0] != END:
            if numbers[0] == COPY:
                third = len(numbers) // 3
                self._copy(*(numbers[1 + part * third :][:third] for part in range(3)))
                continue
            count = numbers[1]
            wanted, rest = numbers[2 : 2 + count], numbers[2 + count :]
            readings = []
            while rest:
                slot, start, length = rest[:3]
                readings.append(Reading(slot, start, rest[3 : 3 + length]))
                rest = rest[3 + length :]
            self._read(readings, wanted)

    def end(self) -> None:
        """Send END, so that follow() returns on the other ranks."""
        if self.orders is not None:
            self.orders.send([END])
