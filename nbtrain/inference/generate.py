"""`python -m nbtrain.inference`: loads a model once and generates text until its stdin is closed.

Each line of stdin is a JSON object. The first line selects the model; null selects a suitable default:

    {"run_dir", "step", "dtype", "tensor_parallel_size", "max_batch", "threads"}

Any number of requests and cancellations may follow, at any time:

    {"kind": "generate", "id", "prompt", "slides", "streams" (both in choice.py), and fields of
     config/generation.py}; the prompt is a text, which is encoded after the tokenizer's prefix, or a list of
     token ids and texts, which are encoded one by one without the prefix
    {"kind": "score", "id", "context": token ids, "continuations": lists of token ids}
    {"kind": "cancel", "id"}

Each line of stdout is a JSON object too:

    {"kind": "note", "message"}                             an incomplete checkpoint was skipped
    {"kind": "ready", "step", "dtype", "device", "tensor_parallel_size", "max_batch", "positions",
     "vocab_size", "eod"}                                   the model is loaded
    {"kind": "events", "events": [...], "running", "waiting"}
                                                            each event is {"id", "accepted"} for an accepted
                                                            request, {"id", "error", "message"} for a refused
                                                            one (with the numbers of a ContextLengthError), or
                                                            an event of engine.py
    {"kind": "error", "error", "message"}                   the process ends with this NbtrainError

The client is serving/engine_process.py.
"""

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO, Any

import orjson
import torch

from nbtrain.base.errors import ConfigError, ContextLengthError, NbtrainError
from nbtrain.base.run_directory.checkpoint_files import in_work
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text.amounts import counted
from nbtrain.checkpoint.files.manifest import whole_step
from nbtrain.checkpoint.weights.store import DTYPES
from nbtrain.config.arithmetic.parameters import count_parameters
from nbtrain.config.generation import Generation
from nbtrain.config.load import load_resolved
from nbtrain.corpus.tokenizer.tokenizer import Tokenizer
from nbtrain.inference.choice import Request
from nbtrain.inference.engine import Engine
from nbtrain.inference.fit import MOST_SLOTS_ON_CPU, MOST_SLOTS_ON_GPU, Needed, cuts_of, fit, free_memory
from nbtrain.inference.loaded import load
from nbtrain.inference.ranks import GlooOrders, Ranks, device_of
from nbtrain.inference.runner import Runner
from nbtrain.inference.scored import ScoreRequest
from nbtrain.model.gpt_config import GPTConfig
from nbtrain.parallel.groups import ALONE

Message = dict[str, Any]

POLL_SECONDS = 10.0


def main() -> int:
    """Generate text until stdin ends, and return the exit code."""
    # Libraries print to stderr, because stdout is reserved for the JSON lines.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    commands: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    asked = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_read, args=(sys.stdin.buffer, commands), daemon=True).start()
    try:
        service = Service(asked)
        for note in service.notes:
            _say(out, {"kind": "note", "message": note})
        _say(out, service.ready)
        for message in answers(service.engine, commands):
            _say(out, message)
        service.end()
    except NbtrainError as error:
        _say(out, {"kind": "error", "error": type(error).__name__, "message": str(error)})
        return error.exit_code
    except BrokenPipeError:
        return 1
    return 0


class Service:
    """The engine for the requested checkpoint, sharded across tensor-parallel ranks."""

    def __init__(self, asked: Message):
        run = RunDir(asked["run_dir"])
        config = load_resolved(run.config_yaml)
        step, passed_over = whole_step(run, asked.get("step"))
        self.notes = [
            f"checkpoint global_step{number} is not used: {reason}"
            for number, reason in passed_over
            if in_work(run, number, time.time()) is None
        ]
        if asked.get("threads"):
            torch.set_num_threads(asked["threads"])
        device, plain = device_of(0), GPTConfig.of(config)
        dtype = asked.get("dtype") or "auto"
        if dtype == "auto":
            dtype = "fp32" if device.type == "cpu" else config.precision.dtype
        positions = plain.max_position_embeddings
        ranks, slots = _ranks_and_slots(config, plain, dtype, positions, asked)
        self._ranks = None
        if ranks > 1:
            same = {
                "run_dir": asked["run_dir"],
                "step": step,
                "dtype": dtype,
                "threads": asked.get("threads"),
            }
            self._ranks = Ranks(ranks, {**same, "slots": slots, "positions": positions})
        group, orders = (self._ranks.group, GlooOrders()) if self._ranks else (ALONE, None)
        loaded = load(run, step, dtype, group, device, is_checked=True)
        self.runner = Runner(loaded.model, slots, positions, orders)
        self.engine = Engine(self.runner, loaded.tokenizer, loaded.end_ids)
        self.ready: Message = {
            "kind": "ready",
            "step": step,
            "dtype": dtype,
            "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
            "tensor_parallel_size": ranks,
            "max_batch": slots,
            "positions": positions,
            "vocab_size": self.runner.vocab_size,
            "eod": loaded.tokenizer.eod_token,
        }

    def end(self) -> None:
        """End the other tensor-parallel ranks."""
        if self._ranks is not None:
            self._ranks.will_end()
            self.runner.end()
            self._ranks.wait()


def _ranks_and_slots(
    config: Any, plain: GPTConfig, dtype: str, positions: int, asked: Message
) -> tuple[int, int]:
    ranks, slots = asked.get("tensor_parallel_size"), asked.get("max_batch")
    free, is_gpu = free_memory(), torch.cuda.is_available()
    if is_gpu and ranks is not None and ranks > len(free):
        raise ConfigError(
            f"tensor_parallel_size = {ranks}: this machine has only {counted(len(free), 'GPU')}."
        )
    needs = Needed.of(plain, count_parameters(config).total, DTYPES[dtype].itemsize, positions)
    most = MOST_SLOTS_ON_GPU if is_gpu else MOST_SLOTS_ON_CPU
    if ranks is None:
        return fit(needs, free, cuts_of(plain, len(free)), slots, most)
    # Ranks on a CPU share the machine's memory.
    shared = free if is_gpu else [free[0] // ranks] * ranks
    return fit(needs, shared, [ranks], slots, most)


def answers(engine: Engine, commands: "queue.SimpleQueue[Message | None]") -> Iterator[Message]:
    """Execute commands and yield the engine's messages, until a None ends the commands."""
    parent, said = os.getppid(), (0, 0)

    def counts() -> tuple[int, int]:
        return len(engine.running), len(engine.waiting)

    while True:
        taken: list[Message] = []
        # An idle engine waits for the next command; a busy one reads only the commands that have arrived.
        while (engine.is_idle and counts() == said) or not commands.empty():
            try:
                command = commands.get(timeout=POLL_SECONDS)
            except queue.Empty:
                # If the parent has died, a process that it forked may still hold the other end of stdin.
                if os.getppid() != parent:
                    return
                continue
            if command is None:
                return
            if command["kind"] == "cancel":
                engine.cancel(command["id"])
                continue
            try:
                if command["kind"] == "score":
                    engine.score(ScoreRequest(command["id"], command["context"], command["continuations"]))
                else:
                    engine.add(request_of(command, engine.tokenizer, engine.runner.positions))
                taken.append({"id": command["id"], "accepted": True})
            except NbtrainError as error:
                numbers = error.counts if isinstance(error, ContextLengthError) else {}
                refusal = {"error": type(error).__name__, "message": str(error), **numbers}
                taken.append({"id": command["id"], **refusal})
                break
        # A step may take a second, so report accepted and refused requests before it.
        for next_events in (taken.copy, engine.step):
            events = next_events()
            if events or counts() != said:
                said = counts()
                yield {"kind": "events", "events": events, "running": said[0], "waiting": said[1]}


def request_of(command: Message, tokenizer: Tokenizer, positions: int) -> Request:
    """Convert a command to a request.

    An empty prompt becomes the tokenizer's prefix or, without a prefix, an end-of-document token. If
    max_new_tokens is None, the limit is the number of positions left and, if given, most_new_tokens.
    """
    prompt = command["prompt"]
    tokens: list[int] = []
    before_text = 0
    if isinstance(prompt, str):
        tokens, before_text = tokenizer.encode_prompt(prompt), len(tokenizer.before_text)
    else:
        for number, piece in enumerate(prompt):
            if not isinstance(piece, str):
                tokens.append(piece)
            elif number and not isinstance(prompt[number - 1], str):
                tokens += tokenizer.encode_after_token(piece)
            else:
                tokens += tokenizer.encode(piece).tolist()
    tokens = tokens or [tokenizer.eod_id]
    before = tokenizer.before_text
    kept = len(before) if tokens[: len(before)] == before else 0
    if command["max_new_tokens"] is None:
        room = max(positions - len(tokens), 1)
        command = {**command, "max_new_tokens": min(room, command.get("most_new_tokens") or room)}
    slides = command.get("slides", False)
    streams = command.get("streams", True)
    generation = Generation.of(command)
    return Request(command["id"], tokens, generation, slides, before_text, kept, streams)


def _read(stdin: IO[bytes], commands: "queue.SimpleQueue[Message | None]") -> None:
    for line in stdin:
        commands.put(orjson.loads(line))
    commands.put(None)


def _say(out: IO[bytes], message: Message) -> None:
    out.write(orjson.dumps(message) + b"\n")
    out.flush()
