"""Verbs that run inference: generate and serve."""

import argparse
import json
import re
import signal
import sys
from dataclasses import fields
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.cli import completers
from nbtrain.cli.output import show, show_text
from nbtrain.cli.verbs import (
    RUN_HELP,
    Parser,
    add_json,
    add_step,
    add_verb,
    complete,
    run_of,
    run_verb,
)
from nbtrain.config.generation import LOADED_DTYPES, Generation
from nbtrain.serving.options import ServeOptions


def add_verbs(under: Any) -> None:
    """Add the verbs `generate` and `serve` to `under`, the subparsers of nbtrain."""
    _add_generate(under)
    _add_serve(under)


def _add_generate(under: Any) -> None:
    parser = run_verb(
        under,
        "generate",
        generate,
        "Several prompts are processed as one batch.",
        "nbtrain generate gpt-tiny 'def '\nnbtrain generate gpt-tiny 'Return ' --samples 3 --seed 7\n"
        "nbtrain generate gpt-tiny --prompts prompts.jsonl --json",
    )
    text = "Text to continue; - reads texts from stdin, one per line. After --, a text may begin with a dash."
    parser.add_argument("prompts_after", metavar="PROMPT", nargs="*", default=[], help=text)
    text = "Another text to continue. May be repeated."
    parser.add_argument("-p", "--prompt", action="append", default=[], metavar="TEXT", help=text)
    text = 'Read prompts from FILE, one per line, as text or as {"prompt": TEXT}; - is stdin.'
    parser.add_argument("--prompts", metavar="FILE", help=text)
    add_sampling(parser)
    plain = Generation()
    text = "Search with this many beams; 1 turns beam search off."
    parser.add_argument("--num-beams", type=int, default=plain.num_beams, metavar="COUNT", help=text)
    text = "In beam search, prefer longer texts if above 0, and shorter texts if below 0."
    parser.add_argument(
        "--length-penalty", type=float, default=plain.length_penalty, metavar="VALUE", help=text
    )
    text = "Generate this many texts for each prompt."
    parser.add_argument("--samples", dest="n", type=int, default=plain.n, metavar="COUNT", help=text)
    text = "With --json, print the log-probability of each token and of the COUNT most likely alternatives."
    parser.add_argument("--logprobs", type=int, metavar="COUNT", help=text)
    add_loading(parser)
    add_json(parser, "Print a JSON object for each text.")
    parser.set_defaults(more="prompts_after")


def add_sampling(parser: Parser) -> None:
    """Add the options for choosing the next token and for ending a text."""
    plain = Generation()
    for flags, kind, metavar, text in (
        (("-n", "--max-new-tokens"), int, "COUNT", "Generate at most this many new tokens."),
        (
            ("--temperature",),
            float,
            "VALUE",
            "Divide logits by this; 0 always chooses the most likely token.",
        ),
        (("--top-k",), int, "COUNT", "Sample from this many of the most likely tokens; 0 turns it off."),
        (
            ("--top-p",),
            float,
            "SHARE",
            "Sample from the most likely tokens whose probabilities add up to this value; 1 turns it off, "
            "and 0 always chooses the most likely token.",
        ),
        (
            ("--min-p",),
            float,
            "SHARE",
            "Sample only from tokens with at least this fraction of the most likely token's probability; "
            "0 turns it off.",
        ),
        (
            ("--repetition-penalty",),
            float,
            "VALUE",
            "Make tokens that already occur in the text less likely; 1 turns it off.",
        ),
        (("--seed",), int, "SEED", "Seed for sampling; the same seed gives the same text."),
    ):
        name = flags[-1].removeprefix("--").replace("-", "_")
        parser.add_argument(*flags, type=kind, default=getattr(plain, name), metavar=metavar, help=text)
    text = "End the text before this string. May be repeated."
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help=text)


def add_loading(parser: Parser) -> None:
    """Add the options that choose the checkpoint and how it is loaded."""
    add_step(parser)
    text = "Number format of the weights; auto is fp32 on a CPU and the training format on a GPU."
    parser.add_argument("--dtype", choices=LOADED_DTYPES, default="auto", help=text)
    text = "Shard the model across this many processes. Default: the fewest GPUs on which the model fits."
    parser.add_argument("--tensor-parallel-size", type=int, metavar="RANKS", help=text)


def generation_of(options: argparse.Namespace) -> Generation:
    """Return the values of add_sampling()'s options. Raises ConfigError for a value out of range."""
    said = {name: getattr(options, name) for name in _generation_names(options)}
    return Generation(**said | {"stop": tuple(options.stop)})


def _generation_names(options: argparse.Namespace) -> set[str]:
    return {field.name for field in fields(Generation)} & set(vars(options))


def generate(options: argparse.Namespace) -> None:
    """Continue prompts. A single text is printed while it is generated."""
    from nbtrain.api import verbs as api

    files = [options.prompts, *("-" for prompt in options.prompts_after if prompt == "-")]
    prompts = [*options.prompt, *(prompt for prompt in options.prompts_after if prompt != "-")]
    prompts += [prompt for file in files for prompt in _prompts_of(file)]
    if not prompts:
        raise ConfigError(
            f"no prompt: write it after the run, as in `nbtrain generate {options.run} 'Once upon'`."
        )
    how: dict[str, Any] = {name: getattr(options, name) for name in _generation_names(options)}
    how |= {key: getattr(options, key) for key in ("step", "dtype", "tensor_parallel_size")}
    is_plain = options.n == options.num_beams == 1 and not options.json
    if is_plain and len(prompts) == 1 and options.logprobs is None:
        pieces = api.generate(options.run, prompts[0], **how, stream=True)
        # Errors occur before the first piece of text, so only their message is printed.
        show_text(prompts[0] + next(pieces, ""))
        for piece in pieces:
            show_text(piece)
        print()
    else:
        for number, text in enumerate(api.generate(options.run, prompts, **how)):
            if options.json:
                keys = ("prompt", "new_text", "tokens", "finish_reason", "logprobs", "score")
                record = {key: getattr(text, key) for key in keys}
                print(json.dumps({**record, "seed": options.seed}))
                continue
            prompt, sample = divmod(number, options.n)
            which = f", text {sample + 1}" if options.n > 1 else ""
            show_text(f"--- prompt {prompt + 1}{which}\n{text}", end="\n")
    if options.num_beams == 1 and not generation_of(options).is_greedy:
        show(f"(seed {options.seed}; another --seed gives another text)", sys.stderr)


def _prompts_of(file: str | None) -> list[str]:
    if file is None:
        return []
    try:
        # /dev/stdin cannot be opened if it is a socket. A byte order mark is not part of the prompt.
        with open(0 if file == "-" else file, encoding="utf-8-sig", closefd=file != "-") as stream:
            # Not splitlines(), which also cuts at U+2028 and U+0085 inside a JSON string.
            lines = stream.read().split("\n")
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text. Convert it to UTF-8.") from None
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
            raise ConfigError(
                f'{file}:{number}: is not JSON ({error}). Write {{"prompt": "the text"}}, or the text alone.'
            ) from None
        if not isinstance(prompt, str):
            raise ConfigError(f'{file}:{number}: has no text under "prompt". Write {{"prompt": "the text"}}.')
        found.append(prompt)
    return found


def _add_serve(under: Any) -> None:
    plain = ServeOptions()
    parser = add_verb(
        under,
        "serve",
        serve,
        "Runs until Ctrl-C or SIGTERM.",
        "nbtrain serve gpt-tiny\nnbtrain serve --port 0",
    )
    text = (
        f"{RUN_HELP} Without RUN, each request names a run as its `model`, and one model is loaded at a time."
    )
    run = parser.add_argument("run", metavar="RUN", nargs="?", help=text)
    complete(run, completers.runs)
    text = "Address to listen on. The default accepts connections from this machine only."
    parser.add_argument("--host", default=plain.host, metavar="ADDRESS", help=text)
    parser.add_argument(
        "--port",
        type=int,
        default=plain.port,
        metavar="PORT",
        help="Port to listen on; 0 selects a free port.",
    )
    text = "Listen on a Unix socket instead. Every user who can enter its folder can connect without a token."
    parser.add_argument("--uds", metavar="PATH", help=text)
    text = "Exit when the process that started the server exits."
    parser.add_argument("--end-with-parent", action="store_true", help=text)
    text = (
        "Read the token from FILE. Default: $NBTRAIN_SERVE_TOKEN if it is set, else a new token, which is "
        "printed."
    )
    parser.add_argument("--token-file", metavar="FILE", help=text)
    add_loading(parser)
    for name, kind, metavar, text in (
        ("threads", int, "COUNT", "Threads for the model on a CPU. Default: all cores."),
        ("max_batch", int, "TEXTS", "Texts to generate at the same time. Default: 16 on a CPU, 64 on a GPU."),
        (
            "max_queue",
            int,
            "TEXTS",
            "Maximum number of waiting texts; further requests get status 429.",
        ),
        (
            "max_new_tokens",
            int,
            "COUNT",
            "Maximum number of new tokens per text. Default: the model's number of positions.",
        ),
        ("max_body_bytes", int, "BYTES", "Maximum size of a request's body."),
        (
            "request_seconds",
            float,
            "SECONDS",
            "Maximum time for a request, including its time in the queue.",
        ),
        ("write_seconds", float, "SECONDS", "Disconnect a client that has read nothing for this long."),
        ("grace_seconds", float, "SECONDS", "Time for running requests to finish after SIGTERM."),
        (
            "idle_seconds",
            float,
            "SECONDS",
            "Without RUN, unload a model that gets no request for this long.",
        ),
    ):
        flag, default = f"--{name.replace('_', '-')}", getattr(plain, name)
        parser.add_argument(flag, type=kind, default=default, metavar=metavar, help=text)
    text = (
        "File with the chat template to use, written as in a run YAML or in Jinja. Default: the template of "
        "the run's data or, if it has none, of the run's tokenizer."
    )
    parser.add_argument("--chat-template", metavar="FILE", help=text)


def serve(options: argparse.Namespace) -> int:
    """Serve until a signal ends the server. Return the exit code."""
    # Until the server handles signals, an interrupt ends the process. As an exception it could be raised
    # during an import, and some libraries swallow exceptions there.
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return _serve(options)
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(options: argparse.Namespace) -> int:
    from nbtrain.base.process.parent_death import die_with_parent
    from nbtrain.serving.server import Ready
    from nbtrain.serving.server import serve as serve_models
    from nbtrain.serving.tokens import token_of

    names = {field.name for field in fields(ServeOptions)}
    how = {name: value for name, value in vars(options).items() if name in names}
    if options.run is not None:
        how["run"] = str(run_of(options).directory.path)
    token: str | None = None
    source: str | None = None
    if options.uds is None:
        token, source = token_of(options.token_file)
    if options.end_with_parent:
        die_with_parent()

    def when_ready(ready: Ready) -> None:
        if ready.name is not None:
            facts = ready.facts
            show(
                f"{ready.name}, step {facts['step']}, {facts['dtype']} on {facts['device']}: "
                f"{facts['max_batch']} texts at once, each with at most {facts['positions']:,} tokens"
            )
            show(f"chat template: {facts['chat_template']}")
        if token is None:
            print(f"listening on {ready.url}", flush=True)
            return
        shown = token if source is None else f"the token from {source}"
        print(f"OpenAI's base_url: {ready.url}/v1\napi_key: {shown}")
        print(f"a page to try it: {ready.url}/?token={token if source is None else 'TOKEN'}", flush=True)

    return serve_models(ServeOptions(**how), token, when_ready)
