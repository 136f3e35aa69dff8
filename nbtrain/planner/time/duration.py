"""Duration of a run: its steps, and the pauses for validation and checkpoints.

    steps         for each batch size of the ramp-up, the number of steps times the seconds from
                  planner/time/step.py
    validation    forward passes over eval_iters batches, every eval_interval_steps and at the end
    test          the same number of forward passes at the end, if data.split has a test part
    checkpoints   their bytes at the disk's rate, unless they are written in the background

The upstream example's log (125M on one A100, 2.5B tokens, about 8 hours), part by part: 4,769 steps of 5.71 s
take 7.56 h. Training paused for 29 s every 100 steps. In a pause, forward passes over 10 batches at a third
of a step each take 19 s, and writing a 1.8 GB checkpoint takes the other 10 s, at 0.18 GB/s. The 47 pauses
take 0.38 h, which makes 7.95 h in total.

A run that has trained before is planned with its own measured rate (setup/last_job.py). A CPU run uses the
rate of this machine's cores (rates.py).

    rests_on(speed) -> RestsOn      the measurement on which the planned time is based

The constants of nbtrain's engine (setup/engines.py) come from one measured step on one type of GPU. A plan
for another type scales it by the datasheets, and by the fractions of them that published runs of other
programs reached (rates.py), and says so.
"""

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from nbtrain.base.text import amounts
from nbtrain.config.arithmetic.checkpoint_bytes import checkpoint_bytes, node_checkpoint_bytes
from nbtrain.config.arithmetic.saves import local_saves, shared_saves
from nbtrain.config.arithmetic.splits import has_test_split
from nbtrain.config.schema import RunConfig
from nbtrain.planner.memory.estimate import decided
from nbtrain.planner.setup.engines import ENGINES
from nbtrain.planner.setup.last_job import LARGEST_RATIO
from nbtrain.planner.setup.setup import Setup
from nbtrain.planner.time.rates import Rates, Speed, read_speed
from nbtrain.planner.time.step import StepTime, estimate_step, forward_seconds, step_of_size


@dataclass(frozen=True)
class DurationEstimate:
    """The estimated time of a whole run, and the source of the estimate."""

    seconds: float | None
    """Seconds of the run; None if the device is not known."""
    tokens_per_second: float | None
    """Throughput of all ranks together at the full batch size; None if the device is not known."""
    bubble_fraction: float
    """Fraction of a step in which a pipeline stage waits for other stages; 0 if the device is not known."""
    basis: str
    """Source of the rate, as a sentence without its full stop."""
    step: StepTime | None = None
    """Planned time of one step at the full batch size, by part, even if the rate was measured."""
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds of each part of the run: steps, validation, test, checkpoints, local checkpoints."""
    save_seconds: float | None = None
    """Seconds until one checkpoint is in the run directory; None if the device is not known.

    They are the time of the longest save that this run has measured, or the planned time if the run has not
    saved yet.
    """
    save_basis: str = ""
    """Source of save_seconds, in a few words."""
    saves_in_background: bool = False
    """Whether training continues while a checkpoint is written."""
    local_save_seconds: float = 0.0
    """Planned seconds until a checkpoint is on the nodes' own disks; 0 without checkpoint.local_dir."""


def estimate_duration(
    config: RunConfig, use_measured: bool = True, engine: str = "nbtrain", last_job: bool = True
) -> DurationEstimate:
    """Estimate the time of a run's steps (as limited by batch.max_steps), validations and checkpoints.

    Args:
        use_measured: Whether to use measurements: the rate of the run's last job (scaled if that job had
            another setup), or else this machine's calibration or, for a CPU run, the rate of its cores.
            Without measurements, the result is the same on every machine.
        engine: Program that trains the run, a key of setup/engines.py.
        last_job: Whether to use the run's last job.
    """
    return duration_at(config, read_speed(config, use_measured, engine, last_job))


def duration_at(config: RunConfig, speed: Speed) -> DurationEstimate:
    """Estimate the time of a run from the result of read_speed()."""
    setup, rates, found = speed.setup, speed.rates, speed.last_job
    step = estimate_step(setup, rates) if rates else None
    if rates is None or step is None:
        return DurationEstimate(None, None, 0.0, _unknown(config, setup))
    factor, basis = 1.0, _basis(setup, step, rates)
    if found is not None:
        other = estimate_step(found.setup, _rates_then(rates, setup, found.setup))
        assert other is not None
        scale = setup.tokens_per_step / step.seconds / (found.setup.tokens_per_step / other.seconds)
        if 1 / LARGEST_RATIO <= scale <= LARGEST_RATIO:
            rate = found.tokens_per_second * scale
            factor = setup.tokens_per_step / rate / step.seconds
            basis = f"{found.tokens_per_second:,.0f} tokens/s, measured by this run's last job"
            if found.differences:
                what = ", ".join(found.differences)
                basis += (
                    f" with different settings ({what}), times {scale:.3g}, the ratio of both setups' "
                    "planned rates"
                )
    parts = {name: factor * seconds for name, seconds in _parts(config, setup, rates, step).items()}
    whole = checkpoint_bytes(config)
    in_background = bool(decided(setup).saves_in_background)
    parts.update(_checkpoints(config, in_background, rates, whole, parts.get("steps", 0.0)))
    rate = setup.tokens_per_step / step.seconds / factor
    save = _save(config, rates, whole, speed.save_seconds)
    return DurationEstimate(
        sum(parts.values()),
        rate,
        step.bubble_fraction,
        basis,
        step,
        parts,
        *save,
        in_background,
        _local_save_seconds(config, rates),
    )


def _rates_then(rates: Rates, setup: Setup, then: Setup) -> Rates:
    """Return the rates for the last job's setup: `rates` with the network that its run specified."""
    fabric, reached = then.fabric_bytes_per_second, then.fabric_reached
    if setup.fabric_bytes_per_second in (None, fabric) or fabric is None:
        return rates
    across = replace(rates.across, bytes_per_second=fabric * (reached or rates.network_reached))
    return replace(rates, across=across)


def bubble_fraction(config: RunConfig) -> float:
    """Return the fraction of a step in which a rank waits for other stages; 0 without a pipeline."""
    speed = read_speed(config, use_measured=False)
    step = estimate_step(speed.setup, speed.rates) if speed.rates else None
    return step.bubble_fraction if step else 0.0


def _parts(config: RunConfig, setup: Setup, rates: Rates, step: StepTime) -> dict[str, float]:
    """Return the planned seconds of the run's steps, validation and test, as {part: seconds}."""
    evaluation = config.evaluation
    one = evaluation.eval_iters * forward_seconds(step)
    test = {"test": one} if one and has_test_split(config.data.split) else {}
    if config.mode == "eval":
        return {"validation": one, **test}
    steps, seconds, step_of = config.train_steps, 0.0, step_of_size(setup, rates)
    for size, num_steps in config.batch_schedule.sizes(steps):
        seconds += num_steps * (step if size == setup.global_batch_size else step_of(size)).seconds
    if config.mode == "perf" or not evaluation.eval_iters:
        return {"steps": seconds, "validation": 0.0}
    times = -(-steps // evaluation.eval_interval_steps)
    return {"steps": seconds, "validation": times * one, **test}


def _checkpoints(
    config: RunConfig, in_background: bool, rates: Rates, whole: int, steps_seconds: float
) -> dict[str, float]:
    """Return the seconds that the run waits for checkpoints, by part; each checkpoint has `whole` bytes.

    A checkpoint that is written in the background only costs a copy to host memory. With
    checkpoint.local_dir, a checkpoint is written to the nodes' own disks first, and some checkpoints stay
    there (the part "local checkpoints"). In both cases, the run also waits until its last checkpoint is in
    the run directory, and before a save if the previous one is not there yet.
    """
    if config.mode == "eval":
        return {}
    checkpoint, nodes, saves = config.checkpoint, config.resources.nodes, shared_saves(config)
    shared, is_local = whole / nodes / _shared_rate(config, rates), checkpoint.local_dir is not None
    if not saves or not (is_local or in_background):
        return {"checkpoints": saves * shared}
    pause = whole / config.world_size / rates.host_bytes_per_second
    if not in_background:
        pause = _local_save_seconds(config, rates)
    late = max(0.0, shared - steps_seconds / saves)
    found = {"checkpoints": saves * pause + (saves - 1) * late + shared}
    if stay := local_saves(config):
        found["local checkpoints"] = stay * pause
    return found


def _save(config: RunConfig, rates: Rates, whole: int, measured_seconds: float) -> tuple[float, str]:
    """Return (seconds until a checkpoint of `whole` bytes is in the run directory, source of the number)."""
    if measured_seconds:
        return measured_seconds, "the longest save that this run has measured"
    num_bytes, rate = whole / config.resources.nodes, _shared_rate(config, rates)
    seconds, words = num_bytes / rate, f"{amounts.size(num_bytes)} per node at {amounts.size(rate)}/s"
    if local_seconds := _local_save_seconds(config, rates):
        words = f"{amounts.elapsed(local_seconds)} to the node's own disk, then {words} to the run directory"
    return local_seconds + seconds, f"planned: {words}"


def _shared_rate(config: RunConfig, rates: Rates) -> float:
    """Return the bytes per second at which each node writes a checkpoint to the run directory."""
    limit = config.checkpoint.local_copy_bytes_per_second
    return min(rates.disk_bytes_per_second, limit) if limit else rates.disk_bytes_per_second


def _local_save_seconds(config: RunConfig, rates: Rates) -> float:
    if config.mode != "full" or config.checkpoint.local_dir is None:
        return 0.0
    return node_checkpoint_bytes(config, config.resources.nodes) / rates.nvme_bytes_per_second


def _basis(setup: Setup, step: StepTime, rates: Rates) -> str:
    if not setup.on_gpu:
        return rates.source
    used = ENGINES[setup.engine].title
    words = f"planned from {rates.source}, for {used}: {amounts.step(step.seconds)} per step"
    named = {
        "recomputation": step.recompute,
        "sums over tensor-parallel ranks": step.tensor,
        "sequence-parallel traffic": step.sequence,
        "data-parallel traffic": step.data,
        "the pipeline's bubble": step.bubble,
        "offloading": step.offload,
        "FPDT's chunks": step.chunks,
    }
    shares = [
        f"{seconds / step.seconds:.0%} {name}"
        for name, seconds in named.items()
        if seconds >= 0.005 * step.seconds
    ]
    return f"{words}, of which {', '.join(shares)}" if shares else words


def _unknown(config: RunConfig, setup: Setup) -> str:
    if setup.device is None:
        return "unknown: resources.gpu_type is not set"
    return f"unknown: the device table has no {config.precision.dtype} peak for {setup.device.name}"


Kind = Literal["last job", "calibration", "one step", "scaled step", "cpu benchmarks"]


@dataclass(frozen=True, slots=True)
class OwnMeasurement:
    """A measured run of nbtrain, from which the constants of nbtrain's engine were set (engines.py)."""

    run: str
    """Description of the model and settings."""
    device: str
    """GPU type, a name in config/arithmetic/devices.py."""
    num_devices: int
    date: str
    tokens_per_second: int
    step_seconds: float
    page: str

    @property
    def words(self) -> str:
        """Description of the run and its results, in one phrase."""
        count = "one" if self.num_devices == 1 else str(self.num_devices)
        return (
            f"{self.run} on {count} {self.device}, {self.date}: {self.tokens_per_second:,} tokens/s, "
            f"{self.step_seconds:g} s per step ({self.page})"
        )


OWN = OwnMeasurement(
    run="125M in bf16 with ZeRO 1",
    device="H200",
    num_devices=1,
    date="2026-11-26",
    tokens_per_second=380_831,
    step_seconds=0.344,
    page="docs/evidence/gpu.md",
)
CPU_BENCHMARKS = "gpt3-tiny and a 14M model on 2 cores, 2026-11-21 (docs/evidence/benchmarks.md)"


@dataclass(frozen=True, slots=True)
class RestsOn:
    """The measurement on which a planned time is based, and how it was applied to the planned devices."""

    kind: Kind
    words: str
    measurement: OwnMeasurement | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the entry `rests_on` of plan.json."""
        return asdict(self)


def rests_on(speed: Speed) -> RestsOn | None:
    """Return the measurement on which a plan at this speed is based; None if the time is not known."""
    setup, rates = speed.setup, speed.rates
    if rates is None:
        return None
    if speed.last_job is not None:
        return RestsOn("last job", "the measured rate of this run's last job")
    # Rates with another source than the table's were measured on this machine.
    measured_here = speed.table_rates is not None and rates.source != speed.table_rates.source
    if not setup.on_gpu:
        if rates.calibration is not None:
            return RestsOn("calibration", "this machine's calibration")
        return RestsOn("cpu benchmarks", f"measured steps of nbtrain: {CPU_BENCHMARKS}")
    return _on_gpu(setup, measured_here)


def _on_gpu(setup: Setup, is_calibrated: bool) -> RestsOn:
    assert setup.device is not None
    name = setup.device.name
    words = f"one measured step of nbtrain: {OWN.words}"
    several = setup.world_size > OWN.num_devices
    if is_calibrated:
        return RestsOn("calibration", f"this machine's calibration; for nbtrain's kernels, {words}", OWN)
    if name == OWN.device:
        if several:
            words += f"; nbtrain has not been measured on several {name} GPUs"
        return RestsOn("one step", words, OWN)
    words += (
        f"; nbtrain has not been measured on {name}, so this step was scaled by the datasheets of both "
        "GPUs and by the fraction of the datasheet that published runs of other programs reached"
    )
    return RestsOn("scaled step", words, OWN)
