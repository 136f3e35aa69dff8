"""The comparison of runs in a notebook cell, a saved notebook and a terminal, without a browser."""

import json
import re

import pytest

import nbtrain as nb
from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import output_root
from nbtrain.cli import __main__ as cli
from nbtrain.lab.ui import script
from nbtrain.lab.widgets import compare as widget
from nbtrain.lab.widgets import mime
from nbtrain.monitor.runs.watched_runs import root_id
from nbtrain.monitor.status.notes import change_notes
from tests.lab.server.conftest import ended_run


@pytest.fixture
def runs(workspace):
    output_root().mkdir()
    return [ended_run(output_root(), name, steps) for name, steps in (("gpt-a", 6), ("gpt-b", 3))]


@pytest.mark.slow
def test_nobody_watches(runs):
    """Without a live front end, the comparison consists of tables and a picture, without scripts and external
    addresses.
    """
    shown = nb.compare(nb.runs("gpt-*", sort="name"))._repr_mimebundle_()
    assert set(shown) == {"text/html", "text/plain"}
    page = shown["text/html"]
    assert 'src="data:image/png;base64,' in page and "<script" not in page and "http" not in page
    assert page.index("gpt-a") < page.index("gpt-b") and "sequence length" in page
    lines = shown["text/plain"].splitlines()
    assert lines[0] == "Results" and lines[1].split() == ["result", "gpt-a", "gpt-b"]
    assert any(line.split() == ["steps", "6", "/", "6", "3", "/", "3"] for line in lines)


@pytest.mark.slow
def test_a_person_watches(runs, monkeypatch):
    """With a live front end, the widget contains the data that it draws if there is no server."""
    for module in (widget, mime):
        monkeypatch.setattr(module, "is_watched", lambda: True)
    made = []
    page = widget.ComparePage
    monkeypatch.setattr(widget, "ComparePage", lambda **traits: made.append(page(**traits)) or made[0])
    shown = nb.compare(["gpt-b", "gpt-a"])._repr_mimebundle_()
    assert mime.WIDGET_MIME in shown and "text/html" in shown
    assert made[0].names == ["gpt-b", "gpt-a"]
    outputs = []
    monkeypatch.setattr("IPython.display.display", lambda data, raw: outputs.append(data))
    nb.compare(["gpt-b", "gpt-a"])._ipython_display_()
    assert mime.WIDGET_MIME in outputs[0] and 'class="nbtrain-kept"' in outputs[1]["text/html"]
    curves = made[0].value["curves"]["gpt-a"]
    assert curves["series"]["loss"]["step"] == [1, 2, 3, 4, 5, 6]
    assert {row["tag"] for row in curves["tags"]} <= set(widget.NAMES)
    made[0].close()


@pytest.mark.slow
def test_on_the_command_line(runs, tmp_path, capsys):
    """On the command line, the tables are printed as text or JSON, and the curves are saved as a picture."""
    picture = tmp_path / "curves.svg"
    assert cli.main(["compare", "gpt-a", "gpt-b", "--picture", str(picture)]) == 0
    assert capsys.readouterr().out.startswith("Results\n  result ")
    assert picture.read_text().count("</svg>") == 1
    assert cli.main(["compare", "gpt-a", "gpt-b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["rows"] == [["batch.train_tokens", "6144", "3072"]]
    for name in ("gpt-a", "gpt-b"):
        change_notes(RunDir.named(name), labels={"sweep": "s"})
    assert cli.main(["compare", "-l", "sweep=s"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["result", "gpt-a", "gpt-b"]
    for more in ([], ["gpt-a", "gpt-b"]):
        assert cli.main(["compare", *more, "-l", "sweep=t"]) == 2
        assert "No run has the labels sweep=t." in capsys.readouterr().err
    (tmp_path / "others.yaml").write_text("345M:\n  samples/s: 59.7")
    others = str(tmp_path / "others.yaml")
    capsys.readouterr()
    # With others' figures, one run is enough.
    assert cli.main(["compare", "gpt-a", "--published", others]) == 0
    assert capsys.readouterr().out.splitlines()[1].split() == ["result", "gpt-a", "345M"]
    assert nb.compare(["gpt-a"], published=others).tables["published"] == ["345M"]
    with pytest.raises(ConfigError, match=r"gone\.yaml: no such file"):
        nb.compare(["gpt-a"], published=tmp_path / "gone.yaml")
    assert cli.main(["compare", "gpt-a", "gpt-a"]) == 2
    said = capsys.readouterr().err
    assert said == "ConfigError: gpt-a: named more than once; name each run only once.\n"


def test_a_server_is_asked_for_the_runs_that_it_shows(tmp_path, monkeypatch):
    """The widget requests only runs in the server's own output directory, because the server may have other
    runs with the same names.
    """
    monkeypatch.setattr(widget, "compared", lambda runs, published: {"names": [run.name for run in runs]})
    here, also, other = (RunDir(tmp_path / name) for name in ("out/gpt-a", "out/gpt-b", "old/gpt-c"))
    assert widget.Comparison([here, also])._root_id() == root_id(tmp_path / "out")
    assert widget.Comparison([here, other])._root_id() == ""


def test_without_a_server_the_page_has_the_curves_that_it_opens_with():
    text = (script.FOLDER / "compare" / "compare.js").read_text(encoding="utf-8")
    first = re.search(r"FIRST_COMPARED = \[([^\]]*)\]", text)[1]
    assert tuple(re.findall(r'"(\w+)"', first)) == widget.NAMES


def test_what_is_refused(runs):
    with pytest.raises(ConfigError, match=r'runs = .gpt-a. \(str\) must be a list of runs, e\.g\. \["gpt-a"'):
        nb.compare("gpt-a")
    with pytest.raises(ConfigError, match=r"^cannot compare 1 run: choose 2 to 500 runs\.$"):
        nb.compare(["gpt-a"])
