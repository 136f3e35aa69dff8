"""Exports a twin's weights to one file, loads them in one process, and computes the validation loss.

This is the last check of `nbtrain twin`, after the twin's training. proof/prove.py has the fork server call
`main` as one rank.
"""

from pathlib import Path
from types import SimpleNamespace

import torch

from nbtrain.base import files
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.checkpoint.own_layer import own_layer
from nbtrain.checkpoint.user_code import load_user_code
from nbtrain.checkpoint.weights.model_weights import load_model_weights
from nbtrain.config.load import load_resolved
from nbtrain.dataset.samples.build import build_datasets
from nbtrain.model.gpt import build_model
from nbtrain.parallel import startup
from nbtrain.parallel.groups import ParallelGroups
from nbtrain.train.code.own_loss import OwnLoss
from nbtrain.train.engine.plain_engine import PlainEngine

WEIGHTS = "weights.pt"
ANSWER = "export.json"


def main(trained: str, whole: str) -> int:
    """Write the newest weights of the run `trained` into one file, and evaluate them as the run `whole`.

    `whole` is the configuration of a single process for the same model. The result is in export/export.json
    of `trained`: {"validation_loss", "num_parameters", "num_tensors", "bytes"}.
    """
    run, config = RunDir(trained), load_resolved(RunDir(whole).config_yaml)
    run.export.mkdir(exist_ok=True)
    path = run.export / WEIGHTS
    with files.atomic_writer(path) as stream:
        torch.save(load_model_weights(run.path), stream)

    weights = torch.load(path, map_location="cpu", weights_only=True)
    world = startup.start("cpu", 60)
    code = load_user_code(run, config)
    model = build_model(config, layer_function=own_layer(code))
    # Raises an error if a weight is missing or superfluous.
    model.load_state_dict(weights)
    datasets = build_datasets(config)
    assert datasets.valid is not None
    is_masked = datasets.is_masked
    if code is not None and code.defines("loss"):
        model.loss_function, is_masked = OwnLoss(code, datasets.names), True
    groups = ParallelGroups.create(config.topology, 1, 60)
    holder = SimpleNamespace(module=model, device=world.device)
    engine = PlainEngine(holder, torch.optim.SGD(model.parameters()), groups, 0)
    named = bool(datasets.names)
    loss = engine.loss_on(datasets.valid, config, is_masked, lambda: None, named=named)
    startup.finish()
    files.write_json(
        run.export / ANSWER,
        {
            "validation_loss": loss,
            "num_parameters": sum(value.numel() for value in weights.values()),
            "num_tensors": len(weights),
            "bytes": Path(path).stat().st_size,
        },
    )
    return 0
