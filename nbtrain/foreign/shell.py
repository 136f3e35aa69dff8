"""The commands that a shell script would run, with variables, lists and arithmetic substituted. No command is
run.

Values that only the running shell knows ($1, $(nvidia-smi), an unset variable, an assignment in a loop or
under a condition that cannot be decided here) stay in the word unchanged; the code that needs the value of a
flag reports them.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from nbtrain.base.errors import ConfigError
from nbtrain.foreign.located import OUTSIDE, Word
from nbtrain.foreign.shell_answers import chain, evaluate, joined, succeeds
from nbtrain.foreign.shell_sets import DECLARING, names_set, without_options
from nbtrain.foreign.shell_words import HereDocument, Operator, Piece, RawWord, Reader, Token

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
NAME = re.compile(r"(!?)(\w+|[@*#?!$-])(?:\[([^\]]*)\])?(?:(:?[-=])(.*))?$", re.DOTALL)

SEPARATORS = ("\n", ";", "&&", "||", "|", "&", ";;", "(", ")", "|&")

# Characters of all substitutions: more than any command line has, and little enough to hold in memory.
MOST_CHARACTERS = 5_000_000

SHELLS = {"bash", "sh", "/bin/bash", "/bin/sh"}

# Text and the place where it was written, piece by piece.
Runs = list[tuple[str, str]]


@dataclass(slots=True)
class Command:
    """A command of the script, after substitution."""

    words: list[Word]
    environment: dict[str, Word] = field(default_factory=dict)
    """Assignments VAR=value before the command."""
    written_to: str = ""
    """File to which the output of the command is redirected."""

    @property
    def place(self) -> str:
        return self.words[0].place


@dataclass(slots=True)
class Script:
    """A script after it was read."""

    label: str
    commands: list[Command] = field(default_factory=list)
    exported: dict[str, Word] = field(default_factory=dict)
    documents: dict[str, Word] = field(default_factory=dict)
    """Here-documents, by the file to which they are written. Their place is the first line of the
    document.
    """
    undecided: dict[str, str] = field(default_factory=dict)
    """{variable: place}, for variables whose value only the shell knows (set in a loop, a function, under a
    condition, by `read`), or that are used in a form that is not evaluated here (${X%y})."""
    comments: list[tuple[str, str]] = field(default_factory=list)
    """(place, text) of comments."""


def read_script(text: str, label: str) -> Script:
    """Read a script. Raises ConfigError, with the line, if it is not a shell script."""
    reader = Reader(text.replace("\r\n", "\n"), label)
    script = Script(label)
    _Walk(script, list(reader.tokens())).walk()
    script.comments = reader.comments
    return script


@dataclass(slots=True)
class _Branch:
    """An open if, loop, case or function."""

    closing: str
    decided: bool | None = None
    """Whether this part runs; None if unknown."""
    done: bool = False
    """Whether an earlier part of the `if` has run, or one of the earlier parts has certainly run."""
    unknown: bool = False
    """Whether an earlier part may have run."""
    opened: bool = False
    """Whether the { of a group or a function was read."""


class _Walk:
    """Executes the statements in order, tracking the variables."""

    def __init__(self, script: Script, tokens: list[Token]):
        self.script, self.tokens = script, tokens
        self.variables: dict[str, list[Runs]] = {}
        self.branches: list[_Branch] = []
        self.condition: list[Command] | None = None
        self.guard: bool | None = True
        """Whether the && and || before the statement let it run."""
        self.answer: bool | None = True
        self.status: bool | None = True
        """Status of the commands before the last && or ||, and of the last command."""
        self.operator = "&&"
        self.sourced = ""
        """Place at which another file is read, which may set any variable."""
        self.room = MOST_CHARACTERS
        """Characters that may still be substituted for variables."""

    def walk(self) -> None:
        statement: list[Token] = []
        for token in self.tokens:
            if isinstance(token, Operator) and token.text in SEPARATORS:
                if token.text == "(" and len(statement) == 1 and _plain(statement[0]):
                    self.branches.append(_Branch("}"))  # a function: NAME () { ... }
                    statement = []
                elif statement:
                    self._statement(statement)
                    statement = []
                self._separate(token)
            elif isinstance(token, HereDocument):
                self._here_document(token)
            else:
                statement.append(token)
        if statement:
            self._statement(statement)

    def _separate(self, operator: Operator) -> None:
        """Run the commands after && and || if the status before them allows it."""
        if operator.text not in ("&&", "||"):
            self.guard = self.answer = self.status = True
            self.operator = "&&"
        elif self.condition is not None:
            self.condition.append(Command([Word(operator.text, operator.place)]))
        else:
            self.answer = joined(self.answer, self.operator, self.status)
            self.guard, self.operator = self.answer, operator.text
            if operator.text == "||" and self.answer is not None:
                self.guard = not self.answer
            self.status = True

    @property
    def runs(self) -> bool | None:
        """Return whether the current statement is run; None if unknown."""
        states = [self.guard, *(branch.decided for branch in self.branches)]
        return False if False in states else (None if None in states else True)

    def _statement(self, tokens: list[Token]) -> None:
        head = _plain(tokens[0])
        if head in ("if", "elif"):
            if head == "if":
                self.branches.append(_Branch("fi"))
            self.condition, rest = [], tokens[1:]
            if rest:
                self._statement(rest)
        elif head == "then":
            self._decide()
            self._rest(tokens)
        elif head == "else" and self.branches:
            branch = self.branches[-1]
            branch.decided = _after(branch, True)
            self._rest(tokens)
        elif head in ("for", "while", "until", "select", "case", "function"):
            opened = any(_plain(token) == "{" for token in tokens)
            self.branches.append(_Branch({"case": "esac", "function": "}"}.get(head, "done"), opened=opened))
        elif head == "{":
            last = self.branches[-1] if self.branches else None
            if last and last.closing == "}" and not last.opened:
                last.opened = True
            else:
                self.branches.append(_Branch("}", self.guard, opened=True))
            self._rest(tokens)
        elif self.branches and head == self.branches[-1].closing:
            self.branches.pop()
        elif head in ("do", "}", "fi", "done", "esac"):
            self._rest(tokens)
        else:
            self._simple(tokens)

    def _rest(self, tokens: list[Token]) -> None:
        if tokens[1:]:
            self._statement(tokens[1:])

    def _decide(self) -> None:
        condition, self.condition = self.condition or [], None
        if not self.branches:
            return
        branch = self.branches[-1]
        holds = chain([command.words for command in condition])
        branch.decided = _after(branch, holds)
        branch.done |= bool(holds)
        branch.unknown |= holds is None

    def _simple(self, tokens: list[Token]) -> None:
        """Process assignments and one command."""
        raws: list[RawWord] = []
        written_to, skip = "", False
        for number, token in enumerate(tokens):
            if isinstance(token, Operator):
                target = tokens[number + 1] if number + 1 < len(tokens) else None
                if token.text in (">", ">>", "&>", "&>>") and isinstance(target, RawWord):
                    written_to = "".join(word.text for word in self._expand(target))
                descriptor = token.joined and bool(raws) and raws[-1].plain.isdigit()
                if descriptor and token.text in (">", ">>", ">&"):
                    raws.pop()  # 2>&1
                skip = token.text not in ("<<", "<<-")
            elif isinstance(token, RawWord):
                if not skip:
                    raws.append(token)
                skip = False
        exporting = bool(raws) and raws[0].plain in DECLARING
        environment: dict[str, Word] = {}
        words: list[Word] = []
        if self.runs is not False:
            for name in names_set(raws):
                self._forget(name, raws[0].place)
        for raw in without_options(raws[1:]) if exporting else raws:
            match = ASSIGNMENT.match(_head(raw))
            if match and not words:
                value = self._assign(raw, match)
                if value is not None:
                    environment[match.group(1)] = value
            elif words and (
                words[0].text == "eval"
                or (words[-1].text in ("-c", "-lc") and SHELLS & {word.text for word in words})
            ):
                words += self._inner(raw)
            else:
                words += self._expand(raw)
        if exporting and raws[0].plain == "export":
            exported = environment | {
                one.text: _one_word(self.variables[one.text]) for one in words if one.text in self.variables
            }
            if self.runs is not False:
                self.script.exported |= exported
        elif words and not exporting:
            command = Command(words, environment, written_to)
            if [word.text for word in words[:2]] == ["set", "--"] and self.runs is not False:
                self.variables["@"] = self.variables["*"] = [[(one.text, one.place)] for one in words[2:]]
                self.variables |= {str(at): [[(one.text, one.place)]] for at, one in enumerate(words[2:], 1)}
            if words[0].text in ("source", ".") and self.runs is not False:
                self.sourced = self.sourced or words[0].place
            self.status = succeeds(words)
            if self.condition is not None:
                self.condition.append(command)
            elif self.runs is not False:
                self.script.commands.append(command)
        elif raws and not words and written_to == "" and self.condition is not None:
            self.condition.append(Command([Word("?", raws[0].place)]))

    def _here_document(self, document: HereDocument) -> None:
        if self.runs is False or not self.script.commands:
            return
        text = document.text
        if not document.quoted:
            runs = self._runs(_pieces_of(text, document.place))
            text = "".join(part for part, _ in runs)
        target = self.script.commands[-1].written_to
        if target:
            self.script.documents[target] = Word(text, document.place)

    def _assign(self, raw: RawWord, match: re.Match[str]) -> Word | None:
        name, adds = match.group(1), bool(match.group(2))
        if self.runs is False:
            return None
        old = self.variables.get(name, [[]]) if adds else []
        if self.runs is None:
            self._forget(name, raw.place)
        elif raw.elements is not None:
            elements = [[(word.text, word.place)] for one in raw.elements for word in self._expand(one)]
            self.variables[name] = [*(one for one in old if one), *elements]
        else:
            rest = RawWord(raw.place, _without_head(raw.pieces, match.end()))
            value: Runs = self._runs(rest.pieces)
            # Without parentheses, += appends to the first element.
            self.variables[name] = [[*(part for one in old[:1] for part in one), *value], *old[1:]]
        return _one_word(self.variables[name], raw.place)

    def _forget(self, name: str, place: str) -> None:
        """Mark a variable's value as known only to the shell from here on."""
        self.variables[name] = [[(f"${{{name}}}", place)]]
        self.script.undecided.setdefault(name, place)

    def _expand(self, raw: RawWord) -> list[Word]:
        """Expand a word as the shell does: variables are substituted, and spaces outside of quotes split the
        word.
        """
        parts: list[tuple[bool, Runs]] = []
        """(a word begins here, a part of it)."""
        for piece in raw.pieces:
            if piece.kind == "text":
                parts.append((False, [(piece.text, piece.place)]))
                continue
            values = self._values(piece)
            every = piece.kind == "name" and re.search(r"\[@\]|^@$", piece.text)
            if piece.quoted:
                several = values if every else [_joined(values)]
                parts += [(number > 0, value) for number, value in enumerate(several)]
            else:
                parts += _split(_joined(values))
        return _words_of(parts)

    def _inner(self, raw: RawWord) -> list[Word]:
        """Return the words of the script after `bash -c`; the inner shell substitutes variables once more."""
        inner = [run for text, place in self._runs(raw.pieces) for run in self._runs(_pieces_of(text, place))]
        words = _words_of(list(_split(inner)))
        return [Word(word.text.strip("'\""), word.place) for word in words]

    def _runs(self, pieces: list[Piece]) -> Runs:
        """Return the pieces of a word after substitution, without splitting."""
        runs: Runs = []
        for piece in pieces:
            runs += [(piece.text, piece.place)] if piece.kind == "text" else _joined(self._values(piece))
        return runs

    def _values(self, piece: Piece) -> list[Runs]:
        """Return the values that replace a piece; a list has several."""
        if piece.kind == "sum":
            result = self._sum(piece)
            return [[(f"$(({piece.text}))" if result is None else str(result), piece.place)]]
        if piece.kind == "command":
            return [[(f"$({piece.text})", piece.place)]]
        unknown = [[(f"${{{piece.text}}}" if len(piece.text) > 1 else f"${piece.text}", piece.place)]]
        match = NAME.match(piece.text)
        if not match or match.group(1):
            self._not_worked_out(piece)
            return unknown
        _, name, index, operator, default = match.groups()
        value = self.variables.get(name)
        empty = value is None or ((operator or "").startswith(":") and not _joined(value))
        if empty and operator:
            put_in = [self._runs(_pieces_of(_unquoted(default), piece.place))]
            if operator.endswith("=") and self.runs:
                self.variables[name] = put_in
            return put_in
        if value is None:
            if self.sourced and name.isidentifier():
                self.script.undecided.setdefault(name, self.sourced)
            return unknown
        self.room -= sum(len(text) for one in value for text, _ in one)
        if self.room < 0:
            raise ConfigError(
                f"{piece.place}: the script's variables, put in, are more than {MOST_CHARACTERS:,} "
                f"characters at {name}; no command line is that long."
            )
        if index in ("@", "*") or name in ("@", "*"):
            return value
        if index is None or index == "0":
            return value[:1]
        if index.isdigit() and int(index) < len(value):
            return [value[int(index)]]
        self._not_worked_out(piece)
        return unknown

    def _not_worked_out(self, piece: Piece) -> None:
        """Mark a form such as ${X%y} or ${A[@]:1} as unknown although the script sets the variable."""
        match = re.match(r"[#!]?([A-Za-z_]\w*)", piece.text)
        if match and match.group(1) in self.variables:
            self.script.undecided.setdefault(match.group(1), piece.place)

    def _sum(self, piece: Piece) -> int | None:
        """Return the value of shell arithmetic on integers; None if it needs unknown values."""
        text = "".join(part for part, _ in self._runs(_pieces_of(piece.text, piece.place)))
        for _ in range(10):
            names = set(re.findall(r"[A-Za-z_]\w*", text))
            if not names or not names <= self.variables.keys():
                break
            for name in names:
                value = "".join(part for part, _ in _joined(self.variables[name]))
                text = re.sub(rf"\b{name}\b", f"({value or 0})", text)
        try:
            return evaluate(ast.parse(text.strip(), mode="eval").body)
        except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
            return None


def _after(branch: _Branch, holds: bool | None) -> bool | None:
    """Return whether a part of an `if` runs after the earlier parts, provided its own condition has the
    result `holds`.
    """
    if branch.done:
        return False
    return None if holds and branch.unknown else holds


def _plain(token: Token) -> str:
    return token.plain if isinstance(token, RawWord) else ""


def _head(raw: RawWord) -> str:
    first = raw.pieces[0] if raw.pieces else None
    return first.text if first and first.kind == "text" and not first.quoted else ""


def _without_head(pieces: list[Piece], length: int) -> list[Piece]:
    first = pieces[0]
    return [Piece(first.kind, first.text[length:], first.place, first.quoted), *pieces[1:]]


def _pieces_of(text: str, place: str) -> list[Piece]:
    """Return the pieces of text in which variables are substituted, one for each line."""
    label, _, line = place.rpartition(":")
    reader = Reader(text.replace('"', '\\"') + '"', label)
    reader.line = int(line)
    return reader.double_quoted()


def _unquoted(text: str) -> str:
    """Return the default of ${NAME:-"text"} without its quotes."""
    quote = text[:1]
    plain = quote in ("'", '"') and len(text) > 1 and text[-1] == quote and text.count(quote) == 2
    return text[1:-1] if plain else text


def _joined(values: list[Runs]) -> Runs:
    joined: Runs = []
    for number, value in enumerate(values):
        joined += [(" ", value[0][1] if value else ""), *value] if number else value
    return joined


def _one_word(values: list[Runs], place: str = "") -> Word:
    return _word(_joined(values) or [("", place)])


def _word(runs: Runs) -> Word:
    place = next((place for text, place in runs if text), runs[0][1])
    return Word("".join(text for text, _ in runs), place)


def _words_of(parts: list[tuple[bool, Runs]]) -> list[Word]:
    """Build words from parts, each of which may begin a new one."""
    words: list[Word] = []
    current: Runs | None = None
    for begins, part in parts:
        if begins and current is not None:
            words.append(_word(current))
            current = None
        if part:
            current = [*(current or []), *part]
    if current is not None:
        words.append(_word(current))
    return words


def _split(runs: Runs) -> Iterator[tuple[bool, Runs]]:
    """Yield (whether a word begins here, its part), split at spaces. Values that only the shell knows are
    never split.
    """
    for text, place in runs:
        protected = OUTSIDE.sub(lambda match: match.group(0).replace(" ", "\0"), text)
        if not protected:
            continue
        if protected[0].isspace():
            yield True, []
        for number, part in enumerate(protected.split()):
            yield number > 0, [(part.replace("\0", " "), place)]
        if protected[-1].isspace() and protected.strip():
            yield True, []
