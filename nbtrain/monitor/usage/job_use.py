"""Summarizes the resource use of a replica or rank: newest, mean and largest value of each metric."""

from dataclasses import dataclass, replace

from nbtrain.monitor.usage.usage import NodeUsage


@dataclass(frozen=True)
class Use:
    """Summary of a metric of a replica or rank over the job's life. Unknown values are None."""

    newest: float | None
    mean: float | None
    peak: float | None
    request: float | None = None
    limit: float | None = None


@dataclass(frozen=True)
class Gpu:
    """A GPU of a replica and its use."""

    name: str
    memory_bytes: int | None
    use: dict[str, Use]


def limits(usage: list[NodeUsage]) -> dict[str, float]:
    found: dict[str, float] = {}
    for node in usage:
        for name, value in (node.about.get("limits") or {}).items():
            found[name] = min(value, found.get(name, value))
    return found


def uses(node: NodeUsage | None, subject: str, beginnings: tuple[str, ...] = ("",)) -> dict[str, Use]:
    """Return {metric: its use} for a subject's metrics whose names begin with one of the prefixes."""
    if node is None:
        return {}
    names = [name for name in node.figures(subject) if name.startswith(beginnings)]
    replica = subject == "replica"
    asked = node.about.get("requests") or {} if replica else {}
    allowed = node.about.get("limits") or {} if replica else {}
    return {
        name: Use(
            node.points(subject, name).newest,
            node.mean(subject, name),
            node.peak(subject, name),
            asked.get(name),
            allowed.get(name),
        )
        for name in names
    }


def gpus(node: NodeUsage | None) -> dict[str, Gpu]:
    found = {}
    for subject, said in ((node.about.get("gpus") if node else None) or {}).items():
        memory, use = said.get("memory_bytes"), uses(node, subject)
        if memory and (known := use.get("gpu_memory_bytes")):
            use["gpu_memory_bytes"] = replace(known, limit=float(memory))
        found[subject] = Gpu(str(said.get("name")), memory, use)
    return found
