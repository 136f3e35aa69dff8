"""Call the API server through the official client, with retries, and resume interrupted streams.

Requests that fail with 429, 5xx, a timeout or a lost connection are retried after increasing pauses. A
retried create may find the object that the first try created (409), which counts as success. An interrupted
watch resumes from the last resource version that it received; if the server has discarded that version (410),
the object is listed again.
"""

import json
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

from nbtrain.base.errors import JobError, SubmitError
from nbtrain.jobs.backends.kubernetes.connect import Connection, library
from nbtrain.jobs.backends.kubernetes.manifests.kinds import KINDS, Kind, Manifest
from nbtrain.jobs.backends.kubernetes.manifests.names import (
    JOB_ID,
    RUN_ID,
    checked,
    checked_namespace,
    is_ours,
)
from nbtrain.jobs.backends.kubernetes.refusals import Refused, Unanswered, refusal
from nbtrain.jobs.backends.kubernetes.tolerant import mapping

CONNECT_SECONDS, READ_SECONDS = 5.0, 30.0
# Pauses between retries, half a minute in total: a user waits for the result, and a pod's watchdog must not
# be delayed for longer.
BACK_OFF_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
RETRIED = frozenset({429, 500, 502, 503, 504})
GONE = 410
# Seconds after which the server ends a watch. A stream that is silent for longer was lost without notice.
WATCH_SECONDS = 240
MERGE_PATCH = "application/merge-patch+json"
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
# Accept header that requests only metadata, so that a Secret's contents are not transferred.
METADATA = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
MOST_LISTED = 500


class Cluster:
    """A namespace of an API server, with the requests that nbtrain makes there."""

    def __init__(
        self,
        connection: Connection,
        back_off_seconds: tuple[float, ...] = BACK_OFF_SECONDS,
        read_seconds: float = READ_SECONDS,
    ):
        self._api = connection.api
        self.namespace = checked_namespace(connection.namespace)
        self.context = connection.context
        self.host = str(connection.api.configuration.host)
        self._back_off_seconds = back_off_seconds
        self._read_seconds = read_seconds

    def create(self, manifest: Manifest) -> Manifest:
        """Create the object and return it, or return the object that this job has already created.

        Raises SubmitError if another job's object has this name, and Refused, with the server's message, if
        the server rejects the object.
        """
        kind = KINDS[manifest["kind"]]
        labels, name = manifest["metadata"]["labels"], checked(manifest["metadata"]["name"])
        try:
            return self._json("POST", self._path(kind), f"create {kind.name} {name}", body=manifest)
        except Refused as error:
            if error.status != 409:
                raise
        found = self.get(kind, name)
        if found is not None and is_ours(found, labels[RUN_ID], labels[JOB_ID]):
            return found
        raise SubmitError(
            f"{self.host}: {kind.name} {self.namespace}/{name} already exists and belongs to another job. "
            f"Delete it (`kubectl delete -n {self.namespace} {kind.plural}.{kind.group} {name}`), or rename "
            "the run."
        )

    def try_create(self, manifest: Manifest) -> None:
        """Ask the server to validate the object without storing it. Raises Refused or Unanswered."""
        kind, name = KINDS[manifest["kind"]], checked(manifest["metadata"]["name"])
        query = {"dryRun": "All"}
        self._json("POST", self._path(kind), f"create {kind.name} {name}", body=manifest, query=query)

    def may(self, verb: str, group: str, resource: str) -> bool | None:
        """Return whether this user may do the action in the namespace; None if that is not known."""
        asked = {"namespace": self.namespace, "verb": verb, "group": group, "resource": resource}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": asked},
        }
        try:
            answer = self._json("POST", REVIEWS, "review this user's rights", body=body)
        except Refused:
            return None
        allowed = mapping(answer.get("status")).get("allowed")
        return allowed if isinstance(allowed, bool) else None

    def has(self, plural: str, name: str) -> bool | None:
        """Return whether a core/v1 object exists in the namespace; None if reading it is forbidden.

        Only the object's metadata is requested.
        """
        try:
            self._json("GET", f"{self._core}/{plural}/{name}", f"look for {plural} {name}", accept=METADATA)
        except Refused as error:
            return False if error.status == 404 else None
        return True

    def get(self, kind: Kind, name: str) -> Manifest | None:
        """Return the current object; None if it does not exist."""
        try:
            return self._json("GET", self._path(kind, checked(name)), f"read {kind.name} {name}")
        except Refused as error:
            if error.status == 404 and error.reason == "NotFound":
                return None
            raise

    def patch(self, kind: Kind, name: str, change: Manifest) -> Manifest:
        """Merge `change` into the object and return the result."""
        path = self._path(kind, checked(name))
        return self._json("PATCH", path, f"change {kind.name} {name}", body=change, content=MERGE_PATCH)

    def delete(self, kind: Kind, name: str, uid: str | None = None) -> bool:
        """Delete the object and its pods; return False if it did not exist.

        With `uid`, a later object with the same name is kept.
        """
        options: Manifest = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            self._json("DELETE", self._path(kind, checked(name)), f"delete {kind.name} {name}", body=options)
        except Refused as error:
            # 409: the object of that name has another uid.
            if error.status in (404, 409):
                return False
            raise
        return True

    def pods(self, job_id: str) -> list[Manifest]:
        """Return a job's pods, which are found by the label that its manifest sets."""
        return self._listed(f"{self._core}/pods", "list pods", labelSelector=f"{JOB_ID}={job_id}")

    def events(self, names: set[str]) -> list[Manifest]:
        """Return the cluster's events about these objects and the objects derived from them, oldest first."""
        found = [
            event
            for event in self._listed(f"{self._core}/events", "list events")
            if _about(event) in names or any(_about(event).startswith(f"{name}-") for name in names)
        ]
        return sorted(found, key=event_time)

    def watch(self, kind: Kind, name: str, seconds: float = math.inf) -> Iterator[Manifest | None]:
        """Yield the object now and after each change, and None once it is deleted.

        An interrupted watch is resumed. The iteration ends after `seconds`.
        """
        path, what = self._path(kind), f"watch {kind.name} {checked(name)}"
        selector = {"fieldSelector": f"metadata.name={name}"}
        version, deadline = "", time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if not version:
                listed = self._json("GET", path, what, query=selector)
                version = listed["metadata"]["resourceVersion"]
                if not listed.get("items"):
                    yield None
                    return
                yield listed["items"][0]
            query = {
                **selector,
                "watch": "true",
                "resourceVersion": version,
                "timeoutSeconds": str(math.ceil(min(WATCH_SECONDS, left))),
                "allowWatchBookmarks": "true",
            }
            try:
                for line in self._lines(path, what, query, min(WATCH_SECONDS, left) + self._read_seconds):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise refusal(
                            int(event["object"].get("code", 0)), json.dumps(event["object"]), what, ""
                        )
                    version = event["object"]["metadata"]["resourceVersion"]
                    if event["type"] == "DELETED":
                        yield None
                        return
                    if event["type"] != "BOOKMARK":
                        yield event["object"]
            except Refused as error:
                if error.status == GONE:
                    version = ""
                elif error.status not in RETRIED:
                    raise
            except (ValueError, KeyError, TypeError):
                # The stream was cut off in the middle of a line, so the object is listed again.
                version = ""
            time.sleep(self._back_off_seconds[0])

    def log(
        self,
        pod: str,
        container: str | None,
        tail_lines: int | None = None,
        follow: Callable[[], bool] | None = None,
    ) -> Iterator[str]:
        """Yield the lines of a pod's log. While `follow()` is true, an interrupted stream is resumed."""
        path, what = f"{self._core}/pods/{pod}/log", f"read the log of pod {pod}"
        query = {"timestamps": "true", **({"container": container} if container else {})}
        if tail_lines is not None:
            query["tailLines"] = str(tail_lines)
        if follow is not None:
            query["follow"] = "true"
        # Lines begin with RFC 3339 times in UTC, and several lines may have the same time.
        last, with_last = "", 0
        while True:
            to_skip = with_last
            for line in self._lines(path, what, query, self._read_seconds):
                stamp, _, text = line.partition(" ")
                if stamp < last:
                    continue
                if stamp == last and to_skip:
                    to_skip -= 1
                    continue
                with_last = with_last + 1 if stamp == last else 1
                last, to_skip = stamp, 0
                yield text
            if follow is None or not follow():
                return
            query.pop("tailLines", None)
            if last:
                query["sinceTime"] = last
            time.sleep(self._back_off_seconds[0])

    @property
    def _core(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}"

    def _path(self, kind: Kind, name: str = "") -> str:
        path = f"/apis/{kind.group}/{kind.version}/namespaces/{self.namespace}/{kind.plural}"
        return f"{path}/{name}" if name else path

    def _listed(self, path: str, what: str, **query: str) -> list[Manifest]:
        items: list[Manifest] = []
        query = {**query, "limit": str(MOST_LISTED)}
        while True:
            page = self._json("GET", path, what, query=query)
            items += page.get("items") or []
            if not (more := page.get("metadata", {}).get("continue")):
                return items
            query = {**query, "continue": more}

    def _json(
        self,
        method: str,
        path: str,
        what: str,
        *,
        body: Any = None,
        query: dict[str, str] | None = None,
        content: str = "application/json",
        accept: str = "application/json, */*",
    ) -> Manifest:
        def ask() -> Manifest:
            headers = {"Accept": accept, "Content-Type": content}
            answer = self._ask(method, path, what, body, query, headers, self._read_seconds)
            return json.loads(answer.data)

        return self._retried(ask, what)

    def _lines(self, path: str, what: str, query: dict[str, str], read_seconds: float) -> Iterator[str]:
        """Yield the lines of a stream as they arrive, until the stream ends for any reason."""
        from urllib3.exceptions import HTTPError

        headers = {"Accept": "application/json, */*"}
        answer = self._retried(lambda: self._ask("GET", path, what, None, query, headers, read_seconds), what)
        rest = b""
        try:
            for piece in answer.stream(amt=None, decode_content=False):
                *lines, rest = (rest + piece).split(b"\n")
                yield from (line.decode(errors="replace") for line in lines if line)
        except HTTPError:
            return
        finally:
            answer.close()
        if rest:
            yield rest.decode(errors="replace")

    def _retried(self, ask: Callable[[], Any], what: str) -> Any:
        """Call `ask`, again after each pause while it fails, and return its result.

        Raises Refused or Unanswered.
        """
        from urllib3.exceptions import HTTPError

        for seconds in (*self._back_off_seconds, None):
            try:
                return ask()
            except Refused as error:
                if error.status not in RETRIED:
                    raise
                if seconds is None:
                    raise Unanswered(str(error)) from None
            except (HTTPError, ValueError) as error:
                if seconds is None:
                    raise Unanswered(
                        f"{self.host}: cannot {what}: no complete response in "
                        f"{len(self._back_off_seconds) + 1} attempts ({type(error).__name__})."
                    ) from None
            time.sleep(seconds)
        raise AssertionError("the last try has returned or raised")

    def _ask(
        self,
        method: str,
        path: str,
        what: str,
        body: Any,
        query: dict[str, str] | None,
        headers: dict[str, str],
        read_seconds: float,
    ) -> Any:
        exceptions = library().client.exceptions
        try:
            return self._api.call_api(
                path,
                method,
                query_params=list((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
                _preload_content=False,
                _return_http_data_only=True,
                _request_timeout=(CONNECT_SECONDS, read_seconds),
            )
        except exceptions.ApiException as error:
            if not error.status:
                # This is a TLS error, which no retry can fix.
                raise JobError(
                    f"{self.host}: cannot {what}: {' '.join(str(error.reason).split())}. Compare the "
                    "cluster's certificate with certificate-authority in the kubeconfig."
                ) from None
            raise refusal(error.status, error.body, what, self.host) from None


def _about(event: Manifest) -> str:
    return str((event.get("involvedObject") or {}).get("name") or "")


def event_time(event: Manifest) -> str:
    """Return the time at which an event was last seen, in RFC 3339; "" if the event has no time."""
    for key in ("lastTimestamp", "eventTime", "firstTimestamp"):
        if event.get(key):
            return str(event[key])
    return str((event.get("metadata") or {}).get("creationTimestamp") or "")
