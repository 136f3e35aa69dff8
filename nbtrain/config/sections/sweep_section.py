"""The fields of a sweep file. They are not part of a run YAML."""

from typing import Annotated, Any, Literal

from pydantic import Field

from nbtrain.config.sections.fields import ConfigModel, Name, PathText, PositiveAmount

MOST_RUNS = 500
LABEL = "sweep"
"""Key of the label that marks a run as part of a sweep; its value is the sweep's name."""

Values = Annotated[list[Any], Field(min_length=1, max_length=MOST_RUNS)]
AtOnce = Annotated[int, Field(ge=1, le=MOST_RUNS)]


class StopRule(ConfigModel):
    """Rule by which a run that cannot win is stopped. The run saves a checkpoint first and is not started
    again.
    """

    rule: Literal["median", "bound"]
    """Rule for stopping a run. median stops a run whose metric is above the median of the other runs at the
    same number of tokens, provided that at least three runs have trained on this number of tokens. bound
    stops a run whose metric is above `bound`.
    """
    metric: Literal["validation_loss", "loss"] = "validation_loss"
    """Metric that the rule compares. Lower is better."""
    after_tokens: PositiveAmount
    """Number of tokens that a run must have trained before it may be stopped."""
    bound: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Largest allowed value of the metric, with rule: bound."""


class SweepConfig(ConfigModel):
    """Contents of a sweep file."""

    sweep: Name
    run: PathText
    overrides: dict[str, Any] | str = {}
    grid: dict[str, Values] = {}
    settings: Annotated[list[dict[str, Any]], Field(max_length=MOST_RUNS)] = []
    at_once: AtOnce = 1
    stop: StopRule | None = None
