"""A `peft` folder, open for reading. peft_adapters.py and peft_vectors.py read the two kinds."""

from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import safe_open

from nbtrain.base.errors import CheckpointError
from nbtrain.base.workspace import display
from nbtrain.checkpoint.weights.masters import MadeWhole
from nbtrain.pretrained.folder import PEFT_WEIGHTS
from nbtrain.pretrained.peft_files import read_tensors


class PeftFolder(MadeWhole):
    """The open file of a `peft` folder. Its tensors are found by the names that the run needs
    (peft_files.read_tensors). Raises CheckpointError if the folder does not fit the run, or if its file is
    damaged.
    """

    def __init__(self, folder: Path, wanted: Iterable[str], problems: list[str]):
        if problems:
            raise CheckpointError(f"{display(folder)}: does not fit this run: {'; '.join(problems)}.")
        self.folder = folder
        # A tensor's name in the file may differ from peft's name, for example by the _orig_mod. of
        # torch.compile.
        self._names = {name: tensor.name for name, tensor in read_tensors(folder, wanted).items()}
        self._file = safe_open(folder / PEFT_WEIGHTS, framework="pt", device="cpu")

    @property
    def dtype(self) -> torch.dtype:
        """Format of the first tensor."""
        return self._file.get_tensor(next(iter(self._names.values()))).dtype

    def _tensor(self, name: str) -> torch.Tensor:
        return self._file.get_tensor(self._names[name]).float()

    def _finite(self, name: str, found: torch.Tensor) -> torch.Tensor:
        if not bool(torch.isfinite(found).all()):
            raise CheckpointError(f"{display(self.folder)}: {name} holds NaN or Inf. Get another copy.")
        return found
