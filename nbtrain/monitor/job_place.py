"""Facts for a job page: its place in the scheduler, the start of its run, and the way to start it again."""

from typing import Any

from nbtrain.base import amounts, files
from nbtrain.base.rundir import JobDir, RunDir
from nbtrain.config.schema import RunConfig

# If there are many machines, only this many are named.
MOST_HOSTS = 8


def place_of(job: JobDir, config: RunConfig) -> dict[str, str]:
    """Return {label: text}: Kubernetes' object and UID, Slurm's job, the hosts; {} on kind: local."""
    said = files.read_json(job.handle_json) or {}
    found: dict[str, Any] = {}
    if config.backend.kind == "kubernetes":
        section = config.backend.kubernetes
        found = {
            "object": " ".join([said.get("kind") or section.workload, said.get("name") or ""]).strip(),
            "namespace": said.get("namespace") or section.namespace,
            "uid": said.get("uid"),
            "cluster": said.get("context") or section.context,
            "queue": section.queue,
        }
    elif config.backend.kind == "slurm":
        slurm = config.backend.slurm
        found = {
            "Slurm job": ", ".join(said.get("numbers") or []),
            "cluster": said.get("cluster"),
            "partition": slurm.partition,
            "account": slurm.account,
        }
    elif config.backend.kind == "hosts":
        hosts = said.get("hosts") or []
        more = f" and {len(hosts) - MOST_HOSTS} more" if len(hosts) > MOST_HOSTS else ""
        found = {"hosts": ", ".join(hosts[:MOST_HOSTS]) + more}
    return {label: str(text) for label, text in found.items() if text}


def started_from(run: RunDir, config: RunConfig) -> str:
    """Return the checkpoint or model with which the run started; "" if its weights were initialized
    randomly.
    """
    if config.init_from is None:
        return ""
    taken = files.read_json(run.init_from_json) or {}
    adapters = f", with adapters of {config.lora.init_from}" if config.lora and config.lora.init_from else ""
    if "step" in taken:
        chosen = f", its {config.init_step} at the submission" if isinstance(config.init_step, str) else ""
        run_id = f" (run {taken['run_id']}{chosen})" if taken.get("run_id") else ""
        return f"step {taken['step']:,} of {taken['run']}{run_id}{adapters}"
    family = f"{taken['family']}, " if taken.get("family") else ""
    return f"{family}{config.init_from}{adapters}"


def twin_words(run: RunDir) -> str:
    """Return the results of a twin's checks and the run that it belongs to; "" for any other run."""
    of = (run.record() or {}).get("twin_of")
    if not of:
        return ""
    report = files.read_json(run.path / "twin.json")
    if report is None:
        return f"of {of}: its checks continue; their report comes when all are done"
    failed = [check for check in report["checks"] if check["outcome"] != "passed"]
    if not failed:
        return f"of {of}: PASSED: {', '.join(check['name'] for check in report['checks'])}"
    return f"of {of}: FAILED: " + "; ".join(f"{check['name']}: {check['message']}" for check in failed)


def restart_policy(config: RunConfig) -> str:
    """Return what happens after a failure, as a part of a sentence."""
    most = config.backend.max_restarts
    words = f"after a failure from the newest checkpoint, at most {amounts.counted(most, 'time')}"
    words = words if most else "never: a failure ends the job"
    if config.backend.kind == "kubernetes":
        section = config.backend.kubernetes
        words += f"; pods: {section.pod_restart_policy or f'as the runtime {section.runtime} says'}"
    slurm = config.backend.slurm
    if config.backend.kind == "slurm" and (slurm.requeue or slurm.resubmissions):
        again = [amounts.counted(slurm.resubmissions, "resubmission")] if slurm.resubmissions else []
        words += "; Slurm: " + ", ".join(["requeued when a node fails"] * slurm.requeue + again)
    return words
