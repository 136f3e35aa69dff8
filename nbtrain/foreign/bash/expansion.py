"""Expands bash words: quotes, variables and their forms (${X:-d}, ${A[@]:1}, ${X%.sh}), and splitting."""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nbtrain.foreign.bash.arithmetic import Arithmetic, NotArithmetic
from nbtrain.foreign.bash.patterns import Undecided, check_length, pattern_of
from nbtrain.foreign.bash.syntax_tree import (
    EXPANSIONS,
    BashSyntaxError,
    Source,
    expansions_in,
    parse,
    source_of_parts,
)
from nbtrain.foreign.bash.variables import (
    Run,
    Runs,
    Variable,
    text_of,
    text_variable,
    unknown_run,
    unknowns_of,
)
from nbtrain.foreign.syntax.located import Unknown

if TYPE_CHECKING:
    from tree_sitter import Node

PARAMETER = re.compile(r"([A-Za-z_]\w*|\d+|[@*#?$!-])")
FILE_PATTERN = re.compile(r"[*?]|\[[^\]]+\]")
EXTENDED = re.compile(r"[@?*+!]\(")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "f": "\f", "v": "\v"}
# Maximum number of words from {1..N}, and of braces in a word. A word with more counts as unknown.
MOST_NUMBERS = 1000
MOST_BRACES = 50
# Number of characters that each list element counts for, in addition to its text.
ELEMENT = 10


class Part(NamedTuple):
    """A part of a word: a literal, or the values that replace an expansion."""

    values: list[Runs]
    quoted: bool
    is_expansion: bool
    """Whether the part replaces an expansion: its values are split at spaces unless they are quoted."""


class Values(Protocol):
    """The methods of a Shell (shell.py) that the expansion of words needs."""

    extglob: bool

    def variable(self, name: str, place: str) -> Variable | None:
        """Return a variable, or None if it is certainly not set."""

    def arguments(self) -> tuple[Runs, ...] | None:
        """Return the positional arguments, or None if only the caller knows them."""

    def assign(self, name: str, variable: Variable) -> None:
        """Set a variable."""

    def substitute(self, source: Source, node: "Node") -> Runs:
        """Return what a command substitution prints."""

    def spend(self, characters: int, place: str, name: str) -> None:
        """Count substituted characters. Raises ConfigError if a script produces too many."""

    def has_option(self, name: str) -> bool:
        """Return whether `set` has turned an option on, such as noglob."""

    def is_settable(self, name: str) -> bool:
        """Return whether a scheduler or an operator may set a variable that the script does not set."""


def literal_unknown(name: str) -> str:
    """Return a variable's name as messages show it, e.g. $1 or ${TP}."""
    return f"${{{name}}}" if re.match(r"[A-Za-z_]", name) else f"${name}"


class Expansion:
    """An expander of the words in one source text. `shell` has the values of the variables."""

    def __init__(self, shell: Values, source: Source):
        self.shell, self.source = shell, source

    # --- words --------------------------------------------------------------------------------------

    def words(self, *nodes: "Node") -> list[Runs]:
        """Return the words that a word's nodes expand to.

        Unquoted expansions are split at spaces. A word that is a file pattern becomes an unknown value.
        """
        words = self.texts(*nodes)
        return words if self.shell.has_option("noglob") else [_without_pattern(word) for word in words]

    def texts(self, *nodes: "Node") -> list[Runs]:
        """Return the words as words() does, but with file patterns unchanged."""
        return [word for braces in self._braces(nodes) for word in self._joined(braces)]

    def value(self, *nodes: "Node") -> Runs:
        """Return the value of nodes that are not split, such as an assignment, a pattern or a file name."""
        return self.joined([part for node in nodes for part in self.parts(node, False)])

    def joined(self, parts: Iterable[Part]) -> Runs:
        """Join the parts of a word into one value, without splitting the word at spaces."""
        runs: list[Run] = []
        for part in parts:
            for number, value in enumerate(part.values):
                if number:
                    runs.append(Run(" ", value[0].place if value else "", True))
                runs += [run._replace(quoted=run.quoted or part.quoted) for run in value]
        return tuple(runs)

    def _separators(self) -> str:
        variable = self.shell.variable("IFS", "")
        if variable is None or variable.unknown is not None:
            return " \t\n"
        return text_of(variable.elements.get("0", ()))

    def _joined(self, parts: Sequence[Part]) -> list[Runs]:
        """Build words from parts: unquoted expansions are split at the separators in $IFS."""
        words: list[Runs] = []
        current: list[Run] | None = None
        separators = self._separators()
        for part in parts:
            if part.quoted or not part.is_expansion:
                for number, value in enumerate(part.values):
                    if number and current is not None:
                        words.append(tuple(current))
                        current = None
                    current = [
                        *(current or []),
                        *(run._replace(quoted=run.quoted or part.quoted) for run in value),
                    ]
                continue
            for number, value in enumerate(part.values):
                if number and current is not None:
                    words.append(tuple(current))
                    current = None
                for begins, run in _split(value, separators):
                    if begins and current is not None:
                        words.append(tuple(current))
                        current = None
                    if run is not None:
                        current = [*(current or []), run]
        if current is not None:
            words.append(tuple(current))
        return words

    # --- parts --------------------------------------------------------------------------------------

    def parts(self, node: "Node", quoted: bool) -> list[Part]:
        """Return the literals and expansions in the node of a word, in order.

        `quoted` says whether double quotes surround the node.
        """
        kind = node.type
        if kind in EXPANSIONS:
            text = self.source.of(node)
            blanks = len(text) - len(text.lstrip())
            # The parser includes the spaces before a quoted expansion in the expansion's node.
            lead = [self._literal(node.start_byte, node.start_byte + blanks, quoted)] if blanks else []
            return [*lead, self._expansion(node, quoted)]
        if kind == "raw_string":
            return [self._literal(node.start_byte + 1, node.end_byte - 1, True, raw=True)]
        if kind == "ansi_c_string":
            text = self.source.slice(node.start_byte + 2, node.end_byte - 1)
            run = Run(_ansi(text), self.source.place_of(node), True)
            return [Part([(run,)], True, False)]
        if kind == "translated_string":
            return [part for child in node.children[1:] for part in self.parts(child, quoted)]
        if kind == "string":
            return self._between(node, node.start_byte + 1, node.end_byte - 1, True)
        if kind in ("concatenation", "command_name", "array", "heredoc_body"):
            return self._between(node, node.start_byte, node.end_byte, quoted or kind == "heredoc_body")
        if kind in ("word", "extglob_pattern", "regex") and any(
            child.type in (*EXPANSIONS, "string", "raw_string") for child in node.children
        ):
            return self._between(node, node.start_byte, node.end_byte, quoted)
        return list(self._plain(node.start_byte, node.end_byte, quoted))

    def _plain(self, start: int, end: int, quoted: bool) -> Iterator[Part]:
        """Yield the text between two bytes as literals, one per line, so that each has its line number."""
        text = self.source.text
        while start < end:
            stop = text.find(b"\n", start, end) + 1 or end
            yield self._literal(start, stop, quoted)
            start = stop

    def _literal(self, start: int, end: int, quoted: bool, raw: bool = False) -> Part:
        text = self.source.slice(start, end)
        if not raw:
            text = re.sub(r"\\\n", "", text)
        place = self.source.place(start)
        if raw or "\\" not in text:
            return Part([(Run(text, place, quoted),)], quoted, False)
        if quoted:
            text = re.sub(r"\\([$`\"\\])", r"\1", text)
            return Part([(Run(text, place, True),)], True, False)
        runs = []
        for piece in re.split(r"(\\.)", text, flags=re.DOTALL):
            if piece[:1] == "\\" and len(piece) == 2:
                runs.append(Run(piece[1], place, True))
            elif piece:
                runs.append(Run(piece, place))
        return Part([tuple(runs)], False, False)

    def _between(self, node: "Node", start: int, end: int, quoted: bool) -> list[Part]:
        """Return the parts of a node from byte `start` to `end`: its children, and the text between them."""
        parts: list[Part] = []
        if node.type == "string" and not any(child.type in EXPANSIONS for child in node.children):
            parts.append(Part([(Run("", self.source.place(start), True),)], True, False))
        for child in node.children:
            if child.type in ('"', "string_content", "heredoc_content") or child.end_byte <= start:
                continue
            if child.start_byte > start:
                parts += self._plain(start, min(child.start_byte, end), quoted)
            parts += self.parts(child, quoted)
            start = child.end_byte
        parts += self._plain(start, end, quoted)
        return parts

    def _braces(self, nodes: Sequence["Node"]) -> list[list[Part]]:
        """Return the words that {a,b} and {1..4} expand to, each as a list of parts."""
        text = self.source.slice(nodes[0].start_byte, nodes[-1].end_byte)
        parts = [part for node in nodes for part in self.parts(node, False)]
        if "{" not in text or not re.search(r",|\.\.", text):
            return [parts]
        try:
            return [_joined_letters(word) for word in _expand_braces(_letters(parts))]
        except Undecided:
            place = self.source.place_of(nodes[0])
            reason = f"it expands to more than {MOST_NUMBERS:,} words"
            return [[Part([(unknown_run(Unknown(text, "", place, reason)),)], False, True)]]

    # --- expansions ---------------------------------------------------------------------------------

    def _expansion(self, node: "Node", quoted: bool) -> Part:
        place = self.source.place_of(node)
        text = self.source.of(node).lstrip()
        if node.type == "command_substitution":
            return Part([self.shell.substitute(self.source, node)], quoted, True)
        if node.type == "process_substitution":
            return Part(
                [(unknown_run(Unknown(text, "", place, "it is the output of a command")),)], True, True
            )
        if node.type == "arithmetic_expansion":
            opening = 3 if text.startswith("$((") else 2
            closing = 2 if opening == 3 else 1
            start, end = node.end_byte - len(text.encode()) + opening, node.end_byte - closing
            return Part([(self.arithmetic(node, start, end, text),)], quoted, True)
        if node.type == "simple_expansion":
            values = self._unbound(text[1:], place) or self.parameter(text[1:], place, quoted)
            return Part(values, quoted, True)
        return Part(self._form(node, text, place, quoted), quoted, True)

    def _unbound(self, name: str, place: str) -> list[Runs]:
        """Return an unknown value for a variable that is not set after `set -u`; otherwise an empty list."""
        if not self.shell.has_option("nounset") or not re.match(r"[A-Za-z_]", name):
            return []
        if self.shell.variable(name, place) is not None:
            return []
        reason = "it is not set, and set -u ends the script"
        return [(unknown_run(Unknown(literal_unknown(name), name, place, reason)),)]

    def parameter(self, name: str, place: str, quoted: bool) -> list[Runs]:
        """Return the values of $NAME: one value, or several for $@."""
        if name in ("@", "*"):
            arguments = self.shell.arguments()
            if arguments is None:
                return [(unknown_run(Unknown(f"${name}", name, place)),)]
            self.shell.spend(sum(ELEMENT + len(text_of(runs)) for runs in arguments), place, name)
            plain = [tuple(run._replace(quoted=False) for run in runs) for runs in arguments]
            return self._several(plain, name == "*" and quoted, place)
        if name == "#":
            arguments = self.shell.arguments()
            if arguments is None:
                return [(unknown_run(Unknown("$#", "#", place)),)]
            return [(Run(str(len(arguments)), place),)]
        if name.isdigit() and name != "0":
            arguments = self.shell.arguments()
            if arguments is None:
                return [(unknown_run(Unknown(literal_unknown(name), name, place)),)]
            runs = arguments[int(name) - 1] if int(name) <= len(arguments) else ()
            return [tuple(run._replace(quoted=False) for run in runs)]
        if not re.match(r"[A-Za-z_]", name):
            return [(unknown_run(Unknown(f"${name}", "", place, "only a running shell knows it")),)]
        variable = self.shell.variable(name, place)
        runs = variable.elements.get("0", ()) if variable is not None else ()
        self.shell.spend(sum(len(run.text) for run in runs), place, name)
        return [runs]

    def _several(self, values: Iterable[Runs], join: bool, place: str) -> list[Runs]:
        values = list(values)
        if not join:
            return values
        separator = self._separators()[:1]
        runs: list[Run] = []
        for number, value in enumerate(values):
            runs += [Run(separator, place, True), *value] if number else value
        return [tuple(runs)]

    def _form(self, node: "Node", text: str, place: str, quoted: bool) -> list[Runs]:
        """Return the values of ${...}: one value, or several for forms such as ${A[@]}."""
        inner = text[2:-1]
        offset = node.end_byte - len(text.encode()) + 2
        unknown: list[Runs] = [(unknown_run(Unknown(text, "", place, f"nbtrain does not evaluate {text}")),)]
        if inner[:1] == "#" and len(inner) > 1 and (match := PARAMETER.match(inner, 1)):
            return self._length(inner, match, place, unknown)
        indirect = inner[:1] == "!" and len(inner) > 1
        match = PARAMETER.match(inner, 1 if indirect else 0)
        if not match:
            return unknown
        name, end, subscript = match.group(1), match.end(), ""
        if inner[end : end + 1] == "[":
            close = _closing(inner, end)
            if close < 0:
                return unknown
            subscript, end = inner[end + 1 : close], close + 1
        rest = inner[end:]
        if indirect:
            return self._indirect(name, subscript, rest, place, quoted, unknown)
        operator = re.match(r":?[-=+?]", rest)
        joins = quoted and "*" in (name, subscript) and bool(rest) and not operator
        values = self._elements(name, subscript, place, quoted and not joins)
        not_evaluated = f"nbtrain does not evaluate {text}"
        if values is None:
            return [(unknown_run(Unknown(literal_unknown(name), name, place, not_evaluated)),)]
        if not rest:
            return ([] if subscript else self._unbound(name, place)) or values
        start = offset + len(inner[:end].encode())
        if operator:
            return self._default(name, subscript, values, operator.group(0), start, node, place, quoted)
        if unknowns := [part for runs in values for part in unknowns_of(runs)]:
            causes = tuple(dict.fromkeys(unknowns))
            return [(unknown_run(Unknown(text, "", place, "a part of it is not known", causes)),)]
        self.shell.spend(sum(len(text_of(runs)) for runs in values), place, name)
        try:
            changed = self._changed(name, subscript, values, rest, start, node, place)
            return self._several(changed, True, place) if joins else changed
        except (Undecided, NotArithmetic) as error:
            limit = error.reason if isinstance(error, Undecided) else ""
            reason = f"{not_evaluated}: {limit}" if limit else not_evaluated
            return [(unknown_run(Unknown(literal_unknown(name), name, place, reason)),)]

    def _length(self, inner: str, match: re.Match[str], place: str, unknown: list[Runs]) -> list[Runs]:
        name, end = match.group(1), match.end()
        subscript = inner[end + 1 : -1] if inner[end : end + 1] == "[" else ""
        if end < len(inner) and not subscript:
            return unknown
        if name in ("@", "*"):
            return self.parameter("#", place, False)
        values = self._elements(name, subscript, place, False)
        if values is None or any(unknowns_of(runs) for runs in values):
            causes = tuple(part for runs in values or [] for part in unknowns_of(runs))
            text = f"${{{inner}}}"
            return [(unknown_run(Unknown(text, "", place, "a part of it is not known", causes)),)]
        many = subscript in ("@", "*")
        count = len(values) if many else len(text_of(values[0])) if values else 0
        return [(Run(str(count), place),)]

    def _indirect(
        self, name: str, subscript: str, rest: str, place: str, quoted: bool, unknown: list[Runs]
    ) -> list[Runs]:
        variable = self.shell.variable(name, place)
        if subscript in ("@", "*"):
            if variable is None:
                return []
            if variable.unknown or rest:
                return unknown
            return [(Run(key, place),) for key in variable.elements]
        if rest in ("@", "*") or rest or subscript or variable is None or variable.unknown:
            return unknown
        target = text_of(variable.elements.get("0", ()))
        if not PARAMETER.fullmatch(target):
            return unknown
        return self.parameter(target, place, quoted)

    def _elements(self, name: str, subscript: str, place: str, quoted: bool) -> list[Runs] | None:
        """Return the values of NAME or NAME[SUBSCRIPT]; None if the subscript is not known."""
        if not subscript:
            return self.parameter(name, place, quoted)
        variable = self.shell.variable(name, place)
        if variable is None:
            return [] if subscript == "@" or (subscript == "*" and not quoted) else [()]
        if variable.unknown is not None:
            return [variable.elements["0"]]
        if subscript in ("@", "*"):
            values = list(variable.elements.values())
            self.shell.spend(sum(ELEMENT + len(text_of(runs)) for runs in values), place, name)
            return self._several(values, subscript == "*" and quoted, place)
        key = self.key(variable, subscript, place)
        return None if key is None else [variable.elements.get(key, ())]

    def key(self, variable: Variable | None, subscript: str, place: str) -> str | None:
        """Return the index or key that a subscript names; None if it is unknown or negative."""
        if variable is not None and variable.kind == "table":
            runs = self.text(subscript, place, True)
            return None if unknowns_of(runs) else text_of(runs)
        runs = self.text(subscript, place, True)
        if unknowns_of(runs):
            return None
        try:
            index = self.number(text_of(runs), place)
        except (Undecided, NotArithmetic):
            return None
        if index < 0 and variable is not None and variable.elements:
            index += max(int(key) for key in variable.elements) + 1
        return str(index) if index >= 0 else None

    def _default(
        self,
        name: str,
        subscript: str,
        values: list[Runs],
        operator: str,
        start: int,
        node: "Node",
        place: str,
        quoted: bool,
    ) -> list[Runs]:
        """Return the value of ${X:-d}, ${X-d}, ${X:=d}, ${X:+d} or ${X:?d}."""
        colon, sign = operator.startswith(":"), operator[-1]
        variable = self.shell.variable(name, place) if PARAMETER.fullmatch(name) else None
        special = not re.match(r"[A-Za-z_]", name)
        unknowns = [part for runs in values for part in unknowns_of(runs)]
        operand_at = (start + len(operator), node.end_byte - 1)
        absent = bool(unknowns) and unknowns[0].is_absent and len(values) == 1 and len(values[0]) == 1
        if absent and not self.shell.is_settable(unknowns[0].name):
            # Only the caller's environment could set the variable, so the variable counts as not set.
            is_set = False
        elif unknowns:
            if sign in "-=?":
                if any(run.text for runs in values for run in runs if not run.unknown):
                    return values
                default = text_of(self.operand(*operand_at, place, quoted))
                shown = self.source.of(node)
                part = unknowns[0]
                reason = part.reason or f"a scheduler sets it; without a scheduler, {shown} is {default}"
                return [(unknown_run(Unknown(part.text, part.name, place, reason, part.causes)),)]
            reason = "the variable may be set"
            return [(unknown_run(Unknown(self.source.of(node), "", place, reason, (unknowns[0],))),)]
        elif special:
            arguments = self.shell.arguments() or ()
            is_set = bool(arguments) if name in "@*" else name.isdigit() and int(name) <= len(arguments)
        elif subscript in ("@", "*"):
            is_set = variable is not None and bool(variable.elements)
        else:
            key = self.key(variable, subscript, place) if subscript else "0"
            is_set = variable is not None and key in variable.elements
        if is_set and colon:
            is_set = any(text_of(runs) for runs in values)
        if sign == "+":
            return [self.operand(*operand_at, place, quoted)] if is_set else [()]
        if is_set:
            return values
        if sign == "?":
            text = self.source.of(node).strip()
            reason = f"{text} ends the script if {literal_unknown(name)} is not set"
            return [(unknown_run(Unknown(literal_unknown(name), name, place, reason)),)]
        default_runs = self.operand(*operand_at, place, quoted)
        if sign == "=" and not special and not subscript:
            self.shell.assign(name, text_variable(default_runs))
        return [default_runs]

    def _changed(
        self,
        name: str,
        subscript: str,
        values: list[Runs],
        rest: str,
        start: int,
        node: "Node",
        place: str,
    ) -> list[Runs]:
        """Return the values of ${X%p}, ${X#p}, ${X/p/r}, ${X:1:2}, ${X^^} and ${A[@]:1}."""
        end = node.end_byte - 1
        if match := re.match(r"%%|%|##|#", rest):
            operator = match.group(0)
            pattern = self._pattern(start + len(operator), end, place)
            return [_trimmed(runs, operator, pattern) for runs in values]
        if rest[0] == "/":
            slashes = 2 if rest[1:2] in ("/", "#", "%") else 1
            # The pattern of ${X////-} is a slash.
            middle = _slash(rest, slashes + rest.startswith("///"))
            lead = len(rest[:slashes].encode())
            split = len(rest[:middle].encode())
            pattern = self._pattern(start + lead, start + split, place)
            replacement = self.operand(start + split + 1, end, place, False) if middle < len(rest) else ()
            if unknowns_of(replacement) or any("&" in run.text and not run.quoted for run in replacement):
                raise Undecided()  # & is the match itself from bash 5.2 on
            return [_replaced(runs, rest[:slashes], pattern, text_of(replacement)) for runs in values]
        if rest[0] == ":":
            first, _, length = _colon(rest[1:])
            start_at = self.number(self._arithmetic_text(first, place), place)
            count = self.number(self._arithmetic_text(length, place), place) if _ else None
            if subscript in ("@", "*") or name in ("@", "*"):
                variable = None if name in ("@", "*") else self.shell.variable(name, place)
                # The arguments begin at 1. A list may have gaps, and is cut at an index.
                keys = list(variable.elements) if variable else [str(at + 1) for at in range(len(values))]
                if (count is not None and count < 0) or not all(key.isdigit() for key in keys):
                    raise Undecided()
                if start_at < 0 and keys:
                    start_at += int(keys[-1]) + 1
                    if start_at < 0:
                        return []
                if start_at == 0 and name in ("@", "*") and count != 0:
                    raise Undecided()  # the first value would be $0
                kept = [runs for key, runs in zip(keys, values) if int(key) >= start_at]
                return kept if count is None else kept[:count]
            return [_substring(runs, start_at, count, place) for runs in values]
        if rest in ("^", "^^", ",", ",,", "@U", "@L", "@u"):
            change = {"^^": str.upper, "@U": str.upper, ",,": str.lower, "@L": str.lower}.get(rest)
            letter = str.upper if rest in ("^", "@u") else str.lower
            return [
                tuple(
                    run._replace(text=change(run.text) if change else run.text)
                    for run in (runs if change else _first_letter(runs, letter))
                )
                for runs in values
            ]
        raise Undecided()

    def _pattern(self, start: int, end: int, place: str) -> Runs:
        """Return the pattern of ${X%pattern}. Raises Undecided for a form that shopt has not turned on."""
        runs = self.operand(start, end, place, False)
        if not self.shell.extglob and any(not run.quoted and EXTENDED.search(run.text) for run in runs):
            raise Undecided()
        return runs

    def _arithmetic_text(self, text: str, place: str) -> str:
        runs = self.text(text, place, True)
        if unknowns := unknowns_of(runs):
            raise Undecided(*unknowns)
        return text_of(runs)

    # --- operands -----------------------------------------------------------------------------------

    def operand(self, start: int, end: int, place: str, quoted: bool) -> Runs:
        """Expand the word in ${X:-word}, and return its value."""
        return self.text(self.source.slice(start, end), self.source.place(start), quoted)

    def text(self, text: str, place: str, quoted: bool) -> Runs:
        """Expand a text as in double quotes if `quoted` is set, otherwise as an unquoted word with spaces."""
        if not re.search(r"[$`\\'\"]", text):
            return (Run(text, place, quoted),)
        opening, closing = ('x="', '"') if quoted else ("x=(", ")")
        if quoted:
            text = re.sub(r'(?<!\\)"', "", text)
        source = source_of_parts([(opening, place), (text, place), (closing, place)])
        try:
            tree = parse(source)
        except BashSyntaxError:
            return (unknown_run(Unknown(text, "", place, f"nbtrain does not evaluate {text}")),)
        if tree.unread:
            form = tree.unread[0].shown
            return (unknown_run(Unknown(text, "", place, f"nbtrain does not read {form}")),)
        assignment = tree.root.children[0] if tree.root.children else None
        node = assignment.child_by_field_name("value") if assignment else None
        if node is None:
            return ()
        inner = Expansion(self.shell, tree.source)
        if quoted:
            return inner.value(node)
        first, last = node.children[0], node.children[-1]
        parts: list[Part] = []
        at = first.end_byte
        for child in node.children[1:-1]:
            parts += inner._plain(at, child.start_byte, False)
            parts += inner.parts(child, False)
            at = child.end_byte
        parts += inner._plain(at, last.start_byte, False)
        return inner.joined(parts)

    # --- arithmetic ---------------------------------------------------------------------------------

    def arithmetic(self, node: "Node", start: int, end: int, shown: str) -> Run:
        """Return the value of an arithmetic expression, the source text from byte `start` to `end`.

        `shown` is the expression as messages show it. The value is unknown if a part of the expression is
        unknown or is not evaluated.
        """
        place = self.source.place_of(node)
        try:
            return Run(str(self.number(self._expression(node, start, end), place)), place)
        except Undecided as error:
            causes = tuple(dict.fromkeys(error.unknowns))
            return unknown_run(Unknown(shown, "", place, "a part of it is not known", causes))
        except NotArithmetic:
            return unknown_run(Unknown(shown, "", place, f"nbtrain does not evaluate {shown}"))

    def _expression(self, node: "Node", start: int, end: int) -> str:
        """Return the text of an arithmetic expression in which expansions are replaced by their values.

        Raises Undecided if one of the values is not known.
        """
        text, at = "", start
        for child in expansions_in(node):
            if child.start_byte < start or child.end_byte > end:
                continue
            text += self.source.slice(at, child.start_byte)
            runs = self.joined([self._expansion(child, True)])
            if unknowns := unknowns_of(runs):
                raise Undecided(*unknowns)
            text += text_of(runs)
            at = child.end_byte
        text += self.source.slice(at, end)
        return re.sub(r"\\\n|[\"']", "", text)

    def number(self, text: str, place: str) -> int:
        """Return the value of an arithmetic text whose expansions were already replaced.

        Raises NotArithmetic, or Undecided if a variable is not known.
        """

        def read(name: str) -> str:
            name, bracket, subscript = name.partition("[")
            values = self._elements(name, subscript[:-1] if bracket else "", place, False)
            if values is None:
                raise Undecided()
            runs = values[0] if values else ()
            if unknowns := unknowns_of(runs):
                raise Undecided(*unknowns)
            return text_of(runs)

        def assign(name: str, value: int) -> None:
            name, bracket, subscript = name.partition("[")
            runs = (Run(str(value), place),)
            if not bracket:
                self.shell.assign(name, text_variable(runs))
                return
            variable = self.shell.variable(name, place)
            key = self.key(variable, subscript[:-1], place)
            if key is None:
                raise Undecided()
            elements = dict(variable.elements) if variable and not variable.unknown else {}
            kind = variable.kind if variable and variable.kind == "table" else "list"
            self.shell.assign(name, Variable(elements | {key: runs}, kind))

        return Arithmetic(text, read, assign).value()


# --- helpers --------------------------------------------------------------------------------------------


def separator_pattern(separators: str) -> tuple[re.Pattern[str], str]:
    """Return the pattern of one separator between fields, and the whitespace characters in $IFS.

    Adjacent whitespace is one separator. Each other character is a separator together with the whitespace
    around it.
    """
    blanks = "".join(letter for letter in separators if letter in " \t\n")
    others = "".join(letter for letter in separators if letter not in " \t\n")
    blank, other = (f"[{re.escape(letters)}]" if letters else "(?!)" for letters in (blanks, others))
    return re.compile(f"{blank}*{other}{blank}*|{blank}+"), blanks


def _split(runs: Runs, separators: str) -> Iterator[tuple[bool, Run | None]]:
    """Split a value at the separators, and yield (whether a new word begins, the part of the word).

    An unknown part is never split.
    """
    if not separators:
        yield from ((False, run) for run in runs)
        return
    pattern, blanks = separator_pattern(separators)
    for run in runs:
        if run.unknown is not None or run.quoted:
            yield False, run
            continue
        position = 0
        for match in pattern.finditer(run.text):
            if match.start() > position:
                yield False, run._replace(text=run.text[position : match.start()])
            elif match.group(0).strip(blanks):
                yield False, run._replace(text="")
            yield True, None
            position = match.end()
        if position < len(run.text):
            yield False, run._replace(text=run.text[position:])


def _without_pattern(runs: Runs) -> Runs:
    """Return a word unchanged, or an unknown value if the word is a file pattern such as data/*.bin."""
    open_text = "".join("\0" if run.quoted or run.unknown else run.text for run in runs)
    if not FILE_PATTERN.search(open_text):
        return runs
    text, place = text_of(runs), next((run.place for run in runs if run.place), "")
    reason = f"bash replaces {text} with the names of the matching files"
    return (unknown_run(Unknown(text, "", place, reason, unknowns_of(runs))),)


def _closing(text: str, opening: int) -> int:
    """Return the position of the ] that closes the [ at `opening`; -1 if it is not closed."""
    depth = 0
    for at in range(opening, len(text)):
        depth += {"[": 1, "]": -1}.get(text[at], 0)
        if depth == 0:
            return at
    return -1


def _slash(rest: str, start: int) -> int:
    """Return the position of the / between pattern and replacement; without a /, the end of the text."""
    depth, quote, at = 0, "", start
    while at < len(rest):
        letter = rest[at]
        if letter == "\\":
            at += 2
            continue
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "{(":
            depth += 1
        elif letter in "})":
            depth -= 1
        elif letter == "/" and depth <= 0:
            return at
        at += 1
    return len(rest)


def _colon(text: str) -> tuple[str, str, str]:
    """Split the START:LENGTH of ${X:START:LENGTH} at the colon that is outside of brackets."""
    depth = questions = 0
    for at, letter in enumerate(text):
        depth += {"(": 1, "{": 1, "[": 1, ")": -1, "}": -1, "]": -1}.get(letter, 0)
        questions += letter == "?"
        if letter == ":" and depth == 0:
            if questions:
                questions -= 1
                continue
            return text[:at], ":", text[at + 1 :]
    return text, "", ""


def _trimmed(runs: Runs, operator: str, pattern: Runs) -> Runs:
    """Remove the shortest or longest prefix (#) or suffix (%) that matches a pattern."""
    text = text_of(runs)
    check_length(text)
    regex = re.compile(pattern_of(pattern), re.DOTALL)
    lengths = range(len(text) + 1)
    order = lengths if len(operator) == 1 else reversed(lengths)
    for length in order:
        cut = text[len(text) - length :] if operator[0] == "%" else text[:length]
        if regex.fullmatch(cut):
            kept = text[: len(text) - length] if operator[0] == "%" else text[length:]
            return (Run(kept, runs[0].place if runs else ""),)
    return runs


def _replaced(runs: Runs, operator: str, pattern: Runs, replacement: str) -> Runs:
    text = text_of(runs)
    check_length(text)
    regex = pattern_of(pattern)
    place = runs[0].place if runs else ""
    if not regex:
        whole = {"/#": replacement + text, "/%": text + replacement}.get(operator)
        return runs if whole is None else (Run(whole, place),)
    if not text:
        return (Run(replacement, place),) if re.fullmatch(regex, "") else runs
    if operator == "/#":
        regex = rf"\A(?:{regex})"
    elif operator == "/%":
        regex = rf"(?:{regex})\Z"
    pattern_found = re.compile(regex, re.DOTALL)
    result, position = "", 0
    while position < len(text):
        match = pattern_found.search(text, position)
        # Bash replaces no empty match within a text.
        while match is not None and match.end() == match.start() and match.start() < len(text):
            match = pattern_found.search(text, match.start() + 1)
        if match is None or match.start() == match.end():
            break
        result += text[position : match.start()] + replacement
        position = match.end()
        if operator != "//":
            break
    return (Run(result + text[position:], place),)


def _substring(runs: Runs, start: int, count: int | None, place: str) -> Runs:
    text = text_of(runs)
    if start < 0:
        start += len(text)
        if start < 0:
            return ()
    end = len(text) if count is None else start + count if count >= 0 else len(text) + count
    if count is not None and count < 0 and end < start:
        raise Undecided()
    return (Run(text[start:end], runs[0].place if runs else place),)


def _first_letter(runs: Runs, change: Callable[[str], str]) -> Runs:
    first = next((at for at, run in enumerate(runs) if run.text), None)
    if first is None:
        return runs
    text = runs[first].text
    return (*runs[:first], runs[first]._replace(text=change(text[0]) + text[1:]), *runs[first + 1 :])


def _ansi(text: str) -> str:
    """Return the text of $'...'."""

    def escaped(match: re.Match[str]) -> str:
        code = match.group(1)
        if code[0] in "xuU" and len(code) > 1:
            number = int(code[1:], 16)
            return chr(number) if number < 0x110000 else match.group(0)
        if code[0] in "01234567":
            return chr(int(code, 8) & 255)
        return _ESCAPES.get(code, code if code in "\\'\"?" else match.group(0))

    return re.sub(r"\\(x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{1,4}|U[0-9a-fA-F]{1,8}|[0-7]{1,3}|.)", escaped, text)


# A character of a word with its place, or a part that braces do not divide.
Letter = tuple[str, str] | Part


def _letters(parts: Iterable[Part]) -> list[Letter]:
    """Split the unquoted text of a word into characters. Its other parts are not split."""
    letters: list[Letter] = []
    for part in parts:
        if part.quoted or part.is_expansion:
            letters.append(part)
            continue
        for run in (run for value in part.values for run in value):
            if run.quoted or run.unknown:
                letters.append(Part([(run,)], False, False))
            else:
                letters += [(letter, run.place) for letter in run.text]
    return letters


def _joined_letters(letters: Sequence[Letter]) -> list[Part]:
    """Join the characters that _letters() returned, and return the parts of the word."""
    parts: list[Part] = []
    for key, group in itertools.groupby(
        letters, lambda letter: None if isinstance(letter, Part) else letter[1]
    ):
        if key is None:
            parts += [letter for letter in group if isinstance(letter, Part)]
        else:
            parts.append(Part([(Run("".join(str(letter[0]) for letter in group), key),)], False, False))
    return parts


def _expand_braces(letters: Sequence[Letter]) -> list[Sequence[Letter]]:
    """Expand {a,b} and {1..4} in a word, from left to right. Raises Undecided for too many words."""
    texts = ["" if isinstance(letter, Part) else letter[0] for letter in letters]
    if texts.count("{") > MOST_BRACES:
        raise Undecided()
    for start, text in enumerate(texts):
        if text != "{":
            continue
        depth, end = 0, start
        commas: list[int] = []
        options: list[Sequence[Letter]]
        for end in range(start, len(texts)):
            depth += {"{": 1, "}": -1}.get(texts[end], 0)
            if texts[end] == "," and depth == 1:
                commas.append(end)
            if not depth:
                break
        if depth:
            continue  # no } closes it
        if commas:
            cuts = itertools.pairwise([start, *commas, end])
            options = [option for first, last in cuts for option in _expand_braces(letters[first + 1 : last])]
        else:
            place = letters[start][1]
            numbers = _sequence("".join(texts[start + 1 : end])) if all(texts[start + 1 : end]) else None
            if numbers is None:
                continue
            options = [[(letter, str(place)) for letter in number] for number in numbers]
        rests = _expand_braces(letters[end + 1 :])
        if len(options) * len(rests) > MOST_NUMBERS:
            raise Undecided()
        return [[*letters[:start], *option, *rest] for option in options for rest in rests]
    return [letters]


def _sequence(inner: str) -> list[str] | None:
    """Return the texts in 1..4, 08..10..2 or a..e; None for another text. Raises Undecided for too many."""
    if match := re.fullmatch(r"(-?\d{1,9})\.\.(-?\d{1,9})(?:\.\.(-?\d{1,9}))?", inner):
        first, last = int(match.group(1)), int(match.group(2))
        step = abs(int(match.group(3) or 1)) or 1
        if abs(last - first) // step >= MOST_NUMBERS:
            raise Undecided()
        numbers = range(first, last + 1, step) if last >= first else range(first, last - 1, -step)
        width = max(len(group) for group in match.groups()[:2] if group)
        padded = any(re.match(r"-?0\d", group) for group in match.groups()[:2] if group)
        return [f"{number:0{width}d}" if padded else str(number) for number in numbers]
    if match := re.fullmatch(r"([a-z])\.\.([a-z])(?:\.\.(-?\d{1,9}))?|([A-Z])\.\.([A-Z])", inner):
        first, last = (ord(group) for group in match.group(1, 2, 4, 5) if group)
        step = (abs(int(match.group(3) or 1)) or 1) * (1 if last >= first else -1)
        return [chr(code) for code in range(first, last + (1 if step > 0 else -1), step)]
    return None
