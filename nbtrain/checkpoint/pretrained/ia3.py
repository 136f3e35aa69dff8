"""Tensors of IA3's vectors in the files of `peft` (pretrained/peft_ia3.py maps their names).

write_vectors(store, config, folder, dtype)    writes a checkpoint's vectors as a folder of peft
PeftVectors(folder, config)                    such a folder, read like a checkpoint
"""

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import torch
from safetensors import safe_open

from nbtrain.base import files
from nbtrain.base.errors import CheckpointError
from nbtrain.base.workspace import display
from nbtrain.checkpoint.masters import MadeWhole
from nbtrain.checkpoint.pretrained.files import write_file
from nbtrain.checkpoint.store import CheckpointStore, StoredParameter
from nbtrain.config.schema import RunConfig
from nbtrain.pretrained.peft_files import SETTINGS, WEIGHTS, read_tensors
from nbtrain.pretrained.peft_ia3 import RescaledModule, problems_of, rescaled_modules, settings_of, shapes_of


def write_vectors(
    store: CheckpointStore, config: RunConfig, folder: Path, dtype: torch.dtype
) -> Iterator[tuple[int, int]]:
    """Write the vectors of a checkpoint, and yield (bytes done, bytes)."""
    modules = {module.tensor: module for module in rescaled_modules(config)}

    def tensor_of(name: str) -> torch.Tensor:
        module = modules[name]
        vector = store.full(module.vector)
        if module.is_input:
            return vector.view(1, -1).to(dtype)
        written = torch.ones(module.size)
        for piece, place in module.pieces:
            if place is not None:
                written[piece.there : piece.there + piece.count] = vector[place : place + piece.count]
        return written.view(-1, 1).to(dtype)

    shapes = shapes_of(config)
    total, done = sum(torch.Size(shape).numel() for shape in shapes.values()) * dtype.itemsize, 0
    for count in write_file(folder / WEIGHTS, shapes, dtype, tensor_of, {"format": "pt"}):
        done += count
        yield done, total
    files.write_json(folder / SETTINGS, settings_of(config))


class PeftVectors(MadeWhole):
    """The vectors of a folder by canonical name. Raises CheckpointError if they do not match the run."""

    def __init__(self, folder: Path, config: RunConfig):
        if problems := problems_of(folder, config):
            raise CheckpointError(f"{display(folder)}: does not fit this run: {'; '.join(problems)}.")
        self.folder, self.vocab_size = folder, config.tokenizer.vocab_size
        self._modules: dict[str, list[RescaledModule]] = {}
        for module in rescaled_modules(config):
            self._modules.setdefault(module.vector, []).append(module)
        self._names = {name: tensor.name for name, tensor in read_tensors(folder, shapes_of(config)).items()}
        self._file = safe_open(folder / WEIGHTS, framework="pt", device="cpu")

    @property
    def dtype(self) -> torch.dtype:
        """Format of the first tensor."""
        return self._file.get_tensor(next(iter(self._names.values()))).dtype

    @cached_property
    def parameters(self) -> dict[str, StoredParameter]:
        """Whole parameters by canonical name."""
        return {name: StoredParameter(name, (len(self.full(name)),), None, 0) for name in self._modules}

    def full(self, name: str) -> torch.Tensor:
        """Return one whole vector, fp32."""
        parts: dict[int, torch.Tensor] = {}
        for module in self._modules[name]:
            if (stored := self._names.get(module.tensor)) is None:
                found = torch.ones(module.size)
            else:
                found = self._file.get_tensor(stored).float().flatten()
            if not bool(torch.isfinite(found).all()):
                raise CheckpointError(f"{display(self.folder)}: {name} holds NaN or Inf. Get another copy.")
            if module.is_input:
                return found
            for piece, place in module.pieces:
                rows = found[piece.there : piece.there + piece.count]
                if place is not None:
                    parts[place] = rows
                elif bool((rows != 1).any()):
                    raise CheckpointError(
                        f"{display(self.folder)}: {module.name} multiplies queries, and here keys and values "
                        "alone are multiplied."
                    )
        return torch.cat([parts[place] for place in sorted(parts)])
