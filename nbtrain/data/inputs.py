"""What a dataset was made from, and whether a run still asks for the same.

Settings must be equal. Files must be the same text; that their times differ does not matter. Versions of
installed packages may differ: nobody asked for the data to change. Of sources that are not there any more the
settings alone are compared.
"""

import contextlib
import hashlib
import logging
import platform
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

import nbtrain
from nbtrain import amounts, files
from nbtrain.config.data_section import DataConfig
from nbtrain.config.schema import RunConfig
from nbtrain.config.sources import Source
from nbtrain.data.cleaning import Cleaner
from nbtrain.data.corpus import Corpus, cleaned, identities
from nbtrain.data.dataset_files import DatasetFiles, DatasetManifest
from nbtrain.data.records import Tally
from nbtrain.errors import DataError
from nbtrain.terminal import printable
from nbtrain.workspace import display, resolve

logger = logging.getLogger(__name__)

NAMED_CHANGES = 3
FORCE = "make it again with `nbtrain prepare RUN.yaml --force`"


# What a source is called, who may use it, how often it is gone through, from where the same bytes are fetched (an
# address may hold a password): none of it changes the text.
BESIDE_THE_TEXT = ("name", "licence", "attribution", "weight", "max_broken_fraction", "mirror")


def settings(config: RunConfig) -> dict[str, Any]:
    """What decides the content of a dataset, besides the tokenizer (compared by hash)."""
    data = config.data
    return {
        "sources": [source_settings(source) for source in data.sources],
        "cleaning": data.cleaning.model_dump(),
        "json_key": data.json_key,
        "extra_json_keys": data.extra_json_keys,
        "split_sentences": data.split_sentences,
    }


def source_settings(source: Any) -> dict[str, Any]:
    """What decides the text of one source."""
    return {key: value for key, value in source.model_dump().items() if key not in BESIDE_THE_TEXT}


def _with_defaults(there: dict[str, Any]) -> dict[str, Any]:
    """The settings of a manifest that was written before a key existed."""
    data = DataConfig(name="x")
    filled = {
        "cleaning": {},
        **{key: getattr(data, key) for key in ("extra_json_keys", "split_sentences")},
        **there,
    }
    filled["cleaning"] = {**data.cleaning.model_dump(), **filled["cleaning"]}
    # What a version wrote that knew other kinds stays as it is: the comparison will name it.
    with contextlib.suppress(KeyError, ValidationError):
        sources: TypeAdapter[list[Any]] = TypeAdapter(list[Source])
        filled["sources"] = [source_settings(source) for source in sources.validate_python(there["sources"])]
    return filled


def same_sources(there: list[dict[str, Any]], config: RunConfig) -> bool:
    """Whether sources that were written down are those of a run."""
    return _with_defaults({"sources": there})["sources"] == settings(config)["sources"]


def software(*distributions: str) -> dict[str, str]:
    """Versions of what makes data."""
    versions = {"nbtrain": nbtrain.__version__, "python": platform.python_version(), "numpy": np.__version__}
    return {**versions, **{name: metadata.version(name) for name in distributions}}


def origin(config: RunConfig, key: str) -> str:
    """Where a key was set: 'gpt.yaml:12', or 'this run' where no file set it."""
    where = config.where(key)
    return "this run" if where == "default" else where


def place(config: RunConfig, key: str) -> str:
    """'gpt.yaml:12: data.sources', or the key alone where no file set it."""
    where = config.where(key)
    return key if where == "default" else f"{where}: {key}"


def differences(there: Any, here: Any, key: str = "") -> list[tuple[str, str, str]]:
    """(dotted key, value there, value here) of each that differs."""
    if there == here:
        return []
    # Only the list of sources is gone into; an inner list ([bytes, time] of a file) is one value.
    if isinstance(there, list) and isinstance(here, list) and "[" not in key:
        if len(there) != len(here):
            return [(key, _entries(there), _entries(here))]
        pairs = [(f"{key}[{index}]", a, b) for index, (a, b) in enumerate(zip(there, here))]
    elif isinstance(there, dict) and isinstance(here, dict):
        names = sorted(there.keys() | here.keys())
        pairs = [(f"{key}.{name}" if key else name, there.get(name), here.get(name)) for name in names]
    else:
        return [(key, repr(there), repr(here))]
    return [found for name, a, b in pairs for found in differences(a, b, name)]


def _entries(values: list[Any]) -> str:
    """A list by its length where the entries are long, as sources are."""
    if not any(isinstance(value, dict) for value in values):
        return repr(values)
    return "1 entry" if len(values) == 1 else f"{len(values)} entries"


def _changed_settings(config: RunConfig, changed: list[tuple[str, str, str]]) -> str:
    """Each value that differs, with the place that sets it in this run: 'data.json_key = 'a' there, 'b' in x.yaml:7'."""
    told = []
    for key, there, here in changed:
        dotted = key.replace("[", ".").replace("]", "")
        told.append(f"{key} = {there} there, {here} in {origin(config, dotted)}")
    return "; ".join(told)


def _changed_sources(corpus: Corpus, then: list[dict[str, Any]], now: list[dict[str, Any]]) -> str:
    """What is new, gone or changed of the sources' files and versions, at most NAMED_CHANGES of it."""
    told, touched = [], []
    for reader, old, new in zip(corpus.readers, then, now, strict=True):
        before, after = old.get("files", {}), new.get("files", {})
        for name in sorted(before.keys() | after.keys()):
            size, found = _size(before.get(name)), _size(after.get(name))
            if before.get(name) == after.get(name):
                continue
            if name not in before:
                told.append(f"{reader.where}: {name} is new")
            elif name not in after:
                told.append(f"{reader.where}: {name} is gone")
            elif size != found:
                told.append(f"{reader.where}: {name} has changed ({_shown(size)} then, {_number(found)} now)")
            else:
                touched.append(f"{reader.where}: {name} was written again ({_shown(size)} then and now)")
        others = differences({**old, "files": None}, {**new, "files": None})
        told += [f"{reader.where}: {key} = {a} then, {b} now" for key, a, b in others]
    told += touched
    more = [f"and {len(told) - NAMED_CHANGES:,} more"] if len(told) > NAMED_CHANGES else []
    return "; ".join(told[:NAMED_CHANGES] + more)


def gone_sources(config: RunConfig) -> list[int]:
    """The numbers of the sources whose file or folder is not on the disk any more."""
    paths = [getattr(source, "path", None) for source in config.data.sources]
    return [number for number, path in enumerate(paths) if path is not None and _is_gone(resolve(path))]


def _is_gone(path: Path) -> bool:
    try:
        return not path.exists()
    except OSError:  # whatever keeps it from being looked at, its reader will say
        return False


def check_same_inputs(
    config: RunConfig, dataset: DatasetFiles, manifest: DatasetManifest, corpus: Corpus
) -> str:
    """Why the dataset stays as it is. Raises DataError where it was made for other settings or other files."""
    wanted = settings(config)
    changed = differences(_with_defaults(manifest.settings), wanted, "data")
    if changed:
        raise DataError(
            f"{display(dataset.directory)}: made with other settings: {_changed_settings(config, changed)}. Runs may "
            f"refer to it: give data.name another value, or {FORCE}."
        )
    then = [source["fingerprint"] for source in manifest.sources]
    now = [old if new is None else new for old, new in zip(then, corpus.fingerprint(), strict=True)]
    if corpus.gone:
        gone = ", ".join(corpus.readers[number].config.path for number in sorted(corpus.gone))
        logger.warning(
            "%s: kept, though its sources are no longer there and could not be compared with it: %s.",
            display(dataset.directory),
            printable(gone),
        )
        if now == then:
            return f"same settings; not compared with sources that are no longer there: {gone}"
    if now == then:
        return "same settings, same sources"
    if all(reader.drift_is_accepted for reader, a, b in zip(corpus.readers, then, now) if a != b):
        changes = [f"{key} = {a} there, {b} here" for key, a, b in differences(then, now, "sources")]
        return f"same settings; kept though versions differ: {'; '.join(changes)}"
    sizes_only = [_sizes(entry) for entry in then] == [_sizes(entry) for entry in now]
    if sizes_only and _same_text(config, corpus, manifest):
        sources = [{**source, "fingerprint": entry} for source, entry in zip(manifest.sources, now)]
        renewed = replace(manifest, sources=sources)
        files.write_json(dataset.manifest_json, renewed.to_dict())
        return "same settings; file times differ, the text is the same"
    raise DataError(
        f"{display(dataset.directory)}: the sources have changed since it was made: "
        f"{_changed_sources(corpus, then, now)}. Runs may refer to it: give data.name another value, or {FORCE}."
    )


def _same_text(config: RunConfig, corpus: Corpus, manifest: DatasetManifest) -> bool:
    """Whether the sources still give the documents that the manifest has hashed; reads all of them."""
    cleaner = Cleaner(config.data.cleaning)
    for number, (reader, source) in enumerate(zip(corpus.readers, manifest.sources, strict=True)):
        if number in corpus.gone:
            continue
        content, tally = hashlib.sha256(), Tally()
        for record in cleaned(reader.documents(tally), cleaner, tally, reader.gives_unicode):
            content.update(identities([record])[1])
        if content.hexdigest() != source["sha256"]:
            return False
    return True


def _sizes(fingerprint: dict[str, Any]) -> Any:
    return {name: _size(entry) for name, entry in fingerprint.get("files", {}).items()}


def _size(entry: Any) -> Any:
    """The bytes of a file's [bytes, time]; the sha1 of one that was downloaded is all there is."""
    return entry[0] if isinstance(entry, list) else entry


def _shown(size: Any) -> str:
    return amounts.counted(size, "byte") if isinstance(size, int) else f"sha1 {size[:12]}"


def _number(size: Any) -> str:
    return f"{size:,}" if isinstance(size, int) else size[:12]
