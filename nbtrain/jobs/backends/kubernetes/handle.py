"""handle.json of a job: which object of which cluster it is, for any later process that finds the run."""

from dataclasses import dataclass

from nbtrain.base.records import Record


@dataclass
class KubernetesHandle(Record):
    """Written by submit before it creates the object, so that it is found if submit is killed, and after."""

    kind: str
    namespace: str
    name: str
    uid: str
    """The object's; a later object of the same name has another one. "" until the server has said it."""
    context: str | None = None
    """Context of the kubeconfig; None inside a pod."""
    engine: str = "kubernetes"
