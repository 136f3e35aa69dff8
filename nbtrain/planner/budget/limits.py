"""Limits of a run (its section `limits`) and of its workspace (limits.yaml), compared with the plan.

    <workspace>/limits.yaml     any of gpu_hours, money, energy_kwh, days, epochs and disk_bytes

If both the run and the workspace set a limit, the smaller value applies, so that a run can only tighten the
limits of its workspace. The limits of a workspace also apply in every workspace inside it, and to every run
in its output directory, whichever workspace NBTRAIN_WORKSPACE names. If the plan has no value to compare with
a limit, the run is rejected if the user can supply what is missing (the GPU type, a price). Otherwise the
limit is only a warning (epochs before the data are prepared, energy of CPUs). CPU runs use no GPU hours and
cost no money.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from nbtrain.base.errors import ConfigError, refuse
from nbtrain.base.findings import FATAL, Finding
from nbtrain.base.text import amounts
from nbtrain.base.text.nearest import nearest
from nbtrain.base.workspace import display, is_workspace, output_root, workspace
from nbtrain.config.arithmetic.devices import find_device
from nbtrain.config.load.schema_errors import schema_finding
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.limits_section import LimitsConfig
from nbtrain.config.yaml_source import Located, read_yaml
from nbtrain.planner.budget.cost import CostEstimate, user_prices
from nbtrain.planner.budget.disk import DiskEstimate
from nbtrain.planner.time.duration import DurationEstimate

FILE_NAME = "limits.yaml"
KEYS = tuple(LimitsConfig.model_fields)
SHAPE = (
    "it must be a mapping of limits, such as `gpu_hours: 20000`; delete the file if the workspace has "
    "no limits"
)


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit that applies to a run, and the planned amount."""

    key: str
    """Field of LimitsConfig, e.g. "gpu_hours"."""
    most: float
    place: str
    """File and line where the limit is set, in limits.yaml or in the run's YAML, e.g. "limits.yaml:2"."""
    by_workspace: bool
    """Whether the workspace sets the limit; otherwise the run sets it."""
    looser: str
    """File and line where the run sets a larger limit, which has no effect; "" if it sets no larger limit."""
    planned: float | None
    """The planned amount; None if the plan has no estimate of it."""
    why_unknown: str = ""
    """Reason why the plan has no estimate, as a clause; "" if the plan has an estimate."""
    fix: str = ""
    """Change that makes the estimate possible. "" if there is no such change: the limit is only a warning."""

    @property
    def exceeded(self) -> bool:
        return self.planned is not None and self.planned > self.most

    @property
    def refuses(self) -> bool:
        """Whether the limit prevents the run from being submitted."""
        return self.exceeded or (self.planned is None and bool(self.fix))

    @property
    def words(self) -> str:
        """The limit as text, e.g. "49,357 GPU hours, limit 20,000 GPU hours (limits.yaml:2)"."""
        planned = "not known" if self.planned is None else amount_of(self.key, self.planned)
        return f"{planned}, limit {amount_of(self.key, self.most)} ({self.place})"


def amount_of(key: str, value: float) -> str:
    """Return the value of a limit as text with its unit, e.g. "20,000 GPU hours"."""
    if key == "disk_bytes":
        return amounts.size(round(value))
    unit = {"gpu_hours": " GPU hours", "energy_kwh": " kWh"}.get(key, "" if key == "money" else f" {key}")
    number = f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"
    return number + (unit.removesuffix("s") if number == "1" else unit)


def limits_folders() -> list[Path]:
    """Return the folders whose limits.yaml applies to the runs of this workspace, without duplicates.

    They are the workspace, the parent of the output directory, and every workspace that contains one of the
    two. A team's limits therefore also apply in a workspace inside the team's workspace, and in a workspace
    that writes to the team's output directory, even if that directory is a link to another disk.
    """
    output = output_root()
    # Use realpath, because Path.resolve raises an error for a link that points to itself.
    first = (workspace(), output.parent, Path(os.path.realpath(output)).parent)
    above = (folder for start in first for folder in start.parents if is_workspace(folder))
    return list(dict.fromkeys((*first, *above)))


def workspace_limits() -> dict[str, tuple[float, str]]:
    """Return {limit: (smallest value, file and line where it is set)} for the limits of the workspace.

    Raises ConfigError if a file is invalid.
    """
    smallest: dict[str, tuple[float, str]] = {}
    for folder in limits_folders():
        limits, located = _read_limits(folder)
        for key in KEYS:
            value = getattr(limits, key)
            if value is not None and (key not in smallest or value < smallest[key][0]):
                smallest[key] = value, located.where(key) or display(folder / FILE_NAME)
    return smallest


def _read_limits(folder: Path) -> tuple[LimitsConfig, Located]:
    """Return the limits in a folder's limits.yaml and where they are set; no limits if there is no file."""
    path, other = folder / FILE_NAME, (folder / FILE_NAME).with_suffix(".yml")
    name, problems = display(path), []
    if os.path.lexists(other):
        raise ConfigError(
            f"{display(other)}: the limits of a workspace must be in {FILE_NAME}. Rename the file to "
            f"{FILE_NAME}."
        )
    if not os.path.lexists(path):
        return LimitsConfig(), Located()
    # This rejects a folder, a pipe, and a link whose target is missing. Path.is_file would raise for some
    # links.
    if not os.path.isfile(path):  # noqa: PTH113
        raise ConfigError(
            f"{name} is not a readable file, so the limits of the workspace are unknown. Restore the file, "
            f"or delete {name} if the workspace has no limits."
        )
    located = read_yaml(path, name, SHAPE)
    for key in located.value:
        if key not in KEYS:
            words = (
                f"{name} sets the unknown limit `{key}`. Known limits: {', '.join(KEYS)}.{nearest(key, KEYS)}"
            )
            problems.append(Finding("error", "limits", key, located.where(key) or name, words, cost=FATAL))
    known = {key: value for key, value in located.value.items() if key in KEYS}
    limits = LimitsConfig()
    try:
        limits = LimitsConfig.model_validate(known)
    except ValidationError as error:
        problems += [schema_finding(entry, located, name) for entry in error.errors(include_url=False)]
    refuse(problems, ConfigError)
    return limits, located


def limits_of(
    config: RunConfig,
    cost: CostEstimate,
    duration: DurationEstimate,
    disk: DiskEstimate,
    epochs: float | None,
    least_epochs: float | None = None,
) -> list[Limit]:
    """Return the limits that apply to a run, with the planned amounts; [] if there are no limits.

    `epochs` counts all train_tokens. If it is not known, `least_epochs` is a lower bound, which can exceed a
    limit but not prove that the run is within it.
    """
    team = workspace_limits()
    share = _trained_share(config)
    if epochs is not None or not share:
        epochs = share * (epochs or 0.0)
    if least_epochs is not None:
        least_epochs *= share
    planned = _figures(cost, duration, disk, epochs)
    found = []
    for key in KEYS:
        own: float | None = getattr(config.limits, key)
        shared, place = team.get(key, (None, ""))
        if shared is not None and (own is None or shared <= own):
            most, by_workspace, is_looser = shared, True, own is not None and own > shared
        elif own is not None:
            most, by_workspace, is_looser = own, False, False
            place = config.where(f"limits.{key}")
        else:
            continue
        if key == "epochs" and epochs is None and least_epochs is not None and least_epochs > most:
            planned[key] = least_epochs
        why, fix = _unknown(key, config) if planned[key] is None else ("", "")
        found.append(
            Limit(
                key,
                most,
                place,
                by_workspace,
                config.where(f"limits.{key}") if is_looser else "",
                planned[key],
                why,
                fix,
            )
        )
    return found


def _trained_share(config: RunConfig) -> float:
    """Return the fraction of train_tokens that a run trains on: below 1 in a trial, 0 in an evaluation."""
    return 0.0 if config.mode == "eval" else config.target_tokens / config.train_tokens


def _figures(
    cost: CostEstimate, duration: DurationEstimate, disk: DiskEstimate, epochs: float | None
) -> dict[str, float | None]:
    on_cpu = cost.device_hours == 0
    return {
        "gpu_hours": cost.device_hours,
        # Without a price of the GPU hours, cost.money may contain electricity only.
        "money": 0.0 if on_cpu else cost.money if cost.price is not None else None,
        "energy_kwh": cost.energy_kwh,
        "days": None if duration.seconds is None else duration.seconds / 86_400,
        "epochs": epochs,
        "disk_bytes": disk.total_bytes,
    }


def _unknown(key: str, config: RunConfig) -> tuple[str, str]:
    """Return (why the plan has no value to compare with a limit, fix); the fix is "" if there is none."""
    resources = config.resources
    if key == "epochs":
        return "the number of training tokens is not known before the data are prepared", ""
    if key == "energy_kwh" and resources.device == "cpu":
        return "the plan does not estimate the energy of CPUs", ""
    if resources.device == "gpu" and resources.gpu_type is None:
        return "the GPU type is not known", "Set resources.gpu_type."
    if key == "money":
        # Use the device table's name; gpu_type may be a name from nvidia-smi or from a node's label.
        device = find_device(resources.gpu_type)
        name, prices = device.name if device else resources.gpu_type, display(user_prices())
        if resources.capacity == "spot":
            return f"there is no price for spot machines with {name}", (
                f"Set per_device_hour.{name}.spot in {prices}."
            )
        return f"there is no price for {name}", f"Set per_device_hour.{name} in {prices}."
    return (
        "the plan cannot estimate the time on this device",
        "Set resources.gpu_type to one of the GPU types that `nbtrain schema` lists.",
    )
