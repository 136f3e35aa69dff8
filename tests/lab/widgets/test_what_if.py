"""The what-if page without a browser: its messages, its YAML and its static picture."""

from pathlib import Path

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.config.load import load
from nbtrain.lab.widgets import mime
from nbtrain.lab.widgets.what_if import WhatIfPage, report_of, static_html
from nbtrain.planner.search.what_if import what_if


@pytest.fixture
def page():
    one = WhatIfPage(what_if("gpt-1-3b-4xdp-4xpp"))
    yield one
    one.close()


def test_a_message_of_a_control_changes_the_page(page: WhatIfPage) -> None:
    """When the user moves a control, the page receives the numbers of the new layout, and changes of other
    controls are reported.
    """
    before = page.shown
    page._on_message(page, {"kind": "set", "name": "zero", "value": 3}, [])
    assert page.state.layout.options.zero_stage == 3
    assert page.shown["layout"] == page.state.layout.words != before["layout"]
    assert page.shown["moved"] == ["DP 4 -> 16", "PP 4 -> 1"]
    assert page.answer == ["", ""]


def test_a_refused_message_is_answered_and_changes_nothing(page: WhatIfPage) -> None:
    """A value that no legal layout has is rejected with a message, and the layout does not change."""
    before = page.shown
    page._on_message(page, {"kind": "set", "name": "tensor", "value": 3}, [])
    assert page.shown == before
    assert page.answer[0] == "bad" and "has TP = 3. Legal values are 1, 2, 4, 8" in page.answer[1]


def test_use_this_writes_the_yaml_once(page: WhatIfPage, tmp_path: Path) -> None:
    """Use This writes a file that loads with the displayed layout. It needs a name, and never overwrites a
    file.
    """
    page.set("pipeline", 2)
    path = tmp_path / "mine.yaml"
    page._on_message(page, {"kind": "use", "path": ""}, [])
    assert page.answer == ["bad", "Name a file first, e.g. my-run.yaml."]
    page._on_message(page, {"kind": "use", "path": str(path)}, [])
    assert page.answer == ["good", f"Written: {path}"]
    config = load(path)
    assert config.parallel.pipeline_parallel_size == 2 and config.world_size == 16
    assert path.read_text().startswith("# Written by the what-if page: PP 2 x DP 8, ZeRO 1, ")
    page._on_message(page, {"kind": "use", "path": str(path)}, [])
    assert page.answer[0] == "bad" and "already exists" in page.answer[1]
    with pytest.raises(ConfigError, match="already exists"):
        page.use(path)
    assert page.use(path, overwrite=True) == path


def test_use_this_says_that_the_layout_does_not_fit(page: WhatIfPage, tmp_path: Path) -> None:
    """For a layout that does not fit, Use This still writes the file; the missing memory is stated at the top
    of the file and in the response.
    """
    page.set("recompute", "none")
    lack = page.shown["words"][0][1].removeprefix("no, ")
    assert lack == page.state.lack == "24.2 GiB too much"
    path = tmp_path / "mine.yaml"
    page._on_message(page, {"kind": "use", "path": str(path)}, [])
    assert page.answer == ["bad", f"Written: {path}. The layout does not fit into memory: {lack}."]
    assert path.read_text().splitlines()[:2] == [
        f"# Written by the what-if page: {page.state.layout.words}.",
        f"# The layout does not fit into memory: {lack}.",
    ]
    page.set("recompute", "full")
    page.use(path, overwrite=True)
    assert page.state.lack == "" and page.answer[0] == "good"
    assert "does not fit" not in path.read_text()


def test_the_static_picture_has_every_figure(page: WhatIfPage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The static picture shows the verdicts, all controls and each stage, without a script; a live front end
    also shows the widget.
    """
    shown = page.shown
    picture, text = static_html(shown), str(report_of(shown))
    bundle, _ = page._repr_mimebundle_()
    assert bundle == {"text/html": picture, "text/plain": text}
    for word, value, _ in shown["words"]:
        assert word in picture and value in picture and f"{word}: {value}" in text
    for control in shown["controls"]:
        assert control["label"] in picture
    for stage in range(4):
        assert f"stage {stage}" in picture
    assert "<script" not in picture and "<style" not in picture
    monkeypatch.setattr(mime, "is_watched", lambda: True)
    assert mime.WIDGET_MIME in page._repr_mimebundle_()[0]
