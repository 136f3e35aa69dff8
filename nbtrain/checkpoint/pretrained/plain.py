"""The models of an exported folder in plain torch: an independent check of every export.

This module reads config.json and the tensors exactly as they are in the folder, and shares no code with
model/ and pretrained/. A mistake there in a name, a row order, an epsilon or an angle therefore changes the
logits. One layer is in memory at a time. The code follows the papers and transformers (modeling_gpt2.py,
modeling_llama.py, modeling_qwen3.py, modeling_smollm3.py, modeling_rope_utils.py of 5.23).

Shapes: s tokens, h hidden, n heads, g key heads, d head size, v vocabulary
"""

import json
import math
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open


class PlainModel:
    """The model in a folder, computed in fp32."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        index = folder / "model.safetensors.index.json"
        self.placed: dict[str, str] | None = None
        if index.is_file():
            self.placed = json.loads(index.read_text())["weight_map"]
        self.files: dict[str, Any] = {}
        self.is_gpt2 = self.config["model_type"] == "gpt2"
        self.num_layers = self.config["n_layer" if self.is_gpt2 else "num_hidden_layers"]

    def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the input of the first layer.  [s] -> [s, h]."""
        if self.is_gpt2:
            return (
                self._rows("transformer.wte.weight", tokens)
                + self.get("transformer.wpe.weight")[: len(tokens)]
            )
        return self._rows("model.embed_tokens.weight", tokens)

    def layer(self, index: int, x: torch.Tensor) -> torch.Tensor:
        """Run one layer.  [s, h] -> [s, h]."""
        return self._gpt2_layer(index, x) if self.is_gpt2 else self._llama_layer(index, x)

    def final(self, x: torch.Tensor) -> torch.Tensor:
        """Run the last norm.  [s, h] -> [s, h]."""
        return self._layer_norm("transformer.ln_f", x) if self.is_gpt2 else self._rms_norm("model.norm", x)

    def logits(self, x: torch.Tensor, first: int, end: int) -> torch.Tensor:
        """Return the logits of tokens `first` to `end` of the vocabulary.  [s, h] -> [s, end - first]."""
        words = "transformer.wte.weight" if self.is_gpt2 else "model.embed_tokens.weight"
        name = words if self.config["tie_word_embeddings"] else "lm_head.weight"
        return x @ self._slice(name)[first:end].float().T

    def get(self, name: str) -> torch.Tensor:
        """Return a tensor of the folder as fp32."""
        return self._slice(name)[:].float()

    def has(self, name: str) -> bool:
        return name in (self._file("model.safetensors").keys() if self.placed is None else self.placed)

    def _rows(self, name: str, ids: torch.Tensor) -> torch.Tensor:
        table = self._slice(name)
        return torch.cat([table[row : row + 1] for row in ids.tolist()]).float()

    def _slice(self, name: str) -> Any:
        return self._file("model.safetensors" if self.placed is None else self.placed[name]).get_slice(name)

    def _file(self, name: str) -> Any:
        if name not in self.files:
            self.files[name] = safe_open(self.folder / name, framework="pt")
        return self.files[name]

    def _linear(self, name: str, x: torch.Tensor) -> torch.Tensor:
        y = x @ self.get(f"{name}.weight").T
        return y + self.get(f"{name}.bias") if self.has(f"{name}.bias") else y

    def _gpt2_layer(self, index: int, x: torch.Tensor) -> torch.Tensor:
        place, heads = f"transformer.h.{index}", self.config["n_head"]
        query, key, value = self._conv1d(f"{place}.attn.c_attn", self._layer_norm(f"{place}.ln_1", x)).chunk(
            3, -1
        )
        attended = attention(
            *(part.unflatten(-1, (heads, -1)).transpose(0, 1) for part in (query, key, value))
        )
        x = x + self._conv1d(f"{place}.attn.c_proj", attended)
        inner = self._conv1d(f"{place}.mlp.c_fc", self._layer_norm(f"{place}.ln_2", x))
        inner = 0.5 * inner * (1 + torch.tanh(math.sqrt(2 / math.pi) * (inner + 0.044715 * inner**3)))
        return x + self._conv1d(f"{place}.mlp.c_proj", inner)

    def _conv1d(self, name: str, x: torch.Tensor) -> torch.Tensor:
        """Apply GPT-2's linear layer, whose matrix is [inputs, outputs]."""
        return x @ self.get(f"{name}.weight") + self.get(f"{name}.bias")

    def _layer_norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + self.config["layer_norm_epsilon"])
        return scaled * self.get(f"{name}.weight") + self.get(f"{name}.bias")

    def _llama_layer(self, index: int, x: torch.Tensor) -> torch.Tensor:
        config, place = self.config, f"model.layers.{index}"
        heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
        normed = self._rms_norm(f"{place}.input_layernorm", x)
        query, key, value = (
            self._linear(f"{place}.self_attn.{kind}_proj", normed).unflatten(-1, (count, -1)).transpose(0, 1)
            for kind, count in (("q", heads), ("k", groups), ("v", groups))
        )
        if self.has(f"{place}.self_attn.q_norm.weight"):
            query = self._rms_norm(f"{place}.self_attn.q_norm", query)
            key = self._rms_norm(f"{place}.self_attn.k_norm", key)
        if self._turns(index):
            cosine, sine = self._rotation(len(x), query.shape[-1])
            query, key = (turned(part, cosine, sine) for part in (query, key))
        key, value = (part.repeat_interleave(heads // groups, dim=0) for part in (key, value))
        x = x + self._linear(f"{place}.self_attn.o_proj", attention(query, key, value, self._window(index)))
        normed = self._rms_norm(f"{place}.post_attention_layernorm", x)
        gate = F.silu(self._linear(f"{place}.mlp.gate_proj", normed))
        return x + self._linear(f"{place}.mlp.down_proj", gate * self._linear(f"{place}.mlp.up_proj", normed))

    def _rms_norm(self, name: str, x: torch.Tensor) -> torch.Tensor:
        return (
            x
            / torch.sqrt((x**2).mean(-1, keepdim=True) + self.config["rms_norm_eps"])
            * self.get(f"{name}.weight")
        )

    def _turns(self, index: int) -> bool:
        """Return whether a layer has rotary positions. In SmolLM3, a 1 in no_rope_layers means that the layer
        has them.
        """
        flags = self.config.get("no_rope_layers")
        return True if flags is None else bool(flags[index])

    def _window(self, index: int) -> int | None:
        """Return how many tokens a query sees, including itself; None if it sees all earlier tokens."""
        kinds = self.config.get("layer_types")
        if self.config["model_type"] != "mistral" and (kinds is None or kinds[index] != "sliding_attention"):
            return None
        return self.config.get("sliding_window")

    def _rotation(self, length: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        frequencies, factor = frequencies_of(self.config["rope_parameters"], size)
        angles = torch.arange(length)[:, None] * frequencies[None, :]
        angles = torch.cat([angles, angles], -1)
        return angles.cos() * factor, angles.sin() * factor


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, window: int | None = None
) -> torch.Tensor:
    """Compute causal attention.  [n, s, d] each -> [s, n d]."""
    length = query.shape[1]
    scores = query @ key.transpose(1, 2) / math.sqrt(query.shape[-1])
    past = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    seen = (past >= 0) if window is None else (past >= 0) & (past < window)
    weights = torch.softmax(scores.masked_fill(~seen, float("-inf")), -1)
    return (weights @ value).transpose(0, 1).flatten(1)


def turned(x: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Apply rotary positions to the two halves of a head.  [n, s, d] -> [n, s, d]."""
    half = x.shape[-1] // 2
    return x * cosine + torch.cat([-x[..., half:], x[..., :half]], -1) * sine


def frequencies_of(rope: dict[str, Any], size: int) -> tuple[torch.Tensor, float]:
    """Return (RoPE frequencies in radians per position, [d / 2]; factor for cosines and sines)."""
    base = rope["rope_theta"]
    plain = torch.tensor([base ** (-2 * pair / size) for pair in range(size // 2)], dtype=torch.float64)
    kind = rope["rope_type"]
    if kind == "default":
        return plain.float(), 1.0
    divided = plain / rope["factor"]
    if kind == "linear":
        return divided.float(), 1.0
    original = rope["original_max_position_embeddings"]
    if kind == "llama3":
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        length = 2 * math.pi / plain
        smooth = (original / length - low) / (high - low)
        mixed = (1 - smooth) * divided + smooth * plain
        found = torch.where(
            length < original / high, plain, torch.where(length > original / low, divided, mixed)
        )
        return found.float(), 1.0
    assert kind == "yarn", kind

    def dimension(turns: float) -> float:
        return size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    first = max(math.floor(dimension(rope["beta_fast"])), 0)
    last = min(math.ceil(dimension(rope["beta_slow"])), size - 1)
    width = last - first if last != first else 0.001
    ramp = torch.tensor(
        [min(max((pair - first) / width, 0.0), 1.0) for pair in range(size // 2)], dtype=torch.float64
    )
    return (divided * ramp + plain * (1 - ramp)).float(), 0.1 * math.log(rope["factor"]) + 1
