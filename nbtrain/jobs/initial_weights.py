"""The weights that a run starts from (`init_from`), before launch: do they fit, and which are they.

A run that has a checkpoint goes on from it: the folder is not looked at any more, and need not be there.
"""

from nbtrain.base import files
from nbtrain.base.checkpoint_files import newest_saved_step
from nbtrain.base.errors import CheckpointError
from nbtrain.base.rundir import SCHEMA_VERSION, RunDir
from nbtrain.config.schema import RunConfig
from nbtrain.corpus.tokenizer.folder import ONE_FILE
from nbtrain.jobs.machine import Machine
from nbtrain.jobs.obstacle import Obstacles, mistake
from nbtrain.pretrained.fit import fit, open_initial


def initial_weights_fit(config: RunConfig, machine: Machine) -> Obstacles:
    """The folder is whole by its heads, and is the run's model."""
    if not needs_initial(RunDir.named(config.name), config):
        return
    where = f"{config.where('init_from')}: init_from"
    try:
        model = open_initial(config)
    except CheckpointError as error:
        yield mistake(f"{where}: {error}", "")
        return
    for key, words in fit(model, config).problems:
        fix = "`nbtrain import-model` writes a run YAML that fits its folder."
        yield mistake(f"{config.where(key)}: {key} {words}: the weights do not fit.", fix)


def needs_initial(run: RunDir, config: RunConfig) -> bool:
    """Whether the run's next job begins with what init_from names."""
    return config.init_from is not None and newest_saved_step(run) is None


def record_initial(run: RunDir, config: RunConfig) -> list[str]:
    """Write init_from.json, for the ranks to compare and for an export; what differs and may, in words."""
    if not needs_initial(run, config):
        return []
    model = open_initial(config)
    folder, tokenizer = model.folder, model.path / ONE_FILE
    record = {
        "schema_version": SCHEMA_VERSION,
        "path": config.init_from,
        "family": model.title,
        "sha256": folder.sha256,
        "files": {path.name: path.stat().st_size for path in folder.shards},
        "parameters": model.count,
        "dtypes": model.dtypes,
        "config": folder.config,
        "generation_config": folder.generation_config,
        "tokenizer_sha256": files.sha256_of(tokenizer) if tokenizer.is_file() else None,
    }
    files.write_json(run.init_from_json, record)
    return [f"init_from: {note}" for note in fit(model, config).notes]
