"""The table of object kinds: API path, function that writes the manifest, and patch that pauses the job."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nbtrain.jobs.backends.kubernetes.manifests.deepspeed_job import deepspeed_job
from nbtrain.jobs.backends.kubernetes.manifests.mpi_job import mpi_job
from nbtrain.jobs.backends.kubernetes.manifests.pytorch_job import pytorch_job
from nbtrain.jobs.backends.kubernetes.manifests.train_job import train_job
from nbtrain.jobs.backends.kubernetes.manifests.work import PodWork

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A kind of Kubernetes object that can run a job."""

    name: str
    group: str
    version: str
    plural: str
    write: Callable[[PodWork, str | None], Manifest]
    pause: Callable[[bool], Manifest]
    """Function that returns the merge patch that pauses (True) or resumes (False) the job."""
    container: str
    """Name of the training container, whose log is read."""
    launcher: str = ""
    """Pod that prints the output of all agents: "launcher", or "0" for worker 0.

    It is "" if each pod prints its own output.
    """


def _suspend(on: bool) -> Manifest:
    return {"spec": {"suspend": on}}


def _suspend_policy(on: bool) -> Manifest:
    return {"spec": {"runPolicy": {"suspend": on}}}


def _pause_mode(on: bool) -> Manifest:
    return {"spec": {"runMode": {"pause": {"enabled": on}}}}


KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            *("DeepSpeedJob", "batch.tensorstack.dev", "v1beta1", "deepspeedjobs"),
            deepspeed_job,
            _pause_mode,
            *("worker", "0"),
        ),
        Kind("TrainJob", "trainer.kubeflow.org", "v1alpha1", "trainjobs", train_job, _suspend, "node"),
        Kind(
            "MPIJob", "kubeflow.org", "v2beta1", "mpijobs", mpi_job, _suspend_policy, "launcher", "launcher"
        ),
        Kind("PyTorchJob", "kubeflow.org", "v1", "pytorchjobs", pytorch_job, _suspend_policy, "pytorch"),
    )
}


def write(work: PodWork, namespace: str | None = None) -> Manifest:
    """Return the job's manifest, of the kind in backend.kubernetes.workload."""
    return KINDS[work.section.workload].write(work, namespace)
