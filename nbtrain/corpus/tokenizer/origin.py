"""The folder that a run's model came from, as long as the run has that folder's tokenizer.

init_from.json of the run names it. A run that began from another run has it from that run's.
"""

from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.rundir import RunDir
from nbtrain.corpus.tokenizer.exported import is_as_given
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer

KEYS = ("config", "generation_config", "tokenizer_sha256")


def recorded_origin(run: RunDir) -> dict[str, Any]:
    """{config, generation_config, tokenizer_sha256} of the folder, by init_from.json; {} if there is none."""
    record = files.read_json(run.init_from_json) or {}
    found = record.get("origin", record)
    return {key: found[key] for key in KEYS if key in found}


def origin_of(run: RunDir, directory: Path) -> dict[str, Any]:
    """As recorded_origin; {} if the tokenizer in `directory` is not the folder's."""
    found = recorded_origin(run)
    return found if is_as_given(directory, found.get("tokenizer_sha256")) else {}


def end_ids(run: RunDir, tokenizer: Tokenizer) -> frozenset[int]:
    """The ids that end a text: the tokenizer's, and all that transformers' generate would end at.

    Models that answer have several (Llama 3 Instruct three: generation_config.json's eos_token_id).
    """
    found = origin_of(run, tokenizer.directory)
    for name in ("generation_config", "config"):
        named = (found.get(name) or {}).get("eos_token_id")
        if named is not None:
            ids = named if isinstance(named, list) else [named]
            return frozenset({tokenizer.eod_id, *(one for one in ids if type(one) is int)})
    return frozenset({tokenizer.eod_id})
