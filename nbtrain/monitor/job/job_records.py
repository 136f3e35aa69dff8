"""Reads the description of a job from the run directory, without querying a scheduler.

describe_job(RunDir, job_id)  ->  JobDescription
"""

import time
from collections.abc import Mapping
from typing import Any

from nbtrain.base import files
from nbtrain.base.errors import JobError
from nbtrain.base.run_directory.events import read_events
from nbtrain.base.run_directory.jobstate import (
    ACTIVE,
    CANCELLED,
    FAILED,
    FAILURES,
    LOST,
    QUEUED,
    RESTARTING,
    RUNNING,
    STARTING,
    SUCCEEDED,
    SUSPENDED,
)
from nbtrain.base.run_directory.outcomes import FAILED_OUTCOMES
from nbtrain.base.run_directory.rank_phases import (
    ERROR,
    GONE,
    NOT_STARTED,
    RUNNING_RANK,
    STOPPED,
    SUCCEEDED_RANK,
    WAITING_PHASES,
    phase_of_rank,
)
from nbtrain.base.run_directory.records import ExitRecord, Heartbeat, JobRecord
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.base.run_directory.usage import rank_subject
from nbtrain.base.text import amounts
from nbtrain.base.workspace import display
from nbtrain.config.load.autotune import found_words
from nbtrain.config.load.resolved_cache import kept_config
from nbtrain.config.schema import RunConfig
from nbtrain.monitor.job.conditions import SUCCEEDED_REASONS, conditions, failure_reason, job_events
from nbtrain.monitor.job.job_description import JobDescription, LogFile, RankEnd, RankRow, Replica, job_status
from nbtrain.monitor.job.pods import cluster_events, pods_of, reason_of_failure
from nbtrain.monitor.job.rank_records import read_heartbeats, records_of_rank
from nbtrain.monitor.logs.logs import log_attempts
from nbtrain.monitor.status.life import life
from nbtrain.monitor.status.notes import RunNotes, notes_of
from nbtrain.monitor.status.run_ids import name_of
from nbtrain.monitor.status.spending import run_spending
from nbtrain.monitor.status.status_records import job_with_end, lost_words
from nbtrain.monitor.usage.job_use import gpus, limits, uses
from nbtrain.monitor.usage.usage import NodeUsage, read_usage, usage_warnings

# Maximum number of hosts that are listed by name.
MOST_HOSTS = 8
# Prefixes of metrics that are measured only for the whole machine or pod; they are shown with its replica's
# metrics.
OF_NODES = ("network_", "rdma_", "disk_reads_", "disk_writes_")
PHASES = {
    QUEUED: "Pending",
    STARTING: "Starting",
    RUNNING: "Running",
    RESTARTING: "Running",
    SUSPENDED: "Suspended",
    SUCCEEDED: "Succeeded",
    FAILED: "Error",
    CANCELLED: "Cancelled",
    LOST: "Lost",
}
"""{state of a job: its phase on a job page}."""


def describe_job(run: RunDir, job_id: str | None = None, now: float | None = None) -> JobDescription:
    """Return the description of a run's newest job, or of `job_id`. Raises JobError if it does not exist."""
    job = run.existing_job(job_id)
    now = time.time() if now is None else now
    record, state, cause = job_with_end(job, now)
    if record is None:
        raise JobError(f"{display(job.path)}: there is no job.json, because the submission was interrupted.")
    config = kept_config(job.config_yaml)
    usage = read_usage(job.resources)
    active, said = state in ACTIVE, notes_of(run)
    replicas = _replicas(job, record, config, usage, state)
    events = read_events(job)
    since = now if active else (record.ended_at or now)
    engine = files.read_json_unsynced(job.engine_json)
    if state == SUSPENDED and engine:
        since = engine["asked_at"]
    asked = {
        "cpu_cores": config.resources.cpus_per_node,
        "memory_bytes": config.resources.memory_per_node_bytes,
    }
    requests = {name: float(value) for name, value in asked.items() if value is not None}
    if config.resources.device == "gpu":
        requests["gpus"] = float(config.resources.gpus_per_node)
    parent = (run.record() or {}).get("parent")
    codes = [row.exit_code for replica in replicas for row in replica.ranks if row.phase == ERROR]
    said_by_engine = reason_of_failure(job) or (engine or {}).get("ended_as")
    reason = (state in FAILURES and said_by_engine) or failure_reason(state, cause, codes)
    reason = SUCCEEDED_REASONS[config.mode] if state == SUCCEEDED else reason
    return JobDescription(
        **vars(job_status(record, active, events, now)),
        name=run.name,
        run_id=record.run_id,
        parent=parent,
        parent_name=name_of(parent, run.path.parent) if parent else None,
        place=place_of(job, config),
        restart_policy=restart_policy(config),
        started_from=started_from(run, config),
        twin=twin_words(run),
        state=state,
        phase=PHASES.get(state, state),
        cause=f"{cause}; {lost_words(job, now)}" if state == LOST else cause,
        engine=engine,
        labels=_labels(run, job, record, said),
        notes=said.notes,
        archived=said.archived,
        image=config.image,
        requests=requests,
        autotuner=found_words(run, config, record.autotune, active),
        limits=limits(usage),
        folder=display(run.path),
        yaml=job.config_yaml.read_text(encoding="utf-8"),
        conditions=conditions(events, record.created_at, (state, cause, since, reason)),
        events=job_events(sorted(events + cluster_events(job), key=lambda event: event["time"])),
        replicas=replicas,
        life=life(events, record.created_at, now if active else record.ended_at or now, _doing(job, active)),
        spending=run_spending(run, now),
        device=config.resources.device,
        usage=usage,
        usage_warnings=usage_warnings(job.resources),
    )


def _doing(job: JobDir, active: bool) -> tuple[str, float] | None:
    """Return (current phase of rank 0, time of its start); None if rank 0 is not running."""
    heartbeat = Heartbeat.read(job.heartbeat(0)) if active else None
    if heartbeat is None or heartbeat.process.gone():
        return None
    return heartbeat.phase, heartbeat.phase_since


def _labels(run: RunDir, job: JobDir, record: JobRecord, said: RunNotes) -> dict[str, str]:
    """Return the user's labels: the run's current ones for the newest job, otherwise those at submission."""
    newest = job.job_id == run.job_ids()[-1]
    return said.applied(record.labels) if newest else dict(record.labels)


def _replicas(
    job: JobDir, record: JobRecord, config: RunConfig, usage: list[NodeUsage], state: str
) -> list[Replica]:
    measured = {node.node: node for node in usage}
    said, pods = _node_records(job), pods_of(job)
    ranks_of: dict[int, list[int]] = {index: [] for index in pods}
    ranks_of |= _ranks_of(job, config, measured)
    heartbeats, logs = read_heartbeats(job, record), log_attempts(job)
    found = []
    for index in sorted(ranks_of):
        node, words, pod = measured.get(index), said.get(index, {}), pods.get(index)
        single = len(ranks_of[index]) == 1
        rows = [_rank(job, record, rank, heartbeats, logs, node, single, state) for rank in ranks_of[index]]
        bad = [row for row in rows if row.phase == ERROR]
        seen = words.get("host") or (node.host if node else "") or _host(heartbeats, rows)
        # Until a rank reports, only the state of the pod is known.
        waits = all(row.phase in WAITING_PHASES for row in rows)
        # The pod knows the machine's name; the node agent may know only the name of its pod.
        host = str((pod.host if pod else "") or seen or "")
        own_log = job.node_log(index)
        first_log = job.supervisor_log if index == 0 else own_log
        found.append(
            Replica(
                index=index,
                name=f"worker {index}",
                host=host,
                address=str(words.get("address") or ""),
                phase=pod.phase if pod and waits else _replica_phase(rows, state),
                restarts=record.restarts,
                message="; ".join(
                    [f"rank {row.rank}: {row.message}" for row in bad[:3]]
                    + ([pod.reason] if pod and pod.reason else [])
                ),
                labels={"role": "worker", "index": str(index)},
                image=config.image,
                ranks=rows,
                logs=[_log(job, path) for path in dict.fromkeys((first_log, own_log)) if path.exists()],
                use=uses(node, "replica") | uses(node, "node", OF_NODES),
                gpus=gpus(node),
                pod=pod,
            )
        )
    return found


def _node_records(job: JobDir) -> dict[int, dict[str, Any]]:
    """Return {node: record of its agent, nodes/<k>.json}; empty on backends without node agents."""
    return {node: files.read_json(path) or {} for node, path in job.node_records().items()}


def _ranks_of(job: JobDir, config: RunConfig, measured: Mapping[int, NodeUsage]) -> dict[int, list[int]]:
    """Return {replica: its ranks}.

    The ranks come from the launch order; without an order, from the measurements of the nodes; without both,
    from the configuration.
    """
    order = files.read_json(job.control_launch) or {}
    found = {index: list(node.about.get("ranks") or []) for index, node in measured.items()}
    if not order.get("ranks") and any(found.values()):
        return found
    found, first = {}, 0
    for index, count in enumerate(order.get("ranks") or config.ranks_by_node):
        found[index], first = list(range(first, first + count)), first + count
    return found


def _rank(
    job: JobDir,
    record: JobRecord,
    rank: int,
    heartbeats: Mapping[int, Heartbeat],
    logs: Mapping[int, list[int]],
    node: NodeUsage | None,
    single: bool,
    state: str,
) -> RankRow:
    attempt, beat, ended = records_of_rank(job, record, rank, heartbeats, logs, state)
    phase, activity = phase_of_rank(state, record.attempt, beat, ended)
    code, message = None, ""
    if ended is not None:
        end = _end(ended)
        code, message = end.exit_code, end.message
    before = (ExitRecord.read(job.exit_record(rank, number)) for number in range(attempt))
    return RankRow(
        rank=rank,
        phase=phase,
        activity=activity,
        attempt=attempt,
        step=ended.step if ended and ended.step is not None else beat.step if beat else None,
        compute_seconds=beat.compute_seconds if beat and beat.attempt == attempt else None,
        exit_code=code,
        message=message,
        earlier=[_end(end) for end in before if end],
        logs=[_log(job, job.log(rank, number), number) for number in logs.get(rank, [])],
        use=uses(node, "replica" if single else rank_subject(rank)),
    )


def _end(record: ExitRecord) -> RankEnd:
    code = 128 + record.signal if record.signal else record.exit_code
    failed = record.outcome in FAILED_OUTCOMES
    message = f"exit code {code}: {record.message}" if failed and code is not None else record.message
    return RankEnd(record.attempt, record.time, code, failed, message)


def _replica_phase(rows: list[RankRow], state: str) -> str:
    phases = {row.phase for row in rows}
    if state in ACTIVE and state not in (QUEUED, STARTING, RUNNING):
        return PHASES[state]
    for phase in (ERROR, RUNNING_RANK, *reversed(WAITING_PHASES), GONE, NOT_STARTED, STOPPED):
        if phase in phases:
            return phase
    return SUCCEEDED_RANK if rows else PHASES.get(state, state)


def _host(heartbeats: Mapping[int, Heartbeat], rows: list[RankRow]) -> str:
    beat = heartbeats.get(rows[0].rank) if rows else None
    return (beat.host or beat.process.host) if beat else ""


def _log(job: JobDir, path: Any, attempt: int | None = None) -> LogFile:
    size = path.stat().st_size if path.exists() else 0
    return LogFile(path.relative_to(job.run.path).as_posix(), size, attempt)


def place_of(job: JobDir, config: RunConfig) -> dict[str, str]:
    """Return {label: text} that identifies the job in its scheduler; {} with kind: local.

    Examples are the Kubernetes object and its UID, the Slurm job id, and the hosts.
    """
    handle = files.read_json(job.handle_json) or {}
    found: dict[str, Any] = {}
    if config.backend.kind == "kubernetes":
        section = config.backend.kubernetes
        found = {
            "object": " ".join([handle.get("kind") or section.workload, handle.get("name") or ""]).strip(),
            "namespace": handle.get("namespace") or section.namespace,
            "uid": handle.get("uid"),
            "cluster": handle.get("context") or section.context,
            "queue": section.queue,
        }
    elif config.backend.kind == "slurm":
        slurm = config.backend.slurm
        found = {
            "Slurm job": ", ".join(handle.get("numbers") or []),
            "cluster": handle.get("cluster"),
            "partition": slurm.partition,
            "account": slurm.account,
        }
    elif config.backend.kind == "hosts":
        hosts = handle.get("hosts") or []
        more = f" and {len(hosts) - MOST_HOSTS} more" if len(hosts) > MOST_HOSTS else ""
        found = {"hosts": ", ".join(hosts[:MOST_HOSTS]) + more}
    return {label: str(text) for label, text in found.items() if text}


def started_from(run: RunDir, config: RunConfig) -> str:
    """Describe the checkpoint or model that the run started from; "" with randomly initialized weights."""
    if config.init_from is None:
        return ""
    taken = files.read_json(run.init_from_json) or {}
    adapters = (
        f", with adapters from {config.lora.init_from}" if config.lora and config.lora.init_from else ""
    )
    if "step" in taken:
        chosen = f", chosen by init_step: {config.init_step}" if isinstance(config.init_step, str) else ""
        run_id = f" (run {taken['run_id']}{chosen})" if taken.get("run_id") else ""
        return f"step {taken['step']:,} of {taken['run']}{run_id}{adapters}"
    family = f"{taken['family']}, " if taken.get("family") else ""
    return f"{family}{config.init_from}{adapters}"


def twin_words(run: RunDir) -> str:
    """Describe a twin: its run and the results of its checks; "" for any other run."""
    of = (run.record() or {}).get("twin_of")
    if not of:
        return ""
    report = files.read_json(run.path / "twin.json")
    if report is None:
        return f"of {of}: its checks are still running; the report is written when they are done"
    failed = [check for check in report["checks"] if check["outcome"] != "passed"]
    if not failed:
        return f"of {of}: PASSED: {', '.join(check['name'] for check in report['checks'])}"
    return f"of {of}: FAILED: " + "; ".join(f"{check['name']}: {check['message']}" for check in failed)


def restart_policy(config: RunConfig) -> str:
    """Describe what happens after a failure, as part of a sentence."""
    most = config.backend.max_restarts
    words = f"restarts from the newest checkpoint after a failure, at most {amounts.counted(most, 'time')}"
    words = words if most else "does not restart: a failure ends the job"
    if config.backend.kind == "kubernetes":
        section = config.backend.kubernetes
        words += f"; pods: {section.pod_restart_policy or f'as set by the runtime {section.runtime}'}"
    slurm = config.backend.slurm
    if config.backend.kind == "slurm" and (slurm.requeue or slurm.resubmissions):
        again = [amounts.counted(slurm.resubmissions, "resubmission")] if slurm.resubmissions else []
        words += "; Slurm: " + ", ".join(["requeued when a node fails"] * slurm.requeue + again)
    return words
