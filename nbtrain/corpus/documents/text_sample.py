"""Draws a seeded sample of a given size from the texts of all sources, streamed in constant memory.

Every source contributes in proportion to its bytes; if a source has too little text, the sources after it
contribute more. A source no larger than its share contributes all its texts in order. A larger source
contributes

    parts that can be read separately   the beginnings of up to 2,048 parts in a seeded order, in proportion
                                        to their size: cheap, but the ends of parts are underrepresented
    parts of compressed files           random documents from every part in proportion to its size: unbiased,
                                        but the file is decompressed, with the texts of a part in memory
    a source of unknown size            its beginning; its share is computed as if the source were as
                                        large as the sample

The last document from a part may be cut. Texts that encoding would drop (empty, not Unicode, repeated) are
skipped.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence

from nbtrain.corpus.documents import corpus, dedup
from nbtrain.corpus.records import Example, Preference, Record, SourcePart, Tally, Texts, TokenIds
from nbtrain.corpus.sources.base import SourceReader

MAX_PARTS = 2048
SMALLEST_PIECE_BYTES = 16 << 10

Clean = Callable[[str], tuple[str, str | None]]


def sample_texts(
    readers: Sequence[SourceReader],
    num_bytes: int,
    seed: int,
    clean: Clean | None = None,
    tally: Tally | None = None,
) -> Iterator[str]:
    """Yield about `num_bytes` of UTF-8 text, spread over all sources.

    The same sources, size and seed give the same text. `clean` fixes and drops texts, as cleaning.Cleaner
    does. An example yields its joined pieces, a record with several texts yields its main text, and token ids
    yield nothing. `tally` counts skipped records. Raises DataError if a source cannot be read.
    """
    sizes = [reader.total_bytes() for reader in readers]
    weights = [num_bytes if size is None else size for size in sizes]
    admit = _Admission(clean, Tally() if tally is None else tally)
    left, weight_left = num_bytes, sum(weights)
    for number, (reader, size, weight) in enumerate(zip(readers, sizes, weights, strict=True)):
        # If this source has too little text, the sources after it share the difference.
        share = left * weight // max(1, weight_left)
        weight_left -= weight
        for text in _sample_source(reader, size, share, f"{seed}:{number}", admit):
            yield text
            left -= _num_bytes(text)


class _Admission:
    """Selects the texts that may enter the sample, each only once."""

    def __init__(self, clean: Clean | None, tally: Tally):
        self._clean = clean
        self.tally = tally
        self._seen: set[bytes] = set()

    def texts(self, records: Iterable[Record]) -> Iterator[str]:
        """Yield the texts of records as they will be encoded, except those that encoding will drop."""
        for record in records:
            if (text := text_of(record)) is None:
                continue
            # Examples are not cleaned, because encoding does not clean them either (corpus.cleaned).
            clean = self._clean if isinstance(record, str | Texts) else None
            text, reason = (text, None) if clean is None else clean(text)
            if reason := reason or self._refused(text):
                self.tally.dropped[reason] += 1
            else:
                yield text

    def _refused(self, text: str) -> str | None:
        if not text or text.isspace():
            return "empty"
        try:
            identity = dedup.digest(text.encode())
        except UnicodeEncodeError:  # a lone surrogate
            return "not_unicode"
        if identity in self._seen:
            return "duplicate"
        self._seen.add(identity)
        return None


def text_of(record: Record) -> str | None:
    """Return the text that a record is trained on; None for token ids."""
    if isinstance(record, Example | Preference):
        return "".join(piece for piece, _ in record.pieces)
    return None if isinstance(record, TokenIds) else corpus.text_of(record)


def _sample_source(
    reader: SourceReader, size: int | None, share: int, seed: str, admit: _Admission
) -> Iterator[str]:
    left = share
    enterable: list[SourcePart] = []
    for number, part in enumerate(reader.parts()):
        if size is None:
            texts, wanted = admit.texts(reader.read(part, admit.tally)), left
        elif part.content is None:
            enterable.append(part)
            continue
        else:
            wanted = left * part.size_bytes // max(part.size_bytes, size, 1)
            size -= part.size_bytes
            records = list(reader.read(part, admit.tally))
            if sum(_num_bytes(text_of(record) or "") for record in records) > wanted:
                random.Random(f"{seed}:{number}").shuffle(records)
            texts = admit.texts(records)
        for piece in _up_to(wanted, texts):
            yield piece
            left -= _num_bytes(piece)
        if left <= 0:
            return
    if sum(part.size_bytes for part in enterable) > left:
        random.Random(seed).shuffle(enterable)
        enterable = enterable[: max(1, min(MAX_PARTS, left // SMALLEST_PIECE_BYTES))]
    size = sum(part.size_bytes for part in enterable)
    for part in enterable:
        wanted = left * part.size_bytes // max(part.size_bytes, size, 1)
        size -= part.size_bytes
        for piece in _up_to(wanted, admit.texts(reader.read(part, admit.tally))):
            yield piece
            left -= _num_bytes(piece)


def _up_to(num_bytes: int, texts: Iterator[str]) -> Iterator[str]:
    """Yield `num_bytes` of text in total, cutting the last text. If `num_bytes` is 0, no text is read."""
    while num_bytes > 0 and (text := next(texts, None)) is not None:
        yield (piece := cut(text, num_bytes))
        # After a cut, less than one character may be left to fill, so stop.
        num_bytes -= _num_bytes(piece) if piece == text else num_bytes


def cut(text: str, num_bytes: int) -> str:
    """Return the beginning of a text, at most `num_bytes` of UTF-8, without splitting a character."""
    content = text.encode()
    return text if len(content) <= num_bytes else content[:num_bytes].decode(errors="ignore")


def _num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
