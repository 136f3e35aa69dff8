"""Finds the commands that a bash script would start, with all known values substituted. Nothing is run.

    text -> tree (syntax_tree.py) -> statements, in order, on a Shell (shell.py, statements.py)
         -> words (expansion.py) -> Command (script.py)

A value that only the running shell knows becomes Unknown, with the line at which it was lost. If a condition
cannot be decided, both branches are simulated, and variables that they set differently are unknown
afterwards.
"""

from collections.abc import Sequence

from nbtrain.base.errors import ConfigError
from nbtrain.foreign.bash.builtins import BUILTINS
from nbtrain.foreign.bash.script import Command, Script, Surroundings
from nbtrain.foreign.bash.shell import Language, Shell
from nbtrain.foreign.bash.simple_commands import command_of
from nbtrain.foreign.bash.statements import STATEMENTS
from nbtrain.foreign.bash.substitution import substitute
from nbtrain.foreign.bash.syntax_tree import source_of
from nbtrain.foreign.bash.variables import Run, Runs
from nbtrain.foreign.syntax.located import Word

BASH = Language(STATEMENTS, BUILTINS, substitute)


def read_script(text: str | Word, label: str, around: Surroundings | None = None) -> Script:
    """Read a script. Raises ConfigError, with the line, if it is not a bash script."""
    word = text if isinstance(text, Word) else Word(text, f"{label}:1")
    script = Script(label)
    shell = Shell(BASH, script, around or Surroundings())
    try:
        shell.file(source_of(word.text, word.place), True)
    except RecursionError:
        raise ConfigError(
            f"{label}: the script is nested too deeply to be read. Give the script that starts the training."
        ) from None
    shell.finish()
    return script


def command_of_words(
    words: Sequence[Word], label: str, around: Surroundings, script: Script | None = None
) -> Command:
    """Return the command for words that no shell expands, such as the words in a manifest."""
    shell = Shell(BASH, script or Script(label), around)
    values: list[Runs] = []
    for word in words:
        if word.unknowns:
            values.append((Run(word.text, word.place, True, word.unknowns[0]),))
        else:
            values.append((Run(word.text, word.place, True),))
    return command_of(shell, values, {}, None, words[0].place if words else f"{label}:1")
