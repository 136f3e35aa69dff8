"""Findings about a run's keys, with the place where the run sets each of them."""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from nbtrain.base.errors import NbtrainError
from nbtrain.base.findings import FATAL, Cost, Finding, Lack, Level
from nbtrain.base.text.terminal import printable
from nbtrain.config.schema import RunConfig


def finding_of(
    config: RunConfig,
    rule: str,
    key: str,
    message: str,
    fix: str = "",
    cost: Cost | None = None,
    level: Level = "warning",
) -> Finding:
    """Return a finding about a key of a run, including the place where the run sets the key."""
    return Finding(level, rule, key, config.where(key), message, fix, cost or Cost())


def mistake(config: RunConfig, key: str, message: str, fix: str = "") -> Finding:
    """Return an error in the run's settings.

    `key` is "" if the error is not about a single key. run_checks() adds the rule.
    """
    return _error(config, key, message, fix, "")


def missing_data(config: RunConfig, key: str, message: str, fix: str = "") -> Finding:
    """Return an error about data that must be prepared or repaired before the run can start."""
    return _error(config, key, message, fix, "data")


def shortage(config: RunConfig, key: str, message: str, fix: str = "", num_bytes: int = 0) -> Finding:
    """Return an error about a machine that is too small for the run.

    `num_bytes` is the number of bytes that are missing, if it is known.
    """
    return _error(config, key, message, fix, "resource", num_bytes)


def _error(config: RunConfig, key: str, message: str, fix: str, lacks: Lack, num_bytes: int = 0) -> Finding:
    place = config.where(key) if key else ""
    return Finding("error", "", key, place, message, fix, Cost(fatal=True, num_bytes=num_bytes), lacks)


def run_checks(checks: Iterable[Callable[..., Iterable[Finding]]], *arguments: Any) -> list[Finding]:
    """Return the findings of all checks. A finding without a rule gets the name of its check as its rule."""
    return [
        finding if finding.rule else replace(finding, rule=check.__name__)
        for check in checks
        for finding in check(*arguments)
    ]


# The place at the beginning of an error message: "gpt.yaml:22: " or "override batch.x=1: ".
_PLACE = re.compile(r"(?P<place>override .+?|\S+:\d+): ")


def findings_of(error: NbtrainError) -> list[Finding]:
    """Return an error's findings. An error without findings becomes one finding with the error's text.

    Control characters are escaped, as in the text of the error.
    """
    if error.findings:
        return [
            replace(
                finding,
                key=printable(finding.key),
                place=printable(finding.place),
                message=printable(finding.message),
                fix=printable(finding.fix),
            )
            for finding in error.findings
        ]
    text = str(error)
    place = match["place"] if (match := _PLACE.match(text)) else ""
    return [Finding("error", "load", "", place, text.removeprefix(f"{place}: "), cost=FATAL)]
