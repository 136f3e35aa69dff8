"""The words of a shell script before substitution: quotes, comments, here-documents.

This is a reader, not a shell: nothing is ever run. It keeps the line of every piece, so that a flag that a
script collects in a variable is reported with the line where it is written.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from nbtrain.base.errors import ConfigError

BLANKS = " \t"
ENDS = ";&|<>()\n"
OPERATORS = (
    "&>>",
    "<<-",
    "<<<",
    "&&",
    "||",
    ";;",
    "<<",
    ">>",
    "&>",
    ">&",
    "<&",
    "|&",
    ";",
    "&",
    "|",
    "<",
    ">",
)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a word: literal text, or something that the shell substitutes."""

    kind: str
    """Kind of the piece: text, name (a variable), sum (arithmetic) or command (whose output is
    substituted).
    """
    text: str
    place: str
    quoted: bool


@dataclass(slots=True)
class RawWord:
    """A word with its pieces; an assignment of a list has its elements."""

    place: str
    pieces: list[Piece] = field(default_factory=list)
    elements: "list[RawWord] | None" = None

    @property
    def plain(self) -> str:
        """Return the text, if the word is one piece without quotes; else ""."""
        one = self.pieces[0] if len(self.pieces) == 1 else None
        return one.text if one and one.kind == "text" and not one.quoted else ""


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of the shell: ;, &&, |, a line end, a redirection or a parenthesis."""

    text: str
    place: str
    joined: bool = False
    """Whether there is no space before the operator. In 2>&1, 2 is a descriptor; in `--interval 1000 > log`,
    1000 is a value.
    """


@dataclass(frozen=True, slots=True)
class HereDocument:
    """The body of <<WORD. If `quoted`, the shell substitutes nothing in it."""

    text: str
    place: str
    quoted: bool


Token = RawWord | Operator | HereDocument


class Reader:
    """Splits a script into tokens; comments are stored separately."""

    def __init__(self, text: str, label: str):
        self.text, self.label, self.position, self.line = text, label, 0, 1
        self.comments: list[tuple[str, str]] = []
        """(place, text) of every comment."""
        self._waiting: list[tuple[str, bool, bool]] = []

    @property
    def place(self) -> str:
        return f"{self.label}:{self.line}"

    def _ahead(self, text: str) -> bool:
        return self.text.startswith(text, self.position)

    def _take(self, count: int = 1) -> str:
        taken = self.text[self.position : self.position + count]
        self.position += count
        self.line += taken.count("\n")
        return taken

    def tokens(self) -> Iterator[Token]:
        """Yield all tokens of the script. Raises ConfigError for an unclosed quote or parenthesis."""
        while self.position < len(self.text):
            if self._ahead("\\\n"):
                self._take(2)
            elif self.text[self.position] in BLANKS + "\r":
                self._take()
            elif self.text[self.position] == "#":
                self._comment()
            elif self.text[self.position] == "\n":
                yield Operator("\n", self.place)
                self._take()
                yield from self._here_documents()
            elif self._ahead("(("):
                place = self.place
                self._take(2)
                yield RawWord(place, [Piece("sum", self._until("))"), place, False)])
            elif self.text[self.position] in "()":
                yield Operator(self._take(), self.place)
            else:
                yield from self._operator_or_word()

    def _comment(self) -> None:
        end = self.text.find("\n", self.position)
        end = len(self.text) if end < 0 else end
        self.comments.append((self.place, self.text[self.position : end]))
        self.position = end

    def _operator_or_word(self) -> Iterator[Token]:
        operator = next((one for one in OPERATORS if self._ahead(one)), "")
        if not operator:
            yield self.word()
            return
        joined = self.text[max(self.position - 1, 0) : self.position] not in BLANKS + "\n"
        yield Operator(operator, self.place, joined)
        self._take(len(operator))
        if operator in ("<<", "<<-"):
            while self._ahead(" "):
                self._take()
            word = self.word()
            quoted = any(piece.quoted for piece in word.pieces)
            self._waiting.append(("".join(p.text for p in word.pieces), quoted, operator == "<<-"))

    def _here_documents(self) -> Iterator[HereDocument]:
        for ending, quoted, tabs in self._waiting:
            place, lines = self.place, []
            while True:
                if self.position >= len(self.text):
                    raise ConfigError(f"{place}: the here-document has no end: no line is {ending}.")
                end = self.text.find("\n", self.position)
                line = self._take((len(self.text) if end < 0 else end + 1) - self.position).rstrip("\r\n")
                line = line.lstrip("\t") if tabs else line
                if line == ending:
                    break
                lines.append(line)
            yield HereDocument("\n".join(lines), place, quoted)
        self._waiting = []

    def word(self) -> RawWord:
        """Return the word that begins here, with the elements of `NAME=( ... )`."""
        word = RawWord(self.place)
        while self.position < len(self.text):
            character = self.text[self.position]
            if self._ahead("\\\n"):
                self._take(2)
            elif character == "(" and word.plain.endswith("="):
                self._take()
                word.elements = list(self._elements())
                return word
            elif character in BLANKS + ENDS + "\r":
                break
            elif character == "'":
                place = self.place
                self._take()
                word.pieces.append(Piece("text", self._until("'"), place, True))
            elif character == '"':
                self._take()
                word.pieces += self.double_quoted()
            elif character == "\\":
                self._take()
                word.pieces.append(Piece("text", self._take(), self.place, True))
            elif character in "$`":
                word.pieces.append(self._put_in(False))
            else:
                self._add(word.pieces, self._take(), False)
        return word

    def _add(self, pieces: list[Piece], text: str, quoted: bool) -> None:
        """Add a character to the last piece, or begin a new piece, because every piece is on a single
        line.
        """
        last = pieces[-1] if pieces else None
        if last and last.kind == "text" and last.quoted == quoted and last.place == self.place:
            pieces[-1] = Piece("text", last.text + text, last.place, quoted)
        else:
            pieces.append(Piece("text", text, self.place, quoted))

    def _elements(self) -> Iterator[RawWord]:
        start = self.place
        while self.position < len(self.text):
            character = self.text[self.position]
            if character == ")":
                self._take()
                return
            if character == "#":
                self._comment()
            elif character in BLANKS + "\r\n" or self._ahead("\\\n"):
                self._take(2 if character == "\\" else 1)
            elif character in ENDS:
                raise ConfigError(f"{self.place}: the list that begins at {start} holds {character}.")
            else:
                yield self.word()
        raise ConfigError(f"{start}: the list ( ... has no end.")

    def double_quoted(self) -> list[Piece]:
        start = self.place
        pieces = [Piece("text", "", start, True)]
        while self.position < len(self.text):
            character = self.text[self.position]
            if character == '"':
                self._take()
                return pieces
            if self._ahead("\\\n"):
                self._take(2)
            elif character == "\\" and self.text[self.position + 1 : self.position + 2] in (
                "$",
                '"',
                "\\",
                "`",
            ):
                self._take()
                self._add(pieces, self._take(), True)
            elif character in "$`":
                pieces.append(self._put_in(True))
            else:
                place = self.place
                text = self._take()
                if text == "\n":
                    pieces.append(Piece("text", text, place, True))
                else:
                    self._add(pieces, text, True)
        raise ConfigError(f'{start}: the quote " has no end.')

    def _put_in(self, quoted: bool) -> Piece:
        """Read a substitution: $NAME, ${...}, $((...)), $(...) or `...`."""
        place = self.place
        if self._take() == "`":
            return Piece("command", self._until("`"), place, quoted)
        for opening, closing, kind in (("((", "))", "sum"), ("(", ")", "command"), ("{", "}", "name")):
            if self._ahead(opening):
                self._take(len(opening))
                return Piece(kind, self._until(closing), place, quoted)
        end = self.position
        if end < len(self.text) and (self.text[end].isdigit() or self.text[end] in "@*#?!$-"):
            return Piece("name", self._take(), place, quoted)
        while end < len(self.text) and (self.text[end].isalnum() or self.text[end] == "_"):
            end += 1
        if end == self.position:
            return Piece("text", "$", place, quoted)
        return Piece("name", self._take(end - self.position), place, quoted)

    def _until(self, closing: str) -> str:
        """Return the text up to `closing`, counting nested brackets."""
        start, opening, depth = self.position, {")": "(", "))": "(", "}": "{"}.get(closing, ""), 0
        place = self.place
        while self.position < len(self.text):
            if depth == 0 and self._ahead(closing):
                text = self.text[start : self.position]
                self._take(len(closing))
                return text
            character = self._take()
            if opening and character == opening:
                depth += 1
            elif opening and character == closing[0]:
                depth -= 1
        raise ConfigError(f"{place}: {closing} is missing.")
