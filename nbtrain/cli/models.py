"""Verbs between a run and other programs' models: export, import-model."""

import argparse
from pathlib import Path
from typing import Any

from nbtrain.cli.verbs import add_verb, is_override

FORMATS = (
    "hf (the default: safetensors that transformers, vLLM and SGLang load), consolidated (one safetensors "
    "file by our names), gguf (one file for llama.cpp), peft (the adapters of a run with lora)"
)
SCRIPTS = "megatron-lm, megatron-deepspeed (flags, each with @VERSION or the newest), deepspeed (its JSON)"


def add_verbs(under: Any) -> None:
    """Add the verbs below `under`, the subparsers of nbtrain."""
    text = "Write a run's model for other programs, or the run as flags of Megatron or a DeepSpeed JSON."
    one = add_verb(under, "export", export, text)
    one.add_argument("run", metavar="RUN", help="a run that was submitted; for flags and JSON any run YAML")
    text = "the folder or file to write; for flags and JSON, overrides such as batch.max_steps=2"
    one.add_argument("words", nargs="*", default=[], metavar="DIR|key=value", help=text)
    one.add_argument("--to", default="hf", metavar="TARGET", help=f"{FORMATS}; or {SCRIPTS}")
    text = (
        "the checkpoint; default: the newest, and if that is not whole, an error that names the newest whole "
        "one; 0: the weights that init_from names"
    )
    one.add_argument("--step", type=int, metavar="N", help=text)
    text = (
        "format of the weights; without it the one that the run computed with; fp32: the optimizer's masters"
    )
    one.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), help=text)
    text = "the most that one safetensors file holds (default: 5,000,000,000)"
    one.add_argument("--max-shard-bytes", type=int, metavar="BYTES", help=text)
    text = "flags and JSON: write them there; printed without it"
    one.add_argument("-o", "--output", type=Path, metavar="FILE", help=text)
    one.add_argument("--overwrite", action="store_true", help="flags and JSON: replace the file if it exists")
    one.set_defaults(more="words")
    one = add_verb(under, "import-model", import_model, "Make a run YAML that starts from a model's folder.")
    text = (
        "a folder with config.json and safetensors, a consolidated file, hf://ORGANISATION/MODEL, or a "
        "checkpoint tree of Megatron-LM or Megatron-DeepSpeed"
    )
    one.add_argument("model", metavar="DIR", help=text)
    one.add_argument("name", metavar="NAME", help="the run's name, and that of its tokenizer and dataset")
    one.add_argument(
        "overrides", nargs="*", default=[], metavar="key=value", help="e.g. model.seq_length=4096"
    )
    one.add_argument("--onto", metavar="RUN", help="take data, batch, schedule and layout of this run")
    one.add_argument("-o", "--output", type=Path, metavar="YAML", help="NAME.yaml without it")
    text = "of a tree of Megatron-DeepSpeed: how the rows of query, key and value lie"
    one.add_argument("--qkv-order", choices=("groups", "thirds"), help=text)
    text = "a text that the model of such a tree knows: the order with the lower loss is taken"
    one.add_argument("--text", type=Path, metavar="FILE", help=text)
    one.add_argument("--overwrite", action="store_true", help="replace the YAML if it exists")


def export(options: argparse.Namespace) -> None:
    from nbtrain.api import models
    from nbtrain.api import verbs as api

    overrides = [word for word in options.words if is_override(word)]
    folders = [word for word in options.words if not is_override(word)]
    if options.to in models.FORMATS:
        exported = models.export_weights(
            options.run, folders, options.to, overrides, options.output, **_given(options)
        )
        print(exported)
        return
    models.refuse_weights_options(options.to, folders, _given(options))
    text = api.export_run(options.run, options.to, overrides)
    if options.output is None:
        print(text, end="")
        return
    print(f"{text.write(options.output, options.overwrite)}: for {text.target}.")
    print(*text.notes, sep="\n")


def _given(options: argparse.Namespace) -> dict[str, Any]:
    return {"step": options.step, "dtype": options.dtype, "max_shard_bytes": options.max_shard_bytes}


def import_model(options: argparse.Namespace) -> None:
    from nbtrain.api import verbs as api

    print(
        api.import_model(
            options.model,
            options.name,
            options.overrides,
            onto=options.onto,
            path=options.output,
            overwrite=options.overwrite,
            qkv_order=options.qkv_order,
            text=options.text,
        )
    )
