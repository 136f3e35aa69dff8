"""Simulates builtins that affect the rest of a script: variables, arguments, input, sourced files, exits."""

import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from nbtrain.foreign.bash.conditions import compute, decide
from nbtrain.foreign.bash.expansion import separator_pattern
from nbtrain.foreign.bash.output import print_output
from nbtrain.foreign.bash.patterns import Token
from nbtrain.foreign.bash.shell import MOST_CALLS, Shell
from nbtrain.foreign.bash.simple_commands import command_of
from nbtrain.foreign.bash.syntax_tree import (
    BashSyntaxError,
    adjacent,
    source_of,
)
from nbtrain.foreign.bash.variables import (
    Run,
    Runs,
    Variable,
    text_of,
    text_variable,
    unknown_run,
    unknowns_of,
    word_of,
)
from nbtrain.foreign.syntax.located import Unknown

if TYPE_CHECKING:
    from tree_sitter import Node

# Files that prepare paths and modules. They are assumed to set no value that the training uses.
SETUP_FILES = re.compile(
    r"(?:.*/)?(?:(?:de)?activate|set_?env|setvars|env_npu|\.?bashrc|\.?(?:bash_)?profile|conda|mamba|nvm|"
    r"modules?|lmod|init_conda)(?:\.sh|\.bash)?|/(?:etc|usr|opt)/.*"
)
# `set` options that change how a script is simulated, by letter.
_SET_OPTIONS = {"e": "errexit", "u": "nounset", "f": "noglob"}
_OPTION_VALUES = {"read": "dinNptu", "mapfile": "CcdnOsu", "readarray": "CcdnOsu"}


def _echo(shell: Shell, words: list[Runs], place: str) -> None:
    print_output(shell, words)
    shell.set_status(True)


def _printf(shell: Shell, words: list[Runs], place: str) -> None:
    if len(words) > 3 and text_of(words[1]) == "-v":
        name = text_of(words[2])
        before, certain = shell.sink, shell.certain
        shell.sink, shell.certain = [], (len(shell.conditions), len(shell.state.doubts))
        print_output(shell, [words[0], *words[3:]])
        printed, shell.sink, shell.certain = tuple(shell.sink), before, certain
        if unknowns_of(printed):
            shell.assign(name, shell.lost(name, place, "the command printf sets it"))
        else:
            shell.assign(name, text_variable((Run(text_of(printed), place),)))
    else:
        print_output(shell, words)
    shell.set_status(True)


def _read(shell: Shell, words: list[Runs], place: str) -> None:
    """Simulate read, mapfile and readarray. What they read is known only if the standard input is known."""
    head, options, names, array = text_of(words[0]), "", [], False
    position, whole = 1, False
    while position < len(words):
        text = text_of(words[position])
        position += 1
        if not text.startswith("-") or len(text) < 2:
            names.append(text)
            continue
        options += text[1:]
        array = array or "a" in text
        if text[-1] in _OPTION_VALUES[head]:
            if text[-1] == "d" and position < len(words) and not text_of(words[position]):
                whole = True  # read -d '' takes all lines
                options = options.removesuffix("d")
            position += 1
    names = [name for name in names if re.fullmatch(r"[A-Za-z_]\w*", name)]
    stdin = shell.stdin
    known = stdin is not None and not unknowns_of(stdin) and set(options) <= set("rat")
    if not known or stdin is None:
        if stdin is not None:
            shell.stdin = (
                unknown_run(Unknown("the input", "", place, f"the command {head} reads a part of it")),
            )
        for name in names or (["REPLY"] if head == "read" else ["MAPFILE"]):
            shell.assign(name, shell.lost(name, place, f"the command {head} sets it"))
        shell.set_status(None if head == "read" else True)
        return
    text = text_of(stdin)
    if head != "read":
        lines = text.removesuffix("\n").split("\n")
        lines = lines if "t" in options else [f"{line}\n" for line in lines]
        elements: dict[str, Runs] = {str(at): (Run(line, place),) for at, line in enumerate(lines)}
        shell.assign(names[0] if names else "MAPFILE", Variable(elements, "list"))
        shell.stdin = ()
        shell.set_status(True)
        return
    line, ends, rest = (text, "", "") if whole else text.partition("\n")
    shell.stdin = (Run(rest, place, True),)
    if "\\" in line and "r" not in options:
        for name in names or ["REPLY"]:
            shell.assign(name, shell.lost(name, place, "read sets it"))
        shell.set_status(None)
        return
    variable = shell.variable("IFS", "")
    separators = " \t\n" if variable is None else text_of(variable.elements.get("0", ()))
    fields = _fields(line, separators, 0 if array else len(names)) if names else [line]
    if array and names:
        shell.assign(
            names[0], Variable({str(at): (Run(part, place),) for at, part in enumerate(fields)}, "list")
        )
    else:
        for at, name in enumerate(names or ["REPLY"]):
            shell.assign(name, text_variable((Run(fields[at] if at < len(fields) else "", place),)))
    shell.set_status(bool(ends))


def _set(shell: Shell, words: list[Runs], place: str) -> None:
    """Simulate `set -euo pipefail` and `set -- arguments`."""
    options, position = set(shell.state.options), 1
    while position < len(words):
        text = text_of(words[position])
        if text == "--" or text[:1] not in ("-", "+") or len(text) < 2:
            break
        position += 1
        for letter in text[1:]:
            name = _SET_OPTIONS.get(letter, "")
            if letter == "o" and position < len(words):
                name, position = text_of(words[position]), position + 1
            options = options | {name} if text[0] == "-" else options - {name}
    shell.state.options = frozenset(options)
    if position < len(words):
        end = text_of(words[position])
        arguments = tuple(words[position + (end in ("-", "--")) :])
        if arguments or end != "-":
            shell.state.arguments = arguments
    shell.set_status(True)


def _shift(shell: Shell, words: list[Runs], place: str) -> None:
    count = text_of(words[1]) if len(words) > 1 else "1"
    arguments = shell.state.arguments
    if arguments is None:
        shell.set_status(None)
        return
    if not count.isdigit() or len(count) > 4:
        shell.state.arguments = None
    elif int(count) <= len(arguments):
        shell.state.arguments = arguments[int(count) :]
    shell.set_status(count.isdigit() and int(count) <= len(arguments))


def _getopts(shell: Shell, words: list[Runs], place: str) -> None:
    if len(words) > 2:
        name = text_of(words[2])
        shell.assign(name, shell.lost(name, place, "the command getopts sets it"))
    shell.assign("OPTARG", shell.lost("OPTARG", place, "the command getopts sets it"))
    shell.set_status(None)


def _unset(shell: Shell, words: list[Runs], place: str) -> None:
    functions_only = False
    for runs in words[1:]:
        name = text_of(runs)
        if name.startswith("-"):
            functions_only = name == "-f"
            continue
        shell.state.functions.pop(name, None)
        if functions_only:
            continue
        match = re.fullmatch(r"([A-Za-z_]\w*)\[(.*)\]", name)
        if match and (old := shell.state.variables.get(match.group(1))) is not None:
            key = shell.expansion.key(old, match.group(2), place)
            elements = {known: value for known, value in old.elements.items() if known != key}
            shell.state.variables[match.group(1)] = Variable(elements, old.kind, old.exported)
        elif re.fullmatch(r"[A-Za-z_]\w*", name):
            shell.state.variables[name] = Variable({}, "unset")
            if shell.state.sourced is not None:
                shell.state.settled |= {name}
    shell.set_status(True)


def follow_unset(shell: Shell, node: "Node") -> None:
    """Simulate the statement `unset NAME...`, which the parser does not parse as a command."""
    words = [
        word for group in adjacent(shell.source, node.children[1:]) for word in shell.expansion.words(*group)
    ]
    _unset(shell, [(Run("unset", ""),), *words], shell.source.place_of(node))


def _eval(shell: Shell, words: list[Runs], place: str) -> None:
    text: list[Run] = []
    for number, runs in enumerate(words[1:]):
        text += [Run(" ", word_of(runs, place).place), *runs] if number else runs
    if shell.calls >= MOST_CALLS or not text:
        return
    shell.calls += 1
    try:
        shell.file(shell.text_source(tuple(text)))
    except BashSyntaxError:
        if not shell.silent:
            shell.commands.append(command_of(shell, [tuple(text)], {}, None, place))
    shell.calls -= 1


def _source(shell: Shell, words: list[Runs], place: str) -> None:
    if len(words) < 2:
        return
    name = text_of(words[1])
    word = None if unknowns_of(words[1]) else shell.around.file(name)
    if word is None and not unknowns_of(words[1]):
        word = shell.script.documents.get(name)
    if word is not None and shell.calls < MOST_CALLS:
        shell.script.read.add(PurePosixPath(name).name)
        arguments = shell.state.arguments
        if len(words) > 2:
            shell.state.arguments = tuple(words[2:])
        shell.calls += 1
        shell.file(source_of(word.text, word.place))
        shell.calls -= 1
        shell.state.arguments = arguments
        if shell.state.flow == "return":
            shell.state.flow = ""
        shell.set_status(True)
        return
    shown = PurePosixPath(name).name
    if not shell.silent:
        # A file that was not given may prepare the shell, so the import lists the command.
        shell.commands.append(command_of(shell, words, {}, None, place))
        if not SETUP_FILES.fullmatch(name):
            shell.script.missing.append((place, name))
    if SETUP_FILES.fullmatch(name):
        shell.set_status(True)
        return
    if shell.state.sourced is None or shell.state.settled:
        reason = f"{shown}, which is sourced there, may set it"
        shell.state.sourced = Unknown(name, "", place, reason)
        shell.state.settled = frozenset()
    shell.set_status(True)


def _exit(shell: Shell, words: list[Runs], place: str) -> None:
    shell.state.flow = text_of(words[0])
    shell.departures += 1
    if shell.state.flow == "return" and not shell.calls:
        shell.state.flow = "exit"
    if len(words) > 1 and not unknowns_of(words[1]):
        shell.set_status(text_of(words[1]) == "0")


def _leave(shell: Shell, words: list[Runs], place: str) -> None:
    shell.state.flow = text_of(words[0])
    text = text_of(words[1]) if len(words) > 1 else "1"
    shell.state.levels = int(text) if text.isdigit() and len(text) < 3 else 1
    shell.departures += shell.state.levels > 1


def _let(shell: Shell, words: list[Runs], place: str) -> None:
    status: bool | None = True
    for runs in words[1:]:
        status = compute(shell, text_of(runs), unknowns_of(runs), place)
    shell.set_status(status)


def _test(shell: Shell, words: list[Runs], place: str) -> None:
    texts = words[1:]
    if text_of(words[0]) == "[" and texts and text_of(texts[-1]) == "]":
        texts = texts[:-1]
    decide(shell, [Token(text_of(runs), runs) for runs in texts], False, place)


def _true_or_false(shell: Shell, words: list[Runs], place: str) -> None:
    shell.set_status(text_of(words[0]) != "false")


def _shopt(shell: Shell, words: list[Runs], place: str) -> None:
    texts = [text_of(runs) for runs in words[1:]]
    if "extglob" in texts:
        shell.extglob = "-s" in texts
    shell.set_status(True)


def _without_effect(shell: Shell, words: list[Runs], place: str) -> None:
    shell.set_status(True)


def _fields(line: str, separators: str, count: int) -> list[str]:
    """Split a line as `read` does: the last of `count` variables gets the rest."""
    pattern, blanks = separator_pattern(separators)
    line = line.strip(blanks) if blanks else line
    if not separators or not line:
        return [line] if line else []
    parts = pattern.split(line, maxsplit=count - 1 if count > 1 else 0 if count == 0 else -1)
    if count == 1:
        parts = [line]
    if count and len(parts) == count and (last := pattern.search(parts[-1])) and last.end() == len(parts[-1]):
        parts[-1] = parts[-1][: last.start()]  # the one separator after the last field
    if count == 0 and parts and not parts[-1]:
        parts.pop()
    return parts


BUILTINS: dict[str, Callable[[Shell, list[Runs], str], None]] = {
    "eval": _eval,
    "source": _source,
    ".": _source,
    "exit": _exit,
    "return": _exit,
    "break": _leave,
    "continue": _leave,
    "set": _set,
    "shift": _shift,
    "unset": _unset,
    "read": _read,
    "mapfile": _read,
    "readarray": _read,
    "printf": _printf,
    "echo": _echo,
    "getopts": _getopts,
    "let": _let,
    "test": _test,
    "[": _test,
    "true": _true_or_false,
    ":": _true_or_false,
    "false": _true_or_false,
    "cd": _without_effect,
    "trap": _without_effect,
    "shopt": _shopt,
    "wait": _without_effect,
    "alias": _without_effect,
}
