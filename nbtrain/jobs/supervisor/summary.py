"""summary.json: the results of a run, written whenever a job ends.

Metrics come from rank 0's last heartbeat, totals from job.json, and the newest checkpoint from the disk.
Values that a short job does not have, for example because it failed before its first validation, are kept
from the previous summary.
"""

import contextlib
import math
import time
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import RecordError
from nbtrain.base.run_directory.checkpoint_files import newest_checkpoint_step
from nbtrain.base.run_directory.records import Heartbeat, JobRecord, TrainingProgress
from nbtrain.base.run_directory.rundir import SCHEMA_VERSION, RunDir
from nbtrain.config.arithmetic.perplexity import perplexity
from nbtrain.config.load.attempt import attempt_config
from nbtrain.config.schema import RunConfig
from nbtrain.monitor.status.run_status import RunStatus
from nbtrain.monitor.status.spending import run_spending
from nbtrain.monitor.status.status_records import job_with_end, status_of
from nbtrain.planner.setup.last_job import record_of


def write_summary(
    run: RunDir, config: RunConfig, record: JobRecord, beat: Heartbeat | None
) -> dict[str, Any]:
    """Write summary.json for a job whose end is in `record`; return the contents of the file.

    `config` is the run as submitted, and `beat` is rank 0's last heartbeat.
    """
    before = files.read_json(run.summary_json) or {}
    status = status_of(run, run.job(record.job_id), record, record.state, record.cause, beat)
    # backend.elastic may have resized the attempt that the heartbeat belongs to.
    attempt = record.attempt_record(beat.attempt) if beat else None
    measured = attempt_config(config, attempt) if attempt else config
    summary = summarize(config, measured, record, status, before)
    summary["checkpoint_step"] = newest_checkpoint_step(run)
    summary["total_seconds"] = round(total_seconds(run, record), 3)
    assert record.ended_at is not None
    summary["cost"] = run_spending(run, record.ended_at, (record.job_id, record, record.state)).to_dict()
    files.write_json(run.summary_json, summary)
    return summary


def summarize(
    config: RunConfig, measured: RunConfig, record: JobRecord, status: RunStatus, before: dict[str, Any]
) -> dict[str, Any]:
    """Return the run's results at the end of this job.

    `before` is the previous job's summary, or {}. The throughput in `status` was measured with the
    configuration `measured`.
    """
    assert record.ended_at is not None
    progress = status.progress or TrainingProgress(config.train_steps, config.train_tokens)
    # A job without progress keeps the results of the previous job.
    known = status.progress is not None

    def newest(name: str, value: Any) -> Any:
        return before.get(name) if value is None else value

    validation_loss = newest("last_validation_loss", progress.validation_loss)
    losses = (before.get("best_validation_loss"), progress.best_validation_loss, progress.validation_loss)
    best_validation_loss = min(
        (loss for loss in losses if loss is not None and math.isfinite(loss)), default=None
    )
    test_loss = newest("test_loss", progress.test_loss)

    def perplexity_of(loss: float | None) -> float | None:
        return perplexity(loss) if config.has_perplexity else None

    return {
        "schema_version": SCHEMA_VERSION,
        "run_id": record.run_id,
        "name": status.name,
        "job_id": status.job_id,
        "state": status.state,
        "cause": status.cause,
        "steps": before.get("steps", 0) if status.step is None else status.step,
        "total_steps": config.train_steps,
        "consumed_tokens": progress.consumed_tokens if known else before.get("consumed_tokens", 0),
        "train_tokens": config.train_tokens,
        "consumed_samples": progress.consumed_samples if known else before.get("consumed_samples", 0),
        "num_parameters": newest("num_parameters", progress.num_parameters),
        "seq_length": config.model.seq_length,
        "global_batch_size": config.batch.global_batch_size,
        "world_size": status.world_size,
        "samples_per_second": newest("samples_per_second", progress.samples_per_second),
        # The setup with which the throughput was measured. A job without a throughput keeps the setup of the
        # previous job.
        "measured_with": record_of(measured) if progress.samples_per_second else before.get("measured_with"),
        "tokens_per_second": newest("tokens_per_second", progress.tokens_per_second),
        "memory_bytes": newest("memory_bytes", progress.memory_bytes),
        "pipeline_fraction": newest("pipeline_fraction", progress.pipeline_fraction),
        "loss": newest("loss", status.loss),
        "last_validation_loss": validation_loss,
        "last_validation_perplexity": perplexity_of(validation_loss),
        "last_validation_by_dataset": {
            name: {"loss": loss, "perplexity": perplexity_of(loss)}
            for name, loss in progress.validation_losses.items()
        }
        or before.get("last_validation_by_dataset", {}),
        "best_validation_loss": best_validation_loss,
        "best_validation_perplexity": perplexity_of(best_validation_loss),
        "test_loss": test_loss,
        "test_perplexity": perplexity_of(test_loss),
        "overflow_steps": newest("overflow_steps", progress.overflow_steps),
        "steps_without_loss": newest("steps_without_loss", progress.steps_without_loss),
        "restarts": status.restarts,
        "lost_tokens": sum(attempt.lost_tokens or 0 for attempt in record.attempts),
        "preemptions": len(record.preemptions),
        "preemption_lost_steps": record.preemption_lost_steps,
        "preemption_waited_seconds": round(record.preemption_waited_seconds, 3),
        "started_at": record.created_at,
        "ended_at": record.ended_at,
        # From the submission to the end: start-up, training, evaluation, saving, restarts.
        "end_to_end_seconds": round(record.seconds_between("created_at", "ended_at"), 3),
    }


def total_seconds(run: RunDir, record: JobRecord) -> float:
    """Return the total seconds of all jobs of the run, including this one.

    A lost job counts until its last report.
    """
    total = record.seconds_between("created_at", "ended_at")
    for job_id in run.job_ids():
        if job_id == record.job_id:
            continue
        # A damaged record is not counted, as in the run's cost.
        with contextlib.suppress(RecordError):
            other, _, _ = job_with_end(run.job(job_id), time.time())
            if other is not None and other.ended_at is not None:
                total += other.seconds_between("created_at", "ended_at")
    return total
