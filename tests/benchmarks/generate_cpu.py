"""Tokens per second of decoding on a CPU: this engine compared with transformers' generate at equal sizes.

    python tests/benchmarks/generate_cpu.py [14M 124M llama] [--batches 1 8 16] [--dtype fp32] [--threads 1]
    python tests/benchmarks/generate_cpu.py 14M --clients 1 4 16      through `nbtrain serve`, over HTTP

Both use random weights and decode greedily after a prompt of 128 tokens. The time of a step is the CPU time
between two tokens; a run's result is the median. The time of the first token is the CPU time from the call to
it. Runs of the two alternate (A B A B), and each ratio compares two neighboring runs, because other programs
on the machine slow both down. llama is train_cpu.py's, 14M parameters with two groups of queries, compared
with LlamaForCausalLM. Prints a Markdown table.
"""

import argparse
import concurrent.futures
import itertools
import os
import statistics
import tempfile
import time
from typing import NamedTuple

import torch

from nbtrain.config.generation import Generation
from nbtrain.inference.choice import Request
from nbtrain.inference.engine import Engine
from nbtrain.inference.packed import pack
from nbtrain.inference.runner import Runner
from nbtrain.model.gpt import GPT
from tests.benchmarks.train_cpu import Shape, bare_model, transformers_model

SIZES = {
    "14M": Shape(6, 384, 6, 1536, 8192, 1024),
    "124M": Shape(12, 768, 12, 3072, 50304, 1024),
    "llama": Shape(6, 384, 6, 1152, 8192, 1024, groups=2),
}
NEW_TOKENS = {"14M": 48, "124M": 20, "llama": 48}
PROMPT_TOKENS = 128
CLIENT_TOKENS = 64


class Steps(NamedTuple):
    """CPU seconds of one run."""

    first: float
    """Until the first token, with the reading of the prompts."""
    step: float
    """Median of the later steps."""


class NoText:
    """A tokenizer for runs whose text is never read."""

    eod_id = -1

    def decode(self, ids) -> str:
        return ""

    def decode_finished(self, ids) -> tuple[str, bool]:
        return "", False


def ours(name: str, dtype: torch.dtype) -> GPT:
    model = bare_model(SIZES[name], 0.0).eval().to(dtype)
    pack(model.requires_grad_(False))
    return model


def theirs(name: str, dtype: torch.dtype):
    model = transformers_model(SIZES[name], 0.0).eval().to(dtype)
    model.config.use_cache = model.generation_config.use_cache = True
    # Random weights would soon choose the token that ends a text.
    model.generation_config.bos_token_id = model.generation_config.eos_token_id = None
    return model


def step_of_ours(model: GPT, batch: int, count: int) -> Steps:
    """Decode with our engine."""
    engine = Engine(Runner(model, batch), NoText(), prefill_tokens=batch * PROMPT_TOKENS)
    generation = Generation(max_new_tokens=count, temperature=0.0, ignore_eod=True)
    for number in range(batch):
        # Prompts with a common prefix would share its cache.
        prompt = [1 + number, *range(1, PROMPT_TOKENS)]
        engine.add(Request(str(number), prompt, generation, False))
    stamps = [time.process_time()]
    while not engine.is_idle:
        engine.step()
        stamps.append(time.process_time())
    return steps_of(stamps)


def step_of_theirs(model, batch: int, count: int) -> Steps:
    """Decode with transformers' generate()."""
    from transformers import StoppingCriteria, StoppingCriteriaList

    class Stamp(StoppingCriteria):
        def __call__(self, input_ids, scores, **more):
            stamps.append(time.process_time())
            return torch.zeros(len(input_ids), dtype=torch.bool)

    prompts = torch.tensor([[1 + number, *range(1, PROMPT_TOKENS)] for number in range(batch)])
    stamps = [time.process_time()]
    model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
        stopping_criteria=StoppingCriteriaList([Stamp()]),
    )
    return steps_of(stamps)


def steps_of(stamps: list[float]) -> Steps:
    first, *rest = (end - start for start, end in itertools.pairwise(stamps))
    return Steps(first, statistics.median(rest))


def decoding(names: list[str], batches: list[int], dtype: str, repeats: int) -> None:
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    print(
        f"| model, {dtype} | texts | ours, tokens/s | transformers | ratio (least to most) | "
        "first token, ms | transformers |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in names:
        our_model, their_model, count = ours(name, kind), theirs(name, kind), NEW_TOKENS[name]
        for batch in batches:
            step_of_ours(our_model, batch, 2), step_of_theirs(their_model, batch, 2)
            pairs = [
                (step_of_ours(our_model, batch, count), step_of_theirs(their_model, batch, count))
                for _ in range(repeats)
            ]
            ratios = sorted(other.step / own.step for own, other in pairs)
            own, other = (batch / statistics.median(run.step for run in side) for side in zip(*pairs))
            first, their_first = (1e3 * statistics.median(run.first for run in side) for side in zip(*pairs))
            print(
                f"| {name} | {batch} | {own:.0f} | {other:.0f} | {statistics.median(ratios):.2f} "
                f"({ratios[0]:.2f} to {ratios[-1]:.2f}) | {first:.0f} | {their_first:.0f} |",
                flush=True,
            )


def serving(name: str, clients: list[int], threads: int, repeats: int) -> None:
    """Print the new tokens per CPU second of the server and the model's process, for each number of clients,
    next to the engine alone, which generates for the same prompts in one batch.
    """
    from nbtrain.serving.launched import Server
    from nbtrain.serving.options import ServeOptions
    from tests.inference import saved

    shape = SIZES[name]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NBTRAIN_WORKSPACE"] = folder
        sizes = {
            "num_layers": shape.layers,
            "hidden_size": shape.hidden,
            "num_attention_heads": shape.heads,
        }
        overrides = {f"model.{key}": value for key, value in sizes.items()}
        overrides |= {"model.seq_length": shape.seq, "tokenizer.vocab_size": shape.vocab}
        overrides |= {"model.untie_embeddings_and_output_weights": False}
        run = saved.save_run("timed", overrides, std=0.05)
        with Server(
            ServeOptions(run=str(run.path), port=0, max_batch=max(clients), threads=threads)
        ) as server:
            model = ours(name, torch.float32)
            print("| clients | tokens/s | times one client | one batch | ratio (least to most) |")
            print("| --- | --- | --- | --- | --- |")
            rates: dict[int, list[float]] = {count: [] for count in clients}
            batched: dict[int, list[float]] = {count: [] for count in clients}
            for _ in range(repeats):
                for count in clients:
                    rates[count].append(rate_of(server, count))
                    batched[count].append(batch_rate_of(model, count))
            for count in clients:
                beside = [one / first for one, first in zip(rates[count], rates[clients[0]])]
                ratios = sorted(one / whole for one, whole in zip(rates[count], batched[count]))
                print(
                    f"| {count} | {statistics.median(rates[count]):.0f} | {statistics.median(beside):.2f} | "
                    f"{statistics.median(batched[count]):.0f} | {statistics.median(ratios):.2f} "
                    f"({ratios[0]:.2f} to {ratios[-1]:.2f}) |"
                )


def rate_of(server, clients: int) -> float:
    """Return the new tokens per CPU second, including the time for the prompts.

    Each client sends one request for CLIENT_TOKENS tokens.
    """
    before = cpu_seconds_below(server)

    def ask(number: int) -> int:
        prompt = prompt_of(number, clients)
        body = {"prompt": prompt, "max_tokens": CLIENT_TOKENS, "temperature": 0, "ignore_eos": True}
        return server.post("/completions", body)["usage"]["completion_tokens"]

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        tokens = sum(pool.map(ask, range(clients)))
    return tokens / (cpu_seconds_below(server) - before)


def prompt_of(number: int, clients: int) -> list[int]:
    """Return the prompt of a client: 16 tokens of the first one to 127 of the last one."""
    return [1 + number, *range(2, 17 + 111 * number // max(clients - 1, 1))]


def batch_rate_of(model: GPT, clients: int) -> float:
    """Return the new tokens per CPU second of the engine in this process for the clients' requests."""
    engine = Engine(Runner(model, clients), NoText())
    generation = Generation(max_new_tokens=CLIENT_TOKENS, temperature=0.0, ignore_eod=True)
    before = time.process_time()
    for number in range(clients):
        engine.add(Request(str(number), prompt_of(number, clients), generation, False))
    while not engine.is_idle:
        engine.step()
    return clients * CLIENT_TOKENS / (time.process_time() - before)


def cpu_seconds_below(server) -> float:
    """Return the CPU seconds that the server and the model's process have used."""
    import psutil

    parent = psutil.Process(server._process.pid)
    return sum(sum(one.cpu_times()[:2]) for one in [parent, *parent.children(recursive=True)])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sizes", nargs="*", default=[*SIZES], choices=[*SIZES, []])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 16])
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--clients", nargs="+", type=int, help="through the server")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.clients:
        serving(options.sizes[0], options.clients, options.threads, options.repeats)
    else:
        decoding(options.sizes, options.batches, options.dtype, options.repeats)


if __name__ == "__main__":
    main()
