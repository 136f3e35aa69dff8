"""Computes the output of harmless commands on known values: echo, printf, basename, seq, cut, tr, wc.

The commands are not run; their output is computed here. The output of any other command is unknown.
"""

import re
from collections.abc import Callable, Sequence

from nbtrain.foreign.bash.arithmetic import Arithmetic, NotArithmetic

# Maximum number of characters of an output. A longer output counts as unknown.
MOST_CHARACTERS = 200_000
MOST_NUMBERS = 10_000


class NotComputed(Exception):
    """Raised for a command, or a form of it, whose output only the running shell knows."""


def output_of(words: Sequence[str], stdin: str | None) -> str:
    """Return a command's output for an input. Raises NotComputed if the command is not supported."""
    name = words[0].rpartition("/")[2] if words else ""
    computed = _COMMANDS.get(name)
    if computed is None:
        raise NotComputed
    try:
        text = computed(list(words[1:]), stdin)
    except (ValueError, IndexError, OverflowError, re.error, NotArithmetic):
        raise NotComputed from None
    if len(text) > MOST_CHARACTERS:
        raise NotComputed
    return text


def _input(stdin: str | None) -> str:
    if stdin is None:
        raise NotComputed
    return stdin


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


def _together(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _echo(words: list[str], _: str | None) -> str:
    ending, escapes = "\n", False
    while words and re.fullmatch(r"-[neE]+", words[0]):
        ending = "" if "n" in words[0] else ending
        escapes = "e" in words[0] or escapes
        words = words[1:]
    text = " ".join(words)
    return (_unescaped(text) if escapes else text) + ending


def _unescaped(text: str) -> str:
    letters = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}
    if re.search(r"(?<!\\)(\\\\)*\\[0-9xuUabcefv]", text):
        raise NotComputed
    return re.sub(r"\\(.)", lambda match: letters.get(match.group(1), match.group(0)), text)


def _printf(words: list[str], _: str | None) -> str:
    if words[:1] == ["--"]:
        words = words[1:]
    form, values = _unescaped(words[0]), list(words[1:])
    if not re.search(r"%[^%]", form):
        return form.replace("%%", "%")
    text = ""
    while True:
        position = 0
        for match in re.finditer(r"%(?:%|([-0 +#]*)(\d*)(?:\.(\d+))?([sdiufxX]))|%", form):
            text += form[position : match.start()]
            position = match.end()
            if match.group(0) == "%%":
                text += "%"
                continue
            if match.group(4) is None or int(match.group(2) or 0) > 1000 or int(match.group(3) or 0) > 100:
                raise NotComputed
            value = values.pop(0) if values else ("" if match.group(4) == "s" else "0")
            flags, width, digits, kind = match.groups()
            options = f"%{flags}{width}{'.' + digits if digits is not None else ''}"
            if kind == "s":
                text += f"{options}s" % value
            elif kind == "f":
                text += f"{options}f" % float(value or 0)
            else:
                if re.match(r"[-+]?0\d", value):
                    raise NotComputed  # an octal number
                text += f"{options}{'d' if kind in 'iu' else kind}" % int(value or 0)
        text += form[position:]
        if not values or len(text) > MOST_CHARACTERS:
            return text


def _basename(words: list[str], _: str | None) -> str:
    if not words or words[0].startswith("-"):
        raise NotComputed
    name = words[0].rstrip("/").rpartition("/")[2] or ("/" if words[0] else "")
    if len(words) > 1 and name != words[1]:
        name = name.removesuffix(words[1])
    return f"{name}\n"


def _dirname(words: list[str], _: str | None) -> str:
    folder, slash, _name = (words[0].rstrip("/") or words[0][:1]).rpartition("/")
    return f"{folder.rstrip('/') or ('/' if slash else '.')}\n"


def _seq(words: list[str], _: str | None) -> str:
    separator = "\n"
    if words[:1] == ["-s"]:
        separator, words = words[1], words[2:]
    elif words and words[0].startswith("-s"):
        separator, words = words[0][2:], words[1:]
    numbers = [int(word) for word in words]
    first, step, last = {1: (1, 1, numbers[0]), 2: (numbers[0], 1, numbers[-1])}.get(
        len(numbers), (numbers[0], numbers[len(numbers) // 2], numbers[-1])
    )
    if step == 0 or abs(last - first) // abs(step) > MOST_NUMBERS:
        raise NotComputed
    found = [str(number) for number in range(first, last + (1 if step > 0 else -1), step)]
    return separator.join(found) + "\n" if found else ""


def _positions(text: str, size: int) -> list[int]:
    """Return the positions, from 0 to `size` - 1, that a list of `cut` such as 1,3-5,7- selects."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        start = int(first or 1)
        end = (int(last) if last else size) if dash else start
        found |= set(range(start - 1, min(end, size)))
    return sorted(found)


def _cut(words: list[str], stdin: str | None) -> str:
    delimiter, fields, letters, position = "\t", "", "", 0
    while position < len(words):
        word = words[position]
        match = re.match(r"-([dfc])(.*)", word, re.DOTALL)
        if match is None:
            long = re.match(r"--(delimiter|fields|characters)=(.*)", word, re.DOTALL)
            if long is None:
                raise NotComputed
            option, value = long.group(1)[0], long.group(2)
        else:
            option, value = match.groups()
            if not value:
                position += 1
                value = words[position]
        position += 1
        if option == "d":
            delimiter = value
        elif option == "f":
            fields = value
        else:
            letters = value
    lines = []
    for line in _lines(_input(stdin)):
        if letters:
            lines.append("".join(line[at] for at in _positions(letters, len(line))))
        elif delimiter not in line:
            lines.append(line)
        else:
            parts = line.split(delimiter)
            lines.append(delimiter.join(parts[at] for at in _positions(fields, len(parts))))
    return _together(lines)


def _letters(text: str) -> str:
    """Return the characters in a tr set such as a-z or [:upper:]."""
    text = re.sub(r"\[:upper:\]", "A-Z", re.sub(r"\[:lower:\]", "a-z", text))
    text = text.replace("[:space:]", " \t\n\r\f\v").replace("[:digit:]", "0-9")
    if "[:" in text:
        raise NotComputed
    text = _unescaped(text)
    return re.sub(
        r"(.)-(.)",
        lambda match: "".join(map(chr, range(ord(match.group(1)), ord(match.group(2)) + 1))),
        text,
        flags=re.DOTALL,
    )


def _tr(words: list[str], stdin: str | None) -> str:
    text = _input(stdin)
    if words[0] == "-d":
        return text.translate(dict.fromkeys(map(ord, _letters(words[1]))))
    if words[0] == "-s" and len(words) == 2:
        return re.sub(f"([{re.escape(_letters(words[1]))}])\\1+", r"\1", text)
    if words[0].startswith("-"):
        raise NotComputed
    old, new = _letters(words[0]), _letters(words[1])
    new += new[-1] * max(len(old) - len(new), 0)
    return text.translate({ord(letter): new[at] for at, letter in reversed(list(enumerate(old)))})


def _wc(words: list[str], stdin: str | None) -> str:
    text = _input(stdin)
    counts = {"-l": text.count("\n"), "-w": len(text.split()), "-c": len(text.encode()), "-m": len(text)}
    return f"{counts[words[0]]}\n" if len(words) == 1 and words[0] in counts else _refused()


def _refused() -> str:
    raise NotComputed


def _some(words: list[str], stdin: str | None) -> int:
    if not words:
        return 10
    match = re.fullmatch(r"-n?(\d+)", "".join(words[:2]) if words[0] == "-n" else words[0])
    if match is None or len(words) > 1 + (words[0] == "-n"):
        raise NotComputed
    return int(match.group(1))


def _head(words: list[str], stdin: str | None) -> str:
    return _together(_lines(_input(stdin))[: _some(words, stdin)])


def _tail(words: list[str], stdin: str | None) -> str:
    count = _some(words, stdin)
    lines = _lines(_input(stdin))
    return _together(lines[len(lines) - min(count, len(lines)) :])


def _sed(words: list[str], stdin: str | None) -> str:
    extended = words[:1] in (["-E"], ["-r"])
    words = words[1:] if extended else words
    if words[:1] == ["-e"]:
        words = words[1:]
    match = re.fullmatch(r"s(.)(.*?)\1(.*?)\1(g?)", words[0]) if len(words) == 1 else None
    if match is None:
        raise NotComputed
    _, old, new, every = match.groups()
    if (
        match.group(1) in new
        or re.search(r"[\\()+?{}|^$]|\[[^]]*(\[|--|&&|~~)", old)
        or re.search(r"[\\&]", new)
        or old.count("*") > 2
    ):
        raise NotComputed
    lines = [re.sub(old, lambda _: new, line, count=0 if every else 1) for line in _lines(_input(stdin))]
    return _together(lines)


def _awk(words: list[str], stdin: str | None) -> str:
    separator = None
    if words and words[0].startswith("-F"):
        separator = words[0][2:] or words[1]
        words = words[1:] if words[0][2:] else words[2:]
    match = re.fullmatch(r"\{\s*print\s+\$(\d+|NF)\s*;?\s*\}", words[0]) if len(words) == 1 else None
    if match is None or (separator is not None and len(separator) > 1):
        raise NotComputed
    lines = []
    for line in _lines(_input(stdin)):
        parts = line.split(separator)
        number = len(parts) if match.group(1) == "NF" else int(match.group(1))
        lines.append(line if number == 0 else parts[number - 1] if number <= len(parts) else "")
    return _together(lines)


def _number(text: str) -> str:
    def read(_: str) -> str:
        raise NotComputed

    def assign(_: str, __: int) -> None:
        raise NotComputed

    return str(Arithmetic(text, read, assign).value())


def _expr(words: list[str], _: str | None) -> str:
    if any(not re.fullmatch(r"-?\d+|[-+*/%()]", word) for word in words):
        raise NotComputed
    return f"{_number(' '.join(words))}\n"


def _bc(words: list[str], stdin: str | None) -> str:
    text = _input(stdin).strip()
    # The digits of a fraction depend on bc's scale.
    whole = words in ([], ["-l"]) and re.fullmatch(r"[-+*() \d]+", text)
    if not whole and (words or not re.fullmatch(r"[-+*/%() \d]+", text)):
        raise NotComputed
    return f"{_number(text)}\n"


def _cat(words: list[str], stdin: str | None) -> str:
    return _input(stdin) if words in ([], ["-"]) else _refused()


def _xargs(words: list[str], stdin: str | None) -> str:
    return " ".join(_input(stdin).split()) + "\n" if not words else _refused()


def _sort(words: list[str], stdin: str | None) -> str:
    lines = _lines(_input(stdin))
    if not all(re.fullmatch(r"[a-z0-9]*", line) for line in lines):
        raise NotComputed
    if words == ["-n"]:
        return _together(sorted(lines, key=int))
    known = {"": sorted(lines), "-u": sorted(set(lines))}
    return _together(known[" ".join(words)]) if " ".join(words) in known else _refused()


_COMMANDS: dict[str, Callable[[list[str], str | None], str]] = {
    "echo": _echo,
    "printf": _printf,
    "basename": _basename,
    "dirname": _dirname,
    "seq": _seq,
    "cut": _cut,
    "tr": _tr,
    "wc": _wc,
    "head": _head,
    "tail": _tail,
    "sed": _sed,
    "awk": _awk,
    "expr": _expr,
    "bc": _bc,
    "cat": _cat,
    "tee": lambda words, stdin: _input(stdin),
    "xargs": _xargs,
    "sort": _sort,
    "true": lambda words, stdin: "",
    ":": lambda words, stdin: "",
}
