"""The user's dataset(split) as a split of samples, shuffled again in every epoch.

    dataset("train")  ->  an object with __len__() and samples(index)
    samples(index)    ->  {"tokens": [T + 1], "loss_mask": [T]}, or {"tokens": [T], "labels": [T], ...}

Position p of the training order is sample order[p % n] of epoch p // n, where n is the dataset's length. Each
epoch has its own order, drawn from data.seed and the epoch, so that a resume continues at the same sample on
any number of ranks. Validation and test read samples 0, 1, 2, ... in order.

Shapes: T model.seq_length
"""

import contextlib
import functools
import inspect
from typing import Any

import numpy as np

from nbtrain.base.errors import CodeError
from nbtrain.checkpoint.user_code import UserCode
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.manifest import DatasetManifest
from nbtrain.dataset.samples.build import GPTDatasets
from nbtrain.dataset.samples.sample import Sample
from nbtrain.dataset.samples.state import DataState

SPLITS = ("train", "valid", "test")
KEYS = ("tokens", "labels", "loss_mask")


class OwnSamples:
    """One split of the user's dataset; its samples are checked when they are read."""

    def __init__(self, code: UserCode, dataset: Any, config: RunConfig, split: str):
        self._code, self._dataset, self._split = code, dataset, split
        self._length, self._vocab_size = config.model.seq_length, config.tokenizer.vocab_size
        self._seed = config.data.seed if split == "train" else None
        self.size = self._checked_size()

    def _checked_size(self) -> int:
        for name in ("__len__", "samples"):
            if not callable(getattr(self._dataset, name, None)):
                kind = type(self._dataset).__name__
                raise self._error(
                    f"dataset({self._split!r}) returned an object of type {kind}, which has no {name}()",
                    "Return an object with __len__() and samples(index)",
                )
        with contextlib.suppress(ValueError):  # not every callable has a signature
            try:
                inspect.signature(self._dataset.samples).bind(0)
            except TypeError as error:
                raise self._error(
                    f"samples() of dataset({self._split!r}) cannot be called with an index: {error}",
                    "Define samples(self, index)",
                ) from error
        try:
            with self._code.blamed("dataset"):
                size = len(self._dataset)
        except (TypeError, ValueError, OverflowError) as error:
            # __len__() itself raised no error, but its result is not a length.
            raise self._error(
                f"len(dataset({self._split!r})) fails: {error}",
                "Return a whole number from __len__()",
            ) from error
        if size == 0:
            optional = "" if self._split == "train" else ", or None to do without this split"
            raise self._error(f"dataset({self._split!r}) is empty", f"Return at least one sample{optional}")
        return size

    def sample(self, position: int) -> Sample:
        epoch, number = divmod(position, self.size)
        index = number if self._seed is None else int(epoch_order(self._seed, epoch, self.size)[number])
        with self._code.blamed("dataset"):
            values = self._dataset.samples(index)
        where = f"samples({index}) of dataset({self._split!r})"
        if not isinstance(values, dict) or "tokens" not in values or not set(values) <= set(KEYS):
            keys = ", ".join(map(str, values)) if isinstance(values, dict) else ""
            is_dict = f"a dict with the keys {keys}" if keys else "an empty dict"
            shown = is_dict if isinstance(values, dict) else f"an object of type {type(values).__name__}"
            raise self._error(
                f"{where} returned {shown}",
                "Return a dict with the key tokens and, if needed, labels and loss_mask",
            )
        length = self._length
        tokens = self._ids(where, "tokens", values["tokens"], length if "labels" in values else length + 1)
        if "labels" in values:
            labels = self._ids(where, "labels", values["labels"], length)
        else:
            tokens, labels = tokens[:-1], tokens[1:]
        return Sample(tokens, labels, self._mask(where, values.get("loss_mask")))

    def _ids(self, where: str, key: str, value: Any, length: int) -> np.ndarray:
        array = self._array(where, key, value)
        if array.shape != (length,) or array.dtype.kind not in "iu":
            raise self._error(
                f"{key} of {where} has shape {list(array.shape)}, {array.dtype}",
                f"It must hold {length} integer ids (model.seq_length"
                f"{' + 1, because no labels are returned' if length > self._length else ''})",
            )
        if array.size and not 0 <= array.min() <= array.max() < self._vocab_size:
            raise self._error(
                f"the ids in {key} of {where} range from {array.min()} to {array.max()}",
                f"Ids must be from 0 to {self._vocab_size - 1:,} (tokenizer.vocab_size - 1)",
            )
        return array.astype(np.int64)

    def _mask(self, where: str, value: Any) -> np.ndarray:
        if value is None:
            return np.ones(self._length, np.float32)
        mask = self._array(where, "loss_mask", value)
        if mask.shape != (self._length,) or mask.dtype.kind not in "biuf" or not np.isin(mask, (0, 1)).all():
            raise self._error(
                f"loss_mask of {where} has shape {list(mask.shape)}, {mask.dtype}",
                f"It must hold {self._length} values (model.seq_length), each 0 or 1",
            )
        return mask.astype(np.float32)

    def _array(self, where: str, key: str, value: Any) -> np.ndarray:
        with self._code.blamed("dataset"):
            try:
                return np.asarray(value)
            except (ValueError, TypeError) as error:
                raise self._error(
                    f"{key} of {where} is not an array: {error}", "Return a list of numbers"
                ) from error

    def _error(self, problem: str, fix: str) -> CodeError:
        return self._code.error("dataset", problem, f"{fix}.")


@functools.lru_cache(maxsize=2)
def epoch_order(seed: int, epoch: int, size: int) -> np.ndarray:
    """Return int64 [size]: the order of the samples in an epoch."""
    return np.random.default_rng([seed, epoch]).permutation(size)


def own_datasets(
    config: RunConfig, code: UserCode, index_samples: int | None, skipped_samples: int
) -> GPTDatasets:
    """Build the splits from dataset(split). Raises CodeError if dataset() returns no training split or an
    unusable object.

    The validation and test splits are None if dataset() returns None for them, or if the run does not
    evaluate.
    """
    # Imported here because a run on prepared data does not need the tokenizer's libraries.
    from nbtrain.dataset.of_run import tokenizer_sha256

    splits: dict[str, Any] = {}
    for split in SPLITS:
        wanted = split == "train" or config.evaluation.eval_iters > 0
        made = code.call("dataset", split) if wanted else None
        if made is None and split == "train":
            raise code.error("dataset", "dataset('train') returned None", "Return the training samples.")
        splits[split] = None if made is None else OwnSamples(code, made, config, split)
    manifest = DatasetManifest(
        json_key=config.data.json_key,
        sources=[],
        counts={"documents": splits["train"].size, "tokens": None, "bytes": None, "dropped": {}},
        vocab_size=config.tokenizer.vocab_size,
        dtype="int64",
        eod_id=None,
        tokenizer_sha256=tokenizer_sha256(config),
        files={code.name: {"bytes": code.path.stat().st_size, "sha256": code.sha256}},
    )
    needed = config.batch_schedule.samples_after(config.train_steps) + skipped_samples
    state = DataState(
        seed=config.data.seed,
        split=config.data.split,
        split_rule=config.data.split_rule,
        dataset_sha256=manifest.dataset_sha256,
        index_samples=index_samples or config.data.index_samples or max(config.train_samples, needed),
        shuffle=config.data.shuffle,
        packing=config.data.resolved_packing,
    )
    return GPTDatasets(**splits, manifest=manifest, state=state, is_masked=True)
