"""Description of a job for every backend: basic facts, conditions, events, replicas and resources.

    job_records.describe_job(RunDir)  ->  JobDescription  ->  to_dict()    `nbtrain job --json`, REST
                                                          ->  as_report()  `nbtrain job`, a cell
                                                          ->  job_tables() the panel and the static picture

All data comes from the run directory, while the job runs and afterwards; no scheduler is queried. A replica
is one machine or pod with its ranks.
"""

import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from nbtrain.base.findings import Finding
from nbtrain.base.printing.report import Code, Facts, Findings, Report, Result, Sentence, Table
from nbtrain.base.run_directory.jobstate import ACTIVE, RUNNING
from nbtrain.base.run_directory.rank_phases import ERROR, GONE
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.base.run_directory.usage import FIGURES
from nbtrain.base.text import amounts
from nbtrain.monitor.job.conditions import Condition, JobEvent
from nbtrain.monitor.job.pods import Pod
from nbtrain.monitor.metrics.finite_json import finite
from nbtrain.monitor.status.life import elapsed_words, paused_seconds
from nbtrain.monitor.status.spending import Spending, fault_words
from nbtrain.monitor.usage.job_use import Gpu, Use
from nbtrain.monitor.usage.usage import NodeUsage, usage_part

SCHEMA_VERSION = 1
# Maximum number of points of a curve in to_dict(), as many as fit into a chart.
MOST_POINTS = 240
NUM_EVENTS = 20
# If a replica has more ranks than this, only failed ranks are listed.
MOST_RANKS = 32
# Maximum number of failures in earlier attempts that are shown for a rank.
MOST_EARLIER = 3
UNKNOWN = "-"
REPLICA_TITLES = ("REPLICA", "HOST", "PHASE", "RESTARTS", "CPU", "MEMORY", "MESSAGE")
FAULT_TITLES = ("ENDED (UTC)", "ATTEMPT", "CAUSE", "COST", "DEVICE HOURS", "MONEY")
# The age of a scheduler's report is shown if it is older than this. While a job page is open, the scheduler
# is queried every few seconds.
OLD_WORD_SECONDS = 60.0


@dataclass(frozen=True)
class LogFile:
    """A log file of the job."""

    path: str
    """Path relative to the run directory."""
    size_bytes: int
    attempt: int | None = None


@dataclass(frozen=True)
class RankEnd:
    """How a rank ended in one attempt."""

    attempt: int
    time: float
    exit_code: int | None
    """Exit code as a shell or container reports it, such as 137 if SIGKILL ended the rank."""
    failed: bool
    message: str


@dataclass(frozen=True)
class RankRow:
    """A row in the table of ranks."""

    rank: int
    phase: str
    """Phase as in run_directory/rank_phases.py, such as Running."""
    activity: str
    """Activity of the rank, such as "training", or how the rank ended."""
    attempt: int
    step: int | None
    compute_seconds: float | None
    """Computing time of the newest logged step in seconds, without waiting for other ranks."""
    exit_code: int | None
    """Exit code as in RankEnd; None while the rank is running."""
    message: str
    earlier: list[RankEnd]
    """How the rank ended in earlier attempts, oldest first."""
    logs: list[LogFile]
    use: dict[str, Use]


@dataclass(frozen=True)
class Replica:
    """A machine or pod with its ranks."""

    index: int
    name: str
    host: str
    address: str
    phase: str
    restarts: int
    """Number of restarts of the ranks; restarts of the pod are in `pod`."""
    message: str
    labels: dict[str, str]
    image: str | None
    ranks: list[RankRow]
    logs: list[LogFile]
    """Log files of the replica itself; its ranks' logs are in `ranks`."""
    use: dict[str, Use]
    gpus: dict[str, Gpu] = field(default_factory=dict)
    pod: Pod | None = None
    """Pod as the cluster reported it last; None on other backends."""


@dataclass(frozen=True, kw_only=True)
class JobStatus:
    """Size and times of a job, from its record and events."""

    job_id: str
    created_at: float
    started_at: float | None
    ended_at: float | None
    attempt: int
    restarts: int
    resumed_from_step: int | None
    """Step of the checkpoint that the newest attempt started from; None if it began at step 0."""
    world_size: int
    backend: str
    command: list[str]
    """Arguments of Python in each rank's command, without the run directory at the end."""
    elapsed_seconds: float
    """Time from the job's start (or submission, if it has not started) until its end or now."""
    paused_seconds: float
    """Time for which the job was paused; part of elapsed_seconds."""
    preemptions: int = 0
    preemption_lost_steps: int = 0
    """Steps lost in all preemptions together."""
    preemption_waited_seconds: float = 0.0
    """Seconds that the job waited for devices after its preemptions."""
    saving: str = ""
    """How the newest attempt writes checkpoints, and why; "" if it does not write checkpoints."""

    @property
    def ranks_text(self) -> str:
        return amounts.counted(self.world_size, "rank")

    @property
    def restarts_text(self) -> str:
        """Restarts and preemptions as text.

        Example: "0 restarts, 2 preemptions (3 steps lost, 5 min 20 s waited)".
        """
        text = amounts.counted(self.restarts, "restart")
        if not self.preemptions:
            return text
        lost = f"{amounts.counted(self.preemption_lost_steps, 'step')} lost"
        waited = f"{amounts.elapsed(self.preemption_waited_seconds)} waited"
        return f"{text}, {amounts.counted(self.preemptions, 'preemption')} ({lost}, {waited})"

    @property
    def elapsed_text(self) -> str:
        """Elapsed time as text, with the paused part."""
        return elapsed_words(self.elapsed_seconds, self.paused_seconds)


def job_status(record: JobRecord, active: bool, events: Sequence[Mapping[str, Any]], now: float) -> JobStatus:
    """Return the status of a job. If the job is not active, `record` must include its end."""
    begin = "started_at" if record.started_at else "created_at"
    elapsed = record.seconds_since(begin, now) if active else record.seconds_between(begin, "ended_at")
    return JobStatus(
        job_id=record.job_id,
        created_at=record.created_at,
        started_at=record.started_at,
        ended_at=record.ended_at,
        attempt=record.attempt,
        restarts=record.restarts,
        resumed_from_step=record.resumed_from_step,
        world_size=record.world_size,
        backend=record.backend,
        command=record.command,
        elapsed_seconds=elapsed,
        preemptions=len(record.preemptions),
        preemption_lost_steps=record.preemption_lost_steps,
        preemption_waited_seconds=record.preemption_waited_seconds,
        saving=record.attempts[-1].saving if record.attempts else "",
        paused_seconds=paused_seconds(events, record.created_at, now if active else record.ended_at or now),
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class JobDescription(Result, JobStatus):
    """Everything that nbtrain shows of a job: status, conditions, events, replicas and resources."""

    name: str
    run_id: str | None
    parent: str | None
    """Run id of the run that this run was cloned from; None if it is not a clone."""
    parent_name: str | None
    """Name of the parent run; None if it no longer exists or there is no parent."""
    place: dict[str, str]
    """Identity of the job in its scheduler (place_of() in job_records.py); {} with kind: local."""
    restart_policy: str
    started_from: str
    """Checkpoint or model that init_from names; "" if the weights were initialized randomly."""
    twin: str
    """For a twin, its run and the results of its checks; "" for any other run."""
    state: str
    phase: str
    cause: str | None
    engine: dict[str, Any] | None
    """Last report of the scheduler (engine.json); None if there is no report."""
    labels: dict[str, str]
    """Labels set by the user, without those that nbtrain sets."""
    notes: str
    """The user's notes on the run. Like `archived`, they belong to the run, not to the job."""
    archived: bool
    image: str | None
    requests: dict[str, float]
    """Resources requested for each replica: {metric or "gpus": amount}."""
    autotuner: str | None
    """Result of DeepSpeed's autotuner and how to apply it; None if the autotuner was not requested."""
    limits: dict[str, float]
    """Limits of each replica: {metric: maximum}; the smallest maximum if replicas differ."""
    folder: str
    yaml: str
    """Resolved configuration that the job was submitted with."""
    conditions: list[Condition]
    events: list[JobEvent]
    replicas: list[Replica]
    life: dict[str, Any]
    """The job's life as spans of time (monitor/status/life.py)."""
    spending: Spending
    """Device use of all jobs of the run, with the cost of each fault."""
    device: str
    """Kind of device that the ranks compute on: "cpu" or "gpu"."""
    usage: list[NodeUsage]
    """Resource use over time; one entry per replica that has measurements."""
    usage_warnings: list[str]
    """Messages about measurements that cannot be read, such as a file from another version of nbtrain."""

    def to_dict(self, most_points: int = MOST_POINTS) -> dict[str, Any]:
        """Return the job page as JSON values: base units, seconds since the epoch, None if not known.

        Curves have at most `most_points` points.
        """
        own = {name: value for name, value in vars(self).items() if name != "usage"}
        plain = {name: _plain(value) for name, value in own.items()}
        plain["spending"] = self.spending.to_dict()
        curves = [usage_part(node, most_points) for node in self.usage]
        return finite({"schema_version": SCHEMA_VERSION, **plain, "resources": curves})

    def as_report(self, num_events: int = NUM_EVENTS) -> Report:
        """Return a report: basic facts, conditions, faults, replicas with ranks, resources, newest events."""
        conditions = [
            (entry.type, str(entry.status), amounts.utc(entry.last_change), entry.reason, entry.message)
            for entry in self.conditions
        ]
        replicas = [row for replica in self.replicas for row in replica_rows(replica)]
        measured = [row for replica in self.replicas for row in resource_rows(replica)]
        last = "LAST" if self.ended_at else "NOW"
        blocks = [
            Sentence(self.cause or ""),
            Facts([(label, text) for label, text in basics(self) if label not in ("state", "job")]),
            Code(self.notes.strip(), "notes", wraps=True),
            Table(
                ("TYPE", "STATUS", "SINCE (UTC)", "REASON", "MESSAGE"),
                conditions,
                "Conditions",
                wraps_last=True,
            ),
            Table(FAULT_TITLES, fault_rows(self.spending), "Faults of the run"),
            Table(REPLICA_TITLES, replicas, "Replicas", wraps_last=True),
            Table(("REPLICA", "METRIC", last, "MEAN", "PEAK", "REQUEST", "LIMIT"), measured, "Resources"),
            Findings([Finding("warning", "usage", "", "", warning) for warning in self.usage_warnings]),
            self._newest_events(num_events),
        ]
        return Report(f"{self.name} {self.state}: job {self.job_id} on backend {self.backend}", blocks)

    def _newest_events(self, num_events: int) -> Table:
        events = self.events[-num_events:] if num_events else []
        now = time.time()
        rows = [
            (
                amounts.utc(event.time) if self.ended_at else f"{amounts.elapsed(now - event.time)} ago",
                *(event.type, event.reason, event.object, event.message),
            )
            for event in events
        ]
        heads = ("TIME (UTC)" if self.ended_at else "AGE", "TYPE", "REASON", "OBJECT", "MESSAGE")
        is_part = len(events) < len(self.events)
        title = f"Events, newest {len(events)} of {len(self.events)}" if is_part else "Events"
        return Table(heads, rows, title, wraps_last=True)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [asdict(item) if hasattr(item, "__dataclass_fields__") else item for item in value]
    return value


def basics(page: JobDescription) -> list[list[str]]:
    """Return the basic facts of a job as [label, text], without empty ones."""
    size = f"{page.ranks_text}, attempt {page.attempt}, {page.restarts_text}"
    rows = [
        ("state", page.state + (f": {page.cause}" if page.cause else "")),
        ("job", f"{page.job_id} of run {page.run_id or '-'}, backend {page.backend}"),
        *page.place.items(),
        ("twin", page.twin),
        ("cloned from", cloned_from(page)),
        ("started from", page.started_from),
        ("labels", ", ".join(f"{key}={value}" for key, value in page.labels.items())),
        ("submitted", amounts.moment(page.created_at)),
        ("ended", amounts.moment(page.ended_at) if page.ended_at else ""),
        ("elapsed", page.elapsed_text),
        ("cost of the run", page.spending.words("GPU" if page.device == "gpu" else "process")),
        ("size", f"{amounts.counted(len(page.replicas), 'replica')}, {size}"),
        ("request per replica", amounts_text(page.requests) or "none"),
        ("limit per replica", amounts_text(page.limits) or "none"),
        ("image", page.image or ""),
        ("replicas", replicas_words(page)),
        ("restart policy", page.restart_policy),
        ("scheduler", engine_words(page.engine, ended=page.ended_at is not None) if page.engine else ""),
        ("DeepSpeed's autotuner", page.autotuner or ""),
        ("archived", "hidden in `nbtrain runs` without --archived" if page.archived else ""),
        ("command", shlex.join(["python", *page.command, page.folder]) if page.command else ""),
    ]
    return [[label, text] for label, text in rows if text]


def fault_rows(spending: Spending) -> list[tuple[str, ...]]:
    """Return the table rows of a run's faults (attempts that failed or were preempted), oldest first.

    FAULT_TITLES has the titles of the columns.
    """
    return [
        (
            amounts.utc(fault.time),
            str(fault.attempt),
            fault.cause,
            fault_words(fault),
            amounts.amount(fault.device_hours, digits=3),
            "" if fault.money is None else f"{amounts.amount(fault.money, digits=3)} {spending.currency}",
        )
        for fault in spending.faults
    ]


def cloned_from(page: JobDescription) -> str:
    """Return the parent run's name and id, or only its id if it no longer exists; "" without a parent."""
    if page.parent is None:
        return ""
    return f"{page.parent_name} (run {page.parent})" if page.parent_name else f"run {page.parent}"


def replicas_words(page: JobDescription) -> str:
    """Count replicas by role and phase, such as "2 x worker: 2 Running"."""
    roles = Counter(replica.labels.get("role", "") for replica in page.replicas)
    phases = Counter(replica.phase for replica in page.replicas)
    states = ", ".join(f"{count} {phase}" for phase, count in phases.items())
    return ", ".join(f"{count} x {role}" for role, count in roles.items()) + f": {states}" if roles else ""


def engine_words(said: Mapping[str, Any], asked_seconds_ago: float = 0.0, ended: bool = False) -> str:
    """Describe the scheduler's last report, its age, and whether the scheduler cannot be reached.

    After the job's end, the scheduler is no longer queried.
    """
    engine, reason = said.get("engine") or "the scheduler", said.get("reason") or ""
    if ended and said.get("state") in ACTIVE - {RUNNING}:
        # The reason for waiting does not apply to a job that has ended.
        return f"{engine}: no longer queried, because the job has ended"
    if reason.startswith(engine):
        words = reason
    else:
        words = f"{engine}: {said.get('state') or 'does not know the job'}{', ' if reason else ''}{reason}"
    if ended and said.get("state") in ACTIVE:
        words += " (its last report before the job's end)"
    elif said.get("seen") is False:
        words += f" (scheduler not reachable now: {said.get('trouble') or 'it does not respond'})"
    elif asked_seconds_ago >= OLD_WORD_SECONDS:
        words += f" (queried {amounts.elapsed(asked_seconds_ago)} ago)"
    return words


def amounts_text(found: Mapping[str, float]) -> str:
    """Format requests or limits, such as "2 cores, 23.5 GiB of memory"; "" for an empty mapping."""
    words = []
    for name, value in found.items():
        if name == "gpus":
            words.append(amounts.counted(int(value), "GPU"))
        elif name == "cpu_cores":
            words.append(f"{value:g} core{'' if value == 1 else 's'}")
        else:
            words.append(f"{metric_text(name, value)} of memory")
    return ", ".join(words)


def replica_rows(replica: Replica) -> list[tuple[str, ...]]:
    """Return the table rows of a replica: one for the replica itself, then one for each of its ranks.

    REPLICA_TITLES has the titles of the columns.
    """
    rows: list[tuple[str, ...]] = [
        (
            replica.name,
            replica.host or UNKNOWN,
            replica.phase,
            str(replica.restarts)
            + (f" (pod: {pod.restarts})" if (pod := replica.pod) and pod.restarts else ""),
            *_pair(replica.use),
            replica.message,
        )
    ]
    ranks = [row for row in replica.ranks if len(replica.ranks) <= MOST_RANKS or row.phase in (ERROR, GONE)]
    for row in ranks:
        step = "" if row.step is None else f"step {row.step:,}"
        more = ", ".join(filter(None, (row.activity, step)))
        phase = f"{row.phase} ({more})" if more else row.phase
        use = _pair(row.use) if len(replica.ranks) > 1 else ("", "")
        rows.append((f"  rank {row.rank}", "", phase, "", *use, row.message))
        failed = [end for end in row.earlier if end.failed]
        for end in failed[-MOST_EARLIER:]:
            rows.append(("", "", f"  attempt {end.attempt}: {ERROR}", "", "", "", end.message))
    if len(ranks) < len(replica.ranks):
        more = amounts.counted(len(replica.ranks) - len(ranks), "more rank")
        rows.append((f"  and {more}", "", "", "", "", "", ""))
    return rows


def _pair(use: dict[str, Use]) -> tuple[str, str]:
    """Return the newest (CPU use, memory use), each with its limit."""
    return use_of_limit("cpu_cores", use), use_of_limit("memory_bytes", use)


def use_of_limit(name: str, use: dict[str, Use]) -> str:
    """Format the newest value of a metric with its limit, such as "2.00 of 4.00"."""
    one = use.get(name)
    if one is None or one.newest is None:
        return UNKNOWN
    return metric_text(name, one.newest) + (f" of {metric_text(name, one.limit)}" if one.limit else "")


def resource_rows(replica: Replica) -> list[tuple[str, ...]]:
    rows = []
    gpus = [(f"{subject}, ", gpu.use) for subject, gpu in replica.gpus.items()]
    for prefix, uses in [("", replica.use), *gpus]:
        for name, use in uses.items():
            if use.peak is None:
                continue
            figures = (use.newest, use.mean, use.peak, use.request, use.limit)
            label = prefix + (FIGURES[name].label if name in FIGURES else name.replace("_", " "))
            rows.append((replica.name, label, *(metric_text(name, value) for value in figures)))
    return rows


def metric_text(name: str, value: float | None) -> str:
    """Format the value of a metric with its unit."""
    if value is None:
        return UNKNOWN
    unit = FIGURES[name].unit if name in FIGURES else ""
    if unit == "bytes":
        return amounts.size(value)
    if unit == "bytes/s":
        return f"{amounts.size(value)}/s"
    if unit == "share":
        return f"{100 * value:.0f} %"
    if unit == "cores":
        return f"{value:.2f}" if value < 10 else f"{value:.1f}"
    number = amounts.count(round(value, 1) if value < 100 else round(value))
    return f"{number}/s" if unit == "1/s" else f"{number} {unit}".strip()
