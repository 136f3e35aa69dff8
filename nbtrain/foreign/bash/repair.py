"""Repairs forms of bash that tree-sitter-bash does not read: rewrites them, or replaces them with a name.

    ${x:$n:1}  $((10#$x))  [ a \\< b ]  [[ ... ]] then      another form with the same meaning
    ${x~~}  [[ a@(b|c) = ab ]]  T[a b]=4                   a name, whose value or effect counts as unknown

Only text that the parser rejects is repaired, and only the parts that it rejects on their own are changed.
Text that bash rejects too, such as an open quote or an `if` without its `fi`, is still rejected.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

# Maximum number of changed parts, and of replaced statements, in one text. A text with more is not bash.
MOST_CHANGES = 200
MOST_STATEMENTS = 5
# Maximum number of lines of a compound command, and of characters of ${...} or $((...)), that are replaced.
MOST_LINES = 200
MOST_CHARACTERS = 2000

_OPENINGS = re.compile(
    r"\$\(\(|\$\{|\$\[|(?<![\w$\"'\[-])\[\[?(?=[ \t])|"
    r"(?:(?<=[;&|\n({!])|(?<=\bif)|(?<=\bwhile)|(?<=\buntil)|(?<=\belif)|(?<=\bthen)|(?<=\belse)|(?<=\bdo)|\A)"
    r"[ \t]*\(\("
)
_CLOSINGS = {"${": "}", "$((": "))", "((": "))", "$[": "]", "[[": " ]]", "[": " ]"}
# Words of compound commands, whose parts are on other lines.
_COMPOUND = re.compile(
    r"(?<![\w./$-])(?:if|then|elif|else|fi|for|while|until|do|done|case|esac|select|function)(?![\w./-])|;;|"
    r"\(\)|^\s*(?:[{}]|&&|\||;|\))|[{}]\s*$"
)
_OPENS = re.compile(r"(?<![\w./$-])(?:if|for|while|until|case|select|function|\{)(?![\w./-])")
_PLACEHOLDER = re.compile(r"=<[A-Za-z][^<>|&;\n]*>")
_HERE = re.compile(r"(?<!<)<<-?\s*(['\"\\]?)([A-Za-z_]\w*)\1")
_SETS = re.compile(r":=|\+\+|--|(?<![=!<>])=(?![=~])")
_ASSIGNMENT = re.compile(r"(?:(?<=[\s;&|({])|\A)[A-Za-z_]\w*\+?=")
# What may precede an assignment on its line if the assignment begins a statement: nothing, an operator or
# keyword, and other assignments.
_BEGINS = re.compile(
    r"(?:\A|[;&|({]|\b(?:then|do|else|elif|if|while|until)(?=[ \t]))[ \t]*"
    r"(?:[A-Za-z_]\w*\+?=[^\s()]*[ \t]+)*\Z"
)
_REDIRECTIONS = re.compile(
    r"(?:[ \t]+\d?(?:>>?|&>>?)[ \t]*(?:&\d|[^\s;|&()<>]+))+(?=[ \t]*(?:[;)}#\n]|\|\||&&|\Z))"
)
_NAMES = re.compile(r"(?<!\\)\$([A-Za-z_]\w*|\d|[#@*])")


@dataclass(frozen=True, slots=True)
class Change:
    """A part of a text, and the text that replaces it."""

    start: int
    end: int
    text: str
    unread: str = ""
    """The original text, if it was replaced with a name; otherwise ""."""
    name: str = ""
    is_statement: bool = False


class Repair:
    """Finder of the parts of a text that the parser rejects.

    `refuses(text)` returns whether the parser rejects a text. Each character is one byte (latin-1), so that
    positions equal the parser's.
    """

    def __init__(self, refuses: Callable[[str], bool], new_name: Callable[[], str]):
        self.refuses, self.new_name = refuses, new_name
        self.statements = 0

    def changes(self, text: str) -> Iterator[tuple[str, Change]]:
        """Yield (new text, change) until the parser rejects no part that can be changed."""
        for _ in range(MOST_CHANGES):
            change = self._construct(text) or self._keyword(text) or self._statement(text)
            if change is None:
                return
            text = text[: change.start] + change.text + text[change.end :]
            yield text, change

    # --- ${...}, $((...)), ((...)), [[ ... ]], [ ... ] ----------------------------------------------

    def _construct(self, text: str) -> Change | None:
        """Return the change that repairs the shortest construct which the parser rejects even on its own.

        Constructs are ${...}, $((...)), ((...)), [[ ... ]] and [ ... ]. Returns None if no construct can be
        repaired.
        """
        spans = []
        literals = list(_literals(text))
        for match in _OPENINGS.finditer(text):
            opening = match.group(0).strip()
            start = match.end() - len(opening)
            if any(first <= start < last for first, last in literals):
                continue
            end = _end(text[: match.end() + MOST_CHARACTERS], match.end(), _CLOSINGS[opening])
            if end is not None:
                spans.append((end - start, start, end, opening))
        for _, start, end, opening in sorted(spans):
            part = text[start:end]
            if not self.refuses(f"x={part}" if opening[0] == "$" else part):
                continue
            if (replacement := self._rewritten(part, opening)) is not None:
                return Change(start, end, replacement)
            if opening == "((" or (opening[0] == "$" and _SETS.search(part[2:])):
                continue  # it may set variables: the whole statement is replaced
            name = self.new_name()
            masked = f"${{{name}}}" if opening[0] == "$" else f"[[ -n ${{{name}}} ]]"
            return Change(start, end, masked + "\\\n" * part.count("\n"), part, name)
        return None

    def _rewritten(self, part: str, opening: str) -> str | None:
        """Return a construct in another form that the parser reads; None if there is no such form."""
        if opening == "[":
            candidates = [f"\\{part}"]
        elif opening == "[[":
            candidates = []
        else:
            braced = part[:2] + _NAMES.sub(r"${\1}", part[2:])
            candidates = [braced, re.sub(r"\\?([\[\]])(?=\}\Z)", r'"\1"', braced)]
        for candidate in candidates:
            if not self.refuses(f"x={candidate}" if opening[0] == "$" else candidate):
                return candidate
        return None

    # --- lines --------------------------------------------------------------------------------------

    def _keyword(self, text: str) -> Change | None:
        """Return the change that repairs the first of these forms; None if the text has none of them.

        X=$(...) 2> file; ...    ]] then    for x do    <> file
        """
        literals = list(_literals(text))
        if (change := _redirected_assignment(text, literals)) is not None:
            return change
        for pattern, replacement in (
            (r"(\]\]|\)\))[ \t]+(?=(?:then|do)\b)", r"\1; "),
            (r"\bfor[ \t]+\w+(?=[ \t]+do\b)", r"\g<0>;"),
            (r"(?<![<>])<>(?=[ \t]*[\w/\"'$.])", "< "),
        ):
            for match in re.finditer(pattern, text):
                start = text.rfind("\n", 0, match.start()) + 1
                is_open = _end_of_line(text[start : match.start()], 0) is None
                if not is_open and not any(first <= match.start() < last for first, last in literals):
                    return Change(match.start(), match.end(), match.expand(replacement))
        return None

    def _statement(self, text: str) -> Change | None:
        """Return the change that substitutes a name for a statement which the parser rejects on its own.

        A statement that fills its own lines is preferred, then the smallest compound command. Returns None if
        there is no such statement, or if the text does not look like bash.
        """
        lines = list(_statements(text))
        simple = [span for span in lines if _is_simple(_unquoted(text[slice(*span)]))]
        for start, end in [*simple, *sorted(_compounds(text, lines), key=lambda span: span[1] - span[0])]:
            part = text[start:end]
            if not part.strip() or not self.refuses(f"{part}\n"):
                continue
            self.statements += 1
            if _PLACEHOLDER.search(part) or self.statements > MOST_STATEMENTS:
                return None
            blanks = len(part) - len(part.lstrip())
            name = self.new_name()
            return Change(start + blanks, end, name + "\n" * part.count("\n"), part.strip(), name, True)
        return None


def _literals(text: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each text in which bash expands nothing.

    These are single-quoted texts, comments, and here-documents whose delimiter is quoted.
    """
    at = 0
    while at < len(text):
        letter = text[at]
        following = at + 1
        if letter == "\\":
            following = at + 2
        elif letter == '"':
            following = _end(text, at + 1, '"') or at + 1
        elif letter == "'":
            following = text.find("'", at + 1) + 1 or at + 1
            yield at, following
        elif letter == "#" and (at == 0 or text[at - 1] in " \t\n;&|("):
            following = text.find("\n", at) + 1 or len(text)
            yield at, following
        elif letter == "<" and (here := _HERE.match(text, at)):
            body = text.find("\n", at) + 1 or len(text)
            end = re.compile(rf"(?m)^\t*{re.escape(here.group(2))}$").search(text, body)
            if here.group(1) and end:
                yield body, end.end()
            following = here.end()
        at = following


def _redirected_assignment(text: str, literals: list[tuple[int, int]]) -> Change | None:
    """Return a change that removes the redirection of an assignment without a command."""
    for match in _ASSIGNMENT.finditer(text):
        line = text.rfind("\n", 0, match.start()) + 1
        is_continued = text[max(line - 2, 0) : line] == "\\\n"
        if is_continued or not _BEGINS.search(text[line : match.start()]):
            continue  # an argument, such as X=1 of `echo X=1 > file`
        if any(first <= match.start() < last for first, last in literals):
            continue
        at = match.end()
        while at < len(text) and text[at] not in " \t\n;&|<>)":
            opening = next((two for two in ("${", "$(", '"', "'", "`") if text.startswith(two, at)), "")
            closing = {"${": "}", "$(": ")"}.get(opening, opening)
            end = _end(text, at + len(opening), closing) if opening else at + (2 if text[at] == "\\" else 1)
            if end is None:
                break
            at = end
        redirection = _REDIRECTIONS.match(text, at)
        if redirection:
            return Change(at, redirection.end(), "")
    return None


def _end(text: str, at: int, closing: str) -> int | None:
    """Return the position after the closing bracket of a construct; None if it is not closed."""
    while at < len(text):
        if text.startswith(closing, at):
            return at + len(closing)
        letter = text[at]
        following: int | None = at + 1
        if letter == "\\":
            following = at + 2
        elif letter == "'" and closing != '"':
            following = text.find("'", at + 1) + 1 or None
        elif letter == '"':
            following = _end(text, at + 1, '"')
        elif letter == "`":
            following = _end(text, at + 1, "`")
        elif text.startswith("${", at):
            following = _end(text, at + 2, "}")
        elif text.startswith("$(", at) or (letter == "(" and closing in (")", "))")):
            following = _end(text, at + (2 if letter == "$" else 1), ")")
        elif letter == "\n" and closing in (" ]", " ]]"):
            return None
        if following is None:
            return None
        at = following
    return None


def _end_of_line(text: str, start: int) -> int | None:
    """Return the position after the line on which the statements that begin at `start` end.

    The end of that line is outside of quotes and brackets, and no backslash precedes it. Returns None if a
    quote or a bracket stays open.
    """
    at = start
    while at < len(text):
        letter = text[at]
        following: int | None = at + 1
        if letter == "\n":
            return at + 1
        if letter == "\\":
            following = at + 2
        elif letter == "'":
            following = text.find("'", at + 1) + 1 or None
        elif letter in '"`':
            following = _end(text, at + 1, letter)
        elif letter == "(":
            following = _end(text, at + 1, ")")
        elif text.startswith("${", at):
            following = _end(text, at + 2, "}")
        elif letter == "#" and (at == start or text[at - 1] in " \t;&|"):
            following = (text.find("\n", at) + 1 or len(text) + 1) - 1
        if following is None:
            return None
        at = following
    return len(text)


def _is_simple(text: str) -> bool:
    """Return whether a statement, without its quotes, belongs to no compound command and no `case`."""
    return not _COMPOUND.search(text) and text.count(")") <= text.count("(")


def _unquoted(text: str) -> str:
    """Return a text without comments and without the contents of quotes."""
    quoted = r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"|\$\{[^{}]*\}|(?:(?<=\s)|\A)#[^\n]*"
    return re.sub(quoted, " ", text, flags=re.DOTALL)


def _statements(text: str) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of the statements on each line.

    Stops where a quote or a bracket stays open.
    """
    start = 0
    while start < len(text):
        end = _end_of_line(text, start)
        while end is not None and end < len(text) and re.search(r"(?:&&|\|)[ \t]*\n\Z", text[start:end]):
            end = _end_of_line(text, end)
        if end is None:
            return
        for match in _HERE.finditer(_unquoted_here(text[start:end])):
            closing = re.compile(rf"(?m)^\t*{re.escape(match.group(2))}$").search(text, end)
            if closing is None:
                return
            end = min(closing.end() + 1, len(text))
        yield start, end - (text[end - 1 : end] == "\n")
        start = end


def _compounds(text: str, lines: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of each compound command: from a line that begins one to the line that ends it."""
    opened = [_opened(text[slice(*span)]) for span in lines]
    for first, (start, _) in enumerate(lines):
        if not _OPENS.search(_unquoted(text[slice(*lines[first])])):
            continue
        depth = [0] * len(PAIRS)
        for last in range(first, min(first + MOST_LINES, len(lines))):
            depth = [before + more for before, more in zip(depth, opened[last])]
            if min(depth) < 0:
                break
            if not any(depth):
                yield start, lines[last][1]
                break


PAIRS = (("if", "fi"), ("case", "esac"), ("do", "done"), ("{", "}"))


def _opened(text: str) -> list[int]:
    """Return how many `if`, `case`, `do` and `{` a line leaves open, in the order of PAIRS.

    A number is negative if the line closes more than it opens.
    """
    words = re.findall(r"(?<![\w./$-])(?:if|fi|case|esac|do|done|[{}])(?![\w./-])", _unquoted(text))
    return [words.count(begin) - words.count(end) for begin, end in PAIRS]


def _unquoted_here(text: str) -> str:
    """Return a text without comments, and without quoted words that do not begin a here-document."""
    return re.sub(r"(?<![<\-\s])'[^']*'|(?:(?<=\s)|\A)#[^\n]*", " ", text)
