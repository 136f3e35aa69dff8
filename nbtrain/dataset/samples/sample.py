"""One training sequence, as a dataset returns it and a batch stacks it."""

from typing import NamedTuple, Protocol

import numpy as np


class Sample(NamedTuple):
    """Arrays of one sample, where T is model.seq_length. None stands for an array's default."""

    tokens: np.ndarray
    """int64 [T]."""
    labels: np.ndarray
    """int64 [T]: the token that follows each token."""
    loss_mask: np.ndarray | None = None
    """float32 [T]: 1 where the label is in the loss; None puts all labels in the loss."""
    position_ids: np.ndarray | None = None
    """int64 [T]; None means 0 .. T-1."""
    cu_seqlens: np.ndarray | None = None
    """int32 [T + 1]: start of each document in the sequence, padded with T; None means one document.

    megatron-core pads in the same way. Cumulative lengths need neither EOD in the text nor a T x T mask.
    """
    dataset: int = 0
    """Index of the run's dataset that the sequence comes from: its row in the table of losses per dataset."""
    dataset_ids: np.ndarray | None = None
    """int16 [T]: dataset of each label if the sequence mixes datasets (packing). None uses `dataset` for all.

    Entries are 0 where loss_mask is 0 (padding), so that they can index a table of losses.
    """
    answers: np.ndarray | None = None
    """int64 [T]: the answer that a position belongs to, in samples of pairs (preference_dataset.py).

    2 p is the chosen and 2 p + 1 the rejected answer of the sample's p-th pair; 0 in padding, whose loss_mask
    is 0.
    """
    pairs: np.ndarray | None = None
    """int64 [P]: sequence number of each pair in the dataset."""
    reference: np.ndarray | None = None
    """float32 [P, 2]: the reference model's log-probabilities of both answers of each pair."""


class Samples(Protocol):
    """Interface for reading a split's samples."""

    def sample(self, position: int) -> Sample: ...
