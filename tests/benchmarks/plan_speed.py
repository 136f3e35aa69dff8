"""Planned and published speed: rows, counts by family and half, and a reason for every miss.

A case is met if the planned seconds per step are within 20 % of the published ones. A series (two sources
print curves without batch or micro batch) is a single case of the file; its points are listed separately and
are not counted.
"""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from nbtrain.planner.time.step import StepTime, estimate_step
from tests.benchmarks.published import Published

MET = 0.2

# Reasons for missed cases: id or its beginning, and the sentence. A test requires one for each miss, and none
# without a miss.
MISSES = (
    (
        "mlm-h100-70b",
        "The source does not state the micro-batch. With micro-batches of 1 and two stages, only the last "
        "backward pass hides gradient traffic; a larger micro-batch would hide more.",
    ),
    (
        "mlm-h100-314b",
        "The source names neither the micro-batch nor the degree of its interleaved schedule. With 2 chunks "
        "per stage, 12 % of the step is bubble; with 12 chunks of one block each, 2 %.",
    ),
    (
        "bs-1b3-v100-32-tp2",
        "The source's two runs with 2 tensor ranks take 1.7 times as long as runs with one GPU per replica, "
        "although NVLink connects the two. Its authors report differences up to 40 % between equal runs.",
    ),
    (
        "bs-1b3-v100-",
        "In the plan, the bubble makes DeepSpeed's pipeline slower. The source prints 29 s with one stage "
        "and 28 s with two. Its authors report differences up to 40 % between equal runs.",
    ),
    (
        "bs-52b-v100-z3-tp1-mb20",
        "DeepSpeed's ZeRO 3 of 2021 on Omni-Path, with tiled layers. The source's authors report up to 40 % "
        "of network noise, and the plan uses one share of the network for all its ZeRO 3 runs.",
    ),
    (
        "bs-52b-v100-hf-z3-optoffload",
        "The same library and network. With offloading, ZeRO 3 copies gradients to the host block by block; "
        "the plan counts one transfer at the bandwidth of PCIe.",
    ),
    (
        "nanotron-1.34b-64nodes",
        "512 GPUs share 256 sequences: 0.1 s of computation in 0.38 s. The rest is the latency of small "
        "messages between 64 machines, which the plan does not separate from bandwidth.",
    ),
    ("nanotron-3.57b-64nodes", "The same small messages: 0.16 s of computation in 0.51 s."),
    (
        "nanotron-1.34b-16nodes",
        "Planned at 0.22 s, published 0.27. On one to four machines, the same model is planned 16 to 18 % "
        "too slow.",
    ),
    (
        "nanotron-80b-4nodes",
        "15 % MFU, compared with 31 % on 8 machines with other layouts. At 66 of 80 GB, its allocator "
        "probably kept releasing and reallocating memory.",
    ),
    (
        "mlmtest-7b_tp4_pp1_memory_speed-dev_dgx_gb200",
        "This functional test in deterministic mode takes 76 % of an H100's time on a GB200, although the "
        "chip is 2.5 times as fast. The plan has flash attention 2 for it, which is slow on Blackwell; its "
        "deterministic backward pass may be slower than on Hopper.",
    ),
    (
        "nanogpt-124m-8a100-40",
        "The README says 4 days for 600,000 steps. This includes evaluation and start-up, and dates from "
        "before torch.compile reduced the step from 250 to 135 ms.",
    ),
    (
        "llama3-405b-16384-s8192",
        "16 sequences per data-parallel rank for 16 stages: a bubble of 30 % with 2 chunks per stage. The "
        "paper's interleaved schedule, whose degree it does not state, has a smaller one.",
    ),
    (
        "ascend-910-1.3b",
        "The source does not state the generation of the Ascend 910, and no Ascend run was used to fit the "
        "constants.",
    ),
)


@dataclass(frozen=True)
class Row:
    """A published speed and the planned one."""

    case: Published
    step: StepTime

    @property
    def ratio(self) -> float:
        """Planned seconds divided by published seconds."""
        assert self.case.step_seconds is not None
        return self.step.seconds / self.case.step_seconds

    @property
    def met(self) -> bool:
        return abs(self.ratio - 1) <= MET

    @property
    def in_series(self) -> bool:
        return "series" in str(self.case.raw.get("kind", ""))


def rows(cases: Iterable[Published]) -> list[Row]:
    """Return a row for each case that gives a speed."""
    found = []
    for case in cases:
        if case.step_seconds is not None:
            step = estimate_step(case.setup)
            assert step is not None
            found.append(Row(case, step))
    return found


def explanation(row: Row) -> str | None:
    """Return the reason for a missed case, from the entry with the longest matching prefix of its id."""
    fitting = [(prefix, why) for prefix, why in MISSES if row.case.id.startswith(prefix)]
    return max(fitting, key=lambda pair: len(pair[0]))[1] if fitting else None


def share_met(of: list[Row]) -> str:
    """Return the number of met rows as text, e.g. "90 of 100 (90 %)"."""
    if not of:
        return "none"
    met = sum(row.met for row in of)
    return f"{met} of {len(of)} ({met / len(of):.0%})".replace("%", " %")


def section(cases: Iterable[Published]) -> list[str]:
    """Return the lines of docs/evidence/plan-accuracy.md on speed."""
    every = rows(cases)
    counted = [row for row in every if not row.in_series]
    series = [row for row in every if row.in_series]
    halves = {half: [row for row in counted if row.case.source.half == half] for half in ("train", "test")}
    families = dict.fromkeys(row.case.source.family for row in counted)
    lines = [
        "## Speed",
        "",
        f"The planned time of a step is within 20 % of the published one for {share_met(counted)} runs: "
        f"{share_met(halves['train'])} of the sources to which the constants were fitted, and "
        f"{share_met(halves['test'])} of the others.",
        "",
        "![planned against published step time](plan-accuracy.png)",
        "",
        "| family | cases | within 20 % | median of planned / published | fitted to |",
        "| --- | --- | --- | --- | --- |",
    ]
    for family in families:
        of = [row for row in counted if row.case.source.family == family]
        median = statistics.median(row.ratio for row in of)
        used = {row.case.source.half for row in of}
        fitted = "part of it" if len(used) > 1 else "yes" if used == {"train"} else "no"
        lines.append(f"| {family} | {len(of)} | {sum(row.met for row in of)} | {median:.2f} | {fitted} |")
    lines += [
        "",
        "Missed, and why:",
        "",
        "| case | published | planned / published | why |",
        "| --- | --- | --- | --- |",
    ]
    for row in counted:
        if not row.met:
            why = explanation(row) or "**no explanation**"
            lines.append(f"| {row.case.id} | {row.case.given} | {row.ratio:.2f} | {why} |")
    if not series:
        return [*lines, ""]
    ratios = ", ".join(f"{row.case.id.removeprefix('playbook-')} {row.ratio:.2f}" for row in series)
    lines += [
        "",
        "Two sources print series without batch or micro-batch, which the rules set. The planned seconds, "
        f"divided by the published ones, are {ratios}. With more GPUs, the source becomes slower than the "
        "plan, in which links between many machines are as fast as between two.",
        "",
    ]
    return lines
