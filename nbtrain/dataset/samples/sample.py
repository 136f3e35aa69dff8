"""One training sequence, as a dataset returns it and a batch stacks it."""

from typing import NamedTuple, Protocol

import numpy as np


class Sample(NamedTuple):
    """Arrays of one sequence; T is model.seq_length. An array that is None has its default."""

    tokens: np.ndarray
    """int64 [T]."""
    labels: np.ndarray
    """int64 [T]: the token that follows each token."""
    loss_mask: np.ndarray | None = None
    """float32 [T]: 1 where the label is in the loss; None puts all labels in the loss."""
    position_ids: np.ndarray | None = None
    """int64 [T]; None means 0 .. T-1."""
    cu_seqlens: np.ndarray | None = None
    """int32 [T + 1]: where each document of the sequence begins, padded with T; None means one document.

    megatron-core pads it in the same way. Cumulative lengths need no EOD in the text and no T x T mask.
    """
    dataset: int = 0
    """Number of the run's dataset that the sequence comes from: its row in the table of losses per
    dataset.
    """
    dataset_ids: np.ndarray | None = None
    """int16 [T]: the dataset of each label, if a sequence mixes datasets (packing); None: `dataset` for all.

    Entries are 0 where loss_mask is 0 (padding), so that they can index a table of losses.
    """
    answers: np.ndarray | None = None
    """int64 [T], for pairs (preference_dataset.py): the answer to which a position belongs.

    2 p is the chosen and 2 p + 1 the rejected answer of the sample's p-th pair; 0 in padding, whose loss_mask
    is 0.
    """
    pairs: np.ndarray | None = None
    """int64 [P]: number of each pair's sequence in the dataset."""
    reference: np.ndarray | None = None
    """float32 [P, 2]: the reference's log-probabilities of both answers."""


class Samples(Protocol):
    """The interface through which a split's samples are read."""

    def sample(self, position: int) -> Sample: ...
