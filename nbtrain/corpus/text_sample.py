"""A seeded sample of the texts of all sources, of a stated size, read as a stream at constant memory.

Every source gives its share, in proportion to its bytes, and what one lacks the next ones give. A source no
larger than its share, which is so for all when the corpus is no larger than the sample, gives all of its
texts in order; of a larger one are taken

    from parts that can be entered anywhere   up to 2,048 of them in a seeded order, a piece of each by its
                                              size: cheap, for a part is read no further; what ends a part is
                                              seen less
    from parts of compressed files            seeded documents of every part, by its size; no bias, but all of
                                              the file is decompressed and a part's texts are in memory
    from a source of unknown size             its beginning, up to the share of a source as large as the
                                              sample: its later texts are not seen

Where a byte of a source holds more than one of text (compressed columns), so do the pieces, and the share is
what ends them. A document that would pass the end of its piece is cut there. Empty texts, such as are no
Unicode and such as came before are left out, as when encoding.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence

from nbtrain.corpus import corpus, dedup
from nbtrain.corpus.records import Example, Record, SourcePart, Tally, TokenIds
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
    """About `num_bytes` of UTF-8 text spread over all sources; the same for the same sources, size and seed.

    `clean` fixes texts and drops some, as cleaning.Cleaner does. Examples are their pieces joined, records of
    several keys their main text; token ids are passed over. What was left out of what was read is counted in
    `tally`. Raises DataError if a source cannot be read.
    """
    sizes = [reader.total_bytes() for reader in readers]
    weights = [num_bytes if size is None else size for size in sizes]
    admit = _Admission(clean, Tally() if tally is None else tally)
    left, weight_left = num_bytes, sum(weights)
    for number, (reader, size, weight) in enumerate(zip(readers, sizes, weights, strict=True)):
        # What a source lacked is shared by the sources after it.
        share = left * weight // max(1, weight_left)
        weight_left -= weight
        for text in _sample_source(reader, size, share, f"{seed}:{number}", admit):
            yield text
            left -= _num_bytes(text)


class _Admission:
    """Which texts may be used, each once."""

    def __init__(self, clean: Clean | None, tally: Tally):
        self._clean = clean
        self.tally = tally
        self._seen: set[bytes] = set()

    def texts(self, records: Iterable[Record]) -> Iterator[str]:
        """The texts of records as they will be encoded, without those that will be dropped."""
        for record in records:
            if (text := text_of(record)) is None:
                continue
            text, reason = (text, None) if self._clean is None else self._clean(text)
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
    """The text a record is learnt from, None for one of token ids."""
    if isinstance(record, Example):
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
    """Texts of so many bytes, the last one cut; no text is read for none."""
    while num_bytes > 0 and (text := next(texts, None)) is not None:
        yield (piece := cut(text, num_bytes))
        # Where half a character would be left, nothing more fits.
        num_bytes -= _num_bytes(piece) if piece == text else num_bytes


def cut(text: str, num_bytes: int) -> str:
    """The beginning of a text: at most so many UTF-8 bytes, and no half character."""
    content = text.encode()
    return text if len(content) <= num_bytes else content[:num_bytes].decode(errors="ignore")


def _num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
