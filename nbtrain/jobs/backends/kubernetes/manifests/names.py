"""Names of Kubernetes objects, built from run and job so that they satisfy RFC 1123 and all length limits."""

import hashlib
import re

from nbtrain.base.errors import SubmitError

# Names by RFC 1035, which TrainJobs and services require. Unlike RFC 1123, it requires a letter at the start.
OBJECT_NAME = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")
# A pod's name may have at most 63 characters. Operators append up to 18 characters to the object's name:
# "-node-0-9999-xxxxx" (TrainJob), "-xxxxx-worker-9999" (DeepSpeedJob).
MOST_OBJECT_CHARS = 45
DIGEST_CHARS = 6
LABEL_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")

MANAGED_BY = "app.kubernetes.io/managed-by"
RUN, RUN_ID, JOB_ID = "nbtrain/run", "nbtrain/run-id", "nbtrain/job-id"


def object_name(run: str, run_id: str, job_id: str) -> str:
    """Return the object's name: the run's name, shortened if necessary, and a hash of run and job."""
    digest = hashlib.sha256(f"{run_id}/{job_id}".encode()).hexdigest()[:DIGEST_CHARS]
    head = run if run[:1].isalpha() else f"run-{run}"
    return checked(f"{head[: MOST_OBJECT_CHARS - DIGEST_CHARS - 1].rstrip('-')}-{digest}")


def checked(name: str) -> str:
    """Return `name` unchanged. Raises SubmitError if an object cannot have this name."""
    if not OBJECT_NAME.fullmatch(name) or len(name) > MOST_OBJECT_CHARS:
        raise SubmitError(
            f"{name!r} cannot be the name of a Kubernetes object: a name must have 1 to {MOST_OBJECT_CHARS} "
            "lowercase letters, digits and inner dashes, and begin with a letter. Rename the run."
        )
    return name


def checked_namespace(name: str) -> str:
    """Return `name` unchanged. Raises SubmitError if it is not a valid namespace."""
    if not NAMESPACE.fullmatch(name):
        raise SubmitError(
            f"{name!r} is not a valid namespace: it must have 1 to 63 lowercase letters, digits and inner "
            "dashes. Correct backend.kubernetes.namespace."
        )
    return name


def own_labels(run: str, run_id: str, job_id: str) -> dict[str, str]:
    """Return the labels by which the object and its pods are found later."""
    labels = {MANAGED_BY: "nbtrain", RUN: run, RUN_ID: run_id, JOB_ID: job_id}
    for key, value in labels.items():
        if not LABEL_VALUE.fullmatch(value):
            raise SubmitError(
                f"{key} = {value!r} is not a valid label value: it must have at most 63 letters, digits, "
                "dots, dashes and underscores. Rename the run."
            )
    return labels


def is_ours(item: dict, run_id: str, job_id: str) -> bool:
    """Return whether an object in the cluster has this job's labels."""
    labels = item.get("metadata", {}).get("labels") or {}
    return labels.get(RUN_ID) == run_id and labels.get(JOB_ID) == job_id
