"""Compare the plan with 216 published runs; write docs/evidence/plan-accuracy.md and its picture.

    python tests/benchmarks/plan_cases.py [--cases CASES.json] [--out docs]

No case is omitted and nothing is fitted to a single case: published.py turns every case into a setup by one
rule for each source or program. plan_speed.py, plan_memory.py, plan_fragmentation.py and plan_beyond.py
compare. Takes a few seconds and is pure arithmetic. Use --cases with a file of the same form to try published
runs that were not used to choose the constants: --cases new.json --out /tmp.
"""

import argparse
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from nbtrain.planner.setup.engines import ENGINES
from nbtrain.planner.time import rates
from tests.benchmarks import (
    plan_beyond,
    plan_fragmentation,
    plan_memory,
    plan_outside,
    plan_speed,
    plan_upstream,
    published,
)
from tests.benchmarks.plan_speed import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOCS = Path(__file__).parents[2] / "docs" / "evidence"
WIDTH = 120

INTRODUCTION = """\
# How accurate is the plan?

Written by `python tests/benchmarks/plan_cases.py` from 216 published runs. What a source does not state is
set by one rule per source or training program (tests/benchmarks/published.py), never for a single run.

The constants belong to generations of devices (nbtrain/planner/time/rates.py) and to training programs
(nbtrain/planner/setup/engines.py). They were fitted to one part of the sources (tests/benchmarks/plan_fit.py)
and are compared with the other part too. Which parts a step has was decided with all runs in view. The
constants of nbtrain itself come from one measured step, of 125M on one H200 (benchmarks.md)."""


def main() -> None:
    """Write the page and the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cases", type=Path, default=published.CASES)
    parser.add_argument("--out", type=Path, default=DOCS)
    arguments = parser.parse_args()
    cases = published.load_cases(arguments.cases)
    page = arguments.out / "plan-accuracy.md"
    # The section that plan_cpu.py has written is kept.
    before = page.read_text(encoding="utf-8") if page.exists() else ""
    mark = before.find("<!-- CPU: written by")
    kept = f"\n{before[mark:]}" if mark >= 0 else ""
    page.write_text(text(cases) + kept, encoding="utf-8")
    picture(plan_speed.rows(cases)).savefig(arguments.out / "plan-accuracy.png", metadata={"Software": None})
    print(page.read_text(encoding="utf-8").split("![")[0])


def text(cases: list[published.Published]) -> str:
    """Return the text of the page."""
    lines = [
        *INTRODUCTION.splitlines(),
        "",
        *plan_speed.section(cases),
        *plan_outside.section(published.load_outside()),
        *plan_upstream.section(),
        *plan_memory.section(cases, plan_beyond.sentence(cases)),
        *plan_fragmentation.section(cases),
        *plan_memory.upstream_section(),
        *constants(),
    ]
    return "\n".join(_wrapped(line) for line in lines).rstrip() + "\n"


def constants() -> list[str]:
    """Return the tables of the planner's constants."""
    lines = [
        "## Constants",
        "",
        "Shares of the datasheet that training reaches, by generation of the device:",
        "",
    ]
    lines += [
        "| generation | 16-bit products | FP8 | FP4 | memory | links inside | network |",
        "| --- " * 7 + "|",
    ]
    for kind, share in rates.SHARES.items():
        row = (kind, share.matmul, share.low, share.fp4, share.memory, share.inside, share.across)
        lines.append("| " + " | ".join(str(value) for value in row) + " |")
    lines += ["", "Training programs (the fields are explained in nbtrain/planner/setup/engines.py):", ""]
    names = ("traffic", "flash_generation", "hidden_data", "hides_gather", "zero_share", "hidden_zero3")
    more = ("hidden_pipeline", "launch_seconds")
    lines += [
        "| program | " + " | ".join((*names, *more)) + " |",
        "| --- " * (len(names) + len(more) + 1) + "|",
    ]
    for engine in ENGINES.values():
        values = " | ".join(str(getattr(engine, name)) for name in (*names, *more))
        lines.append(f"| {engine.title} | {values} |")
    return [*lines, ""]


def picture(rows: list[Row]) -> "Figure":
    """Draw the ratio of planned to published step times by family, with the band of 20 %."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 5.2), layout="constrained", dpi=100)
    axes = figure.subplots()
    families = list(dict.fromkeys(row.case.source.family for row in rows))
    colors = colormaps["tab20"].colors  # type: ignore[attr-defined]
    for number, family in enumerate(families):
        of = [row for row in rows if row.case.source.family == family and not row.in_series]
        seen = [row.case.step_seconds for row in of]
        ratios = [row.ratio for row in of]
        axes.scatter(seen, ratios, s=16, color=colors[number], label=f"{family} ({len(of)})", zorder=3)
    axes.axhline(1, color="#6b7280", linewidth=0.8)
    axes.axhspan(1 - plan_speed.MET, 1 + plan_speed.MET, color="#d1d5db", alpha=0.5, label="within 20 %")
    axes.set(xscale="log", ylim=(0, 2))
    axes.set(xlabel="published seconds of a step", ylabel="planned / published")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8)
    return figure


def _wrapped(line: str) -> str:
    return (
        line
        if line.startswith(("|", "!", "#"))
        else "\n".join(textwrap.wrap(line, WIDTH, break_on_hyphens=False)) or line
    )


if __name__ == "__main__":
    main()
