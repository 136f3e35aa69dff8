"""A GGUF file in plain torch, read as llama.cpp reads it: an independent check of the files of gguf_file.py.

Sizes, epsilon and angles come from the file's own metadata, and tensors have llama.cpp's names. The layers
come from plain.py, so the rows of query and key are reordered from pairs of neighbours back to halves.
"""

from pathlib import Path
from typing import Any

import torch

from nbtrain.checkpoint.pretrained.plain import PlainModel

# {name in llama.cpp, after blk.<i>. : name in transformers, after model.layers.<i>.}
LLAMA = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GPT2 = {
    "attn_norm": "ln_1",
    "ffn_norm": "ln_2",
    "attn_qkv": "attn.c_attn",
    "attn_output": "attn.c_proj",
    "ffn_up": "mlp.c_fc",
    "ffn_down": "mlp.c_proj",
}
ENDS = {
    "token_embd": ("model.embed_tokens", "transformer.wte"),
    "position_embd": ("", "transformer.wpe"),
    "output_norm": ("model.norm", "transformer.ln_f"),
    "output": ("lm_head", "lm_head"),
}


class PlainGGUF(PlainModel):
    """The model in a GGUF file, computed in fp32."""

    def __init__(self, path: Path):
        import gguf

        reader = gguf.GGUFReader(path)
        self.folder, self.files, self.placed = path, {}, None
        self.kind = reader.fields["general.architecture"].contents()
        self.is_gpt2 = self.kind == "gpt2"
        self.fields = {
            name.removeprefix(f"{self.kind}."): field.contents() for name, field in reader.fields.items()
        }
        self.raw = {tensor.name: tensor for tensor in reader.tensors}
        names = {ours: theirs[self.is_gpt2] for ours, theirs in ENDS.items()}
        layer = "transformer.h" if self.is_gpt2 else "model.layers"
        inner = GPT2 if self.is_gpt2 else LLAMA
        self.by_name = {}
        for name in self.raw:
            module, _, kind = name.rpartition(".")
            if module.startswith("blk."):
                _, index, part = module.split(".")
                self.by_name[f"{layer}.{index}.{inner[part]}.{kind}"] = name
            elif module in names:
                self.by_name[f"{names[module]}.{kind}"] = name
        self.num_layers = self.fields["block_count"]
        self.config = self._config()

    def _config(self) -> dict[str, Any]:
        fields = self.fields
        heads = fields["attention.head_count"]
        found = {"model_type": self.kind, "tie_word_embeddings": "output.weight" not in self.raw}
        if self.is_gpt2:
            return {**found, "n_head": heads, "layer_norm_epsilon": fields["attention.layer_norm_epsilon"]}
        rope = {
            "rope_type": fields.get("rope.scaling.type", "default"),
            "rope_theta": fields["rope.freq_base"],
        }
        rope["factor"] = fields.get("rope.scaling.factor")
        rope["original_max_position_embeddings"] = fields.get("rope.scaling.original_context_length")
        rope["beta_fast"] = fields.get("rope.scaling.yarn_beta_fast", 32.0)
        rope["beta_slow"] = fields.get("rope.scaling.yarn_beta_slow", 1.0)
        if self.kind == "smollm3":
            found["no_rope_layers"] = [int((layer + 1) % 4 != 0) for layer in range(fields["block_count"])]
        return {
            **found,
            "num_attention_heads": heads,
            "num_key_value_heads": fields["attention.head_count_kv"],
            "rms_norm_eps": fields["attention.layer_norm_rms_epsilon"],
            "rope_parameters": rope,
        }

    def has(self, name: str) -> bool:
        return name in self.by_name

    def _slice(self, name: str) -> torch.Tensor:
        raw = self.raw[self.by_name[name]]
        # GGUF writes the dimensions of a shape in reverse order.
        shape = [int(size) for size in reversed(raw.shape)]
        kinds = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
        # A copy is made because the file is mapped read-only.
        data = torch.from_numpy(raw.data.copy()).view(kinds[raw.tensor_type.name]).view(shape)
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
        if heads is not None and self.kind in ("llama", "smollm3"):
            data = data.unflatten(0, (self.config[heads], -1, 2)).transpose(1, 2).flatten(0, 2)
        # GPT-2's layers in plain.py take [inputs, outputs].
        is_matrix = self.is_gpt2 and data.ndim == 2 and name.startswith("transformer.h.")
        return data.T if is_matrix else data

    def _rotation(self, length: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        if "rope_freqs.weight" not in self.raw:
            return super()._rotation(length, size)
        divided = torch.from_numpy(self.raw["rope_freqs.weight"].data.copy())
        plain = self.config["rope_parameters"]["rope_theta"] ** (-torch.arange(0, size, 2).double() / size)
        angles = torch.arange(length)[:, None] * (plain / divided).float()[None, :]
        angles = torch.cat([angles, angles], -1)
        return angles.cos(), angles.sin()
