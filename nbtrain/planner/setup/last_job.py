"""Measurements of a run's last job: its throughput, by which a plan is scaled, and the plan's error.

    record_of(config)            the machine and setup of a measurement, for summary.json
    measured_rate(config, ...)   the measurements of the run's last job, if they apply to the planned devices
    compare(config, ...)         a plan's predictions next to the measurements

When a job ends, the supervisor writes step time, throughput, peak memory and the idle time of pipeline stages
to summary.json (jobs/supervisor/summary.py), together with the setup (model, batch, precision, layout,
recomputation, device) and the machine to which they apply. A plan for the same setup uses the throughput
unchanged. For another setup on the same kind of device, the throughput is multiplied by the ratio of the two
planned rates, and the plan says so. A measurement from another machine or device is not used. Predictions
are compared only if the planned setup is the measured one, because otherwise two different runs would be
compared.
"""

import platform
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from nbtrain.base import files
from nbtrain.base.hardware.cgroup import usable_cores
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text import amounts
from nbtrain.config.arithmetic.devices import BY_NAME, Device
from nbtrain.config.schema import RunConfig
from nbtrain.planner.setup.setup import Setup, setup_of

# Fields of a setup that follow from the section `lora`. A difference in any of them is reported as "lora",
# the name that users know.
_OF_ADAPTERS = frozenset(
    {
        "lora_rank",
        "adapter_sizes",
        "adapter_activations",
        "trained_row_elements",
        "load_in_4bit",
        "double_quant",
    }
)
# Fields of a setup that do not change the speed of a step: available memory, saving, buffers.
_WITHOUT_EFFECT = frozenset(
    (
        "shape", "host_memory_bytes", "on_this_machine", "saves_in_background", "fabric_reached",
        "cpus_per_node", "loader_workers",
        "reduce_bucket_elements", "allgather_bucket_elements", "sub_group_elements", "max_live_elements",
        "prefetch_elements", "persistence_elements", "nvme_buffer_elements", "nvme_buffer_count",
    )
)  # fmt: skip
# Beyond this ratio of planned rates, a scaled rate would depend more on the plan than on the measurement.
LARGEST_RATIO = 50.0


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of a job, its setup, and how that setup differs from the planned one."""

    tokens_per_second: float
    setup: Setup
    differences: tuple[str, ...]
    """Names of the settings that differ from the planned setup; () if none differ."""
    memory_bytes: float | None
    """Peak device memory of rank 0; None if it is not known."""
    pipeline_fraction: float | None
    """Fraction of a step in which rank 0 waited for other stages; None if it is not known."""


def record_of(config: RunConfig) -> dict[str, Any]:
    """Return the machine and setup to which this run's measured rate applies, for summary.json."""
    setup = setup_of(config)
    return {"machine": machine(setup.on_gpu), "setup": record_of_setup(setup)}


def record_of_setup(setup: Setup) -> dict[str, Any]:
    """Return a setup as a JSON object, in which the device is replaced by its name."""
    return {**asdict(setup), "device": setup.device.name if setup.device else None}


def setup_of_record(values: dict[str, Any]) -> Setup:
    """Return the setup from a JSON object of record_of_setup().

    Raises KeyError or TypeError for any other object.
    """
    setup: Setup = _of_kind(Setup, values)
    return setup


def _of_kind(kind: Any, value: Any) -> Any:
    """Convert a JSON value to the type `kind` of its field.

    A list becomes a tuple, an object a dataclass, and a device's name the device. Raises KeyError or
    TypeError if the value does not have that type.
    """
    if isinstance(kind, UnionType):
        # The type is `X | None`, so a value that is not null is an X.
        kind = next(inner for inner in get_args(kind) if inner is not NoneType)
        return None if value is None else _of_kind(kind, value)
    if kind is Device:
        return BY_NAME[value]
    if get_origin(kind) is tuple:
        return tuple(value)
    if isinstance(kind, type) and is_dataclass(kind):
        kinds = {field.name: field.type for field in fields(kind)}
        return kind(**{name: _of_kind(kinds[name], value[name]) for name in value})
    return value


def machine(on_gpu: bool) -> str:
    """Return text that identifies the machine to which a measured rate applies.

    A rate of GPUs applies to any machine with the same GPUs, and a rate of cores only to this machine.
    """
    return "any with these devices" if on_gpu else f"{platform.node()}, {usable_cores()} cores"


def measured_rate(config: RunConfig, wanted: Setup) -> Measured | None:
    """Return the measurements of the run's last job, compared with the planned setup `wanted`.

    The result is None if there are no measurements, or if they do not apply to this machine and device.
    """
    summary = files.read_json(RunDir.named(config.name).summary_json) or {}
    record, samples = summary.get("measured_with"), summary.get("samples_per_second")
    if not isinstance(record, dict) or not isinstance(samples, int | float) or samples <= 0:
        return None
    try:
        setup = setup_of_record(record["setup"])
    except (KeyError, TypeError):
        return None  # a damaged record
    if record.get("machine") != machine(wanted.on_gpu) or setup.on_gpu != wanted.on_gpu:
        return None
    if setup.device != wanted.device:
        return None
    return Measured(
        samples * setup.shape.seq_length,
        setup,
        _differences(setup, wanted),
        _positive(summary.get("memory_bytes")),
        _positive(summary.get("pipeline_fraction")),
    )


def _positive(value: object) -> float | None:
    return value if isinstance(value, int | float) and value > 0 else None


def _differences(found: Setup, wanted: Setup) -> tuple[str, ...]:
    names = [
        field.name
        for field in fields(wanted)
        if field.name not in _WITHOUT_EFFECT and getattr(found, field.name) != getattr(wanted, field.name)
    ]
    if None in (found.fabric_bytes_per_second, wanted.fabric_bytes_per_second):
        # The network is the same whether or not the run names it.
        names = [name for name in names if name != "fabric_bytes_per_second"]
    shape = [
        # For a block from the user's file, the user knows the setting `code`, which names the file.
        "code" if field.name == "own_block" else field.name
        for field in fields(wanted.shape)
        if getattr(found.shape, field.name) != getattr(wanted.shape, field.name)
    ]
    if adapters := _OF_ADAPTERS.intersection(names):
        names = [*(name for name in names if name not in adapters), "lora"]
    if wanted.pipeline_parallel_size == 1 and "stage_layers" in names:
        names.remove("stage_layers")  # With one stage, it says the same as num_layers.
    return (*shape, *names)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A number that a plan predicts, and the measured value of this number."""

    name: str
    """Name of the number: "step", "memory" or "bubble"."""
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Relative error of the prediction, measured / predicted - 1: -0.02 if the run took 2 % less."""
        return self.measured / self.predicted - 1 if self.predicted else 0.0

    @property
    def text(self) -> str:
        """Description such as "predicted 1.21 s per step, measured 1.18 s: -2 %"."""
        if self.name == "step":
            predicted, measured = amounts.step(self.predicted), amounts.step(self.measured)
            head = f"predicted {predicted} per step, measured {measured}"
        elif self.name == "memory":
            predicted, measured = amounts.size(self.predicted), amounts.size(self.measured)
            head = f"predicted {predicted}, measured {measured} on rank 0"
        else:
            points = 100 * (self.measured - self.predicted)
            return (
                f"predicted {self.predicted:.0%} of a step, measured {self.measured:.0%} on rank 0 including "
                f"transfers: {points:+.0f} percentage points"
            )
        return f"{head}: {100 * self.error:+.0f} %"


def compare(
    config: RunConfig,
    found: Measured | None,
    step_seconds: float | None,
    memory_bytes: float | None,
    bubble_fraction: float,
) -> list[Comparison]:
    """Compare a run's plan with `found`, the measurements of its last job.

    The result is empty if the run has not been measured with exactly this setup.
    """
    if found is None or found.differences:
        return []
    measured_step = config.tokens_per_step / found.tokens_per_second
    compared = [Comparison("step", step_seconds, measured_step)] if step_seconds else []
    if memory_bytes and found.memory_bytes:
        compared.append(Comparison("memory", memory_bytes, found.memory_bytes))
    if config.parallel.pipeline_parallel_size > 1 and found.pipeline_fraction:
        compared.append(Comparison("bubble", bubble_fraction, found.pipeline_fraction))
    return compared


def rows(compared: Iterable[Comparison]) -> dict[str, str]:
    """Return the comparisons as rows of a plan's table: {name: text}."""
    return {one.name: one.text for one in compared}
