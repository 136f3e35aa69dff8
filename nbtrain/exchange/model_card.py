"""The README.md (model card) of an exported model, written only from the run's own records.

Settings, layout and device come from the checkpoint's manifest, because a later job may have changed them.
Step 0 has no manifest, so its card has the settings of the last submission.

The front matter has the form that the Hub expects (library, tags). The user must choose the licence, which
depends on the licences of the data; the card lists the licences of the data.
"""

import math
import time
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import DataError
from nbtrain.base.printing.report import Table
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text import amounts
from nbtrain.base.version import __version__
from nbtrain.config.arithmetic.layout_words import layout_words
from nbtrain.config.arithmetic.perplexity import perplexity
from nbtrain.config.load.edits import with_values
from nbtrain.config.schema import RunConfig
from nbtrain.config.yaml_source import show
from nbtrain.corpus.sources.chat_jinja import talks_of
from nbtrain.dataset.manifest import DatasetManifest
from nbtrain.dataset.of_run import dataset_of

FRONT = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- nbtrain
# license: choose one that the licences of the data below allow, and set it here
---
"""
SECTIONS = ("batch", "lr_schedule", "optimizer", "parallel", "precision", "resources")
USE = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(PATH)
model = AutoModelForCausalLM.from_pretrained(PATH)
ids = tokenizer("Once upon a time", return_tensors="pt").input_ids
print(tokenizer.decode(model.generate(ids, max_new_tokens=50)[0]))
```
"""


CHAT = """```python
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(PATH)
model = AutoModelForCausalLM.from_pretrained(PATH)
messages = [{"role": "user", "content": "What is a list?"}]
prompt = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
)
answer = model.generate(**prompt, max_new_tokens=200)[0, prompt["input_ids"].shape[1] :]
print(tokenizer.decode(answer, skip_special_tokens=True))
```
"""


def model_card(
    run: RunDir, config: RunConfig, step: int, family: str, count: int, dtype: str, difference: float
) -> str:
    """Return the text of README.md for a checkpoint.

    `difference` is the largest difference of the exported model's logits, relative to the largest logit.
    """
    saved = files.read_json(run.checkpoint_manifest(step)) or {}
    parts = [
        FRONT,
        f"# {config.name}\n",
        f"A language model with {amounts.count(count)} parameters ({family}), trained with nbtrain "
        f"{__version__}.\n",
        _table("Model", _model_rows(config, count, dtype)),
        _table("Training", _training_rows(run, config, step, saved)),
        _data(config),
        "## Use\n",
        (USE if talks_of(config.data.sources) is None else CHAT).replace("PATH", '"."'),
        "## How it was written\n",
        f"This model was exported from the checkpoint at step {step:,} of the run {config.name}, on "
        f"{time.strftime('%Y-%m-%d', time.gmtime())}. The exported model's logits were compared with the "
        f"run's logits in fp32: they differ by at most {difference:.1g} of the largest logit.\n",
    ]
    return "\n".join(parts)


def _model_rows(config: RunConfig, count: int, dtype: str) -> list[tuple[str, str]]:
    model = config.model
    return [
        ("parameters", f"{count:,}, in {dtype}"),
        ("layers", f"{model.num_layers}"),
        ("hidden size", f"{model.hidden_size:,}"),
        ("attention heads", f"{model.num_attention_heads}"),
        ("MLP", f"{model.resolved_ffn_hidden_size:,}, {model.activation}"),
        ("positions", f"{model.resolved_max_position_embeddings:,}, {model.position_embedding_type}"),
        ("vocabulary", f"{config.tokenizer.vocab_size:,}"),
    ]


def _training_rows(run: RunDir, config: RunConfig, step: int, saved: dict[str, Any]) -> list[tuple[str, str]]:
    config = _settings_of(saved, config) if saved else config
    schedule, rows = config.lr_schedule, []
    if config.init_from is not None and (start := files.read_json(run.init_from_json)) is not None:
        what = "its files" if "step" in start else "its config.json and file headers"
        rows.append(("started from", f"{start['family']} (sha256 of {what}: {start['sha256'][:12]})"))
    if saved:
        rows += [
            ("tokens", f"{saved['consumed_tokens']:,}"),
            ("steps", f"{step:,} of {config.train_steps:,}"),
        ]
    rows += [("validation loss", text) for text in _loss(config, saved)]
    rows += [
        ("sequence", f"{config.model.seq_length:,} tokens"),
        ("batch", f"{config.batch.global_batch_size:,} sequences"),
        ("optimizer", _optimizer(config)),
        ("learning rate", f"{schedule.lr:g}, {schedule.lr_decay_style}"),
        ("number format", config.precision.dtype + (" with autocast" if config.precision.autocast else "")),
        ("layout", _layout(config)),
        ("devices", _devices(run, config, saved.get("device"))),
        ("software", ", ".join(f"{name} {version}" for name, version in saved.get("versions", {}).items())),
    ]
    return [(name, text) for name, text in rows if text]


def _settings_of(saved: dict[str, Any], config: RunConfig) -> RunConfig:
    """Return the configuration with the manifest's settings in the sections that a resume may change."""
    sections: dict[str, dict[str, Any]] = {name: {} for name in SECTIONS}
    for key, value in saved["settings"].items():
        *path, last = key.split(".")
        if path and path[0] in sections:
            section = sections[path[0]]
            for name in path[1:]:
                section = section.setdefault(name, {})
            section[last] = value
    return with_values(config, sections)


def _loss(config: RunConfig, saved: dict[str, Any]) -> list[str]:
    loss = saved.get("validation_loss")
    if loss is None or not math.isfinite(loss):
        return []
    at = saved["evaluated_step"]
    where = "" if at == saved["step"] else f", measured at step {at:,}"
    value = perplexity(loss) if config.has_perplexity else None
    words = "" if value is None else f" (perplexity {value:,.2f})"
    return [f"{loss:.4f}{words}{where}"]


def _optimizer(config: RunConfig) -> str:
    said = config.optimizer.model_dump()
    return ", ".join(f"{name} {show(value)}" for name, value in said.items() if value is not None)


def _layout(config: RunConfig) -> str:
    parallel = config.parallel
    ranks = f"{config.world_size} ranks: " if config.world_size > 1 else ""
    return f"{ranks}{layout_words(dict(parallel))}, ZeRO {parallel.zero_stage}"


def _devices(run: RunDir, config: RunConfig, saved: dict[str, Any] | None) -> str:
    """Return the number and name of the devices that trained the checkpoint, such as "8 x H100".

    `saved` is the entry `device` of the checkpoint's manifest. If it is None, the devices come from the
    records of the newest job.
    """
    if saved is not None:
        return f"{config.world_size} x {saved['name']}" if saved["kind"] == "gpu" else f"CPU, {saved['name']}"
    job = run.newest_job()
    known = files.read_json(job.environment_json) if job is not None else None
    if config.resources.device == "gpu":
        gpus = {gpu["name"] for gpu in (known or {}).get("gpus", [])}
        named = ", ".join(sorted(gpus)) or config.resources.gpu_type or "GPUs"
        return f"{config.world_size} x {named}"
    return str(((known or {}).get("cpu") or {}).get("name") or "CPU")


def _data(config: RunConfig) -> str:
    """Return the section about the dataset's sources and their licences, from the dataset's manifest."""
    try:
        manifest = dataset_of(config).manifest()
    except DataError:
        manifest = None
    if manifest is None or not manifest.sources:
        return "## Data\n\nThe sources are not known, because nbtrain did not create the dataset from text.\n"
    heads = ("source", "documents", "tokens", "licence")
    lines = Table(heads, [_source(source) for source in manifest.sources]).markdown()
    said = [f"\n{source['attribution']}" for source in manifest.sources if source.get("attribution")]
    return "\n".join(["## Data\n", *lines, *said, "", _whole(manifest)])


def _source(source: dict[str, Any]) -> tuple[Any, ...]:
    """Return a source's row in the table: name, documents, tokens, licence."""
    name = source.get("name") or source.get("kind") or ""
    # A licence with several lines would break the table row.
    licence = " ".join(str(source.get("licence") or "not stated").split())
    return name, source.get("documents"), source.get("tokens"), licence


def _whole(manifest: DatasetManifest) -> str:
    tokens, sha256 = manifest.counts["tokens"], manifest.dataset_sha256[:12]
    return f"In total, the dataset has {tokens:,} tokens (sha256 {sha256}).\n"


def _table(title: str, rows: list[tuple[str, str]]) -> str:
    return "\n".join([f"## {title}\n", *Table(("", ""), rows).markdown(), ""])
