"""Initial weights. Each parameter has its own random stream, so the weights are equal in all layouts.

    matrices and embeddings     normal(0, std)                        GPT-2, GPT-3
    residual projections        normal(0, std / sqrt(2 num_layers))   GPT-2, section 2.3
    biases 0, LayerNorm weights 1
    adapters                    uniform within 1 / sqrt(inputs), and 0    parallel/lora.py

A parameter's generator is seeded from the model's seed and the parameter's canonical name. In every layout, a
parameter therefore starts with the same numbers, and a shard with the corresponding part of them.
"""

import hashlib
import math
from collections.abc import Callable

import torch


class Initializer:
    """Creates the parameters of a model with their initial values."""

    def __init__(self, seed: int, std: float, num_layers: int):
        self.seed = seed
        self.std = std
        self.residual_std = std / math.sqrt(2 * num_layers)

    def normal(
        self, name: str, *shape: int, residual: bool = False, std: float | None = None
    ) -> torch.nn.Parameter:
        """Create a normally distributed matrix or embedding.

        Its standard deviation is `std`. If `std` is None, it is the model's standard deviation or, with
        `residual`, the smaller one of projections to the residual stream.
        """
        if std is None:
            std = self.residual_std if residual else self.std
        return self._drawn(
            name, shape, lambda weight, generator: weight.normal_(0.0, std, generator=generator)
        )

    def uniform(self, name: str, bound: float, *shape: int) -> torch.nn.Parameter:
        """Create a parameter uniform in [-bound, bound], for the first matrix of an adapter (lora.py)."""
        return self._drawn(
            name, shape, lambda weight, generator: weight.uniform_(-bound, bound, generator=generator)
        )

    def _drawn(self, name: str, shape: tuple[int, ...], draw: Callable[..., object]) -> torch.nn.Parameter:
        target = torch.empty(shape)
        if target.is_meta:
            # On the meta device, the weights come from elsewhere.
            return torch.nn.Parameter(target)
        digest = hashlib.sha256(f"{self.seed} {name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7]))
        # Under deepspeed.zero.Init, torch.empty has the compute dtype, so draw in fp32 and then convert.
        weight = torch.empty(shape, device="cpu").float()
        draw(weight, generator)
        return torch.nn.Parameter(target.copy_(weight))

    def zeros(self, *shape: int) -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.zeros(shape))

    def ones(self, *shape: int) -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.ones(shape))

    def filled(self, value: float, *shape: int) -> torch.nn.Parameter:
        """Create a parameter filled with `value`, for user-defined blocks (custom_layer.py)."""
        return torch.nn.Parameter(torch.full(shape, value))


class Zeros(Initializer):
    """Initializer for a model whose weights will be loaded: fills them with zeros and ones.

    It creates parameters on the device `device` in the format `dtype`, so that no matrix is drawn and host
    memory holds no second copy of the model. Loading does not set the padding of the vocabulary, which stays
    0 and is not used in the softmax. Adapters are drawn, with the run's `seed`, because the loaded folder
    does not contain them.
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
    """Initializer for parameters that will be loaded: matrices are allocated but not written."""

    def __init__(self) -> None:
        super().__init__(seed=0, std=0.0, num_layers=1)

    def normal(
        self, name: str, *shape: int, residual: bool = False, std: float | None = None
    ) -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.empty(shape))
