"""Token counts of a run's prepared data: from the .idx file, or from the manifest next to it.

Training reads the .idx, so its counts take precedence. If the manifest disagrees or the .idx cannot be read,
the plan reports a finding (lint/schedule.py). Opening an index does not read any tokens.
"""

from dataclasses import dataclass

from nbtrain.base.errors import DataError
from nbtrain.base.workspace import display
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.blend import BlendFiles
from nbtrain.dataset.indexed import IndexedDataset
from nbtrain.dataset.manifest import DatasetManifest
from nbtrain.dataset.of_run import dataset_of
from nbtrain.dataset.samples.gpt_index import split_bounds, split_weights


@dataclass(frozen=True)
class DatasetSize:
    """Tokens of the data that a run trains on."""

    tokens: int
    documents: int
    train_tokens: int
    """Tokens of the training split."""
    basis: str
    """Source of the counts: "the .idx" or "the manifest"."""
    problem: str = ""
    """Problem with the .idx file or the manifest; "" if they agree."""


def dataset_size(config: RunConfig) -> DatasetSize | None:
    """Return the token counts; None if no dataset is prepared. A damaged dataset is described in
    `problem`.
    """
    files = dataset_of(config)
    pairs = [entry.files for entry in files.entries] if isinstance(files, BlendFiles) else [files]
    manifest: DatasetManifest | None = None
    problem = ""
    try:
        manifest = files.manifest()
    except DataError as error:
        problem = str(error)
    found: list[IndexedDataset] = []
    if all(pair.idx.is_file() for pair in pairs):
        try:
            found = [IndexedDataset(pair.prefix) for pair in pairs]
        except DataError as error:
            problem = str(error)
    if not found:
        return _by_manifest(config, manifest, problem) if manifest else None
    tokens, documents = sum(one.num_tokens for one in found), sum(one.num_documents for one in found)
    if manifest is not None and (tokens, documents) != _counts(manifest):
        by_manifest, of_manifest = _counts(manifest)
        names = ", ".join(display(pair.idx) for pair in pairs)
        problem = (
            f"{names}: {tokens:,} tokens in {documents:,} documents, but manifest.json says {by_manifest:,} "
            f"in {of_manifest:,}: the files are not those that were prepared. The plan counts the .idx."
        )
    trained = sum(_train_tokens(config, one) for one in found)
    return DatasetSize(tokens, documents, trained, "the .idx", problem)


def _by_manifest(config: RunConfig, manifest: DatasetManifest, problem: str) -> DatasetSize:
    tokens, documents = _counts(manifest)
    weights = split_weights(config.data.split)
    trained = round(tokens * weights[0] / sum(weights))
    return DatasetSize(tokens, documents, trained, "the manifest", problem)


def _counts(manifest: DatasetManifest) -> tuple[int, int]:
    return manifest.counts["tokens"], manifest.counts["documents"]


def _train_tokens(config: RunConfig, indexed: IndexedDataset) -> int:
    """Return the number of tokens in the training sequences."""
    first, last = split_bounds(config.data.split, config.data.split_rule, len(indexed))[0]
    if last >= len(indexed):
        return indexed.num_tokens
    # Only the ends of a large index are checked at opening, hence the bounds.
    size = indexed.dtype.itemsize
    tokens = int(indexed.pointers[last] - indexed.pointers[first]) // size
    return min(max(tokens, 0), indexed.num_tokens)
