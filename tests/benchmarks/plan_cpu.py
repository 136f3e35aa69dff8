"""Predicted and measured step times of CPU runs, after `nbtrain calibrate` on this machine.

    python tests/benchmarks/plan_cpu.py [--calibrate 180] [--rounds 5] [--seconds 12] [--models gpt3-tiny 14M]
                                        [--layouts one dp2-zero1] [--write] [--clock cpu]

The fifteen runs are not used in calibration: three models (gpt3-tiny, 14M, 50M) in five layouts each: one
rank, two data-parallel ranks with ZeRO 1, two tensor-parallel ranks, two pipeline stages, two data-parallel
ranks with ZeRO 3 and full recomputation. Each is trained as a user trains it, under torchrun, by the trainer.
All contenders of a model are started once and stopped (SIGSTOP). In each round they run one after the other,
alone, for some seconds each, so that a slow minute of the machine affects all of them. A run's result is the
median over the rounds of the median time of its steps. Asserts nothing; prints the table, and with --write
puts it into docs/evidence/plan-accuracy.md. Needs an idle machine. For trials on a busy one, --clock cpu
compares the CPU seconds of the slowest rank with a calibration by CPU time; both exclude waiting.
"""

import argparse
import datetime
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "evidence" / "plan-accuracy.md"
BEGIN, END = "<!-- CPU: written by tests/benchmarks/plan_cpu.py -->", "<!-- CPU ends -->"

MODELS: dict[str, dict[str, Any]] = {
    # name: layers, hidden size, heads, vocabulary, sequence length, sequences of a step
    "gpt3-tiny": {"layers": 4, "hidden": 256, "heads": 4, "vocabulary": 1024, "seq": 256, "batch": 8},
    "14M": {"layers": 6, "hidden": 384, "heads": 6, "vocabulary": 8192, "seq": 512, "batch": 8},
    "50M": {"layers": 8, "hidden": 640, "heads": 10, "vocabulary": 16_384, "seq": 512, "batch": 4},
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "dp2-zero1": {"parallel.data_parallel_size": 2, "parallel.zero_stage": 1},
    "tp2": {"parallel.tensor_parallel_size": 2, "parallel.zero_stage": 1},
    "pp2": {"parallel.pipeline_parallel_size": 2, "parallel.zero_stage": 1},
    "dp2-zero3-full": {
        "parallel.data_parallel_size": 2,
        "parallel.zero_stage": 3,
        "parallel.activation_checkpointing.granularity": "full",
    },
}
WITHIN = 0.15


class Contender:
    """A run under torchrun that can be stopped and continued, with the end times of its steps."""

    def __init__(self, model: str, layout: str, root: Path):
        from tests.train import launch

        self.name = f"{model} {layout}"
        ranks = 1 if layout == "one" else 2
        self.overrides = overrides(model, layout)
        self.run = launch.make_run(root, self.overrides, self.name.lower().replace(" ", "-"))
        threads = str(max((os.cpu_count() or 1) // ranks, 1))
        self.process: subprocess.Popen = launch.start(
            self.run, root / "data", ranks, OMP_NUM_THREADS=threads, OMP_WAIT_POLICY="PASSIVE"
        )
        self.medians: list[float] = []
        self.cpu_seconds: list[float] = []

    def finished_steps(self) -> list[float]:
        job = self.run.newest_job()
        path = job.events / "rank0.jsonl"
        if not path.exists():
            return []
        lines = path.read_text().splitlines(keepends=True)
        events = [json.loads(line) for line in lines if line.endswith("\n")]
        return [event["time"] for event in events if event["kind"] == "trace"]

    def tree(self) -> list[psutil.Process]:
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def signal(self, number: int) -> None:
        for process in self.tree():
            process.send_signal(number)

    def slowest_cpu(self) -> float:
        return max(sum(process.cpu_times()[:2]) for process in self.tree())

    def run_for(self, seconds: float) -> None:
        """Let the run continue for at least `seconds`, until it has completed three steps."""
        used, before = self.slowest_cpu(), len(self.finished_steps())
        self.signal(signal.SIGCONT)
        began = time.time()
        while time.time() - began < seconds or len(self.finished_steps()) < before + 4:
            if self.process.poll() is not None or time.time() - began > 300:
                raise SystemExit(f"{self.name} ended or hangs")
            time.sleep(0.1)
        self.signal(signal.SIGSTOP)
        ended = [moment for moment in self.finished_steps() if moment > began]
        # The first step began before it was stopped in the previous round.
        self.medians.append(statistics.median(b - a for a, b in itertools.pairwise(ended)))
        self.cpu_seconds.append((self.slowest_cpu() - used) / len(ended))

    def end(self) -> None:
        if self.process.poll() is None:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGKILL)
            self.process.wait()


def overrides(model: str, layout: str) -> dict[str, Any]:
    """Return the overrides for a model in a layout.

    Two data-parallel ranks divide a step's sequences; pipeline stages process four micro batches.
    """
    sizes = MODELS[model]
    data = LAYOUTS[layout].get("parallel.data_parallel_size", 1)
    micro = sizes["batch"] // data // (4 if layout == "pp2" else 1)
    return {
        "model.num_layers": sizes["layers"],
        "model.hidden_size": sizes["hidden"],
        "model.num_attention_heads": sizes["heads"],
        "model.seq_length": sizes["seq"],
        "model.hidden_dropout": 0.0,
        "model.attention_dropout": 0.0,
        "model.cross_entropy_chunk_tokens": 1024,
        "tokenizer.vocab_size": sizes["vocabulary"],
        "data.index_samples": 40_000,
        "batch.micro_batch_size": micro,
        "batch.global_batch_size": sizes["batch"],
        "batch.train_tokens": 4000 * sizes["batch"] * sizes["seq"],
        "evaluation.eval_interval_steps": 10**6,
        "checkpoint.save_interval_steps": 10**6,
        "precision.dtype": "fp32",
        "parallel.zero_stage": 0,
        # A stopped rank blocks the others.
        "parallel.process_group_timeout_seconds": 36_000,
        "logging.log_interval_steps": 100,
        **LAYOUTS[layout],
    }


def predicted_seconds(contender: Contender, calibration: Any) -> float:
    """Return the step time in seconds that the planner predicts for this run."""
    from nbtrain.config.load import load_resolved
    from nbtrain.planner.calibration.calibrated_step import calibrated_step
    from nbtrain.planner.setup.setup import setup_of

    parts = calibrated_step(setup_of(load_resolved(contender.run.config_yaml)), calibration)
    assert parts is not None, contender.name
    return sum(parts.values())


def contest(options: argparse.Namespace) -> list[tuple[str, float, float, float]]:
    """Calibrate, then return (name, predicted, measured, spread) of every run."""
    from nbtrain.jobs.calibration.calibrate import calibrate
    from nbtrain.planner.calibration.calibration import Calibration
    from tests.train import launch

    if options.read:
        filed = json.loads(Path(options.read).read_text())
        calibration = Calibration(filed["machine"], filed["date"], filed["seconds"], filed["figures"])
    else:
        calibration = calibrate(options.calibrate, options.clock).calibration
    rows = []
    for model in options.models:
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            vocabulary = MODELS[model]["vocabulary"]
            launch.make_dataset(
                root / "data", documents=2000, document_tokens=(100, 1000), vocab_size=vocabulary
            )
            contenders: list[Contender] = []
            try:
                for layout in options.layouts:
                    contenders.append(Contender(model, layout, root))
                    warm_up(contenders[-1])
                for number in range(options.rounds):
                    turn = number % len(contenders)
                    for contender in contenders[turn:] + contenders[:turn]:
                        contender.run_for(options.seconds)
                    print(f"{model}: round {number + 1}, load {os.getloadavg()[0]:.1f}", flush=True)
            finally:
                for contender in contenders:
                    contender.end()
            for contender in contenders:
                seen = contender.cpu_seconds if options.clock == "cpu" else contender.medians
                spread = (max(seen) - min(seen)) / statistics.median(seen)
                rows.append(
                    (
                        contender.name,
                        predicted_seconds(contender, calibration),
                        statistics.median(seen),
                        spread,
                    )
                )
                print(lines_of(rows)[-1], flush=True)
    return rows


def warm_up(contender: Contender) -> None:
    deadline = time.monotonic() + 600
    while len(contender.finished_steps()) < 3:
        if contender.process.poll() is not None or time.monotonic() > deadline:
            log = contender.run.newest_job().log(0, 0)
            said = log.read_text(errors="replace")[-3000:] if log.exists() else ""
            raise SystemExit(f"{contender.name} did not make three steps\n{said}")
        time.sleep(0.2)
    contender.signal(signal.SIGSTOP)


def lines_of(rows: list[tuple[str, float, float, float]]) -> list[str]:
    """Format the table as Markdown."""
    lines = [
        "| run | predicted s a step | measured | predicted / measured | spread |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, predicted, measured, spread in rows:
        ratio = predicted / measured
        missed = "" if abs(ratio - 1) <= WITHIN else " (missed)"
        lines.append(f"| {name} | {predicted:.3f} | {measured:.3f} | {ratio:.2f}{missed} | {spread:.0%} |")
    return lines


def summary(rows: list[tuple[str, float, float, float]]) -> str:
    hits = sum(abs(predicted / measured - 1) <= WITHIN for _, predicted, measured, _ in rows)
    return f"Within {WITHIN:.0%}: {hits} of {len(rows)}."


def write(rows: list[tuple[str, float, float, float]], options: argparse.Namespace) -> None:
    """Insert the section into the page between its two marks, or append it."""
    command = f"python tests/benchmarks/plan_cpu.py {' '.join(sys.argv[1:])}".replace(" --write", "")
    section = "\n".join(
        [
            BEGIN,
            "## Step time on a CPU, after `nbtrain calibrate`",
            "",
            f"{datetime.date.today()}, `{command}`, {os.cpu_count()} cores. The calibration had seen none of",
            "these runs. The measured time is the median of interleaved rounds, and the spread is "
            "their range "
            "divided by it.",
            "",
            summary(rows),
            "",
            *lines_of(rows),
            "",
            END,
        ]
    )
    page = PAGE.read_text() if PAGE.exists() else "# How accurate is the plan?\n"
    if BEGIN in page:
        before, _, rest = page.partition(BEGIN)
        page = before + section + rest.partition(END)[2]
    else:
        page = f"{page.rstrip()}\n\n{section}\n"
    PAGE.write_text(page)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--calibrate", type=float, default=180.0, help="seconds of the calibration")
    parser.add_argument(
        "--read", help="take this calibration (nbtrain calibrate --json) instead of a new one"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each run in each round")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument(
        "--write", action="store_true", help="put the table into docs/evidence/plan-accuracy.md"
    )
    options = parser.parse_args()
    sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests" / "train")]
    # Ending the contest also ends the contenders, including stopped ones.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rows = contest(options)
    print("\n".join([*lines_of(rows), "", summary(rows)]))
    if options.write:
        write(rows, options)


if __name__ == "__main__":
    main()
