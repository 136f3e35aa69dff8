"""Rows of the mapping: fields with a single flag each, the attention kernel, tokenizer and data."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from nbtrain.base.workspace import NAME_PATTERN, workspace
from nbtrain.foreign.mapping.conversion import Reading, Writing


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the mapping: fields of a run, and the corresponding values of the program's parser."""

    fields: tuple[str, ...]
    dests: tuple[str, ...]
    read: Callable[[Reading], None]
    write: Callable[[Writing], None]


def value_of(config: Any, key: str) -> Any:
    """Return the value of a dotted field, such as batch.micro_batch_size."""
    for part in key.split("."):
        config = getattr(config, part)
    return config


# More than batch.exit_duration_minutes allows. Megatron's users write 30000000 for "never".
MOST_MINUTES = 10 * 365 * 1440


def same(key: str, dest: str, factor: int = 1) -> Row:
    """Return a row for a field and a flag with the same meaning.

    The field is `factor` times the flag's value.
    """

    def read(source: Reading) -> None:
        if not source.has(dest):
            return
        value = source.value(dest)
        if dest == "exit_duration_in_mins" and isinstance(value, int) and value > MOST_MINUTES:
            source.note(
                source.place(dest), f"--exit-duration-in-mins {value}: ignored, because it is over 10 years."
            )
            return
        if value is not None and (source.setting(dest) or value is not False):
            source.set(key, value * factor if factor != 1 and isinstance(value, int) else value, dest)

    def write(target: Writing) -> None:
        value = value_of(target.config, key)
        if value is None or value is False:
            return
        if not target.has(dest):
            target.unsaid(key, f"{target.table.name} has no flag for this field")
        elif not target.may_have(dest, value):
            flag = target.table.by_dest[dest][0].flags[0]
            target.unsaid(key, f"{flag} in {target.table.name} does not accept {value}")
            target.warnings.append(
                f"{flag} is omitted, because in {target.table.name} it does not accept {value}"
            )
        elif factor != 1 and value % factor:
            target.unsaid(key, f"{target.table.by_dest[dest][0].flags[0]} only accepts multiples of {factor}")
        else:
            whole = target.table.by_dest[dest][0].type == "int" and isinstance(value, float)
            if whole and not (value / factor).is_integer():
                target.unsaid(key, f"{target.table.by_dest[dest][0].flags[0]} only accepts whole numbers")
                return
            target.add(dest, int(value / factor) if whole or factor != 1 else value)

    return Row((key,), (dest,), read, write)


SAME = (
    same("model.num_layers", "num_layers"),
    same("model.hidden_size", "hidden_size"),
    same("model.num_attention_heads", "num_attention_heads"),
    same("model.ffn_hidden_size", "ffn_hidden_size"),
    same("model.make_vocab_size_divisible_by", "make_vocab_size_divisible_by"),
    same("model.hidden_dropout", "hidden_dropout"),
    same("model.attention_dropout", "attention_dropout"),
    same("model.init_method_std", "init_method_std"),
    same("model.norm_epsilon", "layernorm_epsilon"),
    same("model.untie_embeddings_and_output_weights", "untie_embeddings_and_output_weights"),
    same("data.num_workers", "num_workers"),
    same("data.reset_position_ids", "reset_position_ids"),
    same("data.inter_document_masking", "reset_attention_mask"),
    same("data.eod_mask_loss", "eod_mask_loss"),
    same("batch.micro_batch_size", "micro_batch_size"),
    same("batch.exit_interval_steps", "exit_interval"),
    same("batch.exit_duration_minutes", "exit_duration_in_mins"),
    same("optimizer.adam_beta1", "adam_beta1"),
    same("optimizer.adam_beta2", "adam_beta2"),
    same("optimizer.adam_eps", "adam_eps"),
    same("lr_schedule.lr", "lr"),
    same("lr_schedule.min_lr", "min_lr"),
    same("lr_schedule.lr_warmup_init", "lr_warmup_init"),
    same("lr_schedule.lr_decay_style", "lr_decay_style"),
    same("checkpoint.save_interval_steps", "save_interval"),
    same("checkpoint.keep_every_steps", "save_retain_interval"),
    same("checkpoint.async_save", "async_save"),
    same("logging.log_interval_steps", "log_interval"),
    same("parallel.tensor_parallel_size", "tensor_model_parallel_size"),
    same("parallel.pipeline_parallel_size", "pipeline_model_parallel_size"),
    same("parallel.sequence_parallel", "sequence_parallel"),
    same("parallel.process_group_timeout_seconds", "distributed_timeout_minutes", 60),
)


def _read_lengths(source: Reading) -> None:
    for dest in ("seq_length", "encoder_seq_length"):
        if source.value(dest) is not None:
            source.set("model.seq_length", source.value(dest), dest)
            break
    if source.value("max_position_embeddings") is not None:
        source.set(
            "model.max_position_embeddings",
            source.value("max_position_embeddings"),
            "max_position_embeddings",
        )


def _write_lengths(target: Writing) -> None:
    target.add("seq_length", target.config.model.seq_length)
    target.add("max_position_embeddings", target.config.model.resolved_max_position_embeddings)


def _read_seed(source: Reading) -> None:
    source.set("model.seed", source.value("seed"), "seed")
    source.set("data.seed", source.value("seed"), "seed")


def _write_seed(target: Writing) -> None:
    target.add("seed", target.config.model.seed)


# --- evaluation -------------------------------------------------------------------------------------


def _read_evaluation(source: Reading) -> None:
    interval = source.value("eval_interval")
    if interval is None:
        source.set("evaluation.eval_iters", 0, "eval_interval")
        return
    source.set("evaluation.eval_interval_steps", interval, "eval_interval")
    source.set("evaluation.eval_iters", source.value("eval_iters"), "eval_iters")


def _write_evaluation(target: Writing) -> None:
    target.add("eval_interval", target.config.evaluation.eval_interval_steps)
    target.add("eval_iters", target.config.evaluation.eval_iters)


def _read_mode(source: Reading) -> None:
    if source.value("skip_train"):
        source.set("mode", "eval", "skip_train")


def _write_mode(target: Writing) -> None:
    if target.config.mode == "eval":
        target.add("skip_train")


# --- the attention kernel: it changes speed and memory, not the model ---------------------------------

KERNELS = {"flash": "flash", "fused": "efficient", "unfused": "math", "local": "math", "auto": "auto"}
FLASH = (
    "use_flash_attn",
    "use_flash_attn_v1",
    "use_flash_attn_v2",
    "use_flash_attn_triton",
    "use_flash_attn_builder",
)


def _read_kernel(source: Reading) -> None:
    if (kernel := source.known("attention_backend", "model.attention_backend")) is not None:
        source.set("model.attention_backend", KERNELS[kernel], "attention_backend")
    for dest in FLASH:
        if source.setting(dest):
            # auto uses the flash kernel if it is available.
            source.set("model.attention_backend", "auto", dest)


def _write_kernel(target: Writing) -> None:
    kernel = target.config.model.attention_backend
    if target.has("attention_backend"):
        target.add("attention_backend", {ours: theirs for theirs, ours in KERNELS.items()}[kernel])
    elif kernel in ("auto", "flash"):
        target.add(next(dest for dest in FLASH if target.has(dest)))


# --- tokenizer --------------------------------------------------------------------------------------

GPT2_VOCABULARY = 50_257


def clean_name(text: str, otherwise: str) -> str:
    """Turn a text into a valid name for a run, a dataset or a tokenizer; `otherwise` if that fails."""
    name = re.sub(r"[^a-z0-9-]+", "-", text.lower()).strip("-")[:48].strip("-")
    return name if NAME_PATTERN.fullmatch(name) else otherwise


def _read_tokenizer(source: Reading) -> None:
    kind = source.value("tokenizer_type")
    if kind in ("HuggingFaceTokenizer", "HFTokenizer") and source.value("tokenizer_model"):
        path = str(source.value("tokenizer_model"))
        source.set("tokenizer.path", path, "tokenizer_model")
        source.set("tokenizer.name", clean_name(PurePosixPath(path).name, "tokenizer"), "tokenizer_model")
    elif kind in (None, "GPT2BPETokenizer"):
        _read_bpe(source)
    elif kind == "NullTokenizer" and source.value("vocab_size"):
        # NullTokenizer does not tokenize text: the words in the mock data are its ids.
        source.set("tokenizer.name", "mock", "tokenizer_type")
        # Versions before 2026 add an end-of-document token to the vocabulary (NullTokenizer).
        more = 0 if source.table.version == "d98e8a64" else 1
        source.set("tokenizer.vocab_size", source.value("vocab_size") + more, "vocab_size")
        place = source.place("tokenizer_type")
        source.note(
            place,
            "--tokenizer-type NullTokenizer does not tokenize text. Instead, a tokenizer with this number of "
            "entries is trained on the run's data.",
        )
    else:
        place = source.place("tokenizer_type")
        source.fail(
            "tokenizer.path",
            place,
            f"--tokenizer-type {kind}: tokenizers of this kind are not supported. Add tokenizer.path=... to "
            "the command, with a tokenizer.json that has the same vocabulary.",
        )
    if "tokenizer.vocab_size" not in source.values:
        source.fail(
            "tokenizer.vocab_size",
            source.place("vocab_file"),
            f"no given file contains the size of the vocabulary. Add "
            f"tokenizer.vocab_size=... to the command; GPT-2's vocabulary has {GPT2_VOCABULARY} entries.",
        )


def _read_bpe(source: Reading) -> None:
    setting = source.setting("vocab_file")
    if setting is None or setting.word is None or setting.word.from_outside:
        place, text = source.place("vocab_file"), setting.text if setting else "no --vocab-file"
        source.set("tokenizer.name", "tokenizer", comment=text, place=place)
        words = "the tokenizer gets the name `tokenizer`; set tokenizer.name=... to change it."
        source.note(place, f"{text}: {words}")
    else:
        path = PurePosixPath(str(setting.value))
        gpt2 = path.name.startswith("gpt2")
        name = "gpt2" if gpt2 else clean_name(path.parent.name, "tokenizer")
        source.set("tokenizer.name", name, "vocab_file")
        entries = _entries(path)
        if entries or gpt2:
            source.set("tokenizer.vocab_size", entries or GPT2_VOCABULARY, "vocab_file")
    if (size := source.known("vocab_size", "tokenizer.vocab_size")) is None:
        return
    if (entries := source.values.get("tokenizer.vocab_size", size)) != size:
        # Megatron overwrites the flag with the size of the tokenizer (tokenizer.py, build_tokenizer).
        words = f"--vocab-size {size}: ignored, because the vocabulary file has {entries} entries."
        source.note(source.place("vocab_size"), words)
        return
    if "tokenizer.vocab_size" not in source.values and setting is not None:
        words = (
            "the number of entries in the vocabulary file must be equal to this, but the file was not found, "
            "so nbtrain cannot compare them."
        )
        source.note(source.place("vocab_size"), f"--vocab-size {size}: {words}")
    source.set("tokenizer.vocab_size", size, "vocab_size")


def _entries(path: PurePosixPath) -> int:
    """Return the number of entries in a vocabulary file; 0 if this machine does not have the file."""
    for file in (Path(path), workspace() / path):
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        return len(found) if isinstance(found, dict) else 0
    return 0


def _write_tokenizer(target: Writing) -> None:
    tokenizer = target.config.tokenizer
    folder = f"data/tokenizer/{tokenizer.name}"
    target.add("tokenizer_type", "GPT2BPETokenizer")
    target.add("vocab_file", f"{folder}/vocab.json")
    target.add("merge_file", f"{folder}/merges.txt")
    target.unsaid("tokenizer.vocab_size", "the program counts the entries in the vocabulary file")


# --- data -------------------------------------------------------------------------------------------

OURS = re.compile(r"data/dataset/([^/]+)/(.+)_document")


def _read_data(source: Reading) -> None:
    place, setting = source.place("data_path"), source.setting("data_path")
    words = [word for one in (setting.value if setting else []) for word in str(one).split()]
    run = clean_name(source.job.name.text if source.job.name else Path(source.job.label).stem, "run")
    if source.has("mock_data") and source.value("mock_data"):
        source.set("data.name", f"{run}-mock", "mock_data")
        source.set("data.sources", [{"kind": "mock"}], "mock_data")
    elif not words or "$" in "".join(words):
        text = setting.text if setting else "no --data-path"
        source.set("data.name", f"{run}-data", comment=text, place=place)
        source.note(place, f"{text}: the dataset gets the name {run}-data; set data.name=... to change it.")
    elif len(words) == 1:
        _read_dataset(source, words[0], place)
    else:
        source.set("data.name", f"{run}-blend", "data_path")
        _read_blend(source, words, place)
    if source.has("split"):
        # Both Megatrons use this split by default (megatron/training/arguments.py).
        source.set("data.split", source.value("split") or "969, 30, 1", "split")
    core = source.table.name == "megatron-lm@d98e8a64"
    source.set(
        "data.split_rule", "megatron-core" if core else "megatron-deepspeed", comment=source.table.name
    )


def _read_dataset(source: Reading, prefix: str, place: str) -> None:
    path = PurePosixPath(prefix)
    ours = OURS.fullmatch(prefix)
    name = path.parent.name or re.sub(r"_(text_)?document$", "", path.name)
    source.set("data.name", ours.group(1) if ours else clean_name(name, "data"), "data_path")
    if ours and ours.group(2) != "text":
        source.set("data.json_key", ours.group(2), "data_path")
    if not ours:
        folder = f"data/dataset/{source.values['data.name']}"
        renamed = "" if path.name == "text_document" else " as text_document.bin and .idx"
        source.note(
            place,
            f"--data-path {prefix}: put {path.name}.bin and .idx into {folder}/{renamed}, or give the text "
            "in data.sources.",
        )


def _read_blend(source: Reading, words: list[str], place: str) -> None:
    entries: list[dict[str, Any]] = []
    try:
        for weight, prefix in zip(words[::2], words[1::2], strict=True):
            ours = OURS.fullmatch(prefix)
            named = {"name": ours.group(1)} if ours else {"prefix": prefix}
            entries.append(named | {"weight": float(weight)})
    except ValueError:
        source.fail(
            "data.blend",
            place,
            "--data-path: the value must be one prefix, or pairs of a weight and a prefix.",
        )
        return
    source.set("data.blend", entries, "data_path")


def _write_data(target: Writing) -> None:
    data = target.config.data
    file = f"{data.json_key}_document"
    if data.blend:
        words: list[Any] = []
        for entry in data.blend:
            words += [repr(entry.weight), entry.prefix or f"data/dataset/{entry.name}/{file}"]
        target.add("data_path", words)
    else:
        target.add("data_path", [f"data/dataset/{data.name}/{file}"])
    target.add("split", data.split)
    target.unsaid("data.split_rule", "each program divides the data into splits by its own rule")


def _read_load(source: Reading) -> None:
    save, load = source.setting("save"), source.setting("load")
    if load and save and load.value != save.value:
        source.fail(
            "",
            load.place,
            f"--load {load.value} differs from --save {save.value} ({save.place}): the run would begin with "
            "another run's weights, which cannot be imported. Remove --load, or set it to the folder of "
            "--save to resume.",
        )
    elif load and not save:
        words = "the run would begin with another run's weights, which cannot be imported. Remove the flag."
        source.fail("", load.place, f"--load {load.value}: {words}")
    elif save:
        source.note(save.place, f"{save.text}: not imported; checkpoints go to output/<run>/model.")


def _write_load(target: Writing) -> None:
    folder = f"output/{target.config.name}/model"
    target.add("save", folder)
    target.add("load", folder)


# {field: what the program does without it}
TUNING = {
    "init_from": "draws the initial weights at random instead of loading init_from",
    "lora": "has no such LoRA adapters: it trains all weights",
    "dpo": "cannot train on preference pairs: it trains on the next token",
}


def _no_flag(source: Reading) -> None:
    """Read nothing, because no flag expresses these fields."""


def _write_tuning(target: Writing) -> None:
    for key, reason in TUNING.items():
        if getattr(target.config, key) is not None:
            target.cannot(key, reason)


OTHER = (
    Row(tuple(TUNING), (), _no_flag, _write_tuning),
    Row(
        ("model.seq_length", "model.max_position_embeddings"),
        ("seq_length", "encoder_seq_length", "max_position_embeddings"),
        _read_lengths,
        _write_lengths,
    ),
    Row(("model.seed", "data.seed"), ("seed",), _read_seed, _write_seed),
    Row(
        ("evaluation.eval_interval_steps", "evaluation.eval_iters"),
        ("eval_interval", "eval_iters"),
        _read_evaluation,
        _write_evaluation,
    ),
    Row(("mode",), ("skip_train",), _read_mode, _write_mode),
    Row(("model.attention_backend",), ("attention_backend", *FLASH), _read_kernel, _write_kernel),
    Row(
        ("tokenizer.name", "tokenizer.vocab_size", "tokenizer.path"),
        ("tokenizer_type", "tokenizer_model", "vocab_file", "merge_file", "vocab_size"),
        _read_tokenizer,
        _write_tokenizer,
    ),
    Row(
        ("data.name", "data.sources", "data.json_key", "data.blend", "data.split", "data.split_rule"),
        ("data_path", "mock_data", "split"),
        _read_data,
        _write_data,
    ),
    Row((), ("save", "load"), _read_load, _write_load),
)

MODEL_ROWS = (*SAME, *OTHER)
