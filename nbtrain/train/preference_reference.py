"""The reference log-probabilities of preference pairs, read from the index cache or computed at the start.

The reference model is the model that the run starts from. Every layout computes its log-probabilities like a
validation: each rank processes its share of the samples, without dropout.
"""

import contextlib
import logging
from collections.abc import Callable

import numpy as np
import torch

from nbtrain.base.printing.progress import Progress
from nbtrain.base.text.amounts import counted
from nbtrain.checkpoint.live.live_run import LiveRun
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.files import OpenDataset
from nbtrain.dataset.of_run import open_dataset
from nbtrain.dataset.samples.preference_dataset import PreferenceDataset, all_pairs
from nbtrain.dataset.samples.reference import description_of, keep_reference, known_reference
from nbtrain.parallel.agreement import gather_objects
from nbtrain.train.engine.batches import Batches
from nbtrain.train.engine.engine import TrainEngine
from nbtrain.train.engine.preference_pairs import PairFigures

logger = logging.getLogger(__name__)

# Number of micro batches per rank between two updates of the progress bar.
BATCHES_AT_ONCE = 8


def load_reference(
    live: LiveRun,
    engine: TrainEngine,
    splits: list[PreferenceDataset | None],
    load_start: Callable[[], None],
    beat: Callable[[], None],
) -> None:
    """Load the reference log-probabilities of a run's splits. All ranks call it together, before a checkpoint
    is loaded.

    If the log-probabilities are not on disk, load_start() loads the run's initial weights into the engine,
    and the log-probabilities are computed and written.
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
    """Compute the reference log-probabilities, float32 [sequences, 2]; NaN for a pair that no sample
    contains.
    """
    assert config.dpo is not None
    place, micro = engine.groups.data_parallel, config.batch.micro_batch_size
    row = micro * place.size
    samples = dataset.once()
    steps = -(-samples // row)
    # The last row of micro batches is filled up with samples from the beginning.
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
                # A pair may occur several times; the mean of its values is returned.
                sums[batch.pairs, :2] += found
                sums[batch.pairs, 2] += 1
            if bar is not None:
                bar.update(len(rows) * row)
    engine.over_data_axis(sums)
    return (sums[:, :2] / sums[:, 2:]).float().cpu().numpy()
