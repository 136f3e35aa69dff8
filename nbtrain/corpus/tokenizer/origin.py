"""Reads from which folder a run's model was imported, if the run still uses the tokenizer of that folder.

The run's init_from.json records the folder. A run that started from another run inherits that run's record.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbtrain.base import files
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.corpus.tokenizer.exported import is_as_given

if TYPE_CHECKING:
    from nbtrain.corpus.tokenizer.tokenizer import Tokenizer

KEYS = ("config", "generation_config", "tokenizer_sha256")


def recorded_origin(run: RunDir) -> dict[str, Any]:
    """Return config, generation_config and tokenizer_sha256 as init_from.json records them; {} without it."""
    record = files.read_json(run.init_from_json) or {}
    # A run that started from another run has copied the origin of that run.
    found = record.get("origin", record)
    return {key: found[key] for key in KEYS if key in found}


def origin_of(run: RunDir, directory: Path) -> dict[str, Any]:
    """Return the run's recorded_origin(), or {} if `directory` does not hold the recorded tokenizer."""
    found = recorded_origin(run)
    return found if is_as_given(directory, found.get("tokenizer_sha256")) else {}


def end_ids(run: RunDir, tokenizer: "Tokenizer") -> frozenset[int]:
    """Return the ids that end a text: the tokenizer's, and all ids at which transformers' generate() stops.

    Instruction-tuned models have several: Llama 3 Instruct has three, in eos_token_id of
    generation_config.json. If generation_config.json is missing, the ids in config.json are used.
    """
    found = origin_of(run, tokenizer.directory)
    settings = found.get("generation_config") or found.get("config") or {}
    return frozenset({tokenizer.eod_id, *ids_in(settings.get("eos_token_id"))})


def ids_in(value: Any) -> list[int]:
    """Return the ids in an eos_token_id, which may be a number, a list or missing; ignore other values."""
    return [one for one in (value if isinstance(value, list) else [value]) if type(one) is int]
