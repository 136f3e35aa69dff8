"""Builds the training, validation and test samples of a run from its datasets."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from nbtrain.base.errors import DataError
from nbtrain.base.text.terminal import printable
from nbtrain.base.workspace import display
from nbtrain.config.arithmetic.splits import SPLIT_NAMES, split_weights
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.blend import OpenBlend
from nbtrain.dataset.files import OpenDataset
from nbtrain.dataset.manifest import DatasetManifest
from nbtrain.dataset.of_run import open_dataset
from nbtrain.dataset.samples import packed_dataset, preference_dataset
from nbtrain.dataset.samples.gpt_blend import BlendedDataset, BlendIndex, blend_sizes
from nbtrain.dataset.samples.gpt_dataset import GPTDataset, SampleDataset, SampleOptions
from nbtrain.dataset.samples.split_ranges import stream_range
from nbtrain.dataset.samples.state import DataState

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class GPTDatasets:
    """The datasets of a run's three splits. valid and test are None if they are not read or are empty."""

    train: Any
    valid: Any | None
    test: Any | None
    manifest: DatasetManifest
    state: DataState
    names: tuple[str, ...] = ()
    """Dataset names that Sample.dataset refers to by index; empty if there is only one dataset."""
    is_masked: bool = False
    """Whether some positions of training samples may be outside the loss."""


def build_datasets(
    config: RunConfig,
    index_samples: int | None = None,
    skipped_samples: int = 0,
    opened: OpenDataset | OpenBlend | None = None,
) -> GPTDatasets:
    """Build the datasets of a run, using or creating the indices in index-cache/.

    When a run is resumed, `index_samples` comes from its data state. None uses data.index_samples or, if that
    is not set, the number of samples that train_tokens needs. `skipped_samples` is the number of samples
    that the run skips, so it reads that many samples further. Pass `opened` if the run's dataset is already
    open. Raises DataError if the data is missing or damaged, or does not fit the run.
    """
    opened = opened or open_dataset(config)
    manifest = opened.manifest
    if index_samples is None:
        index_samples = config.data.index_samples or config.train_samples
    train_samples = config.batch_schedule.samples_after(config.train_steps) + skipped_samples
    train_samples = max(index_samples, train_samples)
    wanted = dict.fromkeys(SPLIT_NAMES, (config.evaluation_samples, config.evaluation_samples))
    wanted["train"] = (index_samples, train_samples)
    weights = dict(zip(SPLIT_NAMES, split_weights(config.data.split), strict=True))
    build_split = split_builder(config, opened)
    splits: dict[str, Any] = {}
    for name, (own_index_samples, num_samples) in wanted.items():
        splits[name] = build_split(name, own_index_samples, num_samples) if num_samples else None
        if splits[name] is None and (name == "train" or (weights[name] and num_samples)):
            message = (
                f"{display(opened.files.prefix)}: data.split {config.data.split} ({config.data.split_rule}) "
                f"of {manifest.counts['documents']:,} documents leaves no document for {name}."
            )
            if name == "train":
                raise DataError(f"{message} Use more text or another data.split.")
            logger.warning(
                "%s The split is omitted; use more text or another data.split.", printable(message)
            )
    state = DataState(
        seed=config.data.seed,
        split=config.data.split,
        split_rule=config.data.split_rule,
        dataset_sha256=manifest.dataset_sha256,
        index_samples=index_samples,
        shuffle=config.data.shuffle,
        packing=config.data.resolved_packing,
    )
    is_fixed = (config.data.shuffle, config.data.resolved_packing) == ("megatron", "stream")
    if train_samples > index_samples and is_fixed:
        logger.info(
            "the order of the training samples was fixed for %s samples. The run continues to %s samples; "
            "earlier positions do not change.",
            f"{index_samples:,}",
            f"{train_samples:,}",
        )
    if isinstance(opened, OpenBlend):
        names = tuple(entry.name for entry in opened.files.entries)
    else:
        # Rewards are not reported per dataset.
        names = () if config.dpo is not None else tuple(getattr(splits["train"], "dataset_names", ()))
    is_masked = _is_masked(splits["train"])
    return GPTDatasets(
        **splits, manifest=manifest, state=state, names=names if len(names) > 1 else (), is_masked=is_masked
    )


def refuse_without_loss(config: RunConfig, datasets: GPTDatasets) -> None:
    """Raise DataError if no sample that the run trains on has a token in the loss.

    Reads samples until one has such a token. Packed examples are not read, because packing checks them.
    """
    if not datasets.is_masked or config.data.resolved_packing == "best_fit" or config.dpo is not None:
        return
    samples = config.batch_schedule.samples_after(config.train_steps)
    for position in range(samples):
        mask = datasets.train.sample(position).loss_mask
        if mask is None or mask.any():
            return
    raise DataError(
        f"dataset {config.data.name}: none of the {samples:,} samples of {config.model.seq_length:,} tokens "
        "that the run trains on has a token in the loss, so the model would learn nothing. Few of this "
        "text's tokens are in the loss, as with short answers to long prompts: set data.packing=best_fit, "
        "raise model.seq_length, or train on more tokens."
    )


def may_have_no_loss(config: RunConfig, opened: OpenDataset | OpenBlend) -> bool:
    """Return whether refuse_without_loss() may have to read samples. Builds no indices to find out."""
    if config.data.resolved_packing == "best_fit" or config.dpo is not None:
        return False
    entries = opened.entries if isinstance(opened, OpenBlend) else (opened,)
    return all(entry.loss_mask is not None for entry in entries)


def _is_masked(dataset: Any) -> bool:
    if isinstance(dataset, BlendedDataset):
        return any(_is_masked(part) for part in dataset.datasets)
    if isinstance(dataset, GPTDataset):
        return dataset.options.eod_mask_loss or dataset.mask is not None
    return True  # packed samples: their padding is outside the loss


def split_builder(
    config: RunConfig, opened: OpenDataset | OpenBlend
) -> Callable[[str, int, int], SampleDataset | None]:
    """Return a function (name, index_samples, num_samples) that builds one split of a run's dataset."""
    if isinstance(opened, OpenBlend):
        return _BlendBuilder(config, opened)
    if config.dpo is not None:
        return partial(preference_dataset.build_split, opened, config)
    if config.data.resolved_packing == "best_fit":
        return partial(packed_dataset.build_split, opened, config)
    return partial(_stream, config, opened, opened.files.index_cache)


def _stream(
    config: RunConfig,
    opened: OpenDataset,
    index_cache: Path,
    split: str,
    index_samples: int,
    num_samples: int,
) -> GPTDataset | None:
    indexed, manifest = opened.indexed, opened.manifest
    data = config.data
    bounds = stream_range(config, len(indexed), split)
    if bounds[0] == bounds[1]:
        return None
    if data.eod_mask_loss and manifest.eod_id is None:
        raise DataError(
            f"{config.where('data.eod_mask_loss')}: data.eod_mask_loss needs the end-of-document token, but "
            f"the manifest in {display(opened.files.directory)} does not name this token. Set "
            "data.eod_mask_loss to false, or prepare the dataset."
        )
    return GPTDataset(
        indexed,
        index_cache,
        manifest.dataset_sha256,
        bounds,
        config.model.seq_length,
        index_samples,
        num_samples,
        data.seed,
        data.shuffle,
        SampleOptions(
            data.reset_position_ids, data.inter_document_masking, data.eod_mask_loss, manifest.eod_id
        ),
        opened.loss_mask,
    )


class _BlendBuilder:
    """Builder of a blend's splits: each dataset is split by data.split, then the parts are mixed."""

    def __init__(self, config: RunConfig, opened: OpenBlend):
        self.config = config
        self.files = opened.files
        # The datasets share a tokenizer, so they have the same end-of-document token.
        eod_id = opened.manifest.eod_id
        self.opened = [
            entry._replace(manifest=replace(entry.manifest, eod_id=eod_id)) for entry in opened.entries
        ]

    def __call__(self, split: str, index_samples: int, num_samples: int) -> BlendedDataset | None:
        config, entries = self.config, self.files.entries
        bounds = [stream_range(config, len(entry.indexed), split) for entry in self.opened]
        empty = [number for number, (first, last) in enumerate(bounds) if first == last]
        present = [number for number in range(len(entries)) if number not in empty]
        if empty and (split == "train" or present):
            message = (
                f"{self.files.where}: data.split {config.data.split} ({config.data.split_rule}) leaves no "
                f"document of {', '.join(entries[number].name for number in empty)} for {split}."
            )
            if split == "train":
                raise DataError(f"{message} Use more text, or remove the dataset from the blend.")
            logger.warning("%s The %s split blends the other datasets.", printable(message), split)
        if not present:
            return None
        rule = config.data.split_rule
        sizes = blend_sizes(rule, [entries[number].weight for number in present], index_samples)
        # A sample's dataset does not depend on the blend's size, so a longer run continues the same blend.
        index = BlendIndex(self.files.index_cache, rule, sizes.weights, max(sizes.blend, num_samples))
        asked, taken = index.counts(sizes.blend), index.counts(len(index.dataset_index))
        is_limited = rule == "megatron-core" and config.data.shuffle == "megatron"
        datasets = []
        for number, own, needed, most in zip(present, sizes.samples, asked, taken, strict=True):
            entry = entries[number]
            dataset = _stream(config, self.opened[number], entry.index_cache, split, own, most)
            assert dataset is not None
            if is_limited and needed > dataset.samples_per_pass:
                raise DataError(
                    f"{self.files.where}: the {split} blend needs {needed:,} samples of {entry.name}, whose "
                    f"index was built for {dataset.index_samples:,} samples and holds "
                    f"{dataset.samples_per_pass:,} in whole epochs; megatron-core rejects such a blend. "
                    "Request more samples, or set data.split_rule: megatron-deepspeed, which continues past "
                    "the last epoch."
                )
            datasets.append(dataset)
        return BlendedDataset(datasets, present, index, num_samples)
