"""Times that a published example gives for its own runs, compared with the plan for the same run.

    published_time(config) -> PublishedTime     found by the run's model, work and layout, not by its name
    compare_published(config, speed, duration)  also explains the difference from the plan

Source: t9k/examples, deepspeed/megatron-gpt, README.md and the platform's tutorial (A100 PCIe). The example's
nine runs train with Megatron-DeepSpeed, which is the engine "upstream" (setup/engines.py).
docs/evidence/plan-accuracy.md compares the planned times with the published times.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any

from nbtrain.base.text import amounts
from nbtrain.config.arithmetic.devices import find_device
from nbtrain.config.schema import RunConfig
from nbtrain.planner.setup.engines import ENGINES
from nbtrain.planner.setup.setup import Setup
from nbtrain.planner.time.duration import DurationEstimate, duration_at
from nbtrain.planner.time.rates import Speed, read_speed

HOUR, DAY = 3600, 86400
SOURCE = "t9k/examples, deepspeed/megatron-gpt, README.md"
PROGRAM = "upstream"


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """The numbers by which a published run is recognized: its model, amount of work and layout."""

    num_layers: int
    hidden_size: int
    num_attention_heads: int
    seq_length: int
    train_tokens: int
    global_batch_size: int
    data_parallel_size: int
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1


@dataclass(frozen=True, slots=True)
class PublishedTime:
    """The time that the example gives for one of its runs."""

    run: str
    """Name of the run in the example, without the suffix of its file."""
    seconds: float | None
    """Published time, as rounded by the example's authors; None if they published no time."""
    devices: str
    gpu_type: str = ""
    """GPU type on which the time was measured, a name in config/arithmetic/devices.py; "" if not known."""
    note: str = ""
    """Reason why the published time cannot belong to the published file; "" if it can."""
    source: str = SOURCE

    @property
    def words(self) -> str:
        """Description of the published time and the devices."""
        if self.seconds is None:
            return f"no time is published for {self.devices}"
        return f"about {self.time} on {self.devices}"

    @property
    def time(self) -> str:
        """The published time with its unit, such as "8 h"; "" if no time was published."""
        if self.seconds is None:
            return ""
        unit, word = (DAY, "d") if self.seconds >= DAY else (HOUR, "h")
        return f"{self.seconds / unit:g} {word}"


_125M = RunIdentity(12, 768, 12, 2048, 2_500_000_000, 256, 1)
_1_3B = RunIdentity(24, 2048, 16, 2048, 26_000_000_000, 512, 4)
_13B = RunIdentity(40, 5120, 40, 2048, 260_000_000_000, 1024, 4, pipeline_parallel_size=4)
_PIPELINE_NOTE = (
    "its file requests ZeRO 2 with a pipeline, which DeepSpeed rejects; the published 2 d are half of the "
    "4 d that are published for 8 GPUs"
)


def _on_pcie(run: str, seconds: int, num_devices: int) -> PublishedTime:
    return PublishedTime(run, seconds, f"{num_devices} A100 PCIe 40GB", "A100-PCIe-40GB")


PUBLISHED: dict[RunIdentity, PublishedTime] = {
    _125M: _on_pcie("gpt-125m", 8 * HOUR, 1),
    replace(_125M, data_parallel_size=2): _on_pcie("gpt-125m-2xdp", 4 * HOUR, 2),
    replace(_125M, data_parallel_size=4): _on_pcie("gpt-125m-4xdp", 2 * HOUR, 4),
    _1_3B: _on_pcie("gpt-1-3b-4xdp", 8 * DAY, 4),
    replace(_1_3B, data_parallel_size=8): _on_pcie("gpt-1-3b-8xdp", 4 * DAY, 8),
    replace(_1_3B, pipeline_parallel_size=4): PublishedTime(
        "gpt-1-3b-4xdp-4xpp", 2 * DAY, "16 A100 40GB", note=_PIPELINE_NOTE
    ),
    _13B: PublishedTime("gpt-13b-4xdp-4xpp", None, "16 A100 80GB"),
    replace(_13B, pipeline_parallel_size=8): PublishedTime("gpt-13b-4xdp-8xpp", None, "32 A100 80GB"),
    replace(_13B, tensor_parallel_size=4): PublishedTime("gpt-13b-4xdp-4xpp-4xtp", None, "64 A100 80GB"),
}


def published_time(config: RunConfig) -> PublishedTime | None:
    """Return the published time of the upstream run with the configuration's model, tokens and layout.

    The result is None if no such time was published, and for a run that stops before its last token, only
    evaluates, or trains adapters.
    """
    model, parallel = config.model, config.parallel
    if config.mode != "full" or config.target_tokens != config.train_tokens or config.lora is not None:
        return None
    if model.position_embedding_type != "learned_absolute" or parallel.sequence_ranks > 1:
        return None
    return PUBLISHED.get(
        RunIdentity(
            model.num_layers,
            model.hidden_size,
            model.num_attention_heads,
            model.seq_length,
            config.train_tokens,
            config.batch.global_batch_size,
            parallel.data_parallel_size,
            parallel.tensor_parallel_size,
            parallel.pipeline_parallel_size,
        )
    )


@dataclass(frozen=True, slots=True)
class PublishedComparison:
    """A published time, and the planned time of the same run in the program that was measured."""

    published: PublishedTime
    planned_seconds: float | None
    """Planned time of the same run in the published program; None if the run's devices are not known.

    It is planned for the run's own devices, not for those of the published time.
    """
    words: str
    """The published time and the reason why it differs from the plan."""

    def to_dict(self) -> dict[str, Any]:
        """Return the entry `published` of plan.json."""
        return asdict(self)


def compare_published(
    config: RunConfig, speed: Speed, duration: DurationEstimate
) -> PublishedComparison | None:
    """Compare a plan with the published time of the same run; return None if no such run was published."""
    published = published_time(config)
    if published is None:
        return None
    by_tables = replace(speed, rates=speed.table_rates, last_job=None, save_seconds=0.0)
    there = duration_at(config, replace(by_tables, setup=replace(speed.setup, engine=PROGRAM)))
    words = f"{published.words} ({published.source})"
    if published.note:
        words += f"; {published.note}"
    if there.seconds is not None and duration.seconds is not None and speed.setup.on_gpu:
        words += f"; {_reason(speed, duration, there)}"
        words += _on_published_device(config, speed.setup, published)
    return PublishedComparison(published, there.seconds, words)


def _reason(speed: Speed, here: DurationEstimate, there: DurationEstimate) -> str:
    """Return a clause with the planned time of the published program, and why nbtrain's time is different.

    `here` is the plan for nbtrain, and `there` the plan for the published program.
    """
    program, ours = ENGINES[PROGRAM], ENGINES[speed.setup.engine]
    assert speed.setup.device is not None and there.seconds is not None
    differences = [
        f"{part} {amounts.duration(seconds)} (nbtrain: {amounts.duration(here.parts[part])})"
        for part, seconds in there.parts.items()
        if part in here.parts and seconds - here.parts[part] >= 0.01 * there.seconds
    ]
    words = (
        "Megatron-DeepSpeed, with which the example trains, is planned to take "
        f"{amounts.duration(there.seconds)} on {speed.setup.device.name}"
    )
    if not differences:
        return words
    waits = here.saves_in_background and not there.saves_in_background
    saving = ", and its training waits while checkpoints are written" if waits else ""
    return (
        f"{words}: its kernels are not fused and move each byte of activations {program.traffic:g} times per "
        f"step (nbtrain's kernels: {ours.traffic:g} times){saving}; parts that take longer than in nbtrain: "
        f"{', '.join(differences)}"
    )


def _on_published_device(config: RunConfig, setup: Setup, published: PublishedTime) -> str:
    """Return a clause with nbtrain's planned time on the type of GPU for which the time was published.

    The result is "" if that type is not known, or if the run is already planned on it.
    """
    device = find_device(published.gpu_type) if published.gpu_type else None
    if device is None or device == setup.device:
        return ""
    speed = read_speed(config, use_measured=False, setup=replace(setup, device=device))
    seconds = duration_at(config, speed).seconds
    assert seconds is not None
    return f"; on {device.name}, nbtrain is planned to take {amounts.duration(seconds)}"
