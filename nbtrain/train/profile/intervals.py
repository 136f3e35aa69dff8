"""Unions, differences and lengths of time intervals."""

import bisect
from collections.abc import Iterable

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    joined: list[Interval] = []
    for begin, end in sorted(intervals):
        if joined and begin <= joined[-1][1]:
            if end > joined[-1][1]:
                joined[-1] = (joined[-1][0], end)
        else:
            joined.append((begin, end))
    return joined


def without(intervals: list[Interval], taken: list[Interval]) -> list[Interval]:
    """What of `intervals` is not in `taken`; both sorted and disjoint."""
    left: list[Interval] = []
    at = 0
    for begin, end in intervals:
        while at < len(taken) and taken[at][1] <= begin:
            at += 1
        look = at
        while look < len(taken) and taken[look][0] < end:
            if taken[look][0] > begin:
                left.append((begin, taken[look][0]))
            begin = max(begin, taken[look][1])
            look += 1
        if begin < end:
            left.append((begin, end))
    return left


def length(intervals: list[Interval]) -> float:
    return sum(end - begin for begin, end in intervals)


def overlap(interval: Interval, window: Interval) -> float:
    return max(0.0, min(interval[1], window[1]) - max(interval[0], window[0]))


def is_in(moment: float, intervals: list[Interval]) -> bool:
    """Whether it lies in one of sorted, disjoint intervals."""
    at = bisect.bisect_right(intervals, (moment, float("inf"))) - 1
    return at >= 0 and intervals[at][0] <= moment <= intervals[at][1]
