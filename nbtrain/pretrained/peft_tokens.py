"""Trained token rows in the format of `peft`: trainable_token_indices, and one tensor for each matrix.

    base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta    [ids, h]
    base_model.model.lm_head.token_adapter.trainable_tokens_delta               [ids, h], if not tied

Despite their name, the tensors contain the rows themselves, in the order of the ids, not differences from the
base model's rows (peft 0.21.2, tuners/trainable_tokens/layer.py). A tied output layer uses the embedding's
rows.

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
    """Canonical name of the rows in nbtrain."""
    name: str
    """Name in the family's model, such as model.embed_tokens."""

    @property
    def tensor(self) -> str:
        """Name of the module's tensor in the file."""
        return f"{PREFIX}{self.name}{ENDING}"

    @property
    def short(self) -> str:
        """Last part of the module's name, by which the setting trainable_token_indices refers to it."""
        return self.name.rpartition(".")[2]


def token_modules(config: RunConfig) -> list[TokenModule]:
    """Return the modules in which a run trains token rows; [] if it does not train token rows."""
    return modules_of_vocabulary(config) if ids_of(config) else []


def ids_of(config: RunConfig) -> list[int]:
    """Return the token ids whose rows a run trains, ascending."""
    return sorted((config.lora.trainable_token_indices if config.lora is not None else None) or [])


def modules_of_vocabulary(config: RunConfig) -> list[TokenModule]:
    """Return the embedding and, if it is not tied, the output layer.

    Raises ConfigError if no family can express the run's model.
    """
    known = family_of(config).tensors(Sizes.of(config.model, config.tokenizer.vocab_size))
    found = []
    for rows in (EMBEDDING, OUTPUT):
        if (weight := rows.replace("trained_rows", "weight")) in known.pieces:
            name = known.pieces[weight][0].tensor.removesuffix(".weight")
            found.append(TokenModule(rows, name))
    return found


def setting_of(config: RunConfig) -> dict[str, list[int]] | None:
    """Return trainable_token_indices for adapter_config.json; None if no token rows are trained."""
    return {module.short: ids_of(config) for module in token_modules(config)} or None


def shapes_of(config: RunConfig) -> dict[str, tuple[int, ...]]:
    """Return {tensor: shape} of the token rows in the adapter file that a run writes."""
    shape = (len(ids_of(config)), config.model.hidden_size)
    return {module.tensor: shape for module in token_modules(config)}


def said_by(found: Mapping[str, Any], config: RunConfig) -> dict[str, list[int]]:
    """Return {canonical name: ids} of the token rows in a folder, according to its adapter_config.json.

    A plain list of ids means rows of the embedding. Raises CheckpointError if the setting is not supported.
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
            raise CheckpointError(
                f"{SETTING} is {found[SETTING]!r}, but must be a list of ids, or lists of ids by module"
            )
        if ids:
            by_name[module.rows] = ids
    return by_name


def whole_matrix_problem(tensors: Mapping[str, Any], config: RunConfig) -> str:
    """Return a clause about a whole embedding or output layer in an adapter file; "" if there is none.

    Such a matrix is a problem, because a run with adapters trains only single rows of the two matrices.
    """
    modules = {*(module.name for module in modules_of_vocabulary(config)), TIED_OUTPUT}
    stems = tuple(f"{PREFIX}{module}." for module in modules)
    whole = sorted(name for name in tensors if name.startswith(stems) and name.endswith(".weight"))
    if not whole:
        return ""
    return (
        f"contains {whole[0].removeprefix(PREFIX)}, a whole vocabulary matrix, which peft saves if the base "
        "model was resized; save the adapters with save_pretrained(..., save_embedding_layers=False)"
    )


def problems_of(found: Mapping[str, Any], tensors: Mapping[str, Any], config: RunConfig) -> list[str]:
    """Return why a folder's token rows do not fit a run; [] if they fit, or if it has no token rows."""
    said = said_by(found, config)
    ours = ids_of(config)
    for module in modules_of_vocabulary(config):
        ids = said.get(module.rows)
        if ids is None:
            continue
        if sorted(ids) != ours:
            return [
                f"{SETTING} for {module.short} is {_short(ids)}, but the run's lora.{SETTING} is "
                f"{_short(ours)}"
            ]
        if module.tensor not in tensors:
            return [f"has no {module.tensor.removeprefix(PREFIX)}, although {SETTING} lists its ids"]
        shape, wanted = tuple(tensors[module.tensor].shape), (len(ids), config.model.hidden_size)
        if shape != wanted:
            name = module.tensor.removeprefix(PREFIX)
            return [f"{name} has the shape {list(shape)}, but the run needs {list(wanted)}"]
    return []


def _short(ids: list[int]) -> str:
    return str(ids) if len(ids) <= 8 else f"[{ids[0]}, {ids[1]}, ... {ids[-1]}] ({len(ids):,} ids)"
