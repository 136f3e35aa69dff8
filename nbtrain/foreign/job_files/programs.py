"""Recognizes the program that a job runs, before any of its flags is read as a GPT's.

The table of programs is in config/names/other_programs.py. A program that does not train a dense GPT, or that
has flags that Megatron does not know, is rejected with one sentence.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import PurePosixPath

from nbtrain.config.names.other_programs import (
    DIALECTS,
    EXPERTS,
    GPT_NAMES,
    GPT_SCRIPTS,
    NO_TRAINING,
    OTHER_MODELS,
    models_by_flag,
    program_of_script,
)
from nbtrain.foreign.syntax.flags import ASCEND, VERSIONS, tables
from nbtrain.foreign.syntax.located import OUTSIDE, Word

# Minimum number of known flags, because other programs may share a flag or two with Megatron.
FEWEST_FLAGS = 5
READS = "nbtrain imports only GPT models of Megatron-LM and Megatron-DeepSpeed"


def other_program(program: Word, flags: Sequence[Word]) -> tuple[str, str] | None:
    """Return the place and the sentence that rejects a program; None if it may be a Megatron GPT."""
    name = PurePosixPath(program.text).name
    if not name.endswith(".py"):
        name = f"{name.rpartition('.')[2]}.py"  # a module: python -m examples.inference.server
    runs = f"the command runs {program.text}, which"
    gpt = bool(GPT_SCRIPTS.fullmatch(name))
    if NO_TRAINING.fullmatch(name):
        return program.place, f"{runs} does not train. Give the script that starts the training."
    named = gpt or GPT_NAMES.fullmatch(name)
    if not named and (
        model := next((kind for kind in OTHER_MODELS if re.fullmatch(kind.scripts, name)), None)
    ):
        return program.place, f"{runs} trains {model.name}: {READS}."
    known, unknown = _known(flags)
    if len(known) < FEWEST_FLAGS or len(unknown) > len(known):
        return None if gpt or _is_open(known, flags) else _without_flags(program, flags, len(known))
    for model, pattern in models_by_flag(gpt):
        if flag := next((word for word in flags if _is_flag(word, pattern)), None):
            return flag.place, f"{flag.text}: with this flag, {name} trains {model.name}: {READS}."
    for flag, value in _values(flags, EXPERTS):
        setting = f"{flag.text.partition('=')[0]} {value.text}"
        if value.from_outside:
            return flag.place, (
                f"{setting}: the value is not known, and nbtrain trains only dense models. Write the "
                "number into the script, or remove the flag."
            )
        if value.text not in ("1", ""):
            return flag.place, (
                f"{setting}: this is a mixture of experts, but nbtrain trains only dense models."
            )
    return _dialect(flags, unknown)


def _is_open(known: Collection[str], flags: Sequence[Word]) -> bool:
    """Return whether a variable may hold all flags of a program, because no flag is written out.

    The import then asks the user for the variable.
    """
    lists = [
        word
        for at, word in enumerate(flags)
        if OUTSIDE.fullmatch(word.text)
        and not word.text.startswith("-")
        and (at == 0 or not flags[at - 1].text.startswith("--"))
    ]
    return not known and any(word.from_outside not in ("$@", "$*") for word in lists)


def _without_flags(program: Word, flags: Sequence[Word], known: int) -> tuple[str, str]:
    """Return the place and the sentence that rejects a program with few of Megatron's flags."""
    runs = f"the command runs {program.text}, which"
    if other := program_of_script(program.text, [word.text for word in flags]):
        return program.place, f"{runs} belongs to {other}: {READS}."
    count = "none" if not known else f"only {known}"
    return program.place, f"{runs} has {count} of Megatron's flags: {READS}."


def _dialect(flags: Sequence[Word], unknown: Collection[str]) -> tuple[str, str] | None:
    """Return the place and the sentence that rejects a program with flags that Megatron lacks.

    Returns None if all flags are known, or if no unknown flag identifies the program.
    """
    found = {
        name: [word for word in flags if _is_flag(word, pattern) and word.text.partition("=")[0] in unknown]
        for name, pattern in DIALECTS.items()
    }
    most = max(len(own) for own in found.values())
    if not most:
        return None
    names = [name for name, own in found.items() if len(own) == most]
    own = found[names[0]]
    shown = ", ".join(dict.fromkeys(word.text.partition("=")[0] for word in own))
    has = f"only {' and '.join(names)} {'has' if len(names) == 1 else 'have'}"
    if ", " in shown:
        words = (
            f"{has} these flags, and nbtrain has no fields for them. Remove them, or use Megatron-LM's "
            "script."
        )
    else:
        words = f"{has} this flag, and nbtrain has no field for it. Remove it, or use Megatron-LM's script."
    return own[0].place, f"{shown}: {words}"


def _is_flag(word: Word, pattern: re.Pattern[str]) -> bool:
    return bool(pattern.fullmatch(word.text.partition("=")[0]))


def _values(flags: Sequence[Word], pattern: re.Pattern[str]) -> Iterator[tuple[Word, Word]]:
    """Yield each flag that matches, with its first value."""
    for at, word in enumerate(flags):
        flag, equals, _ = word.text.partition("=")
        if pattern.fullmatch(flag):
            none = Word("", word.place)
            following = flags[at + 1] if at + 1 < len(flags) else none
            yield word, word.after("=") if equals else none if following.text.startswith("--") else following


def _known(flags: Sequence[Word]) -> tuple[set[str], set[str]]:
    """Return the flags that some version of Megatron has, and the other flags."""
    names = {word.text.partition("=")[0] for word in flags if re.match("--?[A-Za-z]", word.text)}
    names = {name for name in names if not ASCEND.fullmatch(name)}
    known = {flag for program in VERSIONS for table in tables(program) for flag in table.by_flag}
    return names & known, names - known


def knows_flags(flags: Sequence[Word]) -> int:
    """Return how many of the flags are Megatron's, in any version."""
    return len(_known(flags)[0])
