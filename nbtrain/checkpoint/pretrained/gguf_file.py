"""Writes a run's model as one GGUF file for llama.cpp, one tensor at a time, with the package gguf.

Names, keys and row orders follow llama.cpp's converter (convert_hf_to_gguf.py and its folder conversion/),
which this module replaces:

    llama, smollm3    llama.cpp rotates pairs of neighbours, so the rows of query and key are put in that
                      order; llama3's scaling is the tensor rope_freqs
    qwen2, qwen3      unchanged
    gpt2              matrices [outputs, inputs]; rows of all queries, then all keys, then all values

Norms and biases are fp32 whatever the format of the matrices. Models and tokenizers that llama.cpp cannot
compute or read are refused.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nbtrain.base.errors import ConfigError, refuse
from nbtrain.base.extras import install_command
from nbtrain.base.findings import Finding
from nbtrain.checkpoint.pretrained.full_parameters import FullParameters
from nbtrain.config.findings import mistake
from nbtrain.config.schema import RunConfig
from nbtrain.pretrained.tensors import Sizes
from nbtrain.pretrained.written import family_of

# {model_type: architecture in llama.cpp}; llama.cpp treats Mistral as Llama.
ARCHITECTURES = {
    "gpt2": "GPT2",
    "llama": "LLAMA",
    "mistral": "LLAMA",
    "qwen2": "QWEN2",
    "qwen3": "QWEN3",
    "smollm3": "SMOLLM3",
}
PAIRS_OF_NEIGHBOURS = ("LLAMA", "SMOLLM3")
# llama.cpp's rule for SmolLM3's layers without rotary positions: every fourth.
NO_ROPE_FREQ = 4
ROPE_FREQS = "rope_freqs.weight"

# Pre-tokenizer patterns by llama.cpp's name for them (llama-vocab.cpp).
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = {
    _WORDS.format(digits=r"\p{N}{1,3}"): "llama-bpe",
    _WORDS.format(digits=r"\p{N}"): "qwen2",
}


# Normalizers that leave most texts unchanged, because characters are usually in composed form already.
UNICODE_FORMS = ("NFC", "NFKC")


class GGUFFile:
    """The contents of a run's GGUF file, determined before any tensor is written."""

    def __init__(self, weights: FullParameters, config: RunConfig, folder: Path, bos: int | None = None):
        """Prepare the file; `folder` has config.json and the tokenizer's files, and `bos` is put before each
        text.

        Raises ConfigError for features that llama.cpp does not support.
        """
        try:
            import gguf
        except ImportError:
            raise ConfigError(
                "--to gguf: the package gguf writes this format and is not installed: "
                f"{install_command('gguf')}."
            ) from None
        self.gguf = gguf
        self.weights, self.run, self.bos = weights, config, bos
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        family = family_of(config)
        self.known = family.tensors(Sizes.of(config.model, weights.vocab_size))
        self.architecture = gguf.MODEL_ARCH[ARCHITECTURES[family.model_type]]
        refuse(unsupported(config, family.model_type), ConfigError)
        self.tokenizer = read_tokenizer(folder, weights.vocab_size)
        kinds = [] if self.tokenizer is None else self.tokenizer["normalizers"]
        self.notes = [normalizer_note(kinds)] if kinds else []
        """Notes for readers of the export, in sentences."""

    def write(self, path: Path) -> Iterator[tuple[int, int]]:
        """Write the file and yield (bytes done, total bytes)."""
        writer = self.gguf.GGUFWriter(path, self.gguf.MODEL_ARCH_NAMES[self.architecture])
        self._add_model(writer)
        self._add_tokenizer(writer)
        names = self.gguf.get_tensor_name_map(self.architecture, self.run.model.num_layers)
        factors = llama3_factors(self.run)
        total, order = 0, []
        if factors is not None:
            writer.add_tensor_info(ROPE_FREQS, factors.shape, np.dtype(np.float32), factors.nbytes)
        for name, shape in self.known.tensors.items():
            theirs = names.get_name(name, try_suffixes=(".weight", ".bias"))
            if theirs is None:
                raise ConfigError(
                    f"--to gguf: llama.cpp has no tensor for {name} in {self.architecture.name}."
                )
            shape, dtype = self._shape(name, shape), self._dtype(shape)
            bytes_of = math.prod(shape) * dtype.itemsize
            raw = self.gguf.GGMLQuantizationType.BF16 if dtype == torch.bfloat16 else None
            kind = np.float16 if dtype == torch.float16 else np.float32
            writer.add_tensor_info(theirs, shape, np.dtype(kind), bytes_of, raw)
            order.append((name, dtype))
            total += bytes_of
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        done = 0
        if factors is not None:
            writer.write_tensor_data(factors)
        for name, dtype in order:
            tensor = self._tensor(name).to(dtype).contiguous()
            content = tensor.view(torch.int16).numpy() if dtype == torch.bfloat16 else tensor.numpy()
            writer.write_tensor_data(content)
            done += content.nbytes
            yield done, total
        writer.close()

    def _shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        return shape[::-1] if self.known.users[name][0][1].transposed else shape

    def _dtype(self, shape: tuple[int, ...]) -> torch.dtype:
        return torch.float32 if len(shape) == 1 else self.weights.dtype

    def _tensor(self, name: str) -> torch.Tensor:
        tensor = self.weights.tensor(self.known, name)
        if self.known.users[name][0][1].transposed:
            return tensor.T
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
        if heads is not None and self.architecture.name in PAIRS_OF_NEIGHBOURS:
            return neighbours(tensor, self.config[heads])
        return tensor

    def _add_model(self, writer: Any) -> None:
        config, model = self.config, self.run.model
        writer.add_name(self.run.name)
        writer.add_block_count(model.num_layers)
        writer.add_context_length(model.resolved_max_position_embeddings)
        writer.add_embedding_length(model.hidden_size)
        writer.add_feed_forward_length(model.resolved_ffn_hidden_size)
        writer.add_head_count(model.num_attention_heads)
        kinds = self.gguf.LlamaFileType
        types = {torch.float32: kinds.ALL_F32, torch.float16: kinds.MOSTLY_F16}
        writer.add_file_type(types.get(self.weights.dtype, kinds.MOSTLY_BF16))
        if self.architecture.name == "GPT2":
            writer.add_layer_norm_eps(model.norm_epsilon)
            return
        writer.add_vocab_size(self.weights.vocab_size)
        writer.add_layer_norm_rms_eps(model.norm_epsilon)
        writer.add_head_count_kv(config["num_key_value_heads"])
        for add in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
            add(model.resolved_kv_channels)
        writer.add_rope_freq_base(model.rotary_base)
        if model.rope_scaling is not None and model.rope_scaling.kind != "llama3":
            self._add_scaling(writer, model.rope_scaling)

    def _add_scaling(self, writer: Any, scaling: Any) -> None:
        kind = self.gguf.RopeScalingType[scaling.kind.upper()]
        writer.add_rope_scaling_type(kind)
        writer.add_rope_scaling_factor(scaling.factor)
        if scaling.kind == "yarn":
            writer.add_rope_scaling_orig_ctx_len(scaling.original_max_position_embeddings)
            writer.add_rope_scaling_yarn_beta_fast(scaling.beta_fast)
            writer.add_rope_scaling_yarn_beta_slow(scaling.beta_slow)

    def _add_tokenizer(self, writer: Any) -> None:
        if (tokenizer := self.tokenizer) is None:
            return
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(tokenizer["pre"])
        writer.add_token_list(tokenizer["tokens"])
        writer.add_token_types(tokenizer["types"])
        writer.add_token_merges(tokenizer["merges"])
        for kind in ("bos", "eos", "pad"):
            number = self.config.get(f"{kind}_token_id")
            if kind == "bos" and self.bos is not None:
                number = self.bos
            if isinstance(number, list):
                number = number[0]
            if number is not None:
                getattr(writer, f"add_{kind}_token_id")(number)
        # Without this key, llama.cpp decides by the pre-tokenizer's name; for Llama 3's, it puts BOS before
        # each text.
        writer.add_add_bos_token(self.bos is not None)
        if tokenizer["chat_template"]:
            writer.add_chat_template(tokenizer["chat_template"])


def unsupported(config: RunConfig, model_type: str) -> Iterator[Finding]:
    """Yield the features of a run that llama.cpp does not compute for this architecture."""
    model = config.model
    windows, instead = [size for size in model.windows if size is not None], "Export it with --to hf."
    if windows and min(windows) < model.resolved_max_position_embeddings:
        yield mistake(
            config,
            "model.window_size",
            f"model.window_size = {min(windows)} is smaller than "
            f"max_position_embeddings({model.resolved_max_position_embeddings}), and llama.cpp has no "
            "sliding window for this architecture: later tokens would attend to more tokens than in "
            "training.",
            instead,
        )
    if model_type == "smollm3":
        if model.add_bias_linear:
            yield mistake(
                config,
                "model.add_bias_linear",
                "model.add_bias_linear = true: llama.cpp's SmolLM3 has no biases, and would not load the "
                "file.",
                instead,
            )
        expected = [layer for layer in range(model.num_layers) if (layer + 1) % NO_ROPE_FREQ == 0]
        if model.layers_without_rope != expected:
            yield mistake(
                config,
                "model.no_rope_freq",
                "llama.cpp omits rotary positions in every fourth layer of SmolLM3, and this run omits "
                "them in "
                f"{f'the layers {model.layers_without_rope}' if model.layers_without_rope else 'no layer'}.",
                instead,
            )


def neighbours(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Reorder the rows of a query or key matrix (or bias) from halves of a head to pairs of neighbours."""
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def llama3_factors(config: RunConfig) -> np.ndarray | None:
    """Return the divisor of each pair's rotary angle; None without llama3 scaling.

    As in llama.cpp's conversion/llama.py, the divisor is 1 for short waves, the scaling factor for long
    waves, and a value in between for other waves.
    """
    scaling, size = config.model.rope_scaling, config.model.resolved_kv_channels
    if scaling is None or scaling.kind != "llama3":
        return None
    original = scaling.original_max_position_embeddings
    assert original is not None
    found = []
    for pair in range(size // 2):
        wave = 2 * math.pi * config.model.rotary_base ** (2 * pair / size)
        turns = original / wave
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        kept = min(max((turns - low) / (high - low), 0.0), 1.0)
        found.append(1 / (kept + (1 - kept) / scaling.factor))
    return np.array(found, np.float32)


def read_tokenizer(folder: Path, vocab_size: int) -> dict[str, Any] | None:
    """Return tokens, types, merges and the pre-tokenizer's name of a byte-level BPE; None without a
    tokenizer.

    Raises ConfigError for another kind of tokenizer.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        return None
    document = json.loads(path.read_text(encoding="utf-8"))
    model = document["model"]
    pre = name_of_words(document)
    # Older files do not name the type of the model. If it has merges, it is a BPE.
    is_bpe = model.get("type", "BPE") == "BPE" and "merges" in model
    changing = [kind for kind in normalizers_of(document) if kind not in UNICODE_FORMS]
    if pre is not None and changing:
        raise ConfigError(
            f"--to gguf: the tokenizer normalizes a text before splitting it into words "
            f"({', '.join(changing)}), but llama.cpp does not: nearly every text would get different "
            "tokens there. Export the run with --to hf."
        )
    if not is_bpe or model.get("byte_fallback") or pre is None:
        raise ConfigError(
            "--to gguf: this tokenizer is not supported: only byte-level BPEs that split words like GPT-2, "
            "Llama 3, Qwen2 or SmolLM are. Export the run with --to hf, and convert the folder with "
            "llama.cpp's convert_hf_to_gguf.py."
        )
    # Rows of the vocabulary that have no token need unique names.
    tokens = [f"[UNUSED{number}]" for number in range(vocab_size)]
    types = [5] * vocab_size
    for token, number in model["vocab"].items():
        tokens[number], types[number] = token, 1
    for entry in document.get("added_tokens") or ():
        tokens[entry["id"]], types[entry["id"]] = entry["content"], 3 if entry["special"] else 4
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    try:
        template = _template(folder)
    except ValueError as error:
        raise ConfigError(f"--to gguf: the tokenizer's chat template cannot be read: {error}.") from None
    found = {"tokens": tokens, "types": types, "merges": merges, "pre": pre}
    return {**found, "chat_template": template, "normalizers": normalizers_of(document)}


def normalizers_of(document: dict[str, Any]) -> list[str]:
    """Return the kinds of normalization that a tokenizer.json applies before a text is split into words."""
    steps = [document.get("normalizer") or {}]
    kinds = []
    while steps:
        step = steps.pop(0)
        steps = [*step.get("normalizers", ()), *steps]
        if step and "normalizers" not in step:
            kinds.append(str(step.get("type")))
    return kinds


def normalizer_note(kinds: list[str]) -> str:
    """Return the note that llama.cpp skips the tokenizer's normalization."""
    return (
        f"The tokenizer normalizes texts ({', '.join(kinds)}), but llama.cpp does not: a text that is not "
        "normalized gets different tokens there than in training. Normalize prompts before you send them."
    )


def _template(folder: Path) -> str | None:
    """Return the chat template that transformers would use. Raises ValueError if its file is not text."""
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    settings = folder / "tokenizer_config.json"
    found = json.loads(settings.read_text(encoding="utf-8")) if settings.is_file() else {}
    found = found.get("chat_template")
    if isinstance(found, list):
        # The tokenizer has several templates, each with a name.
        found = {one.get("name"): one.get("template") for one in found if isinstance(one, dict)}.get(
            "default"
        )
    return found if isinstance(found, str) else None


def name_of_words(document: dict[str, Any]) -> str | None:
    """Return llama.cpp's name for a tokenizer's pre-tokenizer; None if it is unknown."""
    rule = document.get("pre_tokenizer") or {}
    steps = rule["pretokenizers"] if rule.get("type") == "Sequence" else [rule]
    if any(step.get("add_prefix_space") for step in steps):
        return None
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"] and steps[0].get("use_regex", True):
        return "gpt-2"
    if (
        kinds == ["Digits", "ByteLevel"]
        and steps[0].get("individual_digits")
        and steps[1].get("use_regex", True)
    ):
        return "smollm"
    if kinds == ["Split", "ByteLevel"] and not steps[1].get("use_regex", True):
        return WORDS.get((steps[0].get("pattern") or {}).get("Regex", ""))
    return None
