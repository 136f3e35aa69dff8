"""Find the cluster to use, from kubeconfig, context and namespace, or from the pod's service account."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from nbtrain.base.errors import JobError
from nbtrain.base.extras import install_command
from nbtrain.base.workspace import typed_path

# File that Kubernetes mounts into every pod with a service account.
POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
KUBECONFIG = "~/.kube/config"
DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True)
class Connection:
    """The official client's ApiClient, with the namespace and context that it uses."""

    api: Any
    namespace: str
    context: str | None
    """Context in the kubeconfig; None inside a pod."""


def library() -> Any:
    """Return the official client library. Raises JobError with the command that installs it."""
    try:
        import kubernetes.client
        import kubernetes.config
    except ImportError as error:
        raise JobError(
            "backend.kind = kubernetes needs the official Kubernetes client for Python, which is not "
            f"installed here ({error}). Install it with `{install_command('k8s')}`, or write the manifest "
            "with `nbtrain submit RUN.yaml --dry-run FILE` and start it with kubectl."
        ) from None
    return kubernetes


def connect(context: str | None = None, namespace: str | None = None) -> Connection:
    """Return a connection, without contacting the server. Raises JobError if no cluster is configured."""
    config, client = library().config, library().client
    configuration = client.Configuration()
    # cluster.py does the retries, because it knows which requests may be repeated.
    configuration.retries = False
    files = os.environ.get("KUBECONFIG") or KUBECONFIG
    in_pod = "KUBERNETES_SERVICE_HOST" in os.environ and context is None and not _any_file(files)
    try:
        if in_pod:
            config.load_incluster_config(client_configuration=configuration)
            return Connection(client.ApiClient(configuration), namespace or own_namespace(), None)
        path = os.pathsep.join(str(typed_path(name)) for name in files.split(os.pathsep) if name)
        # config.list_kube_config_contexts() fails without a current context, even if the run names one.
        kubeconfig = config.kube_config
        merged = kubeconfig.KubeConfigMerger(path)
        loader = kubeconfig.KubeConfigLoader(
            merged.config, context, config_base_path=None, config_persister=merged.save_changes
        )
        loader.load_and_set(configuration)
    except (config.ConfigException, OSError) as error:
        where = f"context {context} of {files}" if context else files
        said = str(error).rstrip(".")
        raise JobError(
            f"{where}: no cluster is configured there: {said}. Set KUBECONFIG or "
            "backend.kubernetes.context; to list the contexts, run `kubectl config get-contexts`."
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError, TypeError, AttributeError) as error:
        # The client checks only the form of the YAML, and fails with one of these errors.
        marked = isinstance(error, (yaml.YAMLError, UnicodeDecodeError))
        said = " ".join(str(error).split()) if marked else "it does not have the structure of a kubeconfig"
        raise JobError(
            f"{files}: cannot be read as a kubeconfig: {said}. Correct the file, or set KUBECONFIG to "
            "another file."
        ) from None
    chosen = loader.current_context
    of_context = chosen.get("context", {}).get("namespace")
    return Connection(
        client.ApiClient(configuration), namespace or of_context or DEFAULT_NAMESPACE, chosen["name"]
    )


def own_namespace() -> str:
    """Return the namespace of the pod in which this process runs; "default" outside a pod."""
    return POD_NAMESPACE.read_text().strip() if POD_NAMESPACE.is_file() else DEFAULT_NAMESPACE


def _any_file(files: str) -> bool:
    return any(typed_path(path).is_file() for path in files.split(os.pathsep) if path)
