"""GPT-3's recipe and the modern one with the same text and number of parameters: docs/evidence/recipes.md.

    nice -n 15 python -m tests.benchmarks.recipes [--size tiny 14m] [--folder build/recipes] [--text FILE]
    python -m tests.benchmarks.recipes --device gpu --precision bf16 --jobs 14     all runs on one GPU
    python -m tests.benchmarks.recipes --page      docs/evidence/recipes.{json,md,png} out of the records
    python -m tests.benchmarks.recipes --speed     CPU seconds a token of both, alternating

Each recipe is trained at four learning rates with one seed. While the best rate is the lowest or the highest,
another rate is added. The best rate is then trained with two more seeds. Finally the modern recipe is trained
for shorter lengths, each with its own schedule, to find the tokens at which it reaches GPT-3's final loss.

Every run is a process with one thread, started like a user's run (torchrun, DeepSpeed, data from disk). It
writes its record, a JSON file in --folder, when it ends. A run that was stopped resumes from its checkpoint,
so the same command, called again, does what is left. It works on a busy machine too: CPU seconds, which
depend on the load, are measured separately (--speed).
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from nbtrain.base import files
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.rundir import RunDir
from tests.gpu.machine import look
from tests.train import launch

REPOSITORY = Path(__file__).parents[2]
SEEDS = (1234, 1235, 1236)
# Validations of a run, including the last step's.
VALIDATIONS = 12
WIDENINGS = 3
# Values of --speed.
ROUNDS, WARM_UP_STEPS, STEPS_OF_ROUND = 7, 3, 8
# Lengths of the modern recipe's shorter runs, as fractions of a full run's tokens.
SHARES = (0.5, 0.375, 0.625)

BASE = """
name: recipes
model: {{num_layers: {layers}, hidden_size: {hidden}, num_attention_heads: {heads}, seq_length: {seq},
        hidden_dropout: 0.0, attention_dropout: 0.0, init_method_std: {std}}}
tokenizer: {{name: "{data}", vocab_size: {vocab}}}
data: {{name: "{data}", split: "{split}", index_samples: {samples}, sources: [{sources}]}}
batch: {{micro_batch_size: {batch}, global_batch_size: {batch}, train_tokens: {tokens}}}
optimizer: {{adam_beta1: 0.9, adam_beta2: 0.95, weight_decay: 0.1, clip_grad: 1.0}}
lr_schedule: {{lr: 1.0e-3}}
precision: {{dtype: {precision}}}
parallel: {{zero_stage: {zero_stage}}}
evaluation: {{eval_iters: 16}}
checkpoint: {{keep_last: 1}}
logging: {{log_interval_steps: 20}}
resources: {{{resources}}}
"""


@dataclass(frozen=True)
class Size:
    """A model's size, its learning rates, and the text it is trained on."""

    layers: int
    hidden: int
    heads: int
    seq: int
    batch: int
    vocab: int
    tokens: int
    """Tokens of a full run."""
    ffn_hidden_size: int
    """Width of the modern recipe's MLP, chosen so that its parameters match GPT-3's within 1 %."""
    rates: dict[str, tuple[float, ...]]
    """Learning rates to try, by recipe."""
    text_bytes: int
    """Bytes of Python's documentation to train on if --text is not given."""
    split: str = "900,70,30"
    takes_text: bool = False
    """Whether the file of --text is used for this size."""

    @property
    def tokens_per_step(self) -> int:
        return self.seq * self.batch


_RATES = {"gpt3": (1e-3, 2e-3, 4e-3, 8e-3), "modern": (2e-3, 4e-3, 8e-3, 16e-3)}
_RATES_14M = {"gpt3": (5e-4, 1e-3, 2e-3, 4e-3), "modern": (1e-3, 2e-3, 4e-3, 8e-3)}
RESOURCES = {"cpu": "device: cpu, cpus_per_node: 1", "gpu": "device: gpu, gpus_per_node: 1"}
SIZES = {
    # gpt3-tiny and its text.
    "tiny": Size(4, 256, 4, 256, 8, 1024, 1_966_080, 704, _RATES, 8_000_000),
    # The 14M model of docs/evidence/benchmarks.md.
    "14m": Size(6, 384, 6, 512, 8, 8192, 9_830_400, 1056, _RATES_14M, 32_000_000, "970,20,10", True),
}
ARMS = ("gpt3", "modern")


def settings_of(arm: str, size: Size, lr: float) -> dict[str, Any]:
    """Return the overrides of a recipe at one learning rate.

    The recipes are GPT-3's appendix B with gpt3-tiny's deep decay, and the modern one.
    """
    found: dict[str, Any] = {"recipe": arm, "lr_schedule.lr": lr, "lr_schedule.lr_warmup_fraction": 0.05}
    if arm == "gpt3":
        # No dropout: no text is seen more than 1.3 times.
        off = {"model.hidden_dropout": 0.0, "model.attention_dropout": 0.0}
        return {**found, **off, "lr_schedule.min_lr": lr / 20}
    return {**found, "lr_schedule.min_lr": 0.0, "model.ffn_hidden_size": size.ffn_hidden_size}


@dataclass(frozen=True)
class Trial:
    """A run of the comparison."""

    size: str
    arm: str
    lr: float
    seed: int
    tokens: int

    @property
    def name(self) -> str:
        return f"{self.size}-{self.arm}-{self.lr:g}-{self.seed}-{self.tokens}".replace(".", "p")


class Bench:
    """Reads the records in a folder, and trains the runs that have no record yet."""

    def __init__(
        self, folder: Path, text: Path | None, device: str = "cpu", precision: str = "fp32", jobs: int = 1
    ):
        self.folder, self.text, self.device, self.precision, self.jobs = folder, text, device, precision, jobs
        folder.mkdir(parents=True, exist_ok=True)

    def run_all(self, trials: Sequence[Trial]) -> list[dict[str, Any]]:
        """Return the records of trials, training up to `jobs` of them at once."""
        if self.jobs == 1:
            return [self.run(trial) for trial in trials]
        with ThreadPoolExecutor(self.jobs) as pool:
            return list(pool.map(self.run, trials))

    def record(self, trial: Trial) -> dict[str, Any] | None:
        path = self.folder / f"{trial.name}.json"
        return json.loads(path.read_text()) if path.exists() else None

    def run(self, trial: Trial) -> dict[str, Any]:
        """Return the record of a trial; train it first if it has no record."""
        if (known := self.record(trial)) is not None:
            return known
        run = self._run_dir(trial)
        # make_run creates the run's first job; a run that was stopped gets another one.
        if any(read_events(run.job(job_id)) for job_id in run.job_ids()):
            launch.new_job(run)
        print(f"{time.strftime('%H:%M:%S')}  {trial.name}  job {len(run.job_ids())}", flush=True)
        process = launch.start(run, self.folder / "data")
        code = launch.end(process, 10 * 86_400)
        if code:
            raise SystemExit(f"{trial.name}: exit code {code}\n{launch.log_of(run)[-4000:]}")
        found: dict[str, Any] = {"validation": {}}
        for job_id in run.job_ids():
            for event in read_events(run.job(job_id)):
                if event["kind"] == "validation":
                    found["validation"][str(event["step"])] = event["loss"]
                elif event["kind"] == "test":
                    found["test_loss"] = event["loss"]
        steps, reached = (
            trial.tokens // SIZES[trial.size].tokens_per_step,
            max(found["validation"], key=int, default="0"),
        )
        if int(reached) < steps:
            # A trainer that was stopped has saved and exited with 0.
            raise SystemExit(
                f"{trial.name} was stopped at step {reached} of {steps}; the same command continues."
            )
        losses = list(found["validation"].values())
        found = {**asdict(trial), **found, "loss": losses[-1], "jobs": len(run.job_ids())}
        name = look().gpu_name if self.device == "gpu" else "CPU"
        found |= {"text": self._text_of(trial.size), "device": name, "precision": self.precision}
        files.write_json(self.folder / f"{trial.name}.json", found)
        shutil.rmtree(run.path)
        print(f"{time.strftime('%H:%M:%S')}  {trial.name}  loss {found['loss']:.4f}", flush=True)
        return found

    def _run_dir(self, trial: Trial) -> RunDir:
        run = RunDir(self.folder / "output" / trial.name)
        if run.path.exists():
            return run
        size = SIZES[trial.size]
        steps = trial.tokens // size.tokens_per_step
        overrides = {
            "model.seed": trial.seed,
            "batch.train_tokens": trial.tokens,
            "evaluation.eval_interval_steps": steps // VALIDATIONS,
            # A GPU run takes minutes.
            "checkpoint.save_interval_steps": steps // VALIDATIONS if self.device == "cpu" else steps,
            **settings_of(trial.arm, size, trial.lr),
        }
        return launch.make_run(self.folder, overrides, trial.name, str(self.yaml(trial.size)), trace=False)

    def _text_of(self, size: str) -> str:
        return self.text.name if SIZES[size].takes_text and self.text else "Python's documentation"

    def records(self) -> list[dict[str, Any]]:
        """Return the records of all trials and speeds so far."""
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("*.json"))]

    def yaml(self, name: str) -> Path:
        """Return the run YAML of a size, without the overrides of a recipe."""
        size, path = SIZES[name], self.folder / f"{name}.yaml"
        with_text = size.takes_text and self.text is not None
        data = f"{'text' if with_text else 'python-docs'}-{size.vocab}"
        sources = f"{{kind: python-docs, max_bytes: {size.text_bytes}}}"
        if with_text:
            sources = f'{{kind: jsonl, path: "{self.text}"}}'
        content = BASE.format(
            **vars(size), data=data, sources=sources, std=(3 * size.hidden) ** -0.5,
            samples=size.tokens // size.seq, precision=self.precision,
            zero_stage=0 if self.precision == "fp32" else 1, resources=RESOURCES[self.device],
        )  # fmt: skip
        if not path.exists() or path.read_text() != content:
            path.write_text(content)
        return path

    def prepare(self, size: str) -> None:
        """Create the tokenizer and dataset of a size if they are missing."""
        command = [sys.executable, "-m", "nbtrain", "prepare", str(self.yaml(size))]
        environment = {**os.environ, "NBTRAIN_DATA": str(self.folder / "data")}
        subprocess.run(command, check=True, env=environment)


def search(bench: Bench, size: str) -> dict[str, float]:
    """Find the best learning rate of each recipe with one seed, adding rates while
    the best one is at an end.
    """
    losses: dict[str, dict[float, float]] = {arm: {} for arm in ARMS}
    wanted = {arm: list(SIZES[size].rates[arm]) for arm in ARMS}
    for _ in range(WIDENINGS):
        trials = [
            Trial(size, arm, rate, SEEDS[0], SIZES[size].tokens) for arm in ARMS for rate in wanted[arm]
        ]
        for trial, record in zip(trials, bench.run_all(trials), strict=True):
            losses[trial.arm][trial.lr] = record["loss"]
        wanted = {arm: beyond(losses[arm]) for arm in ARMS}
        if not any(wanted.values()):
            break
    return {arm: min(losses[arm], key=losses[arm].__getitem__) for arm in ARMS}


def beyond(losses: dict[float, float]) -> list[float]:
    """Return the next learning rate to try if the best one is the lowest or the highest, else []."""
    best = min(losses, key=losses.__getitem__)
    if best == max(losses):
        return [2 * best]
    return [best / 2] if best == min(losses) else []


def further(size: str, best: dict[str, float]) -> list[Trial]:
    """Train the best rates with the other seeds, then the modern recipe's shorter runs."""
    tokens, step = SIZES[size].tokens, SIZES[size].tokens_per_step
    whole = [Trial(size, arm, best[arm], seed, tokens) for seed in SEEDS[1:] for arm in ARMS]
    lengths = [int(tokens * share) // step * step for share in SHARES]
    return whole + [
        Trial(size, "modern", best["modern"], seed, length) for seed in SEEDS for length in lengths
    ]


def measure_speed(bench: Bench, size: str) -> None:
    """Measure the CPU seconds per token of both recipes, which run alternately."""
    contenders = {arm: Contender(bench, size, arm) for arm in ARMS}
    rates: dict[str, list[float]] = {arm: [] for arm in ARMS}
    try:
        for one in contenders.values():
            one.make_steps(WARM_UP_STEPS)
        for number in range(ROUNDS):
            for arm in ARMS if number % 2 else reversed(ARMS):
                rates[arm].append(contenders[arm].make_steps(STEPS_OF_ROUND) / SIZES[size].tokens_per_step)
            print(f"round {number + 1} of {ROUNDS}, load {os.getloadavg()[0]:.1f}", flush=True)
    finally:
        for one in contenders.values():
            one.end()
    files.write_json(bench.folder / f"{size}-speed.json", {"size": size, "cpu_seconds_per_token": rates})


class Contender:
    """A run that is resumed for a few steps at a time, and stopped in between."""

    def __init__(self, bench: Bench, size: str, arm: str):
        overrides = {
            **settings_of(arm, SIZES[size], 1e-3),
            "evaluation.eval_iters": 0,
            "checkpoint.save_interval_steps": 10**6,
            # A stopped rank blocks the launcher.
            "parallel.process_group_timeout_seconds": 36_000,
        }
        name = f"{size}-speed-{arm}"
        shutil.rmtree(bench.folder / "output" / name, ignore_errors=True)
        self.run = launch.make_run(bench.folder, overrides, name, str(bench.yaml(size)))
        self.process = launch.start(self.run, bench.folder / "data")

    def _tree(self) -> list[psutil.Process]:
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def _cpu_seconds(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self._tree())

    def _signal(self, number: int) -> None:
        for process in self._tree():
            process.send_signal(number)

    def make_steps(self, steps: int) -> float:
        """Resume the run for `steps` steps, stop it again, and return the CPU seconds of each step."""
        self._signal(signal.SIGCONT)
        first, before = self._wait(self._steps() + 1), self._cpu_seconds()
        last = self._wait(first + steps)
        seconds = self._cpu_seconds() - before
        self._signal(signal.SIGSTOP)
        return seconds / (last - first)

    def _wait(self, step: int) -> int:
        while (made := self._steps()) < step:
            if self.process.poll() is not None:
                raise SystemExit(f"{self.run.name} ended\n{launch.log_of(self.run)[-3000:]}")
            time.sleep(0.02)
        return made

    def _steps(self) -> int:
        return len(launch.trace(self.run))

    def end(self) -> None:
        if self.process.poll() is None:
            self._signal(signal.SIGCONT)
            self._signal(signal.SIGKILL)
            self.process.wait()
        shutil.rmtree(self.run.path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--folder", type=Path, default=REPOSITORY / "build" / "recipes")
    parser.add_argument("--text", type=Path, help="JSON lines with `text`, for the larger size")
    parser.add_argument("--device", choices=RESOURCES, default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once; default %(default)s")
    parser.add_argument(
        "--prepared", action="store_true", help="the dataset is there; its text is not needed"
    )
    parser.add_argument("--speed", action="store_true", help="measure CPU seconds a token, and end")
    parser.add_argument("--page", action="store_true", help="write the page of the records, and end")
    options = parser.parse_args()
    bench = Bench(options.folder.resolve(), options.text, options.device, options.precision, options.jobs)
    if options.page:
        from tests.benchmarks import recipes_page

        recipes_page.write(bench, REPOSITORY / "docs" / "evidence")
        return
    for size in options.size:
        if not options.prepared:
            bench.prepare(size)
        if options.speed:
            measure_speed(bench, size)
            continue
        bench.run_all(further(size, search(bench, size)))


if __name__ == "__main__":
    main()
