"""Completion in the shell: the words that TAB offers, and `nbtrain completion`, which helps to install it.

    nbtrain completion                 prints the line that installs completion for this shell
    nbtrain completion bash            prints the shell code; also zsh and fish

At each TAB the shell starts `nbtrain` with _ARGCOMPLETE set, and argcomplete finds the words in the parser
and its completers. Only the module of the typed verb is imported.
"""

import argparse
import os
from pathlib import Path
from typing import Any

from nbtrain.cli.completers import no_words
from nbtrain.cli.output import show
from nbtrain.cli.verbs import add_verb

SHELLS = {
    "bash": ("~/.bashrc", 'eval "$(nbtrain completion bash)"'),
    "zsh": ("~/.zshrc", 'autoload -U compinit && compinit; eval "$(nbtrain completion zsh)"'),
    "fish": ("~/.config/fish/config.fish", "nbtrain completion fish | source"),
}
"""{shell: (its startup file, the line to add to that file)}"""


def add_verbs(under: Any) -> None:
    """Add the verb `nbtrain completion` to `under`, the subparsers of nbtrain."""
    parser = add_verb(
        under,
        "completion",
        completion,
        "Without SHELL, prints the line that installs completion for your shell. With SHELL, prints the "
        "shell code that this line evaluates. Once installed, TAB completes verbs, options, runs, datasets, "
        "checkpoints and the keys and values of key=value.",
    )
    parser.add_argument(
        "shell",
        metavar="SHELL",
        nargs="?",
        choices=tuple(SHELLS),
        help="Name of the shell: bash, zsh or fish.",
    )


def completion(options: argparse.Namespace) -> None:
    """Print the shell code, or the line that installs it."""
    if options.shell is not None:
        from argcomplete.shell_integration import shellcode

        print(shellcode(["nbtrain"], shell=options.shell))
        return
    shell = Path(os.environ.get("SHELL", "")).name
    shell = shell if shell in SHELLS else "bash"
    file, line = SHELLS[shell]
    show(f"To complete nbtrain's verbs, runs and keys with TAB in {shell}, add this line to {file}:\n")
    print(f"  {line}")
    others = [f"`nbtrain completion {other}`" for other in SHELLS if other != shell]
    show(
        "\nFor this terminal only, type the line here. "
        f"{' and '.join(others)} print the code for other shells."
    )


def is_asked() -> bool:
    """Return whether the shell started this process to complete a line."""
    return "_ARGCOMPLETE" in os.environ


def typed_verb() -> str:
    """Return the verb on the line to complete if it is typed completely, with a space after it; else ""."""
    typed = os.environ.get("COMP_LINE", "")[: int(os.environ.get("COMP_POINT", "0"))]
    words = typed.split()
    is_complete = len(words) > 2 or (len(words) == 2 and typed[-1:].isspace())
    return words[1] if is_complete else ""


def answer_shell(parser: argparse.ArgumentParser) -> None:
    """Print the parser's completions for the shell and exit. If there are none, bash completes file names."""
    import argcomplete

    argcomplete.autocomplete(
        parser,
        always_complete_options=False,
        default_completer=no_words,  # type: ignore[arg-type]  # a function works here, because it is only called
    )
