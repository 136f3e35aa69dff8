"""Charts with lines on top of each other, and rows of tiles."""

import json
from typing import Any

import pytest

from tests.lab.ui.pages import view_page

pytestmark = [pytest.mark.slow, pytest.mark.browser]


def line(label: str, *values: float) -> dict[str, Any]:
    return {"label": label, "x": list(range(len(values))), "y": list(values)}


def test_a_line_over_an_equal_one_is_dashed_and_says_so(browser: Any) -> None:
    """If two lines coincide, the upper one is dashed and a note says so, also if one line continues where the
    other ends, as for a clone.
    """
    lines = [line("a", 3, 2, 1), line("b", 3, 2, 1), line("c", 3, 2, 1, 0), line("d", 3, 2.5, 1)]
    with view_page(browser, {}, f"ui.toldApart({json.dumps(lines)})", module="charts/chart_spec") as page:
        found = page.evaluate("window.end")
    assert [one.get("note") for one in found] == [
        None,
        "equal to a",
        "equal to a where both have points",
        None,
    ]
    assert [one.get("dash") for one in found] == [None, "6 6", "6 12", None]


def test_many_lines_have_four_colours_with_dashes_and_many_equal_ones_are_one(browser: Any) -> None:
    """The legend of many lines has the first names, and a button that shows all."""
    lines = [line(f"gpu {number}", 0, 0) for number in range(8)] + [line("gpu 8", 1, 2)]
    mount = f"""(() => {{
      const many = Array.from({{length: 12}}, (_, at) =>
        ({{label: `set ${{at}}`, dots: false, x: [1, 2], y: [at, at + 1], ...ui.lineLook(at)}}));
      const chart = new ui.Chart(160);
      root.className = "nbt-root";
      root.append(chart.node);
      chart.show({{title: "Loss", lines: many, marks: [], xName: "step", xForm: "whole", yForm: "number"}});
      const together = ui.equalTogether({json.dumps(lines)});
      return {{together, looks: many.map(({{color, dash}}) => [color, dash])}};
    }})()"""
    exports = ("Chart", "lineLook", "equalTogether")
    with view_page(browser, {}, mount, module="run_tabs/metrics", exports=exports) as page:
        found = page.evaluate("window.end")
        legend = page.locator(".nbt-legend")
        assert legend.locator("i").all_inner_texts() == [f"set {at}" for at in range(8)]
        legend.get_by_role("button", name="and 4 more").click()
        assert legend.locator("i").count() == 12
        legend.get_by_role("button", name="fewer names").click()
        assert legend.locator("i").count() == 8
    assert len({tuple(look) for look in found["looks"]}) == 12
    assert {color for color, _ in found["looks"]} == {"c0", "c1", "c2", "c3"}
    labels = [one["label"] for one in found["together"]]
    assert labels == ["8 equal lines: gpu 0, gpu 1 and 6 more", "gpu 8"]


BANDED = {
    "lines": [
        {
            "name": "loss",
            "label": "training loss",
            "color": "a",
            "dots": False,
            "x": [10, 20, 30, 40],
            "y": [4, 3, 2, 1],
            "low": [4, 2, 1, 1],
            "high": [4, 9, 5, 1],
        },
    ],
    "xName": "step",
    "xForm": "whole",
    "yName": "nats",
    "yForm": "decimals",
    "smoothing": 0.5,
}


def test_a_thinned_curve_is_its_mean_in_a_band(browser: Any) -> None:
    """A downsampled curve is drawn as its mean inside a band, and the trend is smoothed from the means. The
    readout has name, mean, range, smoothed value and position.
    """
    mount = f"""(() => {{
        const chart = new ui.Chart(160), where = (line, at) => `step ${{line.x[at]}} in words`;
        root.className = "nbt-root";
        root.append(chart.node);
        chart.show({{ ...{json.dumps(BANDED)}, where }});
        return () => {{}};
    }})()"""
    with view_page(browser, {}, mount, module="charts/chart") as page:
        chart = page.locator(".nbt-chart")
        corners = [
            len(node.get_attribute("points").split()) for node in chart.locator("polygon,polyline").all()
        ]
        assert corners == [8, 4, 4]
        assert chart.locator("text.nbt-y").all_text_contents()[-1] >= "8"
        chart.locator("> svg").focus()
        page.keyboard.press("Home")
        page.keyboard.press("ArrowRight")
        tip = chart.locator(".nbt-tip")
        assert tip.locator("b").inner_text() == "step 20 in words"
        cells = tip.locator("tr").first.locator("th,td").all_inner_texts()
        assert cells == ["training loss", "3.0000", "2.0000 to 9.0000, smoothed 3.3333"]


def test_a_saved_picture_names_its_lines_in_rows_that_fit(browser: Any) -> None:
    """A saved picture contains a legend with the names and colors of the lines, in rows that fit, because the
    legend on the page is not part of the file.
    """
    names = ["gpt-a", "gpt-125m-2xdp-second-try", "gpt-c"]
    lines = [{"label": name, "color": f"c{at}", "dash": "6 6" if at else ""} for at, name in enumerate(names)]
    lines[2]["note"] = "equal to gpt-a"
    spec = json.dumps({"title": "Loss", "lines": lines, "bounds": [{"word": "limit", "value": 1}]})
    mount = f"ui.legendRows({spec}, (one) => 6 * one.words.length, 240)"
    with view_page(browser, {}, mount, module="charts/chart_files") as page:
        rows = page.evaluate("window.end")
    assert [[one["words"] for one in row] for row in rows] == [
        ["Loss", "gpt-a"],
        ["gpt-125m-2xdp-second-try"],
        ["gpt-c, equal to gpt-a", "limit"],
    ]
    assert [one.get("color") for row in rows for one in row] == [None, "c0", "c1", "c2", "bad"]


def test_tiles_leave_no_hole_in_their_rows(browser: Any) -> None:
    """Seven tiles fill their rows evenly: one row, rows of four and three, or two per row in a narrow
    panel.
    """
    mount = "[1400, 930, 900, 580, 250, 200].map((width) => ui.tileColumns(7, width))"
    with view_page(browser, {}, mount, module="run_tabs/overview") as page:
        assert page.evaluate("window.end") == [7, 7, 4, 4, 2, 1]
