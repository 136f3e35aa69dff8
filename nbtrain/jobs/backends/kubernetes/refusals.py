"""Errors of an API server as messages, in two classes: the server rejected a request or did not respond."""

import json
import re
from typing import Any

from nbtrain.base.errors import JobError

MOST_CAUSES = 10


class Unanswered(JobError):
    """Raised when the API server did not respond, even after retries, so that the state is unknown."""

    def __init__(self, words: str):
        super().__init__(f"{words} The job itself continues; try again later.")
        self.words = words


class Refused(JobError):
    """Raised when the API server responded with an error.

    `status` is the HTTP status, and `reason` is Kubernetes' name for the error.
    """

    def __init__(self, message: str, status: int, reason: str):
        super().__init__(message)
        self.status, self.reason = status, reason


def refusal(status: int, body: Any, what: str, host: str) -> Refused:
    """Return the error for a failed action, which `what` names, such as "create TrainJob research/gpt"."""
    said = _status_object(body)
    reason = str(said.get("reason") or "")
    message = str(said.get("message") or "").strip().rstrip(".") or f"HTTP {status}"
    return Refused(f"{host}: cannot {what}: {message}.{_fix(status, said, message)}", status, reason)


def _status_object(body: Any) -> dict[str, Any]:
    """Return the Status object in a response body.

    Any other text, for example from a proxy, becomes the message of such an object.
    """
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body or "")
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else {"message": text.strip()[:200]}


def _fix(status: int, said: dict[str, Any], message: str) -> str:
    details = said.get("details")
    details = details if isinstance(details, dict) else {}
    if status == 401:
        return (
            " The cluster does not accept the credentials of this context: renew them, then run `kubectl "
            "auth whoami` to check them."
        )
    # RBAC reports: User "ann" cannot create resource "trainjobs" in API group ...
    if status == 403 and re.search(r'\bUser ".*" cannot ', message):
        return " Ask for this permission; to see what this user may do, run `kubectl auth can-i --list`."
    if status == 403 and "exceeded quota" in message:
        return (
            " Request less, wait until other pods have ended, or ask the cluster's administrators for a "
            "larger quota."
        )
    if status == 403:
        return " If this message does not say what to change, ask the cluster's administrators."
    if status == 404 and not details.get("name"):
        return (
            " The cluster does not have this kind: install its operator, or set "
            "backend.kubernetes.workload to a kind that `kubectl api-resources` lists."
        )
    if status == 404 and details.get("kind") == "namespaces":
        return " Set backend.kubernetes.namespace to a namespace that `kubectl get namespaces` lists."
    if status == 422:
        causes = details.get("causes")
        causes = causes if isinstance(causes, list) else []
        lines = [
            f"\n  {cause.get('field', '')}: {cause.get('message', '')}"
            for cause in causes[:MOST_CAUSES]
            if isinstance(cause, dict)
        ]
        return "".join(lines)
    return ""
