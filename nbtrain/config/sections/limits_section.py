"""The section `limits:` of a run YAML, and the file limits.yaml of a workspace, which has the same keys."""

from typing import Annotated

from pydantic import Field

from nbtrain.config.sections.fields import ConfigModel, PositiveBytes

Amount = Annotated[float, Field(gt=0, le=1e15)]


class LimitsConfig(ConfigModel):
    """Limits on what a run may cost according to its plan; a run that exceeds one is not submitted.

    The plan counts the whole run, including what earlier jobs have trained. limits.yaml of the workspace has
    the same keys, and holds for every run: of two values the smaller one is the limit.
    """

    gpu_hours: Amount | None = None
    """Hours of all GPUs together."""
    money: Amount | None = None
    """Cost of the GPU hours at the usual price, in the currency of the price table."""
    energy_kwh: Amount | None = None
    """Energy of the GPUs, their machines and cooling."""
    days: Amount | None = None
    """Days from the first step to the last, without waiting in a queue."""
    epochs: Amount | None = None
    """Passes over the training split."""
    disk_bytes: PositiveBytes | None = None
    """Peak bytes of checkpoints and dataset."""
