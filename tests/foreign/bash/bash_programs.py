"""Small random bash programs of assignments, scopes, expansions, arithmetic and conditions.

They set variables only, so that real bash may run them: the values that nbtrain decides are compared with
what bash prints.
"""

import random

NAMES = ("a", "b", "c", "d")
LISTS = ("L", "M")
TEXTS = (
    "1",
    "4",
    "16",
    "0",
    "x",
    "gpt-7b",
    "a.b.c",
    "/data/x/y.txt",
    '"two words"',
    "'$a lit'",
    '""',
    "345M",
    "--tp",
    "1:2:3",
    "k=v",
    '"it\'s"',
    "a\\ b",
    "$'t\\tb'",
)
NUMBERS = ("0", "1", "2", "3", "7", "8", "16", "0x10", "010", "2#101")
OPERATORS = (
    "+",
    "-",
    "*",
    "/",
    "%",
    "**",
    "<<",
    ">>",
    "&",
    "|",
    "^",
    "==",
    "!=",
    "<",
    ">",
    "<=",
    ">=",
    "&&",
    "||",
)
PATTERNS = (
    "*",
    "?",
    "*.*",
    "/*",
    "*/",
    "x*",
    "[0-9]*",
    "*[!a-z]",
    "gpt-*",
    "*b",
    '"*"',
    "a|1",
    "345?",
    "@(x|y)*",
)


class Programs:
    """Draws programs from a seed."""

    def __init__(self, seed: int):
        self.chance = random.Random(seed)
        self.depth = 0
        self.counter = "i"
        """Start of the names of loops' counters; a function has others than its callers."""
        self.loops = 0

    def program(self) -> str:
        """Return a program that ends by printing every variable, quoted and split."""
        lines = ["shopt -s extglob; set -f", *(f"{name}={self.literal()}" for name in NAMES)]
        lines += [
            f"{name}=({' '.join(self.literal() for _ in range(self.chance.randint(0, 4)))})" for name in LISTS
        ]
        word = f'"{self.expansion_in_quotes()}"'
        self.counter = "j"
        lines.append(f"f() {{ local {self.name()}={word}; {self.statement()}; }}")
        self.counter = "i"
        lines += [self.statement() for _ in range(self.chance.randint(2, 9))]
        shown = [f'"${{{name}-unset}}"' for name in NAMES] + [f'"${{{name}[@]}}"' for name in LISTS]
        shown += [f"${name}" for name in NAMES] + [f"${{{name}[*]}}" for name in LISTS]
        shown += [f'"${{#{name}[@]}}"' for name in LISTS] + [self.word(), self.word()]
        return "\n".join([*lines, f"run {' '.join(shown)}"])

    def pick(self, *options: str) -> str:
        return self.chance.choice(options)

    def name(self) -> str:
        return self.chance.choice(NAMES)

    def literal(self) -> str:
        return self.chance.choice(TEXTS)

    def pattern(self) -> str:
        return self.chance.choice(PATTERNS)

    def sum(self) -> str:
        """Return an arithmetic expression without division by zero or negative powers."""
        kind = self.chance.randint(0, 9)
        if kind < 3 or self.depth > 3:
            return self.chance.choice(NUMBERS)
        self.depth += 1
        left, right = self.sum(), self.sum()
        self.depth -= 1
        operator = self.chance.choice(OPERATORS)
        if operator in ("/", "%"):
            right = self.pick("3", "7", "2")
        if operator in ("**", "<<", ">>"):
            right = self.pick("0", "1", "3")
        if kind == 3:
            return f"{left} > 1 ? {right} : {left}"
        if kind == 4:
            return f"({left} {operator} {right})"
        if kind == 5:
            return f"{self.pick('-', '!', '~', '+')}({left})"
        return f"{left} {operator} {right}"

    def expansion(self) -> str:
        name, plain = self.name(), self.literal()
        short = self.pick("0", "1", "2", "3", " -1", " -2")
        return self.pick(
            f"${name}",
            f"${{{name}}}",
            f"${{{name}:-{plain}}}",
            f"${{{name}-{plain}}}",
            f"${{{name}:+{plain}}}",
            f"${{{name}:=z}}",
            f"${{#{name}}}",
            f"${{{name}%{self.pattern()}}}",
            f"${{{name}%%{self.pattern()}}}",
            f"${{{name}#{self.pattern()}}}",
            f"${{{name}##{self.pattern()}}}",
            f"${{{name}/{self.pick('a', 'x', '.', '?', '[0-9]')}/{self.pick('Z', '', '$b')}}}",
            f"${{{name}//{self.pick('a', '1', '/', '*', '[a-z]')}/-}}",
            f"${{{name}:{short}}}",
            f"${{{name}:{self.pick('0', '1')}:{self.pick('1', '2', '5')}}}",
            f"${{{name}^^}}",
            f"${{{name},,}}",
            f"${{{name}^}}",
            f"${{{self.pick(*LISTS)}[{self.pick('0', '1', '2')}]}}",
            f"${{{self.pick(*LISTS)}[@]}}",
            f"${{#{self.pick(*LISTS)}[@]}}",
            f"${{{self.pick(*LISTS)}[@]:{self.pick('0', '1', '2')}}}",
            f"${{{self.pick(*LISTS)}[@]/x/y}}",
            f"${{{self.pick(*LISTS)}[@]/{self.pick('#', '%')}/-}}",
            f"${{{self.pick(*LISTS)}[*]:{self.pick('1', ' -1', ' -2')}}}",
            f"${{{self.pick(*LISTS)}[{self.pick('0', '3')}]-none}}",
            f"$([ ${name} = 1 ] && echo {plain}; {{ echo log >&2; }} 2>/dev/null)",
            f"$(({self.sum()}))",
            f"$(echo {plain})",
            f"$(printf '%s-%d' {self.pick('x', '7')} 5)",
            f"`echo ${name}`",
        )

    def word(self) -> str:
        return self.pick(
            self.literal(),
            self.expansion(),
            f'"{self.expansion_in_quotes()}"',
            f"pre-{self.expansion()}-post",
            f'"a {self.expansion_in_quotes()} b"',
            f'{{{self.literal()},"{self.expansion_in_quotes()}"}}' + self.pick("", "-{1..3}", "{x,{y,z}}"),
        )

    def expansion_in_quotes(self) -> str:
        while True:
            text = self.expansion()
            if '"' not in text and "'" not in text and "\\" not in text:
                return text

    def condition(self) -> str:
        name = self.name()
        number = self.pick("0", "1", "4", "16")
        return self.pick(
            f'[ "${name}" = {self.pick("1", "x", "345M")} ]',
            f'[ "${name}" != {self.pick("1", "x", "345M")} ]',
            f'[ -z "${name}" ]',
            f'[ -n "${name}" ]',
            f"[[ -n ${name} && ${name} != x ]]",
            f"[[ ${name} == {self.pattern()} ]]",
            f"[[ ${name} != {self.pattern()} || -z ${name} ]]",
            f"[[ ! ${name} == x ]]",
            f"[ ${{#{name}}} -gt {number} ]",
            f"[[ ${{#{name}}} -le {number} ]]",
            f"(( {self.sum()} ))",
            f"(( ${{#{name}}} > {number} ))",
            "true",
            "false",
            f'[ "${name}" = 1 -o -z "${self.name()}" ]',
            f'! [ "${name}" = x ]',
            f"[[ ${name} =~ ^[0-9]+$ ]]",
            f'[[ " ${{L[*]}} " =~ " ${name} " ]]',
        )

    def block(self) -> str:
        self.depth += 1
        text = "; ".join(self.statement() for _ in range(self.chance.randint(1, 2)))
        self.depth -= 1
        return text

    def statement(self) -> str:
        name, kind = self.name(), self.chance.randint(0, 27 if self.depth < 3 else 9)
        if kind <= 3:
            return f"{name}={self.word()}"
        if kind == 4:
            return f"{name}+={self.word()}"
        if kind == 5:
            return f"{self.pick(*LISTS)}+=({self.word()} {self.word()})"
        if kind == 6:
            return f"{self.pick(*LISTS)}[{self.pick('0', '1', '3')}]={self.word()}"
        if kind == 7:
            return f"(( {name} = {self.sum()} ))"
        if kind == 8:
            return f"{name}=$(({self.sum()}))"
        if kind == 9:
            return f"export {name}={self.literal()}"
        if kind == 10:
            return f"if {self.condition()}; then {self.block()}; else {self.block()}; fi"
        if kind == 11:
            branch = f"elif {self.condition()}; then {self.block()}; fi"
            return f"if {self.condition()}; then {self.block()}; {branch}"
        if kind == 12:
            arms = " ".join(f"{self.pick(self.pattern(), 'x|1', '*')}) {self.block()};;" for _ in range(3))
            return f'case "${name}" in {arms} esac'
        if kind == 13:
            words = " ".join(self.word() for _ in range(self.chance.randint(1, 3)))
            leave = self.pick("", "", f"; if [ $i = x ]; then {self.pick('break', 'continue')}; fi")
            return f"for i in {words}; do {self.block()}{leave}; {name}+=$i; done"
        if kind == 14:
            i, end = f"{self.counter}{self.depth}", self.pick("0", "2", "3")
            return f"for (({i}=0; {i}<{end}; {i}++)); do {name}+=${i}; {self.block()}; done"
        if kind == 15:
            return f"( {self.block()} )"
        if kind == 16:
            return f"{self.block_in_braces()} | cat"
        if kind == 17:
            return f"{name}={self.word()} true"
        if kind == 18:
            return f"{self.condition()} && {name}={self.word()}"
        if kind == 19:
            return f"{self.condition()} || {{ {self.block()}; }}"
        if kind == 20 and self.counter == "j":
            return "true"  # a function that calls itself would not end
        if kind == 20:
            return f"f {self.literal()}"
        if kind == 21:
            return f'set -- {self.literal()} {self.literal()}; {name}=$1; shift; {self.name()}="$*"'
        if kind == 22:
            return f'eval "{name}=\\$((1+2))"'
        if kind == 23:
            return f"g() {{ local {name}={self.literal()} {self.name()}=${name}; {self.block()}; }}; g"
        if kind == 24:
            lines = "\\n".join(self.pick("1 2 3", "x y", " a", "", "k:v:") for _ in range(3))
            body = f"{self.name()}+=$p; {self.block()}"
            return f"while {self.pick('', 'IFS=: ')}read -r p {name}; do {body}; done <<< $'{lines}'"
        if kind == 25:
            return f"{name}=$({self.condition()}) {self.pick('&&', '||')} {self.name()}={self.word()}"
        if kind == 26:
            return f'export {name}={self.literal()} {self.name()}="${name}"'
        return self.pick(
            f"unset {name}",
            f"unset {self.pick(*LISTS)}[{self.pick('0', '1')}]",
            f"{name}=$({self.name()}=9; echo ${self.name()})",
            f"let {name}=3+4",
        )

    def block_in_braces(self) -> str:
        return f"{{ {self.block()}; }}"
