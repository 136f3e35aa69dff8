"""A seeded sample of the texts of all sources, of a stated size, read as a stream at constant memory.

Every source gives its share, in proportion to its bytes. A source no larger than its share, which is so for all
when the corpus is no larger than the sample, gives all of its texts in order; of a larger one are taken

    from parts that can be entered anywhere   up to 2,048 of them in a seeded order, a piece of each by its size:
                                              cheap, for a part is read no further; what ends a part is seen less
    from parts of compressed files            documents by a seeded hash of their running number, at the rate that
                                              fills the share; no bias, but all of the file is decompressed
    from a source of unknown size             its beginning, up to the share of a source as large as the sample:
                                              what stands late in it is not seen

Where a byte of a source holds more than one of text (compressed columns), so do the pieces, and the share is what
ends them. A document that would pass the end of its piece is cut there. Empty texts, such as are no Unicode
and such as came before are left out, as when encoding.
"""

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence

from nbtrain.data import dedup
from nbtrain.data.records import Example, Part, Record, Tally, Texts, TokenIds
from nbtrain.data.sources.base import SourceReader

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

    `clean` mends texts and drops some, as cleaning.Cleaner does. Examples are their pieces joined, records of
    several keys their main text; token ids are passed over. What was left out of what was read is counted in
    `tally`. Raises DataError where a source cannot be read.
    """
    sizes = [reader.total_bytes() for reader in readers]
    weights = [num_bytes if size is None else size for size in sizes]
    admit = _Admission(clean, Tally() if tally is None else tally)
    for number, (reader, size, weight) in enumerate(zip(readers, sizes, weights, strict=True)):
        share = num_bytes * weight // sum(weights)
        yield from _sample_source(reader, size, share, f"{seed}:{number}", admit)


class _Admission:
    """Which texts may be used, each once."""

    def __init__(self, clean: Clean | None, tally: Tally):
        self._clean = clean
        self.tally = tally
        self._seen: set[bytes] = set()

    def texts(self, records: Iterable[Record]) -> Iterator[str]:
        """The texts of records as they will be encoded, without those that will be dropped."""
        for record in records:
            text = text_of(record)
            admitted = None if text is None else self._admitted(text)
            if admitted is not None:
                yield admitted

    def _admitted(self, text: str) -> str | None:
        if self._clean is not None:
            text, reason = self._clean(text)
            if reason is not None:
                return self._dropped(reason)
        if not text or text.isspace():
            return self._dropped("empty")
        try:
            identity = dedup.digest(text.encode())
        except UnicodeEncodeError:  # a lone surrogate
            return self._dropped("not_unicode")
        if identity in self._seen:
            return self._dropped("duplicate")
        self._seen.add(identity)
        return text

    def _dropped(self, reason: str) -> None:
        self.tally.dropped[reason] += 1


def text_of(record: Record) -> str | None:
    """The text a record is learnt from, None for one of token ids."""
    match record:
        case str():
            return record
        case Texts():
            return record.text
        case Example():
            return "".join(piece for piece, _ in record.pieces)
        case TokenIds():
            return None


def _from_beginning(reader: SourceReader, share: int, admit: _Admission) -> Iterator[str]:
    left = share
    for part in reader.parts():
        for text in admit.texts(reader.read(part, admit.tally)):
            yield (piece := cut(text, left))
            left -= len(piece.encode())
            if left <= 0:
                return


def _sample_source(
    reader: SourceReader, size: int | None, share: int, seed: str, admit: _Admission
) -> Iterator[str]:
    if size is None:
        yield from _from_beginning(reader, share, admit)
        return
    left = share
    enterable: list[Part] = []
    running = text_bytes = passed_bytes = 0
    for part in reader.parts():
        if part.content is None:
            enterable.append(part)
            continue
        texts = [text for record in reader.read(part, admit.tally) if (text := text_of(record)) is not None]
        text_bytes += sum(map(_num_bytes, texts))
        passed_bytes += part.size_bytes
        # The rate is set anew at each part, from what a byte of this source has held so far, so that the end
        # meets the share.
        ahead = max(0, size - passed_bytes) + part.size_bytes
        rate = left * passed_bytes / max(1, text_bytes * ahead)
        for document in texts:
            running += 1
            if left > 0 and _fraction(seed, running) < rate:
                for admitted in admit.texts([document]):
                    yield (piece := cut(admitted, left))
                    left -= len(piece.encode())
    yield from _sample_parts(reader, enterable, left, seed, admit)


def _sample_parts(
    reader: SourceReader, parts: list[Part], share: int, seed: str, admit: _Admission
) -> Iterator[str]:
    """A piece of each part from its beginning, by its size; what one lacks the next ones give."""
    if sum(part.size_bytes for part in parts) > share:
        random.Random(seed).shuffle(parts)
        parts = parts[: max(1, min(MAX_PARTS, share // SMALLEST_PIECE_BYTES))]
    left = share
    ahead = sum(part.size_bytes for part in parts)
    for part in parts:
        piece_left = left * part.size_bytes // max(1, ahead)
        ahead -= part.size_bytes
        if piece_left <= 0:
            continue
        for text in admit.texts(reader.read(part, admit.tally)):
            yield (piece := cut(text, piece_left))
            num_bytes = len(piece.encode())
            left, piece_left = left - num_bytes, piece_left - num_bytes
            if piece_left <= 0:
                break


def cut(text: str, num_bytes: int) -> str:
    """The beginning of a text: at most so many UTF-8 bytes, and no half character."""
    content = text.encode()
    return text if len(content) <= num_bytes else content[:num_bytes].decode(errors="ignore")


def _num_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _fraction(seed: str, number: int) -> float:
    """A number in [0, 1) that depends on nothing but the seed and the place of a document."""
    content = f"{seed}:{number}".encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest()) / 2**64
