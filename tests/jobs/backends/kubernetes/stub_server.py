"""A stub of the Kubernetes API server on the loopback interface, which can cause faults, to test the official
client.

It stores objects by path and name, numbers each change, and supports create (also as dry run), get, list with
label and field selectors, watch, merge patch, delete, pod logs and access reviews. As a real API server, it
rejects an unknown namespace or kind (404), a name that is in use (409), a resource version that is too old
(410), and fields that a kind does not have (422).
"""

import copy
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

PATH = re.compile(r"(/apis/[^/]+/[^/]+|/api/v1)/namespaces/([^/]+)/([^/]+)(?:/([^/]+))?(/log)?")
REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
GONE = {"code": 410, "reason": "Expired", "message": "too old resource version"}


class StubServer:
    """The objects, logs and planned faults of the server that listens at `address`."""

    def __init__(self, folder: Path, validate: Callable[[str, dict], list[str]] | None = None):
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.logs: dict[str, list[str]] = {}
        self.following = True
        self.watches = 0
        """Number of watches opened so far."""
        self.namespaces = {"research"}
        self.present = {("persistentvolumeclaims", "workspace")}
        """Objects of core/v1 that exist, by plural and name."""
        self.forbidden: set[tuple[str, str]] = set()
        """Denied rights: (verb, plural) that the user may not use."""
        self.kinds: set[str] | None = None
        self.asked: list[tuple[str, str, str]] = []
        """Method, path and content type of every request."""
        self.accepted: list[tuple[str, str]] = []
        """Path and Accept header of every request for an object of core/v1."""
        self._validate = validate
        self._version, self._oldest = 1, 0
        self._changes: list[tuple[int, str, str, dict[str, Any]]] = []
        self._changed = threading.Condition()
        self._faults: list[tuple[str, str, dict[str, Any]]] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(self._config()))

    def __enter__(self) -> "StubServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self.following = False
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def fault(self, method: str, pattern: str, times: int = 1, **how: Any) -> None:
        """Plan a fault for the next requests: status=500, drop=True, slow=0.5, or break_after=2 lines."""
        self._faults += [(method, pattern, how)] * times

    def put(self, path: str, item: dict[str, Any]) -> None:
        """Store an object, as an operator does when it creates or changes one."""
        with self._changed:
            key = (path, item["metadata"]["name"])
            self._keep(key, item, "MODIFIED" if key in self.objects else "ADDED")

    def set_status(self, path: str, name: str, status: dict[str, Any]) -> None:
        """Set the status of an object, as its operator does."""
        self.put(path, {**self.objects[path, name], "status": status})

    def remove(self, path: str, name: str) -> None:
        with self._changed:
            self._keep((path, name), self.objects[path, name], "DELETED")

    def forget(self) -> None:
        """Reject every watch that starts from a resource version before the current one."""
        self._oldest = self._version

    def _config(self) -> dict[str, Any]:
        cluster = {"name": "stub", "cluster": {"server": self.address}}
        user = {"name": "me", "user": {"token": "not-a-secret"}}
        context = {"name": "here", "context": {"cluster": "stub", "user": "me", "namespace": "research"}}
        return {
            "current-context": "here",
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [cluster],
            "users": [user],
            "contexts": [context],
        }

    def _keep(self, key: tuple[str, str], item: dict[str, Any], change: str) -> dict[str, Any]:
        self._version += 1
        item = copy.deepcopy(item)
        item["metadata"] |= {"resourceVersion": str(self._version), "namespace": key[0].split("/")[-2]}
        item["metadata"].setdefault("uid", f"uid-{self._version}")
        if change == "DELETED":
            del self.objects[key]
        else:
            self.objects[key] = item
        self._changes.append((self._version, key[0], change, item))
        self._changed.notify_all()
        return item

    def create(self, path: str, item: dict[str, Any], keep: bool = True) -> tuple[int, dict[str, Any]]:
        name, space = item["metadata"]["name"], path.split("/")[-2]
        if space not in self.namespaces:
            details = {"name": space, "kind": "namespaces"}
            return 404, {
                "message": f'namespaces "{space}" not found',
                "reason": "NotFound",
                "details": details,
            }
        if self.kinds is not None and item["kind"] not in self.kinds:
            return 404, {"message": "the server could not find the requested resource", "reason": "NotFound"}
        with self._changed:
            if (path, name) in self.objects:
                return 409, {"reason": "AlreadyExists", "message": f'jobs "{name}" already exists'}
            if self._validate and (wrong := self._validate(item["kind"], item)):
                causes = [dict(zip(("field", "message"), error.split(": ", 1))) for error in wrong]
                words = f'{item["kind"]} "{name}" is invalid'
                return 422, {"reason": "Invalid", "message": words, "details": {"causes": causes}}
            return 201, self._keep((path, name), item, "ADDED") if keep else item

    def listed(self, path: str, query: dict[str, str]) -> dict[str, Any]:
        with self._changed:
            found = [item for (where, _), item in sorted(self.objects.items()) if where == path]
            return {
                "items": [item for item in found if _selected(item, query)],
                "metadata": {"resourceVersion": str(self._version)},
            }

    def changes(self, path: str, query: dict[str, str]) -> Iterator[dict[str, Any]]:
        """Yield the events of a watch until it times out."""
        seen, deadline = int(query["resourceVersion"]), time.monotonic() + float(query["timeoutSeconds"])
        self.watches += 1
        if seen < self._oldest:
            yield {"type": "ERROR", "object": GONE}
            return
        while True:
            with self._changed:
                fresh = [change for change in self._changes if change[0] > seen and change[1] == path]
                if not fresh:
                    if time.monotonic() > deadline or not self.following:
                        return
                    self._changed.wait(0.05)
                    continue
            for version, _, kind, item in fresh:
                seen = version
                if _selected(item, query):
                    yield {"type": kind, "object": item}

    def take_fault(self, method: str, path: str) -> dict[str, Any]:
        for fault in self._faults:
            if fault[0] == method and re.search(fault[1], path):
                self._faults.remove(fault)
                return fault[2]
        return {}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        stub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Discard the log message."""

            def answer(self) -> None:
                parts = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                stub.asked.append((self.command, parts.path, self.headers.get("Content-Type") or ""))
                fault = stub.take_fault(self.command, self.path)
                if "slow" in fault:
                    time.sleep(fault["slow"])
                if fault.get("drop"):
                    self.close_connection = True
                    return
                if "status" in fault:
                    return self.say(fault["status"], fault.get("body", {"message": "ordered by the test"}))
                if parts.path == REVIEWS:
                    asked = body["spec"]["resourceAttributes"]
                    allowed = (asked["verb"], asked["resource"]) not in stub.forbidden
                    return self.say(201, {**body, "status": {"allowed": allowed}})
                if not (found := PATH.fullmatch(parts.path)):
                    return self.say(404, b"404 page not found")
                group, namespace, plural, name, log = found.groups()
                where = f"{group}/namespaces/{namespace}/{plural}"
                if log:
                    return self.stream(self.log_lines(name, query), fault)
                if "watch" in query:
                    return self.stream((json.dumps(change) for change in stub.changes(where, query)), fault)
                if self.command == "POST":
                    status, item = stub.create(where, body, query.get("dryRun") != "All")
                    if fault.get("lose_answer"):
                        self.close_connection = True
                        return
                    return self.say(status, item)
                if name is None:
                    return self.say(200, stub.listed(where, query))
                if group == "/api/v1" and plural not in ("pods", "events"):
                    stub.accepted.append((parts.path, self.headers["Accept"]))
                    if ("get", plural) in stub.forbidden:
                        return self.say(403, {"reason": "Forbidden", "message": f"{plural} is forbidden"})
                    if (plural, name) in stub.present:
                        return self.say(200, {"metadata": {"name": name}})
                if (where, name) not in stub.objects:
                    return self.say(
                        404, {"reason": "NotFound", "message": f'"{name}" not found'} | _details(name)
                    )
                item = stub.objects[where, name]
                if self.command == "PATCH":
                    if self.headers["Content-Type"] != "application/merge-patch+json":
                        return self.say(415, {"message": "the body was in an unsupported media type"})
                    stub.put(where, _merged(item, body))
                elif self.command == "DELETE":
                    wanted = ((body or {}).get("preconditions") or {}).get("uid")
                    if wanted not in (None, item["metadata"]["uid"]):
                        return self.say(409, {"reason": "Conflict", "message": "the uid is another one"})
                    stub.remove(where, name)
                    return self.say(200, {"kind": "Status", "status": "Success"})
                return self.say(200, stub.objects[where, name])

            do_GET = do_POST = do_PATCH = do_DELETE = answer

            def log_lines(self, pod: str, query: dict[str, str]) -> Iterator[str]:
                sent = 0
                while True:
                    lines = stub.logs.get(pod, [])[sent:]
                    sent += len(lines)
                    if "tailLines" in query and sent == len(lines):
                        lines = lines[-int(query["tailLines"]) :]
                    yield from (line for line in lines if line.split(" ")[0] >= query.get("sinceTime", ""))
                    if "follow" not in query or not stub.following:
                        return
                    time.sleep(0.01)

            def stream(self, lines: Iterator[str], fault: dict[str, Any]) -> None:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                for number, line in enumerate(lines, start=1):
                    data = f"{line}\n".encode()
                    cut = number > fault.get("break_after", number)
                    self.wfile.write(
                        b"%x\r\n%s" % (len(data), data[: len(data) // 2] if cut else data + b"\r\n")
                    )
                    self.wfile.flush()
                    if cut:
                        self.close_connection = True
                        return
                self.wfile.write(b"0\r\n\r\n")

            def say(self, status: int, value: Any) -> None:
                data = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        return Handler


def _details(name: str) -> dict[str, Any]:
    return {"details": {"name": name}}


def _selected(item: dict[str, Any], query: dict[str, str]) -> bool:
    labels = item["metadata"].get("labels") or {}
    for selector, value_of in (
        ("labelSelector", labels.get),
        ("fieldSelector", lambda key: item["metadata"].get(key.removeprefix("metadata."))),
    ):
        for rule in filter(None, query.get(selector, "").split(",")):
            key, _, value = rule.partition("=")
            if value_of(key) != value:
                return False
    return True


def _merged(whole: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    whole = dict(whole) if isinstance(whole, dict) else {}
    for key, value in patch.items():
        if value is None:
            whole.pop(key, None)
        else:
            whole[key] = _merged(whole.get(key), value)
    return whole
