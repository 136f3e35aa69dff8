"""Initial weights: each parameter is drawn from its own random stream, so that no layout changes them.

    matrices and embeddings     normal(0, std)                        GPT-2, GPT-3
    residual projections        normal(0, std / sqrt(2 num_layers))   GPT-2, section 2.3
    biases 0, LayerNorm weights 1
    adapters                              uniform within 1 / sqrt(inputs), and 0     parallel/lora.py

A parameter's generator is seeded from the model's seed and the parameter's canonical name. In every layout a
parameter therefore starts with the same numbers, and a part of it with the same part of them.
"""

import hashlib
import math
from collections.abc import Callable

import torch


class Initializer:
    """Creates the initial values of all parameters of one model."""

    def __init__(self, seed: int, std: float, num_layers: int):
        self.seed = seed
        self.std = std
        self.residual_std = std / math.sqrt(2 * num_layers)

    def normal(
        self, name: str, *shape: int, residual: bool = False, std: float | None = None
    ) -> torch.nn.Parameter:
        """Create a matrix or an embedding; `residual` is for projections that write to the residual stream.

        `std` replaces the model's standard deviation.
        """
        if std is None:
            std = self.residual_std if residual else self.std
        return self._drawn(
            name, shape, lambda weight, generator: weight.normal_(0.0, std, generator=generator)
        )

    def uniform(self, name: str, bound: float, *shape: int) -> torch.nn.Parameter:
        """Create the first matrix of an adapter (parallel/lora.py)."""
        return self._drawn(
            name, shape, lambda weight, generator: weight.uniform_(-bound, bound, generator=generator)
        )

    def _drawn(self, name: str, shape: tuple[int, ...], draw: Callable[..., object]) -> torch.nn.Parameter:
        target = torch.empty(shape)
        if target.is_meta:
            # The model gets its weights from elsewhere.
            return torch.nn.Parameter(target)
        digest = hashlib.sha256(f"{self.seed} {name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7]))
        # Under deepspeed.zero.Init torch.empty has the compute dtype: draw in fp32 first, then convert.
        weight = torch.empty(shape, device="cpu").float()
        draw(weight, generator)
        return torch.nn.Parameter(target.copy_(weight))

    def zeros(self, *shape: int) -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.zeros(shape))

    def ones(self, *shape: int) -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.ones(shape))

    def filled(self, value: float, *shape: int) -> torch.nn.Parameter:
        """Create a parameter with equal numbers, for blocks of the user (custom_layer.py)."""
        return torch.nn.Parameter(torch.full(shape, value))


class Zeros(Initializer):
    """Initializer for a run that loads its weights next: zeros and ones in the model's format and on its
    device.

    No matrix is drawn, and the host has no second copy of the model. Loading does not set the padding of the
    vocabulary, which no softmax uses and which remains 0. `seed` is the run's, for parameters that no folder
    contains.
    """

    def __init__(self, seed: int, device: str, dtype: torch.dtype) -> None:
        super().__init__(seed, std=0.0, num_layers=1)
        self.device, self.dtype = device, dtype

    def normal(
        self, name: str, *shape: int, residual: bool = False, std: float | None = None
    ) -> torch.nn.Parameter:
        return self.zeros(*shape)

    def uniform(self, name: str, bound: float, *shape: int) -> torch.nn.Parameter:
        drawn = super().uniform(name, bound, *shape)
        return torch.nn.Parameter(drawn.detach().to(self.device, self.dtype))

    def zeros(self, *shape: int) -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.zeros(shape, device=self.device, dtype=self.dtype))

    def ones(self, *shape: int) -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.ones(shape, device=self.device, dtype=self.dtype))

    def filled(self, value: float, *shape: int) -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.full(shape, value, device=self.device, dtype=self.dtype))


class Unset(Initializer):
    """Initializer for parameters whose weights are loaded: memory is allocated but not written."""

    def __init__(self) -> None:
        super().__init__(seed=0, std=0.0, num_layers=1)

    def normal(
        self, name: str, *shape: int, residual: bool = False, std: float | None = None
    ) -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.empty(shape))
