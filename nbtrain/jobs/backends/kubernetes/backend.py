"""Kubernetes backend: an object's pods start the agents, and node 0's agent starts the supervisor.

The supervisor restarts ranks; the operator restarts lost pods, according to its policy. A supervisor that
gets TERM together with its pod cannot know whether the cluster will start another pod. It therefore gives up
the job, and the cluster's report shows how the job continues.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from nbtrain.base.errors import JobError, SubmitError
from nbtrain.base.findings import Finding
from nbtrain.base.run_directory.events import EventWriter
from nbtrain.base.run_directory.jobstate import ACTIVE, CANCELLED, QUEUED, SUSPENDED
from nbtrain.base.run_directory.node_records import Ask, EngineWord, LaunchOrder, node_of_rank
from nbtrain.base.run_directory.records import JobRecord
from nbtrain.base.run_directory.rundir import JobDir, new_run_id
from nbtrain.base.workspace import display
from nbtrain.config.code_file import carried
from nbtrain.config.load import load_resolved
from nbtrain.config.load.one_line import one_line
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.attempt.backend import CAPABILITIES, Launcher
from nbtrain.jobs.backends.kubernetes import preflight
from nbtrain.jobs.backends.kubernetes.cluster import READ_SECONDS, Cluster
from nbtrain.jobs.backends.kubernetes.connect import connect, own_namespace
from nbtrain.jobs.backends.kubernetes.engine import (
    KubernetesDetails,
    ask,
    keep_last_logs,
    own_uid,
    speaker,
)
from nbtrain.jobs.backends.kubernetes.handle import KubernetesHandle
from nbtrain.jobs.backends.kubernetes.manifests.kinds import KINDS, Manifest, write
from nbtrain.jobs.backends.kubernetes.manifests.names import object_name
from nbtrain.jobs.backends.kubernetes.manifests.text import manifest_text
from nbtrain.jobs.backends.kubernetes.manifests.work import work_of
from nbtrain.jobs.backends.kubernetes.refusals import Unanswered
from nbtrain.jobs.backends.kubernetes.replicas import preemption_words, replica
from nbtrain.jobs.backends.remote import Agents, RemoteLauncher
from nbtrain.jobs.backends.remote_backend import EngineUnseen, RemoteBackend
from nbtrain.jobs.control.control import asked_pause
from nbtrain.monitor.job.pods import cluster_events
from nbtrain.monitor.logs.logs import NODE, follow, log_path, tail_lines

# Seconds between two queries about whether pods that were told to exit are being evicted.
ASK_AGAIN_SECONDS = 2.0
# Seconds after which a followed stream is closed, to check whether the rank has its own log file by now.
FOLLOW_SECONDS = 5.0


class KubernetesBackend(RemoteBackend):
    """Backend that runs each job as an object in a Kubernetes cluster."""

    capabilities = CAPABILITIES["kubernetes"]

    def submit(self, job: JobDir) -> None:
        """Create the job's object, or find it if it exists. Raises SubmitError with the server's message."""
        config = load_resolved(job.run.config_yaml)
        section = config.backend.kubernetes
        try:
            cluster = Cluster(connect(section.context, section.namespace))
            run_id = job.run.run_id
            assert run_id is not None  # run.json is written before the job
            manifest = write(work_of(config, section, run_id, job), cluster.namespace)
            name = manifest["metadata"]["name"]
            handle = KubernetesHandle(section.workload, cluster.namespace, name, "", cluster.context)
            handle.write(job.handle_json)
            replace(handle, uid=cluster.create(manifest)["metadata"]["uid"]).write(job.handle_json)
        except JobError as error:
            if not isinstance(error, Unanswered):
                job.handle_json.unlink(missing_ok=True)
            raise self.refused(job, f"Kubernetes did not accept the job: {error}") from error

    def request_text(self, job: JobDir, config: RunConfig, alone: bool = False) -> str:
        """Return the job's manifest.

        With `alone`, its pods write the run directory. Raises SubmitError and ConfigError.
        """
        section = config.backend.kubernetes
        if alone and section.autotune != "none":
            raise SubmitError(
                f"{config.where('backend.kubernetes.autotune')}: backend.kubernetes.autotune = "
                f"{section.autotune} needs a script that `nbtrain submit` writes into the job's folder, so "
                "kubectl alone cannot start this run. Submit the run with `nbtrain submit`, or set "
                "backend.kubernetes.autotune=none."
            )
        work = work_of(config, section, job.run.run_id or new_run_id(), job)
        if alone:
            work = replace(work, run_text=one_line(config), carried=carried(config))
        return manifest_text(work, write(work, section.namespace))

    def was_started(self, job: JobDir, run_id: str) -> None:
        """Write handle.json for the existing object. The object's uid is looked up when it is needed."""
        section = load_resolved(job.run.config_yaml).backend.kubernetes
        name, namespace = object_name(job.run.name, run_id, job.job_id), section.namespace or own_namespace()
        KubernetesHandle(section.workload, namespace, name, "", section.context).write(job.handle_json)

    def ask_engine(self, job: JobDir) -> EngineWord:
        """Return the status of the object and its pods, and write the details to kubernetes.json."""
        handle = KubernetesHandle.read(job.handle_json)
        if handle is None:
            return EngineWord(None, "", time.time(), engine="Kubernetes")
        before, known = EngineWord.read(job.engine_json), KubernetesDetails.read(job.kubernetes_json)
        try:
            cluster, last = _cluster(handle), before.state if before and before.state else QUEUED
            word, details = ask(cluster, handle, job.job_id, last, known)
        except JobError as error:
            raise EngineUnseen(str(error)) from error
        if word.state is None and (asked := Ask.read(job.control_ask)) and asked.action.startswith("stop"):
            return replace(word, state=CANCELLED, reason="cancelled on request; its object is deleted")
        # The disk may be full, or read-only on this machine, and the supervisor removes temporary files.
        with contextlib.suppress(OSError):
            details.write(job.kubernetes_json)
            if known is None or known.replicas != details.replicas:
                keep_last_logs(job, cluster, KINDS[handle.kind], details.replicas)
        return word

    def end_in_engine(self, job: JobDir) -> None:
        """Delete the object; the cluster deletes its pods with it."""
        handle = KubernetesHandle.read(job.handle_json)
        if handle is None:
            return
        try:
            cluster = _cluster(handle)
            if uid := handle.uid or own_uid(cluster.get(KINDS[handle.kind], handle.name), job.job_id):
                cluster.delete(KINDS[handle.kind], handle.name, uid)
        except Unanswered as error:
            raise EngineUnseen(error.words.rstrip(".")) from error

    def findings(self, config: RunConfig) -> Iterator[Finding]:
        """Yield the problems that preflight.py finds in the cluster."""
        return preflight.findings(config)

    def launcher(self, job: JobDir, command: Iterable[str]) -> Launcher:
        """Return a launcher that uses the agents that the pods have started."""
        return PodLauncher(job, command)

    def pause(self, job: JobDir) -> None:
        """End the pods and keep the object. On resume, the job continues from its newest checkpoint."""
        with _told(job, SUSPENDED, "paused before its supervisor started"):
            handle = _handle(job)
            self._patch(job, handle, KINDS[handle.kind].pause(True))

    def unpause(self, job: JobDir) -> None:
        """Start the pods of a paused job again."""
        with _told(job, QUEUED, "resumed after a pause; waiting for its pods"):
            handle = _handle(job)
            self._patch(job, handle, KINDS[handle.kind].pause(False))

    def disruption(self, job: JobDir, nodes: list[int]) -> str:
        """Return text about the eviction of a pod on one of these nodes; "" if the cluster reports none.

        Raises JobError if the cluster does not respond, or refuses the request, for example because this user
        may not list pods.
        """
        handle = _handle(job)
        pods = _cluster(handle).pods(job.job_id)
        return preemption_words([replica(pod, handle.kind == "PyTorchJob") for pod in pods], nodes)

    def starts_again(self, job: JobDir) -> str:
        """Return a message that the cluster starts the job again, or that the job is paused; never "".

        Whether the cluster starts another pod is not known here. If it starts none, the state of the object
        shows that later, or the object is gone.
        """
        if asked_pause(job):
            return f"paused; `nbtrain resume {job.run.name}` continues it"
        return "continues when the cluster starts its pods again"

    def logs(self, job: JobDir, rank: int | str, lines: int) -> list[str]:
        """Return the last lines of a rank's log.

        If the run directory has no log of the rank, return lines of its pod's log, or of the saved copy of
        the pod's log.
        """
        if found := super().logs(job, rank, lines):
            return found
        with contextlib.suppress(JobError):
            found = list(self._pod_log(job, rank, tail_lines=lines))
        return found or tail_lines(job.node_log(_node_of(job, rank)), lines)

    def follow(self, job: JobDir, rank: int | str) -> Iterator[str]:
        """Yield the pod's complete log until the rank has a log file, then the rank's log."""
        path = log_path(job, rank)
        waited = not path.exists()

        def waits() -> bool:
            return not path.exists() and self.status(job)[0] in ACTIVE

        while waits():
            # There is nothing to read while the pod has no container or the cluster does not respond.
            with contextlib.suppress(JobError):
                yield from self._pod_log(job, rank, read_seconds=FOLLOW_SECONDS, follow=waits)
            time.sleep(FOLLOW_SECONDS / 5)
        yield from follow(job.run, rank, from_start=waited)

    def next_change(self, job: JobDir, seconds: float) -> None:
        """Wait at most `seconds` until the object changes, and record the cluster's report."""
        deadline, handle = time.monotonic() + seconds, KubernetesHandle.read(job.handle_json)
        with contextlib.suppress(JobError):
            if handle is not None:
                changes = _cluster(handle).watch(KINDS[handle.kind], handle.name, seconds)
                next(changes, None)
                if next(changes, handle) is not handle:
                    self.engine_word(job, at_once=True)
                    return
        time.sleep(max(0.0, deadline - time.monotonic()))

    def events(self, job: JobDir) -> list[dict[str, Any]]:
        """Return the job's events and the cluster's events, oldest first."""
        self.status(job)
        return sorted(super().events(job) + cluster_events(job), key=lambda event: event["time"])

    def _pod_log(
        self, job: JobDir, rank: int | str, read_seconds: float = READ_SECONDS, **how: Any
    ) -> Iterator[str]:
        """Yield a pod's log. Raises JobError if the cluster or the container cannot be queried."""
        handle = KubernetesHandle.read(job.handle_json)
        self.engine_word(job)
        details = KubernetesDetails.read(job.kubernetes_json)
        if handle is None or details is None:
            return
        kind = KINDS[handle.kind]
        if pod := speaker(kind, details.replicas, _node_of(job, rank)):
            yield from _cluster(handle, read_seconds).log(pod, kind.container, **how)

    def _patch(self, job: JobDir, handle: KubernetesHandle, change: Manifest) -> None:
        try:
            _cluster(handle).patch(KINDS[handle.kind], handle.name, change)
        except Unanswered as error:
            raise JobError(
                f"{display(job.run.path)}: job {job.job_id} could not be paused or resumed in its cluster: "
                f"{error.words} Try again when the cluster responds."
            ) from error
        self.engine_word(job, at_once=True)


class PodLauncher(RemoteLauncher):
    """Launcher for agents that are already running, because each pod starts its own agent."""

    # (nodes that were told to exit, text about the eviction of their pods), and the time of the last query.
    _disruption: tuple[list[int], str] = ([], "")
    _asked_at = float("-inf")
    _trouble = ""

    def launch(self, config: RunConfig, attempt: int) -> None:
        """Forget an eviction from an earlier attempt, then launch the ranks as the base class does."""
        self._disruption = ([], "")
        super().launch(config, attempt)

    def scheduler_preemption(self, leaving: list[int]) -> str:
        """Return text about the eviction of a pod that was told to exit; "" if the cluster reports none.

        If `leaving` is empty, the pod of node 0, where this supervisor runs, is checked.
        """
        known, words = self._disruption
        if words and known == leaving:
            return words
        if leaving and time.monotonic() - self._asked_at < ASK_AGAIN_SECONDS:
            return ""
        self._asked_at, words = time.monotonic(), ""
        try:
            words = BACKEND.disruption(self._job, leaving or [0])
            self._trouble = ""
        except JobError as error:
            self._trouble = f"cannot tell whether a pod was evicted: {error}"
        self._disruption = (leaving, words)
        return words

    def preemption_trouble(self) -> str:
        """Return why the cluster's record or a pod's notice could not be read; "" if it could."""
        return self._trouble or super().preemption_trouble()

    def devices(self, config: RunConfig) -> list[int]:
        """Return the number of GPUs in each pod, or of ranks on CPU; 0 for a pod that does not report."""
        self._look_at_nodes()
        most = config.ranks_per_node
        gpus = {node: watch.record.gpus for node, watch in self._watches.items() if not self._lost(node)}
        if config.resources.device != "gpu":
            gpus = dict.fromkeys(gpus, most)
        return [min(most, gpus.get(node, 0)) for node in range(config.resources.nodes)]

    def start_agents(self, config: RunConfig) -> Agents:
        """Return the pods' agents; nothing is started, because the pods start the agents."""
        return PodAgents()

    def close(self) -> None:
        """Do nothing.

        Agents read the job's end in job.json, and the operator ends the pods of a job that its supervisor has
        given up.
        """


class PodAgents:
    """The agents in the pods, which the operator ends together with the pods."""

    end_message = ""

    def poll(self) -> int | None:
        """Return None, because the agents run as long as their pods."""
        return None

    def end(self) -> None:
        """Do nothing: the operator ends the pods."""


def _handle(job: JobDir) -> KubernetesHandle:
    handle = KubernetesHandle.read(job.handle_json)
    if handle is None:
        raise JobError(
            f"{display(job.run.path)}: job {job.job_id} was never sent to its cluster: its handle.json does "
            f"not exist. Run `nbtrain cancel {job.run.name}`, then submit the run again."
        )
    return handle


def _cluster(handle: KubernetesHandle, read_seconds: float = READ_SECONDS) -> Cluster:
    return Cluster(connect(handle.context, handle.namespace), read_seconds=read_seconds)


@contextlib.contextmanager
def _told(job: JobDir, state: str, message: str) -> Iterator[None]:
    """Run the block, then write an event about the new state if the job has no supervisor to write it."""
    record = JobRecord.read(job.job_json)
    yield
    if record is not None and record.state in ACTIVE and record.supervisor is None:
        EventWriter(job, "control").write("state", message, state=state, cause=message)


def _node_of(job: JobDir, rank: int | str) -> int:
    """Return the node number for `rank`, which is a rank or the name of a log: "node<k>" or "supervisor".

    The supervisor is on node 0.
    """
    if isinstance(rank, str):
        return int(named[1]) if (named := NODE.fullmatch(rank)) else 0
    # After a resize, ranks may be on other nodes than config.yaml says.
    order = LaunchOrder.read(job.control_launch)
    node = node_of_rank(order.ranks, rank) if order is not None else None
    return rank // load_resolved(job.run.config_yaml).ranks_per_node if node is None else node


BACKEND = KubernetesBackend()
