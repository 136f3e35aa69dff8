"""A draft's problems by form field: the field that shows each problem, and the text to show."""

import math
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nbtrain.base.findings import Finding
from nbtrain.config.load import override_layer
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.pair_paths import MAKE_IT
from nbtrain.jobs.checks.limits import findings_over_limits, length_within_limits
from nbtrain.lab.form.draft import Draft
from nbtrain.lab.form.fields import every_field, field_at

if TYPE_CHECKING:
    from nbtrain.planner.plan import Plan

# "override batch.max_steps=5", the place of a message that names no key.
_OVERRIDE = re.compile(r"override (?P<key>[a-z_]+(\.[A-Za-z0-9_-]+)*)")
# "evaluation.tasks.0.path", the key that a message begins with.
_KEY = re.compile(r"[a-z_]+(\.[a-z0-9_]+)*")
# "micro_batch_size(5)": a rule's number with the field that it comes from.
_NUMBER = re.compile(r"\b([a-z][a-z0-9_]+)\(")
# Short names of the factors in a message about the number of ranks, and their fields.
_PRODUCT = {
    "data": "data_parallel_size",
    "pipeline": "pipeline_parallel_size",
    "tensor": "tensor_parallel_size",
}
# "  and override batch.train_steps=5: batch.train_steps = 5", the second line of a rule about two fields.
_AND = re.compile(r"^\s+and (override .*?: |\S+:\d+: )?(?P<found>[a-z_.]+ = .*)$", re.MULTILINE)
# "data.sources[0].kind = jsonl", the first line of a rule about something inside a field.
_FIRST_LINE = re.compile(r"\A\S+ = [^\n:]*(?=\n)")
# "Set lr_schedule.lr: 0.0001.", the whole fix of a finding.
_SET = re.compile(r"Set (?P<key>[a-z_.]+): (?P<value>\S+)\.")
# " = 250", between the key and the rule.
_VALUE = re.compile(r" = (?P<value>.*?)(?P<end>\n\s*|: )", re.DOTALL)


def problems_by_key(
    draft: Draft, problems: Iterable[Finding], config: RunConfig | None
) -> list[dict[str, Any]]:
    """Return {key, message, full, also} for each problem, in the order of the form's fields.

    Problems without a field come first. `message` omits the place, key and value, which the field
    shows anyway; `also` lists other changed fields that the rule mentions.
    """
    different = {str(finding): finding for finding in problems}
    found = [_problem(draft, finding, config) for finding in different.values()]
    order = {key: at for at, key in enumerate(every_field())}
    return sorted(found, key=lambda problem: order.get(problem["key"], -1))


def _problem(draft: Draft, finding: Finding, config: RunConfig | None) -> dict[str, Any]:
    rest, exact = _message_and_key(draft, finding, config)
    field = field_at(exact)
    named = {_PRODUCT.get(word, word) for word in _NUMBER.findall(rest)}
    also = [
        key
        for key in draft.overrides
        if (key.rpartition(".")[2] in named or re.search(rf"(?<![\w.]){re.escape(key)}(?!\w)", rest))
        and (field is None or key != field.key)
    ]
    return {
        "key": field.key if field else None,
        "message": _rule(rest, exact, field is not None and field.key == exact),
        "full": str(finding),
        "also": also,
    }


def _message_and_key(draft: Draft, finding: Finding, config: RunConfig | None) -> tuple[str, str]:
    """Return a finding's message without the place, and the key that the finding is about."""
    place, rest = finding.place, finding.text
    if not finding.key:
        place, rest = _place_and_message(draft, finding)
    exact = finding.key or _key_of_place(place, config)
    begins = match[0] if (match := _KEY.match(rest)) else ""
    # The message begins with the key if it is about invalid YAML, an item of a list, or a section that was
    # switched on by a key inside it.
    if (
        not exact and field_at(begins) and (rest.startswith((f"{begins} = ", f"{begins}: ")) or "." in begins)
    ) or (begins in every_field() and exact.startswith(f"{begins}.")):
        exact = begins
    return rest, exact


def _place_and_message(draft: Draft, finding: Finding) -> tuple[str, str]:
    """Split the text of an error that is not a finding into its place ("" if it has none) and the rest.

    The place of an override repeats its value, which may contain any text.
    """
    text = str(finding)
    for place in sorted(override_layer(draft.overrides).origins.values(), key=len, reverse=True):
        if text.startswith(f"{place}: "):
            return place, text.removeprefix(f"{place}: ")
    return finding.place, finding.text


def _key_of_place(place: str, config: RunConfig | None) -> str:
    """Return the key that an override or a line of the YAML sets, or "" if it sets several."""
    if match := _OVERRIDE.match(place):
        return match["key"]
    keys = [key for key, where in config._origins.items() if where == place] if config and place else []
    return keys[0] if len(keys) == 1 else ""


def _rule(rest: str, key: str, whole: bool) -> str:
    """Return the message without the key and value, because the field shows both."""
    if not key or not re.match(rf"{re.escape(key)}(?![.\w\[])", rest):
        # "data.sources[0].kind = jsonl" on a separate line.
        return _one_paragraph(_FIRST_LINE.sub(r"\g<0>:", rest))
    rest = rest.removeprefix(key)
    if not (match := _VALUE.match(rest)):
        return _one_paragraph(rest.removeprefix(":") if whole else f"{key}{rest}")
    rule = _AND.sub(r"  together with \g<found>:", rest[match.start("end") :]).removeprefix(":")
    # The value is an item inside the field's text, where it is hard to spot, so repeat it in the message.
    return _one_paragraph(rule if whole else f"{key} = {match['value']}: {rule}")


def _one_paragraph(text: str) -> str:
    words = " ".join(text.split())
    # Keys and paths keep their lower-case first letter.
    return words if re.match(r"\S+[._(/]\S", words) else words[:1].upper() + words[1:]


def problems_of_limits(draft: Draft, plan: "Plan") -> list[dict[str, Any]]:
    """Return the limits that the plan exceeds, in the form of problems_by_key(), with possible fixes.

    `ways` is [{key: text}, ...]: a shorter training, and a higher limit if the run itself sets the limit.
    """
    problems = problems_by_key(draft, findings_over_limits(plan), plan.config)
    length = length_within_limits(plan) if problems else None
    limits = {f"limits.{limit.key}": limit for limit in plan.limits}
    for problem in problems:
        limit = limits[problem["key"]]
        problem["ways"] = [{length[0]: str(length[1])}] if length else []
        if limit.planned is not None and limit.exceeded and not limit.by_workspace:
            problem["ways"].append({problem["key"]: _just_above(limit.planned)})
    return problems


def _just_above(value: float) -> str:
    """Return a number with at most three digits that is just above `value`, as a user would write it."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return f"{math.floor(value / unit + 1) * unit:.12g}"


def shortages_by_key(shortages: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return {key, kind, message, rule, fix} for each shortage of this machine.

    `rule` is the message without the key and value, which the field shows already.
    """
    found = []
    for finding in shortages:
        field, message = field_at(finding.key), finding.message
        if finding.fix:
            # The message's command has a placeholder for the run; the fix names the run.
            message = message.replace(MAKE_IT, "")
        rule = _rule(message, finding.key, field is not None and field.key == finding.key)
        # The field already shows the value of an override.
        shown = (
            message
            if not finding.place or finding.place.startswith("override ")
            else f"{finding.place}: {message}"
        )
        found.append(
            {
                "key": field.key if field else None,
                "kind": finding.lacks or "error",
                "message": shown,
                "rule": rule,
                "fix": finding.fix,
            }
        )
    return found


def findings_by_key(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Return {key, level, label, message, fix, typed} for each finding of the plan.

    `typed` is {key: text} if the fix is to set one field to a value, else None.
    """
    found = []
    for one in findings:
        at = field_at(one.key)
        key = at.key if at else None
        match = _SET.fullmatch(one.fix)
        typed = {match["key"]: match["value"]} if match and match["key"] in every_field() else None
        found.append(
            {
                "key": key,
                "level": one.level,
                "label": one.label,
                "message": one.message,
                "fix": one.fix,
                "typed": typed,
            }
        )
    return found
