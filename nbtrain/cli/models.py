"""The verbs export and import-model, which exchange models with other programs."""

import argparse
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.cli import completers
from nbtrain.cli.output import show, show_json
from nbtrain.cli.verbs import (
    add_json,
    add_overrides,
    add_step,
    add_verb,
    complete,
    is_override,
)

TARGETS = {
    "hf": "safetensors that transformers, vLLM and SGLang load",
    "consolidated": "one safetensors file with nbtrain's own names",
    "gguf": "one file for llama.cpp",
    "peft": "only the adapters, for a run with lora",
    "megatron-lm": "the run's settings as flags",
    "megatron-deepspeed": "the run's settings as flags",
    "deepspeed": "the run's settings as DeepSpeed JSON",
}
"""{value of --to: the file or folder that it writes}"""


def add_verbs(under: Any) -> None:
    """Add the verbs `export` and `import-model` to `under`, the subparsers of nbtrain."""
    parser = add_verb(
        under,
        "export",
        export,
        "LoRA adapters are merged into the weights, and the written model is compared with the run's model. "
        "The settings of a run can also be written as Megatron flags or DeepSpeed JSON.",
        "nbtrain export gpt-tiny\nnbtrain export gpt-tiny gpt-tiny.gguf --to gguf\n"
        "nbtrain export 13B --to megatron-lm -o pretrain.sh",
    )
    text = "The name, folder or YAML of a submitted run; for Megatron flags and DeepSpeed JSON, any run YAML."
    complete(parser.add_argument("run", metavar="RUN", help=text), completers.runs)
    text = (
        "For a model: the folder or file to write, by default a path in output/RUN/export that has the step "
        "and the target in its name. For flags and JSON: settings to change, for example batch.max_steps=2."
    )
    parser.add_argument("words", nargs="*", default=[], metavar="DIR|key=value", help=text)
    listed = "; ".join(f"{target}: {what}" for target, what in TARGETS.items())
    text = f"What to write. {listed}. A Megatron target may include a version: megatron-lm@VERSION."
    to = parser.add_argument("--to", default="hf", metavar="TARGET", help=text)
    complete(to, lambda **_: TARGETS)
    text = (
        "Export the checkpoint from step N; step 0 is the model that init_from names, before training. "
        "Default: the newest checkpoint, which must be complete."
    )
    add_step(parser, text)
    text = (
        "Number format of the weights; fp32 writes the optimizer's master copy. Default: the format that the "
        "run computed in."
    )
    parser.add_argument("--dtype", choices=("fp32", "bf16", "fp16"), help=text)
    text = "Maximum size of one safetensors file in bytes. Default: 5,000,000,000."
    parser.add_argument("--max-shard-bytes", type=int, metavar="BYTES", help=text)
    of_text = "With --to megatron-lm, megatron-deepspeed or deepspeed"
    text = f"{of_text}: write to FILE instead of printing."
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=text)
    parser.add_argument("--overwrite", action="store_true", help=f"{of_text}: replace FILE if it exists.")
    add_json(parser, "Print a JSON description of the written files.")
    parser.set_defaults(more="words")

    parser = add_verb(
        under,
        "import-model",
        import_model,
        "Imports the model's tokenizer too, and checks every tensor before anything is written.",
        "nbtrain import-model hf://HuggingFaceTB/SmolLM2-135M smol\n"
        "nbtrain import-model models/SmolLM2-135M smol --onto gpt-tiny-instructions",
    )
    text = (
        "A folder with config.json and safetensors, a consolidated file, hf://ORGANIZATION/MODEL, or a "
        "Megatron-LM or Megatron-DeepSpeed checkpoint."
    )
    parser.add_argument("model", metavar="DIR", help=text)
    parser.add_argument("name", metavar="NAME", help="Name for the run, its tokenizer and its dataset.")
    add_overrides(parser)
    text = "Use the data, batch, schedule and layout of this run."
    onto = parser.add_argument("--onto", metavar="RUN", help=text)
    complete(onto, completers.configs)
    text = "The run YAML to write. Default: NAME.yaml."
    parser.add_argument("-o", "--output", type=Path, metavar="YAML", help=text)
    text = "For a Megatron-DeepSpeed checkpoint: the order of the query, key and value rows."
    parser.add_argument("--qkv-order", choices=("groups", "thirds"), help=text)
    text = (
        "For a Megatron-DeepSpeed checkpoint without --qkv-order: a file with text like the model's training "
        "text. The order with the lower loss on this text is used."
    )
    parser.add_argument("--text", type=Path, metavar="FILE", help=text)
    parser.add_argument("--overwrite", action="store_true", help="Replace the YAML if it exists.")


def export(options: argparse.Namespace) -> None:
    """Write a run's model or settings for another program."""
    from nbtrain.api import models
    from nbtrain.api import verbs as api

    overrides = [word for word in options.words if is_override(word)]
    folders = [word for word in options.words if not is_override(word)]
    weights = {"step": options.step, "dtype": options.dtype, "max_shard_bytes": options.max_shard_bytes}
    if options.to in models.FORMATS:
        exported = models.export_weights(
            options.run, folders, options.to, overrides, options.output, **weights
        )
        if options.json:
            show_json(exported.to_dict())
        else:
            show(exported)
        return
    models.refuse_weights_options(options.to, folders, weights)
    text = api.export_run(options.run, options.to, overrides)
    if options.output is None:
        if options.json:
            raise ConfigError("--json describes the written file: name a file with -o, or omit --json.")
        print(text, end="")
        return
    path = text.write(options.output, options.overwrite)
    if options.json:
        show_json({"path": str(path), "target": text.target, "notes": text.notes})
        return
    show(f"{path}: written for {text.target}.")
    for note in text.notes:
        show(note)


def import_model(options: argparse.Namespace) -> None:
    """Make a run YAML that starts from a model."""
    from nbtrain.api import verbs as api

    show(
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
