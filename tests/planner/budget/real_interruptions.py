"""Kill real training at drawn times with three save intervals, and compare the cost with the plan's.

    python -m tests.planner.budget.real_interruptions [--kills 40] [--mean 4] [--seed 1]

It writes docs/evidence/interruptions.{md,json,png}, and exits with 1 if a claim does not hold:

    trial     three runs side by side, killed once each: CPU seconds of a step, a save and a restart
    plan      the save interval that loses the least (planner/budget/interruptions.py), half and double of it
    runs      three runs side by side, one with each interval; each suffers the same drawn kills, by kill -9
    claims    each run's cost for a kept step is planned within 10 %; the planned best interval has the lowest

The clock is the CPU time of the rank: a kill comes after a drawn number of CPU seconds of an attempt, and the
cost is CPU seconds, so that waiting for a core does not count. Other work on the machine still changes the
CPU seconds of a step by some percent, but alike for runs that train side by side. Ranks are forked from a
process that has torch loaded (train/twin/fork_server.py), so that a restart takes a second or two, and
hundreds of CPU seconds hold many of them.

The times between kills follow an exponential law. They are stratified: the law is divided into as many
equally likely parts as there are kills, and one time is drawn from each, in random order. Every run has the
same times. With independent draws, 40 kills would leave a standard deviation of 5 to 15 %, which hides the
difference between the intervals.
"""

import argparse
import io
import json
import math
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from nbtrain.base import files
from nbtrain.base.run_directory.checkpoint_files import newest_checkpoint_step
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.planner.budget.interruptions import _Work
from nbtrain.proof.fork_client import ForkServer, Launch
from tests.parity.sources import INTERRUPTIONS, REPOSITORY, stamp
from tests.train import launch

FOLDER = INTERRUPTIONS.page.parent
WITHIN = 0.1
POLL_SECONDS = 0.02
TRIAL_INTERVAL_STEPS = 15
# An attempt of the trial is ended after so many CPU seconds.
TRIAL_SECONDS = 5.0
TRAIN_STEPS = 50_000
# The weights and the moments make a checkpoint of about 45 MB.
MODEL = {
    "model.num_layers": 2,
    "model.hidden_size": 384,
    "model.num_attention_heads": 4,
    "model.seq_length": 16,
    "batch.micro_batch_size": 1,
    "batch.global_batch_size": 1,
    "batch.train_tokens": TRAIN_STEPS * 16,
    "checkpoint.keep_last": 1,
    "evaluation.eval_iters": 0,
    "logging.log_interval_steps": 1000,
    "data.num_workers": 0,
}


@dataclass
class AttemptCost:
    """One attempt that ended with a kill."""

    drawn_cpu_seconds: float
    paid_cpu_seconds: float
    first_step: int
    """Step of the checkpoint that the attempt began with."""
    reached_step: int
    kept_step: int
    """Step of the newest complete checkpoint after the kill."""
    first_beat: float | None = None
    """CPU seconds at the end of the first step; None if the attempt did not reach it."""
    steps: list[float] = field(default_factory=list)
    """CPU seconds of each further step."""
    saves: list[float] = field(default_factory=list)
    """CPU seconds of each save."""


@dataclass
class Measured:
    """Mean CPU seconds of what a run consists of."""

    step: float
    save: float
    restart: float

    @classmethod
    def of(cls, attempts: Sequence[AttemptCost]) -> "Measured":
        """Return the means over attempts; a restart counts only with a checkpoint to load."""
        step = fmean(value for attempt in attempts for value in attempt.steps)
        save = fmean(value for attempt in attempts for value in attempt.saves)
        loaded = [entry for entry in attempts if entry.first_step and entry.first_beat is not None]
        return cls(step, save, fmean(entry.first_beat - step for entry in loaded if entry.first_beat))

    def work(self) -> _Work:
        return _Work(TRAIN_STEPS, self.step, self.save, 0.0, self.restart, 0.0)


@dataclass
class DisturbedRun:
    """A run, its save interval, and its attempts so far."""

    run: RunDir
    interval_steps: int
    attempts: list[AttemptCost] = field(default_factory=list)

    @property
    def paid_cpu_seconds(self) -> float:
        return sum(attempt.paid_cpu_seconds for attempt in self.attempts)

    @property
    def kept_steps(self) -> int:
        return self.attempts[-1].kept_step

    @property
    def cost(self) -> float:
        """CPU seconds paid for each step that was kept."""
        return self.paid_cpu_seconds / self.kept_steps


def drawn_times(kills: int, mean: float, seed: int) -> list[float]:
    """Return CPU seconds until each kill: one from each of `kills` equally likely parts of the exponential
    law, in random order.
    """
    generator = random.Random(seed)
    times = [-mean * math.log1p(-(part + generator.random()) / kills) for part in range(kills)]
    generator.shuffle(times)
    return times


def make_run(folder: Path, name: str, interval_steps: int) -> RunDir:
    settings = {**MODEL, "checkpoint.save_interval_steps": interval_steps}
    return launch.make_run(folder, settings, name, trace=False)


def disturb(
    server: ForkServer, folder: Path, runs: Sequence[DisturbedRun], times: Sequence[float], what: str
) -> None:
    """Train all runs at the same time; each is killed and started again at the drawn times, in order."""
    running: dict[int, tuple[DisturbedRun, Launch, Path]] = {}
    while any(len(entry.attempts) < len(times) for entry in runs):
        for number, entry in enumerate(runs):
            if number not in running and len(entry.attempts) < len(times):
                running[number] = (entry, *_begin(server, folder, entry))
        time.sleep(POLL_SECONDS)
        for number, (entry, started, notes) in list(running.items()):
            drawn = times[len(entry.attempts)]
            used = cpu_seconds_of(started.pids[0])
            if used is not None and used < drawn:
                continue
            if used is not None:
                os.kill(started.pids[0], signal.SIGKILL)
            ended = server.wait(started)
            if ended.exit_codes != [-signal.SIGKILL]:
                raise RuntimeError(f"{entry.run.name} ended by itself:\n{ended.last_words(40)}")
            entry.attempts.append(_cost_of(entry, notes, drawn, ended.cpu_seconds))
            del running[number]
            done = len(entry.attempts)
            print(
                f"{what}, interval {entry.interval_steps}: kill {done} of {len(times)} after "
                f"{ended.cpu_seconds:.1f} CPU s, kept step {entry.kept_steps:,}",
                flush=True,
            )


def _begin(server: ForkServer, folder: Path, entry: DisturbedRun) -> tuple[Launch, Path]:
    job = entry.run.newest_job() if not entry.attempts else launch.new_job(entry.run, trace=False)
    assert job is not None
    notes = job.path / "cpu_seconds.jsonl"
    started = server.start(
        1,
        "tests.planner.budget.metered_rank:main",
        [str(entry.run.path), str(notes)],
        log=job.path / "logs" / "{rank}.0.log",
        environment={"NBTRAIN_DATA": str(folder / "data"), "NBTRAIN_JOB": job.job_id},
        sys_path=[REPOSITORY],
        timeout_seconds=24 * 3600.0,
    )
    return started, notes


def cpu_seconds_of(pid: int) -> float | None:
    """Return the CPU seconds of a process; None if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    if fields[0] == "Z":
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _cost_of(entry: DisturbedRun, notes: Path, drawn: float, paid: float) -> AttemptCost:
    """Return an attempt's cost from the rank's notes. A line that the kill has cut is left out."""
    first = entry.attempts[-1].kept_step if entry.attempts else 0
    found = AttemptCost(drawn, paid, first, first, newest_checkpoint_step(entry.run) or 0)
    lines = notes.read_text().split("\n")[:-1] if notes.exists() else []
    before: float | None = None
    beat = 0.0
    for line in map(json.loads, lines):
        at, step = line["cpu_seconds"], line["step"]
        if line["what"] == "saved":
            found.saves.append(at - beat)
            before = at
        elif step > found.first_step:
            if before is None:
                found.first_beat = at
            else:
                found.steps.append(at - before)
            found.reached_step, before, beat = step, at, at
    return found


@dataclass
class Row:
    """A run's cost next to the plan's."""

    interval_steps: int
    kills: int
    paid_cpu_seconds: float
    kept_steps: int
    repeated_steps: int
    saves: int
    cost: float
    planned: float
    """Planned CPU seconds for each kept step, with the steps, saves and restarts that all runs measured."""
    planned_before: float
    """The same with those that the trial measured."""

    @property
    def difference(self) -> float:
        return self.cost / self.planned - 1


def rows_of(runs: Sequence[DisturbedRun], measured: Measured, trial: Measured, mean: float) -> list[Row]:
    def planned(values: Measured, interval: int) -> float:
        return values.work().time(interval, 1 / mean).mean / TRAIN_STEPS

    return [
        Row(
            entry.interval_steps,
            len(entry.attempts),
            entry.paid_cpu_seconds,
            entry.kept_steps,
            sum(attempt.reached_step - attempt.kept_step for attempt in entry.attempts),
            sum(len(attempt.saves) for attempt in entry.attempts),
            entry.cost,
            planned(measured, entry.interval_steps),
            planned(trial, entry.interval_steps),
        )
        for entry in runs
    ]


def claims(rows: Sequence[Row]) -> Iterator[tuple[bool, str]]:
    """Yield each claim of the page, and whether it holds."""
    half, best, double = rows
    for row in rows:
        words = f"{row.interval_steps} steps: {row.cost:.3f} measured, {row.planned:.3f} planned"
        yield abs(row.difference) <= WITHIN, f"{words}, {row.difference:+.1%}"
    for name, other in (("half", half), ("double", double)):
        words = f"{name} of the planned best interval costs {other.cost / best.cost - 1:+.1%} for a kept step"
        yield best.cost < other.cost, words


def write(
    rows: Sequence[Row], measured: Measured, trial: Measured, options: argparse.Namespace, folder: Path
) -> None:
    """Write the picture and the page."""
    files.write_bytes(folder / "interruptions.png", picture(rows, measured, options.mean))
    files.write_text(folder / "interruptions.md", page(rows, measured, trial, options))


def picture(rows: Sequence[Row], measured: Measured, mean: float) -> bytes:
    """Draw the planned cost over the save interval, with the three measured ones."""
    from nbtrain.base.printing.theme import SERIES, themed
    from nbtrain.monitor.run.pictures import shown_figure

    figure = shown_figure("", 3.6, 8.0)
    axes = figure.subplots()
    half, best, double = rows
    intervals = [half.interval_steps * 1.06**power for power in range(-10, 36)]
    intervals = sorted({round(value) for value in intervals if value <= 1.5 * double.interval_steps})
    work = measured.work()
    costs = [work.time(interval, 1 / mean).mean / TRAIN_STEPS for interval in intervals]
    axes.plot(intervals, costs, color=SERIES[0], label="planned")
    low, high = ([cost * factor for cost in costs] for factor in (1 - WITHIN, 1 + WITHIN))
    axes.fill_between(intervals, low, high, color=SERIES[0], alpha=0.15, linewidth=0, label="within 10 %")
    axes.plot(
        [row.interval_steps for row in rows],
        [row.cost for row in rows],
        "o",
        color=SERIES[1],
        label=f"measured, {best.kills} kills each",
    )
    axes.axhline(measured.step, color=SERIES[2], linestyle=":", label="a step without any interruption")
    axes.set_xscale("log")
    axes.set_xticks([row.interval_steps for row in rows], [f"{row.interval_steps}" for row in rows])
    axes.minorticks_off()
    axes.set_xlabel("save interval (steps)", fontsize=9)
    axes.set_ylabel("CPU seconds for a kept step", fontsize=9)
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=8)
    axes.grid(True)
    axes.legend(fontsize=8, frameon=False)
    buffer = io.BytesIO()
    themed(figure).savefig(buffer, format="png")
    return buffer.getvalue()


HEADS = (
    *("interval", "steps", "kills", "saves", "steps trained again", "CPU s paid", "kept steps"),
    *("CPU s for a kept step", "planned", "difference", "planned before"),
)
PAGE = """# Save intervals under real interruptions

Written by `{command}`.

The plan says what interruptions cost a run, and which save interval loses the least ([plans](../plan.md)).
Here {kills} real `kill -9` hit three runs of the trainer that differ only in
`checkpoint.save_interval_steps`: the planned best interval, half of it and double of it.

![cost for a kept step by save interval](interruptions.png)

{table}

{claims}

Measured in these runs: {step:.3f} CPU s for a step, {save:.2f} for a save and {restart:.2f} for a restart;
"planned" is calculated with them. "Planned before" is calculated with those of the trial before the runs
({trial.step:.3f}, {trial.save:.2f} and {trial.restart:.2f}), from which the best interval was planned.

## How it is measured

- Kills come after CPU seconds of an attempt that follow an exponential law with a mean of {mean:g} s, drawn
  with seed {seed}. All three runs suffer the same times. A kill may hit a restart or a save.
- The times are stratified: one is drawn from each of {draws} equally likely parts of the law, in random
  order. With independent draws, {draws} kills would leave a standard deviation of 5 to 15 %.
- The clock is the CPU time of the rank, and costs are CPU seconds, so that waiting for a core does not count.
  Other work on the machine still changes the CPU seconds of a step: by {drift:+.0%} between the trial and the
  runs. The three runs train side by side, so that it is alike for them, and save to a disk in memory.
- The model has {parameters} parameters, so that a save takes as long as {ratio:.0f} steps. Ranks are forked
  from a process that has torch loaded: a restart builds the model and loads the checkpoint.
- A run is judged when its last kill has come: the CPU seconds paid until then, for each step of its newest
  checkpoint.
- interruptions.json has every kill.

{stamp}
"""


def page(rows: Sequence[Row], measured: Measured, trial: Measured, options: argparse.Namespace) -> str:
    """Return the text of the page."""
    lines = [HEADS, ("---",) * len(HEADS)]
    for name, row in zip(("half", "planned best", "double"), rows):
        steps = (f"{row.interval_steps}", f"{row.kills}", f"{row.saves}", f"{row.repeated_steps:,}")
        paid = (f"{row.paid_cpu_seconds:,.0f}", f"{row.kept_steps:,}", f"{row.cost:.3f}")
        plans = (f"{row.planned:.3f}", f"{row.difference:+.1%}", f"{row.planned_before:.3f}")
        lines.append((name, *steps, *paid, *plans))
    return PAGE.format(
        command=command(options),
        kills=sum(row.kills for row in rows),
        table="\n".join(f"| {' | '.join(line)} |" for line in lines),
        claims="\n".join(f"- {'' if holds else '**Not so:** '}{words}" for holds, words in claims(rows)),
        **asdict(measured),
        trial=trial,
        mean=options.mean,
        seed=options.seed,
        draws=options.kills,
        parameters=parameters(),
        ratio=measured.save / measured.step,
        drift=measured.step / trial.step - 1,
        stamp=stamp(INTERRUPTIONS),
    )


def parameters() -> str:
    from nbtrain.base.text import amounts
    from nbtrain.config.arithmetic.parameters import count_parameters
    from nbtrain.config.load import load

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tiny.yaml"
        path.write_text(launch.TINY)
        return amounts.count(count_parameters(load(str(path), MODEL)).total)


def command(options: argparse.Namespace) -> str:
    given = f"--kills {options.kills} --mean {options.mean:g} --seed {options.seed}"
    return f"python -m tests.planner.budget.real_interruptions {given}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=40, help="kills of each of the three runs")
    parser.add_argument("--mean", type=float, default=4.0, help="mean CPU seconds between two kills")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--to", type=Path, default=FOLDER, help="folder of the page, its picture and JSON")
    options = parser.parse_args()
    # A disk in memory: the time of a save is CPU time, and no other disk is worn.
    memory = Path("/dev/shm")
    place = memory if memory.is_dir() else None
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=place, prefix="interruptions-") as name, ForkServer() as server:
        folder = Path(name)
        launch.make_dataset(folder / "data")
        tried = [
            DisturbedRun(make_run(folder, f"trial-{number}", TRIAL_INTERVAL_STEPS), TRIAL_INTERVAL_STEPS)
            for number in range(3)
        ]
        disturb(server, folder, tried, [TRIAL_SECONDS, TRIAL_SECONDS], "trial")
        trial = Measured.of([attempt for entry in tried for attempt in entry.attempts])
        best = trial.work().best_interval(1 / options.mean)
        best += best % 2
        print(f"trial: {asdict(trial)}; the planned best interval is {best} steps", flush=True)
        intervals = (best // 2, best, 2 * best)
        runs = [DisturbedRun(make_run(folder, f"every-{steps}", steps), steps) for steps in intervals]
        times = drawn_times(options.kills, options.mean, options.seed)
        disturb(server, folder, runs, times, "run")
    measured = Measured.of([attempt for entry in runs for attempt in entry.attempts])
    rows = rows_of(runs, measured, trial, options.mean)
    record: dict[str, Any] = {
        "command": command(options),
        "seed": options.seed,
        "mean_cpu_seconds": options.mean,
        "wall_minutes": round((time.monotonic() - began) / 60, 1),
        "trial": asdict(trial),
        "measured": asdict(measured),
        "rows": [asdict(row) for row in rows],
        "runs": [{"interval_steps": entry.interval_steps, "kills": _kills(entry)} for entry in runs],
    }
    options.to.mkdir(parents=True, exist_ok=True)
    files.write_text(options.to / "interruptions.json", json.dumps(record, indent=1) + "\n")
    write(rows, measured, trial, options, options.to)
    found = list(claims(rows))
    for holds, words in found:
        print("" if holds else "NOT SO:", words)
    kept = sum(holds for holds, _ in found)
    print(f"{kept} of {len(found)} claims hold, {sum(row.kills for row in rows)} kills")
    return int(kept < len(found))


def _kills(entry: DisturbedRun) -> list[dict[str, Any]]:
    kept = ("drawn_cpu_seconds", "paid_cpu_seconds", "first_step", "reached_step", "kept_step")
    return [{key: round(getattr(attempt, key), 3) for key in kept} for attempt in entry.attempts]


if __name__ == "__main__":
    sys.exit(main())
