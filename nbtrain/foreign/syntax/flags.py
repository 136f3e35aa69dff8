"""Parses command-line flags of other training programs, with tables of options, and reports unknown flags.

A table holds every option of one version of a program (tables/*.json): option strings, argparse's dest,
action, type, number of values, choices and default. The tables were made by running each program's own
argument parser, without its help texts. Both Megatrons turn off argparse's abbreviations, so a flag is only
known by its full name.
"""

import functools
import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nbtrain.base.errors import ConfigError
from nbtrain.base.findings import FATAL, Finding
from nbtrain.base.text.nearest import nearest
from nbtrain.foreign.syntax.located import FILL_IN, Word

TABLES = Path(__file__).with_name("tables")

# Versions of each program, oldest first.
VERSIONS = {
    "megatron-lm": ("040eac94", "d98e8a64"),
    "megatron-deepspeed": ("e7bff5ec", "f4157bea"),
}

# Common wrong names for flags that a comparison of spelling would not find.
MEANT = {
    "--nccl-timeout": "--distributed-timeout-minutes",
    "--save-dir": "--save",
    "--load-dir": "--load",
    "--checkpoint-path": "--save",
    "--layernorm-epsilon": "--norm-epsilon",
    "--norm-epsilon": "--layernorm-epsilon",
    "--fp8-e4m3": "--fp8-format",
    "--fp8-hybrid": "--fp8-format",
    "--rampup-batch-size": "--step-batch-size-schedule",
    "--step-batch-size-schedule": "--rampup-batch-size",
    "--no-query-key-layer-scaling": "--apply-query-key-layer-scaling",
    "--apply-query-key-layer-scaling": "--no-query-key-layer-scaling",
    "--overlap-p2p-communication": "--no-overlap-p2p-communication",
    "--checkpoint-activations": "--recompute-granularity",
    "--checkpoint-num-layers": "--recompute-num-layers",
    "--context-parallel-size": "--ds-sequence-parallel-size",
    "--ds-sequence-parallel-size": "--context-parallel-size",
    "--train-tokens": "--train-samples",
    "--lr-decay-tokens": "--lr-decay-samples",
    "--lr-warmup-tokens": "--lr-warmup-samples",
    "--attention-backend": "--use-flash-attn",
    "--num-query-groups": "--num-key-value-heads",
    "--num-key-value-heads": "--num-query-groups",
    "--local_rank": "--local-rank",
    "--tensor-parallel-size": "--tensor-model-parallel-size",
    "--pipeline-parallel-size": "--pipeline-model-parallel-size",
    "--tp": "--tensor-model-parallel-size",
    "--pp": "--pipeline-model-parallel-size",
    "--warmup-steps": "--lr-warmup-iters",
    "--max-steps": "--train-iters",
    "--zero-stage": "--use-distributed-optimizer",
}


@dataclass(frozen=True, slots=True)
class Option:
    """One option of a program, described in argparse's terms."""

    flags: tuple[str, ...]
    dest: str
    action: str = "store"
    type: str | None = None
    nargs: str | int | None = None
    choices: tuple[Any, ...] | None = None
    default: Any = None

    @property
    def takes_value(self) -> bool:
        return self.action == "store"


@dataclass(frozen=True)
class Table:
    """All options of one version of a program."""

    program: str
    version: str
    date: str
    options: tuple[Option, ...]

    @property
    def name(self) -> str:
        """Program and version, e.g. megatron-lm@d98e8a64."""
        return f"{self.program}@{self.version}"

    @functools.cached_property
    def by_flag(self) -> dict[str, Option]:
        return {flag: option for option in self.options for flag in option.flags}

    @functools.cached_property
    def by_dest(self) -> dict[str, tuple[Option, ...]]:
        """{dest: the options that set it}. The second option may be a switch that turns the first one off."""
        found: dict[str, tuple[Option, ...]] = {}
        for option in self.options:
            found[option.dest] = (*found.get(option.dest, ()), option)
        return found

    def default(self, dest: str) -> Any:
        """Return the program's value if no flag sets `dest`; None if the program has no `dest`."""
        return self.by_dest[dest][0].default if dest in self.by_dest else None


@functools.cache
def load_table(program: str, version: str) -> Table:
    """Return the table of one version of a program."""
    read = json.loads((TABLES / f"{program}-{version}.json").read_text(encoding="utf-8"))
    options = [
        Option(
            tuple(row["flags"]),
            row["dest"],
            row["action"],
            row.get("type"),
            row.get("nargs"),
            tuple(row["choices"]) if "choices" in row else None,
            row.get("default"),
        )
        for row in read["options"]
    ]
    return Table(read["program"], read["version"], read["date"], tuple(options))


def tables(program: str) -> tuple[Table, ...]:
    """Return the tables of all versions of a program, oldest first."""
    return tuple(load_table(program, version) for version in VERSIONS[program])


def find_table(target: str) -> Table:
    """Return the table for "megatron-lm@040eac94", or the newest for "megatron-lm". Raises ConfigError."""
    program, _, version = target.partition("@")
    if program not in VERSIONS:
        known = ", ".join(VERSIONS)
        raise ConfigError(f"{target}: there is no such program; known: {known}.{nearest(program, VERSIONS)}")
    if version and version not in VERSIONS[program]:
        known = ", ".join(f"{program}@{one}" for one in VERSIONS[program])
        raise ConfigError(f"{target}: this version is not known; known: {known}.")
    return load_table(program, version or VERSIONS[program][-1])


# MindSpeed's flags are in no table. These flags choose kernels or save memory; any other MindSpeed flag is
# unknown.
ASCEND = re.compile(
    r"--(use-fused-(rmsnorm|swiglu|rotary-pos-emb|ring-attention-update)|use-(ascend-)?mc2|reuse-fp32-param|"
    r"recompute-activation-function(-num-layers)?|swap-attention|swap-modules|npu-deterministic)"
)
ASCEND_REASON = "this MindSpeed flag for Ascend only chooses a kernel or saves memory"


@dataclass(frozen=True, slots=True)
class Setting:
    """A flag in an argument list: its option, and the value that argparse would store."""

    flag: str
    option: Option
    value: Any
    place: str
    word: Word | None = None
    """The value as written; None for a switch. Only the running shell may know the value."""
    words: tuple[Word, ...] = ()
    """All values of a flag that accepts several values."""

    @property
    def text(self) -> str:
        """The flag as written, for messages."""
        if self.word is None:
            return self.flag
        value = self.value if isinstance(self.value, list) else [self.word.text]
        return " ".join([self.flag, *map(str, value)])


# Rules of findings about arguments that the program would reject.
UNKNOWN_FLAG, WRONG_VALUE = "flags_exist", "flag_values_fit"


def _unknown(table: Table, flag: str, place: str) -> Finding:
    fix = "Remove it, or correct its name."
    return Finding("error", UNKNOWN_FLAG, flag, place, unknown(table, flag), fix, FATAL)


def _wrong(flag: str, place: str, message: str) -> Finding:
    return Finding("error", WRONG_VALUE, flag, place, message, "Correct it.", FATAL)


def _wrong_value(flag: str, word: Word, message: str) -> Finding:
    finding = _wrong(flag, word.place, message)
    is_variable = re.fullmatch(r"\$(\w+|\{\w+\})", word.text)
    return replace(finding, fix=FILL_IN) if is_variable else finding


@dataclass(frozen=True, slots=True)
class Arguments:
    """An argument list, parsed with the table of a program."""

    table: Table
    settings: tuple[Setting, ...]
    """Flags in their order. If several flags set the same dest, the last one wins, as in argparse."""
    complaints: tuple[Finding, ...]
    """Errors about words that the program would reject."""
    lists: tuple[Word, ...] = ()
    """Words such as $@ or $EXTRA_ARGS that stand for flags and whose values only the shell knows."""
    ascend: tuple[Word, ...] = ()
    """Flags that MindSpeed adds to Megatron-LM on Ascend, without an effect on a run."""

    def get(self, dest: str) -> Setting | None:
        """Return the flag that sets `dest`, or None if the default applies."""
        return next((one for one in reversed(self.settings) if one.option.dest == dest), None)

    def value(self, dest: str) -> Any:
        """Return the value that the program would use."""
        setting = self.get(dest)
        return setting.value if setting else self.table.default(dest)


def parse(table: Table, words: Sequence[Word]) -> Arguments:
    """Parse an argument list as argparse would: `--flag=value`, `--flag value`, several values, switches."""
    settings: list[Setting] = []
    complaints: list[Finding] = []
    lists: list[Word] = []
    ascend: list[Word] = []
    valued: Setting | None = None  # the previous flag, if it has one value
    position = 0
    while position < len(words):
        word = words[position]
        position += 1
        flag, equals, _ = word.text.partition("=")
        if not word.text.startswith("--") or len(word.text) == 2:
            # A list of options that the shell fills in, or a value without a flag.
            if word.from_outside:
                lists.append(word)
                continue
            stray = [word]
            while position < len(words) and _follows(stray[-1], words[position]):
                stray.append(words[position])
                position += 1
            complaints.append(_stray(stray, valued))
            continue
        valued = None
        option = table.by_flag.get(flag)
        following = 0
        while position + following < len(words) and _is_value(words[position + following]):
            following += 1
        if option is None and ASCEND.fullmatch(flag):
            ascend.append(word)
            position += 0 if equals else following
            continue
        if option is None:
            complaints.append(_unknown(table, flag, word.place))
            position += 0 if equals else following
            continue
        if not option.takes_value:
            if equals:
                message = f"{word.text}: {flag} is a switch without a value; write only {flag}, or remove it."
                complaints.append(_wrong(flag, word.place, message))
            on = option.action == "store_true" or (
                option.action == "BooleanOptionalAction" and not flag.startswith("--no-")
            )
            settings.append(Setting(flag, option, on, word.place))
            continue
        given = [word.after("=")] if equals else list(words[position : position + following])
        taken, complaint = _take(option, flag, given, word.place)
        position += 0 if equals else len(taken)
        if complaint:
            complaints.append(complaint)
            continue
        converted = [(one, *_convert(option, flag, one)) for one in taken]
        wrong = [_wrong_value(flag, one, problem) for one, _, problem in converted if problem]
        if wrong:
            complaints += wrong
            continue
        values = [value for _, value, _ in converted]
        several = option.nargs not in (None, "?")
        first = taken[0] if taken else Word("", word.place)
        settings.append(
            Setting(flag, option, values if several else values[0], word.place, first, tuple(taken))
        )
        valued = None if several else settings[-1]
    return Arguments(table, tuple(settings), tuple(complaints), tuple(lists), tuple(ascend))


def _follows(before: Word, word: Word) -> bool:
    """Return whether a word without a flag is on the same line as the previous one."""
    return _is_value(word) and not word.from_outside and word.place == before.place


def _stray(words: Sequence[Word], before: Setting | None) -> Finding:
    """Return the error about words that belong to no flag.

    After a flag with one value, the words may be the rest of a text that bash splits at its spaces.
    """
    text = " ".join(word.text for word in words)
    belong = "these arguments belong to no flag" if words[1:] else "this argument belongs to no flag"
    finding = _wrong(text, words[0].place, f"{text}: {belong}.")
    if before is None or before.place != words[0].place:
        return finding
    quotes = 'quote the array in the program\'s command, as in "${ARGS[@]}"'
    if words[1:]:
        fix = f"If these arguments belong to the value of {before.flag}, {quotes}; otherwise remove them."
    else:
        fix = f"If this argument belongs to the value of {before.flag}, {quotes}; otherwise remove it."
    return replace(finding, fix=fix)


def _may_be_flags(before: Word, word: Word) -> bool:
    """Return whether an unknown word after a value may stand for flags.

    After a number, the word is a data prefix with this weight, as in `--data-path 0.3 $PREFIX`.
    """
    weighs = re.fullmatch(r"[\d.]+", before.text)
    every = re.search(r"[@*]\]?\}?$", word.text)
    return bool(word.is_outside and (every or not weighs))


def _is_value(word: Word) -> bool:
    if not word.text.startswith("-") or len(word.text) == 1:
        return True
    return word.text[1:2].isdigit() or word.text[1:2] == "."  # a negative number


def _take(option: Option, flag: str, given: list[Word], place: str) -> tuple[list[Word], Finding | None]:
    """Return the words that belong to an option, and an error if their number is wrong."""
    if option.nargs in ("*", "+"):
        if option.nargs == "+" and not given:
            return [], _wrong(flag, place, f"{flag}: the flag needs at least one value.")
        pairs = enumerate(itertools.pairwise(given), 1)
        return given[: next((at for at, pair in pairs if _may_be_flags(*pair)), len(given))], None
    wanted = int(option.nargs) if option.nargs not in (None, "?") else 1
    if option.nargs == "?" and not given:
        return [Word("", place)], None
    if len(given) < wanted:
        if wanted == 1:
            return given, _wrong(flag, place, f"{flag}: the flag needs a value.")
        return given, _wrong(flag, place, f"{flag}: the flag needs {wanted} values, but has {len(given)}.")
    return given[:wanted], None


def _convert(option: Option, flag: str, word: Word) -> tuple[Any, str]:
    """Return the value of a word, and argparse's error about the value or ""."""
    text = word.text
    if word.from_outside:
        return text, ""
    value: Any = text
    try:
        if option.type == "int":
            value = int(text)
        elif option.type == "float":
            value = float(text)
        elif option.type == "bool":
            value = bool(text)
    except ValueError:
        kind = {"int": "a whole number (argparse's int accepts neither 1e9 nor 2.5)", "float": "a number"}
        return text, f"{flag} = {text}: the value must be {kind[str(option.type)]}."
    if option.choices and value not in option.choices:
        choices = ", ".join(map(str, option.choices))
        return (
            value,
            f"{flag} = {text}: the value must be one of {choices}.{nearest(text, map(str, option.choices))}",
        )
    return value, ""


def unknown(table: Table, flag: str) -> str:
    """Return a message about an unknown flag, with the nearest flag and a program that has the flag."""
    hint = _hint(table.program, table.version, flag)
    elsewhere = [
        other.name
        for program in VERSIONS
        for other in tables(program)
        if other is not table and flag in other.by_flag
    ]
    where = f" {elsewhere[0]} has this flag." if elsewhere else ""
    return f"{flag}: {table.name} has no such flag.{hint}{where}"


@functools.lru_cache(1000)  # a flag is parsed with several tables, some of them more than once
def _hint(program: str, version: str, flag: str) -> str:
    """Return a sentence with the program's flag that is most similar to an unknown one, or ""."""
    table = load_table(program, version)
    meant = MEANT.get(flag.replace("_", "-"), "") or MEANT.get(flag, "")
    if meant in table.by_flag:
        return f" Nearest: {meant}."
    return nearest(flag, table.by_flag) or _by_words(flag, table)


def _by_words(flag: str, table: Table) -> str:
    """Return a sentence with the flag that shares the most words with `flag`; "" below half of them."""
    wanted = set(flag.strip("-").replace("_", "-").split("-"))

    def shared(known: str) -> float:
        words = set(known.strip("-").replace("_", "-").split("-"))
        return len(wanted & words) / len(wanted | words)

    best = max(table.by_flag, key=shared)
    return f" Nearest: {best}." if shared(best) >= 0.5 else ""


def choose_table(words: Sequence[Word], script: str = "") -> Table:
    """Return the program and version whose table contains the most of the flags.

    If two versions contain the same number, the one that rejects fewer values is chosen. If these numbers are
    equal too, the older one is chosen: a flag list that both accept was most likely written for the older
    one, and this repository's pinned examples use it.
    """
    flags = {word.text.partition("=")[0] for word in words if word.text.startswith("--")}
    deepspeed = "deepspeed" in script.lower() or bool(flags & {"--deepspeed", "--deepspeed_config"})
    programs = ("megatron-deepspeed", "megatron-lm") if deepspeed else ("megatron-lm", "megatron-deepspeed")
    candidates = [table for program in programs for table in tables(program)]
    most = max(len(flags & table.by_flag.keys()) for table in candidates)
    likely = [table for table in candidates if len(flags & table.by_flag.keys()) == most]
    return min(likely, key=lambda table: len(parse(table, words).complaints))
