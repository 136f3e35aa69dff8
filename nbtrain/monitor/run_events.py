"""Events of a job as views show them: the important ones first, and the alerts that still hold."""

from collections.abc import Mapping
from typing import Any

from nbtrain.base.jobstate import RESTARTING, STARTING

NUM_EVENTS = 60
# Important events, which stay visible however many newer events of other kinds there are.
WEIGHTY = frozenset({"error", "restart", "rollback", "hang"})


def event_part(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of an event that are shown."""
    return {key: event.get(key) for key in ("time", "kind", "writer", "message")}


def in_sight(events: list[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """Return at most `most` events in order: the newest important ones fill up to half of them, the newest
    others the rest.
    """
    weighty = [number for number, event in enumerate(events) if event.get("kind") in WEIGHTY][-(most // 2) :]
    others = [number for number in range(len(events)) if number not in weighty]
    return [events[number] for number in sorted([*weighty, *others[-(most - len(weighty)) :]])]


def alerts_part(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the newest alerts, oldest first. "raised" is true while the metric is beyond its threshold.

    A rank reports once that a metric has crossed its threshold, and once that it has returned (alert_over).
    A new attempt starts without alerts.
    """
    found: list[dict[str, Any]] = []
    for event in events:
        kind, state = event.get("kind"), event.get("state")
        if kind == "alert":
            found.append({**event_part(event), "name": event.get("alert"), "raised": True})
        elif kind == "alert_over" or (kind == "state" and state in (STARTING, RESTARTING)):
            for alert in found:
                alert["raised"] &= kind == "alert_over" and alert["name"] != event.get("alert")
    return found[-NUM_EVENTS:]
