"""View of one run: state, progress, events, curves, logs and resources.

    RunView(RunDir)  ->  describe()  ->  RunDescription (run_description.py)

All data comes from the run directory and the process table, so a notebook kernel, a server and a shell all
see the same run.
"""

import threading
import time
from typing import Any

from nbtrain.base import files
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.jobstate import ACTIVE, FINAL, LOST, RUNNING
from nbtrain.base.run_directory.metrics import BY_NAME, name_of
from nbtrain.base.run_directory.metrics import scalar as scalar_named
from nbtrain.base.run_directory.observed_state import read_state
from nbtrain.base.run_directory.records import Heartbeat, JobRecord
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.base.text import amounts
from nbtrain.base.text.order import natural
from nbtrain.config.arithmetic.layout_words import SIZE_KEYS
from nbtrain.monitor.job.conditions import NUM_EVENTS, alerts_part, event_part, in_sight
from nbtrain.monitor.job.job_description import job_status
from nbtrain.monitor.job.rank_records import read_heartbeats
from nbtrain.monitor.logs import logs
from nbtrain.monitor.metrics.curves import band, curve_part, thinned_means
from nbtrain.monitor.metrics.finite_json import finite
from nbtrain.monitor.metrics.metrics_reader import ScalarReader
from nbtrain.monitor.metrics.series import Series
from nbtrain.monitor.metrics.tokens import tokens_at
from nbtrain.monitor.run.advice import advice, marks, nan_words, remedies, waiting
from nbtrain.monitor.run.prediction import prediction
from nbtrain.monitor.run.rank_rows import rank_rows
from nbtrain.monitor.run.run_description import RunDescription, progress_part
from nbtrain.monitor.status.spending import spending_line
from nbtrain.monitor.status.status_records import NOTHING_SUBMITTED, job_with_end, status_of
from nbtrain.monitor.usage.resources import ProcessTable, ResourceSampler

_PROGRESS = ("loss", "validation_loss", "learning_rate", "tokens_per_second", "grad_norm")
CURVES = (*_PROGRESS, "host_memory_bytes", "device_memory_bytes", "mfu")
"""Names, as in metrics.SCALARS, of the curves in a description."""

# Fields of the run's configuration that a description includes.
MODEL_KEYS = ("num_layers", "hidden_size", "num_attention_heads", "seq_length")
PARALLEL_KEYS = ("zero_stage", *SIZE_KEYS)

# Maximum number of points in a curve. A point is the mean of an interval, with its lowest and highest value.
LARGEST_NUM_POINTS = 200
LOG_LINES = 12
# Several panels and cells may request the same run. Within this time, they get the same description.
DESCRIPTION_AGE_SECONDS = 0.4
# The cost is computed from the events of all jobs, so it is read less often.
COST_AGE_SECONDS = 10.0


class RunView:
    """Reads one run directory. Keep the object: later calls read only the data appended since."""

    def __init__(
        self,
        run: RunDir,
        reader: ScalarReader | None = None,
        read_seconds: float | None = None,
        processes: ProcessTable | None = None,
    ):
        """Create a view of a run.

        `reader` reads the run's metrics files; by default, it keeps every point. A description reads for at
        most `read_seconds`. `processes` is a process table that several views may share.
        """
        self.run = run
        self.reader = reader or ScalarReader(run.tensorboard, lambda tag: name_of(tag) is not None)
        self.lock = threading.RLock()
        """Lock that a thread must hold while using `reader`."""
        self._read_seconds = read_seconds
        self._processes = processes or ProcessTable()
        self._samplers: dict[str, ResourceSampler] = {}
        # {id of an ended job: (time stamp of job.json, (entry in a description, record))}
        self._ended: dict[str, tuple[int, tuple[dict[str, Any], JobRecord | None]]] = {}
        self._kept_plan: tuple[int, dict[str, Any] | None] = (0, None)
        self._events: tuple[Any, list[dict[str, Any]]] = (None, [])
        self._kept: tuple[float, RunDescription] | None = None
        # (monotonic time at which the cost was read, state at that time, cost as text)
        self._kept_cost: tuple[float, str, str] | None = None

    def __repr__(self) -> str:
        return f"RunView({self.run!r})"

    @property
    def name(self) -> str:
        return self.run.name

    @property
    def job(self) -> JobDir | None:
        """The newest job; None if no job was submitted yet."""
        return self.run.newest_job()

    @property
    def state(self) -> str:
        """State of the newest job (jobstate.py); NEW if no job was submitted yet."""
        return self._state_and_cause()[0]

    @property
    def cause(self) -> str | None:
        """Reason for the newest job's state, in one sentence. Every ended job has a cause."""
        return self._state_and_cause()[1]

    @property
    def active(self) -> bool:
        """Whether the newest job is active, that is, has not ended."""
        return self.state in ACTIVE

    def _state_and_cause(self) -> tuple[str, str | None]:
        return read_state(job, time.time()) if (job := self.job) else NOTHING_SUBMITTED

    def events(self) -> list[dict[str, Any]]:
        """Return all events of the newest job, ordered by time.

        The files are read again only if they have grown.
        """
        if (job := self.job) is None:
            return []
        stamps = tuple((path, path.stat().st_size) for path in sorted(job.events.glob("*.jsonl")))
        if self._events[0] != stamps:
            self._events = (stamps, read_events(job))
        return list(self._events[1])

    def scalars(self, name: str) -> Series:
        """Return a scalar over all jobs. Raises KeyError, which lists all names, for an unknown name."""
        try:
            tag = scalar_named(name).tag
        except KeyError:
            raise KeyError(f"{name!r} is not one of nbtrain's scalars: {', '.join(BY_NAME)}") from None
        with self.lock:
            self.reader.refresh()
            return self.reader.series.get(tag, Series())

    def scalar_names(self) -> list[str]:
        """Return the names of all scalars that have points.

        They are in the order of metrics.SCALARS; scalars of datasets, tasks and `code` follow by name.
        """
        with self.lock:
            self.reader.refresh()
            there = {
                name for tag, points in self.reader.series.items() if len(points) and (name := name_of(tag))
            }
        return [name for name in BY_NAME if name in there] + sorted(there - BY_NAME.keys(), key=natural)

    def describe(self) -> RunDescription:
        """Return the current description of the run."""
        with self.lock:
            if self._kept is None or time.monotonic() - self._kept[0] > DESCRIPTION_AGE_SECONDS:
                description = self._describe()
                self._kept = (time.monotonic(), description)
            return self._kept[1]

    def _describe(self) -> RunDescription:
        now, job = time.time(), self.job
        record, state, cause = job_with_end(job, now) if job else (None, *NOTHING_SUBMITTED)
        heartbeats = read_heartbeats(job, record)
        status = status_of(self.run, job, record, state, cause, heartbeats.get(0))
        self.reader.refresh(self._read_seconds)
        resources = self._resources(job, record, heartbeats, status.active)
        events = self.events()
        config = self._config_summary()
        progress = progress_part(status, heartbeats.get(0), config, now)
        jobs = self._jobs(now)
        curves = {name: self._curve(name) for name in CURVES}
        attempt = record.newest_attempt if record else None
        parts = {
            "advice": advice(self.run, state, attempt, progress["step"] if progress else None),
            "remedies": remedies(self.run, state, events),
            "cost": self._cost(status.state, config, now),
            "waiting": waiting(self.run, state, events, now),
            "nan": nan_words(curves["loss"], events),
            "jobs": [part for part, _ in jobs],
            "marks": marks(self.run, [known for _, known in jobs if known], events),
            "config": config,
            "progress": progress,
            "prediction": prediction(self._plan(), progress, curves),
            "curves": curves,
            "reading": self.read_fraction(),
            "resources": resources,
            "ranks": rank_rows(job, record, heartbeats, resources, now, state),
            "failed_rank": attempt.failed_rank if attempt and status.failed else None,
            "log": self._log(job, state),
            "events": [event_part(event) for event in in_sight(events, NUM_EVENTS)],
            "alerts": alerts_part(events),
            "warnings": self._warnings(),
        }
        newest = job_status(record, status.active, events, now) if record else None
        return RunDescription(status, now, newest, **finite(parts))

    def _plan(self) -> dict[str, Any] | None:
        """Return the contents of plan.json, which every submission overwrites; None if it is missing."""
        try:
            stamp = self.run.plan_json.stat().st_mtime_ns
        except OSError:
            return None
        if self._kept_plan[0] != stamp:
            self._kept_plan = (stamp, files.read_json(self.run.plan_json))
        return self._kept_plan[1]

    def _cost(self, state: str, config: dict[str, Any] | None, now: float) -> str:
        """Return device hours, money, energy and goodput in one line, updated every COST_AGE_SECONDS."""
        at = time.monotonic()
        if (
            self._kept_cost is None
            or self._kept_cost[1] != state
            or at - self._kept_cost[0] > COST_AGE_SECONDS
        ):
            device = config["device"] if config else ""
            self._kept_cost = (at, state, spending_line(self.run, device, now))
        return self._kept_cost[2]

    def read_fraction(self) -> float:
        """Return the fraction of the metrics files that has been read.

        The fraction is below 1 shortly after the first description.
        """
        if not self.reader.behind_bytes:
            return 1.0
        return round(1.0 - self.reader.behind_bytes / max(1, self.reader.total_bytes), 3)

    def _warnings(self) -> list[str]:
        behind = self.reader.behind_bytes
        left = [f"{amounts.size(behind)} of the run's metrics files has not been read yet."] if behind else []
        return [*self.reader.warnings, *left]

    def heartbeats(self) -> dict[int, Heartbeat]:
        """Return {rank: newest heartbeat} of the newest job.

        Until a rank has loaded the checkpoint, its heartbeat shows the checkpoint's step.
        """
        job = self.job
        return read_heartbeats(job, JobRecord.read(job.job_json) if job else None)

    def _jobs(self, now: float) -> list[tuple[dict[str, Any], JobRecord | None]]:
        """Return (entry in the description, record) for each job, oldest first."""
        found = []
        for job_id in self.run.job_ids():
            job = self.run.job(job_id)
            stamp = job.job_json.stat().st_mtime_ns if job.job_json.exists() else 0
            if job_id in self._ended and self._ended[job_id][0] == stamp:
                found.append(self._ended[job_id][1])
                continue
            record, state, cause = job_with_end(job, now)
            keys = ("created_at", "ended_at", "resumed_from_step")
            known = {key: getattr(record, key, None) for key in keys}
            found.append(({"job_id": job_id, "state": state, "cause": cause, **known}, record))
            if state in FINAL and state != LOST:
                self._ended[job_id] = (stamp, found[-1])
        return found

    def _config_summary(self) -> dict[str, Any] | None:
        """Return a summary of config.yaml, which every submission overwrites; None if it is missing."""
        if not self.run.config_yaml.is_file():
            return None
        from nbtrain.config.load.resolved_cache import kept_config

        config = kept_config(self.run.config_yaml)
        return {
            "name": config.name,
            **{key: getattr(config.model, key) for key in MODEL_KEYS},
            "vocab_size": config.tokenizer.vocab_size,
            "micro_batch_size": config.batch.micro_batch_size,
            "global_batch_size": config.batch.global_batch_size,
            "train_tokens": config.train_tokens,
            "train_steps": config.train_steps,
            "target_tokens": config.target_tokens,
            "has_perplexity": config.has_perplexity,
            "precision": config.precision.dtype + (" autocast" if config.precision.autocast else ""),
            **{key: getattr(config.parallel, key) for key in PARALLEL_KEYS},
            "world_size": config.world_size,
            "device": config.resources.device,
            "backend": config.backend.kind,
            "dataset": config.data.name,
        }

    def _curve(self, name: str) -> dict[str, Any]:
        """Return a curve: steps, values and the keys of curve_part(); for the loss, also times and tokens."""
        series = self.reader.series.get(BY_NAME[name].tag, Series())
        steps, found = series.steps, band(series.values, LARGEST_NUM_POINTS, thinned_means(series))
        shown_steps = [steps[at] for at in found.at]
        curve = {"unit": BY_NAME[name].unit, "steps": shown_steps, "num_points": len(series)}
        curve |= curve_part("values", found, series.gaps)
        if name == "loss":
            walls = series.wall_times
            curve |= {
                "times": [round(walls[at], 1) for at in found.at],
                "tokens": tokens_at(self.reader, shown_steps),
            }
        return curve

    def _resources(
        self, job: JobDir | None, record: JobRecord | None, heartbeats: dict[int, Heartbeat], active: bool
    ) -> dict[str, Any] | None:
        if job is None or record is None or not active:
            self._samplers.clear()
            return None
        sampler = self._samplers.setdefault(job.job_id, ResourceSampler(self._processes))
        roots = [record.supervisor] if record.supervisor else []
        return sampler.sample(roots, {rank: heartbeat.process for rank, heartbeat in heartbeats.items()})

    def _log(self, job: JobDir | None, state: str) -> dict[str, Any]:
        """Return the last lines of rank 0's log; while it is empty, of the supervisor's or node 0's log."""
        if job is None:
            return {"source": None, "lines": []}
        lines = logs.tail_lines(logs.log_path(job), LOG_LINES)
        if lines or state == RUNNING:
            return {"source": "rank 0", "lines": lines}
        lines = logs.tail_lines(job.supervisor_log, LOG_LINES)
        if not lines and (said := logs.tail_lines(job.node_log(0), LOG_LINES)):
            # A pod that ended before it could start the supervisor leaves only the log of its node.
            return {"source": "node 0", "lines": said}
        return {"source": logs.SUPERVISOR, "lines": lines}
