"""Finds out which program a job trains with, before any of its flags is read as a GPT's.

The table of programs is in config/other_programs.py. A program that trains no dense GPT, or that has settings
of its own, is refused in one sentence.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from nbtrain.config.other_programs import (
    EXPERTS,
    GPT_SCRIPTS,
    NO_TRAINING,
    OTHER_MODELS,
    models_by_flag,
    program_of_script,
)
from nbtrain.foreign.flags import VERSIONS, tables
from nbtrain.foreign.located import Word

# Least number of known flags: another program may share a flag or two of Megatron's.
FEWEST_FLAGS = 5
READS = "nbtrain imports only GPT models of Megatron-LM and Megatron-DeepSpeed"


def other_program(program: Word, flags: Sequence[Word]) -> tuple[str, str] | None:
    """Return the place and the sentence with which a program is refused; None for a GPT of Megatron."""
    name = PurePosixPath(program.text).name
    runs = f"runs {program.text}, which"
    gpt = bool(GPT_SCRIPTS.fullmatch(name))
    if not gpt and (model := next((one for one in OTHER_MODELS if re.fullmatch(one.scripts, name)), None)):
        return program.place, f"{runs} trains {model.name}: {READS}."
    names = [word.text.partition("=")[0] for word in flags]
    known = knows_flags(flags)
    if known >= FEWEST_FLAGS or gpt:
        for model, pattern in models_by_flag(gpt):
            if flag := next((word for word in flags if _is_flag(word, pattern)), None):
                return flag.place, f"{flag.text}: {name} trains {model.name} with it: {READS}."
        for flag, value in _values(flags, EXPERTS):
            if value not in ("1", ""):
                words = f"{flag.text.partition('=')[0]} {value}: trains a mixture of experts, and nbtrain "
                return flag.place, f"{words}trains dense models only."
    if known >= FEWEST_FLAGS and not NO_TRAINING.fullmatch(name):
        return None
    if gpt or any(word.from_outside for word in flags):
        # Its flags are in a variable that is not decided: the import asks for that variable.
        return None
    if NO_TRAINING.fullmatch(name):
        return program.place, f"{runs} trains nothing. Give the script that starts the training."
    if other := program_of_script(program.text, names):
        return program.place, f"{runs} belongs to {other}: {READS}."
    count = "none" if not known else f"only {known}"
    return program.place, f"{runs} has {count} of Megatron's flags: {READS}."


def _is_flag(word: Word, pattern: re.Pattern[str]) -> bool:
    return bool(pattern.fullmatch(word.text.partition("=")[0]))


def _values(flags: Sequence[Word], pattern: re.Pattern[str]) -> Iterator[tuple[Word, str]]:
    """Yield each flag that matches, with its first value."""
    for at, word in enumerate(flags):
        flag, equals, inline = word.text.partition("=")
        if pattern.fullmatch(flag):
            following = flags[at + 1].text if at + 1 < len(flags) else ""
            yield word, inline if equals else "" if following.startswith("--") else following


def knows_flags(flags: Sequence[Word]) -> int:
    """Return how many of the flags are Megatron's, of whatever version; 0 if most of them are not."""
    names = {word.text.partition("=")[0] for word in flags if word.text.startswith("--")}
    known = {flag for program in VERSIONS for table in tables(program) for flag in table.by_flag}
    return len(names & known)
