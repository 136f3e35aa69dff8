"""The encode step of `prepare`: turns a corpus and a tokenizer into verified .bin/.idx files with a manifest.

    parts without a shard -> shards, by any number of processes -> joined without duplicates -> manifest

The new dataset is built in the dataset's work folder, so an existing dataset stays usable until the new one
is complete. An interrupted run continues with the shards in the work folder, if they were made from the same
inputs.
"""

import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.printing.progress import Progress, Say
from nbtrain.base.text.amounts import counted
from nbtrain.base.workspace import display
from nbtrain.config.load.shipped_names import refuse_name_of_shipped_dataset
from nbtrain.config.schema import RunConfig
from nbtrain.corpus.documents import broken_records
from nbtrain.corpus.documents.cleaning import Cleaner
from nbtrain.corpus.documents.corpus import (
    Corpus,
    SourceCounts,
    Task,
    changed_while_read,
    cleaned,
    empty_error,
    length_of,
    text_of,
)
from nbtrain.corpus.documents.extract import ExtractedReader
from nbtrain.corpus.records import BROKEN_RECORDS, MOST_TEMPLATES, Tally
from nbtrain.corpus.requested_settings import FORCE, origin, place_of_setting, settings, software
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.corpus.workers.ordered_map import ordered_map
from nbtrain.dataset.encode.encoder import Encoder
from nbtrain.dataset.encode.join import Joined, join
from nbtrain.dataset.encode.progress import PREFIX, EncodeProgress, WorkerCounters
from nbtrain.dataset.encode.shard import EncodeSettings, ShardRecord, tokens_path
from nbtrain.dataset.ends import doubtful_ends, last_tokens
from nbtrain.dataset.files import DatasetFiles, OpenDataset, manifest_of_files
from nbtrain.dataset.indexed import IndexedDataset, optimal_dtype
from nbtrain.dataset.manifest import UNKNOWN_WARNED_FRACTION, DatasetManifest, manifest_dtype
from nbtrain.dataset.pair_paths import bin_path, idx_path, missing
from nbtrain.dataset.prepare.inputs import check_same_inputs
from nbtrain.dataset.prepare.workers import ChosenWorkers
from nbtrain.dataset.tokenizer_problem import tokenizer_problem

logger = logging.getLogger(__name__)

CHECKED_BYTES = 1 << 20
CHECKED_DOCUMENTS = 100


def prepare_dataset(
    config: RunConfig,
    dataset: DatasetFiles,
    manifest: DatasetManifest | None,
    corpus: Corpus,
    loaded: Tokenizer | None,
    workers: ChosenWorkers,
    force: bool,
    say: Say,
) -> OpenDataset:
    """Build, keep or adopt a run's dataset, and open it. Raises DataError.

    `manifest` is the existing dataset's manifest, or None.
    """
    vocab_size = config.tokenizer.vocab_size
    if not config.data.sources:
        if manifest is None:
            manifest = _adopt(config, dataset, loaded)
            tokens = manifest.counts["tokens"]
            say("used", f"{display(dataset.bin)} exists, and data.sources is empty; {tokens:,} tokens")
        else:
            say("kept", "data.sources is empty: the dataset is used as it is")
        _check_tokenizer(manifest, loaded, dataset)
        return dataset.open(vocab_size, manifest)
    if manifest is not None and not force:
        manifest, note = check_same_inputs(config, dataset, manifest, corpus)
        _check_tokenizer(manifest, loaded, dataset)
        opened = dataset.open(vocab_size, manifest)
        if dataset.work.is_dir():
            shutil.rmtree(dataset.work)
        say("kept", note)
        return opened
    # If there is a work folder, an interrupted `nbtrain prepare` wrote the files without a manifest, not the
    # user.
    begun = dataset.work.is_dir()
    encoding = _Encoding(config, dataset, corpus, loaded)
    strange = [name for name in encoding.file_names() if (dataset.directory / name).is_file()]
    if manifest is None and not begun and not force and strange:
        raise DataError(
            f"{display(dataset.directory)}: the folder holds {strange[0]} without a manifest, so nbtrain did "
            f"not make that file. To use it, leave data.sources empty; to replace it, {FORCE}."
        )
    refuse_name_of_shipped_dataset(config)
    why = "an earlier `nbtrain prepare` did not finish" if begun else "the dataset did not exist"
    why = why if manifest is None else "force"
    manifest = encoding.run(manifest, workers)
    if encoding.num_kept:
        why += f" ({counted(encoding.num_kept, 'part')} already encoded)"
    say(
        "made",
        f"{why}; encoded {manifest.counts['documents']:,} documents, {manifest.counts['tokens']:,} tokens",
    )
    return dataset.open(vocab_size, manifest)


def _worker(settings: EncodeSettings) -> Callable[[Task], ShardRecord]:
    """Return the encoder of a worker process. It writes its progress to a file that the parent reads."""
    return partial(_kept_or_made, settings.work, Encoder(settings, WorkerCounters(settings.work)))


def _kept_or_made(work: Path, encoder: Encoder, task: Task) -> ShardRecord:
    """Return the shard's record, encoding the part if needed.

    The shard already exists if its worker died after writing it, before the parent received the record.
    """
    record = ShardRecord.read(work, task.number)
    return record if record is not None and record.part == task.part.name else encoder(task)


class _Encoding:
    """The encode step for one dataset: its settings, its work folder and its progress."""

    def __init__(self, config: RunConfig, dataset: DatasetFiles, corpus: Corpus, loaded: Tokenizer | None):
        self.config, self.dataset, self.corpus, self.loaded = config, dataset, corpus, loaded
        data = config.data
        vocab_size = loaded.vocab_size if loaded else config.tokenizer.vocab_size
        eod_id = loaded.eod_id if loaded else None
        if eod_id is None and any(getattr(source, "append_eod", False) for source in data.sources):
            raise DataError(
                f"{corpus.where}: append_eod is true, but the tokenizer {config.tokenizer.name}, which "
                "provides the end-of-document token, does not exist. Set tokenizer.path, or set append_eod: "
                "false."
            )
        self.settings = EncodeSettings(
            work=dataset.work,
            readers=tuple(corpus.readers),
            cleaning=data.cleaning,
            tokenizer_directory=loaded.directory if loaded else None,
            engine=loaded.engine if loaded else None,
            vocab_size=vocab_size,
            eod_id=eod_id,
            dtype=optimal_dtype(vocab_size).str,
            extra_keys=tuple(data.extra_json_keys),
            sentence_language=data.split_sentences,
            with_mask=any(reader.bears_mask() for reader in corpus.readers),
            unknown_id=loaded.unknown_id if loaded else None,
            tokenizer_sha256=loaded.sha256 if loaded else None,
        )
        self.counts = [
            SourceCounts(logged_before=isinstance(reader, ExtractedReader)) for reader in corpus.readers
        ]
        self.num_kept = 0
        """Number of shards that an earlier run completed."""

    @property
    def prefixes(self) -> list[Path]:
        """Prefixes of the pairs with token ids: the main key's first, then the extra keys'."""
        extras = [DatasetFiles(self.dataset.directory, json_key=key) for key in self.settings.extra_keys]
        return [pair.prefix for pair in (self.dataset, *extras)]

    @property
    def mask_prefix(self) -> Path | None:
        return self.dataset.loss_mask.prefix if self.settings.with_mask else None

    def file_names(self) -> list[str]:
        """Return the names of the files to be written, except the manifest."""
        prefixes = [*self.prefixes, self.mask_prefix]
        return [path(prefix).name for prefix in prefixes if prefix for path in (bin_path, idx_path)]

    def run(self, old: DatasetManifest | None, workers: ChosenWorkers) -> DatasetManifest:
        """Build the dataset and return its manifest.

        The existing dataset, with the manifest `old`, is removed once all shards are complete.
        """
        self._open_work()
        records = self._shards(workers)
        if not any(record.documents for record in records):
            dropped: Counter[str] = sum((count.dropped for count in self.counts), Counter())
            listed = display(self._listed) if self._listed.is_file() else ""
            first = "; ".join(count.first(listed) for count in self.counts if count.named)
            raise empty_error(self.corpus.where, dropped, first, self.corpus.readers)
        self._remove_old(old)
        manifest = self._manifest(self._join(records))
        self._keep_list()
        files.write_json(self.dataset.manifest_json, manifest.to_dict())
        shutil.rmtree(self.dataset.work)
        return manifest

    def _open_work(self) -> None:
        """Open the work folder, and empty it if it was started for other inputs."""
        work = self.dataset.work
        self._fingerprint = self.corpus.fingerprint()
        inputs = {
            "settings": settings(self.config),
            "fingerprint": self._fingerprint,
            "tokenizer_sha256": self.loaded.sha256 if self.loaded else None,
            # A tokenizer.json with two special tokens has the same hash whichever of them is EOD.
            "eod_id": self.settings.eod_id,
            "software": software(),
        }
        if files.read_json(work / "inputs.json") != inputs:
            if work.is_dir():
                shutil.rmtree(work)
            work.mkdir(parents=True)
            files.write_json(work / "inputs.json", inputs)
        elif not self.dataset.manifest_json.is_file():
            self._take_back()
        for leftover in (*work.glob(".*.tmp"), *work.glob(f"{PREFIX}*")):
            leftover.unlink()

    def _take_back(self) -> None:
        """Undo an unfinished join, so that after a full disk no tokens are lost or stored twice.

        Tokens that were written in order have been moved from the work folder to the dataset, and are moved
        back. Tokens that were copied to the dataset are removed.
        """
        names = ["", *(f"key-{key}" for key in self.settings.extra_keys), "mask"]
        for prefix, name in zip([*self.prefixes, self.mask_prefix], names, strict=True):
            if prefix is None:
                continue
            tokens, in_order = bin_path(prefix), tokens_path(self.dataset.work, None, name)
            idx_path(prefix).unlink(missing_ok=True)
            if not tokens.is_file():
                continue
            if not in_order.exists() and tokens.stat().st_size == self._in_order_bytes(in_order.name):
                tokens.replace(in_order)
            else:
                tokens.unlink()

    def _in_order_bytes(self, name: str) -> int | None:
        """Return the total size of all shards in a shared file, or None if no shard is in such a file."""
        records = [files.read_json(path) or {} for path in self.dataset.work.glob("[0-9]*.json")]
        ends = [
            record["starts"][name] + record["files"][name]
            for record in records
            if name in record.get("starts", {})
        ]
        return max(ends, default=None)

    def _check_unchanged(self) -> None:
        """Raise DataError if a source changed while it was read, because its text would mix two versions."""
        now = self.corpus.fingerprint()
        for reader, before, after in zip(self.corpus.readers, self._fingerprint, now, strict=True):
            if before != after:
                shutil.rmtree(self.dataset.work)
                raise changed_while_read(reader, before, after)

    def _shards(self, chosen: ChosenWorkers) -> list[ShardRecord]:
        """Encode every part and return the shards in order."""
        self._check_exact()
        config = self.config
        total = self.corpus.total_bytes()
        is_slow = self.settings.engine == "tokenizers" or not Cleaner(config.data.cleaning).is_trivial
        workers = chosen.choose(total, is_slow, self.dataset.work)
        with Progress(f"encode {config.data.name}", total, "B") as progress:
            account = EncodeProgress(self.dataset.work, self.counts, progress)
            make: Callable[[], Any] = partial(_worker, self.settings)
            if workers is None:
                make = partial(Encoder, self.settings, account.add_batch, self.loaded, in_order=True)
            for record in ordered_map(make, self._unfinished(account), workers, account.show):
                account.add(record)
        # Joining uses one process, so the cluster is released first.
        chosen.close()
        self._check_unchanged()
        listed = display(self._listed) if broken_records.write(self._listed, self.counts) else ""
        for source, reader in enumerate(self.corpus.readers):
            self.counts[source].check_broken(reader, listed)
            if doubt := reader.doubt(self.counts[source].separators):
                logger.warning("%s: %s", reader.where, doubt)
        self.num_kept = account.num_kept
        records = [account.records[number] for number in sorted(account.records)]
        self._check_unknown(records)
        return records

    def _check_unknown(self, records: list[ShardRecord]) -> None:
        """Warn about text that the tokenizer cannot encode.

        Raises DataError if the share of unknown tokens exceeds tokenizer.max_unknown_fraction.
        """
        limit = self.config.tokenizer.max_unknown_fraction
        for number, reader in enumerate(self.corpus.readers):
            own = [record for record in records if record.source == number]
            unknown = sum(record.unknown_tokens for record in own)
            tokens = sum(record.tokens for record in own)
            if unknown <= UNKNOWN_WARNED_FRACTION * tokens:
                continue
            found = (
                f"{reader.where}: {unknown:,} of {tokens:,} tokens ({unknown / tokens:.2%}) are the unknown "
                f"token {self.settings.unknown_id} of {display(self.settings.tokenizer_directory or '')}: "
                "the tokenizer has no token for this text, so the text is lost."
            )
            if limit is not None and unknown > limit * tokens:
                raise DataError(
                    f"{found} This is more than the limit of {limit:.2%} "
                    f"({place_of_setting(self.config, 'tokenizer.max_unknown_fraction')}). Use a tokenizer "
                    "made for this text, train one (tokenizer.path: null), or raise the limit; the parts "
                    "that were encoded are kept."
                )
            logger.warning(
                "%s Use a tokenizer made for this text, or train one (tokenizer.path: null).", found
            )

    @property
    def _listed(self) -> Path:
        return self.dataset.work / BROKEN_RECORDS

    def _keep_list(self) -> None:
        """Move the list of broken records into the dataset's folder."""
        if not self._listed.is_file():
            return
        self._listed.replace(self.dataset.broken_records)
        files.fsync_directory(self.dataset.directory)
        if more := sum(count.broken - len(count.named) for count in self.counts):
            listed = display(self.dataset.broken_records)
            verb = "was" if more == 1 else "were"
            logger.warning("%s %s skipped; see the list in %s.", counted(more, "more record"), verb, listed)

    def _unfinished(self, account: EncodeProgress) -> Iterator[Task]:
        for task in self.corpus.tasks():
            record = ShardRecord.read(self.dataset.work, task.number)
            if record is not None and record.part == task.part.name:
                account.keep(record)
            else:
                account.begin(task)
                yield task

    def _check_exact(self) -> None:
        """Compare fastokens with HF tokenizers on the first documents; if they differ, use HF tokenizers."""
        if self.loaded is None:
            return
        note = self.loaded.check_exact(self._first_texts())
        if note:
            logger.warning("%s", note)
            self.settings = EncodeSettings(**{**vars(self.settings), "engine": self.loaded.engine})

    def _first_texts(self) -> Iterator[str]:
        """Yield the beginnings of the first documents, at most CHECKED_BYTES in total."""
        size, tally, cleaner = 0, Tally(), Cleaner(self.config.data.cleaning)
        for task in islice(self.corpus.tasks(), 1):
            reader = self.corpus.readers[task.source]
            documents = cleaned(reader.read(task.part, tally), cleaner, tally, reader.gives_unicode)
            for record in islice(documents, CHECKED_DOCUMENTS):
                yield text_of(record)[:CHECKED_BYTES]
                size += length_of(record)
                if size >= CHECKED_BYTES:
                    break

    def _remove_old(self, old: DatasetManifest | None) -> None:
        dataset = self.dataset
        tokens = [dataset.directory / Path(name).name for name in (old.files if old else [])]
        for path in (dataset.manifest_json, *tokens, dataset.baselines_json, dataset.broken_records):
            path.unlink(missing_ok=True)
        if dataset.index_cache.is_dir():
            shutil.rmtree(dataset.index_cache)

    def _join(self, records: list[ShardRecord]) -> Joined:
        sizes = [size for record in records for name, size in record.files.items() if name.endswith(".bin")]
        with Progress(f"join {self.config.data.name}", sum(sizes), "B") as progress:
            return join(self.settings, records, self.prefixes, self.mask_prefix, progress.update)

    def _manifest(self, joined: Joined) -> DatasetManifest:
        dropped: Counter[str] = Counter()
        sources: list[dict[str, Any]] = []
        names = ["documents", "tokens", "bytes", "unknown_tokens"]
        if self.settings.with_mask:
            names.append("loss_tokens")
        parts = zip(self.corpus.readers, self._fingerprint, self.counts, joined.sources, strict=True)
        for reader, fingerprint, found, total in parts:
            of_source = found.dropped + total.dropped
            dropped.update(of_source)
            source = {**reader.describe(), "fingerprint": fingerprint, "name": reader.name}
            source |= {name: getattr(total, name) for name in names}
            source["sequences"] = [total.first_sequence, total.last_sequence]
            if found.sentences:
                source |= {"sentences": found.sentences, "dropped_sentences": found.dropped_sentences}
                source["unknown_templates"] = dict(found.unknown_templates.most_common(MOST_TEMPLATES))
            source |= {"dropped": dict(of_source), "unread_keys": dict(found.unread_keys)}
            sources.append({**source, "sha256": total.digest.hexdigest()})
        counts: dict[str, Any] = {name: sum(source[name] for source in sources) for name in names}
        engine = self.settings.engine
        return DatasetManifest(
            json_key=self.config.data.json_key,
            sources=sources,
            counts={**counts, "dropped": dict(dropped)},
            vocab_size=self.settings.vocab_size,
            dtype=manifest_dtype(np.dtype(self.settings.dtype)),
            eod_id=self.settings.eod_id,
            tokenizer_sha256=self.loaded.sha256 if self.loaded else None,
            files=joined.files,
            settings=settings(self.config),
            software=software(*([engine] if engine else [])),
        )


def _adopt(config: RunConfig, dataset: DatasetFiles, loaded: Tokenizer | None) -> DatasetManifest:
    """Write a manifest for files that another program wrote, after reading and checking all of the files."""
    for path in (dataset.bin, dataset.idx):
        if not path.is_file():
            raise DataError(
                f"{missing(path)} This command needs data.sources, which {origin(config, 'data.sources')} "
                "leaves empty."
            )
    indexed = IndexedDataset(dataset.prefix)
    vocab_size = config.tokenizer.vocab_size
    indexed.verify(vocab_size)
    if doubt := doubtful_ends(indexed, loaded.eod_id if loaded else None):
        logger.warning("%s", doubt)
    found = np.unique(last_tokens(indexed))
    eod_id = loaded.eod_id if loaded else int(found[0]) if len(found) == 1 else None
    manifest = manifest_of_files(
        dataset,
        indexed,
        files.sha256_of(dataset.bin),
        json_key=config.data.json_key,
        vocab_size=loaded.vocab_size if loaded else vocab_size,
        eod_id=eod_id,
        tokenizer_sha256=loaded.sha256 if loaded else None,
        software=software(),
    )
    files.write_json(dataset.manifest_json, manifest.to_dict())
    return manifest


def _check_tokenizer(manifest: DatasetManifest, loaded: Tokenizer | None, dataset: DatasetFiles) -> None:
    found = tokenizer_problem(manifest, loaded.directory, loaded.manifest) if loaded else None
    if found is None:
        return
    fix = (
        "Set tokenizer.name to the tokenizer that encoded the dataset"
        if found.of == "ids"
        else "Set tokenizer.eod_token to the dataset's token"
    )
    raise DataError(f"{display(dataset.directory)}: {found.what}. {fix}, change data.name, or {FORCE}.")
