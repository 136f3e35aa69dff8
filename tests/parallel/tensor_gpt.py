"""The model of model/gpt.py made of tensor-parallel layers, tiny, for tests of the layers together."""

import torch
import torch.nn.functional as F
from torch import nn

from nbtrain.model.attention import causal_attention
from nbtrain.model.gpt import GPTConfig
from nbtrain.model.initialization import Initializer
from nbtrain.parallel import mappings
from nbtrain.parallel.cross_entropy import vocab_parallel_linear_cross_entropy
from nbtrain.parallel.groups import Group
from nbtrain.parallel.mappings import own_part
from nbtrain.parallel.tensor import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding

B, S, H, HEADS, FFN, VOCAB = 2, 8, 16, 4, 24, 50


class TensorGPT(nn.Module):
    """Parameters and arithmetic of GPT; not its dropout."""

    def __init__(self, config: GPTConfig, group: Group, sequence_parallel: bool):
        super().__init__()
        self.config, self.group, self.sequence_parallel = config, group, sequence_parallel
        init = Initializer(config.seed, config.init_method_std, config.num_layers)
        hidden, ffn, unit = (
            config.hidden_size,
            config.ffn_hidden_size,
            3 * config.hidden_size // config.num_attention_heads,
        )
        cut = {"init": init, "group": group, "sequence_parallel": sequence_parallel}
        self.word_embeddings = VocabParallelEmbedding(
            "word_embeddings", config.padded_vocab_size, hidden, **cut
        )
        self.position_embeddings = nn.Module()
        self.position_embeddings.weight = init.normal(
            "position_embeddings.weight", config.max_position_embeddings, hidden
        )
        self.layers = nn.ModuleList()
        for index in range(config.num_layers):
            name, layer = f"layers.{index}", nn.Module()
            layer.input_layernorm, layer.attention = nn.LayerNorm(hidden), nn.Module()
            layer.post_attention_layernorm, layer.mlp = nn.LayerNorm(hidden), nn.Module()
            layer.attention.query_key_value = ColumnParallelLinear(
                f"{name}.attention.query_key_value", hidden, 3 * hidden, unit=unit, **cut
            )
            layer.attention.dense = RowParallelLinear(
                f"{name}.attention.dense", hidden, hidden, residual=True, **cut
            )
            layer.mlp.dense_h_to_4h = ColumnParallelLinear(f"{name}.mlp.dense_h_to_4h", hidden, ffn, **cut)
            layer.mlp.dense_4h_to_h = RowParallelLinear(
                f"{name}.mlp.dense_4h_to_h", ffn, hidden, residual=True, **cut
            )
            self.layers.append(layer)
        self.final_layernorm = nn.LayerNorm(hidden)

    def of_part(self, *parameters):
        if not self.sequence_parallel:
            return parameters
        return mappings.copy_parameters_to_sequence_parallel_region(*parameters, group=self.group)

    def norm(self, layer: nn.LayerNorm, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, layer.weight.shape, *self.of_part(layer.weight, layer.bias), layer.eps)

    def forward(self, tokens, labels, vocab_size=None):
        config = self.config
        (positions,) = self.of_part(self.position_embeddings.weight)
        positions = positions[: tokens.shape[1]]
        if self.sequence_parallel:
            positions = own_part(positions, 0, self.group)
        x = self.word_embeddings(tokens) + positions
        for layer in self.layers:
            packed = layer.attention.query_key_value(self.norm(layer.input_layernorm, x))
            size = config.hidden_size // config.num_attention_heads
            heads = packed.unflatten(2, (-1, 3 * size)).transpose(1, 2)
            attended = causal_attention(*heads.split(size, dim=-1)).transpose(1, 2).flatten(2)
            x = x + layer.attention.dense(attended)
            inner = layer.mlp.dense_h_to_4h(self.norm(layer.post_attention_layernorm, x))
            x = x + layer.mlp.dense_4h_to_h(F.gelu(inner, approximate="tanh"))
        return vocab_parallel_linear_cross_entropy(
            self.norm(self.final_layernorm, x),
            self.word_embeddings.weight,
            labels,
            config.cross_entropy_chunk_tokens,
            group=self.group,
            sequence_parallel=self.sequence_parallel,
            vocab_size=vocab_size,
        )


def gpt_config(padded_vocab_size: int) -> GPTConfig:
    # A large spread, so that attention and softmax are far from uniform.
    return GPTConfig(
        num_layers=2,
        hidden_size=H,
        num_attention_heads=HEADS,
        ffn_hidden_size=FFN,
        padded_vocab_size=padded_vocab_size,
        max_position_embeddings=S + 2,
        init_method_std=0.3,
        cross_entropy_chunk_tokens=5,
    )


def text() -> torch.Tensor:
    return torch.randint(VOCAB, (2, B, S), generator=torch.Generator().manual_seed(4))
