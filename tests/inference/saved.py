"""A run with a checkpoint and a tokenizer, created without training; its generated texts do not repeat
themselves.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from nbtrain.base import files
from nbtrain.base.run_directory.checkpoint_files import SCHEMA_VERSION
from nbtrain.base.run_directory.rundir import RunDir, new_run_id
from nbtrain.base.workspace import tokenizer_dir
from nbtrain.checkpoint.files import manifest
from nbtrain.checkpoint.live import describe, resume_report
from nbtrain.config.load import load, to_yaml
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.inference.loaded import model_of
from nbtrain.model.initialization import Initializer
from nbtrain.parallel.tensor import partition_dim
from tests.inference import made

MODEL = {
    "model.num_layers": 2,
    "model.hidden_size": 32,
    "model.num_attention_heads": 4,
    "model.seq_length": 96,
    "model.untie_embeddings_and_output_weights": True,
    "model.make_vocab_size_divisible_by": 8,
    "tokenizer.name": "small",
    "tokenizer.vocab_size": made.VOCAB_SIZE,
    "data.name": "small",
}
STEP = 7


def save_run(
    name: str = "talks",
    overrides: dict[str, Any] | None = None,
    std: float = 0.3,
    alter: Callable[[torch.nn.Module], None] = lambda model: None,
) -> RunDir:
    """Write output/`name` in the workspace with a complete checkpoint of step 7, as one process writes it.

    `alter` changes the weights before they are saved.
    """
    folder = tokenizer_dir("small")
    if not folder.is_dir():
        made.tokenizer_in(folder)
    config = load("gpt-tiny", {"name": name, **MODEL, **(overrides or {})})
    run = RunDir.named(name)
    run.path.mkdir(parents=True)
    files.write_json(
        run.run_json, {"schema_version": 1, "run_id": new_run_id(), "name": name, "parent": None}
    )
    files.write_text(run.config_yaml, to_yaml(config))
    model = model_of(config)
    init = Initializer(1, std, model.config.num_layers)
    for key, parameter in model.named_parameters():
        if parameter.dim() == 2:
            parameter.data = init.normal(key, *parameter.shape).data
    alter(model)
    write_checkpoint(run, config, model, Tokenizer.load(folder).sha256)
    return run


def write_checkpoint(run: RunDir, config: Any, model: torch.nn.Module, tokenizer_sha256: str) -> None:
    to = run.checkpoint(STEP)
    to.mkdir(parents=True)
    name = Path("mp_rank_00_model_states.pt")
    torch.save({"module": model.state_dict()}, to / name)
    entries = manifest.describe(to, [name])
    parameters = {
        key: {
            "shape": list(value.shape),
            "partition_dim": partition_dim(value),
            "group": "decay",
            "stage": 0,
        }
        for key, value in model.named_parameters()
    }
    described = {
        "schema_version": SCHEMA_VERSION,
        "step": STEP,
        "consumed_tokens": 0,
        "layout": {**describe.layout(config), "weights": "fp32", "zero_stage": 1},
        "architecture": describe.architecture(config),
        "vocab_size": config.tokenizer.vocab_size,
        "padded_vocab_size": config.padded_vocab_size,
        "tokenizer_sha256": tokenizer_sha256,
        "settings": resume_report.settings(config),
        "parameters": parameters,
        "files": {str(name): {**entries[str(name)], "rank": [0, 0, 0]}},
    }
    files.write_json(to / manifest.MANIFEST, described)


def damage(run: RunDir, step: int) -> None:
    """Write a newer checkpoint in which one file does not match the manifest."""
    shutil.copytree(run.checkpoint(STEP), run.checkpoint(step))
    torn = run.checkpoint(step) / "mp_rank_00_model_states.pt"
    content = bytearray(torn.read_bytes())
    content[len(content) // 2] ^= 1
    torn.write_bytes(content)
