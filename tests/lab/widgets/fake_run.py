"""A job that takes a quarter of a second: it writes the files of a supervisor and its ranks without training.

    python tests/lab/widgets/fake_run.py <run dir> [--steps N] [--step-seconds S] [--world-size N]
                                         [--end STATE]

The process is the job's supervisor and its only rank, so that states, heartbeats, LOST and a stop by SIGTERM
or control/request.json behave like a real job's.
"""

import argparse
import math
import os
import signal
import sys
import time
from pathlib import Path

from nbtrain.base.files import write_json, write_text
from nbtrain.base.run_directory.events import EventWriter
from nbtrain.base.run_directory.records import (
    AttemptRecord,
    ControlRequest,
    ExitRecord,
    Heartbeat,
    JobRecord,
    ProcessIdentity,
    Stamp,
    TrainingProgress,
)
from nbtrain.base.run_directory.rundir import SCHEMA_VERSION, JobDir, RunDir, new_run_id
from nbtrain.base.run_directory.usage import PROCESS_FIGURES
from nbtrain.base.run_directory.usage_files import UsageWriter
from nbtrain.base.text import amounts
from nbtrain.config.load import to_yaml
from nbtrain.config.schema import RunConfig

TOKENS_PER_STEP = 8 * 128
GIB = float(1 << 30)


def run_config(name: str, steps: int, world_size: int = 1) -> RunConfig:
    """Return the configuration of a small run of `steps` steps."""
    return RunConfig.model_validate(
        {
            "name": name,
            "model": {"num_layers": 4, "hidden_size": 192, "num_attention_heads": 6, "seq_length": 128},
            "tokenizer": {"name": "python-docs-4096", "vocab_size": 4096},
            "data": {"name": "python-docs"},
            "batch": {
                "micro_batch_size": 8 // world_size,
                "global_batch_size": 8,
                "train_tokens": steps * TOKENS_PER_STEP,
            },
            "lr_schedule": {"lr": 1e-3, "min_lr": 1e-4},
            "parallel": {"data_parallel_size": world_size},
            "resources": {"device": "cpu"},
        }
    )


class FakeJob:
    """A job of a run that is written step by step."""

    def __init__(self, run: RunDir, steps: int, world_size: int = 1, start: int = 0):
        from nbtrain.train.figures.metrics_writer import MetricsWriter

        self.run, self.steps, self.world_size, self.step = run, steps, world_size, start
        self.identity = ProcessIdentity.of(os.getpid())
        run.path.mkdir(parents=True, exist_ok=True)
        if not run.exists():
            write_json(
                run.run_json,
                {
                    "schema_version": SCHEMA_VERSION,
                    "run_id": new_run_id(),
                    "name": run.name,
                    "parent": None,
                    "created_at": time.time(),
                },
            )
            write_text(run.config_yaml, to_yaml(run_config(run.name, steps, world_size)))
        self.job: JobDir = run.job(run.unused_job_id())
        self.job.make_folders()
        write_text(self.job.config_yaml, run.config_yaml.read_text())
        self.record = JobRecord(
            job_id=self.job.job_id,
            run_id=run.record()["run_id"],
            name=run.name,
            state="RUNNING",
            created_at=time.time(),
            started_at=time.time(),
            world_size=world_size,
            supervisor=self.identity,
            resumed_from_step=start or None,
            command=["-m", "nbtrain.train", run.name],
        )
        self.record.write(self.job.job_json)
        self.supervisor_events = EventWriter(self.job, "supervisor")
        self.events = EventWriter(self.job, "rank0")
        self.supervisor_events.write("state", "RUNNING: the ranks are training", state="RUNNING")
        self.tensorboard = MetricsWriter(run.tensorboard, start)
        self.phase_since = time.time()
        self.validation_loss: float | None = None

    def scalars(self, **values: float) -> None:
        """Write scalars at the current step; they are named as in metrics.SCALARS."""
        self.tensorboard.write(self.step, self.step * TOKENS_PER_STEP, self.step * 8, **values)
        self.tensorboard.flush()

    def one_step(self) -> None:
        """Write the records of one optimizer step."""
        self.step += 1
        share = self.step / self.steps
        loss = 3.0 + 5.3 * math.exp(-6 * share) + 0.08 * math.sin(self.step * 1.7)
        rate = 1e-4 + 9e-4 * (1 + math.cos(math.pi * share)) / 2
        speed = 5100 + 180 * math.sin(self.step / 3)
        validation = loss + 0.11 if self.step % 10 == 0 else None
        self.scalars(
            loss=loss,
            learning_rate=rate,
            grad_norm=0.6 + 0.4 * abs(math.sin(self.step)),
            tokens_per_second=speed,
            host_memory_bytes=5.1e8 + 1e5 * self.step,
        )
        if validation is not None:
            self.validation_loss = validation
            self.scalars(validation_loss=validation, validation_perplexity=math.exp(validation))
            self.events.write("validation", f"step {self.step}: validation loss {validation:.4f}")
        with self.job.log(0, 0).open("a", encoding="utf-8") as stream:
            stream.write(
                f"step {self.step:>5,} | tokens {self.step * TOKENS_PER_STEP / 1e3:.1f}k | loss {loss:.4f} "
                f"| lr {amounts.rate(rate)} | {speed:,.0f} tokens/s\n"
            )
        self.heartbeat("train", loss, rate, speed)

    def heartbeat(self, phase: str, loss: float, rate: float, speed: float) -> None:
        """Renew the heartbeats of all ranks, with this process as the process of each."""
        progress = TrainingProgress(
            total_steps=self.steps,
            train_tokens=self.steps * TOKENS_PER_STEP,
            consumed_tokens=self.step * TOKENS_PER_STEP,
            consumed_samples=self.step * 8,
            loss=loss,
            grad_norm=0.8,
            learning_rate=rate,
            tokens_per_second=speed,
            samples_per_second=speed / 128,
            eta_seconds=(self.steps - self.step) * TOKENS_PER_STEP / speed,
            validation_loss=self.validation_loss,
            num_parameters=2_600_000,
        )
        for rank in range(self.world_size):
            Heartbeat(
                rank,
                0,
                self.identity,
                time.time(),
                self.step,
                phase,
                self.phase_since,
                progress if rank == 0 else None,
            ).write(self.job.heartbeat(rank))

    def stop_requested(self) -> bool:
        return ControlRequest.read(self.job.control_request) is not None

    def finish(
        self, state: str, cause: str, reason: str | None = None, failed_rank: int | None = None
    ) -> None:
        """End the job in the same way as its supervisor; with a `reason` or the rank that failed first, in an
        attempt with a record.
        """
        outcome = {"SUCCEEDED": "finished", "CANCELLED": "stopped"}.get(state, "failed")
        for rank in range(self.world_size):
            ExitRecord(
                rank, 0, time.time(), 1 if outcome == "failed" else 0, None, outcome, self.step, cause
            ).write(self.job.exit_record(rank, 0))
        self.record.state, self.record.cause, self.record.ended_at = state, cause, time.time()
        if reason is not None or failed_rank is not None:
            ended = AttemptRecord(0, self.record.created_at, self.world_size, self.world_size)
            ended.ended_at, ended.cause, ended.reason = self.record.ended_at, cause, reason
            ended.failed_rank = failed_rank
            self.record.attempts.append(ended)
        self.supervisor_events.write("state", f"{state}: {cause}", state=state)
        self.record.write(self.job.job_json)
        self.tensorboard.close()


def measure(job: FakeJob, node: int = 0, ranks: tuple[int, ...] = (0, 1), gpu: bool = False) -> None:
    """Write ten samples of a node's growing resource usage, two seconds apart."""
    writer = UsageWriter(job.job.resources, node)
    about = {
        "ranks": list(ranks),
        "requests": {"memory_bytes": 6 * GIB},
        "limits": {"cpu_cores": 4.0, "memory_bytes": 8 * GIB},
    }
    if gpu:
        about["gpus"] = {"gpu 0": {"name": "H100", "memory_bytes": int(80 * GIB)}}
    for number in range(1, 11):
        sample = {"node": {"cpu_cores": 3.0, "network_sent_bytes_per_second": 1024.0 * number}}
        sample["node"]["disk_writes_per_second"] = 4.0 * number
        sample["replica"] = dict.fromkeys(PROCESS_FIGURES, 0.0) | {
            "cpu_cores": number / 5,
            "memory_bytes": number * GIB / 2,
        }
        for rank in ranks:
            sample[f"rank {rank}"] = {"cpu_cores": number / 10, "memory_bytes": number * GIB / 4}
        if gpu:
            sample["gpu 0"] = {"gpu_fraction": 0.9, "gpu_memory_bytes": 8 * GIB * number}
        at = job.record.created_at + 2 * number
        writer.add(sample, about, Stamp("boot", 1000.0 + 2 * number), at)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--step-seconds", type=float, default=0.25)
    parser.add_argument("--world-size", type=int, default=1)
    parser.add_argument("--end", default="SUCCEEDED")
    options = parser.parse_args(arguments)
    stopped = []
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
    job = FakeJob(RunDir(options.run_dir), options.steps, options.world_size)
    measure(job, ranks=tuple(range(options.world_size)))
    while job.step < options.steps and not stopped and not job.stop_requested():
        job.one_step()
        if job.step == 5:
            job.events.write("alert", "host memory 91 % is over max_host_memory_fraction = 90 %")
        time.sleep(options.step_seconds)
    if job.step < options.steps:
        job.finish("CANCELLED", f"stopped on request after step {job.step}")
    else:
        job.finish(options.end, f"all {job.steps * TOKENS_PER_STEP:,} tokens are done and saved")


if __name__ == "__main__":
    sys.exit(main())
