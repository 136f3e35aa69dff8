"""Run tasks on a model, and store the results in the run's directory."""

import time
from collections.abc import Sequence
from typing import Any

from nbtrain.base.printing.progress import Progress
from nbtrain.base.printing.report import Report, Result, Table
from nbtrain.base.run_directory.evaluation_files import EvaluationRecord
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text.amounts import count, counted, elapsed
from nbtrain.base.version import __version__
from nbtrain.evaluation.requests import Outcome, Score, Task


class Evaluation(Result, dict[str, EvaluationRecord]):
    """The results of one evaluation call, as {name: record}; shown as a table in a notebook."""

    HEADS = ("evaluation", "metric", "value", "standard error", "of")

    def __init__(self, run: RunDir, step: int, dtype: str):
        super().__init__()
        self.run, self.step, self.dtype = run, step, dtype

    def keep(self, outcome: Outcome, started: float, **of: Any) -> None:
        """Create a record of a result, write it to the run's directory, and add it to the results.

        `started` is the time at which the evaluation started, in seconds since the epoch. The keyword
        arguments `of` are the record's other fields, such as its name and task.
        """
        record = EvaluationRecord(
            step=self.step,
            dtype=self.dtype,
            counts=outcome.counts,
            metrics=outcome.metrics,
            groups=outcome.groups,
            seconds=time.time() - started,
            created_at=started,
            version=__version__,
            **of,
        )
        record.write(self.run)
        self[record.name] = record

    def keep_task(self, task: Task, started: float) -> None:
        """Store the result of a task. All of its requests must have been scored."""
        self.keep(
            task.outcome(),
            started,
            name=task.name,
            task=task.kind,
            source=task.source,
            source_sha256=task.source_sha256,
            split=task.split,
            limit=task.limit,
        )

    @property
    def rows(self) -> list[list[str]]:
        """Rows of the table, one for each metric of each evaluation, with cells in the order of HEADS."""
        found = []
        for name, record in self.items():
            for metric, estimate in record.metrics.items():
                error = "" if estimate.stderr is None else f"{estimate.stderr:.2g}"
                found.append([name, metric, f"{estimate.value:.5g}", error, _of(record)])
        return found

    def as_report(self) -> Report:
        """Return a report with the table of results."""
        return Report("", [Table(self.HEADS, self.rows, f"{self.run.name}, step {self.step:,}")])


def ask(found: Evaluation, tasks: Sequence[Task], score: Score) -> None:
    """Run `tasks`, and add each result to `found` (and write it) as soon as it is complete.

    `score` is the model's function that computes log-probabilities (requests.py).

    Raises RecordError if a record cannot be written.
    """
    for task in tasks:
        started = time.time()
        with Progress(task.name, task.total, task.unit) as bar:
            for number, scored in score(task.requests()):
                if done := task.take(number, scored):
                    bar.update(done)
        found.keep_task(task, started)


def _of(record: EvaluationRecord) -> str:
    counts: dict[str, Any] = record.counts
    of = (
        f"{count(counts['tokens'])} tokens" if "tokens" in counts else counted(counts["examples"], "question")
    )
    shots = f", {record.num_fewshot}-shot" if record.num_fewshot is not None else ""
    cut = (
        f", {counted(counts['truncated'], 'choice')} with truncated context"
        if counts.get("truncated")
        else ""
    )
    return f"{of}{shots}{cut}, {elapsed(record.seconds)}"
