"""Checks of the cluster before anything starts.

The cluster must respond, accept the manifest, and have every object that the manifest names. A create request
with dryRun=All, which stores nothing, makes the API server check credentials, permissions, kind, namespace,
fields and admission. Then the checks look for missing objects, for which pods would wait forever. Only the
metadata of a Secret is requested. An object that this user may not read is not a problem, because the pods
may be allowed to read it.
"""

import time
from collections.abc import Iterator

from nbtrain.base.errors import JobError
from nbtrain.base.findings import Finding
from nbtrain.base.run_directory.rundir import RunDir, new_job_id, new_run_id
from nbtrain.config.findings import mistake, shortage
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.backends.kubernetes.cluster import Cluster
from nbtrain.jobs.backends.kubernetes.connect import connect
from nbtrain.jobs.backends.kubernetes.manifests.kinds import KINDS, write
from nbtrain.jobs.backends.kubernetes.manifests.work import work_of
from nbtrain.jobs.backends.kubernetes.refusals import Refused, Unanswered

# Short pauses and timeouts: a user waits, and a form checks after each change of a field.
BACK_OFF_SECONDS, READ_SECONDS = (0.5, 1.0), 10.0
REMEMBER_SECONDS = 15.0
WITHOUT = "To write the manifest without a cluster, run `nbtrain submit RUN --dry-run FILE`."
WORKSPACE = "examples/megatron-gpt/cluster/manifests"
# {verb on the kind: nbtrain command that needs it}. The dry run shows whether this user may create objects.
VERBS = {"get": "status", "list": "wait", "watch": "wait", "patch": "pause", "delete": "cancel"}
# Part of the message of an admission webhook that does not support dry runs.
NO_DRY_RUN = "does not support dry run"

_silent: dict[str, tuple[float, str]] = {}


def findings(config: RunConfig) -> Iterator[Finding]:
    """Yield every reason why the cluster would not start this run."""
    section = config.backend.kubernetes
    try:
        connection = connect(section.context, section.namespace)
        cluster = Cluster(connection, BACK_OFF_SECONDS, READ_SECONDS)
    except JobError as error:
        # A context that the run names must exist, but a missing cluster is not an error of the run.
        fix = "" if "--dry-run" in str(error) else WITHOUT
        yield (mistake if section.context else shortage)(config, "", str(error), fix)
        return
    heard_at, words = _silent.get(cluster.host, (0.0, ""))
    if words and time.monotonic() - heard_at < REMEMBER_SECONDS:
        yield shortage(config, "", words, WITHOUT)
        return
    try:
        yield from _refusals(config, cluster)
    except Unanswered as error:
        words = f"{error.words} Check the address in the kubeconfig, and any VPN or proxy in between."
        _silent[cluster.host] = (time.monotonic(), words)
        yield shortage(config, "", words, WITHOUT)
    except JobError as error:
        yield mistake(config, "", str(error), WITHOUT)


def _refusals(config: RunConfig, cluster: Cluster) -> Iterator[Finding]:
    section = config.backend.kubernetes
    work = work_of(config, section, new_run_id(), RunDir.named(config.name).job(new_job_id()))
    try:
        cluster.try_create(write(work, cluster.namespace))
    except Refused as error:
        if error.status != 400 or NO_DRY_RUN not in str(error):
            yield mistake(config, "", str(error))
            return
    kind = KINDS[section.workload]
    asked = [(verb, kind.group, kind.plural, need) for verb, need in VERBS.items()]
    for verb, group, plural, need in [*asked, ("list", "", "pods", "status")]:
        if cluster.may(verb, group, plural) is False:
            yield mistake(
                config,
                "",
                f"{cluster.host}: this user may not {verb} {f'{plural}.{group}'.rstrip('.')} in namespace "
                f"{cluster.namespace}, which `nbtrain {need}` needs.",
                f"Ask an administrator for the Role in {WORKSPACE}/notebook.yaml; to see what this user may "
                f"do, run `kubectl auth can-i --list -n {cluster.namespace}`.",
            )
    for field, plural, word, name, fix in _named(config, cluster.namespace):
        if cluster.has(plural, name) is False:
            key = f"backend.kubernetes.{field}"
            yield mistake(
                config,
                key,
                f"{key} names the {word} {name}, but {cluster.host} has no {word} with this name in "
                f"namespace {cluster.namespace}: the pods would wait for it forever.",
                f"{fix}, or name one that `kubectl get {plural} -n {cluster.namespace}` lists.",
            )


def _named(config: RunConfig, namespace: str) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield (field, API resource, kind, name, how to create it) once for each object that the pods need."""
    section, create = config.backend.kubernetes, f"Create it (`kubectl create -n {namespace}"
    claim = ("persistentvolumeclaims", "PersistentVolumeClaim")
    for name in dict.fromkeys(mount.claim for mount in section.mounts):
        yield "mounts", *claim, name, f"Create it ({WORKSPACE}/workspace-pvc.yaml is an example)"
    secrets = {secret.secret: "secret_files" for secret in section.secret_files}
    secrets |= {secret.secret: "secret_variables" for secret in section.secret_variables}
    for name, field in secrets.items():
        yield field, "secrets", "Secret", name, f"{create} secret generic {name} ...`)"
    for name in dict.fromkeys(section.image_pull_secrets):
        made = f"{create} secret docker-registry {name} ...`)"
        yield "image_pull_secrets", "secrets", "Secret", name, made
    if account := section.service_account:
        made = f"{create} serviceaccount {account}`)"
        yield "service_account", "serviceaccounts", "ServiceAccount", account, made
