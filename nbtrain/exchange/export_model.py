"""`nbtrain export RUN [DIR]`: write a checkpoint in a format that other programs can load.

    hf              a folder that transformers, vLLM, SGLang and other programs load
    consolidated    one safetensors file with nbtrain's own names, for any model
    gguf            one file for llama.cpp
    peft            a folder of adapters (lora) that peft loads

Steps of an export:

    1. reject models and options that the target does not support
    2. write config.json, the tokenizer and generation_config.json to a temporary folder
    3. the process with torch writes the weights, and compares them with the run's (checkpoint/pretrained/)
    4. write README.md from the run's own records, and rename the folder

A file or folder under its final name is therefore complete, and its weights have been compared.
"""

import contextlib
import itertools
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import ConfigError
from nbtrain.base.printing.progress import Progress
from nbtrain.base.printing.report import Record, Report, Result, Sentence
from nbtrain.base.run_directory.checkpoint_files import step_to_export
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text import amounts
from nbtrain.base.workspace import display, tokenizer_dir
from nbtrain.config.code_file import submitted_functions
from nbtrain.config.load import load_resolved
from nbtrain.config.schema import RunConfig
from nbtrain.corpus.sources.chat_jinja import chat_jinja, pieces_of, talks_of
from nbtrain.corpus.tokenizer.exported import CHAT_TEMPLATE, write_tokenizer
from nbtrain.corpus.tokenizer.folder import read_manifest
from nbtrain.corpus.tokenizer.markers import markers_as_letters
from nbtrain.corpus.tokenizer.origin import end_ids, ids_in, origin_of
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.exchange.atomic_output import new_place
from nbtrain.exchange.model_card import model_card
from nbtrain.jobs.gpu_side import stream
from nbtrain.pretrained.folder import CONFIG, GENERATION_CONFIG, SINGLE
from nbtrain.pretrained.peft import shapes_of
from nbtrain.pretrained.tensors import Sizes, parameter_shapes
from nbtrain.pretrained.written import DTYPES, GGUF_FILE, config_json, family_of

# Maximum file size, which the Hub and most programs handle well. transformers writes files of up to 50 GB.
MAX_SHARD_BYTES = 5_000_000_000
ITEM_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}
# {target: suffix of its single file, or "" if the target is a folder}
TARGETS = {"hf": "", "consolidated": ".safetensors", "gguf": ".gguf", "peft": ""}
FRAMES = ("bos_token_id", "eos_token_id", "pad_token_id")


@dataclass(frozen=True, repr=False)
class ExportedModel(Result, Record):
    """The result of an export, shown as a sentence about the written model, and the notes."""

    path: Path
    family: str
    step: int
    dtype: str
    parameters: int
    bytes: int
    difference: float
    """Largest difference between the logits of the written model and of the run.

    It is relative to the largest logit, and 0 if the weights were compared bit by bit instead.
    """
    seconds: float
    notes: tuple[str, ...] = ()

    def as_report(self) -> Report:
        """Return a report of what was written and how it was compared, with the notes."""
        compared = "the file was read again and compared bit by bit"
        if self.difference:
            part = f"{self.difference:.1g} of the largest logit"
            compared = f"the model's logits differ from the run's by at most {part}"
        said = (
            f"{display(self.path)}: {self.family}, step {self.step:,}, {amounts.count(self.parameters)} "
            f"parameters in {self.dtype}, {amounts.size(self.bytes)} in {amounts.elapsed(self.seconds)}; "
            f"{compared}."
        )
        return Report("", [Sentence(said), *map(Sentence, self.notes)])


def default_place(run: RunDir, target: str, step: int) -> Path:
    """Return the default path of an export: export/step<N>-<target> in the run's directory.

    If the target is a single file, the path is export/step<N> with the file's suffix.
    """
    return run.export / (f"step{step}{TARGETS[target]}" if TARGETS[target] else f"step{step}-{target}")


def export_model(
    run: RunDir,
    to: Path | None = None,
    target: str = "hf",
    step: int | None = None,
    dtype: str | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> ExportedModel:
    """Export a checkpoint to the folder or file `to`.

    Args:
        to: Path to write, by default default_place().
        target: Format, a key of TARGETS.
        step: Step of the checkpoint, by default the result of step_to_export().
        dtype: Number format of the weights, by default the format in which the run computed. With fp32, the
            optimizer's master weights are written.
        max_shard_bytes: Maximum size of a weights file.

    Raises:
        ConfigError: An argument is invalid, or the target cannot represent the model.
        CheckpointError: `to` exists or does not fit on its disk, or the checkpoint is incomplete.
    """
    config, ending = load_resolved(run.config_yaml), TARGETS[target]
    _refuse_own_layer(run, target)
    family = "nbtrain" if target == "consolidated" else family_of(config).title
    if to is not None and ending and to.suffix != ending:
        raise ConfigError(
            f"{display(to)}: export with --to {target} writes a single file, whose name must end in {ending}."
        )
    if dtype is not None and dtype not in DTYPES:
        raise ConfigError(f"dtype = {dtype!r} must be one of {', '.join(DTYPES)}.")
    if max_shard_bytes < 1:
        raise ConfigError(f"max_shard_bytes = {max_shard_bytes} must be at least 1.")
    dtype = dtype or ("fp32" if config.precision.autocast else config.precision.dtype)
    if target == "peft" and config.lora is None:
        raise ConfigError(
            f"{display(run.path)}: the run has no adapters (section lora), but --to peft writes only "
            "adapters. Use --to hf."
        )
    if step is None:
        step = step_to_export(run, config.init_from is not None, time.time())
    to = to or default_place(run, target, step)
    vocab_size = config.tokenizer.vocab_size
    whole = parameter_shapes(Sizes.of(config.model, vocab_size))
    count = sum(map(math.prod, (shapes_of(config) if target == "peft" else whole).values()))
    notes: tuple[str, ...] = ()
    ids: dict[str, int | None] = {}
    file = {"consolidated": SINGLE, "gguf": GGUF_FILE}.get(target)
    with new_place(to, count * ITEM_BYTES[dtype], file) as made:
        if target != "consolidated":
            ids, without = _write_tokenizer(run, config, made, step)
        if target not in ("consolidated", "peft"):
            notes = without
            files.write_json(made / CONFIG, config_json(config, dtype, ids, vocab_size))
            files.write_json(made / GENERATION_CONFIG, _generation_config(run, config, ids))
        request = {
            "target": target,
            "run_dir": str(run.path),
            "step": step,
            "dtype": dtype,
            "to": str(made),
            "max_shard_bytes": max_shard_bytes,
            "bos": _bos_before_text(config, ids["bos_token_id"]) if target == "gguf" else None,
        }
        end = _ask(request)
        notes = (*notes, *end["notes"])
        exported = ExportedModel(
            to, family, step, dtype, count, end["bytes"], end["difference"], end["seconds"], notes
        )
        if target == "hf":
            card = model_card(run, config, step, family, count, dtype, exported.difference)
            files.write_text(made / "README.md", card)
    return exported


def _refuse_own_layer(run: RunDir, target: str) -> None:
    """Raise ConfigError for a model whose blocks come from layer(), which no other program can load."""
    if "layer" in submitted_functions(run):
        record = files.read_json(run.own_code_json) or {}
        raise ConfigError(
            f"{display(run.path)}: the run's blocks come from layer() in {record.get('file')}, but --to "
            f"{target} can write only architectures that other programs support. To write every parameter "
            f"unsharded, run `nbtrain checkpoint universal {run.name}`. nbtrain itself can generate with, "
            "serve and evaluate the run without an export."
        )


def _write_tokenizer(
    run: RunDir, config: RunConfig, made: Path, step: int
) -> tuple[dict[str, int | None], tuple[str, ...]]:
    """Write the tokenizer's files and the chat template.

    Return ({"bos_token_id": ..., "eos_token_id": ..., "pad_token_id": ...}, notes).
    """
    directory = tokenizer_dir(config.tokenizer.name)
    manifest = read_manifest(directory)
    if manifest is None:
        note = (
            f"The export has no tokenizer, because {display(directory)} does not exist (the run was trained "
            "on token ids)."
        )
        return dict.fromkeys(FRAMES), (note,)
    saved = files.read_json(run.checkpoint_manifest(step))
    tokenizer = Tokenizer.load(directory, manifest=manifest)
    tokenizer.check_trained_with((saved or {}).get("tokenizer_sha256"))
    positions, ends = config.model.resolved_max_position_embeddings, end_ids(run, tokenizer)
    ids = write_tokenizer(directory, made, positions, config.tokenizer.vocab_size, ends)
    notes: tuple[str, ...] = ()
    if (talks := talks_of(config.data.sources)) is not None:
        files.write_text(made / CHAT_TEMPLATE, chat_jinja(talks, tokenizer.eod_token))
        notes = _other_tokens(markers_as_letters(config), pieces_of(talks), tokenizer)
    given = origin_of(run, directory).get("config", {})
    kept = {key: given[key] for key in FRAMES if key in given}
    if kept.get("pad_token_id") in ends:
        del kept["pad_token_id"]
    return {**ids, **kept}, notes


def _other_tokens(markers: list[str], pieces: list[str], tokenizer: Tokenizer) -> tuple[str, ...]:
    """Return a tuple with a note if other programs encode a conversation differently from training; else ().

    `markers` are special tokens in the template that training encoded as plain text. `pieces` are the parts
    of a conversation that training encoded separately.
    """
    if markers:
        return (
            f"{CHAT_TEMPLATE}: other programs encode {', '.join(markers)} as special tokens, but training "
            "encoded them as ordinary characters, so answers may be worse in other programs. Add them to "
            "tokenizer.added_tokens and train again, or choose other markers.",
        )
    ours = [tokenizer.encode(piece).tolist() for piece in pieces]
    if tokenizer.encode_with_special("".join(pieces)) != list(itertools.chain(*ours)):
        return (
            f"{CHAT_TEMPLATE}: other programs encode a conversation as one text, but training encoded "
            "questions and answers separately. With this tokenizer, all answers except the last one start "
            "with different tokens in other programs.",
        )
    return ()


def _bos_before_text(config: RunConfig, bos: int | None) -> int | None:
    """Return the id of the BOS token if the run's tokenizer puts BOS and no other token before a text.

    Otherwise, and without a tokenizer, the result is None. `bos` is bos_token_id in config.json.
    """
    directory = tokenizer_dir(config.tokenizer.name)
    if read_manifest(directory) is None:
        return None
    tokenizer = Tokenizer.load(directory)
    named = {token_id for token_id in (tokenizer.bos_id, bos) if type(token_id) is int}
    before = tokenizer.before_text
    return before[0] if len(before) == 1 and (not named or before[0] in named) else None


def _generation_config(run: RunDir, config: RunConfig, ids: dict[str, Any]) -> dict[str, Any]:
    """Return the content of generation_config.json.

    It is the initial model's generation_config if the run uses that model's tokenizer, and otherwise only
    `ids`. The run's end-of-document token is added to the tokens that end a text, because a run with another
    tokenizer.eod_token than the initial model would otherwise never end its answers. A padding token that
    also ends a text is replaced by the tokenizer's padding token.
    """
    directory = tokenizer_dir(config.tokenizer.name)
    found = origin_of(run, directory).get("generation_config")
    found = found or {key: value for key, value in ids.items() if value is not None}
    if (manifest := read_manifest(directory)) is None:
        return found
    ends, own = ids_in(found.get("eos_token_id")), manifest["eod_id"]
    if found.get("pad_token_id") in (*ends, own):
        found = {**found, "pad_token_id": ids["pad_token_id"]}
    return found if own in ends else {**found, "eos_token_id": [*ends, own] if ends else own}


def _ask(request: dict[str, Any]) -> dict[str, Any]:
    """Let the process with torch write and compare the weights, show its progress, and return its result."""
    end: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        bar, stage, done = None, "", 0
        for answer in stream("nbtrain.checkpoint.pretrained", request):
            if answer["kind"] == "end":
                end = answer
            if answer["kind"] != "progress":
                continue
            if bar is None or answer["stage"] != stage:
                stack.close()
                stage, done = answer["stage"], 0
                title, unit = {"write": ("export", "B"), "check": ("compare", "layers")}[stage]
                if request["target"] in ("consolidated", "peft") and stage == "check":
                    unit = "tensors"
                bar = stack.enter_context(Progress(title, answer["total"], unit))
            bar.update(answer["done"] - done)
            done = answer["done"]
    return end
