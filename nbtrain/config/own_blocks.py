"""Parameter counts of the blocks that layer() in a run's `code` builds, as counted in a trial of the file.

    read_own_block(config)     None for nbtrain's own blocks, and before the file's trial with this model
    write_own_block(config, code_sha256, block)
    know_own_block(config, block)

A block's parameters are known only after running the file, which only the GPU side does. The trial of the
file counts them, and every plan with the same file and the same section `model` reads the counts from
data/own-code/<hash>.json. Ranks count the parameters themselves, because DeepSpeed's bucket sizes depend on
the count, which must be the same on every rank.
"""

import hashlib
import json
import logging
from dataclasses import asdict, replace
from pathlib import Path

from nbtrain.base import files
from nbtrain.base.workspace import data_home, display
from nbtrain.config.code_file import CodeFile, code_file
from nbtrain.config.schema import RunConfig
from nbtrain.config.shape import OwnBlock, Shape

logger = logging.getLogger(__name__)

FOLDER = "own-code"
_known: dict[str, OwnBlock] = {}


def has_own_layer(config: RunConfig) -> bool:
    """Return whether the run's code replaces the blocks."""
    return _layer_file(config) is not None


def shape_of(config: RunConfig) -> Shape:
    """Return the shape of a run's model, with the parameter counts of the user's blocks if they are known."""
    block = read_own_block(config)
    return config.shape if block is None else replace(config.shape, own_block=block)


def read_own_block(config: RunConfig) -> OwnBlock | None:
    """Return the parameter counts of a block from layer().

    None if the run has no layer(), or if the counts are not known yet.
    """
    if config.code is None:
        return None
    if _known and (known := _known.get(_model_of(config))) is not None:
        return known
    code = _layer_file(config)
    found = files.read_json(_path(config, code.sha256)) if code is not None else None
    return None if found is None else OwnBlock(**found["block"])


def write_own_block(config: RunConfig, code_sha256: str, block: OwnBlock) -> None:
    """Write the parameter counts from the trial of a file.

    Logs a warning if the data directory cannot be written. Plans then count the parameters of nbtrain's own
    block.
    """
    path = _path(config, code_sha256)
    if path.is_file():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_json(path, {"code_sha256": code_sha256, "block": asdict(block)})
    except OSError as error:
        logger.warning(
            "%s: cannot be written: %s. Plans count nbtrain's own block instead of the block in %s.",
            *(display(path), error.strerror, config.code),
        )


def know_own_block(config: RunConfig, block: OwnBlock) -> None:
    """Make this process use the parameter counts in `block`.

    Later changes of the data directory or the code file then have no effect.
    """
    _known[_model_of(config)] = block


def _layer_file(config: RunConfig) -> CodeFile | None:
    code = code_file(config)
    return code if code is not None and "layer" in code.functions else None


def _model_of(config: RunConfig) -> str:
    return json.dumps(config.model.model_dump(mode="json"), sort_keys=True)


def _path(config: RunConfig, code_sha256: str) -> Path:
    name = hashlib.sha256(f"{code_sha256} {_model_of(config)}".encode()).hexdigest()
    return data_home() / FOLDER / f"{name}.json"
