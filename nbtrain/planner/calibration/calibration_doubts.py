"""Find signs that other programs disturbed a calibration.

load      before the calibration starts, other programs use more than BUSY_SHARE of the measured cores
spread    for more than UNSTEADY_SHARE of the measurements, there was only one call, or the middle half of
          the calls spans more than SPREAD_SHARE of the median
ranks     one rank with all cores is slower, by more than SLOWER_SHARE, than each of two ranks that share
          the cores, in the best products or in the blocks; only another program can cause this
"""

from nbtrain.base.text.amounts import counted
from nbtrain.planner.calibration.calibration import Figure

BUSY_SHARE = 0.1
SPREAD_SHARE = 0.5
UNSTEADY_SHARE = 0.1
# One rank may be a little slower, because two hardware threads of a core are hardly faster than one.
SLOWER_SHARE = 0.25


def doubts(figures: list[Figure], lacking: float, cores: int) -> list[str]:
    """Return the reasons to doubt a calibration, as clauses without a period; [] if there are none.

    `lacking` is the number of the measured `cores` that other programs used.
    """
    found = []
    if lacking > BUSY_SHARE * cores:
        found.append(
            f"other programs used {lacking:.1f} of {counted(cores, 'core')} when the calibration started"
        )
    unsteady = [figure for figure in figures if figure["spread"] is None or figure["spread"] > SPREAD_SHARE]
    if len(unsteady) > UNSTEADY_SHARE * len(figures):
        are = "is" if len(unsteady) == 1 else "are"
        found.append(
            f"{len(unsteady)} of {counted(len(figures), 'measurement')} {are} unsteady (calls vary by more "
            f"than {SPREAD_SHARE:.0%}, or there was only one call); at most {UNSTEADY_SHARE:.0%} may be "
            "unsteady"
        )
    return found + slower_alone(figures)


def slower_alone(figures: list[Figure]) -> list[str]:
    """Return a clause for each operation in which one rank alone is slower than each of two ranks at once."""
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
                    f"one rank with all cores takes {slower:.2f} times as long for {words} in {dtype} as "
                    f"each of two ranks with half of the cores; at most {1 + SLOWER_SHARE:.2f} times is "
                    "plausible"
                )
    return found
