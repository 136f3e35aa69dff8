"""The functions nb.export and nb.import_model: a run's model for other programs, and a run from a model."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Union

from nbtrain.api.arguments import misused, whole_number, whole_or_none
from nbtrain.api.arguments import text as as_text
from nbtrain.api.run import Run, RunLike, open_run
from nbtrain.base.errors import ConfigError
from nbtrain.base.text.nearest import nearest
from nbtrain.base.workspace import typed_path
from nbtrain.config.load import Overrides
from nbtrain.config.load import load as load_config

if TYPE_CHECKING:
    from nbtrain.exchange.export_model import ExportedModel
    from nbtrain.exchange.import_model import ImportedModel
    from nbtrain.foreign.exporting import Exported

FORMATS = ("hf", "consolidated", "gguf", "peft")
"""Targets that hold the weights of a run; the other targets hold its settings (foreign/exporting.py)."""


def export(
    run: RunLike,
    folder: str | Path | None = None,
    to: str = "hf",
    step: int | None = None,
    dtype: str | None = None,
    max_shard_bytes: int | None = None,
    overrides: Overrides = None,
) -> Union["ExportedModel", "Exported"]:
    """Write a run's model for other programs, from the newest checkpoint or the checkpoint of `step`.

    The checkpoint must be complete. Step 0 is the model that `init_from` names, before training. Without
    `folder`, the model goes to a new folder in the run's directory, export/step<N>-<to>.

    `to` is one of these targets:

        hf              a folder with safetensors, config.json, tokenizer and a model card, which
                        transformers, vLLM and SGLang load
        consolidated    one safetensors file with nbtrain's names, for any model
        gguf            one file for llama.cpp
        peft            a folder with the adapters of a run with `lora`

    For the two single-file targets, `folder` is the file. The written model is compared with the run before
    it is moved to this path. `dtype` is fp32 (the master weights), bf16 or fp16; None is the format that the
    run computed in.

    With "megatron-lm", "megatron-deepspeed" (each with @VERSION) or "deepspeed", the run's settings with
    `overrides` are written as flags or JSON; a cell shows the text.
    """
    given: dict[str, Any] = {"step": step, "dtype": dtype, "max_shard_bytes": max_shard_bytes}
    if to in FORMATS:
        return export_weights(run, [folder] if folder is not None else [], to, overrides, None, **given)
    refuse_weights_options(to, [folder] if folder is not None else [], given)
    return export_run(run, to, overrides)


def export_weights(
    run: RunLike,
    folders: list[Any],
    to: str,
    overrides: Overrides,
    output: Path | None,
    step: int | None,
    dtype: str | None,
    max_shard_bytes: int | None,
) -> "ExportedModel":
    """Write a run's weights: export() for the targets that hold weights."""
    from nbtrain.exchange.export_model import MAX_SHARD_BYTES, export_model

    if overrides:
        raise ConfigError("a run's weights are written unchanged: omit the settings (key=value).")
    if output is not None:
        raise ConfigError(
            f"-o is only for flags and JSON. Write the folder behind the run: `nbtrain export RUN {output}`."
        )
    if len(folders) > 1:
        raise ConfigError(f"name one folder to write, not {len(folders)}: {', '.join(map(str, folders))}.")
    if folders and (not isinstance(folders[0], str | Path) or not str(folders[0]).strip()):
        raise misused("folder", folders[0], "the path of a folder to write")
    step = whole_or_none("step", step, "the newest checkpoint")
    return export_model(
        open_run(run).directory,
        typed_path(folders[0]).absolute() if folders else None,
        target=to,
        step=step,
        dtype=None if dtype is None else as_text("dtype", dtype),
        max_shard_bytes=MAX_SHARD_BYTES
        if max_shard_bytes is None
        else whole_number("max_shard_bytes", max_shard_bytes),
    )


def refuse_weights_options(to: object, folders: list[Any], given: dict[str, Any]) -> None:
    """Raise ConfigError for an unknown target, or for an option that only an export of weights accepts."""
    from nbtrain.foreign.syntax.flags import VERSIONS

    known = [*FORMATS, *VERSIONS, "deepspeed"]
    if not isinstance(to, str):
        raise ConfigError(f"to = {to!r} must be one of {', '.join(known)}.")
    if to.partition("@")[0] not in known:
        raise ConfigError(f"{to}: no such target. The targets are {', '.join(known)}.{nearest(to, known)}")
    names = [f"{name} (--{name.replace('_', '-')})" for name, value in given.items() if value is not None]
    if names or folders:
        what = ", ".join([*names, *map(str, folders)])
        raise ConfigError(
            f"{what}: only for exports of a run's weights, and {to} writes the run's settings as text. Name "
            "the text's file with -o, or in Python with .write(path)."
        )


def export_run(run: RunLike, to: str, overrides: Overrides = None) -> "Exported":
    """Write a run's settings for another program: a shell script of flags, or a DeepSpeed JSON.

    `to` is "megatron-lm", "megatron-deepspeed" (each with @VERSION, by default the newest) or "deepspeed". A
    cell shows the script; `.notes` lists settings that the program lacks, and `.write(path)` writes the file.
    This function is an older name of nb.export.
    """
    from nbtrain.foreign.exporting import export as write

    config = load_config(run.config if isinstance(run, Run) else run, overrides)
    return write(config, to)


def import_model(
    source: str | Path,
    name: str,
    overrides: Overrides = None,
    onto: str | None = None,
    path: str | Path | None = None,
    overwrite: bool = False,
    qkv_order: str | None = None,
    text: str | Path | None = None,
) -> "ImportedModel":
    """Create a run that starts from a model's folder: write its run YAML and import its tokenizer.

    `source` is a folder with config.json and safetensors, a consolidated file, hf://ORGANIZATION/MODEL, which
    huggingface_hub downloads, or a Megatron checkpoint folder. `onto` is the run whose data, batch, schedule
    and layout are used; `path` is the YAML to write, by default NAME.yaml. For a Megatron-DeepSpeed
    checkpoint, `qkv_order` is "groups" or "thirds"; without it, the order with the lower loss on the file
    `text` is used. A cell shows what was found. Every tensor is checked first: if a tensor is missing,
    damaged or unknown, nothing is written.
    """
    from nbtrain.exchange.import_model import import_model as make

    return make(source, as_text("name", name), overrides, onto, path, overwrite, qkv_order, text)
