"""Training speed on CPU: our trainer, as a user runs it, compared with a bare loop and with other programs.

    python tests/benchmarks/train_cpu.py [--model gpt] [--rounds 5] [--seconds 20] [--precision masters]
                                         [--only nbtrain bare ...] [--compiled [nanogpt ...]] [--layouts]
                                         [--nanogpt FOLDER] [--old FOLDER] [--threads 2] [--dropout 0]
    python tests/benchmarks/train_cpu.py --in-turn [--model llama] [--rounds 20]

The contenders, of which --only chooses some:

    nbtrain        our trainer under torchrun, with DeepSpeed, data from disk and all of its records
    old            the same of another version of this repository, whose root --old names
    bare           our model in a bare PyTorch loop
    products       the weights' matrix products of a step in that loop, forward and backward, nothing else
    transformers   GPT2LMHeadModel or, with --model llama or llama-tiny, LlamaForCausalLM in the same loop
    nanogpt        the model of a clone of nanoGPT, whose root --nanogpt names, in the same loop
    trainer        transformers' Trainer with DeepSpeed (ZeRO 1), which needs the package accelerate; named by
                   --only
    layouts        with --layouts, ours on two ranks of one thread each: data, tensor, Ulysses and pipeline
                   parallel

gpt and llama have 14M parameters (6 layers, hidden 384, vocabulary 8192, sequences of 512); llama-tiny has
the shape of the run with that name. All use batches of 8, AdamW (fused) and gradient clipping, in fp32, in
bf16 autocast, and with bf16 weights and fp32 masters. A pipeline splits the batch into four micro batches, so
a fifth of the time of two stages is the bubble. Two data-parallel ranks take four sequences each.

Every contender is started once and then stopped (SIGSTOP). In each round they run one after the other, alone,
for some seconds each, so that a slow minute of the machine affects all of them. A round's result is the
number of tokens divided by the time, and by the CPU seconds, between the ends of its first and last step.
Prints the medians over the rounds, the median of the rounds' ratios of ours to each other contender, the
share of this machine's matrix rate that our steps reach, and the gains of bf16 and of compiling. Asserts
nothing.

Needs an idle machine: check the load first. A stopped contender keeps its memory: with --layouts, one
--precision at a time fits in 24 GiB. On a busy machine, tokens per CPU second and their ratios are usable
with --threads 1. So are the results of --in-turn, which alternates steps of bare and transformers in one
process with one thread in fp32 and prints the ratios of their CPU seconds.
"""

import argparse
import functools
import importlib.util
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).absolute().parents[2]
BATCH = 8
KINDS = ("nbtrain", "old", "bare", "products", "transformers", "nanogpt", "trainer")
COMPILED = tuple(kind for kind in KINDS if kind != "products")


@dataclass(frozen=True)
class Shape:
    """A model's sizes; with `groups` it is a Llama."""

    layers: int
    hidden: int
    heads: int
    ffn: int
    vocab: int
    seq: int
    groups: int = 0

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.seq * BATCH

    @property
    def matrices(self) -> list[tuple[int, int]]:
        """(outputs, inputs) of the weight of each matrix product, from the first layer to the output."""
        head = self.hidden // self.heads
        packed = (self.heads + 2 * (self.groups or self.heads)) * head
        wide = [(self.ffn, self.hidden)] * (2 if self.groups else 1)
        layer = [(packed, self.hidden), (self.hidden, self.hidden), *wide, (self.hidden, self.ffn)]
        return layer * self.layers + [(self.vocab, self.hidden)]

    @property
    def token_flops(self) -> int:
        """Floating-point operations of a token, forward and backward, with causal attention."""
        weights = sum(outputs * inputs for outputs, inputs in self.matrices)
        # Query times key and weights times value see half of the positions on average.
        return 6 * weights + 6 * self.layers * self.seq * self.hidden


SHAPES = {
    "gpt": Shape(6, 384, 6, 1536, 8192, 512),
    "llama": Shape(6, 384, 6, 1152, 8192, 512, groups=2),
    "llama-tiny": Shape(4, 256, 4, 768, 1024, 256, groups=2),
}
PRECISIONS = ("fp32", "autocast", "masters")
# Micro batch and parallel sizes of two ranks that compute the same step.
LAYOUTS = {
    "dp2": {"batch.micro_batch_size": 4, "parallel.data_parallel_size": 2},
    "tp2": {"batch.micro_batch_size": 8, "parallel.tensor_parallel_size": 2, "parallel.zero_stage": 1},
    "tp2-sp": {
        "batch.micro_batch_size": 8,
        "parallel.tensor_parallel_size": 2,
        "parallel.sequence_parallel": True,
        "parallel.zero_stage": 1,
    },
    "ulysses2": {"batch.micro_batch_size": 8, "parallel.ds_sequence_parallel_size": 2},
    "pp2": {"batch.micro_batch_size": 2, "parallel.pipeline_parallel_size": 2, "parallel.zero_stage": 1},
}


# --- a contender's own process ------------------------------------------------------------------------------


def loop(kind: str, shape: Shape, precision: str, compiled: bool, dropout: float, log: Path) -> None:
    """Run a bare PyTorch loop over random batches, and append the end time of each step to `log`."""
    import torch

    torch.manual_seed(0)
    own = functools.partial(bare_model, autocast=precision == "autocast")
    models = {"bare": own, "transformers": transformers_model, "nanogpt": nanogpt_model}
    model = models[kind](shape, dropout)
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
    size = (16, BATCH, shape.seq + 1)
    batches = torch.randint(shape.vocab, size, generator=torch.Generator().manual_seed(0))
    step = 0
    with log.open("a") as stream:
        while True:
            sequences = batches[step % len(batches)]
            tokens, labels = sequences[:, :-1], sequences[:, 1:]
            with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"):
                if kind == "transformers":
                    # It shifts the labels itself, so it gets the tokens: one prediction fewer.
                    loss = model(tokens, labels=tokens).loss
                else:
                    # nanoGPT returns the logits too, and takes contiguous labels.
                    loss = model(tokens, labels) if kind == "bare" else model(tokens, labels.contiguous())[1]
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


def products(shape: Shape, precision: str, log: Path) -> None:
    """Run the matrix products of a step's weights, three for each weight, and append the end time of each
    step to `log`.
    """
    import torch

    dtype = torch.float32 if precision == "fp32" else torch.bfloat16
    weights = [torch.randn(sizes, dtype=dtype) for sizes in shape.matrices]
    inputs, outputs = (
        {
            size: torch.randn(shape.tokens, size, dtype=dtype)
            for size in {sizes[at] for sizes in shape.matrices}
        }
        for at in (1, 0)
    )
    with log.open("a") as stream:
        while True:
            for weight in weights:
                x, y = inputs[weight.shape[1]], outputs[weight.shape[0]]
                torch.nn.functional.linear(x, weight)
                torch.matmul(y, weight)
                torch.matmul(y.T, x)
            stream.write(f"{time.time()}\n")
            stream.flush()


def matrix_rate(precision: str, threads: int) -> float:
    """Return the floating-point operations per second of a large square product, the best of ten."""
    import torch

    torch.set_num_threads(threads)
    dtype, size, seconds = torch.float32 if precision == "fp32" else torch.bfloat16, 2048, []
    left, right = (torch.randn(size, size, dtype=dtype) for _ in range(2))
    for _ in range(10):
        started = time.perf_counter()
        torch.nn.functional.linear(left, right)
        seconds.append(time.perf_counter() - started)
    return 2 * size**3 / min(seconds)


def in_turn(options: argparse.Namespace) -> None:
    """Return the CPU seconds per step of our model and of transformers', by part; their steps alternate."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    shape = SHAPES[options.model]
    models = {"bare": bare_model(shape, 0.0), "transformers": transformers_model(shape, 0.0)}
    optimizers = {
        name: torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True) for name, model in models.items()
    }
    batches = torch.randint(shape.vocab, (options.rounds + 1, BATCH, shape.seq + 1))
    seconds: dict[str, list[tuple[float, ...]]] = {name: [] for name in models}
    for sequences in batches:
        tokens, labels = sequences[:, :-1], sequences[:, 1:]
        for name, model in models.items():
            times = [time.process_time()]
            loss = model(tokens, labels) if name == "bare" else model(tokens, labels=tokens).loss
            times.append(time.process_time())
            loss.backward()
            times.append(time.process_time())
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizers[name].step()
            optimizers[name].zero_grad(set_to_none=True)
            times.append(time.process_time())
            seconds[name].append((*(b - a for a, b in itertools.pairwise(times)), times[-1] - times[0]))
    print(f"{options.model}, 1 thread, fp32, CPU ms of a step, medians of {options.rounds}; load now "
          f"{os.getloadavg()[0]:.1f}")  # fmt: skip
    for place, part in enumerate(("forward", "backward", "optimizer", "step")):
        # The first step of each is the warm-up.
        ours, theirs = ([step[place] for step in seconds[name][1:]] for name in models)
        ratios = statistics.quantiles((b / a for a, b in zip(ours, theirs, strict=True)), n=4)
        print(
            f"  {part:<10} bare {1e3 * statistics.median(ours):,.0f}, transformers "
            f"{1e3 * statistics.median(theirs):,.0f}; transformers over bare {ratios[1]:.3f} (quartiles "
            f"{ratios[0]:.3f} and {ratios[2]:.3f})"
        )


def bare_model(shape: Shape, dropout: float, autocast: bool = False):
    from nbtrain.model.gpt import GPT
    from nbtrain.model.gpt_config import GPTConfig

    sizes = shape.layers, shape.hidden, shape.heads, shape.ffn, shape.vocab, shape.seq
    return GPT(GPTConfig(*sizes, dropout, dropout, autocast=autocast, **llama_fields(shape)))


def llama_fields(shape: Shape) -> dict[str, object]:
    """Return the fields of GPTConfig for a Llama; {} for a GPT."""
    if not shape.groups:
        return {}
    return {
        "num_query_groups": shape.groups,
        "normalization": "RMSNorm",
        "activation": "swiglu",
        "add_bias_linear": False,
        "position_embedding_type": "rope",
        "rotary_size": shape.hidden // shape.heads,
    }


def nanogpt_model(shape: Shape, dropout: float):
    # Its module has no package: the contender's process names its folder in PYTHONPATH.
    from model import GPT, GPTConfig

    return GPT(GPTConfig(shape.seq, shape.vocab, shape.layers, shape.heads, shape.hidden, dropout, bias=True))


def transformers_model(shape: Shape, dropout: float):
    if shape.groups:
        from transformers import LlamaConfig, LlamaForCausalLM

        return LlamaForCausalLM(
            LlamaConfig(
                vocab_size=shape.vocab,
                hidden_size=shape.hidden,
                intermediate_size=shape.ffn,
                num_hidden_layers=shape.layers,
                num_attention_heads=shape.heads,
                num_key_value_heads=shape.groups,
                max_position_embeddings=shape.seq,
                attention_dropout=dropout,
                tie_word_embeddings=True,
                use_cache=False,
                attn_implementation="sdpa",
            )
        ).train()
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=shape.vocab,
            n_positions=shape.seq,
            n_embd=shape.hidden,
            n_layer=shape.layers,
            n_head=shape.heads,
            resid_pdrop=dropout,
            embd_pdrop=dropout,
            attn_pdrop=dropout,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
            attn_implementation="sdpa",
        )
    ).train()


def trainer(shape: Shape, precision: str, compiled: bool, dropout: float, log: Path) -> None:
    """Run transformers' Trainer with DeepSpeed and ZeRO 1, set up as its
    documentation says; log steps to `log`.
    """
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    from nbtrain.base.process.ports import port_to_listen_on
    from nbtrain.parallel.startup import prepare_deepspeed

    os.environ["MASTER_PORT"] = str(port_to_listen_on())
    # Otherwise DeepSpeed starts a compiler; nothing else of ours is used here.
    prepare_deepspeed("cpu")
    import torch
    from torch.utils.data import Dataset
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Tokens(Dataset):
        def __init__(self) -> None:
            generator = torch.Generator().manual_seed(0)
            self.sequences = torch.randint(shape.vocab, (16 * BATCH, shape.seq), generator=generator)

        def __len__(self) -> int:
            return 10**7

        def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
            sequence = self.sequences[index % len(self.sequences)]
            return {"input_ids": sequence, "labels": sequence}

    class Clock(TrainerCallback):
        def on_step_end(self, *_: object, **__: object) -> None:
            with log.open("a") as stream:
                stream.write(f"{time.time()}\n")

    bf16 = precision != "fp32"
    settings = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": bf16},
        "zero_optimization": {"stage": 1},
        "zero_allow_untested_optimizer": True,
        "steps_per_print": 2**31,
    }
    model = transformers_model(shape, dropout)
    arguments = TrainingArguments(
        output_dir=str(log.with_suffix("")),
        per_device_train_batch_size=BATCH,
        max_steps=10**6,
        learning_rate=1e-4,
        weight_decay=0.1,
        optim="adamw_torch_fused",
        bf16=bf16,
        use_cpu=True,
        deepspeed=settings,
        torch_compile=compiled,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    Trainer(model=model, args=arguments, train_dataset=Tokens(), callbacks=[Clock()]).train()


# --- the contest --------------------------------------------------------------------------------------------


class Contender:
    """A process group that trains until it is killed, with the end times of its steps."""

    def __init__(self, name: str, process: subprocess.Popen, tokens: int):
        self.name = name
        self.process = process
        self.tokens = tokens
        self.rates: list[float] = []
        self.cpu_rates: list[float] = []

    def finished_steps(self) -> list[float]:
        raise NotImplementedError

    def last_output(self) -> str:
        raise NotImplementedError

    def tree(self) -> list[psutil.Process]:
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def signal(self, number: int) -> None:
        for process in self.tree():
            process.send_signal(number)

    def cpu_seconds(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self.tree())

    def run_for(self, seconds: float, steps: int) -> None:
        """Run for at least `seconds` and `steps`, and measure from the end of one step
        to the end of another.
        """
        self.signal(signal.SIGCONT)
        first = self.wait(len(self.finished_steps()) + 1)
        cpu, began = self.cpu_seconds(), time.monotonic()
        last = self.wait(first + steps)
        while time.monotonic() - began < seconds:
            last = self.wait(last + 1)
        cpu = self.cpu_seconds() - cpu
        self.signal(signal.SIGSTOP)
        ended = self.finished_steps()[first - 1 : last]
        self.rates.append(self.tokens * (last - first) / (ended[-1] - ended[0]))
        self.cpu_rates.append(self.tokens * (last - first) / cpu)

    def wait(self, steps: int) -> int:
        """Wait until at least this many steps have ended; return the number that have."""
        deadline = time.monotonic() + 600
        while (made := len(self.finished_steps())) < steps:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{self.name} ended or stands still\n{self.last_output()}")
            time.sleep(0.05)
        return made


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
            options.model,
            precision,
            str(int(compiled)),
            str(self.log),
        ]
        command += ["--dropout", str(options.dropout)]
        output = self.log.with_suffix(".out").open("wb")
        environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads)}
        if kind == "nanogpt":
            environment["PYTHONPATH"] = str(options.nanogpt)
        super().__init__(
            name,
            subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True),
            SHAPES[options.model].tokens,
        )

    def last_output(self) -> str:
        return self.log.with_suffix(".out").read_text(errors="replace")[-3000:]

    def finished_steps(self) -> list[float]:
        return [float(line) for line in self.log.read_text().splitlines(keepends=True) if line.endswith("\n")]


# A version makes its own dataset and run, because their files may differ between versions.
START = """
import json, sys
from pathlib import Path
from tests.train import launch
root, name, overrides, ranks, threads, vocab_size = sys.argv[1:]
root = Path(root)
if not (root / "data").is_dir():
    sizes = {"documents": 2000, "document_tokens": (100, 1000), "vocab_size": int(vocab_size)}
    launch.make_dataset(root / "data", **sizes)
run = launch.make_run(root, json.loads(overrides), name)
sys.exit(launch.start(run, root / "data", int(ranks), OMP_NUM_THREADS=threads).wait())
"""


class Ours(Contender):
    """Our trainer, of this version or, as "old", of the one in options.old."""

    def __init__(
        self,
        kind: str,
        precision: str,
        compiled: bool,
        options: argparse.Namespace,
        root: Path,
        layout: str = "",
    ):
        name = f"{kind} {precision}{' compiled' if compiled else ''}{' ' + layout if layout else ''}"
        shape = SHAPES[options.model]
        llama = {"architecture": "llama", "num_query_groups": shape.groups, "rotary_base": 10000.0}
        llama["untie_embeddings_and_output_weights"] = False
        overrides = {
            **({f"model.{key}": value for key, value in llama.items()} if shape.groups else {}),
            "model.num_layers": shape.layers,
            "model.hidden_size": shape.hidden,
            "model.num_attention_heads": shape.heads,
            "model.ffn_hidden_size": shape.ffn,
            "model.seq_length": shape.seq,
            "model.hidden_dropout": options.dropout,
            "model.attention_dropout": options.dropout,
            "model.cross_entropy_chunk_tokens": 1024,
            "model.compile": compiled,
            "tokenizer.vocab_size": shape.vocab,
            "data.index_samples": 80_000,
            "batch.micro_batch_size": BATCH,
            "batch.global_batch_size": BATCH,
            "batch.train_tokens": 10_000 * shape.tokens,
            "evaluation.eval_interval_steps": 10**6,
            "checkpoint.save_interval_steps": 10**6,
            "precision.dtype": "fp32" if precision == "fp32" else "bf16",
            "precision.autocast": precision == "autocast",
            "parallel.zero_stage": 1 if precision == "masters" else 0,
            # A stopped rank blocks the others.
            "parallel.process_group_timeout_seconds": 36_000,
            "logging.log_interval_steps": 100,
            **LAYOUTS.get(layout, {}),
        }
        tree = options.old if kind == "old" else REPOSITORY
        self.output = root / f"{name.replace(' ', '-')}.out"
        self.folder = root / kind / "output" / name.replace(" ", "-")
        ranks = 2 if layout else 1
        threads = str(max(options.threads // ranks, 1))
        words = [str(root / kind), self.folder.name, json.dumps(overrides), str(ranks), threads]
        with self.output.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", START, *words, str(shape.vocab)],
                cwd=tree,
                env={**os.environ, "PYTHONPATH": str(tree)},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        super().__init__(name, process, shape.tokens)

    def last_output(self) -> str:
        logs = [self.output, *sorted(self.folder.glob("jobs/*/logs/0.0.log"))]
        return "".join(log.read_text(errors="replace") for log in logs)[-3000:]

    def finished_steps(self) -> list[float]:
        found = sorted(self.folder.glob("jobs/*/events/rank0.jsonl"))
        if not found:
            return []
        lines = found[-1].read_text().splitlines(keepends=True)
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event["time"] for event in events if event["kind"] == "trace"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=SHAPES, default="gpt")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each contender in each round")
    parser.add_argument("--steps", type=int, default=2, help="the same, at least")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS[:-1]), help="contenders")
    parser.add_argument("--nanogpt", type=Path, help="the root of a clone of nanoGPT")
    parser.add_argument("--old", type=Path, help="the root of another version of this repository")
    parser.add_argument(
        "--compiled", nargs="*", choices=COMPILED, help="compiled ones too (all if none is named), by g++"
    )
    parser.add_argument("--precision", choices=PRECISIONS, action="append", help="all when not given")
    parser.add_argument("--layouts", action="store_true", help="ours on two ranks, in each layout, too")
    parser.add_argument("--in-turn", action="store_true", help="both models in one process")
    parser.add_argument("--contender", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        kind, model, precision, compiled, log = options.contender
        shape = SHAPES[model]
        if kind == "products":
            products(shape, precision, Path(log))
        play = trainer if kind == "trainer" else functools.partial(loop, kind)
        play(shape, precision, bool(int(compiled)), options.dropout, Path(log))
        return
    options.nanogpt, options.old = (path and path.resolve() for path in (options.nanogpt, options.old))
    if options.in_turn:
        in_turn(options)
        return
    # Ending the contest also ends the contenders, including stopped ones.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory() as folder:
        contest(options, Path(folder))


def contest(options: argparse.Namespace, root: Path) -> None:
    contenders: list[Contender] = []
    rates = {}
    try:
        for precision in options.precision or PRECISIONS:
            rates[precision] = matrix_rate(precision, options.threads)
            for kind, compiled in kinds(options, precision):
                make = (
                    functools.partial(Ours, kind)
                    if kind in ("nbtrain", "old")
                    else functools.partial(Loop, kind)
                )
                contenders.append(make(precision, compiled, options, root))
                warm_up(contenders[-1])
            for layout in LAYOUTS if options.layouts else ():
                contenders.append(Ours("nbtrain", precision, False, options, root, layout))
                warm_up(contenders[-1])
        for number in range(options.rounds):
            # Each round has another order, so that no contender always follows the same one.
            for contender in contenders[number % len(contenders) :] + contenders[: number % len(contenders)]:
                contender.run_for(options.seconds, options.steps)
            print(f"round {number + 1} of {options.rounds} done, load {os.getloadavg()[0]:.1f}", flush=True)
    finally:
        for contender in contenders:
            if contender.process.poll() is None:
                contender.signal(signal.SIGCONT)
                contender.signal(signal.SIGKILL)
                contender.process.wait()
    report(contenders, rates, options)


def kinds(options: argparse.Namespace, precision: str) -> list[tuple[str, bool]]:
    """Return (kind, whether compiled) of the contenders of a precision, and say which ones do not run."""
    absent = {
        "old": "" if options.old else "its folder is not given (--old)",
        "nanogpt": "" if options.nanogpt else "its folder is not given (--nanogpt)",
        "trainer": "" if importlib.util.find_spec("accelerate") else "accelerate is not installed",
    }
    if options.nanogpt and SHAPES[options.model].groups:
        absent["nanogpt"] = "it has no Llama"
    if precision == "autocast":
        absent["trainer"] = absent["trainer"] or "it has no bf16 autocast"
    found = []
    for kind in options.only:
        if reason := absent.get(kind):
            print(f"{kind} {precision}: not run, {reason}")
            continue
        found.append((kind, False))
        if options.compiled is not None and kind in (options.compiled or COMPILED):
            found.append((kind, True))
    return found


def warm_up(contender: Contender) -> None:
    deadline = time.monotonic() + 600
    while len(contender.finished_steps()) < 3:
        if contender.process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{contender.name} did not make three steps\n{contender.last_output()}")
        time.sleep(0.2)
    contender.signal(signal.SIGSTOP)


def report(contenders: list[Contender], rates: dict[str, float], options: argparse.Namespace) -> None:
    shape = SHAPES[options.model]
    medians = {contender.name: statistics.median(contender.rates) for contender in contenders}
    print(
        f"\n{options.model}, {options.threads} threads, dropout {options.dropout}, {options.rounds} rounds "
        f"of {options.seconds:g} s\n"
    )
    if options.nanogpt and any(name.startswith("nanogpt") for name in medians):
        commit = subprocess.run(
            ["git", "-C", options.nanogpt, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
        )
        print(f"nanoGPT is at commit {commit.stdout.strip()}\n")
    print("| program | tokens/s | least to most | tokens per CPU s | share of the matrix rate |")
    print("| --- | --- | --- | --- | --- |")
    for contender in contenders:
        rate = rates[contender.name.split()[1]]
        flops = shape.token_flops
        if contender.name.startswith("products"):
            flops = 6 * sum(outputs * inputs for outputs, inputs in shape.matrices)
        print(
            f"| {contender.name} | {medians[contender.name]:,.0f} | {min(contender.rates):,.0f} to "
            f"{max(contender.rates):,.0f} | {statistics.median(contender.cpu_rates):,.0f} | "
            f"{medians[contender.name] * flops / rate:.1%} |"
        )
    for precision, rate in rates.items():
        print(f"\nmatrix rate, {precision}: {rate / 1e9:,.0f} GFLOP/s")
    ratios(contenders)
    gains(medians)


def ratios(contenders: list[Contender]) -> None:
    """Print the ratios of our tokens/s to the others' in the same precision, round by round."""
    print("\n| of | to | ratio of tokens/s | least to most | ratio of tokens per CPU s | least to most |")
    print("| --- | --- | --- | --- | --- | --- |")
    for own, other in itertools.product(contenders, contenders):
        names = own.name, other.name
        if own is other or not own.name.startswith("nbtrain") or names[0].split()[1] != names[1].split()[1]:
            continue
        cells = []
        for ours, theirs in ((own.rates, other.rates), (own.cpu_rates, other.cpu_rates)):
            each = [one / peer for one, peer in zip(ours, theirs, strict=True)]
            cells.append(f"{statistics.median(each):.3f} | {min(each):.3f} to {max(each):.3f}")
        print(f"| {own.name} | {other.name} | {' | '.join(cells)} |")


def gains(medians: dict[str, float]) -> None:
    """Print how much faster bf16 and compiling are, in ours and in the bare loop."""
    print()
    for gain, before, after in (
        ("bf16 autocast over fp32", "fp32", "autocast"),
        ("bf16 weights over fp32", "fp32", "masters"),
        ("compiled over eager, fp32", "fp32", "fp32 compiled"),
        ("compiled over eager, bf16 autocast", "autocast", "autocast compiled"),
        ("compiled over eager, bf16 weights", "masters", "masters compiled"),
    ):
        wanted = [f"{kind} {what}" for kind in ("nbtrain", "bare") for what in (before, after)]
        if all(name in medians for name in wanted):
            ours, bare = (
                medians[f"{kind} {after}"] / medians[f"{kind} {before}"] for kind in ("nbtrain", "bare")
            )
            print(f"  {gain:<36} ours {ours:.3f}, bare {bare:.3f}: {ours / bare:.3f} of it")


if __name__ == "__main__":
    main()
