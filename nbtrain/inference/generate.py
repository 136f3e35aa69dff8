"""`python -m nbtrain.inference.generate`: one JSON request on stdin, JSON lines on stdout.

request   {"run_dir", "prompt", "max_new_tokens", "temperature", "top_k", "top_p", "seed", "step"}
answers   {"kind": "text", "text"} ...            new text as it is made
          {"kind": "note", "message"}               a torn checkpoint that is not used
          {"kind": "end", "step", "new_tokens", "seconds", "tokens_per_second"}
          {"kind": "error", "error", "message"}   an NbtrainError's class and message
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from nbtrain.base.answers import answer_request
from nbtrain.base.errors import DataError
from nbtrain.base.files import read_json
from nbtrain.base.rundir import RunDir
from nbtrain.base.workspace import display, tokenizer_dir
from nbtrain.checkpoint.manifest import whole_step
from nbtrain.checkpoint.weights import load_model_weights
from nbtrain.config.load import load_resolved
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.inference.decode import generate_tokens
from nbtrain.inference.sampling import Sampling
from nbtrain.inference.text_stream import TextStream
from nbtrain.model.gpt import build_model


def main() -> int:
    return answer_request(answers)


def answers(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Everything one request is answered with."""
    sampling = Sampling(request["temperature"], request["top_k"], request["top_p"])
    run = RunDir(Path(request["run_dir"]))
    config = load_resolved(run.config_yaml)
    tokenizer = Tokenizer.load(tokenizer_dir(config.tokenizer.name))
    step, torn = whole_step(run, request.get("step"))
    for number, reason in torn:
        yield {"kind": "note", "message": f"checkpoint global_step{number} is not used: {reason}"}
    # A run that was resumed on other tensor ranks pads its vocabulary otherwise.
    weights = load_model_weights(run.path, step, padded_vocab_size=config.padded_vocab_size)
    trained_with = (read_json(run.checkpoint_manifest(step)) or {}).get("tokenizer_sha256")
    if trained_with not in (None, tokenizer.sha256):
        raise DataError(
            f"{display(tokenizer.directory)} is {tokenizer.sha256[:12]}..., but this run was trained with "
            f"{trained_with[:12]}...: ids would mean other text. Restore the tokenizer it was trained with."
        )
    model = build_model(config)
    model.load_state_dict(weights)
    if torch.cuda.is_available():
        model.cuda()
    generator = None
    if request.get("seed") is not None:
        generator = torch.Generator(model.word_embeddings.weight.device).manual_seed(request["seed"])

    started = time.perf_counter()
    # An empty prompt starts a document, as the end-of-document token does in training.
    prompt = [int(token) for token in tokenizer.encode(request["prompt"])] or [tokenizer.eod_id]
    new_tokens = generate_tokens(
        model, prompt, sampling, request["max_new_tokens"], tokenizer.vocab_size, tokenizer.eod_id, generator
    )
    count = 0
    stream = TextStream(tokenizer, prompt if request["prompt"] else ())
    for token in new_tokens:
        count += 1
        if text := stream.add(token):
            yield {"kind": "text", "text": text}
    seconds = time.perf_counter() - started
    yield {
        "kind": "end",
        "step": step,
        "new_tokens": count,
        "seconds": seconds,
        "tokens_per_second": count / seconds if seconds else None,
    }


if __name__ == "__main__":
    sys.exit(main())
