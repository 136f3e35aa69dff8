"""Trained token rows in the format of `peft`: trainable_token_indices, and one tensor for each matrix.

    base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta    [ids, h]
    base_model.model.lm_head.token_adapter.trainable_tokens_delta               [ids, h], if it is not tied

The numbers are the rows themselves, in the order of the ids, not differences from the base's rows (peft
0.21.2, tuners/trainable_tokens/layer.py). A tied output layer follows the embedding.

This module does not use torch; checkpoint/weights/peft_adapters.py reads the tensors, and
checkpoint/pretrained/adapters.py writes them.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from nbtrain.base.errors import CheckpointError
from nbtrain.config.schema import RunConfig
from nbtrain.pretrained.peft_files import PREFIX
from nbtrain.pretrained.tensors import Sizes
from nbtrain.pretrained.written import family_of

SETTING = "trainable_token_indices"
ENDING = ".token_adapter.trainable_tokens_delta"
TIED_OUTPUT = "lm_head"
EMBEDDING, OUTPUT = "word_embeddings.trained_rows", "output_layer.trained_rows"


class TokenModule(NamedTuple):
    """A module of the family's model in which some rows are trained."""

    rows: str
    """Canonical name of our rows."""
    name: str
    """Name in the family's model, e.g. model.embed_tokens."""

    @property
    def tensor(self) -> str:
        """Return the name of the module's tensor in the file."""
        return f"{PREFIX}{self.name}{ENDING}"

    @property
    def short(self) -> str:
        """Return the module's name in the setting."""
        return self.name.rpartition(".")[2]


def token_modules(config: RunConfig) -> list[TokenModule]:
    """Return the modules whose rows a run trains; [] if it trains none."""
    return modules_of_vocabulary(config) if ids_of(config) else []


def ids_of(config: RunConfig) -> list[int]:
    """Return the ids whose rows a run trains, ascending."""
    return sorted((config.lora.trainable_token_indices if config.lora is not None else None) or [])


def modules_of_vocabulary(config: RunConfig) -> list[TokenModule]:
    """Return the embedding, and the output layer if untied. Raises ConfigError if no family has the model."""
    known = family_of(config).tensors(Sizes.of(config.model, config.tokenizer.vocab_size))
    found = []
    for rows in (EMBEDDING, OUTPUT):
        if (weight := rows.replace("trained_rows", "weight")) in known.pieces:
            name = known.pieces[weight][0].tensor.removesuffix(".weight")
            found.append(TokenModule(rows, name))
    return found


def setting_of(config: RunConfig) -> dict[str, list[int]] | None:
    """Return the setting for adapter_config.json; None if no rows are trained."""
    return {module.short: ids_of(config) for module in token_modules(config)} or None


def shapes_of(config: RunConfig) -> dict[str, tuple[int, ...]]:
    """Return {tensor: shape} for the file to be written."""
    shape = (len(ids_of(config)), config.model.hidden_size)
    return {module.tensor: shape for module in token_modules(config)}


def said_by(found: Mapping[str, Any], config: RunConfig) -> dict[str, list[int]]:
    """Return {canonical name: ids} of the rows in a file, according to its settings.

    A plain list means rows of the embedding. Raises CheckpointError if the setting cannot be read.
    """
    said = found.get(SETTING) or {}
    modules = modules_of_vocabulary(config)
    if isinstance(said, list):
        said = {modules[0].short: said}
    by_name: dict[str, list[int]] = {}
    for name, ids in said.items() if isinstance(said, dict) else [(str(said), None)]:
        module = next((one for one in modules if f".{one.name}".endswith(f".{name}")), None)
        if module is None and name == TIED_OUTPUT and len(modules) == 1:
            continue  # peft ties it to the embedding's rows
        if module is None or not isinstance(ids, list) or not all(type(one) is int for one in ids):
            raise CheckpointError(f"{SETTING} is {found[SETTING]!r}, which is not supported")
        if ids:
            by_name[module.rows] = ids
    return by_name


def whole_matrix_problem(tensors: Mapping[str, Any], config: RunConfig) -> str:
    """Describe a whole embedding or output layer in a file, which no run trains along with adapters; "" if
    none.
    """
    modules = {*(module.name for module in modules_of_vocabulary(config)), TIED_OUTPUT}
    stems = tuple(f"{PREFIX}{module}." for module in modules)
    whole = sorted(name for name in tensors if name.startswith(stems) and name.endswith(".weight"))
    if not whole:
        return ""
    return (
        f"has {whole[0].removeprefix(PREFIX)}, a whole matrix of the vocabulary, which peft adds if the base "
        "was resized; write the adapters with save_pretrained(..., save_embedding_layers=False)"
    )


def problems_of(found: Mapping[str, Any], tensors: Mapping[str, Any], config: RunConfig) -> list[str]:
    """Return why the rows of a folder do not fit a run; [] if they fit or the folder has no rows."""
    said = said_by(found, config)
    ours = ids_of(config)
    for module in modules_of_vocabulary(config):
        ids = said.get(module.rows)
        if ids is None:
            continue
        if sorted(ids) != ours:
            return [f"{SETTING} of {module.short} is {_short(ids)}: lora.{SETTING} is {_short(ours)}"]
        if module.tensor not in tensors:
            return [f"has no {module.tensor.removeprefix(PREFIX)}, and {SETTING} says that it has"]
        shape, wanted = tuple(tensors[module.tensor].shape), (len(ids), config.model.hidden_size)
        if shape != wanted:
            return [f"{module.tensor.removeprefix(PREFIX)} is {list(shape)}, and {list(wanted)} here"]
    return []


def _short(ids: list[int]) -> str:
    return str(ids) if len(ids) <= 8 else f"[{ids[0]}, {ids[1]}, ... {ids[-1]}] ({len(ids):,} ids)"
