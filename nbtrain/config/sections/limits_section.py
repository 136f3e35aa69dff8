"""The section `limits:` of a run YAML. The file limits.yaml of a workspace has the same keys."""

from typing import Annotated

from pydantic import Field

from nbtrain.config.sections.fields import ConfigModel, PositiveBytes

Amount = Annotated[float, Field(gt=0, le=1e15)]


class LimitsConfig(ConfigModel):
    """Limits on the cost of a run according to its plan. A run whose plan exceeds a limit is not submitted.

    The plan counts the whole run, including what earlier jobs have trained. The file limits.yaml of the
    workspace has the same keys and applies to every run. If both set a limit, the smaller value applies.
    """

    gpu_hours: Amount | None = None
    """Maximum GPU hours, summed over all GPUs. null sets no limit."""
    money: Amount | None = None
    """Maximum cost of the GPU hours at the usual price, in the currency of the price table. null sets no
    limit.
    """
    energy_kwh: Amount | None = None
    """Maximum energy that the GPUs, their machines and the cooling use, in kWh. null sets no limit."""
    days: Amount | None = None
    """Maximum number of days from the first step to the last, not counting time in a queue. null sets no
    limit.
    """
    epochs: Amount | None = None
    """Maximum number of passes over the training split. null sets no limit."""
    disk_bytes: PositiveBytes | None = None
    """Maximum disk space for checkpoints and dataset at their peak, in bytes. null sets no limit."""
