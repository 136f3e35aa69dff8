"""Rules about backend.kubernetes: supported fields, mounts, elastic sizes and deadlines."""

from collections import Counter

from nbtrain.base.findings import Finding
from nbtrain.base.text.amounts import counted
from nbtrain.config.arithmetic.layout_words import SIZE_KEYS
from nbtrain.config.findings import mistake
from nbtrain.config.rules import limits
from nbtrain.config.rules.environment import why_reserved
from nbtrain.config.rules.wording import Problems
from nbtrain.config.schema import RunConfig
from nbtrain.config.sections.kubernetes_section import KubernetesConfig, MountConfig
from nbtrain.config.yaml_source import show

# {workload kind: {field that its manifest cannot express: what to use instead}}. Without these rules, such a
# field would silently have no effect.
NO_PLACE = {
    "DeepSpeedJob": {
        "priority_class": "its queue uses priorities from 0 to 100. Set backend.kubernetes.priority instead",
    },
    "TrainJob": {
        "priority": "set backend.kubernetes.priority_class, which becomes a Kueue label",
        "host_network": "the training runtime controls it. Set hostNetwork in the runtime",
        "image_pull_policy": "the training runtime controls it. Set imagePullPolicy in the runtime",
        "clean_up_policy": "its pods remain until the TrainJob is deleted",
        "restart_policy": "the training runtime controls it. Set restartPolicy in the runtime",
        "back_off_limit": "the training runtime controls it. Set failurePolicy in the runtime",
        "min_nodes": "use a DeepSpeedJob or a PyTorchJob",
        "max_nodes": "use a DeepSpeedJob or a PyTorchJob",
    },
    "MPIJob": {
        "priority": "set backend.kubernetes.priority_class",
        "min_nodes": "use a DeepSpeedJob or a PyTorchJob",
        "max_nodes": "use a DeepSpeedJob or a PyTorchJob",
    },
    "PyTorchJob": {"priority": "set backend.kubernetes.priority_class"},
}
OF_DEEPSPEED_JOBS = ("autotune", "debug_mode")
OF_TRAIN_JOBS = ("runtime", "runtime_kind")
# {workload kind: paths that its operator or the shared-memory volume mounts in the pods}
RESERVED_PATHS = {
    "DeepSpeedJob": ("/dev/shm", "/root/.ssh", "/t9k/hostfile", "/root/.deepspeed_env"),
    "TrainJob": ("/dev/shm",),
    "MPIJob": ("/dev/shm", "/root/.ssh", "/etc/mpi"),
    "PyTorchJob": ("/dev/shm",),
}
# The launcher of an MPIJob is a Kubernetes Job, which supports no other restart policies.
MPI_RESTART_POLICIES = ("Never", "OnFailure")
OWN_PREFIX = "nbtrain/"
# Time for a pod's agent to write its records after the ranks have used up shutdown_timeout_seconds.
POD_GRACE_SECONDS = 30


def kubernetes_agrees(config: RunConfig) -> Problems:
    """Check backend.kubernetes if backend.kind is kubernetes."""
    if config.backend.kind == "kubernetes":
        yield from kubernetes_problems(config, config.backend.kubernetes)


def kubernetes_problems(config: RunConfig, section: KubernetesConfig) -> Problems:
    """Yield a finding for each broken rule of the section."""
    yield from fields_have_a_place(config, section)
    yield from image_is_there(config, section)
    yield from mounts_go_together(config, section)
    yield from elastic_sizes_are_ordered(config, section)
    yield from deadlines_agree(config, section)
    yield from names_are_free(config, section)
    yield from tolerations_are_whole(config, section)
    yield from affinity_is_whole(config, section)
    yield from users_are_allowed(config, section)
    yield from autotuner_fits(config, section)
    yield from shared_memory_suffices(config, section)


def _broken(config: RunConfig, section: KubernetesConfig, field: str, rule: str) -> Finding:
    key = f"backend.kubernetes.{field}"
    return mistake(config, key, f"{key} = {show(getattr(section, field))}\n  {rule}")


def fields_have_a_place(config: RunConfig, section: KubernetesConfig) -> Problems:
    """Check that the workload kind supports every field that is set."""
    kind = section.workload
    set_fields = {
        name for name, field in type(section).model_fields.items() if getattr(section, name) != field.default
    }
    article = "an" if kind == "MPIJob" else "a"
    for field, why in NO_PLACE[kind].items():
        if field in set_fields:
            yield _broken(config, section, field, f"is not supported by {article} {kind}: {why}.")
    for owner, fields in (("DeepSpeedJob", OF_DEEPSPEED_JOBS), ("TrainJob", OF_TRAIN_JOBS)):
        for field in fields:
            if kind != owner and field in set_fields:
                yield _broken(
                    config, section, field, f"is supported by a {owner} only, but workload is {kind}."
                )
    if kind == "MPIJob" and section.restart_policy not in (None, *MPI_RESTART_POLICIES):
        yield _broken(
            config,
            section,
            "restart_policy",
            f"must be {' or '.join(MPI_RESTART_POLICIES)} for an MPIJob.",
        )
    if kind == "DeepSpeedJob" and section.priority is not None and section.queue is None:
        yield _broken(
            config,
            section,
            "priority",
            "is a priority within a queue, but backend.kubernetes.queue is not set.",
        )


def image_is_there(config: RunConfig, section: KubernetesConfig) -> Problems:
    """Check that the pods have an image, and that its name contains no spaces."""
    image = section.image or config.resources.image
    if image is None:
        yield mistake(
            config,
            "backend.kind",
            "neither backend.kubernetes.image nor resources.image is set.\n"
            "  Set one of the two to a container image that contains nbtrain, e.g. "
            "registry.example.com/nbtrain:0.1.0.",
        )
    elif image != "".join(image.split()) or len(image) > 500:
        key = "backend.kubernetes.image" if section.image else "resources.image"
        yield mistake(
            config,
            key,
            f"{key} = {show(image)}\n  must not contain spaces, and may have at most 500 characters.",
        )


def mounts_go_together(config: RunConfig, section: KubernetesConfig) -> Problems:
    """Check that each path is mounted once, and that the workspace is on a writable volume.

    A path must not be one that the operator mounts itself.
    """
    paths = [mount.mount_path for mount in section.mounts]
    paths += [secret.mount_path for secret in section.secret_files]
    for path, count in Counter(paths).items():
        if count > 1:
            yield mistake(
                config,
                "backend.kubernetes.mounts",
                f"{path} is mounted {count} times.\n"
                "  Each mount_path in mounts and secret_files must be unique.",
            )
        for reserved in RESERVED_PATHS[section.workload]:
            if path == reserved or path.startswith(f"{reserved}/"):
                yield mistake(
                    config,
                    "backend.kubernetes.mounts",
                    f"mount_path = {path}\n"
                    f"  is at or below {reserved}, which the pods of a {section.workload} need themselves. "
                    "Use another mount_path.",
                )
    carriers = [mount for mount in section.mounts if carries_workspace(mount, section)]
    if not carriers:
        yield _broken(
            config,
            section,
            "workspace_path",
            "must be on a volume from backend.kubernetes.mounts. Otherwise the run directory is deleted "
            "with its pod.",
        )
    elif max(carriers, key=lambda mount: len(mount.mount_path)).read_only:
        yield _broken(
            config,
            section,
            "workspace_path",
            "is on a mount with read_only: true, but pods must write to it.",
        )


def carries_workspace(mount: MountConfig, section: KubernetesConfig) -> bool:
    """Return whether the pods' workspace is on the volume of this mount."""
    return f"{section.workspace_path}/".startswith(f"{mount.mount_path}/")


def tolerations_are_whole(config: RunConfig, section: KubernetesConfig) -> Problems:
    """Check that a toleration with operator Exists has no value, and that one with Equal has a key.

    Otherwise Kubernetes rejects every pod, and the workload's operator retries indefinitely.
    """
    for index, toleration in enumerate(section.tolerations):
        key = f"backend.kubernetes.tolerations.{index}"
        operator, value = toleration.written_operator, toleration.value
        if operator == "Exists" and value is not None:
            yield mistake(
                config,
                key,
                f"{key} has operator Exists and the value {show(value)}.\n"
                "  The operator Exists does not compare values: remove the operator or the value.",
            )
        if operator == "Equal" and toleration.key is None:
            yield mistake(
                config,
                key,
                f"{key} has operator Equal, but no key.\n"
                "  The operator Equal compares the value of a key: set key, or remove operator and value to "
                "tolerate every taint.",
            )


# {operator: the number of values that it needs; None means one or more}
NODE_OPERATORS = {"In": None, "NotIn": None, "Exists": 0, "DoesNotExist": 0, "Gt": 1, "Lt": 1}


def affinity_is_whole(config: RunConfig, section: KubernetesConfig) -> Problems:
    """Check that each node affinity condition has as many values as its operator needs.

    Otherwise Kubernetes rejects every pod, and the workload's operator retries indefinitely.
    """
    for index, condition in enumerate(section.node_affinity):
        key, count = f"backend.kubernetes.node_affinity.{index}", NODE_OPERATORS[condition.operator]
        found = f"{key} has operator {condition.operator} and {counted(len(condition.values), 'value')}"
        if count is None and not condition.values:
            yield mistake(
                config, key, f"{found}.\n  The operator {condition.operator} needs at least one value."
            )
        elif count is not None and len(condition.values) != count:
            needs = "exactly one value" if count else "an empty list of values"
            yield mistake(config, key, f"{found}.\n  The operator {condition.operator} needs {needs}.")
        elif count == 1 and not condition.values[0].isdigit():
            yield mistake(
                config,
                key,
                f"{key} has operator {condition.operator} and the value {show(condition.values[0])}.\n"
                f'  The operator {condition.operator} compares whole numbers, e.g. "8".',
            )


# Workload kinds whose pods run sshd with the keys that the operator mounts in /root/.ssh.
RUN_AS_ROOT = ("DeepSpeedJob", "MPIJob")


def users_are_allowed(config: RunConfig, section: KubernetesConfig) -> Problems:
    """Check that the pods' user agrees with run_as_non_root, and that pods that run sshd run as root."""
    context, key = section.security_context, "backend.kubernetes.security_context"
    if context.run_as_non_root and context.run_as_user == 0:
        yield mistake(
            config,
            key,
            f"{key} has run_as_user(0) and run_as_non_root(true).\n"
            "  User 0 is root, so no container would start: remove one of the two.",
        )
    if section.workload in RUN_AS_ROOT and (context.run_as_user or context.run_as_non_root):
        field = f"run_as_user({context.run_as_user})" if context.run_as_user else "run_as_non_root(true)"
        yield mistake(
            config,
            key,
            f"{key} has {field}.\n"
            f"  But the pods of this workload, {section.workload}, must run as root, because they run sshd "
            "with keys in /root/.ssh. Remove the setting, or use a TrainJob or a PyTorchJob.",
        )


def elastic_sizes_are_ordered(config: RunConfig, section: KubernetesConfig) -> Problems:
    """Check that min_nodes <= resources.nodes = max_nodes.

    A job that may run with fewer pods also needs backend.elastic.
    """
    if "min_nodes" in NO_PLACE[section.workload]:
        return
    nodes, least, most = config.resources.nodes, section.min_nodes, section.max_nodes
    if most is not None and least is None:
        yield _broken(config, section, "max_nodes", "has no effect without min_nodes. Set min_nodes too.")
    if least is not None and least > nodes:
        yield _broken(config, section, "min_nodes", f"must be at most resources.nodes({nodes}).")
    if most is not None and most != nodes:
        yield _broken(
            config,
            section,
            "max_nodes",
            f"must be equal to resources.nodes({nodes}), the most pods that a job uses. To allow more pods, "
            "raise resources.nodes.",
        )
    if least is not None and not config.backend.elastic:
        yield _broken(
            config,
            section,
            "min_nodes",
            f"needs backend.elastic: true. Without it, a restart waits for "
            f"{'the only pod' if nodes == 1 else f'all {nodes} pods'}.",
        )


def autotuner_fits(config: RunConfig, section: KubernetesConfig) -> Problems:
    """Check that a run with DeepSpeed's autotuner uses only data parallelism and a fixed number of pods."""
    if section.autotune == "none" or section.workload != "DeepSpeedJob":
        return
    for limit in limits.autotuned_ranks(section, config.parallel.model_dump(include=set(SIZE_KEYS))):
        yield _broken(config, section, "autotune", limit.rule)
    if section.min_nodes is not None:
        yield _broken(
            config,
            section,
            "autotune",
            f"cannot be combined with min_nodes({section.min_nodes}), because the best settings for "
            f"{counted(config.resources.nodes, 'pod')} may not fit on fewer pods. Remove autotune or "
            "min_nodes.",
        )


def deadlines_agree(config: RunConfig, section: KubernetesConfig) -> Problems:
    """Check that active_deadline_seconds leaves the ranks time to save after backend.deadline_seconds.

    At active_deadline_seconds, the operator deletes their pods.
    """
    own, engines = config.backend.deadline_seconds, section.active_deadline_seconds
    if own is None or engines is None:
        return
    needs = own + config.backend.shutdown_timeout_seconds + POD_GRACE_SECONDS
    if engines < needs:
        yield _broken(
            config,
            section,
            "active_deadline_seconds",
            f"must be at least {needs:g} s, so that the job can save a checkpoint before its pods are "
            f"deleted: backend.deadline_seconds({own:g}) + "
            f"backend.shutdown_timeout_seconds({config.backend.shutdown_timeout_seconds:g}) + "
            f"{POD_GRACE_SECONDS} = {needs:g}. Raise active_deadline_seconds, or remove one of the two "
            "deadlines.",
        )


def shared_memory_suffices(config: RunConfig, section: KubernetesConfig) -> Problems:
    """Check that shared_memory_bytes is large enough for the batches that the data workers prefetch."""
    workers, ranks = config.data.num_workers, config.ranks_per_node
    micro, length = config.batch.micro_batch_size, config.model.seq_length
    for limit in limits.read_ahead(section, workers, micro, length, ranks):
        yield _broken(config, section, "shared_memory_bytes", limit.rule)


def names_are_free(config: RunConfig, section: KubernetesConfig) -> Problems:
    """Check that labels and variables do not use names that are reserved for nbtrain.

    No variable may be set twice, here or in backend.env.
    """
    given = {"labels": config.labels}
    given |= {f"backend.kubernetes.{field}": getattr(section, field) for field in ("labels", "annotations")}
    for field, keys in given.items():
        for key in keys:
            if key.startswith(OWN_PREFIX):
                yield mistake(
                    config,
                    field,
                    f"{field.removeprefix('backend.')} contains the key {key}.\n"
                    f"  Keys that begin with {OWN_PREFIX} are reserved for nbtrain. Rename the key.",
                )
    names = Counter(variable.name for variable in section.secret_variables)
    for name, count in names.items():
        if not (why := why_reserved(name)):
            if name.startswith("NBTRAIN_"):
                why = "the name is reserved for nbtrain. Remove the variable."
            elif count > 1:
                why = f"the variable is listed {count} times. Remove all entries but one."
            elif name in config.backend.env:
                why = "the variable is also set in backend.env. Remove one of the two."
        if why:
            key = "backend.kubernetes.secret_variables"
            yield mistake(config, key, f"secret_variables contains {name}: {why}")
