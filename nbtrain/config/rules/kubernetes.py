"""Rules of backend.kubernetes: fields that a kind of object supports, mounts, elastic sizes and deadlines."""

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

# {kind: {field: why it has no place there}}. A field that is set but not written would have no effect,
# without a message.
NO_PLACE = {
    "DeepSpeedJob": {
        "priority_class": "its queue has priorities from 0 to 100: set backend.kubernetes.priority",
    },
    "TrainJob": {
        "priority": "set backend.kubernetes.priority_class, which becomes Kueue's label",
        "host_network": "the runtime decides it; set hostNetwork there",
        "image_pull_policy": "the runtime decides it; set it there",
        "clean_up_policy": "the pods stay until the TrainJob is deleted",
        "restart_policy": "the runtime decides it; set it there",
        "back_off_limit": "the runtime's failurePolicy decides it; set it there",
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
# Paths of the operators' launchers, and of shared memory.
RESERVED_PATHS = {
    "DeepSpeedJob": ("/dev/shm", "/root/.ssh", "/t9k/hostfile", "/root/.deepspeed_env"),
    "TrainJob": ("/dev/shm",),
    "MPIJob": ("/dev/shm", "/root/.ssh", "/etc/mpi"),
    "PyTorchJob": ("/dev/shm",),
}
# The Launcher of an MPIJob is a Kubernetes Job, which has no other policies.
MPI_RESTART_POLICIES = ("Never", "OnFailure")
OWN_PREFIX = "nbtrain/"
# After its ranks have had shutdown_timeout_seconds, a pod's agent writes its records.
POD_GRACE_SECONDS = 30


def kubernetes_agrees(config: RunConfig) -> Problems:
    """If backend.kind is kubernetes, its section is consistent with itself and with resources."""
    if config.backend.kind == "kubernetes":
        yield from kubernetes_problems(config, config.backend.kubernetes)


def kubernetes_problems(config: RunConfig, section: KubernetesConfig) -> Problems:
    """Yield all broken rules of the section."""
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
    """Every field that is set is supported by this kind of object and written to its manifest."""
    kind = section.workload
    set_fields = {
        name for name, field in type(section).model_fields.items() if getattr(section, name) != field.default
    }
    article = "an" if kind == "MPIJob" else "a"
    for field, why in NO_PLACE[kind].items():
        if field in set_fields:
            yield _broken(config, section, field, f"is not supported in {article} {kind}: {why}.")
    for owner, fields in (("DeepSpeedJob", OF_DEEPSPEED_JOBS), ("TrainJob", OF_TRAIN_JOBS)):
        for field in fields:
            if kind != owner and field in set_fields:
                yield _broken(config, section, field, f"is supported in a {owner} only; workload is {kind}.")
    if kind == "MPIJob" and section.restart_policy not in (None, *MPI_RESTART_POLICIES):
        yield _broken(
            config,
            section,
            "restart_policy",
            f"must be {' or '.join(MPI_RESTART_POLICIES)} in an MPIJob.",
        )
    if kind == "DeepSpeedJob" and section.priority is not None and section.queue is None:
        yield _broken(config, section, "priority", "needs queue, because it is the priority in that queue.")


def image_is_there(config: RunConfig, section: KubernetesConfig) -> Problems:
    """The pods have an image, and its name has no spaces."""
    image = section.image or config.resources.image
    if image is None:
        yield mistake(
            config,
            "backend.kind",
            "neither backend.kubernetes.image nor resources.image is set\n"
            "  one of them must name a container image with nbtrain in it, e.g. "
            "registry.example.com/nbtrain:0.1.0.",
        )
    elif image != "".join(image.split()) or len(image) > 500:
        key = "backend.kubernetes.image" if section.image else "resources.image"
        yield mistake(config, key, f"{key} = {show(image)}\n  must be one word of at most 500 characters.")


def mounts_go_together(config: RunConfig, section: KubernetesConfig) -> Problems:
    """Each path is mounted once, no path is reserved for the operator, and the workspace is on a volume."""
    paths = [mount.mount_path for mount in section.mounts]
    paths += [secret.mount_path for secret in section.secret_files]
    for path, count in Counter(paths).items():
        if count > 1:
            yield mistake(
                config,
                "backend.kubernetes.mounts",
                f"{path} is mounted {count} times\n"
                "  each mount_path of mounts and secret_files must be unique.",
            )
        for reserved in RESERVED_PATHS[section.workload]:
            if path == reserved or path.startswith(f"{reserved}/"):
                yield mistake(
                    config,
                    "backend.kubernetes.mounts",
                    f"mount_path = {path}\n"
                    f"  {reserved} belongs to the {section.workload}'s own pods; mount it elsewhere.",
                )
    carriers = [mount for mount in section.mounts if carries_workspace(mount, section)]
    if not carriers:
        yield _broken(
            config,
            section,
            "workspace_path",
            "must be on a volume of mounts: without one the run directory ends with its pod.",
        )
    elif max(carriers, key=lambda mount: len(mount.mount_path)).read_only:
        yield _broken(config, section, "workspace_path", "is on a mount with read_only: true.")


def carries_workspace(mount: MountConfig, section: KubernetesConfig) -> bool:
    """Return whether the pods' workspace is on the volume of this mount."""
    return f"{section.workspace_path}/".startswith(f"{mount.mount_path}/")


def tolerations_are_whole(config: RunConfig, section: KubernetesConfig) -> Problems:
    """A toleration with Exists has no value, and one with Equal has a key. Otherwise every pod is rejected,
    and the operator retries indefinitely.
    """
    for index, one in enumerate(section.tolerations):
        key = f"backend.kubernetes.tolerations.{index}"
        if one.written_operator == "Exists" and one.value is not None:
            yield mistake(
                config,
                key,
                f"{key} has operator Exists and the value {show(one.value)}\n"
                "  Exists compares no value: remove the operator or the value.",
            )
        if one.written_operator == "Equal" and one.key is None:
            yield mistake(
                config,
                key,
                f"{key} has operator Equal and no key\n"
                "  Equal compares the value of one key: set key, or remove operator and value to accept "
                "every taint.",
            )


# {operator: number of values that it compares with; None means one or more}
NODE_OPERATORS = {"In": None, "NotIn": None, "Exists": 0, "DoesNotExist": 0, "Gt": 1, "Lt": 1}


def affinity_is_whole(config: RunConfig, section: KubernetesConfig) -> Problems:
    """Each condition on a node's label has as many values as its operator compares with. Otherwise every pod
    is rejected, and the operator retries indefinitely.
    """
    for index, condition in enumerate(section.node_affinity):
        key, count = f"backend.kubernetes.node_affinity.{index}", NODE_OPERATORS[condition.operator]
        found = f"{key} has operator {condition.operator} and {counted(len(condition.values), 'value')}"
        if count is None and not condition.values:
            yield mistake(config, key, f"{found}\n  {condition.operator} needs at least one value.")
        elif count is not None and len(condition.values) != count:
            needs = "one value" if count else "no values"
            yield mistake(config, key, f"{found}\n  {condition.operator} takes {needs}.")
        elif count == 1 and not condition.values[0].isdigit():
            yield mistake(
                config,
                key,
                f"{key}: {condition.operator} {show(condition.values[0])}\n"
                f'  {condition.operator} compares whole numbers, e.g. "8".',
            )


# Kinds whose workers run sshd with keys in /root/.ssh, where the operator mounts them.
RUN_AS_ROOT = ("DeepSpeedJob", "MPIJob")


def users_are_allowed(config: RunConfig, section: KubernetesConfig) -> Problems:
    """The pods' user does not contradict run_as_non_root or the kind, whose sshd may need root."""
    context, key = section.security_context, "backend.kubernetes.security_context"
    if context.run_as_non_root and context.run_as_user == 0:
        yield mistake(
            config,
            key,
            f"{key} has run_as_user(0) and run_as_non_root(true)\n"
            "  user 0 is root, and no container would start: remove one of the two.",
        )
    if section.workload in RUN_AS_ROOT and (context.run_as_user or context.run_as_non_root):
        field = f"run_as_user({context.run_as_user})" if context.run_as_user else "run_as_non_root(true)"
        yield mistake(
            config,
            key,
            f"{key} has {field}\n"
            f"  the pods of this kind, {section.workload}, run sshd with the keys in /root/.ssh, which needs "
            "root: use a TrainJob or a PyTorchJob.",
        )


def elastic_sizes_are_ordered(config: RunConfig, section: KubernetesConfig) -> Problems:
    """min_nodes <= resources.nodes = max_nodes. If there may be fewer pods, backend.elastic must be on."""
    if "min_nodes" in NO_PLACE[section.workload]:
        return
    nodes, least, most = config.resources.nodes, section.min_nodes, section.max_nodes
    if most is not None and least is None:
        yield _broken(config, section, "max_nodes", "needs min_nodes.")
    if least is not None and least > nodes:
        yield _broken(config, section, "min_nodes", f"must be at most resources.nodes({nodes}).")
    if most is not None and most != nodes:
        yield _broken(
            config,
            section,
            "max_nodes",
            f"must be resources.nodes({nodes}): a job never uses more pods; raise resources.nodes instead.",
        )
    if least is not None and not config.backend.elastic:
        yield _broken(
            config,
            section,
            "min_nodes",
            f"needs backend.elastic = true: without it, a restart waits for all {nodes} pods.",
        )


def autotuner_fits(config: RunConfig, section: KubernetesConfig) -> Problems:
    """The layout has data-parallel ranks only, as DeepSpeed's autotuner assumes, and a fixed number of
    pods.
    """
    if section.autotune == "none" or section.workload != "DeepSpeedJob":
        return
    for limit in limits.autotuned_ranks(section, config.parallel.model_dump(include=set(SIZE_KEYS))):
        yield _broken(config, section, "autotune", limit.rule)
    if section.min_nodes is not None:
        yield _broken(
            config,
            section,
            "autotune",
            f"cannot be combined with min_nodes({section.min_nodes}): the "
            f"best settings on {config.resources.nodes} pods may not fit fewer. Remove one of the two.",
        )


def deadlines_agree(config: RunConfig, section: KubernetesConfig) -> Problems:
    """backend.deadline_seconds ends before active_deadline_seconds, so that the ranks save before the
    operator ends their pods.
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
            f"must be at least {needs:g}: backend.deadline_seconds({own:g}), after which the job ends with "
            f"a checkpoint, + shutdown_timeout_seconds({config.backend.shutdown_timeout_seconds:g}) + "
            f"{POD_GRACE_SECONDS} s. Remove one of the two, or raise it.",
        )


def shared_memory_suffices(config: RunConfig, section: KubernetesConfig) -> Problems:
    """shared_memory_bytes is large enough for the batches that the data workers read ahead."""
    workers, ranks = config.data.num_workers, config.ranks_per_node
    micro, length = config.batch.micro_batch_size, config.model.seq_length
    for limit in limits.read_ahead(section, workers, micro, length, ranks):
        yield _broken(config, section, "shared_memory_bytes", limit.rule)


def names_are_free(config: RunConfig, section: KubernetesConfig) -> Problems:
    """Labels and variables do not use nbtrain's own names, and no variable is set twice, here or in
    backend.env.
    """
    given = {"labels": config.labels}
    given |= {f"backend.kubernetes.{field}": getattr(section, field) for field in ("labels", "annotations")}
    for field, keys in given.items():
        for key in keys:
            if key.startswith(OWN_PREFIX):
                yield mistake(
                    config,
                    field,
                    f"{field.removeprefix('backend.')} has {key}\n"
                    f"  keys that begin with {OWN_PREFIX} are reserved for nbtrain.",
                )
    names = Counter(one.name for one in section.secret_variables)
    for name, count in names.items():
        if not (why := why_reserved(name)):
            if name.startswith("NBTRAIN_"):
                why = "is nbtrain's own. Remove it."
            elif count > 1:
                why = f"is there {count} times. Remove all but one."
            elif name in config.backend.env:
                why = "is set in backend.env too. Remove one of the two."
        if why:
            key = "backend.kubernetes.secret_variables"
            yield mistake(config, key, f"the variable {name} (secret_variables)\n  {why}")
