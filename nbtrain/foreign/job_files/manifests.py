"""Reads Kubernetes manifests: DeepSpeedJob, PyTorchJob, MPIJob, TrainJob, ConfigMaps and volume claims.

Fields follow their operators' definitions: batch.tensorstack.dev/v1beta1 (DeepSpeedJob), kubeflow.org/v1 and
v2beta1 (PyTorchJob, MPIJob), trainer.kubeflow.org/v1alpha1 (TrainJob).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from nbtrain.base.errors import ConfigError
from nbtrain.config.load.other_files import JOB_KINDS
from nbtrain.foreign.job_files.job import Job
from nbtrain.foreign.job_files.kubernetes_backend import is_gpu, read_place
from nbtrain.foreign.job_files.launchers import Allocation, Launch
from nbtrain.foreign.job_files.own_files import own_manifest
from nbtrain.foreign.job_files.script_jobs import UserValues, launch_in_words
from nbtrain.foreign.syntax.located import Unknown, Value, Word, quantity, whole_number
from nbtrain.foreign.syntax.yaml_tree import Tree

# The label set by NVIDIA's GPU feature discovery: the device's name with dashes instead of spaces.
PRODUCT = "nvidia.com/gpu.product"


def read_manifests(
    trees: Sequence[Tree], scripts: Mapping[str, Word] | None = None, given: UserValues | None = None
) -> tuple[list[Job], dict[str, Word]]:
    """Return the jobs in all documents, and the JSON files in their ConfigMaps by name.

    `scripts` holds shell scripts by name that a container may mount, in addition to those in ConfigMaps.
    """
    jobs: list[Job] = []
    files: dict[str, Word] = {}
    claims: dict[str, Value] = {}
    values = given or UserValues()
    maps = {
        name.text: tree
        for tree in trees
        if _kind(tree) == "ConfigMap" and (name := tree.word("metadata.name"))
    }
    runtimes = {
        name.text: tree
        for tree in trees
        if _kind(tree).endswith("TrainingRuntime") and (name := tree.word("metadata.name"))
    }
    for tree in trees:
        tree.maps, tree.runtimes = maps, runtimes
        kind = tree.word("kind")
        if kind is None:
            continue
        if kind.text == "ConfigMap":
            files |= {name: word for name, word in _data(tree).items() if name.endswith(".json")}
        elif kind.text == "PersistentVolumeClaim":
            name, size = tree.word("metadata.name"), tree.find("spec.resources.requests.storage")
            if name and size:
                claims[name.text] = Value(int(quantity(size, "storage")), size.place)
        elif kind.text in JOB_KINDS:
            mounted = _mounted(tree, kind.text, trees)
            texts = {name: word for name, word in mounted.items() if not name.endswith(".json")}
            tree.scripts = dict(scripts or {}) | texts
            job = _job_of(tree, kind.text, values)
            job.documents |= {name: word for name, word in mounted.items() if name.endswith(".json")}
            jobs.append(job)
        elif meant := next((one for one in JOB_KINDS if one.lower() == kind.text.lower()), None):
            raise ConfigError(f"{kind.place}: kind = {kind.text}: the kind must be spelled {meant}.")
    for job in jobs:
        job.documents = files | job.documents
        asked = [claims[str(claim.value)] for claim in job.volumes if str(claim.value) in claims]
        job.volume_bytes = asked[0] if asked else None
    return jobs, files


def _kind(tree: Tree) -> str:
    kind = tree.word("kind")
    return kind.text if kind else ""


def _job_of(tree: Tree, kind: str, given: UserValues) -> Job:
    job = _READERS[kind](tree, given)
    if own_manifest(tree, job):
        return job
    read_place(tree, job, tuple(_pods(tree, kind)), _main_container(tree, kind))
    return job


def _main_container(tree: Tree, kind: str) -> str:
    """Return the name of the container that runs the training."""
    for pod in _pods(tree, kind):
        containers = tree.find(f"{pod}.containers")
        if containers and isinstance(containers.value, list) and containers.value:
            at = _training_container(tree, pod, len(containers.value), MAIN_CONTAINER[kind])
            name = tree.word(f"{pod}.containers.{at}.name")
            return name.text if name else MAIN_CONTAINER[kind]
    return MAIN_CONTAINER[kind]


# Names of the containers that run the training.
MAIN_CONTAINER = {"DeepSpeedJob": "worker", "PyTorchJob": "pytorch", "MPIJob": "", "TrainJob": "node"}
PODS = {
    "DeepSpeedJob": ("spec.worker.template.spec",),
    "PyTorchJob": tuple(f"spec.pytorchReplicaSpecs.{role}.template.spec" for role in ("Master", "Worker")),
    "MPIJob": tuple(f"spec.mpiReplicaSpecs.{role}.template.spec" for role in ("Worker", "Launcher")),
}
PATCHES = ("spec.runtimePatches.", "spec.podTemplateOverrides.", "spec.podSpecOverrides.")
OF_PODS = ("nodeSelector", "tolerations", "volumes", "containers", "serviceAccountName")


def _pods(tree: Tree, kind: str) -> list[str]:
    """Return the dotted keys of a job's pod specs. In a TrainJob, they are in the patches of its runtime."""
    if kind in PODS:
        return [pod for pod in PODS[kind] if tree.find(pod) is not None]
    found = [
        dotted.rpartition(".")[0]
        for dotted in tree.places
        if dotted.startswith(PATCHES) and dotted.rpartition(".")[2] in OF_PODS
    ]
    return list(dict.fromkeys(found))


def _data(tree: Tree) -> dict[str, Word]:
    """Return the files in a ConfigMap by name."""
    data = tree.find("data")
    if data is None or not isinstance(data.value, dict):
        return {}
    return {name: Word(str(text), tree.places[f"data.{name}"]) for name, text in data.value.items()}


def _mounted(job: Tree, kind: str, trees: Sequence[Tree]) -> dict[str, Word]:
    """Return the files in the ConfigMaps by name, and those that the job mounts also by path.

    If two ConfigMaps have a file with the same name, the one that the job mounts is used. Raises ConfigError
    if the job refers to such a file but mounts neither ConfigMap.
    """
    found: dict[str, Word] = {}
    several: dict[str, list[Word]] = {}
    for tree in trees:
        if _kind(tree) == "ConfigMap":
            for name, word in _data(tree).items():
                several.setdefault(name, []).append(word)
                found[name] = word
    mounts = [mount for pod in _pods(job, kind) for mount in _mounts(job, pod)]
    named = " ".join([*job.texts.values(), *(word.text for word in found.values())])
    for name, words in several.items():
        here = [path for path, word in mounts if word in words]
        if len({word.text for word in words}) > 1 and not here and name in named:
            places = " and ".join(word.place for word in words[:2])
            raise ConfigError(
                f"{places}: two ConfigMaps have a file {name}, but the job mounts neither of them. Give only "
                "the manifest with the ConfigMap that the job uses."
            )
    for path, word in reversed(mounts):
        found[PurePosixPath(path).name] = found[path] = word
    return found


def _mounts(tree: Tree, pod: str) -> Iterator[tuple[str, Word]]:
    """Yield the path and the contents of each ConfigMap file that a pod's containers mount."""
    files: dict[str, dict[str, Word]] = {}
    for volume in _listed(tree, f"{pod}.volumes"):
        name = tree.word(f"{volume}.name")
        sources = [volume, *_listed(tree, f"{volume}.projected.sources")]
        for source in sources:
            map_name = tree.word(f"{source}.configMap.name")
            held = _data(tree.maps[map_name.text]) if map_name and map_name.text in tree.maps else {}
            items = {
                key.text: path.text
                for item in _listed(tree, f"{source}.configMap.items")
                if (key := tree.word(f"{item}.key")) and (path := tree.word(f"{item}.path"))
            }
            chosen = {items.get(key, key): word for key, word in held.items() if not items or key in items}
            if name:
                files.setdefault(name.text, {}).update(chosen)
    for container in _listed(tree, f"{pod}.containers"):
        for mount in _listed(tree, f"{container}.volumeMounts"):
            name, folder = tree.word(f"{mount}.name"), tree.word(f"{mount}.mountPath")
            part = tree.word(f"{mount}.subPath")
            if name is None or folder is None:
                continue
            for file, held_word in files.get(name.text, {}).items():
                if part is None:
                    yield f"{folder.text.rstrip('/')}/{file}", held_word
                elif part.text == file:
                    yield folder.text, held_word


def _listed(tree: Tree, dotted: str) -> list[str]:
    """Return the dotted keys of the items in a list, pods.0, pods.1, ...; [] if it is not a list."""
    found = tree.find(dotted)
    count = len(found.value) if found and isinstance(found.value, list) else 0
    return [f"{dotted}.{at}" for at in range(count)]


def _deepspeed_job(tree: Tree, given: UserValues) -> Job:
    job = _job(tree, "DeepSpeedJob")
    replicas = tree.find("spec.worker.replicas")
    job.nodes = (
        Value(whole_number(replicas, "replicas"), replicas.place) if replicas else Value(1, tree.label)
    )
    job.gpus_per_node = tree.find("spec.config.slotsPerWorker")
    slots = job.gpus_per_node
    _container(tree, job, "spec.worker.template.spec", "worker", given)
    for form in ("python", "module", "exec"):
        words = tree.words(f"spec.config.run.{form}")
        if not words:
            continue
        if form == "exec" or (len(words) == 1 and " " in words[0].text):
            _take_words(tree, job, words, {}, given)
        else:
            job.program, job.flags = words[0], words[1:]
    if custom := tree.word("spec.config.customCommand"):
        _take_words(tree, job, [custom], {}, given)
    job.gpus_per_node = job.gpus_per_node or slots
    return job


def _pytorch_job(tree: Tree, given: UserValues) -> Job:
    job = _job(tree, "PyTorchJob")
    roles = [role for role in ("Master", "Worker") if tree.find(f"spec.pytorchReplicaSpecs.{role}")]
    for role in roles:
        found = tree.find(f"spec.pytorchReplicaSpecs.{role}.replicas")
        before = job.nodes.value if job.nodes else 0
        place = found.place if found else tree.label
        job.nodes = Value(before + (whole_number(found, "replicas") if found else 1), place)
    # Before training operator 1.7, the elastic policy held this number.
    ranks = tree.first("spec.nprocPerNode", "spec.elasticPolicy.nProcPerNode")
    each = int(ranks.value) if ranks and str(ranks.value).isdigit() else 1
    operator: dict[str, Value | None] = {"RANK": None, "MASTER_ADDR": None, "PET_NODE_RANK": None}
    if job.nodes:
        operator |= {"PET_NNODES": job.nodes, "WORLD_SIZE": Value(job.nodes.value * each, job.nodes.place)}
    if ranks:
        operator["PET_NPROC_PER_NODE"] = ranks
    first: list[Word] = []
    for role in roles:
        job.gpus_per_node, job.flags = None, []
        pod = f"spec.pytorchReplicaSpecs.{role}.template.spec"
        _container(tree, job, pod, "pytorch", given, operator)
        _same_flags(first, job.flags)
        first = first or job.flags
    if ranks and not job.gpus_per_node and not job.is_asked("resources.gpus_per_node"):
        job.gpus_per_node = ranks if str(ranks.value).isdigit() else job.gpus_asked
    return job


def _same_flags(master: list[Word], worker: list[Word]) -> None:
    """Raise ConfigError if Master and Worker would train with different flags."""
    if not master or not worker:
        return
    for here, there in ((worker, master), (master, worker)):
        texts = {word.text for word in there}
        if one := next((word for word in here if word.text not in texts), None):
            raise ConfigError(
                f"{one.place}: {one.text}: only one of Master and Worker has this argument, but all ranks "
                "need the same flags. Make both commands equal."
            )


def _mpi_job(tree: Tree, given: UserValues) -> Job:
    job = _job(tree, "MPIJob")
    replicas = tree.find("spec.mpiReplicaSpecs.Worker.replicas")
    job.nodes = workers = (
        Value(whole_number(replicas, "replicas"), replicas.place) if replicas else Value(1, tree.label)
    )
    as_worker = tree.find("spec.runLauncherAsWorker")
    if as_worker is not None and as_worker.value is True:
        job.nodes = workers = Value(workers.value + 1, workers.place)
    worker = Job("", "")
    _container(tree, worker, "spec.mpiReplicaSpecs.Worker.template.spec", "", given)
    job.gpus_asked = worker.gpus_asked
    _container(tree, job, "spec.mpiReplicaSpecs.Launcher.template.spec", "", given)
    job.gpus_asked, job.cpus, job.memory_bytes = worker.gpus_asked, worker.cpus, worker.memory_bytes
    job.volumes += worker.volumes
    job.gpu_product = worker.gpu_product or job.gpu_product
    job.environment = worker.environment | job.environment
    slots = tree.find("spec.slotsPerWorker") or Value(1, tree.label)
    if job.gpus_per_node or job.is_asked("resources.gpus_per_node"):
        if job.nodes and job.nodes.value < workers.value and not job.is_asked("resources.nodes"):
            job.workers = workers
        return job
    job.gpus_per_node, job.nodes = slots, workers
    if job.world_size and str(job.nodes.value).isdigit() and str(slots.value).isdigit():
        # mpirun fills the slots of one worker after the other.
        world, all_slots = job.world_size.value, int(job.nodes.value) * int(slots.value)
        if world > all_slots or world % max(int(slots.value), 1):
            raise ConfigError(
                f"{job.world_size.place}: mpirun starts {world} ranks, but {job.nodes.value} workers with "
                f"{slots.value} slots each (spec.slotsPerWorker) have {all_slots} slots. Make both equal."
            )
        if world < all_slots:
            job.workers, job.nodes = job.nodes, Value(world // int(slots.value), job.world_size.place)
    return job


def _train_job(tree: Tree, given: UserValues) -> Job:
    job = _job(tree, "TrainJob")
    runtime = tree.word("spec.runtimeRef.name")
    policy = tree.runtimes.get(runtime.text) if runtime else None
    job.nodes = tree.find("spec.trainer.numNodes") or (
        policy.find("spec.mlPolicy.numNodes") if policy else None
    )
    job.image = tree.find("spec.trainer.image")
    _environment(tree, job, "spec.trainer.env")
    _resources(tree, job, "spec.trainer.resourcesPerNode")
    ranks = tree.find("spec.trainer.numProcPerNode")
    operator = {"PET_NNODES": job.nodes, "PET_NPROC_PER_NODE": ranks, "PET_NODE_RANK": None}
    words = [*tree.words("spec.trainer.command"), *tree.words("spec.trainer.args")]
    _take_words(tree, job, words, operator, given)
    if ranks is not None and str(ranks.value) in ("auto", "gpu"):
        ranks = job.gpus_asked  # torchrun counts the container's GPUs
    elif ranks is not None and not str(ranks.value).isdigit():
        text = (
            f"numProcPerNode = {ranks.value}: only the cluster knows the number of ranks. Add "
            "resources.gpus_per_node=... to the command."
        )
        job.asked.append(("resources.gpus_per_node", ranks.place, text))
        ranks = None
    # torchrun's own --nproc_per_node takes precedence over the operator's variable.
    job.gpus_per_node = job.gpus_per_node or ranks or job.gpus_asked
    # Pods are patched under runtimePatches or, in earlier versions, under podTemplateOverrides.
    for dotted in tree.places:
        if dotted.startswith(PATCHES):
            value = Value(tree.texts.get(dotted, ""), tree.places[dotted])
            if dotted.endswith(f".nodeSelector.{PRODUCT}"):
                job.gpu_product = value
            elif dotted.endswith(".persistentVolumeClaim.claimName"):
                job.volumes.append(value)
    return job


_READERS = {
    "DeepSpeedJob": _deepspeed_job,
    "PyTorchJob": _pytorch_job,
    "MPIJob": _mpi_job,
    "TrainJob": _train_job,
}


def _job(tree: Tree, kind: str) -> Job:
    return Job(kind, tree.label, name=tree.word("metadata.name"), scripts=tree.scripts)


def _container(
    tree: Tree,
    job: Job,
    pod: str,
    wanted: str,
    given: UserValues,
    operator: Mapping[str, Value | None] | None = None,
) -> None:
    """Read the image, environment, resources, volumes and command of a pod's training container.

    `operator` holds the variables that the operator sets, each with its value or, if only the pod knows the
    value, None.
    """
    containers = tree.find(f"{pod}.containers")
    count = len(containers.value) if containers and isinstance(containers.value, list) else 0
    if count:
        container = f"{pod}.containers.{_training_container(tree, pod, count, wanted)}"
        job.image = tree.find(f"{container}.image") or job.image
        _environment(tree, job, f"{container}.env")
        _resources(tree, job, f"{container}.resources")
        words = [*tree.words(f"{container}.command"), *tree.words(f"{container}.args")]
        _take_words(tree, job, words, operator or {}, given)
    selector = tree.find(f"{pod}.nodeSelector")
    product = selector.value.get(PRODUCT) if selector and isinstance(selector.value, dict) else None
    if product:
        job.gpu_product = Value(str(product), tree.places[f"{pod}.nodeSelector.{PRODUCT}"])
    volumes = tree.find(f"{pod}.volumes")
    for number in range(len(volumes.value) if volumes and isinstance(volumes.value, list) else 0):
        claim = tree.find(f"{pod}.volumes.{number}.persistentVolumeClaim.claimName")
        job.volumes += [claim] if claim else []


def _training_container(tree: Tree, pod: str, count: int, wanted: str) -> int:
    """Return the index of the training container.

    It is the container with the operator's name or, without one, the first that requests GPUs.
    """
    names = [tree.word(f"{pod}.containers.{at}.name") for at in range(count)]
    for at, name in enumerate(names):
        if name and name.text == wanted:
            return at
    for at in range(count):
        probe = Job("", "")
        _resources(tree, probe, f"{pod}.containers.{at}.resources")
        if probe.gpus_asked is not None:
            return at
    return 0


def _environment(tree: Tree, job: Job, dotted: str) -> None:
    found = tree.find(dotted)
    for at in range(len(found.value) if found and isinstance(found.value, list) else 0):
        name, value = tree.word(f"{dotted}.{at}.name"), tree.word(f"{dotted}.{at}.value")
        if name and value:
            job.environment[name.text] = value
        elif name and (source := tree.find(f"{dotted}.{at}.valueFrom")):
            # The value comes from a Secret, a ConfigMap or a field of the pod, which only the cluster knows.
            job.environment[name.text] = Word(f"${{{name.text}}}", source.place)
    _environment_from(tree, job, f"{dotted}From")


def _environment_from(tree: Tree, job: Job, dotted: str) -> None:
    """Read envFrom: the variables of ConfigMaps in the given files. Secrets are never read."""
    found = tree.find(dotted)
    for at in range(len(found.value) if found and isinstance(found.value, list) else 0):
        prefix = tree.word(f"{dotted}.{at}.prefix")
        name = tree.word(f"{dotted}.{at}.configMapRef.name")
        if name is None:
            continue
        source = tree.maps.get(name.text)
        data = source.find("data") if source else None
        if source is None or data is None or not isinstance(data.value, dict):
            words = (
                f"envFrom: the variables are in the ConfigMap {name.text}, which is not in the given files. "
                "Pass the file with this ConfigMap as well, or add backend.env={NAME: VALUE} to the command."
            )
            job.asked.append(("backend.env", name.place, words))
            continue
        for key in data.value:
            text = source.texts.get(f"data.{key}", str(data.value[key]))
            job.environment[f"{prefix.text if prefix else ''}{key}"] = Word(
                text, source.places[f"data.{key}"]
            )


def _resources(tree: Tree, job: Job, dotted: str) -> None:
    gpus = ""
    for kind in ("limits", "requests"):
        found = tree.find(f"{dotted}.{kind}")
        for resource in found.value if found and isinstance(found.value, dict) else {}:
            value = found.value[resource] if found else None
            one = Value(value, tree.places[f"{dotted}.{kind}.{resource}"])
            if resource == "cpu":
                job.cpus = Value(max(int(quantity(one, "cpu")), 1), one.place)
            elif resource == "memory":
                job.memory_bytes = Value(int(quantity(one, "memory")), one.place)
            elif is_gpu(resource) and gpus in ("", resource):
                gpus = resource  # a run has one kind of GPU; kubernetes_backend.py lists the others
                job.gpus_asked = Value(whole_number(one, resource), one.place)


# The kubelet replaces $(NAME) in a container's command; $$ stands for $.
REFERENCE = re.compile(r"\$\$|\$\(([-\w.]+)\)")


def _variables(job: Job, operator: Mapping[str, Value | None]) -> dict[str, Word]:
    """Return a container's environment: the variables that the operator and the manifest set."""
    found: dict[str, Word] = {}
    for name, value in operator.items():
        if value is None:
            unknown = Unknown(f"${{{name}}}", name, job.label, "the operator sets it in each pod")
            found[name] = Word(unknown.text, job.label, (unknown,))
        else:
            found[name] = Word(str(value.value), value.place, ())
    for name, word in job.environment.items():
        if word.text == f"${{{name}}}":
            unknown = Unknown(word.text, name, word.place, "only the cluster knows its value")
            found[name] = Word(word.text, word.place, (unknown,))
        else:
            found[name] = _referenced(Word(word.text, word.place, ()), found)
    return found


def _referenced(word: Word, variables: Mapping[str, Word]) -> Word:
    """Replace $(NAME) as the kubelet does: names that the container does not have are left unchanged."""
    unknowns: list[Unknown] = []

    def value(match: re.Match[str]) -> str:
        if match.group(0) == "$$":
            return "$"
        variable = variables.get(match.group(1))
        if variable is None:
            return match.group(0)
        unknowns.extend(variable.unknowns or ())
        return variable.text

    return Word(REFERENCE.sub(value, word.text), word.place, tuple(unknowns))


def _take_words(
    tree: Tree, job: Job, words: Sequence[Word], operator: Mapping[str, Value | None], given: UserValues
) -> None:
    """Read a container's command: a launcher, bash -c with a script, or a mounted script."""
    if not words:
        return
    variables = _variables(job, operator)
    command = [_referenced(word, variables) for word in words]
    if len(command) == 1 and " " in command[0].text:
        command = [Word("bash", command[0].place, ()), Word("-c", command[0].place, ()), *command]
    nodes = job.nodes if job.nodes and isinstance(job.nodes.value, int) else None
    place = Allocation(nodes, job.gpus_asked, is_pod=True)
    _take(job, launch_in_words(job, command, place, variables, tree.scripts, given))


def _take(job: Job, launch: Launch | None) -> None:
    """Set a job's program, and the ranks that its launcher starts in the manifest's pods."""
    if launch is None:
        return
    job.program, job.flags = launch.program, launch.flags
    ranks = launch.ranks
    if isinstance(ranks.total, Value) and ranks.per_node is None:
        job.world_size = ranks.total
    if isinstance(ranks.per_node, Value):
        job.gpus_per_node = ranks.per_node
    elif isinstance(ranks.per_node, Unknown):
        job.unknown.append(("resources.gpus_per_node", ranks.per_node))
    elif launch.launcher == "python" and job.kind == "PyTorchJob":
        job.gpus_per_node = Value(1, launch.program.place)  # each pod starts the program once
    if not launch.is_explicit or not isinstance(ranks.nodes, Value) or job.nodes is None:
        return
    if job.kind == "MPIJob" and ranks.nodes.value < job.nodes.value:
        job.nodes = ranks.nodes
    elif ranks.nodes.value != job.nodes.value and not job.is_asked("resources.nodes"):
        job.asked.append(
            (
                "resources.nodes",
                ranks.nodes.place,
                f"{launch.launcher} starts ranks on {ranks.nodes.value} machines, but the manifest has "
                f"{job.nodes.value} pods ({job.nodes.place}). Make both equal, or add resources.nodes=... "
                "to the command.",
            )
        )
