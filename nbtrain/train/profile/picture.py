"""A profile as one picture, in SVG, which a browser and JupyterLab show as it is: no plotting library in a
training run.

where the time goes   one bar, cut by category
the costliest operators, a bar each
memory                the bytes allocated over the profiled steps
"""

from collections.abc import Iterator
from html import escape
from typing import Any

from nbtrain.base import amounts

WIDTH, MARGIN = 960, 24
COLORS = {
    "matmul": "#1f77b4",
    "attention": "#17a2b8",
    "norm, elementwise": "#2ca02c",
    "optimizer": "#9467bd",
    "copies": "#bcbd22",
    "other": "#8c8c8c",
    "communication": "#d62728",
    "data": "#e8710a",
    "idle": "#e5e7eb",
}
OPERATORS, NAME_LETTERS = 15, 62
ROW, MEMORY_HEIGHT = 20, 130
INK, SOFT = "#1f2328", "#6b7280"


def picture(summary: dict[str, Any]) -> str:
    """The SVG document of ProfileSummary.to_dict()."""
    parts: list[str] = []
    y = 30
    whole, steps = summary["seconds"], summary["steps"]
    parts.append(_text(MARGIN, y, summary["title"], size=16, weight="600"))
    line = f"{summary['device']}, {amounts.counted(steps, 'step')}, {whole / steps * 1e3:.4g} ms a step"
    parts.append(_text(MARGIN, y + 20, line, color=SOFT))
    y = _put(parts, _categories(summary, y + 44))
    y = _put(parts, _operators(summary, y + 30))
    y = _put(parts, _memory(summary, y + 30))
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + MARGIN}" width="{WIDTH}" '
        f'height="{y + MARGIN}" font-family="sans-serif" font-size="12">\n'
        f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
    )


Piece = str | int
"""A piece of the document, or how far down it reaches."""


def _put(parts: list[str], pieces: Iterator[Piece]) -> int:
    reached = 0
    for piece in pieces:
        if isinstance(piece, int):
            reached = piece
        else:
            parts.append(piece)
    return reached


def _categories(summary: dict[str, Any], y: int) -> Iterator[Piece]:
    yield _text(MARGIN, y, "Where the time goes", weight="600")
    whole = summary["seconds"] or 1.0
    x, width = float(MARGIN), WIDTH - 2 * MARGIN
    shown = [(name, own) for name, own in summary["categories"].items() if own > 0]
    for name, own in shown:
        wide = width * own / whole
        told = f"{name}: {own * 1e3:.4g} ms, {own / whole:.1%}"
        yield _bar(x, y + 10, wide, 28, COLORS.get(name, SOFT), told)
        if wide > 44:
            color = INK if name == "idle" else "white"
            yield _text(x + wide / 2, y + 28, f"{own / whole:.0%}", color=color, anchor="middle")
        x += wide
    for number, (name, own) in enumerate(shown):
        left, row = MARGIN + (number % 4) * width // 4, y + 58 + number // 4 * ROW
        yield _bar(left, row - 10, 12, 12, COLORS.get(name, SOFT), name)
        yield _text(left + 18, row, f"{name} {own / whole:.1%}")
    yield y + 58 + (len(shown) - 1) // 4 * ROW


def _operators(summary: dict[str, Any], y: int) -> Iterator[Piece]:
    yield _text(MARGIN, y, "The costliest operators, own time", weight="600")
    operators = summary["operators"][:OPERATORS]
    longest = max((operator["seconds"] for operator in operators), default=0.0) or 1.0
    left, room = MARGIN + 420, WIDTH - 2 * MARGIN - 420 - 150
    for number, operator in enumerate(operators):
        row = y + 12 + number * ROW
        name = operator["name"]
        short = name if len(name) <= NAME_LETTERS else name[: NAME_LETTERS - 3] + "..."
        yield _text(left - 8, row + 13, short, anchor="end")
        color = COLORS.get(operator["category"], SOFT)
        yield _bar(left, row + 2, room * operator["seconds"] / longest, ROW - 5, color, name)
        told = f"{operator['seconds'] * 1e3:.4g} ms, {operator['calls']:,} calls"
        yield _text(left + room * operator["seconds"] / longest + 6, row + 13, told, color=SOFT)
    yield y + 12 + len(operators) * ROW


def _memory(summary: dict[str, Any], y: int) -> Iterator[Piece]:
    points, peak = summary["memory"], summary["peak_memory_bytes"]
    if not points or peak <= 0:
        yield y - 30
        return
    yield _text(MARGIN, y, f"Memory, peak {amounts.size(peak)}", weight="600")
    top, bottom, width = y + 12, y + 12 + MEMORY_HEIGHT, WIDTH - 2 * MARGIN
    whole = summary["seconds"] or 1.0
    # A staircase: memory stays what it is until the next allocation.
    corners, height = [f"{MARGIN},{bottom}"], float(bottom)
    for moment, allocated in points:
        x = MARGIN + width * min(max(moment / whole, 0.0), 1.0)
        corners.append(f"{x:.1f},{height:.1f}")
        height = bottom - MEMORY_HEIGHT * max(allocated, 0) / peak
        corners.append(f"{x:.1f},{height:.1f}")
    corners += [f"{MARGIN + width},{height:.1f}", f"{MARGIN + width},{bottom}"]
    yield f'<polygon points="{" ".join(corners)}" fill="#cfe2f3" stroke="#1f77b4" stroke-width="1"/>'
    yield _line(MARGIN, bottom, MARGIN + width, bottom)
    at = MARGIN + width * min(max(summary["peak_memory_seconds"] / whole, 0.0), 1.0)
    yield f'<circle cx="{at:.1f}" cy="{top}" r="3" fill="#d62728"/>'
    yield _text(MARGIN, bottom + 16, "0", color=SOFT)
    yield _text(MARGIN + width, bottom + 16, f"{whole * 1e3:.4g} ms", color=SOFT, anchor="end")
    yield bottom + 16


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


def _bar(x: float, y: float, width: float, height: float, color: str, told: str) -> str:
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" height="{height}" fill="{color}">'
        f"<title>{escape(told)}</title></rect>"
    )


def _line(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<line x1="{x}" y1="{y}" x2="{to_x}" y2="{to_y}" stroke="{SOFT}" stroke-width="1"/>'
