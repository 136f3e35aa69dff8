"""Slurm's states and reasons, each with an explanation of why a job waits, ended, or is in a special state.

The tables contain the names in versions 20.11 to 25.05 (slurm/src/common: slurm_protocol_defs.c,
job_state_reason.c, and the sentences of slurmctld, whose spaces scontrol prints as _). Slurm's own name is
shown next to the explanation. An unknown name gets a general explanation.
"""

import re

from nbtrain.base.run_directory.jobstate import CANCELLED, FAILED, QUEUED, RUNNING, SUCCEEDED, SUSPENDED

# {number} stands for the number of the Slurm job; engine.waiting_words() fills it in.
RELEASE = "to release it, run `scontrol release {number}`"

STATES = {
    "PENDING": (QUEUED, ""),
    "CONFIGURING": (QUEUED, "it has its nodes, and they are being started"),
    "POWER_UP_NODE": (QUEUED, "it has its nodes, and they are being switched on"),
    "REQUEUED": (QUEUED, "it is being put back into the queue"),
    "REQUEUE_FED": (QUEUED, "another cluster of the federation may start it"),
    "REQUEUE_HOLD": (QUEUED, f"it was put back into the queue and is held; {RELEASE}"),
    "SPECIAL_EXIT": (QUEUED, f"its exit code requires an inspection, and it is held; {RELEASE}"),
    "RESV_DEL_HOLD": (QUEUED, f"its reservation was deleted, and it is held; {RELEASE}"),
    "RUNNING": (RUNNING, ""),
    "COMPLETING": (RUNNING, "its last processes are being ended"),
    "SIGNALING": (RUNNING, "Slurm is sending it a signal"),
    "STAGE_OUT": (RUNNING, "its files are being copied from the burst buffer"),
    "RESIZING": (RUNNING, "its number of nodes is being changed"),
    "EXPEDITING": (RUNNING, "after a restart, it starts before other jobs"),
    "UPDATE_DB": (RUNNING, "accounting is being updated"),
    "SUSPENDED": (SUSPENDED, "its processes are stopped, and its nodes may run other jobs"),
    "STOPPED": (SUSPENDED, "its processes are stopped, and it keeps its nodes"),
    "COMPLETED": (SUCCEEDED, ""),
    "CANCELLED": (CANCELLED, "by its user or an administrator"),
    "REVOKED": (CANCELLED, "another cluster of the federation has started it"),
    "FAILED": (FAILED, "its batch step ended with an error"),
    "TIMEOUT": (FAILED, "its time limit has passed"),
    "DEADLINE": (FAILED, "the deadline that was given to sbatch has passed"),
    "NODE_FAIL": (FAILED, "one of its nodes failed"),
    "BOOT_FAIL": (FAILED, "one of its nodes did not start"),
    "LAUNCH_FAILED": (FAILED, "it could not be started on its nodes"),
    "RECONFIG_FAIL": (FAILED, "its nodes could not be set up for it"),
    "OUT_OF_MEMORY": (FAILED, "it used more memory than it requested"),
    "PREEMPTED": (FAILED, "a more urgent job took its nodes"),
}
"""{Slurm's state: (nbtrain's state, explanation)}."""

WAITING = {
    "None": "Slurm has not considered it yet",
    "Priority": "jobs with a higher priority come first",
    "Resources": "the nodes that it needs are busy",
    "Dependency": "it waits for another job",
    "DependencyNeverSatisfied": "the job that it depends on has failed; it will never start",
    "BeginTime": "its earliest start time has not come yet; after a requeue, it is about 2 minutes later",
    "JobHeldUser": f"held by its user; {RELEASE}",
    "JobHeldAdmin": "held by an administrator; only an administrator can release it",
    "job_requeued_in_held_state": f"it was put back into the queue and is held; {RELEASE}",
    "launch_failed_requeued_held": f"it could not be started, and is held; {RELEASE}",
    "job_requeued_in_special_exit_state": f"it is held because of its exit code, for inspection; {RELEASE}",
    "JobHoldMaxRequeue": f"it was requeued too often, and is held; {RELEASE}",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition does not accept jobs now",
    "PartitionNodeLimit": "it requests more or fewer nodes than the partition allows",
    "PartitionTimeLimit": "its time limit is longer than the partition allows",
    "PartitionConfig": "its request does not fit the partition",
    "ReqNodeNotAvail": "a node that it needs is down, drained or reserved",
    "NodeNotAvail": "a node that it needs is not available",
    "NodeDown": "a node that it needs is down",
    "Nodes_required_for_job_are_DOWN": "nodes that it needs are down, drained, or kept for more urgent jobs",
    "Reserved_for_maintenance": "its nodes are reserved for maintenance",
    "FrontEndDown": "no front-end node is up",
    "SchedDefer": "the cluster starts jobs only in the scheduler's next round, not at their submission",
    "BadConstraints": "no node has the features that it requests",
    "Constraints": "no node has the features that it requests",
    "Licenses": "a license that it needs is in use",
    "InvalidAccount": "the account is unknown",
    "InvalidQOS": "the quality of service is unknown",
    "AccountNotAllowed": "the account may not use this partition",
    "QOSNotAllowed": "the quality of service may not use this partition",
    "QOSUsageThreshold": "the account's fair share is below the threshold of the quality of service",
    "AccountingPolicy": "an accounting limit is reached",
    "Reservation": "it waits for its reservation",
    "ReservationDeleted": f"its reservation was deleted, and it is held; {RELEASE}",
    "ReservationInvalid": "its reservation is unknown or cannot be used",
    "Cleaning": "its last run is still being cleaned up",
    "JobArrayTaskLimit": "an earlier task of its array is still running",
    "DeadLine": "it cannot end before its deadline",
    "MaxMemPerLimit": "it requests more memory than a limit allows",
    "BurstBufferResources": "the burst buffer is in use",
    "BurstBufferStageIn": "its files are being copied to the burst buffer",
    "BurstBufferOperation": "the burst buffer reported an error, and it is held; ask an administrator",
    "PowerNotAvail": "there is not enough power for more nodes",
    "PowerReserved": "the power for its nodes is reserved",
    "Prolog": "its nodes are being prepared",
    "FedJobLock": "the clusters of the federation are deciding where it starts",
    "SystemFailure": "Slurm itself has failed; ask an administrator",
    "JobLaunchFailure": "it could not be started",
    "InactiveLimit": "it was idle for longer than the cluster allows",
    "NonZeroExitCode": "its exit code is not 0",
    "RaisedSignal": "a signal ended it",
    "TimeLimit": "its time limit has passed",
    "OutOfMemory": "it used more memory than it requested",
}
"""{Slurm's reason for waiting or ending: explanation}.

If a reason contains a comma, reason_words() looks up the part after the comma first, then the part before it.
"""

# Names of limits, such as AssocGrpCPURunMinutesLimit, QOSMaxMemoryPerUser, MaxJobsPerAccount or QOSMinGRES.
# They state whose limit it is (account or quality of service), on which resource, and over which jobs.
LIMIT = re.compile(
    r"(?P<whose>Association|Assoc|QOS|)(?P<kind>Grp|Max|Min|)(?P<what>Cpu|CPU|Mem(?:ory)?|Node|Jobs?|"
    r"Submit(?:Jobs?)?|WallDuration|Wall|GRES|License|BB|Energy|Billing|Unknown|Resource|Time)"
    r"(?P<minutes>(?:Run)?Minutes|)(?:Per(?P<each>Job|Node|User|Account)|)(?:Limit|NotSatisfied|)"
)
WHOSE = {"Assoc": "the account or its user", "Association": "the account or its user"}
WHAT = {
    "Cpu": "cores",
    "CPU": "cores",
    "Mem": "memory",
    "Memory": "memory",
    "Node": "nodes",
    "Job": "running jobs",
    "Jobs": "running jobs",
    "Submit": "running and waiting jobs",
    "SubmitJob": "running and waiting jobs",
    "SubmitJobs": "running and waiting jobs",
    "Wall": "run time",
    "WallDuration": "run time",
    "Time": "run time",
    "GRES": "GPUs or other generic resources",
    "License": "licenses",
    "BB": "burst buffers",
    "Energy": "energy",
    "Billing": "billing units",
    "Unknown": "a resource",
    "Resource": "a resource",
}


def reason_words(reason: str) -> str:
    """Return the explanation of a reason; an unknown reason gets a general explanation."""
    first, _, more = reason.partition(",")
    if known := WAITING.get(more.lstrip("_")) or WAITING.get(first):
        return known
    if found := LIMIT.fullmatch(first):
        return _limit_words(found)
    return "nbtrain does not know this reason; see `scontrol show job` and the cluster's documentation"


def _limit_words(found: re.Match[str]) -> str:
    whose, what = WHOSE.get(found["whose"], "the quality of service"), WHAT[found["what"]]
    what += " times minutes" if found["minutes"] else ""
    never = "it starts only after the request or the limit is changed"
    if found["kind"] == "Min":
        return f"its request for {what} is below the minimum of {whose}; {never}"
    each = (found["each"] or "").lower()
    if each in ("job", "node"):
        return f"its request for {what} is above the maximum per {each} of {whose}; {never}"
    per = f" per {each}" if each else ""
    return (
        f"{whose} has reached the limit on {what}{per}; it starts when other jobs have ended or the limit is "
        "raised"
    )
