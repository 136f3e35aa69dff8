"""Builds a dataset as prepare writes it, for tests of code that reads datasets."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from nbtrain.base import files
from nbtrain.base.workspace import tokenizer_dir
from nbtrain.config.schema import RunConfig
from nbtrain.corpus.tokenizer import training as tokenizer_training
from nbtrain.corpus.tokenizer.folder import save
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.dataset.files import DatasetFiles
from nbtrain.dataset.manifest import DatasetManifest, manifest_dtype
from nbtrain.dataset.of_run import dataset_of
from tests.dataset.indexed_writer import IndexedWriter
from tests.dataset.manifest_source import SOURCE


def make_tokenizer(name: str, texts: Sequence[str], vocab_size: int = 300) -> Tokenizer:
    """Return the tokenizer `name`, training it if it does not exist."""
    folder = tokenizer_dir(name)
    if not (folder / "manifest.json").is_file():
        save(tokenizer_training.train(texts, vocab_size, train_bytes=1 << 20), folder, None)
    return Tokenizer.load(folder)


def make_dataset(
    config: RunConfig,
    texts: Sequence[str],
    dataset: DatasetFiles | None = None,
    learnt_from: Sequence[int] | None = None,
    sources: Sequence[dict[str, Any]] = (),
    dropped: dict[str, int] | None = None,
) -> DatasetManifest:
    """Write each text as a document, or its lines as sequences if the run splits sentences.

    `learnt_from` has, for each text, the index of its first token in the loss.
    """
    dataset = dataset or dataset_of(config)
    dataset.directory.mkdir(parents=True, exist_ok=True)
    loaded = make_tokenizer(config.tokenizer.name, texts, config.tokenizer.vocab_size)
    with IndexedWriter(
        dataset.prefix, loaded.vocab_size, loaded.eod_id, loss_mask=learnt_from is not None
    ) as writer:
        for number, text in enumerate(texts):
            pieces = text.splitlines(keepends=True) if config.data.split_sentences else [text]
            ids, offsets = loaded.encode_batch(pieces)
            learnt = np.arange(len(ids)) >= learnt_from[number] if learnt_from is not None else None
            writer.add_batch(ids, offsets, np.array([len(pieces)]), learnt)
    assert writer.written is not None
    manifest = DatasetManifest(
        json_key=config.data.json_key,
        sources=[{**SOURCE, **source} for source in sources],
        counts={
            "documents": writer.written.num_documents,
            "tokens": writer.written.num_tokens,
            "bytes": sum(len(text.encode()) for text in texts),
            "dropped": dropped or {},
        },
        vocab_size=loaded.vocab_size,
        dtype=manifest_dtype(writer.dtype),
        eod_id=loaded.eod_id,
        tokenizer_sha256=loaded.sha256,
        files=writer.written.files,
    )
    files.write_json(dataset.manifest_json, manifest.to_dict())
    return manifest


def stacked(dataset: Any, positions: Iterable[int]) -> np.ndarray:
    """Return the samples at several positions, stacked as int64 [positions, seq_length + 1]."""
    return np.stack([dataset[position] for position in positions])
