"""Compares the inputs of a dataset with the inputs of a run.

The settings must be equal. The files must contain the same text; their times may differ. The versions of
installed packages may differ, because the user did not request a change of the data. For sources that no
longer exist, only the settings are compared.
"""

import hashlib
import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.text import amounts
from nbtrain.base.text.terminal import printable
from nbtrain.base.workspace import display, resolve, tokenizer_dir
from nbtrain.config.schema import RunConfig
from nbtrain.corpus.documents.cleaning import Cleaner
from nbtrain.corpus.documents.corpus import Corpus, cleaned, identities, text_of
from nbtrain.corpus.records import Example, Preference, Record, Tally, TokenIds
from nbtrain.corpus.requested_settings import FORCE, differences, origin, settings
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.dataset.encode.encoder import can_be_kept
from nbtrain.dataset.files import DatasetFiles
from nbtrain.dataset.manifest import DatasetManifest

logger = logging.getLogger(__name__)

NAMED_CHANGES = 3


def _changed_settings(config: RunConfig, changed: list[tuple[str, str, str]]) -> str:
    """Describe each setting that differs: "data.json_key = 'a' in the dataset, 'b' in x.yaml:7"."""
    return "; ".join(
        f"{key} = {there} in the dataset, {here} in {origin(config, key.replace('[', '.').replace(']', ''))}"
        for key, there, here in changed
    )


def _changed_sources(corpus: Corpus, then: list[dict[str, Any]], now: list[dict[str, Any]]) -> str:
    """Describe the sources' new, removed and changed files and versions, at most NAMED_CHANGES of them."""
    changes, touched = [], []
    for reader, old, new in zip(corpus.readers, then, now, strict=True):
        before, after = old.get("files", {}), new.get("files", {})
        for name in sorted(before.keys() | after.keys()):
            size, found = _size(before.get(name)), _size(after.get(name))
            if before.get(name) == after.get(name):
                continue
            if name not in before:
                changes.append(f"{reader.where}: {name} is new")
            elif name not in after:
                changes.append(f"{reader.where}: {name} is gone")
            elif size != found:
                sizes = f"{_shown(size)} then, {_number(found)} now"
                changes.append(f"{reader.where}: {name} has changed ({sizes})")
            else:
                touched.append(f"{reader.where}: {name} was rewritten and still has {_shown(size)}")
        others = differences({**old, "files": None}, {**new, "files": None})
        changes += [f"{reader.where}: {key} = {a} then, {b} now" for key, a, b in others]
    changes += touched
    more = [f"and {len(changes) - NAMED_CHANGES:,} more"] if len(changes) > NAMED_CHANGES else []
    return "; ".join(changes[:NAMED_CHANGES] + more)


def gone_sources(config: RunConfig) -> list[int]:
    """Return the indices in data.sources of the sources whose file or folder no longer exists."""
    paths = [getattr(source, "path", None) for source in config.data.sources]
    return [number for number, path in enumerate(paths) if path is not None and _is_gone(resolve(path))]


def _is_gone(path: Path) -> bool:
    try:
        return not path.exists()
    except OSError:  # its reader will report why it cannot be read
        return False


def check_same_settings(config: RunConfig, dataset: DatasetFiles, manifest: DatasetManifest) -> None:
    """Raise DataError if a dataset was prepared with other settings than the run's. Reads no source."""
    changed = differences(manifest.settings, settings(config), "data")
    if changed:
        raise DataError(
            f"{display(dataset.directory)}: the dataset was made with other settings: "
            f"{_changed_settings(config, changed)}. Other runs may refer to it: change data.name, or {FORCE}."
        )


def check_same_inputs(
    config: RunConfig, dataset: DatasetFiles, manifest: DatasetManifest, corpus: Corpus
) -> tuple[DatasetManifest, str]:
    """Return the dataset's manifest, and the reason why the dataset fits the run.

    If only file times differ, the manifest is updated. Raises DataError if the dataset does not fit.
    """
    check_same_settings(config, dataset, manifest)
    then = [source["fingerprint"] for source in manifest.sources]
    now = [old if new is None else new for old, new in zip(then, corpus.fingerprint(), strict=True)]
    if corpus.gone:
        gone = ", ".join(corpus.readers[number].config.path for number in sorted(corpus.gone))
        logger.warning(
            "%s: the dataset was kept, although these sources no longer exist and could not be compared: %s.",
            display(dataset.directory),
            printable(gone),
        )
        if now == then:
            return manifest, f"same settings; these sources no longer exist and were not compared: {gone}"
    if now == then:
        return manifest, "same settings, same sources"
    if all(reader.accepts_drift(a, b) for reader, a, b in zip(corpus.readers, then, now) if a != b):
        changes = [f"{key} = {a} in the dataset, {b} now" for key, a, b in differences(then, now, "sources")]
        return manifest, f"same settings; kept although versions differ: {'; '.join(changes)}"
    same_sizes = list(map(_sizes, then)) == list(map(_sizes, now))
    if same_sizes and _same_text(config, corpus, manifest, dataset.has_loss_mask):
        sources = [{**source, "fingerprint": entry} for source, entry in zip(manifest.sources, now)]
        renewed = replace(manifest, sources=sources)
        files.write_json(dataset.manifest_json, renewed.to_dict())
        return renewed, "same settings; file times differ, the text is the same"
    found = _changed_sources(corpus, then, now)
    raise DataError(
        f"{display(dataset.directory)}: the sources have changed since the dataset was made: {found}. Other "
        f"runs may refer to it: change data.name, or {FORCE}."
    )


def _same_text(config: RunConfig, corpus: Corpus, manifest: DatasetManifest, with_mask: bool) -> bool:
    """Return whether the sources still hold the documents hashed in the manifest. Reads all sources."""
    cleaner = Cleaner(config.data.cleaning)
    for number, (reader, source) in enumerate(zip(corpus.readers, manifest.sources, strict=True)):
        if number in corpus.gone:
            continue
        content, tally = hashlib.sha256(), Tally()
        records = reader.documents(tally)
        if reader.kind == "tokens":
            records = filter(partial(can_be_kept, manifest.vocab_size, with_mask, tally), records)
        # Documents without tokens were not hashed. Text is encoded to find them only if there were any.
        without = source["dropped"].get("no_token", 0)
        tokenizer = Tokenizer.load(tokenizer_dir(config.tokenizer.name)) if without else None
        for record in cleaned(records, cleaner, tally, reader.gives_unicode):
            if without and tokenizer is not None and not _has_tokens(record, tokenizer):
                without -= 1
                continue
            content.update(identities([record])[1])
        if content.hexdigest() != source["sha256"]:
            return False
    return True


def _has_tokens(record: Record, tokenizer: Tokenizer) -> bool:
    """Return whether the encoder would store a document, that is, whether its text has tokens.

    Token ids and preference pairs are always stored.
    """
    if isinstance(record, TokenIds | Preference):
        return True
    texts = [text for text, _ in record.pieces] if isinstance(record, Example) else [text_of(record)]
    return any(len(tokenizer.encode(text)) for text in texts)


def _sizes(fingerprint: dict[str, Any]) -> Any:
    return {name: _size(entry) for name, entry in fingerprint.get("files", {}).items()}


def _size(entry: Any) -> Any:
    """Return the size from a file's recorded [bytes, time], or the sha1 recorded for a downloaded file."""
    return entry[0] if isinstance(entry, list) else entry


def _shown(size: Any) -> str:
    return amounts.counted(size, "byte") if isinstance(size, int) else f"sha1 {size[:12]}"


def _number(size: Any) -> str:
    return f"{size:,}" if isinstance(size, int) else size[:12]
