"""What a dataset was made from, and whether a run still asks for the same.

Settings must be equal. Files must be the same text; that their times differ does not matter. Versions of
installed packages may differ: nobody asked for the data to change.
"""

from dataclasses import replace
from typing import Any

from nbtrain import files
from nbtrain.config.schema import RunConfig
from nbtrain.data.corpus import Corpus
from nbtrain.data.dataset_files import DatasetFiles, DatasetManifest
from nbtrain.errors import DataError
from nbtrain.workspace import display

FORCE = "make it again with `nbtrain prepare RUN.yaml --force`"


def settings(config: RunConfig) -> dict[str, Any]:
    """What decides the content of a dataset, besides the tokenizer (compared by hash)."""
    return {
        "sources": [source.model_dump() for source in config.data.sources],
        "json_key": config.data.json_key,
    }


def origin(config: RunConfig, key: str) -> str:
    """Where a key was set: 'gpt.yaml:12', or 'this run' where no file set it."""
    where = config.where(key)
    return "this run" if where == "default" else where


def place(config: RunConfig, key: str) -> str:
    """'gpt.yaml:12: data.sources', or the key alone where no file set it."""
    where = config.where(key)
    return key if where == "default" else f"{where}: {key}"


def differences(there: Any, here: Any, key: str = "") -> list[str]:
    """One line for each value that differs, by dotted key."""
    if there == here:
        return []
    # Only the list of sources is gone into; an inner list ([bytes, time] of a file) is one value.
    if isinstance(there, list) and isinstance(here, list) and "[" not in key:
        if len(there) != len(here):
            return [f"{key}: {len(there)} there, {len(here)} here"]
        pairs = [(f"{key}[{index}]", a, b) for index, (a, b) in enumerate(zip(there, here))]
    elif isinstance(there, dict) and isinstance(here, dict):
        names = sorted(there.keys() | here.keys())
        pairs = [(f"{key}.{name}" if key else name, there.get(name), here.get(name)) for name in names]
    else:
        return [f"{key} = {there!r} there, {here!r} here"]
    return [line for name, a, b in pairs for line in differences(a, b, name)]


def check_same_inputs(
    config: RunConfig, dataset: DatasetFiles, manifest: DatasetManifest, corpus: Corpus
) -> str:
    """Why the dataset stays as it is. Raises DataError where it was made for other settings or other files."""
    wanted = settings(config)
    changed = differences(manifest.settings, wanted)
    if changed:
        raise DataError(
            f"{display(dataset.directory)}: made with other settings than {place(config, 'data.sources')}: "
            f"{'; '.join(changed)}. Runs may refer to it: give data.name another value, or {FORCE}."
        )
    now = corpus.fingerprint()
    then = [source["fingerprint"] for source in manifest.sources]
    if now == then:
        return "same settings, same sources"
    if all(reader.drift_is_accepted for reader, a, b in zip(corpus.readers, then, now) if a != b):
        return f"same settings; kept though versions differ: {'; '.join(differences(then, now, 'sources'))}"
    sizes_only = [_sizes(entry) for entry in then] == [_sizes(entry) for entry in now]
    if sizes_only and _same_text(corpus, manifest):
        sources = [{**source, "fingerprint": entry} for source, entry in zip(manifest.sources, now)]
        renewed = replace(manifest, sources=sources)
        files.write_json(dataset.manifest_json, renewed.to_dict())
        return "same settings; file times differ, the text is the same"
    raise DataError(
        f"{display(dataset.directory)}: the sources have changed since it was made ([bytes, time]): "
        f"{'; '.join(differences(then, now, 'sources')[:3])}. Runs may refer to it: give data.name another value, or {FORCE}."
    )


def _same_text(corpus: Corpus, manifest: DatasetManifest) -> bool:
    for _ in corpus.documents():
        pass
    return [source["sha256"] for source in corpus.describe()] == [
        source["sha256"] for source in manifest.sources
    ]


def _sizes(fingerprint: dict[str, Any]) -> Any:
    return {name: size for name, (size, _) in fingerprint.get("files", {}).items()}
