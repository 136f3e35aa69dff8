"""Tokens per second of decoding on a CPU: this engine compared with transformers' generate at equal sizes.

    python tests/benchmarks/generate_cpu.py [14M 124M llama] [--batches 1 8 16] [--dtype fp32] [--threads 1]
    python tests/benchmarks/generate_cpu.py 14M --clients 1 8 16 [--stream]     through `nbtrain serve`

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
from nbtrain.inference.loaded import load
from nbtrain.inference.packed import pack
from nbtrain.inference.runner import Runner
from nbtrain.model.gpt import GPT
from tests.benchmarks.process_clock import cpu_seconds_of
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


class Served(NamedTuple):
    """CPU seconds for the requests of all clients."""

    http: float
    """The process that speaks HTTP."""
    model: float
    """The process that holds the model."""


def serving(name: str, clients: list[int], threads: int, repeats: int, is_stream: bool) -> None:
    """Print the new tokens per CPU second of the server and the model's process, for each number of clients,
    next to the same engine alone, which has the same model and tokenizer and generates for the same prompts
    in this process: in one batch, and in the steps that the server takes, whose first one has only the first
    client's text, because the other clients' requests are read meanwhile.
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
        # The tokenizer has a text for each of its few ids, so that each token is sent; the output matrix is
        # padded to its usual size.
        overrides |= {"model.seq_length": shape.seq, "model.make_vocab_size_divisible_by": shape.vocab}
        overrides |= {"model.untie_embeddings_and_output_weights": False}
        run = saved.save_run("timed", overrides, std=0.05)
        loaded = load(run)
        engine = Engine(Runner(loaded.model, max(clients)), loaded.tokenizer, loaded.end_ids)
        options = ServeOptions(run=str(run.path), port=0, max_batch=max(clients), threads=threads)
        with Server(options) as server:
            served: dict[int, list[Served]] = {count: [] for count in clients}
            alone: dict[int, list[float]] = {count: [] for count in clients}
            same_steps: dict[int, list[float]] = {count: [] for count in clients}
            numbers = itertools.count()
            # The first round is for caches and the first use of each product.
            for round_number in range(repeats + 1):
                for count in clients:
                    prompts, others = prompts_of(next(numbers), count), prompts_of(next(numbers), count)
                    through = ask(server, prompts, is_stream)
                    seconds = engine_seconds(engine, prompts, False), engine_seconds(engine, others, True)
                    if round_number:
                        served[count].append(through)
                        alone[count].append(seconds[0])
                        same_steps[count].append(seconds[1])
    print(
        "| clients | tokens/s | times one client | one batch | ratio (least to most) | same steps, ratio | "
        "HTTP's share |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    rate = {count: count * CLIENT_TOKENS / statistics.median(map(sum, served[count])) for count in clients}
    for count in clients:
        ratios = sorted(own / sum(both) for own, both in zip(alone[count], served[count]))
        bound = statistics.median(own / sum(both) for own, both in zip(same_steps[count], served[count]))
        shares = [both.http / sum(both) for both in served[count]]
        print(
            f"| {count} | {rate[count]:.0f} | {rate[count] / rate[clients[0]]:.2f} | "
            f"{count * CLIENT_TOKENS / statistics.median(alone[count]):.0f} | "
            f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) | "
            f"{bound:.2f} | {statistics.median(shares):.1%} |"
        )


def ask(server, prompts: list[list[int]], is_stream: bool) -> Served:
    """Let a client for each prompt send one request for CLIENT_TOKENS tokens, all at once.

    The clients are threads of this process, whose time is not counted.
    """
    import psutil

    http = psutil.Process(server._process.pid)
    (model,) = http.children()
    processes = http.pid, model.pid

    def client(prompt: list[int]) -> None:
        body = {"prompt": prompt, "max_tokens": CLIENT_TOKENS, "temperature": 0, "ignore_eos": True}
        if is_stream:
            *_, last = server.stream("/completions", body)
            assert last["choices"][0]["finish_reason"] == "length"
        else:
            assert server.post("/completions", body)["usage"]["completion_tokens"] == CLIENT_TOKENS

    before = [cpu_seconds_of(pid) for pid in processes]
    with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        for _ in pool.map(client, prompts):
            pass
    return Served(*(cpu_seconds_of(pid) - start for pid, start in zip(processes, before)))


def prompts_of(call: int, clients: int) -> list[list[int]]:
    """Return a prompt for each client: 16 tokens of the first one to 127 of the last one.

    No two begin alike, in all calls, so that nothing is read from the cache of another one.
    """
    sizes = [17 + 111 * number // max(clients - 1, 1) for number in range(clients)]
    return [
        [1 + call % 100, 1 + call // 100, 1 + number, *range(4, size)] for number, size in enumerate(sizes)
    ]


def engine_seconds(engine: Engine, prompts: list[list[int]], is_first_alone: bool) -> float:
    """Return the CPU seconds of an engine in this process for the clients' requests.

    With is_first_alone, the others are added after a step.
    """
    generation = Generation(max_new_tokens=CLIENT_TOKENS, temperature=0.0, ignore_eod=True)
    before = time.process_time()
    for number, prompt in enumerate(prompts):
        engine.add(Request(str(number), prompt, generation, False))
        if is_first_alone and number == 0:
            engine.step()
    while not engine.is_idle:
        engine.step()
    return time.process_time() - before


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
    parser.add_argument("--stream", action="store_true", help="the clients request streams")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.clients:
        serving(options.sizes[0], options.clients, options.threads, options.repeats, options.stream)
    else:
        decoding(options.sizes, options.batches, options.dtype, options.repeats)


if __name__ == "__main__":
    main()
