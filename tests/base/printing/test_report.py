"""The printer: alignment, widths, escaped text, and HTML that JupyterLab keeps in an untrusted notebook."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from nbtrain.base.findings import FATAL, Finding
from nbtrain.base.printing.report import (
    Code,
    Column,
    Facts,
    Findings,
    Fold,
    Headline,
    InNotebook,
    InText,
    Items,
    Picture,
    Record,
    Report,
    Result,
    Sentence,
    Table,
    is_number,
    record_of,
)
from nbtrain.base.text import amounts


@dataclass(frozen=True, repr=False)
class Measured(Result, Record):
    """A result with a file, a size, and a rate that follows from its fields."""

    path: Path
    num_bytes: int
    seconds: float
    derived = ("rate",)

    @property
    def rate(self) -> float:
        return self.num_bytes / self.seconds

    def as_report(self) -> Report:
        return Report(
            "measured <disk>", [Sentence("in a trial"), Facts({"size": amounts.size(self.num_bytes)})]
        )


def test_a_result_prints_one_report_in_every_form() -> None:
    result = Measured(Path("data/x"), 1 << 30, 2.0)
    assert str(result) == repr(result) == "measured <disk>\nin a trial\n\nsize  1.0 GiB"
    page = result._repr_html_()
    assert "<b>measured &lt;disk&gt;</b>" in page and ">1.0 GiB<" in page
    assert result.to_dict() == {"path": "data/x", "num_bytes": 1 << 30, "seconds": 2.0, "rate": 536870912.0}
    assert record_of(result) == {"path": "data/x", "num_bytes": 1 << 30, "seconds": 2.0}
    with pytest.raises(TypeError, match="abstract"):
        Result()


def test_facts_of_a_report_share_a_column_and_a_grid() -> None:
    facts = [Facts({"one rank": "5 GiB", "  weights": 2_000_000}, "Memory"), Facts({"time": "3 min"}, "Time")]
    assert Report("", facts).text().splitlines() == [
        *("Memory", "  one rank   5 GiB", "    weights  2,000,000", "", "Time", "  time       3 min")
    ]
    page = Report("", facts).html()
    assert page.count("<table") == 1 and page.count('colspan="2"') == 2
    assert page.count("padding-left:16px") == 1 and ">weights<" in page


def test_columns_have_units_and_numbers_stand_to_the_right() -> None:
    columns = ["name", Column("size", amounts.size), "count", Column("share", "{:.0%}".format)]
    table = Table(columns, [("<b>", 3 << 30, 1234, 0.07), ("x", None, 5, 1.0)], "caption & more")
    assert Report("", [table]).text().splitlines() == [
        "caption & more",
        "  name     size  count  share",
        "  <b>   3.0 GiB  1,234     7%",
        "  x                  5   100%",
    ]
    page = table.html()
    assert page.count("text-align:right") == 9 and "&lt;b&gt;" in page and "<b>" not in page
    assert "caption &amp; more" in page
    assert page.count("<tr ") == 3 and "<style" not in page and "class=" not in page
    assert Table(("a", "b"), []).html() == "" and Report("", [Table(("a", "b"), [])]).text() == ""


def test_numbers_have_units() -> None:
    numbers = ("1,234", "5.6 GiB", "7%", "+4.0%", "10.0 KiB/s", "40/s", "1.5 GB/s", "8.0 h", "1e-3", "-")
    numbers += ("nan", "inf", "-inf")
    assert all(map(is_number, numbers))
    assert not any(map(is_number, ("", "fp32", "4 layers", "3.11.7 (x)", "6 + 6", "PP 2", "yes", "info")))


def test_a_grid_shows_rows_as_facts() -> None:
    table = Table(("split", "tokens"), [("train", 3_000)], "Splits", is_grid=True)
    page = Report("", [Facts({"documents": 5}, "Dataset"), table]).html()
    assert page.count("<table") == 1 and ">tokens 3,000<" in page
    assert "split  tokens" in Report("", [table]).text()


def test_a_terminal_gets_its_width_and_no_escape_of_a_document() -> None:
    words = "a sentence that is longer than the terminal is wide, because it says much"
    report = Report(
        "title", [Table(("name", "why"), [("x\x1b[31m", words), ("line\nend", "y")]), Items([words])]
    )
    lines = report.text(columns=40).splitlines()
    assert max(map(len, lines)) <= 40 and "\x1b" not in report.text() and "line\\nend" in report.text()
    for word in words.split():
        assert word in report.text(columns=40)
    assert report.text(columns=1).split() == report.text(columns=2).split()
    titled = [Facts({"a": 1}, "b\x1b"), Items(["a"], "b\x1b"), Findings([], "b\x1b"), Code("a", "b\x1b")]
    assert Report("", titled).text().count("b\\x1b\n") == 3


def test_headlines_have_the_colour_of_their_kind() -> None:
    headline = Headline([("fits", "no, 5 GiB too much", "bad"), ("time", "3 min", "")])
    assert "color:#e04444" in headline.html() and "color:inherit" in headline.html()
    assert Report("run", [headline]).text() == "run\nfits: no, 5 GiB too much, time: 3 min"


def test_findings_name_their_places_if_asked() -> None:
    lack = Finding("error", "r", "a.b", "x.yaml:1", "needs 2 <GPUs>.", "Use 2.", FATAL)
    note = Finding("note", "r", "", "", "worth knowing.")
    assert Report("", [Findings([lack, note], "Findings")]).text().splitlines() == [
        "Findings",
        "  - error, cannot run: needs 2 <GPUs>. Use 2.",
        "  - note: worth knowing.",
    ]
    # The level begins the line, as in the output of a compiler: `nbtrain data verify | grep ^ok`.
    assert Report("", [Findings([note])]).text() == "note: worth knowing."
    placed = Findings([lack], places=True)
    assert Report("", [placed]).text().splitlines() == lack.lines()
    assert "x.yaml:1: a.b: needs 2 &lt;GPUs&gt;." in placed.html()
    assert placed.html().count("&#9679;") == 1 and "&#9679;" not in Findings([note]).html()


def test_a_block_may_be_for_one_form_only() -> None:
    drawn = []
    blocks = [
        InText(Sentence("call `nbtrain plan`")),
        InNotebook(Sentence("call `nb.plan`")),
        Sentence("call `x`", "call `y`"),
        Fold("more", lambda: drawn.append("fold") or [Code("<yaml>")]),
        Picture(lambda: drawn.append("picture") or b"\x89PNG", "curves"),
        Picture(lambda: b"", "nothing"),
    ]
    assert Report("", blocks).text() == "call `nbtrain plan`\ncall `x`" and not drawn
    page = Report("", blocks).html()
    assert "<code>nb.plan</code>" in page and "<code>y</code>" in page and "nbtrain plan" not in page
    assert "<summary" in page and "&lt;yaml&gt;" in page and page.count("<img ") == 1
    assert drawn == ["fold", "picture"]


def test_a_report_is_a_block_of_another_one() -> None:
    inner = Report("inner", [Facts({"a": 1})])
    assert Report("outer", [inner]).text() == "outer\n\ninner\n\na  1"
    assert Report("outer", [inner]).html().count("<b>") == 2
    assert Report("outer", [Report("", [Items([])]), inner]).text() == "outer\n\ninner\n\na  1"
