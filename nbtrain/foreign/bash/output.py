"""Collects what commands print for a substitution or a pipe, and the files that the script writes."""

from typing import TYPE_CHECKING

from nbtrain.foreign.bash.command_output import NotComputed, output_of
from nbtrain.foreign.bash.shell import Shell
from nbtrain.foreign.bash.variables import (
    Run,
    Runs,
    text_of,
    unknown_run,
    unknowns_of,
    without_duplicates,
    word_of,
)
from nbtrain.foreign.syntax.located import Unknown, Word

if TYPE_CHECKING:
    pass


def print_output(shell: Shell, words: list[Runs]) -> None:
    """Add a command's output to the text that the surrounding substitution or pipe collects, if any."""
    if shell.sink is None:
        return
    unknowns = [part for runs in words for part in unknowns_of(runs)]
    unknowns += unknowns_of(shell.stdin or ())
    place = word_of(words[0]).place
    head = text_of(words[0])
    if len(shell.conditions) > shell.certain[0] or len(shell.state.doubts) > shell.certain[1]:
        conditions = [*shell.conditions[shell.certain[0] :], shell.state.doubts[shell.certain[1] :]]
        causes = without_duplicates(part for condition in conditions for part in condition)
        shown = f"$({' '.join(text_of(runs) for runs in words)})"
        reason = "a condition determines whether it is printed"
        shell.sink.append(unknown_run(Unknown(shown, "", place, reason, causes)))
        return
    if shell.stdin is not None and (head == "tee" or (head == "cat" and len(words) == 1)):
        shell.sink += shell.stdin
        return
    if not unknowns:
        try:
            stdin = text_of(shell.stdin) if shell.stdin is not None else None
            texts = [text_of(runs) for runs in words]
            stdin = _file_read(shell, texts, stdin)
            if texts[0] == "cat" and stdin is not None:
                texts = texts[:1]
            text = output_of(texts, stdin)
            shell.spend(len(text), place, texts[0])
            shell.sink.append(Run(text, place))
            return
        except NotComputed:
            pass
    elif head == "echo" and len(words) > 1 and not text_of(words[1]).startswith("-"):
        for number, runs in enumerate(words[1:]):
            shell.sink += [*([Run(" ", place)] if number else []), *runs]
        shell.sink.append(Run("\n", place))
        return
    shown = " ".join(text_of(runs) for runs in words)
    found = Unknown(f"$({shown})", "", place, f"nbtrain does not run $({shown})", tuple(unknowns))
    shell.sink.append(unknown_run(found))


def _file_read(shell: Shell, texts: list[str], stdin: str | None) -> str | None:
    """Return the text of FILE for `cat FILE`, if the script wrote it or the user gave it; else `stdin`."""
    if texts[0] == "cat" and len(texts) == 2:
        word = shell.script.documents.get(texts[1]) or shell.around.file(texts[1])
        if word is not None and not word.unknowns:
            return word.text
    return stdin


def write_file(shell: Shell, name: str, printed: Runs, appends: bool) -> None:
    """Record a text that the script writes to a file."""
    if shell.silent or name.startswith("/dev/"):
        return
    known = [run for run in printed if run.text]
    if not known or (known[0].unknown is not None and not known[0].unknown.name and len(known) == 1):
        if not appends:
            shell.script.documents.pop(name, None)
        return
    word = Word(text_of(printed), known[0].place, unknowns_of(printed))
    old = shell.script.documents.get(name)
    if appends and old is not None:
        unknowns = (*(old.unknowns or ()), *(word.unknowns or ()))
        word = Word(old.text + word.text, old.place, unknowns)
    shell.script.documents[name] = word


def collapsed(runs: Runs) -> Runs:
    """Return a text with all parts quoted, so that it is not split into words. Each part keeps its place."""
    return tuple(run._replace(quoted=True) for run in runs)
