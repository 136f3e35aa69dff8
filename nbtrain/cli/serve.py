"""Verbs about a model that answers: generate and serve."""

import argparse
import json
import re
import signal
from dataclasses import fields
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.cli.verbs import add_verb, run_verb
from nbtrain.config.generation import Generation
from nbtrain.serving.options import ServeOptions

DTYPES = ("auto", "fp32", "bf16", "fp16")


def add_verbs(under: Any) -> None:
    """generate, serve."""
    _add_generate(under)
    _add_serve(under)


def _add_generate(under: Any) -> None:
    plain = Generation()
    one = run_verb(under, "generate", generate, "Text from a run's newest checkpoint.")
    text = "may be given several times: all are made together"
    one.add_argument("-p", "--prompt", action="append", default=[], metavar="TEXT", help=text)
    text = 'prompts, one a line, as text or as {"prompt": TEXT}; - is stdin'
    one.add_argument("--prompts", metavar="FILE", help=text)
    for flags, kind, name, text in (
        (("-n", "--max-new-tokens"), int, "max_new_tokens", "tokens to add, at most"),
        (("--temperature",), float, "temperature", "0 is greedy"),
        (("--top-k",), int, "top_k", "choose among this many of the likeliest; 0 does not cut"),
        (
            ("--top-p",),
            float,
            "top_p",
            "among the likeliest that make up this share; 1 does not cut, 0 is greedy",
        ),
        (("--min-p",), float, "min_p", "among those with this share of the likeliest one's; 0 does not cut"),
        (("--repetition-penalty",), float, "repetition_penalty", "against tokens that are there; 1: none"),
        (("--num-beams",), int, "num_beams", "beam search with this many beams; 1 is none"),
        (("--length-penalty",), float, "length_penalty", "of beams: above 0 for longer texts"),
        (("--samples",), int, "n", "how many texts of each prompt"),
        (("--seed",), int, "seed", "the same seed gives the same text"),
    ):
        default = getattr(plain, name)
        one.add_argument(*flags, dest=name, type=kind, default=default, help=f"{text} (default {default})")
    one.add_argument(
        "--stop", action="append", default=[], metavar="TEXT", help="end before it; several times"
    )
    text = "each token's log-probability, and that of this many alternatives (with --json)"
    one.add_argument("--logprobs", type=int, metavar="COUNT", help=text)
    one.add_argument("--step", type=int, help="of this checkpoint instead of the newest")
    one.add_argument("--dtype", choices=DTYPES, default="auto", help="auto: fp32 on a CPU")
    text = "processes that share the model; default: as few GPUs as hold it"
    one.add_argument("--tensor-parallel-size", type=int, metavar="RANKS", help=text)
    one.add_argument("--json", action="store_true", help="a JSON object for each text")


def generate(options: argparse.Namespace) -> None:
    from nbtrain.api import verbs as api

    prompts = [*options.prompt, *_prompts_of(options.prompts)]
    if not prompts:
        raise ConfigError("no prompt: give -p TEXT or --prompts FILE.")
    names = {field.name for field in fields(Generation)} & set(vars(options))
    asked: dict[str, Any] = {name: getattr(options, name) for name in names}
    asked |= {key: getattr(options, key) for key in ("step", "dtype", "tensor_parallel_size")}
    is_plain = options.n == options.num_beams == 1 and not options.json
    if is_plain and len(prompts) == 1 and options.logprobs is None:
        pieces = api.generate(options.run, prompts[0], **asked, stream=True)
        # An error comes before the first piece: then nothing is printed but its message.
        print(prompts[0] + next(pieces, ""), end="", flush=True)
        for piece in pieces:
            print(piece, end="", flush=True)
        print()
        return
    for number, text in enumerate(api.generate(options.run, prompts, **asked)):
        if options.json:
            keys = ("prompt", "new_text", "tokens", "finish_reason", "logprobs", "score")
            print(json.dumps({key: getattr(text, key) for key in keys}))
            continue
        prompt, sample = divmod(number, options.n)
        which = f", text {sample + 1}" if options.n > 1 else ""
        print(f"--- prompt {prompt + 1}{which}\n{text}")


def _prompts_of(file: str | None) -> list[str]:
    if file is None:
        return []
    try:
        # Not /dev/stdin, which cannot be opened if it is a socket. A byte order mark is no part of a prompt.
        with open(0 if file == "-" else file, encoding="utf-8-sig", closefd=file != "-") as stream:
            # Not splitlines(), which also cuts at U+2028 and U+0085 inside a JSON string.
            lines = stream.read().split("\n")
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: is no text in UTF-8.") from None
    found = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if not re.match(r'\s*\{\s*"', line):
            found.append(line)
            continue
        try:
            prompt = json.loads(line).get("prompt")
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{file}:{number}: is no JSON ({error}).") from None
        if not isinstance(prompt, str):
            raise ConfigError(f'{file}:{number}: has no text under "prompt".')
        found.append(prompt)
    return found


def _add_serve(under: Any) -> None:
    plain = ServeOptions()
    one = add_verb(
        under, "serve", serve, "Answer OpenAI's clients with a run's model, until Ctrl-C or SIGTERM."
    )
    text = "a run's name, folder or YAML; without it, any run, one at a time, by the `model` of a request"
    one.add_argument("run", metavar="RUN", nargs="?", help=text)
    one.add_argument("--step", type=int, help="of this checkpoint instead of the newest")
    one.add_argument("--host", default=plain.host, help=f"default {plain.host}: this machine alone")
    one.add_argument("--port", type=int, default=plain.port, help=f"default {plain.port}; 0 takes a free one")
    text = "a Unix socket instead: who may enter its folder needs no token"
    one.add_argument("--uds", metavar="PATH", help=text)
    text = "end with the process that started the server, as Jupyter's proxy needs it"
    one.add_argument("--end-with-parent", action="store_true", help=text)
    text = "that holds the token; default: $NBTRAIN_SERVE_TOKEN, else a new one, which is shown"
    one.add_argument("--token-file", metavar="FILE", help=text)
    one.add_argument("--dtype", choices=DTYPES, default=plain.dtype, help="auto: fp32 on a CPU")
    for flag, kind, name, metavar, text in (
        (
            "--tensor-parallel-size",
            int,
            "tensor_parallel_size",
            "RANKS",
            "default: as few GPUs as hold the model",
        ),
        ("--threads", int, "threads", "COUNT", "of the model on a CPU; default: all cores"),
        ("--max-batch", int, "max_batch", "TEXTS", "made at once; default: 16 on a CPU, 64 on a GPU"),
        ("--max-queue", int, "max_queue", "TEXTS", "that wait; more are answered with 429"),
        ("--max-new-tokens", int, "max_new_tokens", "COUNT", "that one text may ask for"),
        ("--max-body-bytes", int, "max_body_bytes", "BYTES", "of a request"),
        ("--request-seconds", float, "request_seconds", "SECONDS", "of a request, waiting included"),
        (
            "--write-seconds",
            float,
            "write_seconds",
            "SECONDS",
            "that a client may take nothing of its stream",
        ),
        ("--grace-seconds", float, "grace_seconds", "SECONDS", "that running requests have after SIGTERM"),
        (
            "--idle-seconds",
            float,
            "idle_seconds",
            "SECONDS",
            "until an unused model is unloaded (without RUN)",
        ),
    ):
        default = getattr(plain, name)
        # 1,048,576, where :g alone would say 1.04858e+06.
        said = text if default is None else f"{text} (default {default:,.12g})"
        one.add_argument(flag, dest=name, type=kind, default=default, metavar=metavar, help=said)
    text = "of a chat, as in a run YAML or in Jinja; default: that of the run's data, else of its tokenizer"
    one.add_argument("--chat-template", metavar="FILE", help=text)


def serve(options: argparse.Namespace) -> int:
    # Until the server listens to signals, an interrupt ends the process. As an exception it may come while a
    # library is imported, and some of them drop it.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return _serve(options)
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(options: argparse.Namespace) -> int:
    from nbtrain.api.run import open_run
    from nbtrain.base.parent_death import die_with_parent
    from nbtrain.serving.server import Ready
    from nbtrain.serving.server import serve as serve_models
    from nbtrain.serving.tokens import token_of

    names = {field.name for field in fields(ServeOptions)}
    asked = {name: value for name, value in vars(options).items() if name in names}
    if options.run is not None:
        asked["run"] = str(open_run(options.run).directory.path)
    token: str | None = None
    source: str | None = None
    if options.uds is None:
        token, source = token_of(options.token_file)
    if options.end_with_parent:
        die_with_parent()

    def when_ready(ready: Ready) -> None:
        if ready.name is not None:
            facts = ready.facts
            print(
                f"{ready.name}, step {facts['step']}, {facts['dtype']} on {facts['device']}: "
                f"{facts['max_batch']} texts at once, of {facts['positions']:,} tokens at most"
            )
            print(f"chat template: {facts['chat_template']}")
        if token is None:
            print(f"listening on {ready.url}", flush=True)
            return
        shown = token if source is None else f"the token of {source}"
        print(f"OpenAI's base_url: {ready.url}/v1\napi_key: {shown}")
        print(f"a page to try it: {ready.url}/?token={token if source is None else 'TOKEN'}", flush=True)

    return serve_models(ServeOptions(**asked), token, when_ready)
