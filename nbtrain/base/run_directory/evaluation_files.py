"""Results of a run's evaluations: one file evaluation/global_step<N>/<name>.json for each.

EvaluationRecord("hellaswag", ...).write(run)      replaces an evaluation of the same name and step
newest_evaluations(run)                            {name: the record of the newest step}
"""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import RecordError
from nbtrain.base.run_directory.rundir import CHECKPOINT_PATTERN, RunDir

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Estimate:
    """A value and its standard error."""

    value: float
    stderr: float | None
    """Standard error. None if there is only one example."""

    def __str__(self) -> str:
        return f"{self.value:.4g}" if self.stderr is None else f"{self.value:.4g} ± {self.stderr:.2g}"


@dataclass(frozen=True)
class EvaluationRecord:
    """Result of one task or dataset for one checkpoint."""

    name: str
    """Name of the evaluation and of its file, unique among the evaluations of the run."""
    task: str
    """Task: perplexity, or the format of the questions."""
    step: int
    dtype: str
    source: str
    """Name of the dataset or file, without its folder."""
    source_sha256: str
    split: str | None
    """Split of a dataset: train, valid, test or all."""
    limit: int | None
    """Number of examples if only the first ones were evaluated. None means all examples."""
    counts: dict[str, int]
    """Numbers of examples, tokens, bytes and truncated examples, as far as they apply to the task."""
    metrics: dict[str, Estimate]
    groups: dict[str, dict[str, Any]]
    """Results by group, {group: {"examples", "acc": {"value", "stderr"}}}, for tasks whose questions belong
    to groups, such as the subjects of MMLU.
    """
    seconds: float
    created_at: float
    version: str
    """Version of nbtrain that wrote the record."""
    num_fewshot: int | None = None
    """Number of few-shot examples before each question, for a task of lm-evaluation-harness. None for other
    tasks, and for a group whose tasks use different numbers.
    """
    schema_version: int = field(default=SCHEMA_VERSION)

    def path(self, run: RunDir) -> Path:
        return _folder(run, self.step) / f"{self.name}.json"

    def write(self, run: RunDir) -> None:
        """Write the record. Raises RecordError if the run's folder cannot be written."""
        try:
            self.path(run).parent.mkdir(parents=True, exist_ok=True)
            files.write_json(self.path(run), asdict(self))
        except OSError as error:
            raise RecordError(f"{files.not_allowed(error)}.") from error

    @classmethod
    def read(cls, path: Path) -> "EvaluationRecord":
        """Read a record. Raises RecordError if the file is damaged or from a later version."""
        value: Any = files.read_json(path)
        try:
            if value["schema_version"] != SCHEMA_VERSION:
                raise RecordError(
                    f"{path}: schema_version = {value['schema_version']!r} must be {SCHEMA_VERSION}: "
                    "another version of nbtrain wrote the file."
                )
            metrics = {
                name: Estimate(float(one["value"]), one["stderr"]) for name, one in value["metrics"].items()
            }
            return cls(**{**value, "metrics": metrics})
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            if isinstance(error, RecordError):
                raise
            raise RecordError(
                f"{path}: is not an evaluation record ({error!r}). Run the evaluation again."
            ) from None


def file_name(*parts: str) -> str:
    """Return a file name for a record: lower-case letters, digits, dots and dashes."""
    return re.sub(r"[^a-z0-9.]+", "-", "-".join(parts).lower()).strip("-.") or "unnamed"


def evaluation_files(run: RunDir) -> Iterator[tuple[int, Path]]:
    """Return (step, file) for every record, sorted by step and name."""
    steps = []
    if run.evaluation.is_dir():
        for folder in run.evaluation.iterdir():
            if matched := CHECKPOINT_PATTERN.fullmatch(folder.name):
                steps.append(int(matched[1]))
    for step in sorted(steps):
        for path in sorted(_folder(run, step).glob("[!.]*.json")):
            yield step, path


def newest_evaluations(run: RunDir) -> dict[str, EvaluationRecord]:
    """Return {name: record of the newest step} for all evaluations of the run. Raises RecordError."""
    newest = {path.stem: path for _, path in evaluation_files(run)}
    return {name: EvaluationRecord.read(path) for name, path in sorted(newest.items())}


def _folder(run: RunDir, step: int) -> Path:
    return run.evaluation / f"global_step{step}"
