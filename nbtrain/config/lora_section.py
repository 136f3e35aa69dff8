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
    which multiply its keys, its values and the MLP's inner values; it reads no other field but init_from."""
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
    """Multiply by alpha / sqrt(rank) (rsLoRA, arXiv:2312.03732), so that large ranks learn as fast as small
    ones."""
    load_in_4bit: bool = False
    """Hold the frozen matrices of all blocks in 4 bits (QLoRA, arXiv:2305.14314), by the package
    bitsandbytes; embeddings, norms and the output layer stay in precision.dtype, in which products are
    computed. For ZeRO 0 to 2 without a pipeline."""
    bnb_4bit_quant_type: Literal["nf4", "fp4"] = "nf4"
    """The 16 numbers that load_in_4bit knows: nf4 suits weights that are normally distributed, fp4 are
    floating-point numbers."""
    bnb_4bit_use_double_quant: bool = False
    """With load_in_4bit, hold the constant of each block of 64 numbers in 8 bits: a weight takes 4.13 bits
    instead of 4.5."""
    trainable_token_indices: list[Annotated[int, Field(ge=0, lt=2**31)]] | None = None
    """Ids of tokens whose rows of the embedding, and of an untied output layer, are trained too. null means
    the ids that the vocabulary of init_from does not have, which submit writes into the run's configuration;
    [] trains none."""
    init_from: PathText | None = None
    """Adapters to begin with: a folder with adapter_config.json and adapter_model.safetensors, as peft writes
    it; null begins with adapters that change nothing."""

    @property
    def scale(self) -> float:
        """What an adapter's output is multiplied by."""
        return self.alpha / (math.sqrt(self.rank) if self.use_rslora else self.rank)
