"""Evaluates bash arithmetic on 64-bit integers: $(( ... )), (( ... )), let, and the numbers of [[ -eq ]]."""

import re
from collections.abc import Callable

_TOKEN = re.compile(
    r"\s*(\d+#[0-9a-zA-Z@_]+|0[xX][0-9a-fA-F]+|\d+|[A-Za-z_]\w*(?:\[[^\]]*\])?|"
    r"<<=|>>=|\*\*|\+\+|--|&&|\|\||<<|>>|[-+*/%&|^<>=!]=|[-+*/%&|^<>=!~?:(),])"
)
# Precedence of the binary operators; ** is right-associative.
_STRENGTH = {
    ",": 1,
    "||": 4,
    "&&": 5,
    "|": 6,
    "^": 7,
    "&": 8,
    **dict.fromkeys(("==", "!="), 9),
    **dict.fromkeys(("<", ">", "<=", ">="), 10),
    **dict.fromkeys(("<<", ">>"), 11),
    **dict.fromkeys(("+", "-"), 12),
    **dict.fromkeys(("*", "/", "%"), 13),
    "**": 14,
}
_ASSIGNING = {"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}
MOST_DEPTH = 40


class NotArithmetic(ValueError):
    """Raised for a text that bash arithmetic rejects, such as a division by zero."""


def wrapped(value: int) -> int:
    """Wrap a number around to a signed 64-bit integer."""
    return (value + 2**63) % 2**64 - 2**63


class Arithmetic:
    """Evaluator of one arithmetic expression.

    `read` returns the text of a variable, and `assign` sets a variable. A name may have a subscript: A[2].
    """

    def __init__(
        self,
        text: str,
        read: Callable[[str], str],
        assign: Callable[[str, int], None],
        depth: int = 0,
    ):
        self.read, self.assign, self.depth = read, assign, depth
        self.tokens: list[str] = []
        self.position = 0
        self.skips = 0
        """Number of enclosing subexpressions that are not evaluated, such as the right side of 0 && ..."""
        end = 0
        while text[end:].strip():
            match = _TOKEN.match(text, end)
            if not match or depth > MOST_DEPTH:
                raise NotArithmetic(f"{text[end:].strip()} is not an arithmetic expression")
            self.tokens.append(match.group(1))
            end = match.end()

    def value(self) -> int:
        """Return the value of the expression; 0 if it is empty."""
        if not self.tokens:
            return 0
        result = self._expression(0)
        if self.position < len(self.tokens):
            raise NotArithmetic(f"{self.tokens[self.position]} is not expected after an expression")
        return result

    def _next(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def _take(self) -> str:
        token = self._next()
        self.position += 1
        return token

    def _number(self, token: str) -> int:
        base, hash_sign, digits = token.partition("#")
        if hash_sign:
            letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ@_"
            digits, result = digits.lower() if int(base) <= 36 else digits, 0
            for digit in digits:
                if not 2 <= int(base) <= 64 or letters.index(digit) >= int(base):
                    raise NotArithmetic(f"{token} is not a number of base {base}")
                result = result * int(base) + letters.index(digit)
            return wrapped(result)
        if len(token) > 400:
            raise NotArithmetic("the number has more than 400 digits")
        if token[:2].lower() == "0x":
            return wrapped(int(token, 16))
        if token.startswith("0") and len(token) > 1:
            if re.search("[89]", token):
                raise NotArithmetic(
                    f"{token} is octal, because it begins with 0, and must not contain 8 or 9"
                )
            return wrapped(int(token, 8))
        return wrapped(int(token))

    def _variable(self, name: str) -> int:
        if self.skips:
            return 0
        return Arithmetic(self.read(name), self.read, self.assign, self.depth + 1).value()

    def _operand(self) -> int:
        token = self._take()
        if token in ("+", "-", "!", "~"):
            value = self._expression(15)
            return {"+": value, "-": wrapped(-value), "!": int(not value), "~": ~value}[token]
        if token in ("++", "--"):
            if re.match(r"[A-Za-z_]", self._next()):
                return self._change(self._take(), 1 if token == "++" else -1)
            value = self._expression(15)
            return value
        if token == "(":
            value = self._expression(0)
            if self._take() != ")":
                raise NotArithmetic(") is missing")
            return value
        if token[:1].isdigit():
            return self._number(token)
        if not re.match(r"[A-Za-z_]", token):
            raise NotArithmetic(f"a value is missing before {token or 'the end'}")
        if self._next() in _ASSIGNING:
            return self._assignment(token)
        if self._next() in ("++", "--"):
            change = 1 if self._take() == "++" else -1
            return wrapped(self._change(token, change) - change)
        return self._variable(token)

    def _change(self, name: str, by: int) -> int:
        value = wrapped(self._variable(name) + by)
        if not self.skips:
            self.assign(name, value)
        return value

    def _assignment(self, name: str) -> int:
        operator = self._take()[:-1]
        right = self._expression(2)
        value = self._apply(operator, self._variable(name), right) if operator else right
        if not self.skips:
            self.assign(name, value)
        return value

    def _apply(self, operator: str, left: int, right: int) -> int:
        if self.skips:
            return 0
        if operator in ("/", "%"):
            if right == 0:
                raise NotArithmetic("division by 0")
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            return wrapped(quotient if operator == "/" else left - quotient * right)
        if operator == "**":
            if right < 0:
                raise NotArithmetic("the exponent is less than 0")
            return wrapped(pow(left, right, 2**64))
        if operator in ("<<", ">>"):
            right &= 63
        result = {
            "+": lambda: left + right,
            "-": lambda: left - right,
            "*": lambda: left * right,
            "<<": lambda: left << right,
            ">>": lambda: left >> right,
            "&": lambda: left & right,
            "|": lambda: left | right,
            "^": lambda: left ^ right,
            "==": lambda: int(left == right),
            "!=": lambda: int(left != right),
            "<": lambda: int(left < right),
            ">": lambda: int(left > right),
            "<=": lambda: int(left <= right),
            ">=": lambda: int(left >= right),
            ",": lambda: right,
        }[operator]()
        return wrapped(result)

    def _skipped(self, strength: int, skip: bool) -> int:
        """Evaluate a subexpression, such as the B of A && B. If `skip` is set, it assigns no variable."""
        self.skips += skip
        value = self._expression(strength)
        self.skips -= skip
        return value

    def _expression(self, least: int) -> int:
        """Return the value of operands that are joined by operators of precedence `least` or higher."""
        self.depth += 1
        if self.depth > MOST_DEPTH * 10:
            raise NotArithmetic("the expression is nested too deeply")
        left = self._operand()
        while operator := self._next():
            if operator == "?" and least <= 3:
                self._take()
                first = self._skipped(0, not left)
                if self._take() != ":":
                    raise NotArithmetic("the : of A ? B : C is missing")
                second = self._skipped(3, bool(left))
                left = first if left else second
                continue
            strength = _STRENGTH.get(operator, -1)
            if strength < max(least, 0) or strength < 0:
                break
            self._take()
            if operator in ("&&", "||"):
                right = self._skipped(strength + 1, bool(left) == (operator == "||"))
                left = int(bool(left) and bool(right) if operator == "&&" else bool(left) or bool(right))
            else:
                right = self._expression(strength if operator == "**" else strength + 1)
                left = self._apply(operator, left, right)
        self.depth -= 1
        return left
