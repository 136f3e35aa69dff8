"""Tokens per second of decoding on a CPU: this engine compared with transformers' generate at equal sizes.

    python tests/benchmarks/generate_cpu.py [14M 124M] [--batches 1 8] [--dtype fp32] [--threads 1]
    python tests/benchmarks/generate_cpu.py 14M --clients 1 4 16      through `nbtrain serve`, over HTTP

Both use random weights and decode greedily after a prompt of 128 tokens. The time of a step is the CPU time
between two tokens; a run's result is the median. Runs of the two alternate (A B A B), and each ratio compares
two neighboring runs, because other programs on the machine slow both down. Prints a Markdown table.
"""

import argparse
import concurrent.futures
import itertools
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch

from nbtrain.config.generation import Generation
from nbtrain.inference.choice import Request
from nbtrain.inference.engine import Engine
from nbtrain.inference.packed import pack
from nbtrain.inference.runner import Runner
from nbtrain.model.gpt import GPT, GPTConfig

# name: (layers, hidden size, heads, vocabulary, positions, new tokens)
SIZES = {"14M": (6, 384, 6, 8192, 1024, 48), "124M": (12, 768, 12, 50304, 1024, 20)}
PROMPT_TOKENS = 128


class NoText:
    """A tokenizer for runs whose text is never read."""

    eod_id = -1

    def decode(self, ids) -> str:
        return ""

    def decode_finished(self, ids) -> tuple[str, bool]:
        return "", False


def ours(name: str, dtype: torch.dtype) -> GPT:
    layers, hidden, heads, vocabulary, positions, _ = SIZES[name]
    model = GPT(GPTConfig(layers, hidden, heads, 4 * hidden, vocabulary, positions)).eval().to(dtype)
    pack(model.requires_grad_(False))
    return model


def theirs(name: str, dtype: torch.dtype):
    from transformers import GPT2Config, GPT2LMHeadModel

    layers, hidden, heads, vocabulary, positions, _ = SIZES[name]
    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=positions,
        n_embd=hidden,
        n_layer=layers,
        n_head=heads,
        bos_token_id=None,
        eos_token_id=None,
    )
    return GPT2LMHeadModel(config).eval().to(dtype)


def step_of_ours(model: GPT, batch: int, count: int) -> float:
    """Return the median seconds of a step of our engine, without the steps that read the prompts."""
    engine = Engine(Runner(model, batch), NoText(), prefill_tokens=batch * PROMPT_TOKENS)
    generation = Generation(max_new_tokens=count, temperature=0.0, ignore_eod=True)
    for number in range(batch):
        # Prompts with a common prefix would share its cache.
        prompt = [1 + number, *range(1, PROMPT_TOKENS)]
        engine.add(Request(str(number), prompt, generation, False))
    stamps = []
    while not engine.is_idle:
        engine.step()
        stamps.append(time.process_time())
    return median(stamps)


def step_of_theirs(model, batch: int, count: int) -> float:
    from transformers import StoppingCriteria, StoppingCriteriaList

    stamps = []

    class Stamp(StoppingCriteria):
        def __call__(self, input_ids, scores, **more):
            stamps.append(time.process_time())
            return torch.zeros(len(input_ids), dtype=torch.bool)

    prompts = torch.tensor([[1 + number, *range(1, PROMPT_TOKENS)] for number in range(batch)])
    model.generate(
        prompts,
        attention_mask=torch.ones_like(prompts),
        max_new_tokens=count,
        do_sample=False,
        pad_token_id=0,
        stopping_criteria=StoppingCriteriaList([Stamp()]),
    )
    return median(stamps)


def median(stamps: list[float]) -> float:
    return statistics.median(end - start for start, end in itertools.pairwise(stamps))


def decoding(names: list[str], batches: list[int], dtype: str, repeats: int) -> None:
    kind = {"fp32": torch.float32, "bf16": torch.bfloat16}[dtype]
    print(f"| model, {dtype} | texts | ours, tokens/s | transformers | ratio (least to most) |")
    print("| --- | --- | --- | --- | --- |")
    for name in names:
        our_model, their_model, count = ours(name, kind), theirs(name, kind), SIZES[name][-1]
        for batch in batches:
            pairs = []
            for _ in range(repeats):
                pairs.append(
                    (step_of_ours(our_model, batch, count), step_of_theirs(their_model, batch, count))
                )
            ratios = sorted(other / own for own, other in pairs)
            own, other = (batch / statistics.median(side) for side in zip(*pairs))
            middle = statistics.median(ratios)
            print(
                f"| {name} | {batch} | {own:.0f} | {other:.0f} | {middle:.2f} ({ratios[0]:.2f} to "
                f"{ratios[-1]:.2f}) |",
                flush=True,
            )


def serving(name: str, clients: list[int], threads: int, repeats: int) -> None:
    """Print the new tokens per CPU second of the server and the model's process,
    for each number of clients.
    """
    from nbtrain.serving.launched import Server
    from nbtrain.serving.options import ServeOptions
    from tests.inference import saved

    layers, hidden, heads, vocabulary, positions, _ = SIZES[name]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NBTRAIN_WORKSPACE"] = folder
        sizes = {"num_layers": layers, "hidden_size": hidden, "num_attention_heads": heads}
        overrides = {f"model.{key}": value for key, value in sizes.items()}
        overrides |= {"model.seq_length": positions, "tokenizer.vocab_size": vocabulary}
        overrides |= {"model.untie_embeddings_and_output_weights": False}
        run = saved.save_run("timed", overrides, std=0.05)
        with Server(
            ServeOptions(run=str(run.path), port=0, max_batch=max(clients), threads=threads)
        ) as server:
            print("| clients | tokens/s | times one client |\n| --- | --- | --- |")
            rates: dict[int, list[float]] = {count: [] for count in clients}
            for _ in range(repeats):
                for count in clients:
                    rates[count].append(rate_of(server, count))
            for count in clients:
                beside = [one / first for one, first in zip(rates[count], rates[clients[0]])]
                print(
                    f"| {count} | {statistics.median(rates[count]):.0f} | {statistics.median(beside):.2f} |"
                )


def rate_of(server, clients: int) -> float:
    """Return the new tokens per CPU second, including the time for the prompts.

    Each client sends one request for 64 tokens; prompts have 16 to 127 tokens.
    """
    before = cpu_seconds_below(server)

    def ask(number: int) -> int:
        prompt = [1 + number, *range(2, 17 + 111 * number // max(clients - 1, 1))]
        body = {"prompt": prompt, "max_tokens": 64, "temperature": 0, "ignore_eos": True}
        return server.post("/completions", body)["usage"]["completion_tokens"]

    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        tokens = sum(pool.map(ask, range(clients)))
    return tokens / (cpu_seconds_below(server) - before)


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
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
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
    sys.path.insert(0, str(Path(__file__).parents[2]))
    main()
