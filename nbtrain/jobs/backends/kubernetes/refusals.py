"""Errors of an API server as sentences, with two classes: it rejected a request, or it did not answer."""

import json
import re
from typing import Any

from nbtrain.base.errors import JobError

MOST_CAUSES = 10


class Unanswered(JobError):
    """The API server did not answer, even after retries, so the state is unknown."""

    def __init__(self, words: str):
        super().__init__(f"{words} The job itself continues; ask again later.")
        self.words = words


class Refused(JobError):
    """The API server answered with an error. `status` is the HTTP status, `reason` Kubernetes' name for
    it.
    """

    def __init__(self, message: str, status: int, reason: str):
        super().__init__(message)
        self.status, self.reason = status, reason


def refusal(status: int, body: Any, what: str, host: str) -> Refused:
    """Return the error for a failed action; `what` names it: "create TrainJob research/gpt"."""
    said = _status_object(body)
    reason = str(said.get("reason") or "")
    message = str(said.get("message") or "").strip().rstrip(".") or f"HTTP {status}"
    return Refused(f"{host}: cannot {what}: {message}.{_fix(status, said, message)}", status, reason)


def _status_object(body: Any) -> dict[str, Any]:
    """Return the Status object of an answer. Any other text, for example from a proxy, becomes its
    message.
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
            " The credentials of this context are not accepted: renew them; `kubectl auth whoami` says "
            "whether they are accepted then."
        )
    # RBAC reports: User "ann" cannot create resource "trainjobs" in API group ...
    if status == 403 and re.search(r'\bUser ".*" cannot ', message):
        return " Ask for the right: `kubectl auth can-i --list` shows what this user may do."
    if status == 403 and "exceeded quota" in message:
        return (
            " Request less, wait until other pods have ended, or ask the cluster's administrators for more."
        )
    if status == 403:
        return " If this does not say what to change, ask the cluster's administrators."
    if status == 404 and not details.get("name"):
        return (
            " The cluster does not know this kind: install its operator, or set "
            "backend.kubernetes.workload to a kind of `kubectl api-resources`."
        )
    if status == 404 and details.get("kind") == "namespaces":
        return " Set backend.kubernetes.namespace to one of `kubectl get namespaces`."
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
