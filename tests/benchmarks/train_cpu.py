"""Training speed on CPU: our trainer, as a user runs it, against a bare loop and against transformers.

    python tests/benchmarks/train_cpu.py [--rounds 5] [--seconds 20] [--compiled] [--threads 2] [--dropout 0]

(a) bare: our model in a bare PyTorch loop. (b) transformers: GPT2LMHeadModel in the same loop. All with 6 layers,
hidden 384, vocabulary 8192, sequences of 512, batches of 8, AdamW (fused), gradient clipping, in bf16 autocast and
in bf16 weights with fp32 masters. Ours runs under torchrun with DeepSpeed, data from disk and all its records.

Every contender is started once and then stopped (SIGSTOP); a round lets each run alone for some seconds, in
turn, so that a slow minute of the machine falls on all. A round's figure is tokens over the time between its
first and last finished step. Prints the medians over the rounds and the ratios; asserts nothing. Wants a quiet
machine: check the load first. Tokens per CPU second, beside them, stand up to a busy one with --threads 1.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

LAYERS, HIDDEN, HEADS, VOCAB, SEQ, BATCH = 6, 384, 6, 8192, 512, 8
TOKENS = SEQ * BATCH
PRECISIONS = ("autocast", "masters")


# --- a contender's own process ------------------------------------------------------------------------------


def loop(kind: str, precision: str, compiled: bool, dropout: float, log: Path) -> None:
    """A bare PyTorch loop over random batches; appends the time of each finished step to `log`."""
    import torch

    torch.manual_seed(0)
    model = bare_model(dropout) if kind == "bare" else transformers_model(dropout)
    if precision == "masters":
        model.bfloat16()
    weights = list(model.parameters())
    masters = [weight.detach().float().requires_grad_() for weight in weights]
    optimized = masters if precision == "masters" else weights
    optimizer = torch.optim.AdamW(
        [
            {"params": [value for value in optimized if value.dim() > 1], "weight_decay": 0.1},
            {"params": [value for value in optimized if value.dim() == 1], "weight_decay": 0.0},
        ],
        lr=1e-4,
        fused=True,
    )
    if compiled:
        model.compile()
    batches = torch.randint(VOCAB, (16, BATCH, SEQ + 1), generator=torch.Generator().manual_seed(0))
    step = 0
    with log.open("a") as stream:
        while True:
            sequences = batches[step % len(batches)]
            tokens, labels = sequences[:, :-1], sequences[:, 1:]
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
                # transformers shifts the labels itself, so it is given the tokens: as many predictions but one.
                loss = model(tokens, labels) if kind == "bare" else model(tokens, labels=tokens).loss
            loss.backward()
            if precision == "masters":
                for master, weight in zip(masters, weights):
                    master.grad, weight.grad = weight.grad.float(), None
            torch.nn.utils.clip_grad_norm_(optimized, 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            if precision == "masters":
                with torch.no_grad():
                    torch._foreach_copy_(weights, masters)
            step += 1
            stream.write(f"{time.time()}\n")
            stream.flush()


def bare_model(dropout: float):
    from nbtrain.model.gpt import GPT, GPTConfig

    return GPT(GPTConfig(LAYERS, HIDDEN, HEADS, 4 * HIDDEN, VOCAB, SEQ, dropout, dropout))


def transformers_model(dropout: float):
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCAB,
            n_positions=SEQ,
            n_embd=HIDDEN,
            n_layer=LAYERS,
            n_head=HEADS,
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
            attn_implementation="sdpa",
        )
    ).train()


# --- the contest --------------------------------------------------------------------------------------------


class Contender:
    """A process group that trains for ever, and when its steps ended."""

    def __init__(self, name: str, process: subprocess.Popen):
        self.name = name
        self.process = process
        self.rates: list[float] = []
        self.cpu_rates: list[float] = []

    def finished_steps(self) -> list[float]:
        raise NotImplementedError

    def tree(self) -> list[psutil.Process]:
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def signal(self, number: int) -> None:
        for process in self.tree():
            process.send_signal(number)

    def cpu_seconds(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self.tree())

    def run_for(self, seconds: float) -> None:
        before = self.cpu_seconds()
        self.signal(signal.SIGCONT)
        began = time.time()
        time.sleep(seconds)
        self.signal(signal.SIGSTOP)
        ended = [moment for moment in self.finished_steps() if moment > began]
        if len(ended) >= 2:
            self.rates.append(TOKENS * (len(ended) - 1) / (ended[-1] - ended[0]))
            self.cpu_rates.append(TOKENS * len(ended) / (self.cpu_seconds() - before))


class Loop(Contender):
    def __init__(self, kind: str, precision: str, compiled: bool, options: argparse.Namespace, root: Path):
        name = f"{kind} {precision}{' compiled' if compiled else ''}"
        self.log = root / f"{name.replace(' ', '-')}.log"
        self.log.touch()
        command = [
            sys.executable,
            __file__,
            "--contender",
            kind,
            precision,
            str(int(compiled)),
            str(self.log),
        ]
        command += ["--dropout", str(options.dropout)]
        output = self.log.with_suffix(".out").open("wb")
        environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
        super().__init__(
            name,
            subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True),
        )

    def finished_steps(self) -> list[float]:
        return [float(line) for line in self.log.read_text().splitlines(keepends=True) if line.endswith("\n")]


class Ours(Contender):
    def __init__(self, precision: str, compiled: bool, options: argparse.Namespace, root: Path):
        import launch

        name = f"nbtrain {precision}{' compiled' if compiled else ''}"
        overrides = {
            "model.num_layers": LAYERS,
            "model.hidden_size": HIDDEN,
            "model.num_attention_heads": HEADS,
            "model.seq_length": SEQ,
            "model.hidden_dropout": options.dropout,
            "model.attention_dropout": options.dropout,
            "model.cross_entropy_chunk_tokens": 1024,
            "model.compile": compiled,
            "tokenizer.vocab_size": VOCAB,
            "data.index_samples": 80_000,
            "batch.micro_batch_size": BATCH,
            "batch.global_batch_size": BATCH,
            "batch.train_tokens": 10_000 * TOKENS,
            "evaluation.eval_interval_steps": 10**6,
            "checkpoint.save_interval_steps": 10**6,
            "precision.dtype": "bf16",
            "precision.autocast": precision == "autocast",
            "parallel.zero_stage": 0 if precision == "autocast" else 1,
        }
        self.run = launch.make_run(root, overrides, name.replace(" ", "-"))
        super().__init__(
            name,
            launch.start(self.run, root / "data", OMP_NUM_THREADS=str(options.threads), NBTRAIN_TRACE="1"),
        )

    def finished_steps(self) -> list[float]:
        path = self.run.newest_job().events / "rank0.jsonl"
        if not path.exists():
            return []
        lines = path.read_text().splitlines(keepends=True)
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event["time"] for event in events if event["kind"] == "trace"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each contender in each round")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument(
        "--compiled", action="store_true", help="compiled contenders too (they need a compiler)"
    )
    parser.add_argument("--precision", choices=PRECISIONS, action="append", help="both when not given")
    parser.add_argument("--contender", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        kind, precision, compiled, log = options.contender
        loop(kind, precision, bool(int(compiled)), options.dropout, Path(log))
        return
    sys.path.insert(0, str(Path(__file__).parents[1] / "train"))
    with tempfile.TemporaryDirectory() as folder:
        contest(options, Path(folder))


def contest(options: argparse.Namespace, root: Path) -> None:
    import launch

    launch.make_dataset(root / "data", documents=2000, document_tokens=(100, 1000), vocab_size=VOCAB)
    contenders: list[Contender] = []
    try:
        for precision in options.precision or PRECISIONS:
            for compiled in (False, True) if options.compiled else (False,):
                for make in (Ours, "bare", "transformers"):
                    arguments = (precision, compiled, options, root)
                    contender = Ours(*arguments) if make is Ours else Loop(make, *arguments)
                    contenders.append(contender)
                    warm_up(contender)
        for number in range(options.rounds):
            # Another order each round, so that nobody always follows the same neighbour.
            for contender in contenders[number % len(contenders) :] + contenders[: number % len(contenders)]:
                contender.run_for(options.seconds)
            print(f"round {number + 1} of {options.rounds} done, load {os.getloadavg()[0]:.1f}", flush=True)
    finally:
        for contender in contenders:
            if contender.process.poll() is None:
                contender.signal(signal.SIGCONT)
                contender.signal(signal.SIGKILL)
                contender.process.wait()
    report(contenders, options)


def warm_up(contender: Contender) -> None:
    deadline = time.monotonic() + 600
    while len(contender.finished_steps()) < 3:
        if contender.process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{contender.name} did not make three steps")
        time.sleep(0.2)
    contender.signal(signal.SIGSTOP)


def report(contenders: list[Contender], options: argparse.Namespace) -> None:
    medians = {contender.name: statistics.median(contender.rates) for contender in contenders}
    print(
        f"\n{options.threads} threads, dropout {options.dropout}, median tokens/s of {options.rounds} rounds"
    )
    for contender in contenders:
        spread = f"{min(contender.rates):,.0f} to {max(contender.rates):,.0f}"
        per_cpu_second = statistics.median(contender.cpu_rates)
        print(
            f"  {contender.name:<32} {medians[contender.name]:>8,.0f}   ({spread}), {per_cpu_second:,.0f} per CPU second"
        )
    peers = {name: rate for name, rate in medians.items() if name.startswith("transformers")}
    fastest = max(peers, key=peers.__getitem__)
    print()
    for name, rate in medians.items():
        if name.startswith("nbtrain"):
            bare = medians[name.replace("nbtrain", "bare")]
            print(f"  {name:<32} {rate / bare:.3f} of bare, {rate / peers[fastest]:.3f} of {fastest}")


if __name__ == "__main__":
    main()
