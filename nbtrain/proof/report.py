"""The report of a twin: compared curves, and checks with their numbers.

Tolerances. In fp32, sums are computed in a different order, which changes the last bits; a loss of 6 has a
resolution of 5e-7, and a few steps of training accumulate some of these differences. 16-bit formats round
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

# format: (largest difference of a loss in nats, largest relative difference of a gradient norm)
TOLERANCES = {"fp32": (1e-5, 1e-4), "autocast": (3e-3, 3e-2), "bf16": (3e-3, 3e-2), "fp16": (3e-3, 3e-2)}

Outcome = Literal["passed", "failed", "skipped"]
MARKS: dict[str, str] = {"passed": "ok", "failed": "FAILED", "skipped": "skipped"}


@dataclass
class Check:
    """A check and its outcome."""

    name: str
    outcome: Outcome
    message: str
    """Message with the numbers of the check and, for a failure, the place to look."""
    values: dict[str, float] = field(default_factory=dict)
    """Values by name: differences, tolerances, counts, seconds."""


@dataclass(frozen=True)
class Curve:
    """The loss and gradient norm of each step of a run, and its validation losses, exact to the last bit."""

    losses: Mapping[int, float]
    norms: Mapping[int, float]
    validation: Mapping[int, float]

    @classmethod
    def of(cls, run: RunDir) -> "Curve":
        """Read the curve from the events of all jobs of a run. A step trained twice has its newest value."""
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
        """Return the points of the plotted curves: {"step", "loss", "grad_norm"}."""
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
            return Check("train", "failed", f"loss or gradient norm of step {step} is NaN or Inf", values)
    message = f"{amounts.counted(steps, 'step')}, loss {curve.losses[1]:.4f} -> {curve.losses[steps]:.4f}"
    return Check("train", "passed", message, values)


def check_bitwise(name: str, straight: Curve, resumed: Curve, stopped_at: int) -> Check:
    """Check that both runs have the same steps, losses, gradient norms and validation losses, bit for bit."""
    for what in ("losses", "norms", "validation"):
        ours, theirs = getattr(resumed, what), getattr(straight, what)
        if sorted(ours) != sorted(theirs):
            message = f"{what} of steps {sorted(ours)}, but of {sorted(theirs)} in the run without a stop"
            return Check(name, "failed", message)
        for step in sorted(ours):
            if ours[step] != theirs[step] and not (math.isnan(ours[step]) and math.isnan(theirs[step])):
                message = (
                    f"{what} differ from step {step} on: {ours[step]!r} when stopped at step "
                    f"{stopped_at} and resumed, {theirs[step]!r} without a stop"
                )
                return Check(name, "failed", message, {"difference": abs(ours[step] - theirs[step])})
    message = f"stopped at step {stopped_at} and resumed: {len(resumed.losses)} steps equal bit for bit"
    return Check(name, "passed", message, {"steps": len(resumed.losses)})


def check_close(name: str, ours: Curve, reference: Curve, number_format: str, words: str) -> Check:
    """Check that losses, gradient norms and validation losses are close to the reference's."""
    loss_tolerance, norm_tolerance = TOLERANCES[number_format]
    if not ours.losses or not ours.losses.keys() <= reference.losses.keys():
        return Check(name, "failed", f"steps {sorted(ours.losses)} against {sorted(reference.losses)}")
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
    figures = ", ".join(f"{key.replace('_', ' ')} {value:.1e}" for key, value in worst.items())
    values = worst | {f"{key}_tolerance": limit for key, limit in limits.items()}
    for key, by_step in differences.items():
        # `not <=`: a difference of NaN is too large.
        if broken := [step for step in sorted(by_step) if not by_step[step] <= limits[key]]:
            found = f"{key.replace('_', ' ')} differs by {by_step[broken[0]]:.1e} at step {broken[0]}"
            message = f"{words}: {found}, {limits[key]:.0e} is allowed ({figures})"
            return Check(name, "failed", message, values)
    message = f"{words}: {figures}; allowed {loss_tolerance:.0e} and {norm_tolerance:.0e}"
    return Check(name, "passed", message, values)


def _largest(differences: Mapping[int, float]) -> float:
    """Return the largest value. NaN counts as larger than every number, whereas max() would ignore it."""
    return max(differences.values(), key=lambda value: math.inf if math.isnan(value) else value, default=0.0)


def check_export(name: str, answer: Mapping[str, Any] | None, curve: Curve, number_format: str) -> Check:
    """Check that one process with the exported weights has the run's last validation loss."""
    tolerance, _ = TOLERANCES[number_format]
    if answer is None:
        return Check(name, "failed", "the process that exports left no answer")
    ours, theirs = answer["validation_loss"], curve.validation[max(curve.losses)]
    difference = abs(ours - theirs)
    size = f"{answer['num_tensors']} tensors, {answer['num_parameters']:,} parameters in one file"
    message = f"{size}; loss {ours:.6f} in one process, {theirs:.6f} in the run: {difference:.1e}, "
    message += f"allowed {tolerance:.0e}"
    values = {"difference": difference, "tolerance": tolerance, "bytes": answer["bytes"]}
    return Check(name, "passed" if difference <= tolerance else "failed", message, values)


@dataclass(repr=False)
class TwinReport(Result, Record):
    """The content of twin.json: what was proven about a run's layout, and what was not."""

    run: str
    twin: str
    ranks: int
    layout: str
    folded: dict[str, tuple[int, int]]
    number_format: str
    checks: list[Check]
    not_proven: list[dict[str, str]]
    curves: dict[str, dict[str, list[float]]]
    """Curves by name: {"step", "loss", "grad_norm"}, for the picture."""
    seconds: float
    created_at: float
    versions: dict[str, str | None]
    cores: int
    schema_version: int = SCHEMA_VERSION
    derived = ("passed",)

    @property
    def passed(self) -> bool:
        """Return whether every check passed, with none failed and none skipped after a failure."""
        return all(check.outcome == "passed" for check in self.checks)

    def write(self, run: RunDir) -> None:
        """Write twin.json to the twin's run directory."""
        files.write_json(run.path / REPORT_JSON, self.to_dict())

    def as_report(self) -> Report:
        """Return the verdict, what was scaled down, the checks, and what was not proven."""
        verdict = "PASSED" if self.passed else "FAILED"
        folded = {key: f"{whole} in the run, {small} here" for key, (whole, small) in self.folded.items()}
        checks = [(MARKS[check.outcome], check.name, check.message) for check in self.checks]
        missing = [(entry["what"], f"{entry['why']}; here {entry['instead']}") for entry in self.not_proven]
        return Report(
            f"Twin of {self.run}: {verdict} in {self.seconds:.0f} s. {self.layout}, {self.number_format}.",
            [
                Facts(folded, "Scaled down"),
                Table(("", "", ""), checks, "Checks"),
                Facts(missing, "Not proven here"),
            ],
        )
