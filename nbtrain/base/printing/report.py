"""Printer of all results: a report is a title and blocks, printed as text, as HTML and in a terminal.

    class Plan(Result):
        def as_report(self) -> Report:
            return Report("Plan of gpt-tiny", [Facts({"one rank": "5.1 GiB"}, "Memory"), Findings(...)])

    str(plan)               text: a line per fact, a table in aligned columns, a finding per item
    a notebook cell         HTML, which fits a page of 420 pixels and both themes
    nbtrain plan RUN        the text, fitted to the terminal's width (cli/output.py adds the colors)

All text is escaped: as HTML, and for a terminal as \\x1b. Styles are attributes, because JupyterLab removes
<style> from the outputs of untrusted notebooks. Text has the theme's color, dimmed by opacity. The live views
get the same style from lab/ui/elements/style.js.
"""

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from nbtrain.base.text import table, terminal

if TYPE_CHECKING:
    from nbtrain.base.findings import Finding

INDENT = "  "
# Matches numbers with the units of base/text/amounts.py, and the dash that stands for a missing value.
QUANTITY = re.compile(
    r"[-+]?(?:nan|inf|\d[\d.,]*(?:e[-+]?\d+|[kMBT])?)"
    r"(?: ?%|(?: (?:B|[KMGT]iB|GB|tokens))?/s| (?:B|[KMGT]iB|us|ms|s|min|h|d|years))?|-"
)
CODE = re.compile("`([^`]+)`")
DIM = "opacity:.7"
CELL = "padding:3px 14px 3px 0;vertical-align:top;font-size:12px;border:0"
TABLE = "border-collapse:collapse;table-layout:auto;width:auto;margin:2px 0 10px 0;font-size:12px"
# Without this style, JupyterLab would paint every second row of a table.
ROW = "background-color:transparent"
# Breaks paths and other long words of a sentence.
WRAPPED = "overflow-wrap:anywhere"
# A cell of at most this many characters, such as "74.2 GiB", is not wrapped.
SHORT_CHARACTERS = 10
# A time in the format of amounts.utc() is not wrapped either.
MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?: UTC)?")
# If the text in the last column is longer than this, it gets a separate row that is as wide as the table.
LONG_CHARACTERS = 100
# Minimum width of the last column, which wraps its lines, on a narrow page.
LAST_COLUMN = "min-width:160px"
# Minimum width of the first column, if it has a long name.
FIRST_COLUMN = "min-width:110px"
# Default maximum width of bars with their labels.
BARS_PIXELS = 640


@dataclass(eq=False, repr=False)
class TextForm:
    """Settings for printing a block as text."""

    columns: int | None = None
    """Number of columns at which lines are folded. None folds no lines."""
    colors: bool = False
    """Whether a block may print its own ANSI colors."""
    name_width: int = 0
    """Width of the column of names, which all facts of a report share."""


class Block(ABC):
    """A part of a report.

    Blocks are neither frozen nor comparable: both would double the time that this module takes to import.
    """

    __slots__ = ()

    @abstractmethod
    def lines(self, form: TextForm) -> list[str]:
        """Return the block as lines of text. [] if the block is not shown as text."""

    @abstractmethod
    def html(self) -> str:
        """Return the block as HTML; "" if it is not shown as HTML."""


class Result(ABC):
    """A result that prints itself: as text, in a notebook cell, and at IPython's prompt.

    A dataclass that inherits from it is declared with repr=False.
    """

    __slots__ = ()

    @abstractmethod
    def as_report(self) -> "Report":
        """Return the report to print."""

    def __str__(self) -> str:
        return self.as_report().text()

    def __repr__(self) -> str:
        return str(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """Print the text at IPython's prompt, without quotes or escapes."""
        printer.text(str(self))

    def _repr_html_(self) -> str:
        return self.as_report().html()


@dataclass(eq=False, repr=False)
class Report(Result, Block):
    """A title and the blocks below it."""

    title: str
    """First line of the report; "" if the first block says what the result is."""
    blocks: Sequence[Block]

    def as_report(self) -> "Report":
        return self

    def text(self, columns: int | None = None, colors: bool = False) -> str:
        """Return the report as text, with its lines folded at `columns`.

        An empty line separates blocks. Sentences, headlines, and lists without a title follow the title and
        each other without an empty line.
        """
        facts = [block for block in self.blocks if isinstance(block, Facts)]
        names = [terminal.columns(_cell_line(name)) for block in facts for name, _ in block.pairs]
        form = TextForm(columns, colors, max(names, default=0) + len(INDENT))
        lines = [terminal.printable(self.title)] if self.title else []
        follows = True
        for block in self.blocks:
            own = block.lines(form)
            if not own:
                continue
            if lines and not (follows and _follows(block)):
                lines.append("")
            follows = _follows(block)
            lines += own
        return terminal.folded("\n".join(lines), columns)

    def lines(self, form: "TextForm") -> list[str]:
        """Return the report as lines of text. A report can therefore be a block of another report."""
        text = self.text(form.columns, form.colors)
        return text.split("\n") if text else []

    def html(self) -> str:
        """Return the report as HTML. Consecutive facts become one table."""
        parts = [f'<p style="{WRAPPED}"><b>{escape(self.title)}</b></p>'] if self.title else []
        for is_grid, group in itertools.groupby(self.blocks, key=_is_in_grid):
            blocks = list(group)
            parts += [_grid(blocks)] if is_grid else [block.html() for block in blocks]
        return "".join(parts)


class Record:
    """A dataclass whose JSON has its fields and the properties that `derived` lists."""

    __slots__ = ()
    derived: ClassVar[tuple[str, ...]] = ()
    """Names of the properties that follow the fields in the JSON."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return record_of(self, *self.derived)


def record_of(instance: Any, *properties: str) -> dict[str, Any]:
    """Return a dataclass as JSON values: its fields, with paths as text, followed by `properties`."""
    plain = {
        name: str(value) if isinstance(value, Path) else value for name, value in asdict(instance).items()
    }
    return plain | {name: getattr(instance, name) for name in properties}


@dataclass(eq=False, repr=False)
class Sentence(Block):
    """A sentence on a separate line."""

    words: str
    in_notebook: str = ""
    """Version of the sentence for notebooks, with nb calls instead of CLI commands; code is in backticks. ""
    if `words` is shown there too.
    """

    def lines(self, form: TextForm) -> list[str]:
        return terminal.printable(self.words).split("\n") if self.words else []

    def html(self) -> str:
        words = escape(self.in_notebook or self.words)
        return f'<p style="{WRAPPED}">{CODE.sub(_code, words)}</p>' if words else ""


@dataclass(eq=False, repr=False)
class Headline(Block):
    """Main results side by side: (name, word, kind), where kind is good, tight, bad or ""."""

    words: Sequence[tuple[str, str, str]]

    def lines(self, form: TextForm) -> list[str]:
        return [terminal.printable(", ".join(f"{name}: {word}" for name, word, _ in self.words))]

    def html(self) -> str:
        from nbtrain.base.printing.theme import WORD_COLORS

        cells = "".join(
            f'<div style="display:inline-block;vertical-align:top;padding:2px 34px 6px 0">'
            f'<span style="font-size:11px;{DIM}">{escape(name)}</span><br>'
            f'<strong style="font-size:19px;color:{WORD_COLORS.get(kind, "inherit")}">'
            f"{escape(word)}</strong></div>"
            for name, word, kind in self.words
        )
        return f'<div style="margin:2px 0 10px 0">{cells}</div>'


@dataclass(eq=False, repr=False)
class Facts(Block):
    """Names with their values. A name that begins with spaces is indented."""

    facts: Mapping[str, Any] | Iterable[tuple[str, Any]]
    title: str = ""

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """(name, value as text) for each fact."""
        items = self.facts.items() if isinstance(self.facts, Mapping) else self.facts
        return [(name, cell_text(value)) for name, value in items]

    def lines(self, form: TextForm) -> list[str]:
        indent = INDENT if self.title else ""
        rows = [
            f"{indent}{terminal.padded(_cell_line(name), form.name_width)}{_cell_line(value)}"
            for name, value in self.pairs
        ]
        return _below(self.title, rows)

    def html(self) -> str:
        return _grid([self])


@dataclass(eq=False, repr=False)
class Column:
    """A column of a table."""

    name: str
    form: Callable[[Any], str] | None = None
    """Function that formats a value with its unit, such as amounts.size for bytes. With None, integers get
    commas, and text is unchanged.
    """
    is_right: bool | None = None
    """Whether cells are aligned to the right. None aligns them to the right if all of them are numbers."""


@dataclass(eq=False, repr=False)
class Table(Block):
    """Rows below headings. Columns of numbers are aligned to the right."""

    columns: Sequence[str | Column]
    rows: Sequence[Sequence[Any]]
    title: str = ""
    is_grid: bool = False
    """Whether HTML shows a row as a fact: its first cell, followed by the other cells with their headings.
    Consecutive tables of this kind and facts share one grid.
    """
    wraps_last: bool = False
    """Whether only the last column wraps its lines in HTML."""

    @property
    def heads(self) -> list[str]:
        """Headings of the columns."""
        return [column.name for column in self._columns]

    @property
    def cells(self) -> list[list[str]]:
        """Cells of each row, as text."""
        forms = [column.form or cell_text for column in self._columns]
        return [
            ["" if value is None else form(value) for form, value in zip(forms, row, strict=True)]
            for row in self.rows
        ]

    @property
    def facts(self) -> Facts:
        """Rows as facts: {first cell: the other cells with their headings}."""
        heads = self.heads[1:]
        joined = (
            ", ".join(f"{head} {cell}" for head, cell in zip(heads, row[1:]) if cell) for row in self.cells
        )
        return Facts([(row[0], said) for row, said in zip(self.cells, joined)], self.title)

    def lines(self, form: TextForm) -> list[str]:
        if not self.rows:
            return []
        heads, cells = self.heads, [[_cell_line(cell) for cell in row] for row in self.cells]
        right = [at for at, is_right in enumerate(self._are_right(cells)) if is_right]
        rows = [heads, *cells] if any(heads) else cells
        if not self.title:
            return table.fitted(rows, right, form.columns)
        columns = None if form.columns is None else form.columns - len(INDENT)
        fitted = table.fitted(rows, right, columns)
        return [terminal.printable(self.title), *(INDENT + line if line else "" for line in fitted)]

    def html(self) -> str:
        if not self.rows:
            return ""
        cells = self.cells
        sides = ["right" if is_right else "left" for is_right in self._are_right(cells)]
        head = "padding:3px 14px 3px 0;vertical-align:top;font-size:11px;font-weight:500"
        titles = "".join(
            f'<th style="text-align:{side};{head};{DIM};{_rule()}">{escape(name)}</th>'
            for name, side in zip(self.heads, sides)
        )
        rows = "".join(self._row(row, sides) for row in cells)
        above = f'<thead><tr style="{ROW}">{titles}</tr></thead>' if any(self.heads) else ""
        body = f'<table style="{TABLE}">{above}<tbody>{rows}</tbody></table>'
        return f"{heading(self.title)}{framed(body, self.title or 'table')}"

    def markdown(self) -> list[str]:
        """Return the lines of a Markdown table; the cells may hold Markdown."""
        rows = [self.heads, ["---"] * len(self.heads), *self.cells]
        return [f"| {' | '.join(map(_markdown_cell, row))} |" for row in rows]

    @property
    def _columns(self) -> list[Column]:
        return [Column(column) if isinstance(column, str) else column for column in self.columns]

    def _are_right(self, cells: Sequence[Sequence[str]]) -> Iterator[bool]:
        for at, column in enumerate(self._columns):
            own = [row[at] for row in cells if row[at]]
            yield bool(own) and all(map(is_number, own)) if column.is_right is None else column.is_right

    def _row(self, row: Sequence[str], sides: Sequence[str]) -> str:
        below = ""
        if len(row) > 2 and len(row[-1]) > LONG_CHARACTERS:
            wide = f"text-align:left;{CELL};padding-left:16px;{WRAPPED}"
            # At most as wide as the window: a table that scrolls may be wider.
            text = f'<div style="max-width:86vw">{escape(row[-1].strip())}</div>'
            below = f'<tr style="{ROW}"><td colspan="{len(row)}" style="{wide}">{text}</td></tr>'
            row = [*row[:-1], ""]
        own = "".join(self._cell(row, at, sides[at]) for at in range(len(row)))
        return f'<tr style="{ROW}">{own}</tr>{below}'

    def _cell(self, row: Sequence[str], at: int, side: str) -> str:
        is_last = at == len(row) - 1
        is_short = len(row[at]) <= SHORT_CHARACTERS or MOMENT.fullmatch(row[at]) is not None
        width = ";white-space:nowrap" if is_short or (self.wraps_last and not is_last) else ""
        if self.wraps_last and is_last and not is_short:
            width = f";{LAST_COLUMN}"
        if at == 0 and not is_short and not width:
            width = f";{FIRST_COLUMN}"
        indent = ";padding-left:16px" if row[at].startswith(" ") else ""
        return f'<td style="text-align:{side};{CELL}{width}{indent}">{escape(row[at].strip())}</td>'


@dataclass(eq=False, repr=False)
class Items(Block):
    """A list of sentences."""

    items: Sequence[str]
    title: str = ""

    def lines(self, form: TextForm) -> list[str]:
        return _below(self.title, [terminal.printable(f"{INDENT}- {item}") for item in self.items])

    def html(self) -> str:
        rows = "".join(f'<li style="margin:2px 0">{escape(item)}</li>' for item in self.items)
        return f"{heading(self.title)}{_list(rows)}" if rows else ""


@dataclass(eq=False, repr=False)
class Findings(Block):
    """Findings with their levels and costs.

    With a title, the findings are a list below the title. Without a title, each line begins with the level.
    """

    findings: "Sequence[Finding]"
    title: str = ""
    places: bool = False
    """Whether each finding shows its file and field, and its message and fix on separate lines."""

    def lines(self, form: TextForm) -> list[str]:
        if self.places:
            own = [line for finding in self.findings for line in finding.lines()]
        else:
            mark = f"{INDENT}- " if self.title else ""
            own = [f"{mark}{finding.label}: {finding.text}" for finding in self.findings]
        return _below(self.title, [terminal.printable(line) for line in own])

    def html(self) -> str:
        rows = "".join(self._item(finding) for finding in self.findings)
        return f"{heading(self.title)}{_list(rows)}" if rows else ""

    def _item(self, finding: "Finding") -> str:
        from nbtrain.base.printing.theme import WORD_COLORS

        kind = {"error": "bad", "warning": "tight"}.get(finding.level, "")
        # Small colored text would be too faint in one of the two themes.
        dot = f'<span aria-hidden="true" style="color:{WORD_COLORS[kind]}">&#9679;</span> ' if kind else ""
        text = f"{finding.head}: {finding.text}" if self.places and finding.head else finding.text
        label = f'<strong style="font-weight:600">{escape(finding.label)}</strong>'
        return f'<li style="margin:2px 0">{dot}{label}: {escape(text)}</li>'


@dataclass(eq=False, repr=False)
class Code(Block):
    """Text that is shown unchanged, such as YAML or a command."""

    text: str
    title: str = ""
    indent: str = INDENT
    wraps: bool = False
    """Whether HTML wraps long lines; otherwise they scroll."""
    marked: re.Pattern[str] | None = None
    """Parts to mark in HTML, such as placeholders."""

    def lines(self, form: TextForm) -> list[str]:
        own = [f"{self.indent}{line}" if line else "" for line in terminal.printable(self.text).split("\n")]
        return _below(self.title, own) if self.text else []

    def html(self) -> str:
        text = escape(self.text)
        if self.marked is not None:
            text = self.marked.sub(r"<mark>\g<0></mark>", text)
        space = "pre-wrap;overflow-wrap:anywhere" if self.wraps else "pre"
        style = f"font:12px/1.4 monospace;white-space:{space};overflow-x:auto;margin:2px 0 10px 0"
        focus = "" if self.wraps else ' tabindex="0"'
        return f'{heading(self.title)}<pre style="{style}"{focus}>{text}</pre>' if self.text else ""


@dataclass(eq=False, repr=False)
class Picture(Block):
    """A picture, which only HTML shows."""

    draw: Callable[[], bytes]
    """Function that returns an SVG or a PNG, or b"" if there is nothing to draw. It is called when HTML is
    written, so that text needs no matplotlib.
    """
    title: str
    """Description for readers who do not see the picture."""
    has_tooltips: bool = False
    """Whether the picture is an SVG with tooltips, which a browser shows only if the SVG is part of the
    page.
    """

    def lines(self, form: TextForm) -> list[str]:
        return []

    def html(self) -> str:
        import base64

        if not (image := self.draw()):
            return ""
        if self.has_tooltips:
            return framed(image.decode(), self.title or "picture")
        kind = "png" if image.startswith(b"\x89PNG") else "svg+xml"
        data = base64.b64encode(image).decode()
        return (
            f'<div><img alt="{escape(self.title)}" style="max-width:100%" '
            f'src="data:image/{kind};base64,{data}"/></div>'
        )


@dataclass(eq=False, repr=False)
class Pictures(Block):
    """Pictures next to each other if the page has room, else below each other."""

    pictures: Sequence[Picture]

    def lines(self, form: TextForm) -> list[str]:
        return []

    def html(self) -> str:
        beside = "display:inline-block;vertical-align:top;max-width:100%;margin:0 8px 6px 0"
        return "".join(f'<div style="{beside}">{picture.html()}</div>' for picture in self.pictures)


@dataclass(eq=False, repr=False)
class Bar:
    """One bar in a Bars block."""

    label: str
    parts: Sequence[tuple[float, str]]
    """(size, color) of each part."""
    total: str = ""
    """Text after the bar."""


@dataclass(eq=False, repr=False)
class Bars(Block):
    """Bars on a common scale, whose parts have colors, with a legend below them."""

    bars: Sequence[Bar]
    legend: Sequence[tuple[str, str]]
    """(name, color) of each part."""
    title: str = ""
    scale: float = 0.0
    """Size of a full bar. 0 means the size of the largest bar."""
    max_pixels: int = BARS_PIXELS
    """Maximum width of the bars with their labels."""

    def lines(self, form: TextForm) -> list[str]:
        return Facts([(bar.label, bar.total) for bar in self.bars], self.title).lines(form)

    def html(self) -> str:
        scale = self.scale or max((sum(size for size, _ in bar.parts) for bar in self.bars), default=0.0)
        if not scale:
            return ""
        # One table, so that all bars are aligned, however long their labels are.
        rows = "".join(self._row(bar, scale) for bar in self.bars)
        wide = f"table-layout:auto;width:100%;max-width:{self.max_pixels}px;margin:2px 0"
        table = f"border-collapse:collapse;{wide}"
        one_line = "white-space:nowrap"
        names = " &nbsp; ".join(
            f'<span style="{one_line}"><span style="color:{color}">&#9632;</span> {escape(name)}</span>'
            for name, color in self.legend
        )
        return (
            f'{heading(self.title)}<table style="{table}"><tbody>{rows}</tbody></table>'
            f'<div style="font-size:11px;margin-bottom:8px">{names}</div>'
        )

    def _row(self, bar: Bar, scale: float) -> str:
        pieces = "".join(
            f'<span style="display:inline-block;height:12px;width:{100 * size / scale:.3f}%;'
            f'background-color:{color}"></span>'
            for size, color in bar.parts
            if size
        )
        track = "text-align:left;white-space:nowrap;overflow:hidden;height:12px;line-height:12px;font-size:0"
        ground = "background-color:rgba(128,134,144,.3)"
        text = "border:0;font-size:12px;text-align:left"
        is_short = len(bar.total) <= 2 * SHORT_CHARACTERS
        width = "white-space:nowrap;width:1px" if is_short else "white-space:normal;width:36%"
        label = (
            f'<td style="{text};padding:2px 8px 2px 0;white-space:nowrap;width:1px">{escape(bar.label)}</td>'
        )
        total = f'<td style="{text};padding:2px 0 2px 8px;{width}">{escape(bar.total)}</td>'
        label, total = label if bar.label else "", total if bar.total else ""
        return (
            f'<tr style="{ROW}">{label}<td style="border:0;padding:2px 0">'
            f'<div style="{track};{ground}">{pieces}</div></td>{total}</tr>'
        )


@dataclass(eq=False, repr=False)
class Fold(Block):
    """Blocks that HTML hides behind a summary until it is opened. Text does not show them."""

    summary: str
    blocks: Sequence[Block] | Callable[[], Sequence[Block]]
    """Blocks, or a function that returns them when HTML is written, if building them takes time."""
    is_open: bool = False

    def lines(self, form: TextForm) -> list[str]:
        return []

    def html(self) -> str:
        head = f'<summary style="font-size:12px;cursor:pointer">{escape(self.summary)}</summary>'
        blocks = self.blocks() if callable(self.blocks) else self.blocks
        return f"<details{' open' if self.is_open else ''}>{head}{Report('', blocks).html()}</details>"


@dataclass(eq=False, repr=False)
class InText(Block):
    """A block that only text shows."""

    block: Block

    def lines(self, form: TextForm) -> list[str]:
        return self.block.lines(form)

    def html(self) -> str:
        return ""


@dataclass(eq=False, repr=False)
class InNotebook(Block):
    """A block that only HTML shows."""

    block: Block

    def lines(self, form: TextForm) -> list[str]:
        return []

    def html(self) -> str:
        return self.block.html()


def escape(text: str) -> str:
    """Return a text escaped for HTML."""
    # Imported here, because text needs no table of HTML's entities.
    import html

    return html.escape(text)


def framed(body: str, name: str) -> str:
    """Return a frame in which a table or picture that is wider than its page scrolls, also by keyboard."""
    return (
        f'<div tabindex="0" role="group" aria-label="{escape(name)}" '
        f'style="overflow-x:auto;max-width:100%">{body}</div>'
    )


def heading(title: str) -> str:
    """Return the title of a block as HTML; "" if the title is empty."""
    style = "font-size:12px;font-weight:600;margin-top:8px"
    return f'<div style="{style}">{escape(title)}</div>' if title else ""


def cell_text(value: Any) -> str:
    """Format a value of a table or a fact: 1234567 as "1,234,567", None as "", text as it is."""
    if value is None:
        return ""
    return f"{value:,}" if type(value) is int else str(value)


def is_number(cell: str) -> bool:
    """Return whether a cell is a number, such as 1,234 or 5.6 GiB or 7%."""
    return QUANTITY.fullmatch(cell) is not None


def _code(match: re.Match[str]) -> str:
    return f"<code>{match[1]}</code>"


def _markdown_cell(cell: str) -> str:
    """Return a cell with each | escaped, because it would end the cell. A | that is escaped already is
    kept.
    """
    return re.sub(r"(?<!\\)\|", r"\|", cell.replace("\n", "\\n"))


def _cell_line(cell: str) -> str:
    """Return a cell as one printable line."""
    return terminal.printable(cell).replace("\n", "\\n")


def _below(title: str, lines: list[str]) -> list[str]:
    """Return a block's title and the lines below it. [] if there are no lines."""
    return [*([terminal.printable(title)] if title else []), *lines] if lines else []


def _list(rows: str) -> str:
    return f'<ul style="font-size:12px;margin:2px 0 8px 0;padding-left:18px;{WRAPPED}">{rows}</ul>'


def _rule() -> str:
    from nbtrain.base.printing.theme import LINE

    return f"border:0;border-bottom:1px solid {LINE}"


def _follows(block: Block) -> bool:
    """Return whether a block is a sentence, a headline or a list without a title.

    No empty line separates two such blocks.
    """
    block = block.block if isinstance(block, InText) else block
    is_list = isinstance(block, Items | Findings) and not block.title
    return is_list or isinstance(block, Sentence | Headline)


def _is_in_grid(block: Block) -> bool:
    return isinstance(block, Facts) or (isinstance(block, Table) and block.is_grid)


def _grid(blocks: Iterable[Any]) -> str:
    """Return facts as one table, with a heading for each block that has a title."""
    lines = []
    for block in blocks:
        facts = block.facts if isinstance(block, Table) else block
        if facts.title and facts.pairs:
            style = f"text-align:left;padding:8px 0 2px 0;font-size:12px;font-weight:600;{_rule()}"
            title = escape(facts.title)
            lines.append(f'<tr style="{ROW}"><th colspan="2" style="{style}">{title}</th></tr>')
        for name, value in facts.pairs:
            indent = 16 if name.startswith(" ") else 0
            left = f"text-align:left;white-space:nowrap;{CELL};padding-left:{indent}px;{DIM}"
            right = f"text-align:left;white-space:normal;overflow-wrap:anywhere;{CELL}"
            lines.append(
                f'<tr style="{ROW}"><td style="{left}">{escape(name.strip())}</td>'
                f'<td style="{right}">{escape(value)}</td></tr>'
            )
    return f'<table style="{TABLE}"><tbody>{"".join(lines)}</tbody></table>' if lines else ""
