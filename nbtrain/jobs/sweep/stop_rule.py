"""The rule that stops runs of a sweep that cannot win, by their metric after equal numbers of tokens.

    verdict(rule, {name: curve}, name)  ->  why the run is stopped, or ""

The median rule is the same as in Google Vizier (Golovin et al. 2017, section 3.2), with the newest value
instead of the running average. A run is compared with the others at the number of tokens that it has reached
itself.
"""

import bisect
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field

from nbtrain.base.run_directory.metrics import BY_NAME
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text import amounts
from nbtrain.config.sections.sweep_section import StopRule
from nbtrain.monitor.metrics.metrics_reader import ScalarReader
from nbtrain.monitor.metrics.series import Series
from nbtrain.monitor.metrics.tokens import TOKENS_TAG, tokens_at

LEAST_OTHERS = 3
"""Minimum number of other runs to compare a run with; the median of fewer runs says little."""


@dataclass(frozen=True)
class TokenCurve:
    """Values of a metric, each with the number of tokens trained until then, in ascending order."""

    tokens: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def at(self, tokens: int) -> float | None:
        """Return the newest value at or before `tokens`; None if the run has not trained that far."""
        if not self.tokens or self.tokens[-1] < tokens:
            return None
        return self.values[bisect.bisect_right(self.tokens, tokens) - 1] if self.tokens[0] <= tokens else None


def read_curve(run: RunDir, metric: str) -> TokenCurve:
    """Return a run's metric by tokens; the curve is empty before the first point."""
    tag = BY_NAME[metric].tag
    reader = ScalarReader(run.tensorboard, lambda name: name in (tag, TOKENS_TAG))
    reader.refresh()
    points = reader.series.get(tag, Series())
    tokens = tokens_at(reader, list(points.steps))
    return TokenCurve(tokens, list(points.values)) if tokens else TokenCurve()


def verdict(rule: StopRule, curves: Mapping[str, TokenCurve], name: str) -> str:
    """Return why a run must be stopped, as part of a sentence; "" if it may continue.

    The run is judged at its newest point. Curves do not contain points whose metric is NaN.
    """
    own = curves[name]
    if not own.tokens or own.tokens[-1] < rule.after_tokens:
        return ""
    tokens, value = own.tokens[-1], own.values[-1]
    what = f"{rule.metric.replace('_', ' ')} {value:.4f} after {amounts.count(tokens)} tokens"
    if rule.rule == "bound":
        assert rule.bound is not None
        return f"{what} is above the bound of {rule.bound:g}" if value > rule.bound else ""
    others = [
        found for other, curve in curves.items() if other != name and (found := curve.at(tokens)) is not None
    ]
    if len(others) < LEAST_OTHERS or value <= (median := statistics.median(others)):
        return ""
    return f"{what} is above {median:.4f}, the median of {len(others)} other runs at this point"
