"""Expected time and cost of a run with interruptions, and the save interval with the shortest expected time.

    T(interval)    = N x M x exp(R / M) x (exp((tau + delta) / M) - 1)       Daly 2006, equation 20
    best tau       solves (1 - tau / M) x exp(tau / M) = exp(-delta / M)     where the derivative is 0

    M       mean seconds between two interruptions, which are independent of each other (a Poisson process)
    tau     seconds of training between two saves; the run consists of N such segments
    delta   seconds for which a save stops the training
    R       seconds from an interruption until the ranks train again, plus the time that a save takes in the
            background, because a save that is not complete is lost

For small delta / M the best tau is near sqrt(2 x delta x M): J. W. Young, "A first order approximation to the
optimum checkpoint interval", CACM 17 (1974). The equation and the better approximation: J. T. Daly, "A higher
order estimate of the optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22
(2006), doi:10.1016/j.future.2004.11.016.

If a spot machine gives notice before it is reclaimed (backend.preemption_notice), the run saves first, so
that the interruption costs one save and a restart, but repeats no step. While the run waits for new spot
machines (resources.spot_wait_minutes), it cannot be interrupted. W seconds of waiting after each interruption
therefore multiply T by 1 + W / M.

Each interruption is assumed to repeat the steps since the newest checkpoint in the run directory. A run that
also saves on its nodes' local disks (checkpoint.local_dir) repeats fewer steps, unless a node loses its disk.
How often a node loses its disk is not known, so a second time is estimated for interruptions in which no disk
is lost.
"""

import math
from dataclasses import asdict, dataclass
from statistics import NormalDist, fmean
from typing import Any

from nbtrain.base.errors import RecordError
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text import amounts
from nbtrain.config.arithmetic.saves import local_saves, shared_saves
from nbtrain.config.schema import RunConfig
from nbtrain.planner.budget.cost import CostEstimate, Price
from nbtrain.planner.budget.disk import DiskEstimate
from nbtrain.planner.time.duration import DurationEstimate

DAY_SECONDS = 86_400.0

# Unexpected interruptions of Llama 3 405B: 419 in 54 days on 16,384 H100 (arXiv:2407.21783, table 5).
# OPT-175B had about 105 in two months on 992 A100 (arXiv:2205.01068, section 2.5): 3.7 times as many per GPU
# hour.
GPU_HOURS_PER_FAILURE = 54 * 24 * 16_384 / 419
# Time from a failure to the next step, without reading the checkpoint: scheduler, start of the processes,
# NCCL. The values have no source. After its first restart, a run uses its own measurement.
ASSUMED_RESTART_SECONDS = {"gpu": 300.0, "cpu": 15.0}
# A segment that is this many times longer than M would need exp(20) = 500 million attempts.
MOST_EXPONENT = 20.0
# Fraction of runs that end within the shown range of times.
BAND = 0.8
# If fewer interruptions than this are expected, the plan omits the section, unless the run uses spot machines
# or sets the number of interruptions.
FEWEST_WORTH_SAYING = 1.0


@dataclass(frozen=True, slots=True)
class Segment:
    """Mean and variance of the time that a segment takes, in seconds and seconds squared.

    A segment is the training between two saves, plus one save. After each interruption, the run restarts and
    repeats the segment from its beginning.
    """

    mean: float
    variance: float


def segment_time(
    seconds: float, restart_seconds: float, mean_between_seconds: float, waiting_seconds: float = 0.0
) -> Segment:
    """Return the distribution of the time that a segment of `seconds` takes, interruptions included.

    The segment is done when `seconds` have passed without an interruption. The mean is (M + W) x exp(R / M) x
    (exp(seconds / M) - 1). Each interruption is followed by `waiting_seconds` W, in which no interruption can
    happen, and then by a restart, which starts again if it is interrupted. Both moments are infinite beyond
    MOST_EXPONENT, because such a segment practically never ends.
    """
    between = mean_between_seconds
    if (seconds + restart_seconds) / between > MOST_EXPONENT:
        return Segment(math.inf, math.inf)
    again, again_square = _pause(restart_seconds, waiting_seconds, between)
    mean, square = _until_uninterrupted(seconds, again, again_square, between)
    return Segment(mean, max(0.0, square - mean * mean))


def _pause(restart_seconds: float, waiting_seconds: float, between: float) -> tuple[float, float]:
    """Return the mean and the mean square of the seconds from an interruption to the end of the restart.

    `between` is the mean number of seconds between two interruptions.
    """
    wait = waiting_seconds
    mean, square = _until_uninterrupted(restart_seconds, wait, wait * wait, between)
    return wait + mean, wait * wait + 2 * wait * mean + square


def _until_uninterrupted(
    seconds: float, pause_mean: float, pause_square: float, between: float
) -> tuple[float, float]:
    """Return the mean and the mean square of the time until `seconds` have passed without an interruption.

    Each interruption is followed by a pause whose mean is `pause_mean` and whose mean square is
    `pause_square`. `between` is the mean number of seconds between two interruptions.
    """
    ratio = seconds / between
    success, failure = math.exp(-ratio), -math.expm1(-ratio)
    if not failure:
        return seconds, seconds * seconds
    # Mean and mean square of the time at which an interruption comes, if it comes before `seconds`. For small
    # ratios, their power series is used, because the differences below would lose all digits.
    if ratio < 1e-3:
        lost, lost_square = seconds * (1 / 2 - ratio / 12), seconds * seconds * (1 / 3 - ratio / 12)
    else:
        lost = between - seconds * success / failure
        rest = success * (seconds * seconds + 2 * seconds * between + 2 * between * between)
        lost_square = (2 * between * between - rest) / failure
    again = lost + pause_mean
    again_square = lost_square + 2 * lost * pause_mean + pause_square
    mean = seconds + failure / success * again
    square = seconds * seconds + failure / success * (again_square + 2 * again * mean)
    return mean, square


def best_training_seconds(save_seconds: float, mean_between_seconds: float) -> float:
    """Return the seconds of training between two saves with the shortest expected time; 0 if saves are free.

    Solves (1 - x) x exp(x) = exp(-delta / M) for x = tau / M by bisection. The left side decreases from 1 to
    0 as x grows from 0 to 1, so there is one solution.
    """
    wanted = math.exp(-save_seconds / mean_between_seconds)
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if (1 - middle) * math.exp(middle) > wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2 * mean_between_seconds


@dataclass(frozen=True)
class Interruptions:
    """Expected interruptions of a run, and the time and money that they cost."""

    per_day: float
    """Interruptions per day: machine failures and, on spot machines, reclaimed machines."""
    basis: str
    """Source of per_day, as a phrase."""
    expected: float
    """Expected number of interruptions during the run."""
    expected_sudden: float
    """Expected number of interruptions that leave the run no time to save."""
    gives_notice: bool
    """Whether the run saves before its spot machines are reclaimed (backend.preemption_notice)."""
    save_interval_steps: int
    best_save_interval_steps: int
    step_seconds: float
    """Seconds per step, including its share of validations and of saves on local disks."""
    save_seconds: float
    """Seconds for which a save stops the training."""
    lost_save_seconds: float
    """Further seconds until a save is complete on disk, while the training continues."""
    restart_seconds: float
    restart_basis: str
    undisturbed_seconds: float
    """Seconds that the run takes without interruptions."""
    seconds: float
    """Expected seconds with save_interval_steps; infinite if the run would practically never end."""
    low_seconds: float
    """Lower bound, in seconds, of the range that contains the times of 8 of 10 runs."""
    high_seconds: float
    """Upper bound, in seconds, of the range that contains the times of 8 of 10 runs."""
    best_seconds: float
    """Expected seconds with best_save_interval_steps."""
    local_interval_steps: int | None = None
    """Mean number of steps between checkpoints on the nodes' local disks.

    None without checkpoint.local_dir, and on spot machines, which lose their disks when they are reclaimed.
    """
    local_seconds: float | None = None
    """Expected seconds if no interruption destroys a node's local disk.

    None in the same cases as local_interval_steps.
    """
    on_demand_money: float | None = None
    """Expected cost on on-demand machines, at the usual price and failure rate; None without a price."""
    spot_money: float | None = None
    """Expected cost on spot machines at their usual price; None without a price or a number of interruptions.
    """
    spot_price: Price | None = None
    break_even_per_day: float | None = None
    """Interruptions per day above which spot machines cost more than on-demand ones; None if unknown."""
    currency: str = ""

    def rows(self) -> dict[str, str]:
        """Return the rows of the plan's section "Interruptions"."""
        often = f"{amounts.amount(self.per_day)} per day ({self.basis})"
        rows = {
            "interruptions": f"{often}; about {amounts.amount(self.expected)} in the whole run"
            if math.isfinite(self.expected)
            else often,
            "restart": f"{amounts.elapsed(self.restart_seconds)} ({self.restart_basis})",
            "save interval": f"{self._interval(self.save_interval_steps)}; shortest expected time with "
            f"{self._interval(self.best_save_interval_steps)}",
            "expected time": self._time_words(),
        }
        if self.local_interval_steps is not None:
            rows["nodes' disks"] = self._local_words()
        if self.gives_notice:
            rows["notice"] = "the run saves before its spot machines are reclaimed, so it repeats no steps"
        if self.on_demand_money is not None:
            rows["on demand"] = f"about {amounts.amount(self.on_demand_money)} {self.currency}"
        if self.spot_price is not None:
            rows["spot"] = self._spot_words()
        return rows

    def _interval(self, steps: int) -> str:
        return f"{amounts.counted(steps, 'step')} ({amounts.elapsed(steps * self.step_seconds)})"

    def _time_words(self) -> str:
        undisturbed = amounts.duration(self.undisturbed_seconds)
        if not math.isfinite(self.seconds):
            return f"never ends: interrupted before it can save ({undisturbed} without interruptions)"
        return (
            f"{amounts.duration(self.seconds)} ({amounts.duration(self.low_seconds)} to "
            f"{amounts.duration(self.high_seconds)} in 8 of 10 cases); {undisturbed} without interruptions"
        )

    def _local_words(self) -> str:
        assert self.local_interval_steps is not None and self.local_seconds is not None
        known = math.isfinite(self.local_seconds)
        time = amounts.duration(self.local_seconds) if known else "never ends, even"
        interval = self._interval(self.local_interval_steps)
        return f"{time} if no interruption destroys a local disk, where checkpoints are {interval} apart"

    def _spot_words(self) -> str:
        assert self.spot_price is not None
        if self.spot_money is None:
            words = f"{self.spot_price.usual:.2f} {self.currency} per GPU hour"
        else:
            ratios = (
                self.spot_price.low / self.spot_price.usual,
                self.spot_price.high / self.spot_price.usual,
            )
            low, high = (amounts.amount(self.spot_money * ratio) for ratio in ratios)
            words = f"about {amounts.amount(self.spot_money)} {self.currency}"
            words += f" ({low} to {high})" if low != high else ""
        if self.break_even_per_day is None:
            return words
        if not self.break_even_per_day:
            return f"{words}; more expensive than on-demand machines, even without interruptions"
        break_even = amounts.amount(self.break_even_per_day)
        noun = "interruption" if break_even == "1" else "interruptions"
        return f"{words}; cheaper than on-demand machines up to {break_even} {noun} per day"

    def to_dict(self) -> dict[str, Any]:
        """Return the estimate for plan.json; infinite times are null."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }


@dataclass(frozen=True)
class _Work:
    """The quantities of a run that Daly's model uses."""

    steps: int
    step_seconds: float
    save_seconds: float
    lost_save_seconds: float
    restart_seconds: float
    waiting_seconds: float
    """Seconds from an interruption until new machines are available; this time is not paid for."""

    def time(self, interval: int, per_second: float, noticed_per_second: float = 0.0) -> Segment:
        """Return the distribution of the whole run's time with a save interval in steps.

        `per_second` is the rate of interruptions without notice. `noticed_per_second` is the rate of
        interruptions that are announced early enough to save; each of them costs a save and a restart.
        """
        segments, rest = divmod(self.steps, interval)
        sizes = [(segments, interval), (1 if rest else 0, rest)]
        restart = self.restart_seconds + self.lost_save_seconds
        mean = variance = 0.0
        for count, steps in sizes:
            if not count:
                continue
            seconds = steps * self.step_seconds + self.save_seconds
            if per_second:
                one = segment_time(seconds, restart, 1 / per_second, self.waiting_seconds)
                mean, variance = mean + count * one.mean, variance + count * one.variance
            else:
                mean += count * seconds
        if noticed_per_second and restart * noticed_per_second > MOST_EXPONENT:
            return Segment(math.inf, math.inf)
        if noticed_per_second:
            expected, save = noticed_per_second * mean, self.save_seconds
            pause, square = _pause(restart, self.waiting_seconds, 1 / noticed_per_second)
            mean += expected * (save + pause)
            variance += expected * (save * save + 2 * save * pause + square)
        return Segment(mean, variance)

    def best_interval(self, per_second: float) -> int:
        """Return the save interval, in steps, with the shortest expected time.

        It is at most the length of the run, and at least as long as a save in the background, because saves
        do not overlap. `per_second` is the rate of interruptions without notice.
        """
        if not per_second:
            return self.steps
        exact = best_training_seconds(self.save_seconds, 1 / per_second) / self.step_seconds
        least = max(1, math.ceil(self.lost_save_seconds / self.step_seconds))
        candidates = {min(max(number, least), self.steps) for number in (math.floor(exact), math.ceil(exact))}
        return min(sorted(candidates), key=lambda interval: self.time(interval, per_second).mean)


def estimate_interruptions(
    config: RunConfig, duration: DurationEstimate, disk: DiskEstimate, cost: CostEstimate
) -> Interruptions | None:
    """Return the expected interruptions of a run and their cost.

    The result is None if the plan has no estimate of the time, or if the run saves no checkpoints. It is also
    None if less than one interruption is expected, unless the run uses spot machines or sets the number of
    interruptions.
    """
    checkpoint, steps = config.checkpoint, config.train_steps
    if config.mode != "full" or not duration.seconds or duration.save_seconds is None or not steps:
        return None
    resources, on_spot = config.resources, config.resources.capacity == "spot"
    per_day, basis = _per_day(config, cost)
    days = duration.seconds / DAY_SECONDS
    if resources.interruptions_per_day is None and not on_spot and per_day * days < FEWEST_WORTH_SAYING:
        return None
    saves = shared_saves(config)
    stall = duration.parts.get("checkpoints", 0.0) / saves
    step_seconds = (duration.seconds - stall * saves) / steps
    if not duration.saves_in_background and checkpoint.local_dir is None:
        stall = duration.save_seconds  # This is the measured time, if a save has been measured.
    # Assume that the run directory is read as fast as it is written.
    reading = max(0.0, duration.save_seconds - duration.local_save_seconds)
    restart_seconds, restart_basis = _restart(config, reading, disk)
    work = _Work(
        steps,
        step_seconds,
        stall,
        max(0.0, duration.save_seconds - stall),
        restart_seconds,
        60.0 * resources.spot_wait_minutes if on_spot else 0.0,
    )
    failures = _failures_per_day(cost, duration) / DAY_SECONDS
    gives_notice = on_spot and bool(config.backend.preemption_notice)
    taken = max(0.0, per_day / DAY_SECONDS - failures) if gives_notice else 0.0
    sudden = per_day / DAY_SECONDS - taken
    time = work.time(checkpoint.save_interval_steps, sudden, taken)
    # Interruptions happen only while the run has machines, so the waiting time does not count.
    used = _paid(work).time(checkpoint.save_interval_steps, sudden, taken)
    best = work.best_interval(sudden)
    low, high = _band(time, work.time(checkpoint.save_interval_steps, 0.0).mean)
    return Interruptions(
        per_day=per_day,
        basis=basis,
        expected=per_day * used.mean / DAY_SECONDS,
        expected_sudden=sudden * used.mean,
        gives_notice=gives_notice,
        save_interval_steps=checkpoint.save_interval_steps,
        best_save_interval_steps=best,
        step_seconds=step_seconds,
        save_seconds=stall,
        lost_save_seconds=work.lost_save_seconds,
        restart_seconds=restart_seconds,
        restart_basis=restart_basis,
        undisturbed_seconds=duration.seconds,
        seconds=time.mean,
        low_seconds=low,
        high_seconds=high,
        best_seconds=work.time(best, sudden, taken).mean,
        **({} if on_spot else _with_local(config, duration, disk, sudden)),
        **_prices(config, cost, duration, work, per_day, failures, gives_notice),
    )


def _with_local(
    config: RunConfig, duration: DurationEstimate, disk: DiskEstimate, per_second: float
) -> dict[str, Any]:
    """Return the fields of Interruptions about checkpoints on local disks; {} without checkpoint.local_dir.

    Checkpoints on local disks are saved more often, and read faster, than those in the run directory.
    """
    if config.checkpoint.local_dir is None:
        return {}
    assert duration.seconds is not None
    saves = shared_saves(config) + local_saves(config)
    stall = sum(duration.parts.get(part, 0.0) for part in ("checkpoints", "local checkpoints")) / saves
    seconds = duration.local_save_seconds
    restart, _ = _restart(config, seconds, disk)
    step_seconds = (duration.seconds - stall * saves) / config.train_steps
    work = _Work(config.train_steps, step_seconds, stall, max(0.0, seconds - stall), restart, 0.0)
    interval = max(1, round(config.train_steps / saves))
    return {"local_interval_steps": interval, "local_seconds": work.time(interval, per_second).mean}


def _failures_per_day(cost: CostEstimate, duration: DurationEstimate) -> float:
    """Return the expected failures of on-demand machines per day, from their GPU hours; 0 for CPUs."""
    if not cost.device_hours or not duration.seconds:
        return 0.0
    return cost.device_hours / GPU_HOURS_PER_FAILURE / (duration.seconds / DAY_SECONDS)


def _per_day(config: RunConfig, cost: CostEstimate) -> tuple[float, str]:
    resources = config.resources
    if resources.interruptions_per_day is not None:
        return resources.interruptions_per_day, "set by resources.interruptions_per_day"
    if not cost.device_hours:
        return 0.0, "the failure rate of CPUs is not known"
    basis = f"assumed: one per {GPU_HOURS_PER_FAILURE:,.0f} GPU hours, as in the training of Llama 3 405B"
    if resources.capacity == "spot":
        basis += "; it is not known how often spot machines are reclaimed"
    return config.paid_gpus * 24 / GPU_HOURS_PER_FAILURE, basis


def _restart(config: RunConfig, reading: float, disk: DiskEstimate) -> tuple[float, str]:
    """Return the seconds from an interruption to the next step, and their source.

    `reading` is the planned time for reading a checkpoint, in seconds.
    """
    if measured := measured_restart_seconds(RunDir.named(config.name)):
        return measured, "measured in earlier restarts of this run"
    start = ASSUMED_RESTART_SECONDS[config.resources.device]
    size = amounts.size(disk.checkpoint_bytes)
    return start + reading, f"assumed: {start:g} s, plus the time to read {size} at the disk's write rate"


def measured_restart_seconds(run: RunDir) -> float:
    """Return the mean seconds from the end of an attempt to the first step of the next attempt.

    All jobs of the run count; pauses and waits for devices do not. Returns 0 if no job was restarted.
    """
    measured = []
    for job_id in run.job_ids():
        try:
            record = JobRecord.read(run.job(job_id).job_json)
        except RecordError:
            continue  # The record is damaged; `nbtrain status` reports it.
        if record is None:
            continue
        for before, after in zip(record.attempts, record.attempts[1:]):
            if before.ended_at is not None and after.running_at is not None:
                waited = after.paused_seconds - before.paused_seconds
                measured.append(after.running_at - before.ended_at - waited)
    return max(0.0, fmean(measured)) if measured else 0.0


def _band(time: Segment, least: float) -> tuple[float, float]:
    """Return (lower, upper) bounds, in seconds, of the times that the middle 80 % (BAND) of runs take.

    The times are assumed to be normally distributed, because a run has many segments. `least` is the time
    without interruptions. No run is faster, so the lower bound is at least `least`.
    """
    if not math.isfinite(time.mean):
        return least, math.inf
    half = NormalDist().inv_cdf((1 + BAND) / 2) * math.sqrt(time.variance)
    return max(least, time.mean - half), time.mean + half


def _prices(
    config: RunConfig,
    cost: CostEstimate,
    duration: DurationEstimate,
    work: _Work,
    per_day: float,
    failures: float,
    gives_notice: bool,
) -> dict[str, Any]:
    """Return the fields of Interruptions about the cost of on-demand and spot machines.

    The result is {} on CPUs, or if neither price is known. Waiting for machines costs no money, so it affects
    only the time at which the run ends.
    """
    price, spot = cost.on_demand, cost.spot
    assert duration.seconds is not None
    if not cost.device_hours or (price is None and spot is None):
        return {}
    devices = cost.device_hours / (duration.seconds / 3600)
    interval, paid = config.checkpoint.save_interval_steps, _paid(work)

    def hours(sudden: float, noticed: float = 0.0) -> float:
        return devices * paid.time(interval, sudden, noticed).mean / 3600

    def spot_hours(often: float) -> float:
        taken = max(0.0, often / DAY_SECONDS - failures)
        return hours(failures, taken) if gives_notice else hours(failures + taken)

    found: dict[str, Any] = {"currency": (price or spot).currency}  # type: ignore[union-attr]
    is_given = config.resources.interruptions_per_day is not None
    on_spot = config.resources.capacity == "spot"
    rate = failures if on_spot or not is_given else per_day / DAY_SECONDS
    money = hours(rate) * price.usual if price is not None else None
    if money is not None and math.isfinite(money):
        found["on_demand_money"] = money
    if spot is None:
        return found
    found["spot_price"] = spot
    if on_spot and is_given and math.isfinite(spent := spot_hours(per_day) * spot.usual):
        found["spot_money"] = spent
    if money is not None and math.isfinite(money):
        found["break_even_per_day"] = _break_even(lambda often: spot_hours(often) * spot.usual, money)
    return found


def _paid(work: _Work) -> _Work:
    return _Work(
        work.steps,
        work.step_seconds,
        work.save_seconds,
        work.lost_save_seconds,
        work.restart_seconds,
        waiting_seconds=0.0,
    )


def _break_even(money_at: Any, limit: float) -> float:
    """Return the interruptions per day at which spot machines cost as much as `limit`.

    `money_at` is a function that returns the cost of spot machines for a number of interruptions per day.
    Returns 0 if they cost at least `limit` even without interruptions.
    """
    low, high = 0.0, 1.0
    if money_at(0.0) >= limit:
        return 0.0
    while money_at(high) < limit and high < 1e6:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if money_at(middle) < limit else (low, middle)
    return low
