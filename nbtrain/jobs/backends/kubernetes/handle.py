"""A job's handle.json, which names its cluster and object for any process that opens the run later."""

from dataclasses import dataclass

from nbtrain.base.run_directory.records import Record


@dataclass
class KubernetesHandle(Record):
    """Identity of a job's object.

    submit() writes it before and after it creates the object, so that the object can be found even if
    submit() is killed in between.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    """Uid of the object, which distinguishes it from a later object with the same name.

    It is "" until the server has reported the uid.
    """
    context: str | None = None
    """Context in the kubeconfig; None inside a pod."""
    engine: str = "kubernetes"
