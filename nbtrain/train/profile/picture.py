"""Draws a profile as one SVG picture: time by category, phases, most expensive operators, memory over time.

A browser and JupyterLab show it without further help, and a training run loads no plotting library.
"""

from html import escape
from typing import Any

from nbtrain.base.text import amounts
from nbtrain.train.profile.trace import CATEGORIES, shortened

WIDTH, MARGIN, SPACE = 960, 24, 30
OPERATORS, NAME_LETTERS = 15, 62
ROW, MEMORY_HEIGHT = 20, 130
LABEL_ROOM = 90
PHASES = {
    "data": "#e8710a",
    "forward": "#1f77b4",
    "backward": "#17a2b8",
    "optimizer": "#9467bd",
    "pipeline": "#d62728",
}
INK, SOFT = "#1f2328", "#6b7280"


def picture(summary: dict[str, Any]) -> str:
    """Return a ProfileSummary, given as a dict, as an SVG document."""
    seconds, steps = summary["seconds"], summary["steps"]
    line = f"{summary['device']}, {amounts.counted(steps, 'step')}, {seconds / steps * 1e3:.4g} ms a step"
    parts = [_text(MARGIN, 30, summary["title"], size=16, weight="600"), _text(MARGIN, 50, line, color=SOFT)]
    bottom = 74
    for draw in (_categories, _phases, _operators, _memory):
        pieces, bottom = draw(summary, bottom)
        parts += pieces
        bottom += SPACE
    height = bottom - SPACE + MARGIN
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


def _categories(summary: dict[str, Any], y: int) -> tuple[list[str], int]:
    """Return the SVG elements of a bar divided by category, whose top is at `y`, and the position of their
    lower end.
    """
    whole = summary["seconds"] or 1.0
    x, width = float(MARGIN), WIDTH - 2 * MARGIN
    shown = [(name, own) for name, own in summary["categories"].items() if own > 0]
    pieces = [_text(MARGIN, y, "Where the time goes", weight="600")]
    for number, (name, own) in enumerate(shown):
        wide, color = width * own / whole, CATEGORIES.get(name, SOFT)
        pieces.append(_bar(x, y + 10, wide, 28, color, f"{name}: {own * 1e3:.4g} ms, {own / whole:.1%}"))
        if wide > 44:
            ink = INK if name == "idle" else "white"
            pieces.append(_text(x + wide / 2, y + 28, f"{own / whole:.0%}", color=ink, anchor="middle"))
        x += wide
        left, row = MARGIN + (number % 4) * width // 4, y + 58 + number // 4 * ROW
        pieces += [
            _bar(left, row - 10, 12, 12, color, name),
            _text(left + 18, row, f"{name} {own / whole:.1%}"),
        ]
    return pieces, y + 58 + (len(shown) - 1) // 4 * ROW


def _phases(summary: dict[str, Any], y: int) -> tuple[list[str], int]:
    """Draw one row per phase with the intervals in which it ran; nothing if the profile has no phases.
    Returns the same as _categories().
    """
    phases = {name: bars for name, bars in summary.get("timeline", {}).items() if bars}
    if not phases:
        return [], y - SPACE
    whole = summary["seconds"] or 1.0
    left, top, bottom = MARGIN + 100, y + 12, y + 12 + len(phases) * ROW
    room = WIDTH - MARGIN - left
    pieces = [_text(MARGIN, y, "The phases of the steps, by the host's clock", weight="600")]
    for number, (name, bars) in enumerate(phases.items()):
        row = top + number * ROW
        own = sum(end - begin for begin, end in bars)
        title = f"{name}: {own * 1e3:.4g} ms, {own / whole:.1%}"
        pieces.append(_text(left - 8, row + 13, name, anchor="end"))
        pieces += [
            _bar(
                left + room * begin / whole,
                row + 2,
                room * (end - begin) / whole,
                ROW - 5,
                PHASES.get(name, SOFT),
                title,
            )
            for begin, end in bars
        ]
    labelled = 0.0
    for number, end in enumerate([0.0, *summary["step_ends"]]):
        x = left + room * min(end / whole, 1.0)
        pieces.append(f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}" stroke="{SOFT}"/>')
        words = f"{end * 1e3:.4g} ms" if number else "0"
        if x - labelled >= LABEL_ROOM:
            pieces.append(_text(x, bottom + 16, words, color=SOFT, anchor="end" if number else "start"))
            labelled = x
    return pieces, bottom + 16


def _operators(summary: dict[str, Any], y: int) -> tuple[list[str], int]:
    """Draw the most expensive operators, one bar each."""
    operators = summary["operators"][:OPERATORS]
    longest = max((operator["seconds"] for operator in operators), default=0.0) or 1.0
    left, room = MARGIN + 420, WIDTH - 2 * MARGIN - 420 - 150
    pieces = [_text(MARGIN, y, "The costliest operators, own time", weight="600")]
    for number, operator in enumerate(operators):
        row, name, wide = y + 12 + number * ROW, operator["name"], room * operator["seconds"] / longest
        words = f"{operator['seconds'] * 1e3:.4g} ms, {amounts.counted(operator['calls'], 'call')}"
        pieces += [
            _text(left - 8, row + 13, shortened(name, NAME_LETTERS), anchor="end"),
            _bar(left, row + 2, wide, ROW - 5, CATEGORIES.get(operator["category"], SOFT), name),
            _text(left + wide + 6, row + 13, words, color=SOFT),
        ]
    return pieces, y + 12 + len(operators) * ROW


def _memory(summary: dict[str, Any], y: int) -> tuple[list[str], int]:
    """Draw the allocated bytes over the profiled steps; nothing if the profile did not record memory."""
    points, peak = summary["memory"], summary["peak_memory_bytes"]
    if not points or peak <= 0:
        return [], y - SPACE
    top, bottom, right = y + 12, y + 12 + MEMORY_HEIGHT, WIDTH - MARGIN
    whole = summary["seconds"] or 1.0

    def x_of(moment: float) -> float:
        return MARGIN + (right - MARGIN) * min(max(moment / whole, 0.0), 1.0)

    # A step plot: memory is constant until the next allocation.
    corners, height = [f"{MARGIN},{bottom}"], float(bottom)
    for moment, allocated in points:
        corners.append(f"{x_of(moment):.1f},{height:.1f}")
        height = bottom - MEMORY_HEIGHT * max(allocated, 0) / peak
        corners.append(f"{x_of(moment):.1f},{height:.1f}")
    corners += [f"{right},{height:.1f}", f"{right},{bottom}"]
    return [
        _text(MARGIN, y, f"Memory, peak {amounts.size(peak)}", weight="600"),
        f'<polygon points="{" ".join(corners)}" fill="#cfe2f3" stroke="#1f77b4" stroke-width="1"/>',
        f'<line x1="{MARGIN}" y1="{bottom}" x2="{right}" y2="{bottom}" stroke="{SOFT}" stroke-width="1"/>',
        f'<circle cx="{x_of(summary["peak_memory_seconds"]):.1f}" cy="{top}" r="3" fill="#d62728"/>',
        _text(MARGIN, bottom + 16, "0", color=SOFT),
        _text(right, bottom + 16, f"{whole * 1e3:.4g} ms", color=SOFT, anchor="end"),
    ], bottom + 16


def _text(
    x: float,
    y: float,
    content: str,
    *,
    size: int = 12,
    color: str = INK,
    weight: str = "400",
    anchor: str = "start",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{color}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{escape(content)}</text>'
    )


def _bar(x: float, y: float, width: float, height: float, color: str, title: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height}" fill="{color}">'
        f"<title>{escape(title)}</title></rect>"
    )
