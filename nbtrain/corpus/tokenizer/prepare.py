"""The tokenizer step of `prepare`: keep a tokenizer, import one, or train one on a sample of the corpus."""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.printing.progress import Progress, Say
from nbtrain.base.process.locks import locked_directory
from nbtrain.base.text import amounts
from nbtrain.base.workspace import data_home, display, resolve, tokenizer_dir
from nbtrain.config.load.shipped_names import refuse_name_of_shipped_tokenizer
from nbtrain.config.names.own_names import MAKES_TRAINED
from nbtrain.config.schema import RunConfig
from nbtrain.corpus.documents.cleaning import Cleaner
from nbtrain.corpus.documents.corpus import Corpus, empty_error
from nbtrain.corpus.documents.text_sample import sample_texts
from nbtrain.corpus.records import NAMED_PROBLEMS, Tally
from nbtrain.corpus.requested_settings import (
    FORCE,
    differences,
    origin,
    place_of_setting,
    same_text,
    settings,
    software,
    text_of_settings,
)
from nbtrain.corpus.tokenizer import training
from nbtrain.corpus.tokenizer.folder import (
    CONTENT_FILES,
    ONE_FILE,
    adopt,
    read_manifest,
    save,
)
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

NAMED_CHANGES = 3


def is_trained(config: RunConfig) -> bool:
    """Return whether the run's tokenizer is already trained, or is imported and needs no training."""
    directory = tokenizer_dir(config.tokenizer.name)
    return (
        config.tokenizer.path is not None
        or (directory / "manifest.json").is_file()
        or any((directory / name).is_file() for name in (ONE_FILE, *CONTENT_FILES))
    )


def prepare_tokenizer(config: RunConfig, corpus: Corpus, force: bool, say: Say) -> Tokenizer | None:
    """Return a run's tokenizer, imported or trained if necessary.

    Returns None if it does not exist and the sources contain no text to train it on. Raises
    DataError if the tokenizer does not fit the run or cannot be made.
    """
    directory = tokenizer_dir(config.tokenizer.name)
    with locked_directory(directory.parent):
        for leftover in directory.parent.glob(f".{directory.name}.*.tmp"):
            shutil.rmtree(leftover)
        loaded = _ready(config, directory, corpus, force, say)
    if loaded is not None:
        _check_size(config, loaded)
    return loaded


def take_over(config: RunConfig, path: Path, say: Say = lambda state, words: None) -> Tokenizer:
    """Import the tokenizer at `path` as data/tokenizer/<tokenizer.name>/.

    Raises DataError if the file cannot be read, or if the folder holds another tokenizer.
    """
    directory = tokenizer_dir(config.tokenizer.name)
    with locked_directory(directory.parent):
        loaded = _brought(config, path, directory, read_manifest(directory), False, say)
    _check_size(config, loaded)
    return loaded


def _check_size(config: RunConfig, loaded: Tokenizer) -> None:
    directory = loaded.directory
    if loaded.vocab_size > config.tokenizer.vocab_size:
        set_by = origin(config, "tokenizer.vocab_size")
        raise DataError(
            f"{display(directory)}: the tokenizer has {loaded.vocab_size:,} entries, but {set_by} sets "
            f"tokenizer.vocab_size = {config.tokenizer.vocab_size:,}, which is the size of the model's "
            f"embedding. Set tokenizer.vocab_size to {loaded.vocab_size}, or set tokenizer.name to another "
            "tokenizer."
        )


def _ready(config: RunConfig, directory: Path, corpus: Corpus, force: bool, say: Say) -> Tokenizer | None:
    manifest = read_manifest(directory)
    path = config.tokenizer.path
    if manifest is None and path is None and _holds_files(directory):
        _check_own(config, manifest, directory, [])
        path = str(directory)
    if path is not None:
        return _brought(config, resolve(path), directory, manifest, force, say)
    others = _encoded_with(manifest, config) if manifest and force else []
    if manifest is not None and (not (force and manifest["trained"] and config.data.sources) or others):
        _check_own(config, manifest, directory, others)
        loaded = Tokenizer.load(directory, manifest=manifest)
        _check_trained_for(config, manifest, directory)
        trained = manifest["trained"]
        how = "imported"
        if trained:
            how = "trained on these sources"
            if not same_text(trained, settings(config)):
                how = f"trained on other sources{_why_kept(config)}"
            if others:
                verb = "is" if len(others) == 1 else "are"
                how += f"; kept, because {', '.join(others)} {verb} encoded with it"
        say("kept" if trained else "used", f"{display(directory)}: {loaded.vocab_size:,} entries, {how}")
        return loaded
    if not _has_text(config):
        why = "all sources are token ids" if config.data.sources else "data.sources is empty"
        say(
            "used",
            f"none, because {why} and {display(directory)} does not exist; ids cannot be shown as text",
        )
        return None
    if config.init_from is not None:
        state = "would be trained again" if manifest else "does not exist"
        raise DataError(
            f"{place_of_setting(config, 'tokenizer.name')} = {config.tokenizer.name}: {display(directory)} "
            f"{state}, but the weights from init_from ({config.init_from}) are only valid for the ids of "
            "their own tokenizer. Prepare the data of the run that they come from first, or set "
            "tokenizer.path to their tokenizer."
        )
    why = "force" if manifest else f"{display(directory)} did not exist"
    manifest, note = _train(config, directory, corpus)
    loaded = Tokenizer.load(directory, manifest=manifest)
    say("made", f"{why}; trained {loaded.vocab_size:,} entries{note}")
    if loaded.vocab_size < config.tokenizer.vocab_size:
        logger.warning(
            "%s: the tokenizer has only %s entries, because the text is too small for more merges. The model "
            "is built for %s = %s, but the higher ids never occur. Use more text, or set "
            "tokenizer.vocab_size to %s and run prepare again with --force.",
            display(directory),
            f"{loaded.vocab_size:,}",
            place_of_setting(config, "tokenizer.vocab_size"),
            f"{config.tokenizer.vocab_size:,}",
            loaded.vocab_size,
        )
    return loaded


def _why_kept(config: RunConfig) -> str:
    """Return a clause on why a run uses a tokenizer trained on other text, beginning with a semicolon.

    The clause is "" if the run has neither init_from nor sources.
    """
    if config.init_from is not None:
        return f"; the weights from init_from ({config.init_from}) were trained with its ids"
    return f"; selected by {place_of_setting(config, 'tokenizer.name')}" if config.data.sources else ""


def _has_text(config: RunConfig) -> bool:
    """Return whether at least one of the run's sources is text, on which a tokenizer can be trained."""
    return any(source.kind != "tokens" for source in config.data.sources)


def _check_own(
    config: RunConfig, manifest: dict[str, Any] | None, directory: Path, others: list[str]
) -> None:
    """Raise DataError if a run without tokenizer.name would use a tokenizer not trained on the run's text.

    `others` names the other datasets that were encoded with the tokenizer.
    """
    if config.names_tokenizer or config.init_from is not None or not _has_text(config):
        return
    name, trained = config.tokenizer.name, manifest and manifest["trained"]
    if trained and same_text(trained, settings(config)):
        return
    found = "the folder holds an imported tokenizer"
    if trained:
        changed = differences(text_of_settings(trained), text_of_settings(settings(config)), "data")
        found = "the tokenizer was trained on other text: " + "; ".join(
            f"{key} = {before} for the tokenizer, {now} in this run"
            for key, before, now in changed[:NAMED_CHANGES]
        )
    again = f"; or {FORCE}" if trained and not others else ""
    used = f" (datasets encoded with it: {', '.join(others)})" if others else ""
    raise DataError(
        f"{display(directory)}: {found}{used}. This run does not set tokenizer.name, so it would train its "
        f"own tokenizer under the name of its dataset. Give data.name another value; to encode with the "
        f"existing tokenizer, set tokenizer.name: {name}{again}."
    )


def _brought(
    config: RunConfig, path: Path, directory: Path, manifest: dict[str, Any] | None, force: bool, say: Say
) -> Tokenizer:
    eod_token = config.tokenizer.eod_token
    folder = path.parent if path.name == ONE_FILE else path
    is_there = folder.exists() and directory.exists() and folder.samefile(directory)
    if config.tokenizer.added_tokens and is_there:
        raise DataError(
            f"{place_of_setting(config, 'tokenizer.added_tokens')}: the tokens would be added to the "
            f"tokenizer in {display(directory)} itself, but other runs may refer to it. Give tokenizer.name "
            "another value."
        )
    if is_there and manifest is not None:
        return _named_itself(config, directory, manifest, say)
    if is_there:
        found = adopt(directory, eod_token, directory)
        loaded = Tokenizer.load(directory, manifest=found)
        # From vocab.json and merges.txt, nbtrain also writes a tokenizer.json; then three files are listed.
        read = f"{ONE_FILE} was" if [*found["files"]] == [ONE_FILE] else "vocab.json and merges.txt were"
        say("used", f"{read} already in {display(directory)}: {loaded.vocab_size:,} entries")
        return loaded
    if (
        manifest is not None
        and manifest["eod_token"] == eod_token
        and not config.tokenizer.added_tokens
        and not manifest.get("added_tokens")
        and _same_files(path, manifest)
    ):
        loaded = Tokenizer.load(directory, manifest=manifest)
        say("kept", f"{display(directory)}: {loaded.vocab_size:,} entries, imported from {display(path)}")
        return loaded
    _refuse_strange(directory, manifest)
    made = directory.with_name(f".{directory.name}.new.tmp")
    try:
        found = adopt(path, eod_token, made, config.tokenizer.added_tokens)
        same = manifest is not None and all(manifest[key] == found[key] for key in ("sha256", "eod_id"))
        if manifest is not None and not same and not force:
            raise DataError(
                f"{display(directory)}: the folder holds another tokenizer ({_named(manifest)}) than "
                f"{display(path)} ({_named(found)}). Datasets and runs may refer to it: give tokenizer.name "
                f"another value, or {FORCE}."
            )
        if manifest is not None and not same and (others := _encoded_with(manifest, config)):
            raise DataError(
                f"{display(directory)}: the tokenizer ({_named(manifest)}) cannot be replaced, because "
                f"datasets encoded with it would become unreadable: {', '.join(others)}. Give tokenizer.name "
                "another value."
            )
        # Importing a single file stores nothing in as-given/; importing its folder adds the files next to it.
        renewed = not same or (found["kept"] and not (manifest or {}).get("kept"))
        if renewed:
            _put_in_place(made, directory)
    finally:
        if made.is_dir():
            shutil.rmtree(made)
    loaded = Tokenizer.load(directory, manifest=found if renewed else manifest)
    how = f"{loaded.vocab_size:,} entries, imported from {display(path)}"
    say("kept" if same else "used", f"{display(directory)}: {how}")
    return loaded


def _named_itself(config: RunConfig, directory: Path, manifest: dict[str, Any], say: Say) -> Tokenizer:
    """Return the run's tokenizer unchanged, because tokenizer.path is the folder that already stores it."""
    loaded = Tokenizer.load(directory, manifest=manifest)
    if loaded.eod_token != config.tokenizer.eod_token:
        raise DataError(
            f"{display(directory)}: the tokenizer ends documents with {loaded.eod_token}, but "
            f"{origin(config, 'tokenizer.eod_token')} sets tokenizer.eod_token = "
            f"{config.tokenizer.eod_token}. Datasets and runs may refer to the tokenizer: set "
            f"tokenizer.eod_token to {loaded.eod_token}, or give tokenizer.name another value."
        )
    say("kept", f"{display(directory)}: {loaded.vocab_size:,} entries; tokenizer.path is this same folder")
    return loaded


def _refuse_strange(directory: Path, manifest: dict[str, Any] | None) -> None:
    """Raise DataError if a tokenizer folder holds files that nbtrain did not write but would replace."""
    if manifest is not None or not directory.is_dir():
        return
    # Names that begin with a dot belong to a file manager or to Jupyter.
    if strange := sorted(path.name for path in directory.iterdir() if not path.name.startswith(".")):
        raise DataError(
            f"{display(directory)}: the folder contains {strange[0]} but no manifest, so nbtrain did not "
            f"make it. To use the tokenizer in this folder, put its {ONE_FILE} into the folder, set "
            "tokenizer.name and leave tokenizer.path empty; otherwise move the folder away, or give "
            "tokenizer.name another value."
        )


def _named(manifest: dict[str, Any]) -> str:
    """Return a clause that identifies a tokenizer: its hash and its end-of-document token."""
    return f"sha256 {manifest['sha256'][:12]}, ends documents with {manifest['eod_token']}"


def _encoded_with(manifest: dict[str, Any], config: RunConfig) -> list[str]:
    """Return the names of other datasets that were encoded with this tokenizer, including unfinished ones."""
    found: dict[str, str] = {}
    datasets = data_home() / "dataset"
    for record in ("manifest.json", ".encode/inputs.json"):
        for path in datasets.glob(f"[!.]*/{record}"):
            name, dataset = path.relative_to(datasets).parts[0], files.read_json(path)
            if name != config.data.name and dataset and dataset.get("tokenizer_sha256") == manifest["sha256"]:
                begun = f"{name} (unfinished; to discard it, remove {display(path.parent)})"
                found.setdefault(name, name if record == "manifest.json" else begun)
    return [found[name] for name in sorted(found)]


def _same_files(path: Path, manifest: dict[str, Any]) -> bool:
    """Return whether the files at `path` equal the imported ones byte for byte.

    False does not mean that the tokenizers differ: the caller compares them in more detail.
    """
    pairs = [(path if path.is_file() else path / name, entry) for name, entry in manifest["files"].items()]
    present = [(source, entry) for source, entry in pairs if source.is_file()]
    return bool(present) and all(files.sha256_of(source) == entry["sha256"] for source, entry in present)


def _put_in_place(made: Path, directory: Path) -> None:
    if directory.is_dir():
        # A folder cannot be renamed to the name of a folder that contains files.
        old = directory.with_name(f".{directory.name}.old.tmp")
        directory.rename(old)
        made.rename(directory)
        shutil.rmtree(old)
    else:
        made.rename(directory)
    files.fsync_directory(directory.parent)


def _holds_files(directory: Path) -> bool:
    """Return whether a folder holds a tokenizer.

    Raises DataError if only one of vocab.json and merges.txt is there.
    """
    if (directory / ONE_FILE).is_file():
        return True
    present = [name for name in CONTENT_FILES if (directory / name).is_file()]
    if present and len(present) < len(CONTENT_FILES):
        lacking = next(name for name in CONTENT_FILES if name not in present)
        raise DataError(
            f"{display(directory / lacking)}: no such file. An imported tokenizer consists of vocab.json and "
            f"merges.txt, or of a {ONE_FILE}. Add the missing file, or remove the folder to train a "
            "tokenizer."
        )
    return bool(present)


def _wanted(config: RunConfig) -> dict[str, Any]:
    return {key: getattr(config.tokenizer, key) for key in MAKES_TRAINED}


def _check_trained_for(config: RunConfig, manifest: dict[str, Any], directory: Path) -> None:
    trained = manifest["trained"]
    if not trained:
        return
    changed = [
        f"{key} = {_shown(found)} for the tokenizer, {_shown(value)} in {origin(config, f'tokenizer.{key}')}"
        for key, value in _wanted(config).items()
        if (found := trained[key]) != value
    ]
    if changed:
        raise DataError(
            f"{display(directory)}: the tokenizer was trained with other settings: {'; '.join(changed)}. "
            f"Datasets and runs may refer to it: give tokenizer.name another value, or {FORCE}."
        )


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _train(config: RunConfig, directory: Path, corpus: Corpus) -> tuple[dict[str, Any], str]:
    """Train a tokenizer, move it into place, and return (its manifest, a clause on the sample size)."""
    _refuse_strange(directory, read_manifest(directory))
    refuse_name_of_shipped_tokenizer(config)
    wanted, train_bytes = _wanted(config), config.tokenizer.train_bytes
    unpacked = corpus.unpacked_bytes(train_bytes)
    sample_bytes = unpacked or train_bytes
    tally = Tally()
    sample = sample_texts(
        corpus.readers, train_bytes, config.tokenizer.train_seed, Cleaner(config.data.cleaning), tally
    )
    first, sample = training.peek(sample)
    if not first:
        named = [problem.with_place() for problem in tally.problems[:NAMED_PROBLEMS]]
        raise empty_error(corpus.where, tally.dropped, "; ".join(named), corpus.readers)
    where = place_of_setting(config, "tokenizer.train_bytes")
    estimate = training.check_memory(sample_bytes, config.tokenizer.trainer, where, first)
    with Progress(f"tokenizer {config.tokenizer.name}", sample_bytes, "B") as progress:
        progress.say(f"training on {amounts.size(sample_bytes)} of text: {estimate}")

        def counted() -> Iterator[str]:
            for text in sample:
                progress.update(len(text.encode()))
                yield text

        trained = training.train(counted(), wanted["vocab_size"], wanted["trainer"], wanted["eod_token"])
    record = {
        **wanted,
        "sample_bytes": int(progress.done),
        **text_of_settings(settings(config)),
        "software": {**software(), **training.software(config.tokenizer.trainer)},
    }
    made = directory.with_name(f".{directory.name}.new.tmp")
    manifest = save(trained, made, record, wanted["eod_token"])
    _put_in_place(made, directory)
    is_sampled = unpacked is None or unpacked == train_bytes
    note = f" from {amounts.size(int(progress.done))} of text" if is_sampled else ""
    return manifest, note
