"""docs/evidence/recipes.{json,md,png}, written from the records of tests/benchmarks/recipes.py."""

import itertools
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nbtrain.base.text import amounts
from nbtrain.config.arithmetic.parameters import count_parameters
from nbtrain.config.load import load
from tests.benchmarks.recipes import ARMS, SEEDS, SIZES, Bench, settings_of

Record = dict[str, Any]
NICE = "nice -n 15 "
COMMAND = "python -m tests.benchmarks.recipes"
TITLES = {"gpt3": "`recipe: gpt3`", "modern": "`recipe: modern`"}
COLORS = {"gpt3": "#7f7f7f", "modern": "#1f77b4"}

HEAD = """# Two recipes on equal text

Written by `python -m tests.benchmarks.recipes --page` from the records of

```
{command}
```

`recipe: gpt3` is the recipe of GPT-3: LayerNorm, GELU, learned positions and biases; AdamW (0.9, 0.95,
weight decay 0.1); a cosine schedule after a warm-up. `recipe: modern` has Llama's layers (RMSNorm,
SwiGLU, rotary positions, no biases) with norms of queries and keys, Muon for the blocks' matrices and
AdamW for the rest, and a learning rate that falls in the last fifth (WSD).

Both have the same number of parameters within 1 %, the same samples in the same order, the same batch,
warm-up (5 %), weight decay and clipping, no dropout, and one learning rate for all parameters. For each
recipe, the command searches for the learning rate. It tries four rates with one seed, each twice the
previous one, and adds rates while the best one is the lowest or the highest. Then it trains two more
seeds at the best rate, and shorter runs of the modern recipe. If it is stopped, the same command continues.
"""

SHOWS = """
## What this shows, and what it does not

- Validation losses are means over {validation} held-out tokens, the same for all runs of a size. The loss
  of a run is measured at its end, when its learning rate has decayed; earlier points of a curve are at
  higher rates.
{more}- These are models of {models} million parameters on little text, with the batch of the demo. No run
  sees its text more than 1.3 times. The results do not apply to larger models, longer runs or other batches,
  and the best rates are the best for these sizes only.
- The gain is measured for the whole recipe, not for its parts.
- `gpt-tiny`, the demo, has `recipe: modern`; `gpt3-tiny` has GPT-3's recipe with the same size and text.
"""
LENGTHS = """\
- "Tokens to GPT-3's loss" is interpolated between the lengths of the modern recipe's runs, each of which
  has its own schedule.
"""
SPEED = """\
- CPU seconds are calculated, also for runs on a GPU: the tokens of a run times the CPU seconds per token.
  These were measured for both recipes in turn, on one thread, including optimizer and data, with other
  work at the same time; recipes.json has every round. On a GPU, and in bf16, Newton-Schulz takes a
  different share of a step.
"""
RATES_LEFT = """- **{size}: the search for the best rates is not finished** ({done}).
  Neither recipe is known at its best rate, a badly tuned baseline flatters the other recipe, and a single
  seed has no spread: the figures do not say which recipe learns faster.
"""
SEEDS_LEFT = """- **{size}: not all seeds have run** ({done}).
  Each recipe is at its best rate, which lies between rates that are worse. Fewer than three seeds say little
  of how much the losses differ from seed to seed.
"""


def write(bench: Bench, to: Path) -> None:
    """Write all three files from the existing records."""
    records = bench.records()
    (to / "recipes.json").write_text(json.dumps(records, indent=1) + "\n")
    sizes = [size for size in SIZES if any(one["size"] == size and "loss" in one for one in records)]
    commands = [line for size in sizes for line in commands_of(size, _of(records, size))]
    parts = [HEAD.format(command="\n".join(commands)), "![loss against tokens](recipes.png)\n"]
    parts += [part for size in sizes for part in _section(bench, size, _of(records, size))]
    parts.append(_shows({size: _of(records, size) for size in sizes}))
    (to / "recipes.md").write_text("\n".join(part.strip("\n") + "\n" for part in parts))
    _picture({size: _of(records, size) for size in sizes}).savefig(
        to / "recipes.png", dpi=110, metadata={"Software": None}
    )


def commands_of(size: str, records: Sequence[Record]) -> list[str]:
    """Return the commands that made the records of a size."""
    runs = [one for one in records if "loss" in one]
    texts = [one.get("text", "") for one in runs]
    text = next((f" --text {name}" for name in texts if name.endswith((".jsonl", ".gz"))), "")
    commands = []
    for on_gpus, precision in sorted({(on_gpu(one), one.get("precision", "fp32")) for one in runs}):
        where = f" --device gpu --precision {precision}" if on_gpus else ""
        commands.append(f"{'' if on_gpus else NICE}{COMMAND} --size {size}{where}{text}")
    if any("cpu_seconds_per_token" in one for one in records):
        commands.append(f"{NICE}{COMMAND} --size {size}{text} --speed")
    return commands


def on_gpu(record: Record) -> bool:
    """Return whether a run was trained on a GPU; older records do not say."""
    return record.get("device", "CPU") != "CPU"


def _shows(by_size: dict[str, list[Record]]) -> str:
    """Return the last section; it describes only what the records contain."""
    more = "".join(unfinished(size, records) for size, records in by_size.items())
    found = [one for records in by_size.values() for one in records]
    more += LENGTHS * any(
        len(losses_by_length(each)) > 1 for each in by_size.values() if whole(each, "modern")
    )
    more += SPEED * any("cpu_seconds_per_token" in one for one in found)
    models = " and ".join({"tiny": "3.5", "14m": "14"}[size] for size in by_size)
    return SHOWS.format(
        validation=" and ".join(_held_out(size) for size in by_size), more=more, models=models
    )


def unfinished(size: str, records: Sequence[Record]) -> str:
    """Describe the runs that are still missing for a size and the results that need
    them; "" if none is missing.
    """
    words, rates_left, seeds_left = [], False, False
    for arm in ARMS:
        runs = [one for one in whole(records, arm) if one["seed"] == SEEDS[0]]
        losses = {one["lr"]: one["loss"] for one in runs}
        best = min(losses, key=losses.__getitem__, default=None)
        inside = best is not None and min(losses) < best < max(losses)
        seeds = len(at_best(records, arm)) if runs else 0
        rates_left |= len(losses) < len(SIZES[size].rates[arm]) or not inside
        seeds_left |= seeds < len(SEEDS)
        words.append(f"{TITLES[arm]}: {len(losses)} rates, {seeds} of {len(SEEDS)} seeds")
    left = RATES_LEFT if rates_left else SEEDS_LEFT if seeds_left else ""
    return left.format(size=size, done="; ".join(words))


def _of(records: Sequence[Record], size: str) -> list[Record]:
    return [one for one in records if one["size"] == size]


def _held_out(size: str) -> str:
    return f"{16 * SIZES[size].batch * SIZES[size].seq:,}"


def whole(records: Sequence[Record], arm: str) -> list[Record]:
    """Return a recipe's runs of full length."""
    tokens = SIZES[records[0]["size"]].tokens
    return [one for one in records if one.get("arm") == arm and one["tokens"] == tokens]


def best_rate(records: Sequence[Record], arm: str) -> float:
    """Return the learning rate with the lowest loss among the runs with the first seed."""
    searched = [one for one in whole(records, arm) if one["seed"] == SEEDS[0]]
    return min(searched, key=lambda one: one["loss"])["lr"]


def at_best(records: Sequence[Record], arm: str) -> list[Record]:
    """Return the full runs at the best rate, with all seeds."""
    rate = best_rate(records, arm)
    return [one for one in whole(records, arm) if one["lr"] == rate]


def losses_by_length(records: Sequence[Record]) -> dict[int, list[float]]:
    """Return the losses of the modern recipe at its best rate, by the length of the run in tokens."""
    rate, found = best_rate(records, "modern"), {}
    for one in records:
        if one.get("arm") == "modern" and one["lr"] == rate:
            found.setdefault(one["tokens"], []).append(one["loss"])
    return dict(sorted(found.items()))


def tokens_to(records: Sequence[Record], loss: float) -> float | None:
    """Return the length in tokens at which a modern run would end at `loss`,
    interpolated between measured lengths.

    None if the measured lengths do not enclose it.
    """
    points = [(tokens, statistics.mean(found)) for tokens, found in losses_by_length(records).items()]
    for (few, high), (many, low) in itertools.pairwise(points):
        if high >= loss >= low:
            share = (high - loss) / (high - low)
            return math.exp(math.log(few) + share * math.log(many / few))
    return None


def _section(bench: Bench, size: str, records: list[Record]) -> list[str]:
    sizes, counts = SIZES[size], []
    for arm in ARMS:
        config = load(str(bench.yaml(size)), settings_of(arm, sizes, 1e-3))
        counts.append(f"{count_parameters(config).total:,}")
    text = next((one["text"] for one in records if "text" in one), "Python's documentation")
    parts = [
        f"## {amounts.count(float(counts[0].replace(',', '')))} parameters\n\n"
        f"{counts[0]} and {counts[1]} parameters; {sizes.layers} layers of {sizes.hidden}; {text} in a "
        f"vocabulary of {sizes.vocab:,}; {amounts.count(sizes.tokens)} tokens in steps of "
        f"{sizes.tokens_per_step:,}; {places_of(records)}.",
        _search(records),
    ]
    found = {arm: at_best(records, arm) for arm in ARMS if whole(records, arm)}
    if len(found) == len(ARMS):
        parts += [_seeds(found), _lengths(records, found)]
    return parts


def places_of(records: list[Record]) -> str:
    """Describe the precision and the device of the runs, by seed if they differ."""
    places: dict[str, set[int]] = {}
    for one in records:
        if "loss" in one:
            device = one["device"] if on_gpu(one) else "thread of a CPU"
            places.setdefault(f"{one.get('precision', 'fp32')} on one {device}", set()).add(one["seed"])
    if len(places) == 1:
        return next(iter(places))
    return ", ".join(
        f"seed{'s' * (len(seeds) > 1)} {' and '.join(map(str, sorted(seeds)))} in {place}"
        for place, seeds in places.items()
    )


def _search(records: list[Record]) -> str:
    rows = ["| learning rate | " + " | ".join(TITLES[arm] for arm in ARMS) + " |", "| --- | --- | --- |"]
    first = [one for arm in ARMS for one in whole(records, arm) if one["seed"] == SEEDS[0]]
    for rate in sorted({one["lr"] for one in first}):
        cells = []
        for arm in ARMS:
            loss = next((one["loss"] for one in first if (one["arm"], one["lr"]) == (arm, rate)), None)
            shown = "" if loss is None else f"{loss:.4f}"
            cells.append(f"**{shown}**" if shown and best_rate(records, arm) == rate else shown)
        rows.append(f"| {rate:g} | {' | '.join(cells)} |")
    resumed = [
        f"{TITLES[one['arm']]} at {one['lr']:g} with seed {one['seed']}"
        for one in records
        if one.get("arm") and one["jobs"] > 1
    ]
    words = f"\n\nStopped and resumed from a checkpoint: {', '.join(resumed)}." if resumed else ""
    return "Validation loss with one seed:\n\n" + "\n".join(rows) + words


def _seeds(found: dict[str, list[Record]]) -> str:
    rows = [
        "| recipe | rate | seeds | loss, mean | lowest to highest |",
        "| --- | --- | --- | --- | --- |",
    ]
    for arm, runs in found.items():
        losses = [one["loss"] for one in runs]
        rows.append(
            f"| {TITLES[arm]} | {runs[0]['lr']:g} | {len(losses)} | {statistics.mean(losses):.4f} | "
            f"{min(losses):.4f} to {max(losses):.4f} |"
        )
    return "At the best of these rates:\n\n" + "\n".join(rows)


def _lengths(records: list[Record], found: dict[str, list[Record]]) -> str:
    goal = statistics.mean(one["loss"] for one in found["gpt3"])
    tokens = found["gpt3"][0]["tokens"]
    speed = next((one["cpu_seconds_per_token"] for one in records if "cpu_seconds_per_token" in one), None)
    seconds = {arm: statistics.median(rates) for arm, rates in speed.items()} if speed else {}
    head = ["| recipe | tokens | seeds | loss, mean |", "| --- | --- | --- | --- |"]
    if seconds:
        head = ["| recipe | tokens | seeds | loss, mean | CPU seconds |", "| --- | --- | --- | --- | --- |"]

    def row(arm: str, count: float, seeds: str, loss: float) -> str:
        cells = [TITLES[arm], amounts.count(count), seeds, f"{loss:.4f}"]
        return f"| {' | '.join([*cells, *([f'{count * seconds[arm]:,.0f}'] if seconds else [])])} |"

    rows = [row("gpt3", tokens, str(len(found["gpt3"])), goal)]
    for count, losses in losses_by_length(records).items():
        rows.append(row("modern", count, str(len(losses)), statistics.mean(losses)))
    needed = tokens_to(records, goal)
    if needed is None:
        return "Whole runs:\n\n" + "\n".join([*head, *rows]) + passed(found, seconds)
    rows.append(row("modern", needed, "between", goal))
    words = (
        f"**Tokens to GPT-3's loss: {amounts.count(needed)}, {100 * needed / tokens:.0f} % of its "
        f"{amounts.count(tokens)}.**"
    )
    if seconds:
        share = needed * seconds["modern"] / (tokens * seconds["gpt3"])
        words += (
            f" **CPU seconds: {100 * share:.0f} %**; a token takes {1e3 * seconds['gpt3']:.3f} ms and "
            f"{1e3 * seconds['modern']:.3f} ms."
        )
    return "Each length with its own schedule:\n\n" + "\n".join([*head, *rows]) + f"\n\n{words}"


def passed(found: dict[str, list[Record]], seconds: dict[str, float]) -> str:
    """Describe when the modern recipe's curves pass GPT-3's final loss; "" if one of them never does.

    `seconds` has the seconds per token by recipe, if they were measured.
    """
    theirs, ours = found["gpt3"], found["modern"]
    goal, whole_tokens = statistics.mean(one["loss"] for one in theirs), theirs[0]["tokens"]
    places = [tokens for one in ours if (tokens := tokens_until(one, goal)) is not None]
    if len(places) < len(ours):
        return ""
    tokens = statistics.mean(places)
    share = tokens / whole_tokens
    shares = f"**{100 * share:.0f} % of the tokens**"
    if seconds:
        shares += f", **{100 * share * seconds['modern'] / seconds['gpt3']:.0f} % of the CPU seconds**"
    seeds, mean = "", ""
    if len(places) > 1:
        seeds, mean = f" ({amounts.count(min(places))} to {amounts.count(max(places))} by seed)", "mean "
    return (
        f"\n\n{TITLES['modern']} (rate {ours[0]['lr']:g}) passes {goal:.4f}, the {mean}loss at which "
        f"{TITLES['gpt3']} (rate {theirs[0]['lr']:g}) ends, after {amounts.count(tokens)} of its "
        f"{amounts.count(ours[0]['tokens'])} tokens{seeds}, before its learning rate has decayed: {shares}."
    )


def tokens_until(record: Record, loss: float) -> float | None:
    """Return the tokens at which a run's validation curve reaches `loss`, interpolated between two
    validations."""
    step = SIZES[record["size"]].tokens_per_step
    curve = sorted((int(at) * step, value) for at, value in record["validation"].items())
    for (few, high), (many, low) in itertools.pairwise(curve):
        if high >= loss >= low:
            return few + (high - loss) / (high - low) * (many - few)
    return None


def _picture(by_size: dict[str, list[Record]]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4 * len(by_size), 4.4), layout="constrained")
    for place, (size, records) in enumerate(by_size.items(), start=1):
        axes = figure.add_subplot(1, len(by_size), place)
        step = SIZES[size].tokens_per_step
        for arm in ARMS:
            if not whole(records, arm):
                continue
            for number, one in enumerate(at_best(records, arm)):
                points = [(int(at) * step / 1e6, loss) for at, loss in one["validation"].items()]
                label = f"{arm}, rate {one['lr']:g}" if number == 0 else None
                axes.plot(*zip(*sorted(points)), color=COLORS[arm], alpha=0.8, lw=1.2, label=label)
        if whole(records, "modern") and whole(records, "gpt3"):
            lengths = losses_by_length(records)
            means = [statistics.mean(losses) for losses in lengths.values()]
            axes.plot(
                [tokens / 1e6 for tokens in lengths],
                means,
                "o",
                color=COLORS["modern"],
                label="modern, ends of runs",
            )
            goal = statistics.mean(one["loss"] for one in at_best(records, "gpt3"))
            axes.axhline(goal, color=COLORS["gpt3"], ls=":", lw=1)
            axes.set_ylim(min(*means, goal) - 0.05, goal + 0.9)
        axes.set_title(f"{size}: {SIZES[size].layers} layers of {SIZES[size].hidden}")
        axes.set_xlabel("tokens, millions")
        axes.set_ylabel("validation loss")
        axes.grid(alpha=0.3)
        axes.legend()
    return figure
