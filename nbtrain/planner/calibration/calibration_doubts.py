"""Check whether other programs disturbed a calibration.

load     before it begins, other programs use more than BUSY_SHARE of the cores that are measured
spread   more than UNSTEADY_SHARE of the measurements were called only once, or the middle half of their calls
         spans more than SPREAD_SHARE of the median
ranks    one rank with all cores is slower than each of two ranks that share them, by more than SLOWER_SHARE,
         in the best products or in the blocks: only another program can cause this
"""

from nbtrain.base.text.amounts import counted
from nbtrain.planner.calibration.calibration import Figure

BUSY_SHARE = 0.1
SPREAD_SHARE = 0.5
UNSTEADY_SHARE = 0.1
# Two threads of one core are little faster than one.
SLOWER_SHARE = 0.25


def doubts(figures: list[Figure], lacking: float, cores: int) -> list[str]:
    """Return the reasons for doubt, in sentences without a full stop; empty if there are none.

    `lacking` is the number of the measured `cores` that other programs used.
    """
    found = []
    if lacking > BUSY_SHARE * cores:
        found.append(f"other programs used {lacking:.1f} of {counted(cores, 'core')} when it began")
    unsteady = [figure for figure in figures if figure["spread"] is None or figure["spread"] > SPREAD_SHARE]
    if len(unsteady) > UNSTEADY_SHARE * len(figures):
        found.append(
            f"{len(unsteady)} of {counted(len(figures), 'figure')} differ by more than {SPREAD_SHARE:.0%} "
            f"between calls, or were called once only; at most {UNSTEADY_SHARE:.0%} may"
        )
    return found + slower_alone(figures)


def slower_alone(figures: list[Figure]) -> list[str]:
    """Return the operations that one rank runs more slowly than each of two ranks on the same cores."""
    found = []
    for what, words in (("product", "products"), ("block", "blocks")):
        measured = [figure for figure in figures if figure["what"] == what]
        for dtype in dict.fromkeys(figure["dtype"] for figure in measured):
            alone, shared = (
                [figure for figure in measured if (figure["dtype"], figure["ranks"]) == (dtype, ranks)]
                for ranks in (1, 2)
            )
            if not alone or not shared:
                continue
            if what == "product":
                slower = max(figure["flops"] for figure in shared) / max(figure["flops"] for figure in alone)
            else:
                times = (
                    sum(figure["forward"] + figure["backward"] for figure in part) for part in (alone, shared)
                )
                slower = next(times) / next(times)
            if slower > 1 + SLOWER_SHARE:
                found.append(
                    f"one rank takes {slower:.2f} times as long for {words} in {dtype} as each of two ranks "
                    f"with half of the cores; at most {1 + SLOWER_SHARE:.2f} is plausible"
                )
    return found
