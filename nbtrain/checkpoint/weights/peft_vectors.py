"""IA3 vectors in a `peft` folder, read like a checkpoint (pretrained/peft_ia3.py maps their names)."""

from functools import cached_property
from pathlib import Path

import torch

from nbtrain.base.errors import CheckpointError
from nbtrain.base.workspace import display
from nbtrain.checkpoint.weights.peft_folder import PeftFolder
from nbtrain.checkpoint.weights.store import StoredParameter
from nbtrain.config.schema import RunConfig
from nbtrain.pretrained.peft_ia3 import RescaledModule, problems_of, rescaled_modules, shapes_of


class PeftVectors(PeftFolder):
    """The vectors in a folder, by canonical name. Raises CheckpointError if they do not match the run."""

    def __init__(self, folder: Path, config: RunConfig):
        super().__init__(folder, shapes_of(config), problems_of(folder, config))
        self.vocab_size = config.tokenizer.vocab_size
        self._modules: dict[str, list[RescaledModule]] = {}
        for module in rescaled_modules(config):
            self._modules.setdefault(module.vector, []).append(module)

    @cached_property
    def parameters(self) -> dict[str, StoredParameter]:
        """Shapes of the unsharded parameters, by canonical name."""
        return {name: StoredParameter(name, (len(self.full(name)),), None, 0) for name in self._modules}

    def full(self, name: str) -> torch.Tensor:
        """Return one unsharded vector in fp32."""
        parts: dict[int, torch.Tensor] = {}
        for module in self._modules[name]:
            found = torch.ones(module.size)
            if module.tensor in self._names:
                found = self._finite(name, self._tensor(module.tensor).flatten())
            if module.is_input:
                return found
            for piece, place in module.pieces:
                rows = found[piece.there : piece.there + piece.count]
                if place is not None:
                    parts[place] = rows
                elif bool((rows != 1).any()):
                    raise CheckpointError(
                        f"{display(self.folder)}: {module.name} multiplies queries, but nbtrain multiplies "
                        "only keys and values."
                    )
        return torch.cat([parts[place] for place in sorted(parts)])
