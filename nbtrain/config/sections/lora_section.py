"""The section `lora` of a run YAML: adapters (LoRA or IA3) that are trained next to frozen weights."""

import math
from typing import Annotated, Literal

from pydantic import Field

from nbtrain.config.sections.fields import ConfigModel, FractionBelowOne, PathText, PositiveRatio

Target = Literal["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]
TARGETS: tuple[Target, ...] = ("query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h")


class LoraConfig(ConfigModel):
    """Adapters next to the blocks' matrices (LoRA, arXiv:2106.09685). Only the adapters are trained."""

    kind: Literal["lora", "ia3"] = "lora"
    """Type of adapter. lora trains two small matrices next to each matrix. ia3 (arXiv:2205.05638) trains
    three vectors per block, which multiply its keys, its values and the inner activations of its MLP. Of the
    other fields, ia3 uses only init_from.
    """
    rank: Annotated[int, Field(ge=1, le=4096)] = 16
    """Rank of an adapter: the inner size of its two matrices. Queries, keys and values have one adapter
    each.
    """
    alpha: PositiveRatio = 32.0
    """Numerator of the adapters' scale. The output of an adapter is multiplied by alpha / rank."""
    dropout: FractionBelowOne = 0.0
    """Dropout probability of an adapter's input."""
    targets: Annotated[list[Target], Field(min_length=1)] = list(TARGETS)
    """Matrices of each block that get an adapter: query_key_value (input of attention), dense (output of
    attention), dense_h_to_4h (input of the MLP, including the gate) and dense_4h_to_h (output of the MLP).
    """
    use_rslora: bool = False
    """Whether the scale is alpha / sqrt(rank) instead of alpha / rank (rsLoRA, arXiv:2312.03732), so that
    large ranks learn as fast as small ones.
    """
    load_in_4bit: bool = False
    """Whether to store the frozen matrices of all blocks in 4 bits (QLoRA, arXiv:2305.14314), with the
    bitsandbytes package. Embeddings, norms and the output layer stay in precision.dtype, in which all
    products are computed. Only with ZeRO 0 to 2, and without a pipeline.
    """
    bnb_4bit_quant_type: Literal["nf4", "fp4"] = "nf4"
    """Set of 16 numbers that a 4-bit weight can take. nf4 suits normally distributed weights; fp4 consists of
    floating-point numbers.
    """
    bnb_4bit_use_double_quant: bool = False
    """With load_in_4bit, whether the scale of each block of 64 weights is stored in 8 bits, so that a weight
    needs 4.13 bits instead of 4.5.
    """
    trainable_token_indices: list[Annotated[int, Field(ge=0, lt=2**31)]] | None = None
    """Ids of the tokens whose rows of the embedding, and of an untied output layer, are trained too. null
    means the ids that are missing from the vocabulary of init_from; submit writes them into the run's
    configuration. [] trains no rows.
    """
    init_from: PathText | None = None
    """Adapters to start from: a folder with adapter_config.json and adapter_model.safetensors, as written by
    peft. null starts with adapters that change nothing.
    """

    @property
    def scale(self) -> float:
        """Factor by which an adapter's output is multiplied."""
        return self.alpha / (math.sqrt(self.rank) if self.use_rslora else self.rank)
