"""Encodes one part of a corpus into a shard of tokens, lengths and deduplication data in a work folder.

    <work>/000012.bin              tokens of data.json_key, EOD included
           000012-key-<key>.bin    tokens of each of data.extra_json_keys
           000012-mask.bin         uint8 per token: 1 if it is in the loss; only for datasets with a mask
           000012.npz              lengths, and per document: digest, text bytes, sequences, MinHash signature
           000012.json             ShardRecord; written last; a shard without it is ignored

If one process encodes all shards in order, it writes their tokens into in-order.bin, in-order-key-<key>.bin
and in-order-mask.bin, one shard after another. If no document is a duplicate, these files need no joining.

A shard depends only on its part and the settings. Any number of workers, in any order, therefore write the
same shards, and an interrupted run continues with the shards that are missing. join.py joins the shards.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cached_property, partial
from itertools import accumulate

import numpy as np

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.workspace import display
from nbtrain.corpus.documents.cleaning import Cleaner
from nbtrain.corpus.documents.corpus import Task, cleaned, compared_text_of, identities, length_of, text_of
from nbtrain.corpus.documents.dedup import NearIndex
from nbtrain.corpus.records import Example, Preference, Record, Tally, Texts, TokenIds
from nbtrain.corpus.sentences import sentences
from nbtrain.corpus.sources.base import SourceReader
from nbtrain.corpus.tokenizer.tokenizer import LONG_TEXT_CHARS, Tokenizer
from nbtrain.dataset.encode.shard import EncodeSettings, ShardRecord, _InOrder, _Shard, _Tokens, record_path

# Characters of text held in memory as tokens at one time.
BATCH_CHARS = 1 << 19


class Encoder:
    """Encoder of corpus parts: encoder(task) writes one shard. Each worker process has one Encoder.

    `on_batch` is called with the text bytes, documents and tokens of each batch. Pass the settings' tokenizer
    as `tokenizer` if it is already loaded, because loading it again takes 70 MiB. `in_order` writes the
    tokens of all shards into one file, which requires that a single process encodes all of them.
    """

    def __init__(
        self,
        settings: EncodeSettings,
        on_batch: Callable[[int, int, int], None] | None = None,
        tokenizer: Tokenizer | None = None,
        in_order: bool = False,
    ):
        self.settings = settings
        self._in_order = _InOrder(settings.work) if in_order else None
        self._place = ""
        """Source and part being encoded, for error messages."""
        if tokenizer is not None:
            self._tokenizer = tokenizer
        self._cleaner = Cleaner(settings.cleaning)
        self._on_batch = on_batch or (lambda num_bytes, documents, tokens: None)
        near = settings.cleaning.near_dedup
        self._near = NearIndex(near) if near.enabled else None

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        settings = self.settings
        assert settings.tokenizer_directory is not None
        loaded = Tokenizer.load(settings.tokenizer_directory, settings.engine)
        if (loaded.sha256, loaded.eod_id) != (settings.tokenizer_sha256, settings.eod_id):
            raise DataError(
                f"{display(loaded.directory)}: another tokenizer replaced this one after `nbtrain prepare` "
                f"began. Make sure that no other `nbtrain prepare` writes this folder, then run the command "
                f"again."
            )
        return loaded

    def __call__(self, task: Task) -> ShardRecord:
        """Encode one part and return its shard's record. Raises DataError if the part cannot be read.

        Records with token ids outside the vocabulary are counted as broken.
        """
        settings, tally = self.settings, Tally()
        reader = settings.readers[task.source]
        self._place = f"{reader.where}: {task.part.name}"
        with contextlib.ExitStack() as stack:
            shard = _Shard(settings, task.number, stack, self._in_order)
            batch: list[Record] = []
            chars = 0
            records: Iterator[Record] = reader.read(task.part, tally)
            if reader.kind == "tokens":
                records = filter(
                    partial(can_be_kept, settings.vocab_size, settings.with_mask, tally), records
                )
            for record in cleaned(records, self._cleaner, tally, reader.gives_unicode):
                length = len(record) if type(record) is str else length_of(record)
                if length > LONG_TEXT_CHARS and self._may_stream(record):
                    # Streamed from the tokenizer to the disk: the ids alone may be 4 times the text's size.
                    if batch:
                        self._add(shard, batch, reader)
                        batch, chars = [], 0
                    self._add_long(shard, record)
                    del record
                    continue
                batch.append(record)
                chars += length
                if chars >= BATCH_CHARS:
                    del record  # so that only the batch refers to the text, and _add() can free it
                    self._add(shard, batch, reader)
                    batch, chars = [], 0
            if batch:
                self._add(shard, batch, reader)
            shard.write_arrays()
        if shard.num_without_tokens:
            tally.dropped["no_token"] += shard.num_without_tokens
        made = ShardRecord(
            task.number,
            task.source,
            task.part.name,
            task.part.size_bytes,
            shard.num_documents,
            shard.num_tokens,
            shard.num_bytes,
            task.part.path,
            tally.to_dict(),
            shard.sizes(),
            shard.starts,
            self._in_order.sha256() if self._in_order else {},
            shard.num_unknown,
        )
        files.write_json(record_path(settings.work, task.number), asdict(made))
        return made

    def _add(self, shard: "_Shard", batch: list[Record], reader: SourceReader) -> None:
        tokens = self._tokens(batch, reader)
        present = tokens.lengths if tokens.document_ends is None else np.diff(tokens.document_ends, prepend=0)
        if not present.all() and not tokens.may_be_empty:
            # A normalizing tokenizer may reduce a text to no tokens.
            shard.num_without_tokens += int((present == 0).sum())
            batch = [batch[index] for index in np.flatnonzero(present).tolist()]
            if not batch:
                return
            tokens = self._tokens(batch, reader)
        signatures = None
        if self._near is not None:
            signatures = np.stack([self._near.signature(compared_text_of(record)) for record in batch])
        extras = [
            self._of_texts([record.extras[index] for record in batch])  # type: ignore[union-attr]
            for index in range(len(self.settings.extra_keys))
        ]
        sizes, digests = identities(batch)
        batch.clear()
        before = shard.num_tokens
        shard.add(tokens, extras, sizes, digests, signatures)
        self._on_batch(sum(sizes), len(sizes), shard.num_tokens - before)

    def _may_stream(self, record: Record) -> bool:
        if not isinstance(record, str | Texts) or self.settings.sentence_language:
            # Token ids need no tokenizer, and the run may not have one.
            return False
        # If text can encode to EOD, the text must be examined as a whole.
        is_looked_at = self._tokenizer.manifest["eod_from_text"]
        return self._tokenizer.cuts_safely and not is_looked_at

    def _add_long(self, shard: "_Shard", record: Record) -> None:
        signature = None if self._near is None else self._near.signature(compared_text_of(record))[None]
        extras = record.extras if isinstance(record, Texts) else ()
        (size,), digest = identities([record])
        before = shard.num_tokens
        shard.add_long(
            self._tokenizer.encode_long(text_of(record)),
            [self._of_texts([extra]) for extra in extras],
            size,
            digest,
            signature,
        )
        self._on_batch(size, 1, shard.num_tokens - before)

    def _tokens(self, batch: list[Record], reader: SourceReader) -> "_Tokens":
        first = batch[0]
        if isinstance(first, TokenIds):
            return self._of_ids(batch, reader)
        if isinstance(first, Example):
            return self._of_examples(batch)
        if isinstance(first, Preference):
            return self._of_preferences(batch)
        if self.settings.sentence_language:
            return self._of_sentences(batch)
        if type(first) is str:
            return self._of_texts(batch)  # type: ignore[arg-type]
        return self._of_texts([record.text if isinstance(record, Texts) else record for record in batch])  # type: ignore[misc]

    def _of_texts(self, texts: list[str]) -> "_Tokens":
        return _Tokens(*self._encode(texts))

    def _encode(self, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Call Tokenizer.encode_batch; a DataError names the source and part being encoded."""
        try:
            return self._tokenizer.encode_batch(texts)
        except DataError as error:
            raise DataError(f"{self._place}: {error}") from error

    def _of_sentences(self, batch: list[Record]) -> "_Tokens":
        language = self.settings.sentence_language
        assert language is not None
        cut = [sentences(text_of(record), language) for record in batch]
        ids, offsets = self._encode([sentence for document in cut for sentence in document])
        ends = np.fromiter(accumulate(map(len, cut)), np.int64, len(cut))
        return _Tokens(ids, offsets, ends)

    def _of_examples(self, batch: list[Record]) -> "_Tokens":
        pieces = [piece for record in batch for piece in record.pieces]  # type: ignore[union-attr]
        ids, piece_offsets = self._encode([text for text, _ in pieces])
        learnt = np.repeat(np.array([learn for _, learn in pieces], bool), np.diff(piece_offsets))
        counts = [len(record.pieces) for record in batch]  # type: ignore[union-attr]
        ends = np.fromiter(accumulate(counts), np.int64, len(counts))
        offsets = np.concatenate([[0], piece_offsets[ends]])
        end_learnt = np.array([pieces[end - 1][1] for end in ends.tolist()], bool)
        return _Tokens(ids, offsets, None, learnt, end_learnt)

    def _of_preferences(self, batch: list[Record]) -> "_Tokens":
        """Encode each preference pair as one sequence: chosen example, EOD, rejected example, EOD.

        No text contains EOD, so the first EOD in the sequence ends the chosen example.
        """
        pairs = [record for record in batch if isinstance(record, Preference)]
        examples: list[Record] = [example for pair in pairs for example in (pair.chosen, pair.rejected)]
        found = self._of_examples(examples)
        assert found.learnt is not None and self.settings.eod_id is not None
        ends = found.offsets[1::2]
        ids = np.insert(found.ids, ends, self.settings.eod_id)
        learnt = np.insert(found.learnt, ends, True)
        return _Tokens(ids, found.offsets[::2] + np.arange(len(batch) + 1), None, learnt)

    def _of_ids(self, batch: list[Record], reader: SourceReader) -> "_Tokens":
        eod_id = self.settings.eod_id
        arrays: list[np.ndarray] = []
        masks: list[np.ndarray] = []
        ends: list[bool] = []
        for record in batch:
            assert isinstance(record, TokenIds)
            ids = record.ids
            learnt = np.ones(len(ids), bool) if record.learnt is None else record.learnt
            ends.append(bool(learnt[-1]))
            if reader.config.append_eod and eod_id is not None and int(ids[-1]) == eod_id:
                # The record already ends in EOD. Drop it: the EOD appended later takes over its label.
                ids, learnt = ids[:-1], learnt[:-1]
            arrays.append(ids)
            masks.append(learnt)
        offsets = np.zeros(len(arrays) + 1, np.int64)
        np.cumsum([len(ids) for ids in arrays], out=offsets[1:])
        return _Tokens(
            np.concatenate(arrays),
            offsets,
            None,
            np.concatenate(masks),
            np.array(ends),
            put_eod=reader.config.append_eod,
            may_be_empty=True,
        )


def can_be_kept(vocab_size: int, with_mask: bool, tally: Tally, record: Record) -> bool:
    """Return whether a record of token ids can be stored; if it cannot, count it as broken.

    Its ids must be in the vocabulary. A record with a loss mask requires a dataset with a loss mask.
    """
    assert isinstance(record, TokenIds)
    largest = int(record.ids.max()) if len(record.ids) else 0
    if largest >= vocab_size:
        what = f"token id {largest:,} is outside the vocabulary of {vocab_size:,} entries"
    elif record.learnt is not None and not with_mask:
        what = (
            "the record has tokens outside the loss, but the source's first record has no mask; "
            "set labels_key"
        )
    else:
        return True
    tally.add_broken(record.path, record.line, what)
    return False
