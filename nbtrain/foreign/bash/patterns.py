"""Matches bash patterns (case, [[ == ]], ${X%...}), and evaluates the conditions of [ ... ] and [[ ... ]]."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from nbtrain.foreign.bash.variables import Runs, text_of, unknowns_of
from nbtrain.foreign.syntax.located import Unknown

_CLASSES = {
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "alnum": "a-zA-Z0-9",
    "space": r"\s",
    "upper": "A-Z",
    "lower": "a-z",
    "xdigit": "0-9a-fA-F",
    "blank": r" \t",
    "word": r"\w",
}


# Maximum number of characters in a text or a pattern. Whether a longer one matches counts as unknown.
MOST_CHARACTERS = 2000
MOST_STARS = 4


class Undecided(Exception):
    """Raised when a result depends on a value that only the running shell knows.

    `unknowns` holds the values that the result depends on. `reason` is a clause about nbtrain's limit that a
    value exceeds; "" if no limit is exceeded.
    """

    def __init__(self, *unknowns: Unknown, reason: str = ""):
        super().__init__(*unknowns)
        self.unknowns, self.reason = unknowns, reason


def check_length(text: str) -> None:
    """Raise Undecided if a text is too long to be compared with a pattern."""
    if len(text) > MOST_CHARACTERS:
        raise Undecided(
            reason=f"its value has {len(text):,} characters, and nbtrain compares at most "
            f"{MOST_CHARACTERS:,} with a pattern"
        )


def pattern_of(runs: Runs, greedy: bool = True) -> str:
    """Return a pattern as a regular expression. Quoted characters stand for themselves.

    Raises Undecided if a part is unknown, or if the pattern has a form that is not evaluated (`!(...)`).
    """
    if unknowns := unknowns_of(runs):
        raise Undecided(*unknowns)
    characters = [(letter, run.quoted) for run in runs for letter in run.text]
    if len(characters) > MOST_CHARACTERS:
        raise Undecided(
            reason=f"its pattern has {len(characters):,} characters, and nbtrain reads at most "
            f"{MOST_CHARACTERS:,}"
        )
    # Several * in a row are treated as one, because the search would otherwise take too long.
    kept = [
        pair
        for at, pair in enumerate(characters)
        if pair != ("*", False) or characters[at - 1 : at] != [pair]
    ]
    stars = sum(pair == ("*", False) for pair in kept)
    if stars > MOST_STARS:
        raise Undecided(reason=f"its pattern has {stars} asterisks, and nbtrain reads at most {MOST_STARS}")
    return _regex(kept, greedy)


def _regex(characters: Sequence[tuple[str, bool]], greedy: bool) -> str:
    result, position, many = "", 0, ".*" if greedy else ".*?"
    while position < len(characters):
        letter, quoted = characters[position]
        position += 1
        following = characters[position] if position < len(characters) else ("", True)
        if quoted:
            result += re.escape(letter)
        elif letter in "@?*+!" and following == ("(", False):
            end, depth = position + 1, 1
            while end < len(characters) and depth:
                depth += {("(", False): 1, (")", False): -1}.get(characters[end], 0)
                end += 1
            if depth or letter == "!":
                raise Undecided()
            parts: list[list[tuple[str, bool]]] = [[]]
            for character in characters[position + 1 : end - 1]:
                if character == ("|", False):
                    parts.append([])
                else:
                    parts[-1].append(character)
            inner = "|".join(_regex(part, greedy) for part in parts)
            result += f"(?:{inner})" + {"@": "", "?": "?", "*": "*", "+": "+"}[letter]
            position = end
        elif letter == "*":
            result += many
        elif letter == "?":
            result += "."
        elif letter == "[":
            end = position
            if end < len(characters) and characters[end][0] in "!^":
                end += 1
            if end < len(characters) and characters[end][0] == "]":
                end += 1
            while end < len(characters) and (
                characters[end][0] != "]" or _in_class(characters, position, end)
            ):
                end += 1
            if end == len(characters):
                result += r"\["
                continue
            inner = "".join(letter for letter, _ in characters[position:end])
            result += _bracket(inner)
            position = end + 1
        else:
            result += re.escape(letter)
    return result


def _in_class(characters: Sequence[tuple[str, bool]], start: int, end: int) -> bool:
    """Return whether the ] at `end` ends a class such as [:alpha:], not the brackets around the class."""
    text = "".join(letter for letter, _ in characters[start:end])
    return bool(re.search(r"\[:\w*:\Z", text))


def _bracket(inner: str) -> str:
    negated = inner[:1] in ("!", "^")
    inner = inner[1:] if negated else inner
    parts = re.split(r"\[:(\w+):\]", inner)
    text = ""
    for number, part in enumerate(parts):
        if number % 2:
            if part not in _CLASSES:
                raise Undecided()
            text += _CLASSES[part]
        else:
            text += re.sub(r"([\\\[\]^&~|])", r"\\\1", part)
    try:
        re.compile(f"[{text}]")
    except re.error:
        raise Undecided() from None
    return f"[{'^' if negated else ''}{text}]"


def matches(runs: Runs, pattern: Runs) -> bool:
    """Return whether the whole text matches a pattern."""
    regex = pattern_of(pattern)
    if unknowns := unknowns_of(runs):
        # A known text around the unknown part may decide that it cannot match.
        if text_of(pattern) == "*" and not pattern[0].quoted:
            return True
        raise Undecided(*unknowns)
    check_length(text_of(runs))
    return re.fullmatch(regex, text_of(runs), re.DOTALL) is not None


@dataclass(frozen=True, slots=True)
class Token:
    """A word or an operator of a condition."""

    text: str
    runs: Runs | None = None
    """The value of a word; None for an operator."""


_COMPARISONS: dict[str, Callable[[int, int], bool]] = {
    "-eq": lambda left, right: left == right,
    "-ne": lambda left, right: left != right,
    "-lt": lambda left, right: left < right,
    "-le": lambda left, right: left <= right,
    "-gt": lambda left, right: left > right,
    "-ge": lambda left, right: left >= right,
}
_STRINGS = {"=", "==", "!=", "=~", "<", ">"}
# Tests of files, descriptors and options, which only the running shell can answer.
_FILES = set("abcdefghkoprstuwxvGLNORS")


class Condition:
    """Evaluator of the words in [ ... ], or in [[ ... ]] if `double` is set.

    `number` evaluates a text as arithmetic, and `is_set` returns whether a variable is set.
    """

    def __init__(
        self,
        tokens: Sequence[Token],
        double: bool,
        number: Callable[[str], int],
        is_set: Callable[[str], bool],
    ):
        self.tokens, self.double, self.number, self.is_set = tokens, double, number, is_set
        self.position = 0

    def holds(self) -> bool:
        """Return whether the condition holds. Raises Undecided if only the running shell knows."""
        if not self.double:
            return self._words([token.runs or () for token in self.tokens])
        result = self._either()
        if self.position < len(self.tokens):
            raise Undecided()
        return result

    # --- [[ ... ]] ----------------------------------------------------------------------------------

    def _operator(self, *texts: str) -> bool:
        if self.position < len(self.tokens):
            token = self.tokens[self.position]
            if token.runs is None and token.text in texts:
                self.position += 1
                return True
        return False

    def _attempt(self, part: Callable[[], bool]) -> bool | Undecided:
        try:
            return part()
        except Undecided as error:
            return error

    def _either(self) -> bool:
        parts = [self._attempt(self._every)]
        while self._operator("||"):
            parts.append(self._attempt(self._every))
        return _decided(parts, True)

    def _every(self) -> bool:
        parts = [self._attempt(self._single)]
        while self._operator("&&"):
            parts.append(self._attempt(self._single))
        return _decided(parts, False)

    def _single(self) -> bool:
        if self._operator("!"):
            return not self._single()
        if self._operator("("):
            result = self._attempt(self._either)
            self._operator(")")
            return _decided([result], True)
        primary: list[Token] = []
        while self.position < len(self.tokens):
            token = self.tokens[self.position]
            if token.runs is None and token.text in ("&&", "||", ")"):
                break
            primary.append(token)
            self.position += 1
        if len(primary) == 1:
            return bool(_known(primary[0].runs or ()))
        if len(primary) == 2 and primary[0].runs is None:
            return self._unary(primary[0].text, primary[1].runs or ())
        if len(primary) == 3 and primary[1].runs is None:
            return self._binary(primary[0].runs or (), primary[1].text, primary[2].runs or ())
        raise Undecided(*(unknown for token in primary for unknown in unknowns_of(token.runs or ())))

    # --- [ ... ] ------------------------------------------------------------------------------------

    def _words(self, words: list[Runs]) -> bool:
        """Evaluate the words of [ ... ] by their count, as POSIX specifies."""
        texts = [text_of(runs) for runs in words]
        if any(_may_be_more(runs) for runs in words):
            raise Undecided(*(unknown for runs in words for unknown in unknowns_of(runs)))
        for joining, decisive in (("-o", True), ("-a", False)):
            places = [at for at, text in enumerate(texts) if text == joining and 0 < at < len(texts) - 1]
            if places and len(texts) > 3:
                at = places[0]
                sides = (words[:at], words[at + 1 :])
                return _decided([self._attempt(partial(self._words, side)) for side in sides], decisive)
        if not words:
            return False
        if len(words) == 1:
            return bool(_known(words[0]))
        if len(words) == 3 and (texts[1] in _STRINGS or texts[1] in _COMPARISONS or _is_file_pair(texts[1])):
            return self._binary(words[0], texts[1], words[2])
        if texts[0] == "!":
            return not self._words(words[1:])
        if texts[0] == "(" and texts[-1] == ")":
            return self._words(words[1:-1])
        if len(words) == 2 and texts[0][:1] == "-":
            return self._unary(texts[0], words[1])
        raise Undecided(*(unknown for runs in words for unknown in unknowns_of(runs)))

    # --- both ---------------------------------------------------------------------------------------

    def _unary(self, operator: str, runs: Runs) -> bool:
        if operator in ("-z", "-n"):
            if any(run.text for run in runs if not run.unknown or run.unknown.is_set):
                return operator == "-n"
            return (_known(runs) == "") == (operator == "-z")
        if operator == "-v":
            return self.is_set(_known(runs))
        raise Undecided(*unknowns_of(runs))

    def _binary(self, left: Runs, operator: str, right: Runs) -> bool:
        if operator in _COMPARISONS:
            numbers = []
            for runs in (left, right):
                text = _known(runs).strip()
                if self.double:
                    numbers.append(self.number(text))
                elif re.fullmatch(r"[-+]?\d{1,19}", text):
                    numbers.append(int(text))
                else:
                    raise Undecided()
            return _COMPARISONS[operator](*numbers)
        if operator in ("=", "==", "!="):
            if self.double:
                return matches(left, right) == (operator != "!=")
            return (_known(left) == _known(right)) == (operator != "!=")
        if operator == "=~":
            return _searched(left, right)
        if operator in ("<", ">"):
            first, second = _known(left), _known(right)
            return first < second if operator == "<" else first > second
        raise Undecided(*unknowns_of(left), *unknowns_of(right))


def _is_file_pair(text: str) -> bool:
    return text in ("-nt", "-ot", "-ef")


def _known(runs: Runs) -> str:
    if unknowns := unknowns_of(runs):
        raise Undecided(*unknowns)
    return text_of(runs)


def _may_be_more(runs: Runs) -> bool:
    """Return whether the shell may split a word into several, or drop it."""
    return any(run.unknown and not run.quoted for run in runs) and all(
        run.unknown or not run.text for run in runs
    )


def _searched(runs: Runs, pattern: Runs) -> bool:
    """Return whether [[ text =~ pattern ]] holds. Quoted parts of the pattern stand for themselves."""
    text = _known(runs)
    _known(pattern)
    regex = "".join(re.escape(run.text) if run.quoted else run.text for run in pattern)
    if re.search(r"\\[<>bByw]|\(\?|[*+?}]\+", regex):
        raise Undecided()
    regex = re.sub(r"\[\[:(\w+):\]\]", lambda found: f"[{_CLASSES.get(found.group(1), '')}]", regex)
    regex = re.sub(r"\[:(\w+):\]", lambda found: _CLASSES.get(found.group(1), ""), regex)
    if len(text) > 1000 or len(regex) > 200 or re.search(r"[*+}]\)*[*+{]|\[[^]]*(\[|--|&&|~~|\|\|)", regex):
        raise Undecided()
    try:
        return re.search(regex, text) is not None
    except re.error:
        raise Undecided() from None


def _decided(parts: Sequence[bool | Undecided], decisive: bool) -> bool:
    """Return the result of joining parts by || or &&. `decisive` is True for ||, and False for &&.

    Raises Undecided if the result depends on an undecided part.
    """
    if any(part is decisive for part in parts):
        return decisive
    unknowns = [part for part in parts if isinstance(part, Undecided)]
    if unknowns:
        raise Undecided(*(unknown for error in unknowns for unknown in error.unknowns))
    return not decisive
