"""Sentences about a profile: how the time is spent, what delays a step, when memory peaks."""

from typing import Any

from nbtrain.base.text import amounts

# A smaller share of idle time gets no sentence of advice.
LEAST_SHARE = 0.1
LARGEST = 3
RUNNING = {
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer's step",
}
IDLE = {
    "cuda": "the GPU has nothing to run: the host launches kernels too slowly, or waits for data or other "
    "ranks. Larger micro-batches give the GPU more work at a time",
    "cpu": "no operator runs: Python works between the operators. Larger micro-batches make this share "
    "smaller",
}


def profile_sentences(summary: dict[str, Any]) -> list[str]:
    """Return the sentences about a ProfileSummary (as a dict), most important first."""
    whole = summary["seconds"] or 1.0
    said = [_kinds(summary, whole)]
    if summary["parts"]:
        said.append(_parts(summary, whole))
    if (idle := summary["categories"]["idle"] / whole) >= LEAST_SHARE:
        said.append(f"For {idle:.0%} of the time {IDLE[summary['device']]}.")
    said += _communication(summary, whole)
    if summary["operators"]:
        first = summary["operators"][0]
        said.append(
            f"The costliest operator is {first['name']}: {first['seconds'] / whole:.0%} of the time in "
            f"{amounts.counted(first['calls'], 'call')}."
        )
    if summary["memory"] and summary["peak_memory_bytes"] > 0:
        said.append(_memory(summary))
    return said


def _kinds(summary: dict[str, Any], whole: float) -> str:
    ordered = sorted(summary["categories"].items(), key=lambda one: -one[1])
    shares = [f"{name} {own / whole:.0%}" for name, own in ordered[:LARGEST] if own > 0]
    step = whole / summary["steps"] * 1e3
    return f"A step takes {step:.4g} ms. The largest shares are {', '.join(shares)}."


def _parts(summary: dict[str, Any], whole: float) -> str:
    ordered = sorted(summary["parts"].items(), key=lambda one: -one[1])
    shares = [f"{name} {own / whole:.0%}" for name, own in ordered]
    rest = max(0.0, 1 - sum(own for _, own in ordered) / whole)
    return f"On the host's clock, the phases take {', '.join(shares)}; {rest:.0%} is outside of all phases."


def _communication(summary: dict[str, Any], whole: float) -> list[str]:
    own, hidden = summary["categories"]["communication"], summary["hidden_communication_seconds"]
    if own + hidden < 0.01 * whole:
        return []
    most = (
        f", and {hidden / (own + hidden):.0%} of all communication is hidden by computation" if hidden else ""
    )
    return [f"Communication holds the steps up for {own / whole:.0%} of the time{most}."]


def _memory(summary: dict[str, Any]) -> str:
    moment = summary["peak_memory_seconds"]
    during = [
        name
        for name, bars in summary["timeline"].items()
        if any(first <= moment <= last for first, last in bars)
    ]
    phase = f", in {RUNNING.get(during[0], f'the phase {during[0]}')}" if during else ""
    step = sum(end <= moment for end in summary["step_ends"]) + 1
    number = f"step {min(step, summary['steps'])} of the profile"
    return f"Memory peaks at {amounts.size(summary['peak_memory_bytes'])}{phase} in {number}."
