"""Reads documents from a dataset's .bin and decodes them: by number, at equal distances, or by search."""

import html
import itertools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Union

import numpy as np

from nbtrain.base.errors import DataError
from nbtrain.base.printing.report import Block, TextForm, heading
from nbtrain.base.text.amounts import counted
from nbtrain.base.text.terminal import printable
from nbtrain.base.workspace import data_home, display, resolve, tokenizer_dir, typed_path, valid_name
from nbtrain.config.schema import RunConfig
from nbtrain.corpus.tokenizer.folder import CONTENT_FILES, ONE_FILE, byte_level, folder_of
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.corpus.tokenizer.unfinished import decode_finished
from nbtrain.dataset.files import DatasetFiles, in_loss
from nbtrain.dataset.indexed import IndexedDataset
from nbtrain.dataset.manifest import DatasetManifest
from nbtrain.dataset.of_run import find_dataset
from nbtrain.dataset.views import marked

SHOWN_TOKENS = 600
SEARCHED_TOKENS = 100_000
SEARCH_SECONDS = 3.0
Decoder = Union[Tokenizer, "_ForeignTokenizer"]


@dataclass(frozen=True)
class Document:
    """A decoded document for display."""

    number: int
    tokens: int
    """Number of tokens in the whole document, EOD included."""
    sequences: int
    pieces: list[tuple[str, bool]]
    """(text, whether it is in the loss) of each piece of the text; a single piece without a loss mask."""
    cut: bool
    """Whether the document continues after the pieces."""
    masked: bool
    source: str | None = None
    loss_tokens: int | None = None
    """Number of tokens in the loss in the whole document, EOD included; None without a loss mask."""
    end_in_loss: bool | None = None
    """Whether the EOD after the pieces is in the loss; None without a mask, or if no EOD follows."""

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.pieces) + (" ..." if self.cut else "")

    @property
    def title(self) -> str:
        sequences = f" in {self.sequences:,} sequences" if self.sequences != 1 else ""
        source = f" of {self.source}" if self.source else ""
        loss = "" if self.loss_tokens is None else f", {self.loss_tokens:,} in the loss"
        return f"document {self.number:,}{source} ({counted(self.tokens, 'token')}{sequences}{loss})"

    @property
    def marked(self) -> list[marked.Piece]:
        """The pieces with their roles in training, followed by the end of the document."""
        pieces: list[marked.Piece] = [(text, "loss" if in_loss else "read") for text, in_loss in self.pieces]
        if self.cut:
            pieces.append((" ...", "read"))
        elif self.end_in_loss is not None:
            pieces.append((marked.END_OF_DOCUMENT, "loss" if self.end_in_loss else "read"))
        return pieces

    def to_dict(self) -> dict[str, Any]:
        value: dict[str, Any] = {"document": self.number, "tokens": self.tokens, "text": self.text}
        if self.source:
            value["source"] = self.source
        if self.masked:
            value["pieces"] = [{"text": text, "learnt": learnt} for text, learnt in self.pieces]
            value |= {"loss_tokens": self.loss_tokens, "end_in_loss": self.end_in_loss}
        return value

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> "Document":
        """Rebuild a document from the result of to_dict()."""
        masked, text = "pieces" in value, value["text"]
        pieces = [(piece["text"], piece["learnt"]) for piece in value.get("pieces", [])] or [(text, True)]
        loss = [value.get(key) for key in ("loss_tokens", "end_in_loss")]
        cut = masked and text.endswith(" ...")
        return cls(value["document"], value["tokens"], 1, pieces, cut, masked, value.get("source"), *loss)

    def to_html(self) -> str:
        """Return the text as HTML with the tokens in the loss coloured."""
        body = marked.html_of(self.marked) if self.masked else html.escape(self.text)
        # JupyterLab breaks the lines of a <pre> within words unless told otherwise.
        look = "white-space:pre-wrap;overflow-wrap:anywhere;word-break:normal;margin:4px 0"
        return f'<pre style="{look}">{body}</pre>'

    def to_text(self, most_chars: int | None = None, colour: bool = False) -> str:
        """Return the title and at most `most_chars` characters of text, with tokens in the loss marked."""
        pieces: list[marked.Piece] = self.marked if self.masked else [(self.text, "read")]
        left = most_chars
        if left is not None and len("".join(text for text, _ in pieces)) > left:
            shown: list[marked.Piece] = []
            for text, kind in pieces:
                shown.append((text[:left], kind))
                left -= len(shown[-1][0])
            pieces = [*(piece for piece in shown if piece[0]), (" ...", "read")]
        whole = "".join(text for text, _ in pieces)
        body = marked.text_of(pieces, colour) if self.masked else marked.lines_of(whole)
        lines = "\n".join(f"  | {line}" for line in body.removesuffix("\n").split("\n"))
        return f"{printable(self.title)}\n{lines}"


@dataclass(frozen=True, slots=True)
class Documents(Block):
    """Documents as a block of a report. In HTML, each document can be expanded; the first one is open."""

    samples: Sequence[Mapping[str, Any]]
    """Results of Document.to_dict()."""
    most_chars: int | None = None
    """Maximum number of characters that text output shows of each document; None shows all."""
    title: str = "documents"

    def lines(self, form: TextForm) -> list[str]:
        texts = [Document.from_dict(sample).to_text(self.most_chars, form.colors) for sample in self.samples]
        if any("pieces" in sample for sample in self.samples):
            texts.insert(0, marked.LEGEND_COLOUR if form.colors else marked.LEGEND_PLAIN)
        return "\n\n".join(texts).split("\n") if texts else []

    def html(self) -> str:
        documents = [Document.from_dict(sample) for sample in self.samples]
        legend = f": {marked.LEGEND_HTML}" if any(document.masked for document in documents) else ""
        folds = (
            f"<details{'' if place else ' open'}><summary>{html.escape(document.title)}</summary>"
            f"{document.to_html()}</details>"
            for place, document in enumerate(documents)
        )
        return f"{heading(self.title + legend)}{''.join(folds)}" if documents else ""


class Browser:
    """The documents of one pair, decoded by the tokenizer `named`, or by the tokenizer in the manifest.

    Raises DataError if the pair is missing or damaged, or if a named tokenizer does not exist.
    """

    def __init__(
        self,
        target: str | os.PathLike | RunConfig | DatasetFiles,
        named: str | None = None,
        loaded: Tokenizer | None = None,
    ):
        """Open the dataset. Pass its tokenizer as `loaded` if it is already in memory."""
        self.dataset = target if isinstance(target, DatasetFiles) else find_dataset(target)
        self.indexed = IndexedDataset(self.dataset.prefix)
        self.num_documents = self.indexed.num_documents
        self.manifest = self.dataset.own_manifest()
        self.mask = self.dataset.open_loss_mask(self.indexed)
        self.eod_id = self.manifest.eod_id if self.manifest else None
        self._decoder: Decoder | None = loaded
        self.tokenizer = display(loaded.directory) if loaded is not None else None
        if loaded is None:
            self._decoder, self.tokenizer = _find_tokenizer(target, self.manifest, named)

    @cached_property
    def _bounds(self) -> np.ndarray:
        return self.indexed.document_bounds()

    def document(self, number: int, max_tokens: int = SHOWN_TOKENS) -> Document:
        """Return a document with the text of its first `max_tokens` tokens. Raises DataError."""
        if not 0 <= number < self.num_documents:
            raise DataError(
                f"{display(self.dataset.prefix)}: there is no document {number:,}. The dataset has "
                f"{self.num_documents:,} documents, numbered from 0."
            )
        first, last = self.indexed.document_indices[number : number + 2].tolist()
        length = int(self._bounds[number + 1] - self._bounds[number])
        ids = self._read(self.indexed, first, last, max_tokens)
        cut = length > len(ids)
        has_end = not cut and len(ids) > 0 and int(ids[-1]) == self.eod_id
        if has_end:
            ids = ids[:-1]
        source = self._source(first)
        if self.mask is None:
            return Document(number, length, last - first, [(self.decode(ids, cut), True)], cut, False, source)
        mask = in_loss(self._read(self.mask, first, last, length))
        pieces = self._pieces(ids, mask[: len(ids)], cut)
        end_in_loss = bool(mask[len(ids)]) if has_end else None
        loss_tokens = int(np.count_nonzero(mask))
        return Document(number, length, last - first, pieces, cut, True, source, loss_tokens, end_in_loss)

    def spread(self, count: int, max_tokens: int = SHOWN_TOKENS) -> list[Document]:
        """Return up to `count` documents at equal distances, the same number from each source."""
        # The manifest lists a source's sequences; its documents are those that begin within them.
        starts = np.asarray(self.indexed.document_indices)
        ranges = self._sources or [("", 0, len(self.indexed))]
        chosen: set[int] = set()
        for place, (_, first, last) in enumerate(ranges):
            begin, end = np.searchsorted(starts, [first, last]).tolist()
            own = count * (place + 1) // len(ranges) - count * place // len(ranges)
            if end > begin:
                own = max(1, own)
                chosen |= {begin + (2 * part + 1) * (end - begin) // (2 * own) for part in range(own)}
        return [self.document(number, max_tokens) for number in sorted(chosen)]

    @property
    def sources(self) -> list[dict[str, Any]]:
        """The manifest's sources; empty for any pair but the training pair, which the counts describe."""
        is_main = self.manifest is not None and self.manifest.stem == self.dataset.stem
        return self.manifest.sources if self.manifest is not None and is_main else []

    @cached_property
    def _sources(self) -> list[tuple[str, int, int]]:
        """(name, first sequence, last sequence + 1) of each source, if there are several."""
        named = [
            (source["name"], *source["sequences"])
            for source in (self.manifest.sources if self.manifest else [])
            if source.get("sequences")
        ]
        # The ranges describe the main pair. Another pair has the same number of sequences, unless the main
        # pair's sequences are sentences.
        if len(named) < 2 or not (self.sources or named[-1][2] == len(self.indexed)):
            return []
        return [entry for entry in named if entry[2] > entry[1]]

    def _source(self, sequence: int) -> str | None:
        return next((name for name, first, last in self._sources if first <= sequence < last), None)

    def find(self, text: str, start: int = 0, seconds: float = SEARCH_SECONDS) -> tuple[int | None, int]:
        """Return the number of the next document that contains `text`, and the number to continue from.

        The search starts at document `start`, ignores case, and covers the first SEARCHED_TOKENS tokens of
        each document. Without a match, the first value is None. The search stops after `seconds`; if it
        has not reached the last document by then, the second value is less than num_documents.
        """
        wanted = text.casefold()
        deadline = time.monotonic() + seconds
        for number in range(start, self.num_documents):
            if wanted in self.document(number, SEARCHED_TOKENS).text.casefold():
                return number, number + 1
            if time.monotonic() > deadline:
                return None, number + 1
        return None, self.num_documents

    def _read(self, indexed: IndexedDataset, first: int, last: int, max_tokens: int) -> np.ndarray:
        parts, found = [np.empty(0, indexed.dtype)], 0
        for sequence in range(first, last):
            parts.append(indexed[sequence][: max_tokens - found])
            found += len(parts[-1])
            if found == max_tokens:
                break
        return np.concatenate(parts)

    def _pieces(self, ids: np.ndarray, mask: np.ndarray, cut: bool) -> list[tuple[str, bool]]:
        edges = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(ids)]
        return [
            (self.decode(ids[start:stop], cut and stop == len(ids)), bool(mask[start]))
            for start, stop in itertools.pairwise(edges)
            if stop > start
        ]

    def decode(self, ids: np.ndarray, cut: bool) -> str:
        """Return the text of `ids`.

        `cut` says whether the document continues; if so, an incomplete last character is omitted.
        """
        if self._decoder is None:
            return " ".join(map(str, ids.tolist()))
        size = self._decoder.vocab_size
        if len(ids) and int(ids.max()) >= size:
            raise DataError(
                f"{display(self.dataset.bin)}: the file holds token id {int(ids.max()):,}, but "
                f"{self.tokenizer} has {size:,} entries. The dataset was encoded with another tokenizer: "
                "give the name of that tokenizer."
            )
        return self._decoder.decode_finished(ids.tolist())[0] if cut else self._decoder.decode(ids.tolist())


def _find_tokenizer(
    target: Any, manifest: DatasetManifest | None, named: str | None
) -> tuple[Decoder | None, str | None]:
    """Return a decoder and its folder or file: the named tokenizer, or the tokenizer in the manifest.

    The manifest names a tokenizer by its hash. The run's tokenizer is compared with this hash first, then the
    others in the data directory. Returns (None, None) if no tokenizer
    fits. Raises DataError.
    """
    if named is not None:
        return _named_tokenizer(named)
    if manifest is None or manifest.tokenizer_sha256 is None:
        return None, None
    own = [tokenizer_dir(target.tokenizer.name)] if isinstance(target, RunConfig) else []
    folder = folder_of(manifest.tokenizer_sha256, own)
    return (Tokenizer.load(folder), display(folder)) if folder is not None else (None, None)


def _named_tokenizer(named: str) -> tuple[Decoder, str]:
    folders = [tokenizer_dir(named)] if valid_name(named) else []
    for folder in [*folders, typed_path(named).absolute(), resolve(named)]:
        if (folder / "manifest.json").is_file():
            return Tokenizer.load(folder), display(folder)
        file = folder / ONE_FILE if folder.is_dir() else folder
        if file.is_file():
            return _ForeignTokenizer(file), display(file)
        if all((folder / name).is_file() for name in CONTENT_FILES):
            return _ForeignTokenizer(folder), display(folder)
    raise DataError(
        f"{named}: there is no tokenizer with this name in {display(data_home() / 'tokenizer')}, and none at "
        "this path. Give the path of a tokenizer.json, of a folder that holds one, or of a folder with "
        "vocab.json and merges.txt."
    )


class _ForeignTokenizer:
    """Decoder for any tokenizer.json, or for a folder with GPT-2's vocab.json and merges.txt."""

    def __init__(self, path: Path):
        import tokenizers
        from tokenizers.models import BPE

        what = "a byte-level BPE" if path.is_dir() else "a tokenizer.json"
        try:
            if path.is_dir():
                model = BPE.from_file(str(path / "vocab.json"), str(path / "merges.txt"))
                self._tokenizer = byte_level(tokenizers.Tokenizer(model))
            else:
                self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the Rust library raises plain Exception
            raise DataError(f"{display(path)}: not {what}: {error}.") from error
        self.vocab_size: int = self._tokenizer.get_vocab_size()

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def decode_finished(self, ids: Sequence[int]) -> tuple[str, bool]:
        return decode_finished(self.decode, self._tokenizer.id_to_token, ids)
