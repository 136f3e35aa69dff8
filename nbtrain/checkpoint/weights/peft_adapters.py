"""Adapters in a `peft` folder, read like a checkpoint (pretrained/peft.py maps their names)."""

from functools import cached_property
from pathlib import Path

import torch

from nbtrain.base.errors import CheckpointError
from nbtrain.base.workspace import display
from nbtrain.checkpoint.weights.peft_folder import PeftFolder
from nbtrain.checkpoint.weights.peft_vectors import PeftVectors
from nbtrain.checkpoint.weights.store import StoredParameter
from nbtrain.config.schema import RunConfig
from nbtrain.model.initialization import Initializer
from nbtrain.model.names import adapters_of
from nbtrain.pretrained.peft import AdaptedModule, adapted_modules, adapter_problems, wanted_tensors
from nbtrain.pretrained.peft_files import read_settings
from nbtrain.pretrained.peft_tokens import modules_of_vocabulary, said_by


def read_adapters(folder: Path, config: RunConfig) -> "PeftAdapters | PeftVectors":
    """Read adapters from a folder. Raises CheckpointError if they are not of the run's lora.kind."""
    assert config.lora is not None
    return PeftVectors(folder, config) if config.lora.kind == "ia3" else PeftAdapters(folder, config)


class PeftAdapters(PeftFolder):
    """The adapters in a folder, by canonical name. Raises CheckpointError if they do not match the run."""

    def __init__(self, folder: Path, config: RunConfig):
        assert config.lora is not None
        super().__init__(folder, wanted_tensors(config), adapter_problems(folder, config))
        self.rank, self.seed = config.lora.rank, config.model.seed
        self.vocab_size = config.tokenizer.vocab_size
        self._modules: dict[str, list[AdaptedModule]] = {}
        for module in adapted_modules(config):
            self._modules.setdefault(module.weight, []).append(module)
        said = said_by(read_settings(folder), config)
        self._tokens = {
            one.rows: (one.tensor, said[one.rows])
            for one in modules_of_vocabulary(config)
            if one.rows in said
        }
        self.hidden_size = config.model.hidden_size

    @cached_property
    def parameters(self) -> dict[str, StoredParameter]:
        """Shapes of the unsharded parameters, by canonical name."""
        found = {}
        for weight, modules in self._modules.items():
            parts = len({one for module in modules for one in module.projections})
            outputs = sum(module.outputs for module in modules)
            a, b = adapters_of(weight)
            found[a] = StoredParameter(a, (parts * self.rank, modules[0].inputs), None, 0)
            found[b] = StoredParameter(b, (outputs, self.rank), None, 0)
        for rows, (_, ids) in self._tokens.items():
            found[rows] = StoredParameter(rows, (len(ids), self.hidden_size), None, 0)
        return found

    def full(self, name: str) -> torch.Tensor:
        """Return one unsharded matrix in fp32. Trained token rows are in ascending order of token ids."""
        if name in self._tokens:
            return self._finite(name, self._rows(*self._tokens[name]))
        weight = next(weight for weight in self._modules if name in adapters_of(weight))
        out = self._begun(name, is_first=name == adapters_of(weight)[0])
        for module in self._modules[weight]:
            if module.tensors[0] not in self._names:
                continue
            a, b = map(self._tensor, module.tensors)
            self._fill(out, module, a, b, is_first=name == adapters_of(weight)[0])
        return self._finite(name, out)

    def _begun(self, name: str, is_first: bool) -> torch.Tensor:
        """Return a new adapter's initial matrix (parallel/lora.py), for modules that the folder lacks."""
        shape = self.parameters[name].shape
        if not is_first:
            return torch.zeros(shape)
        return Initializer(self.seed, 0.0, 1).uniform(name, shape[1] ** -0.5, *shape).detach()

    def _rows(self, tensor: str, ids: list[int]) -> torch.Tensor:
        order = sorted(range(len(ids)), key=ids.__getitem__)
        return self._tensor(tensor)[order]

    def _fill(
        self, out: torch.Tensor, module: AdaptedModule, a: torch.Tensor, b: torch.Tensor, is_first: bool
    ) -> None:
        used, rank = sorted(set(module.projections)), self.rank
        shared = len(a) == rank
        for number, projection in enumerate(used):
            column = 0 if shared else number * rank
            if is_first:
                out[projection * rank : (projection + 1) * rank] = a[column : column + rank]
        if is_first:
            return
        for piece, projection in zip(module.pieces, module.projections, strict=True):
            column = 0 if shared else used.index(projection) * rank
            rows = b[piece.there : piece.there + piece.count]
            if rows.count_nonzero() != rows[:, column : column + rank].count_nonzero():
                raise CheckpointError(
                    f"{display(self.folder)}: {module.name} has one adapter of rank {len(a)} for queries, "
                    f"keys and values together, but nbtrain needs a separate one of rank {rank} (lora.rank) "
                    "for each of them."
                )
            out[piece.first : piece.first + piece.count] = rows[:, column : column + rank]
