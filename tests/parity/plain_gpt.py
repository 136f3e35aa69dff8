"""GPT-3 and related models in plain torch, written from the papers without nbtrain's code: the reference for
every layout.

Attention is computed step by step, logits are computed for the whole vocabulary, and the loss is torch's. The
modules have nbtrain's canonical names (model/names.py), so that the same initial weights can be loaded; the
vocabulary has no padding. The number of heads is derived from the weights, so that DeepSpeed's AutoTP can
shard the linear layers.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Kind:
    """The formulas that define a model; the defaults describe GPT-3."""

    rms_norm: bool = False
    epsilon: float = 1e-5
    activation: str = "gelu"
    bias: bool = True
    qkv_bias: bool = True
    tied: bool = True
    width: int = 0
    """Width of the MLP; 0 means 4 h."""
    angles: tuple[float, ...] = ()
    """Rotary angles in radians per position, one for each pair; () for learned positions."""
    amplitude: float = 1.0
    """Factor that multiplies rotated queries and keys."""
    groups: int = 0
    """Number of key and value heads; 0 means one for each query head."""
    head: int = 0
    """Size of a head; 0 means the hidden size divided by the number of heads."""
    normed_heads: bool = False
    """Whether the queries and keys of each head are normalized."""
    windows: tuple[int, ...] = ()
    """Attention window of each layer in tokens, including the query itself; 0 or () means all earlier
    tokens.
    """
    unturned: tuple[int, ...] = ()
    """Indices of layers without rotary positions, from 0."""
    score_cap: float = 0.0
    logit_cap: float = 0.0


GPT_3 = Kind()


class RMSNorm(nn.Module):
    """RMSNorm (arXiv:1910.07467, equation 4), with epsilon as in the authors' code."""

    def __init__(self, hidden: int, epsilon: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x / torch.sqrt((x * x).mean(-1, keepdim=True) + self.epsilon)


def angles(size: int, base: float, scaling: dict | None) -> tuple[tuple[float, ...], float]:
    """Return the rotary angles for a head with `size` rotated numbers, and the amplitude (arXiv:2104.09864,
    2306.15595, 2309.00071).
    """
    plain = [base ** (-2 * pair / size) for pair in range(size // 2)]
    if scaling is None:
        return tuple(plain), 1.0
    factor, length = scaling["factor"], scaling["original_max_position_embeddings"]
    if scaling["kind"] == "linear":
        return tuple(angle / factor for angle in plain), 1.0
    if scaling["kind"] == "llama3":
        low, high, found = scaling["low_freq_factor"], scaling["high_freq_factor"], []
        for angle in plain:
            wavelength = 2 * math.pi / angle
            if wavelength < length / high:
                found.append(angle)
            elif wavelength > length / low:
                found.append(angle / factor)
            else:
                smooth = (length / wavelength - low) / (high - low)
                found.append((1 - smooth) * angle / factor + smooth * angle)
        return tuple(found), 1.0
    fast, slow = (
        size * math.log(length / (scaling[name] * 2 * math.pi)) / (2 * math.log(base))
        for name in ("beta_fast", "beta_slow")
    )
    first, last, found = max(math.floor(fast), 0), min(math.ceil(slow), size - 1), []
    for pair, angle in enumerate(plain):
        ramp = min(max((pair - first) / ((last - first) or 0.001), 0), 1)
        found.append(angle / factor * ramp + angle * (1 - ramp))
    return tuple(found), 0.1 * math.log(factor) + 1


def turned(x: torch.Tensor, positions: torch.Tensor, kind: Kind) -> torch.Tensor:
    """Rotate [b, n, s, d]: multiply its pairs, as complex numbers, by e^(i position angle)."""
    half = len(kind.angles)
    phase = positions[:, None, :, None] * torch.tensor(kind.angles, dtype=torch.float32)
    pairs = torch.complex(x[..., :half], x[..., half : 2 * half]) * torch.polar(torch.ones_like(phase), phase)
    both = torch.cat([pairs.real, pairs.imag], -1) * kind.amplitude
    return torch.cat([both, x[..., 2 * half :]], -1)


def norm(hidden: int, kind: Kind) -> nn.Module:
    """Return the model's kind of norm over the last dimension."""
    return RMSNorm(hidden, kind.epsilon) if kind.rms_norm else nn.LayerNorm(hidden, kind.epsilon)


class Attention(nn.Module):
    """Causal attention. In the packed weight, the query heads, key and value of a group are adjacent
    (arXiv:2305.13245).
    """

    def __init__(self, index: int, hidden: int, heads: int, kind: Kind):
        super().__init__()
        self.head_size, groups = kind.head or hidden // heads, kind.groups or heads
        self.shared = heads // groups
        rows = (heads + 2 * groups) * self.head_size
        self.query_key_value = nn.Linear(hidden, rows, bias=kind.qkv_bias)
        if kind.normed_heads:
            self.q_layernorm, self.k_layernorm = (norm(self.head_size, kind) for _ in range(2))
        self.dense = nn.Linear(heads * self.head_size, hidden, bias=kind.bias)
        self.kind = kind
        self.turns = bool(kind.angles) and index not in kind.unturned
        self.window = kind.windows[index] if kind.windows else 0

    def forward(self, x: torch.Tensor, visible: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        packed = self.query_key_value(x).view(batch, length, -1, self.shared + 2, self.head_size)
        query, key, value = packed[..., :-2, :].flatten(2, 3), packed[..., -2, :], packed[..., -1, :]
        if self.kind.normed_heads:
            query, key = self.q_layernorm(query), self.k_layernorm(key)
        query, key, value = (heads.transpose(1, 2) for heads in (query, key, value))
        if self.turns:
            query, key = turned(query, positions, self.kind), turned(key, positions, self.kind)
        # Query head i belongs to group i // shared.
        group = torch.arange(query.shape[1]) // self.shared
        key, value = key[:, group], value[:, group]
        scores = query @ key.transpose(-1, -2) / self.head_size**0.5
        if cap := self.kind.score_cap:
            scores = cap * torch.tanh(scores / cap)
        if self.window:
            place = torch.arange(length)
            visible = visible & (place[:, None] - place[None, :] < self.window)
        weights = scores.masked_fill(~visible[:, None], float("-inf")).softmax(-1)
        return self.dense((weights @ value).transpose(1, 2).reshape(batch, length, -1))


class GatedLinear(nn.Linear):
    """Gated linear layer with biases, swish(x Wg + bg) * (x W + b), arXiv:2002.05202, equation 5."""

    def __init__(self, inputs: int, outputs: int, bias: bool):
        super().__init__(inputs, outputs, bias)
        self.gate_weight = nn.Parameter(torch.empty(outputs, inputs))
        self.register_parameter("gate_bias", nn.Parameter(torch.empty(outputs)) if bias else None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = x @ self.gate_weight.T
        gate = gate if self.gate_bias is None else gate + self.gate_bias
        return gate / (1 + torch.exp(-gate)) * super().forward(x)


class MLP(nn.Module):
    """MLP with GELU (tanh approximation), squared ReLU, or SwiGLU."""

    def __init__(self, hidden: int, kind: Kind):
        super().__init__()
        self.activation, width = kind.activation, kind.width or 4 * hidden
        opening = GatedLinear if self.activation == "swiglu" else nn.Linear
        self.dense_h_to_4h = opening(hidden, width, bias=kind.bias)
        self.dense_4h_to_h = nn.Linear(width, hidden, bias=kind.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.dense_h_to_4h(x)
        if self.activation == "gelu":
            x = 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
        elif self.activation == "squared_relu":
            x = x * x * (x > 0)
        return self.dense_4h_to_h(x)


class Layer(nn.Module):
    """Transformer layer with pre-LayerNorm."""

    def __init__(self, index: int, hidden: int, heads: int, kind: Kind):
        super().__init__()
        self.input_layernorm = norm(hidden, kind)
        self.attention = Attention(index, hidden, heads, kind)
        self.post_attention_layernorm = norm(hidden, kind)
        self.mlp = MLP(hidden, kind)

    def forward(self, x: torch.Tensor, visible: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.input_layernorm(x), visible, positions)
        return x + self.mlp(self.post_attention_layernorm(x))


class PlainGPT(nn.Module):
    """GPT that returns the loss for b sequences of s tokens."""

    def __init__(
        self, layers: int, hidden: int, heads: int, vocabulary: int, positions: int, kind: Kind = GPT_3
    ):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocabulary, hidden)
        self.position_embeddings = None if kind.angles else nn.Embedding(positions, hidden)
        self.layers = nn.ModuleList(Layer(index, hidden, heads, kind) for index in range(layers))
        self.final_layernorm = norm(hidden, kind)
        if not kind.tied:
            self.output_layer = nn.Linear(hidden, vocabulary, bias=False)
        self.tied, self.logit_cap = kind.tied, kind.logit_cap

    def forward(
        self,
        tokens: torch.Tensor,
        labels: torch.Tensor,
        positions: torch.Tensor | None = None,
        visible: torch.Tensor | None = None,
        learnt: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the mean loss over all tokens, or over the unmasked ones. All arguments are [b, s], except
        visible: bool [b, s, s], indexed by query and key.
        """
        batch, length = tokens.shape
        causal = torch.ones(batch, length, length, dtype=torch.bool).tril()
        visible = causal if visible is None else causal & visible
        x = self.word_embeddings(tokens)
        positions = torch.arange(length).expand(batch, -1) if positions is None else positions
        if self.position_embeddings is not None:
            x = x + self.position_embeddings(positions)
        for layer in self.layers:
            x = layer(x, visible, positions)
        output = self.word_embeddings if self.tied else self.output_layer
        logits = self.final_layernorm(x) @ output.weight.T
        if cap := self.logit_cap:
            logits = cap * torch.tanh(logits / cap)
        losses = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view(batch, length)
        return losses.mean() if learnt is None else (losses * learnt).sum() / learnt.sum()
