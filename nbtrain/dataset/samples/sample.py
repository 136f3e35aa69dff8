"""One training sequence, as a dataset returns it and a batch stacks it."""

from typing import NamedTuple, Protocol

import numpy as np


class Sample(NamedTuple):
    """Arrays of one sequence; T is model.seq_length. None stands for the default of a plain sample."""

    tokens: np.ndarray
    """int64 [T]."""
    labels: np.ndarray
    """int64 [T]: the token that follows each."""
    loss_mask: np.ndarray | None = None
    """float32 [T]: 1 where the label is in the loss; None: everywhere."""
    position_ids: np.ndarray | None = None
    """int64 [T]; None: 0 .. T-1."""
    cu_seqlens: np.ndarray | None = None
    """int32 [T + 1]: where each document of the sequence begins, then T to the end; None: one document.

    As megatron-core pads it: cumulative lengths need no EOD in the text and no T x T mask.
    """
    dataset: int = 0
    """Number of the run's named dataset that it comes from: its row in the table of losses per dataset."""
    dataset_ids: np.ndarray | None = None
    """int16 [T]: the dataset of each label, if a sequence mixes datasets (packing); None: all of `dataset`.

    0 where loss_mask is 0 (padding), so that it can index a table of losses.
    """
    answers: np.ndarray | None = None
    """int64 [T], for pairs (preference_dataset.py): 2 p for the chosen, 2 p + 1 for the rejected answer of
    the sample's p-th pair; 0 in padding, whose loss_mask is 0."""
    pairs: np.ndarray | None = None
    """int64 [P]: the dataset's sequences of these pairs."""
    reference: np.ndarray | None = None
    """float32 [P, 2]: the reference's log-probabilities of both answers."""


class Samples(Protocol):
    """The interface of a split for readers of its samples."""

    def sample(self, position: int) -> Sample: ...
