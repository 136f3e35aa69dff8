"""Planned speeds compared with published ones: how many agree, the reason for each that does not, and the
committed page.
"""

import re

import pytest

from tests.benchmarks import plan_cases, plan_cpu, plan_memory, plan_speed, published

if not published.CASES.is_file():
    pytest.skip("no ../shared/reference/planner next to the repository", allow_module_level=True)

CASES = published.load_cases()
ROWS = [row for row in plan_speed.rows(CASES) if not row.in_series]


def share(half: str | None = None) -> float:
    of = [row for row in ROWS if half in (None, row.case.source.half)]
    return sum(row.met for row in of) / len(of)


def test_three_quarters_of_the_published_speeds_are_met():
    """Three quarters of the published speeds are met within 20 %, also among sources to which no constant was
    fitted.
    """
    assert len(ROWS) == 206
    assert share() >= 0.85
    assert share("train") >= 0.9
    assert share("test") >= 0.75


def test_runs_outside_the_cases_are_planned_as_well():
    """For runs outside the cases, 85 % of the speeds and every peak are within 20 %."""
    outside = published.load_outside()
    rows = plan_speed.rows(outside)
    assert sum(row.met for row in rows) / len(rows) > 0.85
    assert plan_memory.share_within(plan_memory.peaks(outside), plan_memory.LOOSELY) == 1


def test_every_miss_has_its_sentence_and_no_sentence_is_left_over():
    missed = [row for row in ROWS if not row.met]
    assert not [row.case.id for row in missed if plan_speed.explanation(row) is None]
    used = {plan_speed.explanation(row) for row in missed}
    assert not [prefix for prefix, why in plan_speed.MISSES if why not in used]


@pytest.mark.slow
def test_the_page_is_that_of_these_constants():
    """The committed page is the output of `python tests/benchmarks/plan_cases.py`, followed by the
    measurements of plan_cpu.py.
    """
    page = (plan_cases.DOCS / "plan-accuracy.md").read_text(encoding="utf-8")
    written, mark, _ = page.partition(f"\n{plan_cpu.BEGIN}\n")
    assert written == plan_cases.text(CASES)
    assert mark


@pytest.mark.parametrize("page", ["README.md", "README.zh-CN.md", "docs/plan.md", "notebooks/02_plan.ipynb"])
def test_pages_quote_the_number_of_cases_within_a_fifth(page):
    """The pages that name it have the number of published speeds that the plan is within 20 % of."""
    text = (plan_cases.DOCS.parents[1] / page).read_text(encoding="utf-8")
    met = sum(row.met for row in ROWS)
    assert re.search(rf"{met} of {len(ROWS)} published|{len(ROWS)} 个公开的训练速度中.{met} 个", text)


def test_the_picture_shows_every_case():
    """The picture has one point per case, colored by family."""
    axes = plan_cases.picture(plan_speed.rows(CASES)).axes[0]
    points = sum(len(found.get_offsets()) for found in axes.collections)
    assert points == len(ROWS)
