"""`nbtrain import-model DIR NAME`: create a run that starts from a model folder.

The import checks config.json, the index and the file headers, reads every number once (NaN, tied output),
finds the tokenizer, and checks the new run. Only then does it write data/tokenizer/<NAME>/ and NAME.yaml. The
weights stay where they are: the run YAML refers to the folder (`init_from`), and the ranks read it at the
first start.
"""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError, ConfigError, DataError, refuse
from nbtrain.base.findings import FATAL, Finding
from nbtrain.base.printing.progress import Progress
from nbtrain.base.printing.report import Block, Items, Report, Result, Sentence
from nbtrain.base.text import amounts
from nbtrain.base.text.terminal import shortened
from nbtrain.base.workspace import (
    check_name,
    data_home,
    display,
    resolve,
    tokenizer_dir,
    typed_path,
    valid_name,
)
from nbtrain.config.findings import mistake
from nbtrain.config.load import Overrides, load, override_layer, validate, validate_section
from nbtrain.config.rules.check import check_config
from nbtrain.config.schema import ModelConfig, RunConfig
from nbtrain.config.sections.markers import OfRun, marked
from nbtrain.config.yaml_source import Located, to_text
from nbtrain.corpus.tokenizer.beginning import own_token
from nbtrain.corpus.tokenizer.exported import entries_of, holds_tokenizer
from nbtrain.corpus.tokenizer.folder import read_manifest
from nbtrain.corpus.tokenizer.origin import ids_in
from nbtrain.corpus.tokenizer.prepare import take_over
from nbtrain.exchange.from_megatron import converted
from nbtrain.jobs.request.initial_weights import other_ids
from nbtrain.planner.run_file import not_written, run_text, target_of
from nbtrain.pretrained.folder import SUFFIX
from nbtrain.pretrained.megatron import find_tree
from nbtrain.pretrained.model import PretrainedModel, model_section, open_model
from nbtrain.pretrained.start import fit
from nbtrain.pretrained.values import check_values

# Address of a model on the Hub: hf://ORGANISATION/MODEL[@REVISION], as in HfFileSystem.
HUB = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
ADDRESS = re.compile(r"hf:|[a-z][a-z0-9+.-]*://")
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
# Files that are downloaded from the Hub. Pickles are not downloaded, and neither is a second copy of the
# weights for another program, such as Mistral's consolidated.safetensors and Llama's original/.
FETCHED = ["*.json", "*.safetensors", "*.jinja", "*.txt", "tokenizer.model"]
NOT_FETCHED = ["*/*", "consolidated*"]
# Schedule of an imported run, small enough for one GPU or a laptop. With --onto, another run's schedule is
# used instead.
SCHEDULE: dict[str, Any] = {
    "batch": {"micro_batch_size": 1, "global_batch_size": 8, "train_tokens": 10_000_000},
    "lr_schedule": {"lr": 2.0e-5, "min_lr": 2.0e-6, "lr_warmup_fraction": 0.03},
}
SEQUENCE_TOKENS = 2048


@dataclass(frozen=True, repr=False)
class ImportedModel(Result):
    """A run that was created from a model, shown as a description of the model and of what the run needs."""

    config: RunConfig
    path: Path
    """Path of the run YAML."""
    text: str
    family: str
    parameters: int
    notes: tuple[str, ...] = ()

    def as_report(self) -> Report:
        """Return a report of what was imported, with the notes and what the run still needs."""
        kept = tokenizer_dir(self.config.tokenizer.name)
        tokenizer = f"; tokenizer {display(kept)}" if kept.is_dir() else ""
        imported = (
            f"{display(self.path)}: {self.family}, {amounts.count(self.parameters)} parameters, from "
            f"{self.config.init_from}{tokenizer}."
        )
        blocks: list[Block] = [Sentence(imported), Items(self.notes)]
        if not self.config.data.sources and not self.config.data.blend:
            words = f"Set data.sources in {display(self.path)}, then {{}}."
            prepare = (f"run `nbtrain prepare {self.path.stem}`", f'call `nb.prepare("{self.path.stem}")`')
            blocks.append(Sentence(*map(words.format, prepare)))
        return Report("", blocks)


def import_model(
    source: str | Path,
    name: str,
    overrides: Overrides = None,
    onto: str | None = None,
    path: str | Path | None = None,
    overwrite: bool = False,
    qkv_order: str | None = None,
    text: str | Path | None = None,
) -> ImportedModel:
    """Write a run YAML that starts from the model at `source`, and import the model's tokenizer.

    Args:
        source: A folder, a consolidated file, hf://ORGANISATION/MODEL, or a Megatron checkpoint, which is
            converted to data/model/NAME.safetensors.
        name: Name of the new run.
        overrides: Settings of the new run.
        onto: Run whose data, batch, schedule and layout the new run uses.
        path: YAML to write, by default NAME.yaml in the current folder.
        overwrite: Whether to replace an existing YAML.
        qkv_order: Order of the rows of query, key and value ("groups" or "thirds"), if the files of a
            Megatron checkpoint do not determine it.
        text: Text file by which the order is found instead: the order with the lower loss is used.

    Raises CheckpointError, DataError or ConfigError if something does not fit. Nothing is written in that
    case.
    """
    check_name(name, "name")
    target = target_of(f"{name}.yaml" if path is None else path, overwrite, "--overwrite")
    if not target.parent.is_dir():
        raise ConfigError(
            f"{target}: {target.parent} is not a folder. Choose a path in a folder that exists."
        )
    layer = override_layer(overrides)
    refuse(_overrides_of_arguments(layer), ConfigError)
    # The tokenizer's overrides are needed before the run's configuration is complete.
    validate_section(layer, "tokenizer")
    folder = _folder_of(source)
    section = layer.value.get("tokenizer") or {}
    tree = find_tree(folder)
    if tree is None:
        if qkv_order is not None or text is not None:
            raise ConfigError(
                f"--qkv-order and --text are only for Megatron checkpoints, and {display(folder)} is not a "
                "Megatron checkpoint. Remove these options."
            )
        return _import(folder, folder, name, layer, onto, target, section, [])
    with converted(tree, name, qkv_order, text, section) as (made, kept, notes):
        return _import(made, kept, name, layer, onto, target, section, notes)


def _import(
    place: Path,
    kept: Path,
    name: str,
    layer: Located,
    onto: str | None,
    target: Path,
    section: dict[str, Any],
    notes: list[str],
) -> ImportedModel:
    """Create a run that starts from the model at `place`.

    The model's files are at `place` now and will be moved to `kept`, to which the run refers. For a model
    that is not converted, both paths are the same.
    """
    model = open_model(place)
    tokenizer = find_tokenizer(model, section)
    # In init_from, a single word would mean the name of a run.
    init_from = f"./{display(kept)}" if valid_name(display(kept)) else display(kept)
    values = Located(_values(name, model, tokenizer, init_from), {})
    values = (Located(SCHEDULE, {}) if onto is None else _onto(onto, name)).merged_with(values)
    located = values.merged_with(layer)
    config = validate(located, display(kept))
    config._run = onto
    check_config(config)
    found = fit(model, config)
    refuse((mistake(config, key, f"{key} {words}.") for key, words in found.problems), ConfigError)
    if tokenizer.folder is None and (difference := other_ids(model, config)):
        key, chosen = "tokenizer.name", config.tokenizer.name
        raise ConfigError(
            f"{config.where(key)}: {key} = {chosen}: {difference}. The run's token ids would stand for other "
            f"text than when the weights were trained. Use a tokenizer with the same ids, or remove {key} to "
            "use the model folder's tokenizer."
        )
    _read_all(model)
    notes = [*notes, *model.described.notes, *found.notes]
    own = tokenizer_dir(config.tokenizer.name)
    is_new = not own.exists()
    if tokenizer.folder is not None:
        take_over(config, tokenizer.folder)
    elif not section:
        notes.append(
            f"{display(kept)} contains no tokenizer. Set tokenizer.name or tokenizer.path, or use data that "
            "consists of token ids."
        )
    note = f"Created by `nbtrain import-model` from {config.init_from} ({model.title})."
    text = run_text(config, target, note) if onto is not None else f"# {note}\n{to_text(located.value)}"
    try:
        files.write_output(target, text)
    except OSError as error:
        if is_new:
            shutil.rmtree(own, ignore_errors=True)
        raise not_written(target, error) from None
    return ImportedModel(config, target, text, model.title, model.count, tuple(notes))


def _overrides_of_arguments(layer: Located) -> Iterator[Finding]:
    """Yield an error-level finding for each override of a field that the command's own arguments set."""
    for key, given_by in (("name", "NAME"), ("init_from", "DIR")):
        if key in layer.value:
            words = f"{key} is set by the argument {given_by}, so it cannot be overridden."
            fix = f"Remove the override, or change {given_by}."
            yield Finding("error", "import", key, f"override {key}={layer.value[key]}", words, fix, FATAL)


def _values(name: str, model: PretrainedModel, tokenizer: "FoundTokenizer", init_from: str) -> dict[str, Any]:
    """Return the settings of the new run that its name, the model folder and the tokenizer determine."""
    described = model.described
    section = model_section(described, model.path).model_dump(exclude_unset=True)
    sequence = min(described.positions, SEQUENCE_TOKENS)
    found: dict[str, Any] = {
        "name": name,
        "init_from": init_from,
        "model": {**section, "seq_length": sequence},
        "tokenizer": {"name": name, "vocab_size": described.vocab_size},
        "data": {"name": name},
    }
    if tokenizer.eod_token is not None:
        found["tokenizer"]["eod_token"] = tokenizer.eod_token
    if model.dtypes == ["BF16"]:
        found["precision"] = {"dtype": "bf16"}
    return found


def _onto(onto: str, name: str) -> Located:
    """Return the settings of the run `onto` for the new run `name`: all except model and tokenizer."""
    base = load(onto, check=False)
    value = base.model_dump()
    value["model"] = {key: value["model"][key] for key in marked(ModelConfig, OfRun)}
    value["tokenizer"] = {}
    # The text is the same, but the new run needs its own dataset, encoded with another tokenizer.
    value["data"]["name"] = name
    others = ["model", "tokenizer"]
    if (lora := value["lora"]) is not None:
        # Initial adapters and ids of trained tokens belong to the other run's model, so they are removed.
        for key in ("init_from", "trainable_token_indices"):
            if lora[key]:
                lora[key] = None
                others.append(f"lora.{key}")
    kept = {key: place for key, place in base._origins.items() if not key.startswith(tuple(others))}
    return Located(value, kept)


def _folder_of(source: str | Path) -> Path:
    """Return the path of the model that `source` names: a local folder or file, or a Hub download."""
    if not isinstance(source, str | Path) or not str(source).strip():
        raise ConfigError(f"{source!r} must be the path of a model folder, or hf://ORGANISATION/MODEL.")
    if (found := HUB.fullmatch(str(source))) is not None:
        return _fetch(found[1], found[2])
    if ADDRESS.match(str(source)):
        raise ConfigError(
            f"{source} is not an address from which a model can be downloaded. For a model on the Hub, use "
            "hf://ORGANISATION/MODEL or hf://ORGANISATION/MODEL@REVISION. For any other model, pass its "
            "folder."
        )
    typed = typed_path(source)
    try:
        folder = typed.absolute() if typed.exists() else resolve(source)
        is_there = folder.exists()
    except OSError as error:
        raise CheckpointError(
            f"{shortened(str(source))}: cannot be read: {error.strerror}. Pass the path of a model folder."
        ) from None
    if not is_there and HUB_ID.fullmatch(str(source)):
        raise CheckpointError(
            f"{source}: no such folder. If this is a model on the Hub, pass hf://{source} to download it "
            "with huggingface_hub."
        )
    return folder


def _fetch(model: str, revision: str | None) -> Path:
    """Download a model from the Hub to the data directory with huggingface_hub, and return its folder."""
    try:
        import huggingface_hub
    except ImportError:
        raise CheckpointError(
            f"hf://{model}: huggingface_hub, which downloads models, is not installed. Run `pip install "
            "huggingface_hub`, or download the model yourself and pass its folder."
        ) from None
    # Each revision has a separate folder. Otherwise, shards of another revision would be mixed with this one.
    name = model if revision is None else f"{model}@{revision}"
    folder = data_home() / "model" / name.replace("/", "--")
    # If the Hub cannot be reached, huggingface_hub assumes that the folder is complete unless it is given the
    # commit. The marker file `unfinished` therefore records that a download was interrupted.
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    try:
        if unfinished.exists():
            revision = huggingface_hub.HfApi().model_info(model, revision=revision).sha
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        unfinished.touch()
        huggingface_hub.snapshot_download(
            model,
            revision=revision,
            allow_patterns=FETCHED,
            ignore_patterns=NOT_FETCHED,
            local_dir=folder,
        )
        unfinished.unlink()
    except Exception as error:
        if not folder.exists():
            unfinished.unlink(missing_ok=True)
        # The error may come from the library, its HTTP client or the system. Its first line says the cause.
        words = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise CheckpointError(
            f"hf://{model}: huggingface_hub could not download it: {words.rstrip('.')}. Check the name and "
            "the network, or download the model yourself and pass its folder."
        ) from error
    if not any(folder.glob(f"*{SUFFIX}")):
        raise CheckpointError(
            f"hf://{model}: the repository has no safetensors file in its top folder (consolidated* is not "
            "used). Pickles (.bin, .pt) are not downloaded, because they can run code when they are loaded. "
            "Choose a repository with safetensors files, or, if you trust this one, convert it with "
            "transformers: AutoModelForCausalLM.from_pretrained(...).save_pretrained(FOLDER), and import "
            "FOLDER."
        )
    return folder


@dataclass(frozen=True)
class FoundTokenizer:
    """The tokenizer that belongs to a model."""

    folder: Path | None
    """Folder of the tokenizer; None if the model has no tokenizer, or if the run uses another tokenizer."""
    eod_token: str | None = None
    """Token that ends a document; None if it is not known."""


def find_tokenizer(model: PretrainedModel, given: dict[str, Any]) -> FoundTokenizer:
    """Return the tokenizer in a model's folder, unless `given` specifies another tokenizer.

    `given` has the overrides of the section `tokenizer`. Raises DataError if the tokenizer has ids beyond the
    model's rows, and ConfigError if `given` has a vocab_size that is too small for its ids.
    """
    folder = model.path
    name = given.get("name")
    is_there = name is not None and read_manifest(tokenizer_dir(name)) is not None
    if given.get("path") or is_there or not folder.is_dir() or not holds_tokenizer(folder):
        return FoundTokenizer(None)
    entries = entries_of(folder)
    rows = given.get("vocab_size") or model.described.vocab_size
    highest = max(entries.values(), default=-1)
    if rows <= highest < model.described.vocab_size:
        raise ConfigError(
            f"tokenizer.vocab_size = {rows:,} is too small: the tokenizer in {display(folder)} has ids up to "
            f"{highest:,}, and each id needs its own embedding row. Set tokenizer.vocab_size to "
            f"{highest + 1} or more, or use another tokenizer (tokenizer.path=...)."
        )
    if highest >= rows:
        raise DataError(
            f"{display(folder)}: the tokenizer has ids up to {highest:,}, but the model has only {rows:,} "
            "embedding rows, so this is another model's tokenizer. Replace it with the model's own tokenizer "
            "(tokenizer.path=...)."
        )
    return FoundTokenizer(folder, given.get("eod_token") or _eod_token(model, entries))


def _eod_token(model: PretrainedModel, entries: dict[str, int]) -> str | None:
    """Return the token that ends a text, or None if it is not known.

    The token is read from tokenizer_config.json, generation_config.json or config.json, in this order.
    """
    named = own_token(model.path, "eos_token")
    if named in entries:
        return named
    texts = {number: text for text, number in entries.items()}
    for config in (model.folder.generation_config, model.folder.config):
        for number in ids_in(config.get("eos_token_id")):
            if number in texts:
                return texts[number]
    return None


def _read_all(model: PretrainedModel) -> None:
    with Progress("check weights", model.folder.bytes, "B") as bar:
        for count in check_values(model):
            bar.update(count)
