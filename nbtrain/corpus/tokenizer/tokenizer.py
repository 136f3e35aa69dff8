"""Loads a tokenizer folder, encodes texts in batches, and decodes ids.

    data/tokenizer/<name>/
        vocab.json, merges.txt   GPT-2's two files: a byte-level BPE, trained here or imported from them
        tokenizer.json           the file that is loaded, in HF's format, which can describe any tokenizer
        manifest.json            vocab_size, eod_id, eod_token, before_text, sha256, ...; written last

Text is encoded with fastokens if it is installed and proven to give the same ids as HF tokenizers for every
text (proven.py), otherwise with HF tokenizers.

If a text contains the characters of a special token, they are encoded as text, never as that token; only the
writer appends EOD. Added tokens that are not special (runs of spaces in some vocabularies,
tokenizer.added_tokens) are part of the vocabulary and can result from encoding text.
"""

import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.text.terminal import shortened
from nbtrain.base.workspace import display
from nbtrain.corpus import heap
from nbtrain.corpus.tokenizer import exactness, proven
from nbtrain.corpus.tokenizer.beginning import bos_id
from nbtrain.corpus.tokenizer.folder import KEPT, ONE_FILE, manifest_of
from nbtrain.corpus.tokenizer.unfinished import bytes_of_token, decode_finished
from nbtrain.corpus.tokenizer.unknown import unwritable_piece

logger = logging.getLogger(__name__)

LONG_TEXT_CHARS = 2 << 20
# In a text of LONG_TEXT_CHARS or more, a longer word or run of spaces may be cut, because engines need 50
# bytes per character of a word.
LONG_WORD_CHARS = 1 << 18
# Matches before a safe cut: a letter or digit followed by a space; in scripts without spaces, a letter
# followed by a comma or full stop.
SAFE_CUT = re.compile(
    "[^\\W_](?=[ \n])"
    "|[\u3041-\u3096\u30a1-\u30fa\u4e00-\u9fff](?=[\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f])"
)

# Matches an added token that a cut could split: at a safe cut, or at a space within a long run of spaces.
CUT_INSIDE = re.compile(f"{SAFE_CUT.pattern}|\\s")
SHOWN_CHARS = 60  # characters of a text that a message shows


class Tokenizer:
    """A loaded tokenizer folder; picklable. Engines are loaded on first use.

    `engine` is "fastokens" or "tokenizers"; None selects fastokens if it is installed. The engine changes to
    "tokenizers" if proven.py rules out fastokens for this tokenizer, if fastokens cannot load the tokenizer
    or fails on a text, or if check_exact() finds a difference now or found one earlier.
    """

    def __init__(self, directory: Path, manifest: dict[str, Any], engine: str | None = None):
        self.directory = directory
        self.manifest = manifest
        self.vocab_size: int = manifest["vocab_size"]
        self.eod_id: int = manifest["eod_id"]
        self.eod_token: str = manifest["eod_token"]
        self.sha256: str = manifest["sha256"]
        self.engine = engine or _best_engine()
        self._difference: str | None = None
        """Sentence that says why fastokens is not used; None if there is no reason."""

    @property
    def added_tokens(self) -> list[str]:
        """Tokens that were added with tokenizer.added_tokens when the tokenizer was imported."""
        return self.manifest.get("added_tokens", [])

    @classmethod
    def load(
        cls, directory: str | Path, engine: str | None = None, manifest: dict[str, Any] | None = None
    ) -> "Tokenizer":
        """Load a tokenizer folder; pass `manifest` if it was read already.

        Raises DataError if the folder or a file is missing, or if a file has changed.
        """
        directory = Path(directory)
        manifest = manifest or manifest_of(directory)
        for name, entry in manifest["files"].items():
            path = directory / name
            if not path.is_file() or files.sha256_of(path) != entry["sha256"]:
                fix = f"Restore it, or remove {display(directory)} and run `nbtrain prepare RUN.yaml`."
                if not path.is_file():
                    raise DataError(f"{display(path)}: the file is missing. {fix}")
                raise DataError(
                    f"{display(path)}: the file has changed since the manifest was written, so token ids "
                    f"would mean different text. {fix}"
                )
        loaded = cls(directory, manifest, engine)
        if engine is None and loaded.engine == "fastokens":
            found = exactness.remembered(directory, loaded._exactness_key)
            loaded._take((found or {}).get("difference"))
        return loaded

    def check_trained_with(self, trained_with: str | None) -> None:
        """Raise DataError if a run was trained with another tokenizer, whose hash is `trained_with`.

        Nothing is compared if `trained_with` is None, as for a run on token ids without a tokenizer.
        """
        if trained_with not in (None, self.sha256):
            raise DataError(
                f"{display(self.directory)} has the hash {self.sha256[:12]}..., but this run was trained "
                f"with {trained_with[:12]}..., so ids would mean different text. Restore the tokenizer that "
                "the run was trained with."
            )

    def __reduce__(self) -> tuple:
        return type(self), (self.directory, self.manifest, self.engine)

    def __repr__(self) -> str:
        return f"Tokenizer({display(self.directory)!r}, vocab_size={self.vocab_size}, eod_id={self.eod_id})"

    def encode(self, text: str) -> np.ndarray:
        """Return the token ids of a text, uint32 [tokens], without EOD."""
        return self.encode_batch([text])[0]

    def encode_prompt(self, text: str) -> list[int]:
        """Return the token ids of a text that a model is to continue, after the ids in `before_text`.

        If the text already begins with these tokens, written as characters, they are not added again.
        """
        before = self.before_text
        if not before:
            return self.encode(text).tolist()
        text = text.removeprefix("".join(self._reference.id_to_token(token) for token in before))
        ids = self.encode(text).tolist()
        return ids if ids[: len(before)] == before else [*before, *ids]

    def encode_with_special(self, text: str) -> list[int]:
        """Return the token ids of a text in which the characters of a special token mean that token.

        The ids in `before_text` are not added.
        """
        return self._with_special.encode(text, add_special_tokens=False).ids

    def encode_after_token(self, text: str) -> list[int]:
        """Return the token ids of a text that follows a special token, as if both were encoded together.

        A tokenizer like SentencePiece's may put a space before the first word of a text, but not before a
        word that follows a token.
        """
        if not self._first_word_has_blank:
            return self.encode(text).tolist()
        return self._with_special.encode(self.eod_token + text, add_special_tokens=False).ids[1:]

    @cached_property
    def _first_word_has_blank(self) -> bool:
        words = orjson.loads((self.directory / ONE_FILE).read_bytes()).get("pre_tokenizer") or {}
        return any(kind.get("prepend_scheme") == "first" for kind in (words, *words.get("pretokenizers", ())))

    @cached_property
    def _with_special(self) -> Any:
        import tokenizers

        return tokenizers.Tokenizer.from_file(str(self.directory / ONE_FILE))

    @cached_property
    def before_text(self) -> list[int]:
        """Ids that transformers puts before a text by default; empty for tokenizers trained by nbtrain."""
        return self.manifest.get("before_text", [])

    @cached_property
    def bos_id(self) -> int | None:
        """Id of the bos_token in the settings of an imported tokenizer; None without such a token."""
        return bos_id(self.directory / KEPT, self._reference)

    def encode_batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode texts and return (ids uint32 [tokens], offsets int64 [texts + 1]), without EOD.

        The ids of text i are ids[offsets[i] : offsets[i + 1]].
        """
        ids, offsets = self._surely(self._encode, texts)
        if self.manifest["eod_from_text"] and (ids == self.eod_id).any():
            rows = [ids[start:stop] for start, stop in pairwise(offsets)]
            rows = [self._without_eod(text, row) for text, row in zip(texts, rows, strict=True)]
            offsets = np.cumsum([0, *map(len, rows)])
            ids = np.concatenate(rows)
        return ids, offsets

    def _surely(
        self, encode: Callable[[Sequence[str]], tuple[np.ndarray, np.ndarray]], texts: Sequence[str]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return encode(texts). If fastokens fails, encode with HF tokenizers from now on.

        Raises DataError if HF tokenizers fails too.
        """
        try:
            return encode(texts)
        except (KeyboardInterrupt, SystemExit, MemoryError, DataError):
            raise
        except BaseException as error:  # a Rust panic is not an Exception
            _refuse_surrogates(texts)
            if self.engine != "fastokens":
                raise self._unwritable(texts, error) from error
            logger.warning(
                "%s: fastokens failed (%s). Encoding with HF tokenizers, which is slower.",
                display(self.directory),
                error,
            )
            self.engine = "tokenizers"
            return self._surely(encode, texts)

    def _unwritable(self, texts: Sequence[str], error: BaseException) -> DataError:
        """Return the error for the first text that HF tokenizers cannot encode, with the part that fails."""
        name = display(self.directory)
        for text in texts:
            try:
                self._reference.encode(text, add_special_tokens=False)
            except Exception as failure:  # the Rust library raises plain Exception
                where = f"{name}: cannot encode the document {shortened(text, SHOWN_CHARS)!r}"
                piece = unwritable_piece(self._reference, text)
                if piece is None:
                    return DataError(f"{where}: {failure}.")
                shown = f"the character {piece!r} (U+{ord(piece):04X})" if len(piece) == 1 else repr(piece)
                return DataError(
                    f"{where}: the tokenizer has neither a token for {shown} nor an unknown token "
                    f"({failure}). Use a tokenizer that can encode this text, or remove the document."
                )
        return DataError(f"{name}: cannot encode a text: {error}.")

    def _encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        if texts and max(map(len, texts)) > LONG_TEXT_CHARS and self.cuts_safely:
            return self._encode_in_pieces(texts)
        return self._encode_whole(texts)

    def _encode_in_pieces(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode texts in chunks, because the engine's copies of the longest text would need much memory."""
        rows, offsets = [], np.zeros(len(texts) + 1, np.int64)
        for number, text in enumerate(texts):
            own = list(self.encode_long(text))
            offsets[number + 1] = offsets[number] + sum(map(len, own))
            rows += own
        return np.concatenate(rows), offsets

    def encode_long(self, text: str) -> Iterator[np.ndarray]:
        """Yield the ids of a text in chunks; joined, they equal encode(text). Requires cuts_safely."""
        for piece in pieces_of_long(text):
            yield self._surely(self._encode_whole, [piece])[0]

    @cached_property
    def cuts_safely(self) -> bool:
        """Whether a text may be cut at SAFE_CUT, because only GPT-2's rule splits words.

        With that rule, no token crosses such a cut. A word or run of spaces of LONG_WORD_CHARS or more may be
        cut as well; the two halves are then encoded separately.
        """
        document = orjson.loads((self.directory / ONE_FILE).read_bytes())
        words = document.get("pre_tokenizer") or {}
        return (
            words.get("type") == "ByteLevel"
            and words.get("use_regex", True)
            and not words.get("add_prefix_space", True)
            and not document.get("normalizer")
            and all(
                # An added token in which no cut is possible is always within one chunk.
                token["special"] or not (CUT_INSIDE.search(token["content"]) or token["normalized"])
                for token in document.get("added_tokens", [])
            )
        )

    @property
    def unknown_id(self) -> int | None:
        """Id of the token for text that has no other token; None without such a token (unknown.py)."""
        return self.manifest["unknown_id"]

    def _encode_whole(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        if self.engine != "fastokens" or (fast := self._fast) is None:
            return self._encode_by_reference(texts)
        disputed = self._agreement.disputed
        if disputed and any(piece in text for text in texts for piece in disputed):
            return self._encode_apart(texts)
        ids, offsets = fast.encode_batch_flat(list(texts), split_special_tokens=True)
        return np.frombuffer(ids, "<u4"), np.frombuffer(offsets, "<u8").astype(np.int64)

    def _encode_apart(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode texts, using HF tokenizers for those with characters on which the engines differ."""
        rows = []
        for text in texts:
            is_disputed = any(piece in text for piece in self._agreement.disputed)
            encode = self._encode_by_reference if is_disputed else self._encode_whole
            rows.append(encode([text])[0])
        return np.concatenate(rows), np.cumsum([0, *map(len, rows)])

    def _encode_by_reference(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        encodings = self._reference.encode_batch_fast(list(texts), add_special_tokens=False)
        offsets = np.zeros(len(encodings) + 1, np.int64)
        np.cumsum([len(encoding) for encoding in encodings], out=offsets[1:])
        ids = np.empty(offsets[-1], np.uint32)
        for encoding, start, stop in zip(encodings, offsets[:-1], offsets[1:]):
            ids[start:stop] = encoding.ids
        return ids, offsets

    def _without_eod(self, text: str, ids: np.ndarray) -> np.ndarray:
        """Encode a text without producing EOD, by splitting it where its characters would become EOD.

        This happens in Unigram and WordPiece models, in which EOD is an ordinary entry.
        """
        if not (ids == self.eod_id).any():
            return ids
        half = len(self.eod_token) // 2
        first, *others = text.split(self.eod_token)
        pieces = [first, *(self.eod_token[half:] + other for other in others)]
        pieces[:-1] = [piece + self.eod_token[:half] for piece in pieces[:-1]]
        while True:
            ids, offsets = self._surely(self._encode, pieces)
            rows = enumerate(pairwise(offsets))
            bad = {number for number, (start, stop) in rows if (ids[start:stop] == self.eod_id).any()}
            if not bad:
                return ids
            halves = []
            for number, piece in enumerate(pieces):
                if number in bad and len(piece) == 1:
                    raise DataError(
                        f"{display(self.directory)}: the character {piece!r} is encoded as the "
                        f"end-of-document token {self.eod_token}, so a document that contains it would end "
                        f"there. Set tokenizer.eod_token to another token."
                    )
                middle = len(piece) // 2
                halves += [piece[:middle], piece[middle:]] if number in bad else [piece]
            pieces = halves

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of token ids. EOD appears as text, and bytes that are not UTF-8 become U+FFFD."""
        ids = [int(token) for token in ids]
        if self._misread and not self._misread.keys().isdisjoint(ids):
            groups = groupby(ids, key=lambda token: self._misread.get(token))
            return "".join(
                self._decode(list(group)) if text is None else text * len(list(group))
                for text, group in groups
            )
        return self._decode(ids)

    def _decode(self, ids: list[int]) -> str:
        if self._is_byte_level and self.engine == "fastokens" and (fast := self._fast) is not None:
            return fast.decode(ids)
        return self._reference.decode(ids, skip_special_tokens=False)

    def decode_finished(self, ids: Sequence[int]) -> tuple[str, bool]:
        """Return (the text of token ids, whether its last character is incomplete and therefore omitted)."""
        return decode_finished(self.decode, lambda token: self._reference.id_to_token(token), ids)

    def bytes_of(self, token: int) -> bytes:
        """Return the UTF-8 bytes of one token, which may be only a part of a character."""
        if token in self._misread:
            return self._misread[token].encode()
        return bytes_of_token(self._reference.id_to_token(token) or "", self._is_byte_level)

    @property
    def _is_byte_level(self) -> bool:
        return self._decoding[0]

    @property
    def _misread(self) -> dict[int, str]:
        """Added tokens whose characters a byte-level decoder would mistake for bytes, e.g. <|français|>."""
        return self._decoding[1]

    @cached_property
    def _decoding(self) -> tuple[bool, dict[int, str]]:
        document = orjson.loads((self.directory / ONE_FILE).read_bytes())
        decoder = document.get("decoder") or {}
        if all(kind.get("type") != "ByteLevel" for kind in (decoder, *decoder.get("decoders", ()))):
            return False, {}
        texts = {token["id"]: token["content"] for token in document.get("added_tokens") or ()}
        return True, {
            token: text for token, text in texts.items() if bytes_of_token(text, True) != text.encode()
        }

    def check_exact(self, sample_texts: Iterable[str] = ()) -> str | None:
        """Compare fastokens with HF tokenizers on the beginnings of sample texts and on difficult texts.

        proven.py judges the tokenizer; this comparison finds defects of the builds on this machine. Returns
        None if the two agree or if HF tokenizers was requested. Otherwise `engine` becomes "tokenizers", and
        the sentence that says why is returned. The result is stored in the folder, and `sample_texts` are
        read only the first time.
        """
        if self.engine != "fastokens" or self._has_objection():
            return self._difference
        key = self._exactness_key
        found = exactness.remembered(self.directory, key)
        if found is None:
            difference = exactness.first_difference(
                self._encode,
                lambda texts: Tokenizer(self.directory, self.manifest, "tokenizers")._encode(texts),
                [*(f"a{token}b {token}{token}\n" for token in self.added_tokens), *sample_texts],
                self.eod_token,
            )
            found = {"difference": difference}
            heap.give_back()  # the memory of the reference tokenizer
            if self._fast is None:
                return self._difference
            exactness.remember(self.directory, key, found["difference"])
        return self._take(found["difference"])

    @property
    def _exactness_key(self) -> dict[str, str]:
        return exactness.key_of(self.manifest["files"][ONE_FILE]["sha256"], self.eod_token)

    def _take(self, difference: str | None) -> str | None:
        """Switch to HF tokenizers if there is a difference. Return the sentence that reports it, or None."""
        if difference is not None:
            self._use_reference(difference)
        return self._difference

    def _has_objection(self) -> bool:
        """Return whether fastokens must not be used for this tokenizer. If so, switch to HF tokenizers."""
        if objection := self._agreement.objection:
            self._use_reference(f"fastokens may give other ids than HF tokenizers for {objection}")
        return objection is not None

    def _use_reference(self, reason: str) -> None:
        self.engine = "tokenizers"
        self._difference = (
            f"{display(self.directory)}: {reason}. Encoding with HF tokenizers, which is slower."
        )
        logger.info("%s", self._difference)

    @cached_property
    def _agreement(self) -> proven.Agreement:
        return proven.agreement(orjson.loads((self.directory / ONE_FILE).read_bytes()))

    @cached_property
    def _fast(self) -> Any:
        """Return fastokens' tokenizer; if it cannot be used, switch to HF tokenizers and return None."""
        if self._has_objection():
            return None
        import fastokens

        # Use one word cache instead of one per thread, which saves 100 MiB and costs under a second on two
        # cores.
        os.environ.setdefault("FASTOKENS_BPE_THREADS", "1")
        try:
            # from_file() would also read the added tokens of a tokenizer_config.json in the same folder.
            return fastokens.Tokenizer.from_json_str((self.directory / ONE_FILE).read_text(encoding="utf-8"))
        except (KeyboardInterrupt, SystemExit, MemoryError):
            raise
        except BaseException as error:  # a Rust panic is not an Exception
            self._use_reference(f"fastokens cannot load the tokenizer ({error})")
            return None

    @cached_property
    def _reference(self) -> Any:
        import tokenizers

        reference = tokenizers.Tokenizer.from_file(str(self.directory / ONE_FILE))
        reference.encode_special_tokens = True
        return reference


def _refuse_surrogates(texts: Sequence[str]) -> None:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(f"a text to encode is not valid Unicode: {error.reason}.") from error


def pieces_of_long(text: str) -> Iterator[str]:
    """Yield a long text in chunks of LONG_TEXT_CHARS or a little more, cut at SAFE_CUT.

    If there is no safe cut within LONG_WORD_CHARS, a chunk ends inside a word after LONG_TEXT_CHARS.
    """
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
        logger.info("fastokens is not installed. Encoding with HF tokenizers, which is slower.")
        return "tokenizers"
    return "fastokens"
