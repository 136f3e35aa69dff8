"""A tokenizer folder: loading, encoding in batches, decoding; taking over a tokenizer that somebody brings.

    data/tokenizer/<name>/
      vocab.json, merges.txt   GPT-2's two files, of a byte-level BPE that was trained here or brought so
      tokenizer.json           what is loaded; HF's one file, which may describe any tokenizer
      manifest.json            vocab_size, eod_id, eod_token, sha256, how it was made; written last

Two engines encode: fastokens where it is installed, knows this tokenizer and gives the same ids, else HF
tokenizers. `check_exact` compares them.

The letters of the end-of-document token in a text are text, never that token, which only the writer puts; so
are those of every other special token. Added tokens that are not special (runs of blanks in some vocabularies)
are part of the vocabulary and stay.
"""

import hashlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from nbtrain import files
from nbtrain.data import tokenizer_exactness
from nbtrain.errors import DataError
from nbtrain.workspace import display

logger = logging.getLogger(__name__)

EOD_TOKEN = "<|endoftext|>"
SCHEMA_VERSION = 1
CONTENT_FILES = ("merges.txt", "vocab.json")
ONE_FILE = "tokenizer.json"
LONG_TEXT_CHARS = 2 << 20
# A longer word or run of blanks in such a text may be cut: engines take 50 bytes for each of its characters.
LONG_WORD_CHARS = 1 << 18
# In front of a blank behind a letter or digit; and, in scripts without blanks, of a comma or stop behind a letter.
SAFE_CUT = re.compile(
    "[^\\W_](?=[ \n])|[\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff](?=[\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f])"
)
# What others call their end of a document or an answer; offered where the configured one is not there.
EOD_CANDIDATES = (
    "<|endoftext|>",
    "</s>",
    "<eos>",
    "<|end_of_text|>",
    "<|im_end|>",
    "<|eot_id|>",
    "<|end\u2581of\u2581sentence|>",
    "<|eos|>",
    "<end_of_turn>",
    "[EOS]",
    "[SEP]",
)


class Tokenizer:
    """A tokenizer folder, loaded; picklable. Engines load when they are first needed.

    `engine` is "fastokens", "tokenizers" or None: the first that is installed. It changes to "tokenizers" where
    fastokens cannot load the folder or check_exact finds a difference.
    """

    def __init__(self, directory: Path, manifest: dict[str, Any], engine: str | None = None):
        self.directory = directory
        self.manifest = manifest
        self.vocab_size: int = manifest["vocab_size"]
        self.eod_id: int = manifest["eod_id"]
        self.eod_token: str = manifest.get("eod_token", EOD_TOKEN)
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

    def __reduce__(self) -> tuple:
        return type(self), (self.directory, self.manifest, self.engine)

    def __repr__(self) -> str:
        return f"Tokenizer({display(self.directory)!r}, vocab_size={self.vocab_size}, eod_id={self.eod_id})"

    def encode(self, text: str) -> np.ndarray:
        """Token ids of a text, uint32 [tokens], no EOD."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(ids uint32 [tokens], offsets int64 [texts + 1]): text i is ids[offsets[i]:offsets[i + 1]]; no EOD."""
        ids, offsets = self._encode(texts)
        if self.manifest.get("eod_from_text") and (ids == self.eod_id).any():
            rows = [ids[start:stop] for start, stop in pairwise(offsets)]
            rows = [self._without_eod(text, row) for text, row in zip(texts, rows, strict=True)]
            offsets = np.cumsum([0, *map(len, rows)])
            ids = np.concatenate(rows)
        return ids, offsets

    def _encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        if texts and max(map(len, texts)) > LONG_TEXT_CHARS and self.cuts_safely:
            return self._encode_in_pieces(texts)
        return self._encode_whole(texts)

    def _encode_in_pieces(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The same for texts of which one is so long that an engine's copies of it would count."""
        rows, offsets = [], np.zeros(len(texts) + 1, np.int64)
        for number, text in enumerate(texts):
            own = list(self.encode_long(text))
            offsets[number + 1] = offsets[number] + sum(map(len, own))
            rows += own
        return np.concatenate(rows), offsets

    def encode_long(self, text: str) -> Iterator[np.ndarray]:
        """The ids of a text piece by piece, together those of encode. Only where cuts_safely."""
        for piece in pieces_of_long(text):
            yield self._encode_whole([piece])[0]

    @cached_property
    def cuts_safely(self) -> bool:
        """Whether a text may be encoded in pieces that are cut at SAFE_CUT.

        True where words are cut by GPT-2's rule alone: no token of it spans such a place. A word or a run of blanks of
        LONG_WORD_CHARS and more in a text of LONG_TEXT_CHARS may be cut too; its tokens are then those of its two halves.
        """
        document = orjson.loads((self.directory / ONE_FILE).read_bytes())
        words = document.get("pre_tokenizer") or {}
        return (
            words.get("type") == "ByteLevel"
            and words.get("use_regex", True)
            and not words.get("add_prefix_space", True)
            and not document.get("normalizer")
            and all(token["special"] for token in document.get("added_tokens", []))
        )

    def _encode_whole(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        if self.engine == "fastokens" and (fast := self._fast) is not None:
            ids, offsets = fast.encode_batch_flat(list(texts), split_special_tokens=True)
            return np.frombuffer(ids, "<u4"), np.frombuffer(offsets, "<u8").astype(np.int64)
        encodings = self._reference.encode_batch_fast(list(texts), add_special_tokens=False)
        offsets = np.zeros(len(encodings) + 1, np.int64)
        np.cumsum([len(encoding) for encoding in encodings], out=offsets[1:])
        ids = np.empty(offsets[-1], np.uint32)
        for encoding, start, stop in zip(encodings, offsets[:-1], offsets[1:]):
            ids[start:stop] = encoding.ids
        return ids, offsets

    def _without_eod(self, text: str, ids: np.ndarray) -> np.ndarray:
        """The ids of a text that became EOD in part, encoded in pieces so that it does not.

        A Unigram or WordPiece vocabulary may hold the EOD's letters as an entry like any other.
        """
        if not (ids == self.eod_id).any():
            return ids
        half = len(self.eod_token) // 2
        first, *others = text.split(self.eod_token)
        pieces = [first, *(self.eod_token[half:] + other for other in others)]
        pieces[:-1] = [piece + self.eod_token[:half] for piece in pieces[:-1]]
        while True:
            ids, offsets = self._encode(pieces)
            bad = {
                number
                for number in range(len(pieces))
                if (ids[offsets[number] : offsets[number + 1]] == self.eod_id).any()
            }
            if not bad:
                return ids
            halves = []
            for number, piece in enumerate(pieces):
                if number in bad and len(piece) == 1:
                    raise DataError(
                        f"{display(self.directory)}: the character {piece!r} becomes the end-of-document token "
                        f"{self.eod_token}, so documents would end in their midst. Name another tokenizer.eod_token."
                    )
                middle = len(piece) // 2
                halves += [piece[:middle], piece[middle:]] if number in bad else [piece]
            pieces = halves

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids; EOD shows as its letters, bytes that are no UTF-8 as U+FFFD."""
        ids = [int(token) for token in ids]
        if self.engine == "fastokens" and (fast := self._fast) is not None:
            return fast.decode(ids)
        return self._reference.decode(ids, skip_special_tokens=False)

    def check_exact(self, sample_texts: Sequence[str] = ()) -> str | None:
        """Compare fastokens with HF tokenizers on the beginning of a sample and on hard texts of every kind.

        None where they agree or tokenizers is the engine already. Else `engine` becomes "tokenizers", and the
        answer is one sentence on why. Takes under 0.3 s besides loading.
        """
        if self.engine != "fastokens":
            return None
        difference = tokenizer_exactness.first_difference(
            self._encode,
            lambda texts: Tokenizer(self.directory, self.manifest, "tokenizers")._encode(texts),
            sample_texts,
            self.eod_token,
        )
        if self._fast is None:
            return self._no_fast
        if difference is None:
            return None
        self.engine = "tokenizers"
        return f"{display(self.directory)}: {difference}: encoding with tokenizers, which is slower."

    @cached_property
    def _fast(self) -> Any:
        """fastokens' tokenizer; None, and the engine changed, where it cannot load this one."""
        import fastokens

        # One cache of words in place of one per thread: 100 MiB less, and on two cores no second more.
        os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")
        try:
            return fastokens.Tokenizer.from_file(str(self.directory / ONE_FILE))
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # a panic of Rust is no Exception
            self._no_fast = (
                f"{display(self.directory)}: fastokens cannot load it ({error}): encoding with tokenizers, which is "
                "slower."
            )
            logger.info(self._no_fast)
            self.engine = "tokenizers"
            return None

    @cached_property
    def _reference(self) -> Any:
        import tokenizers

        reference = tokenizers.Tokenizer.from_file(str(self.directory / ONE_FILE))
        reference.encode_special_tokens = True
        return reference


def pieces_of_long(text: str) -> Iterator[str]:
    """A long text in pieces of LONG_TEXT_CHARS and a word, cut where a word ends, or inside one of LONG_WORD_CHARS."""
    start = 0
    while len(text) - start > LONG_TEXT_CHARS:
        least = start + LONG_TEXT_CHARS
        found = SAFE_CUT.search(text, least, least + LONG_WORD_CHARS)
        if found is None and len(text) <= least + LONG_WORD_CHARS:
            break
        stop = least if found is None else found.end()
        yield text[start:stop]
        start = stop
    yield text[start:] if start else text


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


def adopt(path: str | Path, eod_token: str, directory: str | Path) -> dict[str, Any]:
    """Take over a tokenizer into `directory`, the manifest written last, and return it.

    `path` is a tokenizer.json, a folder that holds one, or a folder of GPT-2's vocab.json and merges.txt; it may
    be `directory` itself. tokenizer.json wins where a folder has both, for it alone says how words are cut,
    unless nbtrain made the folder. Raises DataError where there is none, where it cannot be read, and where it
    lacks `eod_token`.
    """
    path, directory = Path(path), Path(directory)
    one_file = path if path.is_file() else path / ONE_FILE
    vocab, merges = path / "vocab.json", path / "merges.txt"
    has_both_files = vocab.is_file() and merges.is_file()
    if one_file.is_file() and not (has_both_files and _is_own(path)):
        return _adopt_one_file(one_file, eod_token, directory)
    if not has_both_files:
        raise DataError(
            f"{display(path)}: no tokenizer there. Name a tokenizer.json, a folder that holds one, or a folder with "
            "vocab.json and merges.txt."
        )
    built = from_vocabulary(vocab, merges, eod_token)
    directory.mkdir(parents=True, exist_ok=True)
    for source in (vocab, merges):
        if not (directory / source.name).exists() or not source.samefile(directory / source.name):
            files.write_bytes(directory / source.name, source.read_bytes())
    return save(built, directory, {"eod_token": eod_token, "trained": None, "source": display(path)})


def _spelled(document: dict[str, Any]) -> str:
    """tokenizer.json with merges as "a b" in place of ["a", "b"]: both engines load it in two thirds of the time."""
    model = document["model"]
    # A blank inside a piece would cut it elsewhere; a byte-level BPE has another letter for it.
    if model["type"] == "BPE" and not any(" " in piece for merge in model["merges"] for piece in merge):
        model["merges"] = [" ".join(merge) for merge in model["merges"]]
    return json.dumps(document, ensure_ascii=False) + "\n"


def _is_own(folder: Path) -> bool:
    manifest = read_manifest(folder)
    return manifest is not None and set(CONTENT_FILES) <= set(manifest.get("files", ()))


def _adopt_one_file(path: Path, eod_token: str, directory: Path) -> dict[str, Any]:
    import tokenizers

    content = path.read_bytes()
    try:
        document = json.loads(content)
        # Raises bare Exceptions from Rust.
        built = tokenizers.Tokenizer.from_str(content.decode())
    except Exception as error:
        raise DataError(f"{display(path)}: not a tokenizer.json of HF tokenizers: {error}.") from error
    entries = built.get_vocab(with_added_tokens=True)
    _require_eod(entries, eod_token, path)
    eod_id = entries[eod_token]
    if _mend(document, eod_token, eod_id):
        content = (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()
    directory.mkdir(parents=True, exist_ok=True)
    files.write_bytes(directory / ONE_FILE, content)
    sha256 = hashlib.sha256(content).hexdigest()
    manifest = {
        "schema_version": SCHEMA_VERSION,
        # Ids may have gaps: the model needs a row up to the largest.
        "vocab_size": max(entries.values()) + 1,
        "eod_id": eod_id,
        "eod_token": eod_token,
        "eod_from_text": _text_may_become_eod(document["model"], eod_token),
        "sha256": sha256,
        "files": {ONE_FILE: {"bytes": len(content), "sha256": sha256}},
        "trained": None,
        "source": display(path),
    }
    files.write_json(directory / "manifest.json", manifest)
    return manifest


def _mend(document: dict[str, Any], eod_token: str, eod_id: int) -> bool:
    """Change what would lose text or make EOD of it; whether anything had to be changed.

    Truncation and padding belong to inference; dropout would give other ids at each run; an EOD that is not
    marked special is found in texts.
    """
    before = json.dumps(document)
    document["truncation"] = document["padding"] = None
    if document["model"].get("dropout") is not None:
        document["model"]["dropout"] = None
    entries = document.setdefault("added_tokens", [])
    entry = next((entry for entry in entries if entry["content"] == eod_token), None)
    if entry is None:
        entry = {"id": eod_id, "content": eod_token, "single_word": False}
        entry |= {"lstrip": False, "rstrip": False, "normalized": False}
        entries.append(entry)
        entries.sort(key=lambda entry: entry["id"])
    entry["special"] = True
    return json.dumps(document) != before


def _text_may_become_eod(model: dict[str, Any], eod_token: str) -> bool:
    """Whether the model itself, special tokens aside, could give the EOD's id for letters of a text."""
    if model.get("type") != "BPE" or model.get("ignore_merges"):
        return True
    merges = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
    return len(eod_token) == 1 or any("".join(merge) == eod_token for merge in merges)


def _require_eod(vocab: Iterable[str], eod_token: str, path: Path) -> None:
    vocab = set(vocab)
    if eod_token in vocab:
        return
    likely = [token for token in EOD_CANDIDATES if token in vocab]
    advice = (
        f"Set tokenizer.eod_token to one that it has: {', '.join(likely)}."
        if likely
        else "Set tokenizer.eod_token to an entry that it has."
    )
    raise DataError(f"{display(path)}: has no {eod_token}, which ends every document. {advice}")


def from_vocabulary(vocab: Path, merges: Path, eod_token: str = EOD_TOKEN) -> Any:
    """A tokenizers.Tokenizer from GPT-2's two files. Raises DataError where they are not such a pair."""
    import tokenizers
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    try:
        # Both raise bare Exceptions from Rust.
        built = byte_level(tokenizers.Tokenizer(BPE.from_file(str(vocab), str(merges))))
    except Exception as error:
        raise DataError(f"{display(vocab)}, {display(merges)}: not a byte-level BPE: {error}.") from error
    entries = built.get_vocab(with_added_tokens=True)
    _require_eod(entries, eod_token, vocab)
    if missing := [letter for letter in ByteLevel.alphabet() if letter not in entries]:
        raise DataError(
            f"{display(vocab)}: not a byte-level BPE: {len(missing)} of the 256 bytes have no entry, so text would be "
            "lost. Give its tokenizer.json instead."
        )
    built.add_special_tokens([eod_token])
    return built


def byte_level(tokenizer: Any) -> Any:
    """GPT-2's rule for words and its letters for bytes, put into a tokenizers.Tokenizer."""
    from tokenizers.decoders import ByteLevel as ByteLevelDecoder
    from tokenizers.pre_tokenizers import ByteLevel

    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    return tokenizer


def save(tokenizer: Any, directory: Path, made: dict[str, Any]) -> dict[str, Any]:
    """Write the four files into `directory`, the manifest last, and return it.

    `made` says how it was made and goes into the manifest; its eod_token is EOD_TOKEN where it names none. Files
    that are there already (a vocabulary that somebody brought) are left as they are.
    """
    eod_token = made.get("eod_token", EOD_TOKEN)
    directory.mkdir(parents=True, exist_ok=True)
    if not all((directory / name).is_file() for name in CONTENT_FILES):
        tokenizer.model.save(str(directory))
    document = json.loads(tokenizer.to_str())
    files.write_text(directory / "tokenizer.json", _spelled(document))
    entries = {
        name: {"bytes": (directory / name).stat().st_size, "sha256": files.sha256_of(directory / name)}
        for name in (*CONTENT_FILES, "tokenizer.json")
    }
    # Of the vocabulary alone: tokenizer.json may be spelled otherwise by the next version of tokenizers.
    identity = "".join(f"{name} {entries[name]['sha256']}\n" for name in CONTENT_FILES)
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "vocab_size": tokenizer.get_vocab_size(),
        "eod_id": tokenizer.token_to_id(eod_token),
        "eod_token": eod_token,
        "eod_from_text": _text_may_become_eod(document["model"], eod_token),
        "sha256": hashlib.sha256(identity.encode()).hexdigest(),
        "files": entries,
        **made,
    }
    files.write_json(directory / "manifest.json", manifest)
    return manifest
