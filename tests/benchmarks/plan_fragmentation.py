"""Rules that would detect the run that failed only because of fragmentation: docs/evidence/plan-accuracy.md.

None of them is adopted, so no plan uses them. The section explains why, with the verdicts of each rule.
"""

import dataclasses
from collections.abc import Callable

from nbtrain.planner.memory import buffers, estimate
from nbtrain.planner.setup.setup import Setup
from tests.benchmarks import plan_memory
from tests.benchmarks.published import Published

CASE, SISTER = "bridge-sft70b-32h100-baseline", "bridge-sft70b-32h100-pp8"
# Fragmentation of what torch's allocator reserves, 1 - allocated / reserved: on average and at worst of eight
# models that were fine-tuned (arXiv:2401.08156), and at worst of arXiv:2507.16274.
AVERAGE, WORST, WORST_OF_ALL = 0.15, 0.33, 0.43

Applies = Callable[[Published, Setup], bool]
GROUPS: tuple[tuple[str, Applies], ...] = (
    ("every run", lambda case, setup: True),
    ("interleaved schedules", lambda case, setup: setup.virtual_stages > 1),
    ("packed samples of fine-tuning", lambda case, setup: case.id.startswith("bridge-sft")),
)


def share_with(case: Published, fragmentation: float) -> float:
    """Return the planned fraction of the device if `fragmentation` of the memory
    that torch reserves is lost.
    """
    setup = _setup_of(case)
    found = estimate(setup)
    if not found.device_bytes:
        return 0.0
    allocated = found.allocated_bytes - plan_memory.moved_to_host(case, setup)
    return (allocated / (1 - fragmentation) + found.parts["runtime"]) / found.device_bytes


def outcome(cases: list[Published], applies: Applies, fragmentation: float) -> tuple[int, int, list[str]]:
    """Return the counts of recognised fitting and failed runs, and the fitting runs
    that a rule newly refuses.
    """
    fitted, recognised, refused = 0, 0, []
    for verdict in plan_memory.verdicts(cases):
        case = verdict.case
        lost = applies(case, _setup_of(case)) and share_with(case, fragmentation) > 1
        planned = verdict.planned and not lost
        fitted += case.fits and planned
        recognised += not case.fits and not planned
        if case.fits and verdict.planned and lost:
            refused.append(case.id)
    return fitted, recognised, refused


def section(cases: list[Published]) -> list[str]:
    """Return the page's section about the search for a rule."""
    case, sister = (next(found for found in cases if found.id == name) for name in (CASE, SISTER))
    judged = plan_memory.verdicts(cases)
    fitted = sum(verdict.case.fits for verdict in judged)
    lines = [
        "### Fragmentation: the rule that was not adopted",
        "",
        f"{CASE} failed because of fragmentation alone. A rule that recognises it may use only what the "
        "source states about a run, and a constant that was published elsewhere. Published are "
        "losses of 15 % "
        "on average and 33 % at worst of what the allocator reserves, for eight models that were fine-tuned "
        "with LoRA, recomputation, offloading and ZeRO 3 (arXiv:2401.08156), and 43 % at worst, with "
        "recomputation and interleaved schedules (arXiv:2507.16274). Each row shows what a rule would do "
        f"instead of the reserve of {buffers.RESERVE_FRACTION:.0%}:",
        "",
        f"| applies to | share lost | fitted and planned to fit, of {fitted} | recognised, of "
        f"{len(judged) - fitted} | the run that ended | its sister with 8 stages, which ran |",
        "| --- " * 6 + "|",
    ]
    for title, applies in GROUPS:
        for fragmentation in (AVERAGE, WORST, WORST_OF_ALL):
            fits, recognised, _ = outcome(cases, applies, fragmentation)
            shares = " | ".join(f"{share_with(one, fragmentation):.0%}" for one in (case, sister))
            lines.append(f"| {title} | {fragmentation:.0%} | {fits} | {recognised} | {shares} |")
    more = 1 - 1 / (1 + WORST)
    again, recognised, _ = outcome(cases, GROUPS[-1][1], more)
    reserve = buffers.RESERVE_FRACTION / (1 + buffers.RESERVE_FRACTION)
    with_graphs = share_with(case, reserve) + 10e9 / _device_bytes(case)
    lines += [
        "",
        "The last two columns are shares of the card. No row separates the two runs: the average is too "
        "small for the first one, and the worst case also refuses the second one, which ran without "
        "expandable segments. The constant would have to be chosen to separate them. With 33 % of the "
        "allocated memory, which the paper did not measure, the row of fine-tuning would be "
        f"{again} and {recognised}, with the sister run at {share_with(sister, more):.1%} of the card. Every "
        "constant between a fifth, which this one run needed, and a third would give the same. For "
        "interleaved schedules, the worst case "
        "also keeps "
        "fewer than 95 % of the runs that fitted. Besides, the first paper measures what torch "
        "reserves while "
        "there is room; on a full card, torch first releases segments that are completely free.",
        "",
        'A rule for a property does not work either. "Samples of different lengths", without expandable '
        "segments, applies to no run here: the four fine-tuning runs pack their samples, and the "
        "program pads "
        "each pack to the sequence length (Megatron-Bridge, finetune_utils.py and sft.py: "
        "pad_to_max_length). The preset of the failed run also captures its MLPs in CUDA graphs, "
        "which accept "
        "one length only (its docs/performance-guide.md). The buffers of these graphs are not in a plan: "
        "according to that guide a few GB, "
        f"and over 10 with a pipeline. With 10 GB the run would be at {with_graphs:.1%} of its "
        "card, also with "
        "expandable segments, with which it ran.",
        "",
        "The reserve therefore stays the same for every run. If a run fits its card with the reserve but not "
        "with the published average, a finding of its plan says that it may run out of memory because of "
        "fragmentation, and names the fix, which costs no time: expandable segments. Runs of nbtrain have "
        "samples of one length (packed to seq_length), whatever their settings.",
        "",
    ]
    return [line if line.startswith("|") else line.replace("%", " %").replace("  %", " %") for line in lines]


def _setup_of(case: Published) -> Setup:
    """Return the setup that plan_memory.verdicts uses, with a micro batch of 1 if the source gives none."""
    setup = plan_memory.setup_of(case)
    return dataclasses.replace(setup, micro_batch_size=1) if case.raw["batch"]["micro"] is None else setup


def _device_bytes(case: Published) -> int:
    return estimate(_setup_of(case)).device_bytes or 0
