"""The function nb.generate: generates text from a run's checkpoint, and keeps the model loaded."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from nbtrain.api.arguments import misused, number, text, whole_number, whole_or_none
from nbtrain.api.run import Run, RunLike, open_run
from nbtrain.base.errors import ConfigError
from nbtrain.config.generation import LOADED_DTYPES, Generation

if TYPE_CHECKING:
    from nbtrain.serving.engine_process import Loading
    from nbtrain.serving.texts import Text, Texts

WHAT_SUITS = "a number that suits the machine"


@overload
def generate(run: RunLike, prompt: str, *, stream: Literal[True], **how: Any) -> Iterator[str]: ...


@overload
def generate(run: RunLike, prompt: str, *arguments: Any, **how: Any) -> "Text": ...


@overload
def generate(run: RunLike, prompt: Sequence[str], *arguments: Any, **how: Any) -> "Texts": ...


def generate(  # type: ignore[misc]  # the overloads omit options that affect no type
    run: RunLike,
    prompt: str | Sequence[str],
    max_new_tokens: int = Generation.max_new_tokens,
    temperature: float = Generation.temperature,
    top_k: int = Generation.top_k,
    top_p: float = Generation.top_p,
    seed: int | None = Generation.seed,
    step: int | None = None,
    *,
    min_p: float = Generation.min_p,
    repetition_penalty: float = Generation.repetition_penalty,
    num_beams: int = Generation.num_beams,
    length_penalty: float = Generation.length_penalty,
    n: int = Generation.n,
    stop: str | Sequence[str] = (),
    logprobs: int | None = Generation.logprobs,
    dtype: str = "auto",
    tensor_parallel_size: int | None = None,
    stream: bool = False,
) -> "Text | Texts | Iterator[str]":
    """Continue `prompt` with the newest checkpoint, or with the checkpoint of `step`.

    The result is a string, which a cell shows with the prompt set apart; for several prompts, or for n above
    1, it is a list of strings. Several prompts are processed as one batch. temperature 0 decodes greedily;
    top_k 0 and top_p 1 disable these filters. The same seed gives the same text, whatever else is in the
    batch. `logprobs` adds the log-probability of each token and of this many alternatives. With `stream`, the
    result is an iterator over chunks of the new text.
    docs/generation.md describes every argument.
    """
    generation = Generation(
        max_new_tokens=whole_number("max_new_tokens", max_new_tokens),
        temperature=number("temperature", temperature),
        top_k=whole_number("top_k", top_k),
        top_p=number("top_p", top_p),
        min_p=number("min_p", min_p),
        repetition_penalty=number("repetition_penalty", repetition_penalty),
        num_beams=whole_number("num_beams", num_beams),
        length_penalty=number("length_penalty", length_penalty),
        n=whole_number("n", n),
        stop=_texts("stop", stop),
        logprobs=whole_or_none("logprobs", logprobs, "none"),
        seed=whole_or_none("seed", seed, "another text each time"),
    )
    prompts = _texts("prompt", prompt)
    if not prompts:
        raise ConfigError("prompt = [] must be text, or a list of at least one text.")
    is_one = isinstance(prompt, str) and generation.n == 1
    if stream and not (is_one and generation.num_beams == 1):
        raise ConfigError("stream = True needs one prompt, n = 1 and num_beams = 1.")
    # Unlike a server, a notebook may continue beyond the model's positions.
    asked = {**generation.to_dict(), "slides": True}
    events = _events(run, [{**asked, "prompt": each} for each in prompts], step, dtype, tensor_parallel_size)
    if stream:
        return (event["text"] for _, event in events if event.get("text"))
    from nbtrain.serving.texts import Texts, collected

    found = collected(list(prompts), generation.n, events)
    if is_one:
        return found[0][0]
    return Texts(result for several in found for result in several)


def _events(
    run: RunLike, requests: list[dict[str, Any]], step: int | None, dtype: str, ranks: int | None
) -> Iterator[tuple[int, dict[str, Any]]]:
    from nbtrain.serving.resident import RESIDENT

    return RESIDENT.stream(loading_of(open_run(run), step, dtype, ranks), *requests)


def loading_of(run: Run, step: int | None, dtype: str, ranks: int | None) -> "Loading":
    """Return the options for loading the model. Raises ConfigError for a value that is not allowed."""
    from nbtrain.serving.engine_process import Loading

    if dtype not in LOADED_DTYPES:
        raise ConfigError(f"dtype = {dtype!r} must be one of {', '.join(LOADED_DTYPES)}.")
    ranks = whole_or_none("tensor_parallel_size", ranks, WHAT_SUITS)
    if ranks is not None and ranks < 1:
        raise ConfigError(f"tensor_parallel_size = {ranks} must be at least 1, or None for {WHAT_SUITS}.")
    step = whole_or_none("step", step, "the newest checkpoint")
    return Loading(str(run.directory.path), step, dtype, ranks)


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (text(name, value),)
    if not isinstance(value, Sequence):
        raise misused(name, value, "text, or a list of texts")
    return tuple(text(name, item) for item in value)
