"""Megatron-LM's text generation API, for existing Megatron clients.

    PUT /api   {"prompts": [...], "tokens_to_generate": 64, ...}
    -> {"text": [prompt + new], "segments": [[token, ...]], "logprobs": [[...]] or null}
    -> {"text", "segments", "scores"} if the request has beam_width

The protocol is defined in megatron/core/inference/text_generation_server, and fields, defaults and bounds are
the same. As in Megatron, the response to an invalid request is status 400 with a sentence as a JSON string.
With add_BOS, a prompt begins with the tokenizer's prefix, if the tokenizer has one; otherwise it is
unchanged. Requests that set a field in PLAIN, such as top_p_decay, to anything but its default are refused.
"""

from collections.abc import Mapping
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.config.generation import MOST_LENGTH_PENALTY, Generation
from nbtrain.serving.dispatch import RequestEvents

MOST_PROMPTS = 128
DEFAULT_TOKENS = 64
KNOWN = frozenset(
    [
        *("prompts", "tokens_to_generate", "logprobs", "temperature", "top_k", "top_p", "add_BOS"),
        *("random_seed", "no_log", "beam_width", "length_penalty", "stop_token"),
        *("stop_on_double_eol", "stop_on_eol"),
    ]
)
# Fields that are accepted only with their default value.
PLAIN: Mapping[str, Any] = {
    "top_p_decay": 0.0,
    "top_p_bound": 0.0,
    "prevent_newline_after_colon": False,
    "echo_prompts": True,
    "early_exit": True,
}


class BadRequest(Exception):
    """Raised for an invalid request, with the message of Megatron's server."""


def read(body: Any) -> tuple[list[str], Generation]:
    """Return (prompts, generation settings). Raises BadRequest if the body is invalid."""
    if not isinstance(body, dict) or "prompts" not in body:
        raise BadRequest("prompts argument required")
    for name, value in body.items():
        if name in PLAIN and value != PLAIN[name]:
            raise BadRequest(f"{name} is not supported: omit it")
        if name not in KNOWN and name not in PLAIN:
            raise BadRequest(f"{name} is not a known field")
    prompts = body["prompts"]
    if not isinstance(prompts, list) or not all(isinstance(prompt, str) for prompt in prompts):
        raise BadRequest("prompts is not a list of strings")
    if not 1 <= len(prompts) <= MOST_PROMPTS:
        raise BadRequest(
            "prompts is empty" if not prompts else f"Maximum number of prompts is {MOST_PROMPTS}"
        )
    if not all(prompts) and not body.get("add_BOS"):
        raise BadRequest("Empty prompts require add_BOS=true")
    count = _whole(body, "tokens_to_generate", DEFAULT_TOKENS, 0)
    logprobs = body.get("logprobs", False)
    if not isinstance(logprobs, bool):
        raise BadRequest("logprobs must be a boolean value")
    if count == 0 and not logprobs:
        raise BadRequest("tokens_to_generate=0 implies logprobs should be True")
    top_k, top_p = _whole(body, "top_k", 0, 0, 1000), _number(body, "top_p", 0.0, 0.0, 1.0)
    if top_k > 0 and top_p > 0:
        raise BadRequest("cannot set both top-k and top-p samplings.")
    temperature = _number(body, "temperature", 1.0, 0.0, 100.0)
    beams = _whole(body, "beam_width", 1, 1) if wants_beams(body) else None
    if beams is not None and len(prompts) > 1:
        raise BadRequest("When doing beam_search, batch size must be 1")
    stop = tuple(
        text for name, text in (("stop_on_double_eol", "\n\n"), ("stop_on_eol", "\n")) if body.get(name)
    )
    seed = _whole(body, "random_seed", -1, -1)
    try:
        return prompts, Generation(
            max_new_tokens=count,
            # Megatron requests greedy decoding with top_k 1. Beam search with one beam is greedy too, but the
            # engine's beam search needs at least two.
            temperature=0.0 if top_k == 1 or beams == 1 else temperature,
            top_k=top_k,
            top_p=top_p or 1.0,
            num_beams=beams or 1,
            length_penalty=_number(body, "length_penalty", 1.0, -MOST_LENGTH_PENALTY, MOST_LENGTH_PENALTY),
            stop=stop,
            logprobs=0 if beams == 1 or (logprobs and not beams) else None,
            echo=not beams,
            seed=None if seed < 0 else seed,
            n=beams or 1,
        )
    except ConfigError as error:
        raise BadRequest(str(error)) from None


def wants_beams(body: Mapping[str, Any]) -> bool:
    """Return whether a request selects beam search, with any beam_width; its answer then has scores."""
    return body.get("beam_width") is not None


async def answer_of(
    answer: RequestEvents, prompts: list[str], generation: Generation, with_scores: bool
) -> dict[str, Any]:
    """Build Megatron's answer from the engine's events."""
    count = len(prompts) * generation.n
    texts, scores = ["" for _ in range(count)], [0.0 for _ in range(count)]
    segments: list[list[str]] = [[] for _ in range(count)]
    logprobs: list[list[float]] = [[] for _ in range(count)]
    end_logprob: list[float] = []
    async for number, event in answer:
        if "prompt" in event:
            texts[number] = prompts[number]
            segments[number].append(event["prompt"]["first"])
        elif "prompt_logprobs" in event:
            _add(event["prompt_logprobs"], segments[number], logprobs[number])
        elif "text" in event:
            place = number * generation.n + event["index"]
            texts[place] += event["text"]
            scores[place] = event.get("score", 0.0)
            _add(event.get("logprobs", ()), segments[place], logprobs[place])
            if "end_logprob" in event:
                end_logprob.append(event["end_logprob"]["logprob"])
    if with_scores and generation.num_beams == 1:
        # As in inference/beams.py, the end-of-document token counts in the score.
        scored = logprobs[0] + end_logprob
        scores = [sum(scored) / max(len(scored), 1) ** generation.length_penalty]
    if with_scores:
        whole = [prompts[0] + text for text in texts]
        return {"text": whole, "segments": [[text] for text in whole], "scores": scores}
    if generation.logprobs is None:
        return {"text": texts, "segments": [[text] for text in texts], "logprobs": None}
    return {"text": texts, "segments": segments, "logprobs": logprobs}


def _add(entries: Any, segments: list[str], logprobs: list[float]) -> None:
    for entry in entries:
        segments.append(entry["token"])
        logprobs.append(entry["logprob"])


def _whole(body: Mapping[str, Any], name: str, default: int, least: int, most: int | None = None) -> int:
    value = body.get(name, default)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < least or (most and value > most):
        bound = f" and less than or equal to {most}" if most else ""
        raise BadRequest(f"{name} must be an integer equal to or greater than {least}{bound}")
    return value


def _number(body: Mapping[str, Any], name: str, default: float, least: float, most: float) -> float:
    value = body.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
        raise BadRequest(f"{name} must be a number from {least:g} to {most:g}")
    return float(value)
