"""handle.json of a job: its cluster and object, for any later process that opens the run."""

from dataclasses import dataclass

from nbtrain.base.run_directory.records import Record


@dataclass
class KubernetesHandle(Record):
    """Identity of a job's object. submit writes it both before and after it creates the object.

    The object can therefore be found even if submit is killed between the two.
    """

    kind: str
    namespace: str
    name: str
    uid: str
    """The object's uid, which tells it from a later object of the same name; "" until the server reports
    it.
    """
    context: str | None = None
    """Context of the kubeconfig; None inside a pod."""
    engine: str = "kubernetes"
