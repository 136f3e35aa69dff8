"""Helpers shared by the generation tests: a small tokenizer, and a model that does not generate repetitive
text.
"""

import json
from pathlib import Path

import torch
from tokenizers.processors import ByteLevel, Sequence, TemplateProcessing

from nbtrain.config.generation import Generation
from nbtrain.corpus.tokenizer import folder as tokenizer_folder
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.corpus.tokenizer.training import train
from nbtrain.inference.choice import Request
from nbtrain.inference.engine import Engine
from nbtrain.inference.runner import Runner
from nbtrain.model.gpt import GPT, GPTConfig
from tests.corpus import made

VOCAB_SIZE = 320
POSITIONS = 96


def tokenizer_in(folder: Path) -> Tokenizer:
    """Train a byte-level BPE tokenizer with 320 entries on text in several scripts."""
    texts = [text for script in ("latin", "han", "gothic") for text in made.texts(script, 20)]
    tokenizer_folder.save(train(texts, VOCAB_SIZE), folder, {"trainer": "tokenizers"})
    return Tokenizer.load(folder)


def beginning_tokenizer_in(folder: Path, source: Path) -> Tokenizer:
    """Train a tokenizer with 320 entries in `source` and import it; like Llama 3's, it puts <s> before a
    text.
    """
    source.mkdir()
    texts = [text for script in ("latin", "han", "gothic") for text in made.texts(script, 20)]
    built = train(texts, VOCAB_SIZE - 1)
    built.add_special_tokens(["<|endoftext|>", "<s>"])
    begins = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", VOCAB_SIZE - 1)])
    built.post_processor = Sequence([ByteLevel(trim_offsets=False), begins])
    built.save(str(source / "tokenizer.json"))
    settings = {
        "bos_token": "<s>",
        "eos_token": "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer_folder.adopt(source, "<|endoftext|>", folder)
    return Tokenizer.load(folder)


def model(**changes) -> GPT:
    """Create a model whose output matrix is not tied: with so few layers, a tied model would repeat its
    input.
    """
    values = {
        "num_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 4,
        "ffn_hidden_size": 64,
        "padded_vocab_size": VOCAB_SIZE,
        "vocab_size": VOCAB_SIZE,
        "max_position_embeddings": POSITIONS,
        "init_method_std": 0.3,
        "untie_embeddings_and_output_weights": True,
    }
    return GPT(GPTConfig(**values | changes)).eval().requires_grad_(False)


def greedy(**changes) -> Generation:
    return Generation(**{"temperature": 0.0, "max_new_tokens": 20, "ignore_eod": True} | changes)


def engine_of(model: GPT, tokenizer: Tokenizer, slots: int = 4, **how) -> Engine:
    return Engine(Runner(model, slots), tokenizer, **how)


def requests_of(prompts, generation: Generation, slides: bool = False) -> list[Request]:
    return [Request(str(number), list(prompt), generation, slides) for number, prompt in enumerate(prompts)]


def run(engine: Engine, requests: list[Request], joining: int = 10**9) -> dict[tuple[str, int], list[dict]]:
    """Run the requests and return {(request, choice): its events}.

    The first `joining` requests are added at the start, and then one more before each step.
    """
    found: dict[tuple[str, int], list[dict]] = {}
    waiting = list(requests)
    for request in waiting[:joining]:
        engine.add(request)
    del waiting[:joining]
    while waiting or not engine.is_idle:
        if waiting:
            engine.add(waiting.pop(0))
        for event in engine.step():
            found.setdefault((event["id"], event.get("index", -1)), []).append(event)
    return found


def tokens_of(events: list[dict]) -> list[int]:
    return [token for event in events for token in event["tokens"]]


def without_cache(model: GPT, prompt, count: int) -> list[int]:
    """Generate tokens greedily with a full forward pass for each token, without a cache."""
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            window = tokens[-model.config.max_position_embeddings :]
            tokens.append(int(model(torch.tensor([window]))[0, -1].argmax()))
    return tokens[len(prompt) :]
