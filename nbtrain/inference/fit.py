"""Fits a model into memory: how many GPUs to shard it across, and how many texts to generate at once.

Each GPU, or the memory of a machine without a GPU, holds its shard of the weights and, for each text, its
shard of the keys and values of all positions. A tenth of the memory is reserved for activations and the
allocator.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from nbtrain.base.errors import ConfigError
from nbtrain.base.hardware.cgroup import available_memory_bytes
from nbtrain.base.text.amounts import counted, size
from nbtrain.model.gpt_config import GPTConfig

USED_SHARE = 0.9
# Maximum number of texts generated at once, unless the user sets a number.
MOST_SLOTS_ON_CPU = 16
MOST_SLOTS_ON_GPU = 64


@dataclass(frozen=True)
class Needed:
    """Bytes that a model needs for generation, summed over all ranks."""

    weights: int
    slot: int
    """Bytes of one text's keys and values at all positions, without copies of heads on several ranks."""
    groups: int
    """Number of key and value heads. With more ranks than heads, several ranks hold copies of a head."""

    @classmethod
    def of(cls, config: GPTConfig, num_parameters: int, bytes_per_number: int, positions: int) -> "Needed":
        """Return the memory that a model with `num_parameters` needs."""
        numbers = 2 * config.num_layers * config.query_groups * config.head_size * positions
        return cls(num_parameters * bytes_per_number, numbers * bytes_per_number, config.query_groups)

    def slot_over(self, ranks: int) -> int:
        """Return the bytes of one text's keys and values on `ranks` ranks together, with copies of heads."""
        return self.slot * max(ranks // self.groups, 1)


def fit(
    needs: Needed,
    free: Sequence[int],
    sizes: Sequence[int],
    slots: int | None = None,
    most_slots: int = MOST_SLOTS_ON_CPU,
) -> tuple[int, int]:
    """Return (ranks, slots): the smallest number of ranks that fits the model, and the texts to run at once.

    `free` lists the free bytes of each device, and `sizes` the allowed numbers of ranks, ascending. `slots`
    is the requested number of texts; with None, as many as fit are chosen, up to most_slots. Raises
    ConfigError if the model does not fit.
    """
    for ranks in sizes:
        if ranks > len(free):
            continue
        room, slot = USED_SHARE * min(free[:ranks]) * ranks - needs.weights, needs.slot_over(ranks)
        if room >= slot * (slots or 1):
            return ranks, slots or int(min(room // slot, most_slots))
    texts = "a single text" if (slots or 1) == 1 else f"each of {counted(slots or 1, 'text')}"
    room_is = (
        f"only {size(free[0])} is free"
        if len(free) == 1
        else f"the free memory of the devices is only {' and '.join(map(size, free))}"
    )
    raise ConfigError(
        f"the model needs {size(needs.weights)} of memory, plus {size(needs.slot)} for {texts}, but "
        f"{room_is}. Request fewer texts at once, stop other programs that use the memory, or use a "
        "machine with more memory."
    )


def cuts_of(config: GPTConfig, most: int) -> list[int]:
    """Return the numbers of tensor-parallel ranks, up to `most`, that a model can be sharded across."""
    heads, groups = config.num_attention_heads, config.query_groups
    rows = (heads + 2 * groups) * config.head_size
    return [
        ranks
        for ranks in range(1, most + 1)
        if heads % ranks == 0
        and (groups % ranks == 0 or ranks % groups == 0)
        and rows % ranks == 0
        and config.ffn_hidden_size % ranks == 0
    ]


def free_memory() -> list[int]:
    """Return the free bytes of each GPU or, without a GPU, of this machine's memory."""
    if torch.cuda.is_available():
        return [torch.cuda.mem_get_info(number)[0] for number in range(torch.cuda.device_count())]
    return [available_memory_bytes()]
