"""MPIJob (kubeflow.org/v2beta1), with Open MPI: the launcher's mpirun starts one agent in each worker.

Each worker gets one slot: the agent starts the pod's ranks itself, and OMPI_COMM_WORLD_RANK is the number of
its pod. A process started by sshd does not have the container's variables, so mpirun exports each of them by
name.
"""

from typing import Any

from nbtrain.jobs.backends.kubernetes.manifests import pods
from nbtrain.jobs.backends.kubernetes.manifests.run_policy import run_policy
from nbtrain.jobs.backends.kubernetes.manifests.work import PodWork

SSHD = ["/usr/sbin/sshd", "-De"]


def mpi_job(work: PodWork, namespace: str | None) -> dict[str, Any]:
    """Return the MPIJob's manifest."""
    restart = work.section.pod_restart_policy
    names = [variable["name"] for variable in pods.variables(work)]
    mpirun = [
        *("mpirun", "--allow-run-as-root", "-np", str(work.nodes)),
        *("--map-by", "ppr:1:node", "--bind-to", "none", "--wdir", work.section.workspace_path),
        *(word for name in names for word in ("-x", name)),
        *work.command,
    ]
    launcher = pods.container(work, "launcher", mpirun, whole=False)
    worker = pods.container(work, "worker", SSHD)
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": work.metadata(namespace),
        "spec": {
            "slotsPerWorker": 1,
            "mpiImplementation": "OpenMPI",
            # A launcher that starts first would fail until each worker's sshd answers.
            "launcherCreationPolicy": "WaitForWorkersReady",
            "runPolicy": run_policy(work.section),
            "mpiReplicaSpecs": {
                "Launcher": {
                    "replicas": 1,
                    "restartPolicy": restart,
                    "template": pods.template(work, launcher),
                },
                "Worker": {
                    "replicas": work.nodes,
                    "restartPolicy": restart,
                    "template": pods.template(work, worker),
                },
            },
        },
    }
