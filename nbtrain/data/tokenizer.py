"""Byte-level BPE: trained and stored by HF tokenizers, encoded by fastokens where it is installed.

    data/tokenizer/<name>/
      vocab.json, merges.txt   GPT-2's two files
      tokenizer.json           the same in HF's one file: what is loaded
      manifest.json            vocab_size, eod_id, sha256, how it was made; written last

A literal "<|endoftext|>" in a text is text, never the end-of-document token: that one is only ever put by
the writer. Both engines are told so, and give the same ids.
"""

import hashlib
import logging
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from nbtrain import files
from nbtrain.errors import DataError
from nbtrain.workspace import display

logger = logging.getLogger(__name__)

EOD_TOKEN = "<|endoftext|>"
SCHEMA_VERSION = 1
CONTENT_FILES = ("merges.txt", "vocab.json")


class Tokenizer:
    """A tokenizer folder, loaded. Engines load when they are first needed.

    `engine` is "fastokens", "tokenizers" or None: the first that is installed.
    """

    def __init__(self, directory: Path, manifest: dict[str, Any], engine: str | None = None):
        self.directory = directory
        self.manifest = manifest
        self.vocab_size: int = manifest["vocab_size"]
        self.eod_id: int = manifest["eod_id"]
        self.sha256: str = manifest["sha256"]
        self.engine = engine or _best_engine()

    @classmethod
    def load(cls, directory: str | Path, engine: str | None = None) -> "Tokenizer":
        """Open a tokenizer folder. Raises DataError where it is missing or not the one its manifest names."""
        directory = Path(directory)
        manifest = read_manifest(directory)
        if manifest is None:
            raise DataError(
                f"{display(directory / 'manifest.json')}: no such file: the tokenizer is not ready. Make it with "
                "`nbtrain prepare RUN.yaml`."
            )
        for name, entry in manifest["files"].items():
            path = directory / name
            if not path.is_file() or files.sha256_of(path) != entry["sha256"]:
                state = "has changed since its manifest was written" if path.is_file() else "is missing"
                raise DataError(
                    f"{display(path)}: {state}. Token ids would no longer mean the same text: restore it, or remove "
                    f"{display(directory)} and run `nbtrain prepare RUN.yaml`."
                )
        return cls(directory, manifest, engine)

    def __repr__(self) -> str:
        return f"Tokenizer({display(self.directory)!r}, vocab_size={self.vocab_size}, eod_id={self.eod_id})"

    def encode(self, text: str) -> np.ndarray:
        """Token ids of a text, uint32 [tokens], no EOD."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(ids uint32 [tokens], offsets int64 [texts + 1]): text i is ids[offsets[i]:offsets[i + 1]]; no EOD."""
        if self.engine == "fastokens":
            ids, offsets = self._fast.encode_batch_flat(list(texts), split_special_tokens=True)
            return np.frombuffer(ids, "<u4"), np.frombuffer(offsets, "<u8").astype(np.int64)
        encodings = self._reference.encode_batch_fast(list(texts), add_special_tokens=False)
        offsets = np.zeros(len(encodings) + 1, np.int64)
        np.cumsum([len(encoding) for encoding in encodings], out=offsets[1:])
        ids = np.empty(offsets[-1], np.uint32)
        for encoding, start, stop in zip(encodings, offsets[:-1], offsets[1:]):
            ids[start:stop] = encoding.ids
        return ids, offsets

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids; EOD shows as <|endoftext|>, bytes that are no UTF-8 as U+FFFD."""
        ids = [int(token) for token in ids]
        if self.engine == "fastokens":
            return self._fast.decode(ids)
        return self._reference.decode(ids, skip_special_tokens=False)

    @cached_property
    def _fast(self) -> Any:
        import fastokens

        return fastokens.Tokenizer.from_file(str(self.directory / "tokenizer.json"))

    @cached_property
    def _reference(self) -> Any:
        import tokenizers

        reference = tokenizers.Tokenizer.from_file(str(self.directory / "tokenizer.json"))
        reference.encode_special_tokens = True
        return reference


def _best_engine() -> str:
    try:
        import fastokens  # noqa: F401
    except ImportError:
        logger.info("fastokens is not installed on this platform; encoding with tokenizers, which is slower.")
        return "tokenizers"
    return "fastokens"


def read_manifest(directory: Path) -> dict[str, Any] | None:
    """manifest.json of a tokenizer folder, or None. Raises DataError where it is damaged."""
    try:
        return files.read_json(directory / "manifest.json")
    except ValueError as error:
        raise DataError(f"{error}. Remove the folder and run `nbtrain prepare RUN.yaml`.") from None


def train(texts: Iterable[str], vocab_size: int, train_bytes: int) -> Any:
    """tokenizer_training.train with HF tokenizers, for callers of before."""
    from nbtrain.data import tokenizer_training

    return tokenizer_training.train(texts, vocab_size, train_bytes=train_bytes)


def from_vocabulary(vocab: Path, merges: Path) -> Any:
    """A tokenizers.Tokenizer from GPT-2's two files. Raises DataError where they are not such a pair."""
    import tokenizers
    from tokenizers.models import BPE

    try:
        # Both raise bare Exceptions from Rust.
        built = byte_level(tokenizers.Tokenizer(BPE.from_file(str(vocab), str(merges))))
    except Exception as error:
        raise DataError(f"{display(vocab)}, {display(merges)}: not a byte-level BPE: {error}.") from error
    if built.token_to_id(EOD_TOKEN) is None:
        raise DataError(f"{display(vocab)}: has no {EOD_TOKEN}, which ends every document.")
    built.add_special_tokens([EOD_TOKEN])
    return built


def byte_level(tokenizer: Any) -> Any:
    """GPT-2's rule for words and its letters for bytes, put into a tokenizers.Tokenizer."""
    from tokenizers.decoders import ByteLevel as ByteLevelDecoder
    from tokenizers.pre_tokenizers import ByteLevel

    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    return tokenizer


def save(tokenizer: Any, directory: Path, made: dict[str, Any]) -> dict[str, Any]:
    """Write the four files into `directory`, the manifest last, and return it. `made` says how it was made.

    Files that are there already (a vocabulary that somebody brought) are left as they are.
    """
    directory.mkdir(parents=True, exist_ok=True)
    if not all((directory / name).is_file() for name in CONTENT_FILES):
        tokenizer.model.save(str(directory))
    files.write_text(directory / "tokenizer.json", tokenizer.to_str(pretty=True))
    entries = {
        name: {"bytes": (directory / name).stat().st_size, "sha256": files.sha256_of(directory / name)}
        for name in (*CONTENT_FILES, "tokenizer.json")
    }
    # Of the vocabulary alone: tokenizer.json may be spelled otherwise by the next version of tokenizers.
    identity = "".join(f"{name} {entries[name]['sha256']}\n" for name in CONTENT_FILES)
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "vocab_size": tokenizer.get_vocab_size(),
        "eod_id": tokenizer.token_to_id(EOD_TOKEN),
        "sha256": hashlib.sha256(identity.encode()).hexdigest(),
        "files": entries,
        **made,
    }
    files.write_json(directory / "manifest.json", manifest)
    return manifest
