"""Contrast of output colours against the backgrounds of both themes (WCAG 2.2)."""

import re
from pathlib import Path

import pytest

from nbtrain.base.printing import theme
from nbtrain.base.printing.theme import progress_bar, progress_line, themed
from nbtrain.planner import memory

WHITE, DARK, DARK_PANEL = "#ffffff", "#111111", "#212121"
WHAT_IF = Path(theme.__file__).parents[2] / "lab/widgets/what_if.js"


def luminance(color: str) -> float:
    parts = (int(color[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_words_of_a_figure_read_on_white_and_on_black() -> None:
    """Text in plots has a contrast of at least 4.2 on white and on JupyterLab's dark background."""
    assert min(contrast(theme.GREY, ground) for ground in (WHITE, DARK)) >= 4.2
    assert (contrast(WHITE, DARK)) ** 0.5 < 4.5


PARTS = {*theme.MEMORY_COLORS.values(), *theme.TIME_COLORS.values()}
COLORS = sorted({*theme.SERIES, *PARTS, theme.RED, theme.LINE})


@pytest.mark.parametrize("color", COLORS)
def test_lines_and_areas_read_on_every_ground(color: str) -> None:
    """Lines and areas have at least WCAG's contrast for graphics, 3.0, on every background."""
    assert min(contrast(color, ground) for ground in (WHITE, DARK, DARK_PANEL)) >= 3.0, color


def test_a_part_has_one_colour_everywhere() -> None:
    """A part of memory has the colour of the part of time with its name, and no page has colours of its
    own.
    """
    both = theme.MEMORY_COLORS.keys() & theme.TIME_COLORS.keys()
    assert both and all(theme.MEMORY_COLORS[part] == theme.TIME_COLORS[part] for part in both)
    assert theme.MEMORY_COLORS.keys() == {*memory.PARTS, *memory.HOST_PARTS}
    assert not re.findall(r"#[0-9a-f]{6}", WHAT_IF.read_text().rpartition("`;\n")[2])


def test_a_figure_has_no_ground_and_no_black() -> None:
    """A plot's background is transparent and no text is black; a coloured label keeps its colour."""
    from matplotlib.colors import to_hex
    from matplotlib.figure import Figure

    figure = Figure()
    figure.suptitle("title")
    axes = figure.subplots()
    axes.plot([1, 2], [3, 4], label="curve")
    axes.set_title("left", loc="left")
    axes.set_ylabel("loss", color=theme.BLUE)
    axes.text(1, 3, "words")
    axes.grid(True)
    axes.legend()
    assert themed(figure) is figure
    figure.canvas.draw()
    assert figure.patch.get_alpha() == axes.patch.get_alpha() == 0
    words = [*axes.get_xticklabels(), *axes.texts, axes._left_title, figure._suptitle]
    words += axes.get_legend().get_texts()
    assert {to_hex(text.get_color()) for text in words} == {theme.GREY}
    assert {to_hex(spine.get_edgecolor()) for spine in axes.spines.values()} == {theme.GREY}
    assert axes.yaxis.label.get_color() == theme.BLUE
    assert to_hex(axes.get_xgridlines()[0].get_color()) == theme.LINE


def test_a_bar_stays_in_its_bounds() -> None:
    assert "width:100.00%" in progress_bar(1.2) and "width:0.00%" in progress_bar(-1)
    assert progress_line("<data>", None, "3 of ?").count("height:") == 0
    assert "&lt;data&gt;" in progress_line("<data>", 0.5, "half")
