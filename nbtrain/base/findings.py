"""Findings: problems of a run or a machine, each with its place, the rule with its numbers, and the fix.

The rules of config, the plan, the checks before a launch, the lint of foreign files and `nbtrain doctor` all
return findings. refuse() in base/errors.py raises them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from nbtrain.base.text import amounts

Level = Literal["error", "warning", "note", "ok"]
LEVELS: tuple[Level, ...] = ("error", "warning", "note", "ok")
Lack = Literal["", "data", "resource"]


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost to the run if the finding is not fixed. All fields are 0 or "" if the finding costs nothing."""

    fatal: bool = False
    """Whether the run cannot start, or would end before its work is done."""
    gpu_hours: float = 0.0
    hours: float = 0.0
    """Additional hours that the run takes."""
    money: str = ""
    """Price of the GPU hours, e.g. "41,000 USD"; "" if it is not known."""
    num_bytes: int = 0
    """Number of bytes on disk or in memory that the finding costs; for a fatal finding, the missing bytes."""
    words: str = ""
    """Description of a cost that cannot be put in numbers, e.g. "a worse model"."""

    @property
    def text(self) -> str:
        """Cost as text; "" if the finding costs nothing.

        For example "cannot run: 9.1 GiB too little" or "costs 43 d, 66,000 GPU hours".
        """
        parts = []
        if self.hours:
            parts.append(amounts.duration(3600 * self.hours))
        if self.gpu_hours >= 1:
            parts.append(f"{self.gpu_hours:,.0f} GPU hours")
        if self.money:
            parts.append(self.money)
        if self.num_bytes:
            size = amounts.size(self.num_bytes)
            parts.append(f"{size} too little" if self.fatal else size)
        price = ", ".join([*parts, self.words] if self.words else parts)
        if self.fatal:
            return f"cannot run: {price}" if price else "cannot run"
        return f"costs {price}" if price else ""

    @property
    def weight(self) -> tuple[bool, float, int, bool]:
        """Sort key of a finding by its cost.

        Fatal findings count most, then GPU hours, then bytes, then a cost that has no number.
        """
        return self.fatal, self.gpu_hours or self.hours, self.num_bytes, bool(self.words)


FATAL = Cost(fatal=True)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a run or of a machine, or a fact about it that is worth knowing."""

    level: Level
    """Level of the finding. error: the run cannot start or cannot work; warning: it has a cost; note: worth
    knowing; ok: no problem.
    """
    rule: str
    """Name of the rule or check, e.g. "memory_fits"."""
    key: str
    """Dotted key of the setting that the finding is about, or a flag of another program; "" if there is
    neither.
    """
    place: str
    """Place where the key was set: "gpt.yaml:22", "override batch.x=1" or "default"."""
    message: str
    """Problem, and the rule with its numbers, in one or two sentences without the place."""
    fix: str = ""
    """Change to make, as a sentence; "" if there is nothing to change."""
    cost: Cost = field(default_factory=Cost)
    lacks: Lack = ""
    """Kind of thing that a correct run still needs: "data" to prepare or repair, or a "resource" of the
    machine. "" for other findings.
    """

    def __str__(self) -> str:
        """Return the finding as errors and warnings print it: "gpt.yaml:22: message fix"."""
        return f"{self.place}: {self.text}" if self.place else self.text

    @property
    def text(self) -> str:
        """Message and fix."""
        return f"{self.message} {self.fix}".rstrip()

    @property
    def head(self) -> str:
        """Place and key, e.g. "gpt.yaml:22: batch.micro_batch_size", as far as they are known."""
        return ": ".join(part for part in (self.place, self.key) if part)

    def lines(self) -> list[str]:
        """Return the lines that `nbtrain check` prints: level, cost and place, then message and fix."""
        body = [*self.message.splitlines(), *([self.fix] if self.fix else [])]
        return [f"{self.label}: {self.head or self.rule}", *(f"  {line}" for line in body)]

    @property
    def label(self) -> str:
        """Level and cost, e.g. "warning, costs 43 d"."""
        return f"{self.level}, {self.cost.text}" if self.cost.text else self.level

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> "Finding":
        """Return the finding for a dict from to_dict(). Other keys are ignored."""
        known = {part.name: content[part.name] for part in fields(cls)}
        cost = {part.name: content["cost"][part.name] for part in fields(Cost)}
        return cls(**{**known, "cost": Cost(**cost)})

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as a JSON object. The object of the cost includes the cost as text."""
        return {**asdict(self), "cost": {**asdict(self.cost), "text": self.cost.text}}


def stops(findings: Iterable[Finding]) -> bool:
    """Return whether any finding is an error or fatal. `nbtrain check` then exits with 2."""
    return any(finding.level == "error" or finding.cost.fatal for finding in findings)


def by_cost(findings: Iterable[Finding]) -> list[Finding]:
    """Sort findings: fatal ones, errors, warnings, notes; within a group, the most expensive ones first."""

    def rank(finding: Finding) -> tuple[Any, ...]:
        fatal, hours, num_bytes, words = finding.cost.weight
        return not fatal, LEVELS.index(finding.level), -hours, -num_bytes, not words

    return sorted(findings, key=rank)
