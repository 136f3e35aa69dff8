"""Kubernetes as a backend: the pods of one object start the agents; node 0's starts the supervisor.

Who restarts: the supervisor restarts ranks; the operator restarts a pod that was lost, by its policy. A
supervisor that gets TERM with its pod cannot know whether another pod follows: it hands the job over, and the
engine's word says what became of it.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from nbtrain.base.errors import JobError
from nbtrain.base.jobstate import CANCELLED, QUEUED
from nbtrain.base.node_records import Ask, EngineWord
from nbtrain.base.rundir import JobDir, new_run_id
from nbtrain.config.load import load_resolved
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.backends.base import Capabilities, Launcher
from nbtrain.jobs.backends.kubernetes import preflight
from nbtrain.jobs.backends.kubernetes.cluster import Cluster
from nbtrain.jobs.backends.kubernetes.connect import connect
from nbtrain.jobs.backends.kubernetes.engine import ask, details_path, engine_events, own_uid
from nbtrain.jobs.backends.kubernetes.handle import KubernetesHandle
from nbtrain.jobs.backends.kubernetes.manifests.kinds import KINDS, Manifest, debug_patch, write
from nbtrain.jobs.backends.kubernetes.manifests.text import manifest_text
from nbtrain.jobs.backends.kubernetes.refusals import Unanswered
from nbtrain.jobs.backends.kubernetes.work import work_of
from nbtrain.jobs.backends.remote import Agents, RemoteLauncher
from nbtrain.jobs.backends.remote_backend import EngineUnseen, RemoteBackend
from nbtrain.jobs.control import asked_pause
from nbtrain.jobs.obstacle import Obstacle


class KubernetesBackend(RemoteBackend):
    """Jobs as objects of a cluster."""

    capabilities = Capabilities(save=True, stop_in_order=True, pause=True)

    def submit(self, job: JobDir) -> None:
        """Create the job's object, or find it. Raises SubmitError with the server's words."""
        config = load_resolved(job.run.config_yaml)
        section = config.backend.kubernetes
        try:
            cluster = Cluster(connect(section.context, section.namespace))
            run_id = (job.run.record() or {})["run_id"]
            manifest = write(work_of(config, section, run_id, job), cluster.namespace)
            name = manifest["metadata"]["name"]
            handle = KubernetesHandle(section.workload, cluster.namespace, name, "", cluster.context)
            handle.write(job.handle_json)
            replace(handle, uid=cluster.create(manifest)["metadata"]["uid"]).write(job.handle_json)
        except JobError as error:
            if not isinstance(error, Unanswered):
                job.handle_json.unlink(missing_ok=True)
            raise self.refused(job, f"Kubernetes did not take the job: {error}") from error

    def request_text(self, job: JobDir, config: RunConfig) -> str:
        """The manifest. Raises SubmitError if there is no image."""
        section, record = config.backend.kubernetes, job.run.record() or {}
        work = work_of(config, section, record.get("run_id") or new_run_id(), job)
        return manifest_text(work, write(work, section.namespace))

    def ask_engine(self, job: JobDir) -> EngineWord:
        """The object's status and its pods'; the details go to kubernetes.json."""
        handle = KubernetesHandle.read(job.handle_json)
        if handle is None:
            return EngineWord(None, "", time.time(), engine="Kubernetes")
        before = EngineWord.read(job.engine_json)
        try:
            last = before.state if before and before.state else QUEUED
            word, details = ask(_cluster(handle), handle, job.job_id, last)
        except JobError as error:
            raise EngineUnseen(str(error)) from error
        if word.state is None and (asked := Ask.read(job.control_ask)) and asked.action.startswith("stop"):
            return replace(word, state=CANCELLED, reason="cancelled on request; its object is deleted")
        # The disk may be full, or read-only here; and the supervisor sweeps temporary files.
        with contextlib.suppress(OSError):
            details.write(details_path(job))
        return word

    def end_in_engine(self, job: JobDir) -> None:
        """Delete the object, and with it its pods."""
        if handle := KubernetesHandle.read(job.handle_json):
            cluster = _cluster(handle)
            if uid := handle.uid or own_uid(cluster.get(KINDS[handle.kind], handle.name), job.job_id):
                cluster.delete(KINDS[handle.kind], handle.name, uid)

    def obstacles(self, config: RunConfig) -> Iterator[Obstacle]:
        """From the cluster itself: preflight.py."""
        return preflight.obstacles(config)

    def launcher(self, job: JobDir, command: Iterable[str]) -> Launcher:
        """The agents that the pods have started."""
        return PodLauncher(job, command)

    def pause(self, job: JobDir) -> None:
        """End the pods and keep the object; the job goes on from its newest checkpoint when it is resumed."""
        handle = _handle(job)
        self._patch(job, handle, KINDS[handle.kind].pause(True))

    def unpause(self, job: JobDir) -> None:
        """Start the pods of a paused job again."""
        handle = _handle(job)
        self._patch(job, handle, KINDS[handle.kind].pause(False))

    def starts_again(self, job: JobDir) -> str:
        """Always: if no pod follows, the object's state says so, or that it is gone."""
        if asked_pause(job):
            return f"paused; `nbtrain resume {job.run.name}` goes on"
        return "goes on when the cluster starts its pods again"

    def debug(self, job: JobDir, on: bool) -> None:
        """Turn a DeepSpeedJob's debug mode on or off: pods without training."""
        handle = _handle(job)
        if handle.kind != "DeepSpeedJob":
            raise JobError(
                f"{handle.kind} {handle.namespace}/{handle.name} has no debug mode: only a DeepSpeedJob has. "
                "Set backend.kubernetes.workload=DeepSpeedJob for a trial, or look with `kubectl exec`."
            )
        self._patch(job, handle, debug_patch(on))

    def logs(self, job: JobDir, rank: int | str, lines: int) -> list[str]:
        """From the run directory; if a rank has written none, the log of the pod that should run it."""
        handle = KubernetesHandle.read(job.handle_json)
        if (found := super().logs(job, rank, lines)) or handle is None:
            return found
        config = load_resolved(job.run.config_yaml)
        node = rank // config.ranks_per_node if isinstance(rank, int) else 0
        try:
            cluster = _cluster(handle)
            names = sorted(pod["metadata"]["name"] for pod in cluster.pods(job.job_id))
            # An MPIJob's launcher runs no rank.
            trains = [name for name in names if "-launcher" not in name.removeprefix(handle.name)]
            return list(cluster.log(trains[node], None, tail_lines=lines)) if node < len(trains) else []
        except JobError:
            return []

    def events(self, job: JobDir) -> list[dict[str, Any]]:
        """The job's own and the cluster's, by time; the own alone if the cluster cannot be seen."""
        own, handle = super().events(job), KubernetesHandle.read(job.handle_json)
        if handle is None:
            return own
        try:
            theirs = engine_events(_cluster(handle), handle)
        except JobError:
            return own
        return sorted(own + theirs, key=lambda event: event["time"])

    def _patch(self, job: JobDir, handle: KubernetesHandle, change: Manifest) -> None:
        _cluster(handle).patch(KINDS[handle.kind], handle.name, change)
        self.engine_word(job, at_once=True)


class PodLauncher(RemoteLauncher):
    """Agents that were there first: each pod starts its own."""

    def start_agents(self, config: RunConfig) -> Agents:
        """Nothing to start."""
        return PodAgents()

    def close(self) -> None:
        """The agents see the end in job.json, and the operator ends the pods of a job that is handed over."""


class PodAgents:
    """The pods' agents; the operator ends them with their pods."""

    last_words = ""

    def poll(self) -> int | None:
        """They run as long as the pods do."""
        return None

    def end(self) -> None:
        """The operator's matter."""


def _handle(job: JobDir) -> KubernetesHandle:
    handle = KubernetesHandle.read(job.handle_json)
    if handle is None:
        raise JobError(f"{job.job_id}: handle.json is not there: the job never reached its cluster.")
    return handle


def _cluster(handle: KubernetesHandle) -> Cluster:
    return Cluster(connect(handle.context, handle.namespace))


BACKEND = KubernetesBackend()
