"""Arithmetic and conditions of a shell script: `$((A * B))`, `[ ... ]`, and commands joined by && and ||."""

import ast
import fnmatch
from collections.abc import Sequence

from nbtrain.foreign.located import Word

_OPERATIONS = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    # The shell rounds towards zero.
    ast.Div: lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    ast.Mod: lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
}
# The shell counts in 64 bits.
MOST_VALUE = 2**63


def evaluate(node: ast.expr) -> int:
    """Evaluate integer arithmetic. Raises ValueError for anything else."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub | ast.UAdd):
        value = evaluate(node.operand)
        return -value if isinstance(node.op, ast.USub) else value
    if isinstance(node, ast.BinOp):
        left, right = evaluate(node.left), evaluate(node.right)
        if abs(left) > MOST_VALUE or abs(right) > MOST_VALUE:
            raise ValueError("a value exceeds the shell's 64-bit integers")
        if type(node.op) in _OPERATIONS:
            return _OPERATIONS[type(node.op)](left, right)
        if isinstance(node.op, ast.Pow) and 0 <= right <= 64:
            return left**right
    raise ValueError("not integer arithmetic")


_COMPARISONS = {
    "-eq": lambda a, b: a == b,
    "-ne": lambda a, b: a != b,
    "-lt": lambda a, b: a < b,
    "-le": lambda a, b: a <= b,
    "-gt": lambda a, b: a > b,
    "-ge": lambda a, b: a >= b,
}


def _matches(text: str, pattern: str) -> bool | None:
    """Return whether `[[ text == pattern ]]` holds; None if that depends on whether a * is quoted."""
    if "[" in pattern:
        return None
    wild = fnmatch.fnmatchcase(text, pattern)
    return wild if wild == (text == pattern) else None


def holds(words: list[Word]) -> bool | None:
    """Return whether `[ ... ]` holds; None if that cannot be known here."""
    texts = [word.text for word in words]
    if not texts or texts[0] not in ("[", "[[", "test") or any(word.from_outside for word in words):
        return None
    pattern = texts[0] == "[["
    texts = texts[1:-1] if texts[-1] in ("]", "]]") else texts[1:]
    negated = bool(texts) and texts[0] == "!"
    texts = texts[1:] if negated else texts
    result: bool | None = None
    if len(texts) == 3 and texts[1] in ("=", "==", "!="):
        equal = _matches(texts[0], texts[2]) if pattern else texts[0] == texts[2]
        result = None if equal is None else equal == (texts[1] != "!=")
    elif len(texts) == 3 and texts[1] in _COMPARISONS:
        try:
            result = _COMPARISONS[texts[1]](int(texts[0]), int(texts[2]))
        except ValueError:
            return None
    elif len(texts) == 2 and texts[0] in ("-z", "-n"):
        result = (texts[1] == "") == (texts[0] == "-z")
    return None if result is None else result != negated


# Commands run for their exit status, which cannot be known here; all others are taken to succeed.
QUESTIONS = {"egrep", "grep", "command", "which", "type", "pgrep", "diff", "cmp", "false", "!", "?"}


def succeeds(words: list[Word]) -> bool | None:
    """Return whether a command succeeds; None if that cannot be known here."""
    head, last = words[0].text, words[-1].text
    if head in ("[", "[[", "test"):
        return holds(words)
    if last in ("]", "]]") or head in QUESTIONS or words[0].from_outside:
        return None
    return True


def joined(so_far: bool | None, operator: str, further: bool | None) -> bool | None:
    """Return the result of `A && B` or `A || B`."""
    decisive = operator == "||"
    if so_far is decisive or further is decisive:
        return decisive
    return None if so_far is None or further is None else not decisive


def chain(conditions: Sequence[list[Word]]) -> bool | None:
    """Return the result of conditions joined by the words && or ||; None if it cannot be known here."""
    if not conditions:
        return None
    answer = holds(conditions[0])
    for at in range(1, len(conditions), 2):
        operator = conditions[at][0].text
        if operator not in ("&&", "||") or at + 1 == len(conditions):
            return None
        answer = joined(answer, operator, holds(conditions[at + 1]))
    return answer
