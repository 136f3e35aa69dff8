"""All sources of a dataset as one stream of documents, each text once.

    sources in order -> drop what is empty or not Unicode -> drop exact duplicates (blake2b, 16 bytes a document)

The corpus is gone through twice, by the tokenizer's training and by the encoding; a small one is kept in memory
after the first pass, so that its sources are read once.
"""

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import BaseModel

from nbtrain.data.sources.base import open_source
from nbtrain.errors import DataError

KEEP_BYTES = 32 << 20


class Corpus:
    """The documents of `sources`; the counts are those of the last whole pass.

    `where` names data.sources in messages.
    """

    def __init__(self, sources: Sequence[BaseModel], where: str = "data.sources"):
        self.where = where
        self.readers = [open_source(source, f"{where}[{index}]") for index, source in enumerate(sources)]
        self.dropped: Counter[str] = Counter()
        self.num_documents = 0
        self.num_bytes = 0
        self._kept: list[str] | None = None
        self._of_source: list[dict[str, Any]] = []

    def documents(self) -> Iterator[str]:
        """Every document once. Raises DataError where a source cannot be read, or nothing is left."""
        if self._kept is not None:
            yield from self._kept
            return
        dropped: Counter[str] = Counter()
        seen: set[bytes] = set()
        kept: list[str] | None = []
        of_source = []
        total_documents = total_bytes = 0
        for reader in self.readers:
            digest_of_source = hashlib.sha256()
            num_documents = num_bytes = 0
            for text in reader.documents():
                if not text or text.isspace():
                    dropped["empty"] += 1
                    continue
                try:
                    content = text.encode()
                except UnicodeEncodeError:  # a lone surrogate
                    dropped["not_unicode"] += 1
                    continue
                digest = hashlib.blake2b(content, digest_size=16).digest()
                if digest in seen:
                    dropped["duplicate"] += 1
                    continue
                seen.add(digest)
                digest_of_source.update(len(content).to_bytes(8, "little") + content)
                num_documents += 1
                num_bytes += len(content)
                if kept is not None:
                    if total_bytes + num_bytes <= KEEP_BYTES:
                        kept.append(text)
                    else:
                        kept = None
                yield text
            total_documents += num_documents
            total_bytes += num_bytes
            dropped.update(reader.dropped)
            of_source.append(
                {"documents": num_documents, "bytes": num_bytes, "sha256": digest_of_source.hexdigest()}
            )
        if not total_documents:
            reasons = (
                ", ".join(f"{reason} {count:,}" for reason, count in sorted(dropped.items()))
                or "nothing read"
            )
            raise DataError(
                f"{self.where}: the corpus is empty: no document is left ({reasons}). Name a source."
            )
        self.dropped, self._of_source, self._kept = dropped, of_source, kept
        self.num_documents, self.num_bytes = total_documents, total_bytes

    def fingerprint(self) -> list[dict[str, Any]]:
        """What would change the documents, source by source; reads no text."""
        return [reader.fingerprint() for reader in self.readers]

    def describe(self) -> list[dict[str, Any]]:
        """For the manifest: each source with settings, licence, versions, counts and sha256 of its documents."""
        return [
            {**reader.describe(), **counts}
            for reader, counts in zip(self.readers, self._of_source, strict=True)
        ]

    def total_bytes(self) -> int | None:
        """About how much text there is, for a progress bar; None where a source cannot say."""
        if self._kept is not None:
            return self.num_bytes
        sizes = [reader.total_bytes() for reader in self.readers]
        return None if None in sizes else sum(size for size in sizes if size is not None)
