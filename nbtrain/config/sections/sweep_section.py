"""The fields of a sweep's file. They are not part of a run YAML."""

from typing import Annotated, Any, Literal

from pydantic import Field

from nbtrain.config.sections.fields import ConfigModel, Name, PathText, PositiveAmount

MOST_RUNS = 500
LABEL = "sweep"
"""Label of a run that belongs to a sweep; its value is the sweep's name."""

Values = Annotated[list[Any], Field(min_length=1, max_length=MOST_RUNS)]
AtOnce = Annotated[int, Field(ge=1, le=MOST_RUNS)]


class StopRule(ConfigModel):
    """When a run that cannot win is stopped. It saves first, and is not started again."""

    rule: Literal["median", "bound"]
    """median: its metric is above the median of the other runs at the same number of tokens, if at least
    three have trained that many. bound: its metric is above `bound`.
    """
    metric: Literal["validation_loss", "loss"] = "validation_loss"
    """Metric that the rule compares; lower is better."""
    after_tokens: PositiveAmount
    """Tokens that a run has trained before it may be stopped."""
    bound: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Largest value of the metric with rule: bound."""


class SweepConfig(ConfigModel):
    """Contents of a sweep's file."""

    sweep: Name
    run: PathText
    overrides: dict[str, Any] | str = {}
    grid: dict[str, Values] = {}
    settings: Annotated[list[dict[str, Any]], Field(max_length=MOST_RUNS)] = []
    at_once: AtOnce = 1
    stop: StopRule | None = None
