"""The report of a twin: compares curves, and lists the checks with their numbers.

Tolerances: even in fp32, two layouts compute sums in different orders, which changes the last bits. A loss of
6 has a resolution of 5e-7, and a few training steps accumulate several such differences. 16-bit formats round
each weight, activation and gradient to a relative precision of 2^-9 (bf16) or 2^-12 (fp16). A wrong scale, a
missing gradient or a misplaced activation causes differences of 1e-2 and more (ZeRO 0 in bf16: 4.6e-2;
sequence parallelism with the pipeline's defaults: 1.2e-1).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nbtrain.base import files
from nbtrain.base.printing.report import Facts, Record, Report, Result, Table
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text import amounts

REPORT_JSON = "twin.json"
SCHEMA_VERSION = 1

# {number format: (largest loss difference in nats, largest relative gradient-norm difference)}
TOLERANCES = {"fp32": (1e-5, 1e-4), "autocast": (3e-3, 3e-2), "bf16": (3e-3, 3e-2), "fp16": (3e-3, 3e-2)}

Outcome = Literal["passed", "failed", "skipped"]
MARKS: dict[str, str] = {"passed": "ok", "failed": "FAILED", "skipped": "skipped"}


@dataclass
class Check:
    """A check and its outcome."""

    name: str
    outcome: Outcome
    message: str
    """Result in one line, with numbers and, for a failed run, where its logs are."""
    values: dict[str, float] = field(default_factory=dict)
    """Numbers of the check by name, such as differences, tolerances, counts and seconds."""


@dataclass(frozen=True)
class Curve:
    """A run's loss and gradient norm at each step and its validation losses, with all bits."""

    losses: Mapping[int, float]
    norms: Mapping[int, float]
    validation: Mapping[int, float]

    @classmethod
    def of(cls, run: RunDir) -> "Curve":
        """Read a run's curve from the events of all its jobs.

        A step that was trained twice has its newest value.
        """
        losses, norms, validation = {}, {}, {}
        for job_id in run.job_ids():
            for event in read_events(run.job(job_id)):
                if event["kind"] == "trace":
                    losses[event["step"]] = float.fromhex(event["loss"])
                    norms[event["step"]] = float.fromhex(event["grad_norm"])
                elif event["kind"] == "validation":
                    validation[event["step"]] = event["loss"]
        return cls(losses, norms, validation)

    @property
    def points(self) -> dict[str, list[float]]:
        """Points of the plotted curves: {"step", "loss", "grad_norm"}."""
        steps = sorted(self.losses)
        return {
            "step": [float(step) for step in steps],
            "loss": [self.losses[step] for step in steps],
            "grad_norm": [self.norms[step] for step in steps],
        }


def check_trained(curve: Curve, steps: int) -> Check:
    """Check that every step was trained and that no loss or gradient norm is NaN or Inf."""
    values = {"steps": float(len(curve.losses))}
    if sorted(curve.losses) != list(range(1, steps + 1)):
        return Check("train", "failed", f"{len(curve.losses)} of {steps} steps were trained", values)
    for step, loss in curve.losses.items():
        if not (math.isfinite(loss) and math.isfinite(curve.norms[step])):
            return Check("train", "failed", f"the loss or gradient norm of step {step} is NaN or Inf", values)
    message = f"{amounts.counted(steps, 'step')}, loss {curve.losses[1]:.4f} -> {curve.losses[steps]:.4f}"
    return Check("train", "passed", message, values)


def check_bitwise(name: str, straight: Curve, resumed: Curve, stopped_at: int) -> Check:
    """Check that both runs have bit-exact losses, gradient norms and validation losses at the same steps."""
    nouns = {"losses": "losses", "norms": "gradient norms", "validation": "validation losses"}
    for name_of_curve, what in nouns.items():
        ours, theirs = getattr(resumed, name_of_curve), getattr(straight, name_of_curve)
        if sorted(ours) != sorted(theirs):
            message = (
                f"{what} exist for steps {sorted(ours)}, but in the uninterrupted run for {sorted(theirs)}"
            )
            return Check(name, "failed", message)
        for step in sorted(ours):
            if ours[step] != theirs[step] and not (math.isnan(ours[step]) and math.isnan(theirs[step])):
                message = (
                    f"{what} differ, first at step {step}: {ours[step]!r} when stopped at step {stopped_at} "
                    f"and resumed, {theirs[step]!r} without interruption"
                )
                return Check(name, "failed", message, {"difference": abs(ours[step] - theirs[step])})
    message = f"stopped at step {stopped_at} and resumed: {len(resumed.losses)} steps are bit-exact"
    return Check(name, "passed", message, {"steps": len(resumed.losses)})


def check_close(name: str, ours: Curve, reference: Curve, number_format: str, words: str) -> Check:
    """Check that losses, gradient norms and validation losses match the reference within the tolerances.

    `words` describes the comparison in the check's message.
    """
    loss_tolerance, norm_tolerance = TOLERANCES[number_format]
    if not ours.losses or not ours.losses.keys() <= reference.losses.keys():
        return Check(
            name,
            "failed",
            f"trained steps {sorted(ours.losses)}, but the reference has steps {sorted(reference.losses)}",
        )
    validated = [
        (step, loss) for step, loss in sorted(ours.validation.items()) if step in reference.validation
    ]
    differences = {
        "loss": {step: abs(loss - reference.losses[step]) for step, loss in ours.losses.items()},
        "validation_loss": {step: abs(loss - reference.validation[step]) for step, loss in validated},
        "relative_grad_norm": {
            step: abs(norm / reference.norms[step] - 1) for step, norm in ours.norms.items()
        },
    }
    limits = dict(zip(differences, (loss_tolerance, loss_tolerance, norm_tolerance)))
    worst = {key: _largest(by_step) for key, by_step in differences.items()}
    figures = "largest differences: " + ", ".join(
        f"{key.replace('_', ' ')} {value:.1e} (limit {limits[key]:.0e})" for key, value in worst.items()
    )
    values = worst | {f"{key}_tolerance": limit for key, limit in limits.items()}
    for key, by_step in differences.items():
        # `not <=` instead of `>`, so that a difference of NaN is too large.
        if broken := [step for step in sorted(by_step) if not by_step[step] <= limits[key]]:
            found = f"{key.replace('_', ' ')} differs by {by_step[broken[0]]:.1e} at step {broken[0]}"
            message = f"{words}: {found}; {figures}"
            return Check(name, "failed", message, values)
    return Check(name, "passed", f"{words}; {figures}", values)


def _largest(differences: Mapping[int, float]) -> float:
    """Return the largest value, or NaN if there is one (max() may ignore NaN)."""
    return max(differences.values(), key=lambda value: math.inf if math.isnan(value) else value, default=0.0)


def check_export(name: str, answer: Mapping[str, Any] | None, curve: Curve, number_format: str) -> Check:
    """Check that one process with the exported weights reaches the run's last validation loss.

    `answer` is what that process wrote; None if it wrote nothing.
    """
    tolerance, _ = TOLERANCES[number_format]
    if answer is None:
        return Check(name, "failed", "the exporting process wrote no result")
    ours, theirs = answer["validation_loss"], curve.validation[max(curve.losses)]
    difference = abs(ours - theirs)
    size = f"{answer['num_tensors']} tensors, {answer['num_parameters']:,} parameters in one file"
    losses = f"validation loss {ours:.6f} in one process, {theirs:.6f} in the run"
    message = f"{size}; {losses}; the losses differ by {difference:.1e}, at most {tolerance:.0e} is allowed"
    values = {"difference": difference, "tolerance": tolerance, "bytes": answer["bytes"]}
    return Check(name, "passed" if difference <= tolerance else "failed", message, values)


@dataclass(repr=False)
class TwinReport(Result, Record):
    """The content of twin.json: what the twin proved about a run's layout, and what it did not."""

    run: str
    twin: str
    ranks: int
    layout: str
    folded: dict[str, tuple[int, int]]
    number_format: str
    checks: list[Check]
    not_proven: list[dict[str, str]]
    curves: dict[str, dict[str, list[float]]]
    """{name of a run: {"step", "loss", "grad_norm"}}, for plotting."""
    seconds: float
    created_at: float
    versions: dict[str, str | None]
    cores: int
    schema_version: int = SCHEMA_VERSION
    derived = ("passed",)

    @property
    def passed(self) -> bool:
        """Whether every check passed. A skipped check counts as not passed."""
        return all(check.outcome == "passed" for check in self.checks)

    def write(self, run: RunDir) -> None:
        """Write twin.json to the twin's run directory."""
        files.write_json(run.path / REPORT_JSON, self.to_dict())

    def as_report(self) -> Report:
        """Return a report of the verdict, what was scaled down, the checks, and what was not proven."""
        verdict = "PASSED" if self.passed else "FAILED"
        folded = {
            key: f"{whole} in the run, {small} in the twin" for key, (whole, small) in self.folded.items()
        }
        checks = [(MARKS[check.outcome], check.name, check.message) for check in self.checks]
        missing = [
            (entry["what"], f"{entry['why']}; the twin uses {entry['instead']}") for entry in self.not_proven
        ]
        return Report(
            f"Twin of {self.run}: {verdict} in {self.seconds:.0f} s. {self.layout}, {self.number_format}.",
            [
                Facts(folded, "Scaled down"),
                Table(("", "", ""), checks, "Checks"),
                Facts(missing, "Not proven here"),
            ],
        )
