"""Preference pairs in training: their rewards, and the reference that is computed before the first step.

    PairFigures        the log-probabilities of answers, from the token losses that the model fills in
    load_reference     the reference of all pairs from the data's index cache, computed first if it is missing

The reference is the model that the run starts from. Every layout computes it like a validation: each rank
computes its share of the samples, without dropout.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch

from nbtrain.base.amounts import counted
from nbtrain.base.progress import Progress
from nbtrain.checkpoint.live_run import LiveRun
from nbtrain.config.dpo_section import DpoConfig
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.files import OpenDataset
from nbtrain.dataset.of_run import open_dataset
from nbtrain.dataset.samples.preference_dataset import PreferenceDataset, all_pairs
from nbtrain.dataset.samples.reference import description_of, keep_reference, known_reference
from nbtrain.model.preference import Pairs, answer_log_probabilities, rewards
from nbtrain.parallel.agreement import gather_objects
from nbtrain.train.engine.batches import Batch, Batches
from nbtrain.train.engine.engine import TrainEngine

logger = logging.getLogger(__name__)

# Batches of the reference per update of the progress bar.
BATCHES_AT_ONCE = 8


class Rewards(NamedTuple):
    """Means over pairs; a reward is beta times the log-probability difference from the reference."""

    chosen: float
    rejected: float
    accuracy: float
    """Fraction of the pairs whose chosen answer has the higher reward."""

    @property
    def margin(self) -> float:
        return self.chosen - self.rejected

    @classmethod
    def of(cls, sums: torch.Tensor) -> "Rewards":
        """Return the rewards from the result of PairFigures.sums()."""
        chosen, rejected, better, pairs = sums.tolist()
        return cls(*(total / max(pairs, 1.0) for total in (chosen, rejected, better)))


class PairFigures:
    """Log-probabilities of the answers of micro batches, computed from their tokens' losses."""

    def __init__(self, dpo: DpoConfig, device: torch.device):
        self._dpo, self._device = dpo, device
        self._noted: list[tuple[Batch, torch.Tensor]] = []

    def of(self, batch: Batch) -> torch.Tensor:
        """Return zeros, fp32 [b, s], that the model fills with each token's loss."""
        token_losses = torch.zeros(batch.labels.shape, device=self._device)
        self._noted.append((batch, token_losses))
        return token_losses

    @property
    def noted(self) -> "_Noted":
        """Return a receiver that fills these figures in a validation."""
        return _Noted(self)

    def log_probabilities(self) -> Iterator[tuple[Batch, torch.Tensor]]:
        """Yield (micro batch, float64 [P, 2]) for each micro batch."""
        for batch, token_losses in self._noted:
            assert batch.loss_mask is not None
            yield batch, answer_log_probabilities(token_losses, batch.loss_mask, _pairs_of(batch))

    def sums(self, ulysses_ranks: int = 1) -> torch.Tensor:
        """Return float64 [4]: sums of chosen and rejected rewards, pairs ranked correctly, and all pairs."""
        assert ulysses_ranks == 1
        total = torch.zeros(4, dtype=torch.float64, device=self._device)
        for batch, found in self.log_probabilities():
            own = rewards(found, _pairs_of(batch), self._dpo)
            total[:2] += own.sum(0)
            total[2] += (own[:, 0] > own[:, 1]).sum()
            total[3] += len(own)
        return total


class _Noted(NamedTuple):
    figures: PairFigures

    def of(self, batch: Batch) -> dict[str, torch.Tensor]:
        return {"token_losses": self.figures.of(batch)}


def _pairs_of(batch: Batch) -> Pairs:
    assert batch.answers is not None and batch.reference is not None
    return Pairs(batch.answers, batch.reference)


def load_reference(
    live: LiveRun,
    engine: TrainEngine,
    splits: list[PreferenceDataset | None],
    load_start: Callable[[], None],
    beat: Callable[[], None],
) -> None:
    """Load the reference of a run's splits. All ranks call it together, before a checkpoint is loaded.

    If the numbers are not on disk, load_start() loads the weights that the run starts from into the engine,
    and the numbers are computed and written.
    """
    from nbtrain.checkpoint.initial import start_sha256

    config = live.config
    opened = open_dataset(config)
    assert isinstance(opened, OpenDataset)
    folder = opened.files.index_cache
    description = description_of(config, opened.manifest.dataset_sha256, start_sha256(live))
    found = known_reference(folder, description)
    if not all(gather_objects(found is not None)):
        load_start()
        made = _computed(config, engine, all_pairs(opened, config), beat, live.world.rank == 0)
        if live.world.rank == 0:
            keep_reference(folder, description, made)
        gather_objects(None)
        found = known_reference(folder, description)
        pairs = int(np.isfinite(made[:, 0]).sum())
        live.tell("reference", f"reference: log-probabilities of {counted(pairs, 'pair')} computed", step=0)
    assert found is not None
    for split in splits:
        if split is not None:
            split.reference = found


def _computed(
    config: RunConfig,
    engine: TrainEngine,
    dataset: PreferenceDataset,
    beat: Callable[[], None],
    is_first: bool,
) -> np.ndarray:
    """Compute the reference, float32 [sequences, 2]; NaN for a pair that is in no sample."""
    assert config.dpo is not None
    place, micro = engine.groups.data_parallel, config.batch.micro_batch_size
    row = micro * place.size
    samples = dataset.once()
    steps = -(-samples // row)
    # The last row is padded with samples from the beginning.
    positions = np.arange(steps * row) % samples
    mine = positions.reshape(steps, place.size, micro)[:, place.rank].tolist()
    device = engine.deepspeed.device
    sums = torch.zeros(len(dataset.indexed), 3, dtype=torch.float64, device=device)
    with Progress("reference", steps * row, "samples") if is_first else contextlib.nullcontext() as bar:
        for first in range(0, steps, BATCHES_AT_ONCE):
            rows = mine[first : first + BATCHES_AT_ONCE]
            figures = PairFigures(config.dpo, device)
            with Batches(dataset, iter(rows), device, masked=True) as batches:
                engine.evaluate(batches, len(rows), beat, figures.noted)
            for batch, found in figures.log_probabilities():
                assert batch.pairs is not None
                # A pair that occurs twice counts twice.
                sums[batch.pairs, :2] += found
                sums[batch.pairs, 2] += 1
            if bar is not None:
                bar.update(len(rows) * row)
    engine.over_data_axis(sums)
    return (sums[:, :2] / sums[:, 2:]).float().cpu().numpy()
