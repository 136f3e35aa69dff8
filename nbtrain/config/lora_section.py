"""The section `lora` of a run: which adapters, LoRA or IA3, are trained beside frozen weights."""

import math
from typing import Annotated, Literal

from pydantic import Field

from nbtrain.config.fields import ConfigModel, FractionBelowOne, PathText, PositiveRatio

Target = Literal["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]
TARGETS: tuple[Target, ...] = ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h")


class LoraConfig(ConfigModel):
    """Adapters beside the blocks' matrices (LoRA, arXiv:2106.09685), which alone are trained."""

    kind: Literal["lora", "ia3"] = "lora"
    """lora trains two small matrices beside each matrix. ia3 (arXiv:2205.05638) trains three vectors a block,
    which multiply its keys, its values and what its MLP opens; it reads no other field but init_from."""
    rank: Annotated[int, Field(ge=1, le=4096)] = 16
    """Numbers between the two matrices of an adapter; queries, keys and values have an adapter each."""
    alpha: PositiveRatio = 32.0
    """An adapter's output is multiplied by alpha / rank."""
    dropout: FractionBelowOne = 0.0
    """Dropout on an adapter's input."""
    targets: Annotated[list[Target], Field(min_length=1)] = list(TARGETS)
    """Which matrices of each block have an adapter: query_key_value (attention's input), dense (its output),
    dense_h_to_4h (the MLP's input, the gate too) and dense_4h_to_h (its output)."""
    use_rslora: bool = False
    """Multiply by alpha / sqrt(rank) (rsLoRA, arXiv:2312.03732), so that large ranks learn as fast."""

    init_from: PathText | None = None
    """Adapters to begin with: a folder with adapter_config.json and adapter_model.safetensors, as peft writes
    it; null begins with adapters that change nothing."""

    @property
    def scale(self) -> float:
        """What an adapter's output is multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.use_rslora else self.rank)
