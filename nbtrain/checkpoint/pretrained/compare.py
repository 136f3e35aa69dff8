"""Checks an exported folder by comparing its logits with the logits of our own layers.

The two models run layer by layer, side by side, in fp32, with one layer of each in memory. Their weights are
in the format in which the folder stores them. If the logits differ, the first layer whose output differs is
reported. The logits may differ by at most 1e-4 times the largest logit, or by 1e-4 if the largest logit is
below 1. Real mistakes exceed this: an epsilon of 1e-5 instead of 1e-6, or another form of GELU, causes
differences of 1e-3 or more.
"""

import dataclasses
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

from nbtrain.base.errors import CheckpointError
from nbtrain.base.workspace import display
from nbtrain.checkpoint.pretrained.full_parameters import FullParameters
from nbtrain.checkpoint.pretrained.plain import PlainModel
from nbtrain.checkpoint.weights.folder_weights import PIECE_ELEMENTS
from nbtrain.config.schema import RunConfig
from nbtrain.model.gpt import GPT
from nbtrain.model.gpt_config import GPTConfig
from nbtrain.model.rotary import rotation_of

TOLERANCE = 1e-4
# Enough tokens for every layer to mix them; the cost grows with their number.
MOST_TOKENS = 128
SEED = 1234


@torch.no_grad()
def compare(plain: PlainModel, weights: FullParameters, config: RunConfig) -> Iterator[float]:
    """Compare the two models on random tokens.

    After each layer, yields the largest difference between their outputs so far. Finally, yields the largest
    difference of the logits, divided by the largest logit if that is above 1. Raises CheckpointError if this
    quotient exceeds TOLERANCE.
    """
    ours = OurModel(weights, config)
    length = min(MOST_TOKENS, config.model.resolved_max_position_embeddings)
    tokens = torch.randint(weights.vocab_size, (length,), generator=torch.Generator().manual_seed(SEED))
    left, right = ours.hidden(tokens), plain.hidden(tokens)
    worst = _difference(left, right)
    first_bad = "" if worst <= TOLERANCE else "the embeddings"
    for index in range(plain.num_layers):
        left, right = ours.layer(index, left), plain.layer(index, right)
        found = _difference(left, right)
        if not found <= TOLERANCE and not first_bad:
            first_bad = f"layer {index}"
        worst = max(worst, found)
        yield worst
    left, right = ours.final(left), plain.final(right)
    largest, differences = 0.0, []
    step = max(PIECE_ELEMENTS // config.model.hidden_size, 1)
    for first in range(0, weights.vocab_size, step):
        end = min(first + step, weights.vocab_size)
        one, other = ours.logits(left, first, end), plain.logits(right, first, end)
        largest = max(largest, float(one.abs().max()))
        differences.append((one - other).abs().max())
    # Python's max() may ignore a NaN, which must count as a difference.
    difference = float(torch.stack(differences).max())
    relative = difference / max(largest, 1.0)
    if not relative <= TOLERANCE:
        where = first_bad or "the output"
        raise CheckpointError(
            f"{display(plain.folder)}: the logits of the written model differ from the run's by "
            f"{difference:.2g}, which is more than {TOLERANCE:g} of the largest ({largest:.3g}); they "
            f"diverge at {where}. Nothing was kept. This is a bug in the export: report it with the run's "
            "config.yaml."
        )
    yield relative


def _difference(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one - other).abs().max() / one.abs().max().clamp(min=1.0))


class OurModel:
    """The layers of model/, with each layer's weights loaded only while the layer runs."""

    def __init__(self, weights: FullParameters, config: RunConfig):
        own = GPTConfig.of(config)
        # The model is computed by one process in fp32, whatever the run's layout and kernels are.
        self.config = dataclasses.replace(
            own,
            autocast=False,
            fp8=False,
            fpdt_chunk_tokens=0,
            selective_recompute=False,
            attention_backend="auto",
            lora=None,
        )
        self.weights = weights
        with torch.device("meta"):
            self.model = GPT(self.config).eval()

    def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        found = F.embedding(tokens, self._get("word_embeddings.weight"))
        if self.config.turns:
            return found
        return found + self._get("position_embeddings.weight")[: len(tokens)]

    def layer(self, index: int, x: torch.Tensor) -> torch.Tensor:
        layer = self.model.layers[index]
        self._fill(layer, f"layers.{index}")
        rotation = None
        if self.config.turns:
            rotation = rotation_of(self.config, torch.arange(len(x)), torch.float32)
        found = layer(x.unsqueeze(0), rotation=rotation)[0]
        layer.to("meta")
        return found

    def final(self, x: torch.Tensor) -> torch.Tensor:
        self._fill(self.model.final_layernorm, "final_layernorm")
        return self.model.final_layernorm(x.unsqueeze(0))[0]

    def logits(self, x: torch.Tensor, first: int, end: int) -> torch.Tensor:
        untied = self.config.untie_embeddings_and_output_weights
        words = self.weights.full("output_layer.weight" if untied else "word_embeddings.weight")
        return F.linear(x, words[first:end].float())

    def _get(self, name: str) -> torch.Tensor:
        return self.weights.full(name).float()

    def _fill(self, module: nn.Module, place: str) -> None:
        names = [name for name, _ in module.named_parameters()]
        module.load_state_dict({name: self._get(f"{place}.{name}") for name in names}, assign=True)
