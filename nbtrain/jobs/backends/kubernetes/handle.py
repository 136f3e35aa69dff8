"""handle.json of a job: the cluster and object that it is, for any later process that finds the run."""

from dataclasses import dataclass

from nbtrain.base.records import Record


@dataclass
class KubernetesHandle(Record):
    """Identity of a job's object, which submit writes before and after it creates the object.

    So the object is found even if submit is killed in between.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    """The object's uid, which differs for a later object of its name; "" until the server reports it."""
    context: str | None = None
    """Context of the kubeconfig; None inside a pod."""
    engine: str = "kubernetes"
