"""Training speed on one GPU: our trainer, as a user runs it, a bare loop of the same model, and transformers.

    python tests/benchmarks/train_gpu.py [--sizes 125m 1.3b] [--steps 16] [--compiled] [--transformers]
    [--zero-stage 1]
    python tests/benchmarks/train_gpu.py --smoke       checks on a CPU with a tiny model that it runs

All use bf16 and sequences of 2048, without dropout and recomputation. Ours is `mode: perf` under torchrun
with DeepSpeed; it reads data from disk and writes its records. The bare loop has bf16 weights with fp32
masters, gradients summed in fp32, clipping, and torch's fused AdamW. Both skip the first quarter of the
steps. MFU is model FLOPs divided by the datasheet peak. The fraction of the measured rate is relative to one
large bf16 product on the same GPU in the same call; its targets are 45 % for 125M and 50 % for 1.3B. Memory
is the maximum that torch allocated, next to the planned value.

Contenders run one after the other, each alone on the GPU. Prints the results and asserts nothing; without a
GPU it prints that and ends. To run it from a tree that is not installed, set PYTHONPATH to the tree and to a
folder with DeepSpeed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TREE = Path(__file__).resolve().parents[2]
VOCAB = 52_000
TARGETS = {"125m": 0.45, "1.3b": 0.50}


@dataclass(frozen=True)
class Size:
    """A model and its batch."""

    layers: int
    hidden: int
    heads: int
    seq: int
    micro: int
    accumulation: int
    vocab: int = VOCAB
    chunk: int = 8192

    @property
    def tokens(self) -> int:
        """Tokens of one step."""
        return self.seq * self.micro * self.accumulation


SIZES = {
    "125m": Size(12, 768, 12, 2048, 16, 4),
    "1.3b": Size(24, 2048, 16, 2048, 16, 2),
    "smoke": Size(2, 64, 4, 64, 2, 2, 500, 64),
}


def run_yaml_overrides(size: Size, options: argparse.Namespace, device: str) -> dict[str, Any]:
    """Return the overrides that turn the small run of tests/train/launch.py into this one."""
    return {
        "mode": "perf",
        "batch.max_steps": options.steps,
        "model.num_layers": size.layers,
        "model.hidden_size": size.hidden,
        "model.num_attention_heads": size.heads,
        "model.seq_length": size.seq,
        "model.hidden_dropout": 0.0,
        "model.attention_dropout": 0.0,
        "model.cross_entropy_chunk_tokens": size.chunk,
        "model.compile": options.compiled,
        "tokenizer.vocab_size": size.vocab,
        "data.index_samples": 4 * options.steps * size.micro * size.accumulation,
        "data.num_workers": 2 if device == "gpu" else 0,
        "batch.micro_batch_size": size.micro,
        "batch.global_batch_size": size.micro * size.accumulation,
        "batch.train_tokens": 2 * options.steps * size.tokens,
        "precision.dtype": "bf16",
        "parallel.zero_stage": options.zero_stage,
        "resources.device": device,
        "resources.gpus_per_node": 1 if device == "gpu" else 0,
        "resources.gpu_type": options.gpu_type,
    }


# --- ours -----------------------------------------------------------------------------------------


def ours(name: str, options: argparse.Namespace, device: str) -> dict[str, Any]:
    """Run our trainer with mode: perf under torchrun; return its throughput event, and the plan's memory."""
    sys.path.insert(0, str(TREE / "tests" / "train"))
    from nbtrain.base.run_directory.events import read_events
    from nbtrain.config.load import load_resolved
    from nbtrain.planner.memory import estimate_memory
    from nbtrain.planner.time.duration import estimate_duration
    from tests.train import launch

    size = SIZES[name]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        launch.make_dataset(
            root / "data", documents=400, document_tokens=(size.seq // 2, 4 * size.seq), vocab_size=size.vocab
        )
        run = launch.make_run(root, run_yaml_overrides(size, options, device), "gpu-benchmark", trace=False)
        log = launch.wait(
            launch.start(run, root / "data", OMP_NUM_THREADS=str(min(8, os.cpu_count() or 1))),
            run,
            timeout_seconds=options.timeout,
        )
        events = [event for event in read_events(run.newest_job()) if event["kind"] == "throughput"]
        if not events:
            raise SystemExit(f"the run told no throughput:\n{log[-3000:]}")
        (event,) = events
        config = load_resolved(run.config_yaml)
        return {
            "tokens_per_second": event["tokens_per_second"],
            "step_seconds": event["seconds"] / event["steps"],
            "peak_bytes": event["device_memory_bytes"],
            "planned_bytes": estimate_memory(config).total_bytes,
            "planned_tokens_per_second": estimate_duration(config, use_measured=False).tokens_per_second,
            "mfu": event["mfu"],
            "matmul_fraction": event["matmul_fraction"],
            "measured_matmul_flops": event["measured_matmul_flops"],
        }


# --- a loop without us ----------------------------------------------------------------------------


def loop(kind: str, name: str, options: argparse.Namespace, device: str) -> dict[str, Any]:
    """Train in a plain loop with bf16 weights, fp32 masters and gradients, clipping, and fused AdamW.

    Batches are on the device already.
    """
    import torch

    size, on_gpu = SIZES[name], device == "gpu"
    target = torch.device("cuda" if on_gpu else "cpu")
    torch.manual_seed(0)
    model = (
        (bare_model(size) if kind == "bare" else transformers_model(size)).to(target, torch.bfloat16).train()
    )
    weights = list(model.parameters())
    masters = [weight.detach().float() for weight in weights]
    for master in masters:
        master.grad = torch.zeros_like(master)
    optimizer = torch.optim.AdamW(
        [
            {"params": [value for value in masters if value.dim() > 1], "weight_decay": 0.1},
            {"params": [value for value in masters if value.dim() == 1], "weight_decay": 0.0},
        ],
        lr=1e-4,
        betas=(0.9, 0.95),
        fused=True,
    )
    if options.compiled:
        model.compile()
    generator = torch.Generator().manual_seed(0)
    sequences = torch.randint(size.vocab, (8, size.micro, size.seq + 1), generator=generator).to(target)

    def step(number: int) -> None:
        for micro in range(size.accumulation):
            batch = sequences[(number * size.accumulation + micro) % len(sequences)]
            tokens, labels = batch[:, :-1], batch[:, 1:]
            loss = model(tokens, labels) if kind == "bare" else model(tokens, labels=tokens).loss
            (loss / size.accumulation).backward()
            with torch.no_grad():
                torch._foreach_add_([master.grad for master in masters], [weight.grad for weight in weights])
            for weight in weights:
                weight.grad = None
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(weights, masters)
            torch._foreach_zero_([master.grad for master in masters])

    def now() -> float:
        if on_gpu:
            torch.cuda.synchronize()
        return time.perf_counter()

    first = options.steps // 4
    started = 0.0
    for number in range(options.steps):
        if number == first:
            started = now()
        step(number)
    seconds = now() - started
    return {
        "tokens_per_second": size.tokens * (options.steps - first) / seconds,
        "step_seconds": seconds / (options.steps - first),
        "peak_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
    }


def bare_model(size: Size):
    from nbtrain.model.gpt import GPT
    from nbtrain.model.gpt_config import GPTConfig

    padded = -(-size.vocab // 128) * 128
    return GPT(
        GPTConfig(
            size.layers,
            size.hidden,
            size.heads,
            4 * size.hidden,
            padded,
            size.seq,
            cross_entropy_chunk_tokens=size.chunk,
            vocab_size=size.vocab,
        )
    )


def transformers_model(size: Size):
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=-(-size.vocab // 128) * 128,
            n_positions=size.seq,
            n_embd=size.hidden,
            n_layer=size.layers,
            n_head=size.heads,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=0,
            eos_token_id=0,
            use_cache=False,
            attn_implementation="sdpa",
        )
    )


# --- the contest ----------------------------------------------------------------------------------


def contender(kind: str, name: str, options: argparse.Namespace) -> dict[str, Any] | None:
    """Run a contender in a process of its own, which separates its memory; on failure print its last lines.

    Returns None if it failed.
    """
    command = [sys.executable, __file__, "--contender", kind, "--sizes", name, "--steps", str(options.steps)]
    command += ["--zero-stage", str(options.zero_stage), "--timeout", str(options.timeout)]
    command += ["--compiled"] * options.compiled + ["--smoke"] * options.smoke
    command += ["--gpu-type", options.gpu_type] if options.gpu_type else []
    paths = os.pathsep.join(filter(None, [str(TREE), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=options.timeout,
        env={**os.environ, "PYTHONPATH": paths},
    )
    if done.returncode:
        print(f"{kind} {name} failed:\n{(done.stdout + done.stderr)[-4000:]}", flush=True)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def contest(options: argparse.Namespace) -> None:
    device = "cpu" if options.smoke else "gpu"
    kinds = ["ours", "bare"] + ["transformers"] * options.transformers
    for name in ["smoke"] if options.smoke else options.sizes:
        found = {kind: figures for kind in kinds if (figures := contender(kind, name, options))}
        tell(name, found, device, options)


def tell(name: str, found: dict[str, dict[str, Any]], device: str, options: argparse.Namespace) -> None:
    if "ours" not in found:
        return
    mine = found["ours"]
    peak_rate = mine["matmul_fraction"] * mine["measured_matmul_flops"] / mine["tokens_per_second"]
    size = SIZES[name]
    print(
        f"\n{name}: {size.layers} layers, hidden {size.hidden}, seq {size.seq}, micro batch {size.micro} x "
        f"{size.accumulation}, bf16, ZeRO {options.zero_stage}, "
        f"{'compiled' if options.compiled else 'eager'}, "
        f"{options.steps} steps on {device_name(device)}; measured matrix rate "
        f"{mine['measured_matmul_flops'] / 1e12:.4g} TFLOP/s"
    )
    print(
        f"  {'':<13} {'tokens/s':>10} {'s a step':>9} {'TFLOP/s':>8} {'MFU':>7} {'of measured':>12} "
        f"{'peak GiB':>9} {'planned':>8}"
    )
    for kind, figures in found.items():
        flops = figures["tokens_per_second"] * peak_rate
        fraction = flops / mine["measured_matmul_flops"]
        mfu = (
            f"{mine['mfu'] * figures['tokens_per_second'] / mine['tokens_per_second']:.1%}"
            if mine["mfu"]
            else "-"
        )
        peak = f"{figures['peak_bytes'] / 2**30:.1f}" if figures["peak_bytes"] else "-"
        planned = f"{figures['planned_bytes'] / 2**30:.1f}" if "planned_bytes" in figures else ""
        print(
            f"  {kind:<13} {figures['tokens_per_second']:>10,.0f} {figures['step_seconds']:>9.4f} "
            f"{flops / 1e12:>8.1f} {mfu:>7} {fraction:>12.1%} {peak:>9} {planned:>8}"
        )
    for kind, figures in found.items():
        if kind != "ours":
            print(f"  ours is {mine['tokens_per_second'] / figures['tokens_per_second']:.3f} of {kind}")
    if name in TARGETS:
        reached = "reached" if mine["matmul_fraction"] >= TARGETS[name] else "missed"
        print(
            f"  target {TARGETS[name]:.0%} of the measured rate: {reached} with "
            f"{mine['matmul_fraction']:.1%}",
            flush=True,
        )


def device_name(device: str) -> str:
    import torch

    return torch.cuda.get_device_name() if device == "gpu" else "CPU"


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; None means this process's."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", choices=sorted(SIZES), default=["125m", "1.3b"])
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--zero-stage", type=int, default=1, choices=(1, 2, 3))
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--transformers", action="store_true", help="also GPT2LMHeadModel in the bare loop")
    parser.add_argument("--smoke", action="store_true", help="a tiny model on the CPU")
    parser.add_argument("--gpu-type", help="a name of the device table, for the plan's figures")
    parser.add_argument("--timeout", type=float, default=540.0, help="seconds for each contender")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main() -> None:
    options = arguments()
    device = "cpu" if options.smoke else "gpu"
    if options.contender == "ours":
        print(json.dumps(ours(options.sizes[0], options, device)))
        return
    if options.contender:
        print(json.dumps(loop(options.contender, options.sizes[0], options, device)))
        return
    import torch

    if not options.smoke and not torch.cuda.is_available():
        print(f"skipped: torch {torch.__version__} sees no GPU here; --smoke runs it on the CPU.")
        return
    contest(options)


if __name__ == "__main__":
    main()
