"""Published runs that are not among the 216 cases, compared with the plan: published_outside.yaml.

They were collected to find out where the model of a step and of its memory was wrong: ring attention, deep
pipelines, tensor parallelism over two machines, fast devices that wait, FSDP on a nearly full device, and
ZeRO++. A constant that was changed with them in view belongs to a program or a generation of devices.
"""

from tests.benchmarks import plan_memory, plan_speed
from tests.benchmarks.plan_memory import Peak
from tests.benchmarks.plan_speed import Row
from tests.benchmarks.published import Published

# Name of each source in the table: the beginning of its cases' ids.
NAMES = {
    "nanotron": "nanotron's benchmarks: 80B with 16 tensor ranks, 16 and 32 stages; 3.57B",
    "torchtitan": "torchtitan, December 2024: ring attention over 2, 4 and 8 ranks; 128 GPUs",
    "mpt": "LLM Foundry (FSDP): other rows of its tables, A100-40GB, A100-80GB, H100",
    "nemo-24.07": "NeMo 24.07 (FP8, H100)",
    "nemo-25": "NeMo 25.02 and 25.04 (FP8, H100, B200, GB200)",
    "nemo-long": "NeMo 24.03 (FP8, H100): sequences of 4 thousand to 1 million tokens",
    "bridge": "Megatron-Bridge 26.02 to 26.06 (FP8, MXFP8, NVFP4)",
    "smollm3": "SmolLM3 3B, nanotron on 384 H100",
    "zeropp": "DeepSpeed's ZeRO++ tutorial: 18B on 64 V100, with and without ZeRO++",
    "bs-1b3": "BigScience 1.3B: other rows of its tables, V100",
    "mlmtest": "Megatron-LM's functional tests on GB200 and H100",
}


def section(cases: list[Published]) -> list[str]:
    """Return the page's section about these runs."""
    rows, peaks, verdicts = plan_speed.rows(cases), plan_memory.peaks(cases), plan_memory.verdicts(cases)
    right = sum(verdict.is_right for verdict in verdicts)
    near = sum(peak.off <= plan_memory.LOOSELY for peak in peaks)
    lines = [
        "## Runs outside the cases",
        "",
        f"{len(cases)} more published runs (tests/benchmarks/published_outside.yaml) were compared after the "
        "constants had been fitted. They showed where the model was wrong, and parts of it were changed with "
        "them in view: they are not a test of the model any more, unlike a run that you try yourself "
        "(`--cases`).",
        "",
        f"Planned within 20 %: {plan_speed.share_met(rows)} speeds and {near} of {len(peaks)} peaks. For "
        f"{right} of {len(verdicts)} runs, the plan says rightly whether they fitted.",
        "",
        "| source | speeds | within 20 % | peaks | within 20 % |",
        "| --- | --- | --- | --- | --- |",
    ]
    for prefix, name in NAMES.items():
        speeds = [row for row in rows if row.case.id.startswith(prefix)]
        sizes = [peak for peak in peaks if peak.case.id.startswith(prefix)]
        met = sum(row.met for row in speeds)
        lines.append(
            f"| {name} | {len(speeds)} | {met} | {len(sizes)} | "
            f"{sum(peak.off <= plan_memory.LOOSELY for peak in sizes)} |"
        )
    lines += ["", "Missed:", "", "| case | planned / published |", "| --- | --- |"]
    lines += [f"| {_name(result)} | {result.ratio:.2f} |" for result in missed(rows, peaks)]
    wrong = [verdict.case.id for verdict in verdicts if not verdict.is_right]
    return [*lines, "", f"Fitted, and planned not to: {', '.join(wrong)}.", ""]


def missed(rows: list[Row], peaks: list[Peak]) -> list[Row | Peak]:
    """Return the speeds and the peaks that are planned more than 20 % off."""
    return [row for row in rows if not row.met] + [peak for peak in peaks if peak.off > plan_memory.LOOSELY]


def _name(result: Row | Peak) -> str:
    return f"{result.case.id}{', peak' if isinstance(result, Peak) else ''}"
