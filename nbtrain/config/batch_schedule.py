"""Batch size of each step, constant or ramped up as in Megatron. Converts steps to samples and tokens.

Megatron's `--rampup-batch-size start increment samples` (num_microbatches_calculator.py): the batch is start
+ floor(consumed / (samples / num_increments)) * increment, until it reaches the global batch size. Its
successor `--step-batch-size-schedule "0:16 2.4B:320"` lists each batch size with the number of tokens from
which it applies. A threshold that is not a whole number of sequences is rounded down.
"""

import bisect
import functools
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Rampup:
    """A batch-size ramp-up: its first batch size, its increment and its length, all in sequences."""

    start_batch_size: int
    batch_size_increment: int
    ramp_samples: int


@dataclass(frozen=True)
class StepSizes:
    """Batch sizes of a step schedule.

    `parts` holds (first sample, batch size) of each part of a run, ascending. The first part begins at sample
    0.
    """

    parts: tuple[tuple[int, int], ...]

    @classmethod
    def parse(cls, text: str, seq_length: int) -> "StepSizes":
        """Parse "0:16 2.4B:320 12B:1536", with thresholds in tokens; the schema has checked the format."""
        pairs = (entry.split(":") for entry in text.split())
        return cls(tuple((_tokens(threshold) // seq_length, int(size)) for threshold, size in pairs))

    @property
    def ramp_samples(self) -> int:
        """Number of samples before the batch reaches its last size."""
        return self.parts[-1][0]

    def size_at(self, consumed_samples: int) -> int:
        """Return the number of sequences in the step that starts after `consumed_samples`."""
        return self.parts[bisect.bisect_right(self.parts, consumed_samples, key=lambda part: part[0]) - 1][1]


def _tokens(text: str) -> int:
    powers = {"K": 3, "M": 6, "B": 9, "T": 12}
    return int(Fraction(text.rstrip("KMBT")) * 10 ** powers.get(text[-1], 0))


@dataclass(frozen=True)
class BatchSchedule:
    """Batch sizes of all steps of a run.

    Every step has its full batch size, so the tokens of all steps may be more than train_tokens.
    """

    global_batch_size: int
    seq_length: int
    train_tokens: int
    rampup: Rampup | StepSizes | None = None

    def size_at(self, consumed_samples: int) -> int:
        """Return the number of sequences in the step that starts after `consumed_samples`."""
        ramp = self.rampup
        if ramp is None or consumed_samples >= ramp.ramp_samples:
            return self.global_batch_size
        if isinstance(ramp, StepSizes):
            return ramp.size_at(consumed_samples)
        increments = (self.global_batch_size - ramp.start_batch_size) // ramp.batch_size_increment
        if increments <= 0:
            return self.global_batch_size
        samples_per_increment = ramp.ramp_samples / increments
        passed = int(consumed_samples / samples_per_increment)
        return min(ramp.start_batch_size + passed * ramp.batch_size_increment, self.global_batch_size)

    def samples_after(self, step: int) -> int:
        """Return the number of sequences consumed after `step` steps."""
        steps, samples, sizes = _stretches(self)
        number = bisect.bisect_right(steps, step) - 1
        return samples[number] + (step - steps[number]) * sizes[number]

    def step_at(self, consumed_samples: int) -> int:
        """Return the number of complete steps within `consumed_samples`: the inverse of samples_after."""
        steps, samples, sizes = _stretches(self)
        number = bisect.bisect_right(samples, consumed_samples) - 1
        return steps[number] + (consumed_samples - samples[number]) // sizes[number]

    def tokens_after(self, step: int) -> int:
        """Return the number of tokens consumed after `step` steps."""
        return self.samples_after(step) * self.seq_length

    def sizes(self, num_steps: int) -> list[tuple[int, int]]:
        """Return (batch size, number of steps with it) of each part of the first `num_steps` steps."""
        steps, _, sizes = _stretches(self)
        ends = [*steps[1:], num_steps]
        parts = zip(steps, ends, sizes)
        return [(size, min(end, num_steps) - first) for first, end, size in parts if first < num_steps]

    @property
    def total_steps(self) -> int:
        """Number of steps needed to reach train_tokens, with a complete last step."""
        wanted = -(-self.train_tokens // self.seq_length)
        steps = self.step_at(wanted)
        return steps + (self.samples_after(steps) < wanted)

    @property
    def total_samples(self) -> int:
        """Number of sequences in total_steps."""
        return self.samples_after(self.total_steps)


@functools.lru_cache(maxsize=64)
def _stretches(schedule: BatchSchedule) -> tuple[list[int], list[int], list[int]]:
    """Return the stretches of consecutive steps with the same batch size.

    The result is three lists: the first step of each stretch, the number of samples before it, and its batch
    size. The last stretch has no end. Steps are not listed one by one, because a ramp may be arbitrarily
    long.
    """
    steps, samples, sizes = [0], [0], [schedule.size_at(0)]
    while schedule.rampup and samples[-1] < schedule.rampup.ramp_samples:
        end = _end_of_size(schedule, schedule.rampup, samples[-1])
        taken = -(-(end - samples[-1]) // sizes[-1])
        steps.append(steps[-1] + taken)
        samples.append(samples[-1] + taken * sizes[-1])
        sizes.append(schedule.size_at(samples[-1]))
    return steps, samples, sizes


def _end_of_size(schedule: BatchSchedule, ramp: Rampup | StepSizes, consumed_samples: int) -> int:
    """Return the smallest sample count after `consumed_samples` at which the size may change."""
    if isinstance(ramp, StepSizes):
        return min(first for first, _ in ramp.parts if first > consumed_samples)
    # size_at() never decreases along a ramp. Calling it instead of using a formula avoids different rounding.
    size = schedule.size_at(consumed_samples)
    return bisect.bisect_right(range(ramp.ramp_samples), size, consumed_samples, key=schedule.size_at)
