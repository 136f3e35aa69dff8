"""docs/commands.md: every verb with its arguments and defaults, from the parsers themselves."""

import argparse
from collections.abc import Iterator

from nbtrain.base.printing.report import Table
from nbtrain.cli.__main__ import parser
from nbtrain.cli.completion import SHELLS
from nbtrain.cli.verb_table import ALIASES, ELSEWHERE, EXIT_CODES, GROUPS, RUN, Verb
from nbtrain.cli.verbs import default_text


def commands_page() -> str:
    """Return the page docs/commands.md."""
    return "\n".join([*_top(), *(line for group in GROUPS for line in _group(group))]) + "\n"


def _top() -> Iterator[str]:
    yield f"""\
# Commands

Every verb of `nbtrain`, with its arguments, options and defaults. Generated from the parsers by `make docs`;
do not edit. `nbtrain help` shows the usual verbs on one screen, `nbtrain help all` lists every verb, and
`nbtrain help VERB` explains one.

{RUN}

## Output

- On a terminal, paragraphs and tables are fitted to its width, and states, verdicts and findings have
  colours. A pipe or a file gets plain text, with one line for each row of a table. `NO_COLOR=1` and
  `TERM=dumb` turn the colours off.
- With `--json`, stdout holds only JSON. Progress and messages go to stderr.
- Errors go to stderr. A message says where the problem is, what was found, which rule applies and how to
  fix it.

## Completion

TAB completes verbs, options, the names of runs, examples, presets, datasets and checkpoints, and the keys
and values of `key=value`. `nbtrain completion` prints the line that installs completion:
"""
    shells = [(shell, f"`{file}`", f"`{_escaped(line)}`") for shell, (file, line) in SHELLS.items()]
    yield from Table(("shell", "file", "line"), shells).markdown()
    yield from ("", "## Exit codes", "")
    yield from Table(("code", "meaning"), list(EXIT_CODES.items())).markdown()
    yield from ("", "## Coming from LitGPT or Axolotl", "")
    answers: dict[str, list[str]] = {}
    for word, verb in ALIASES.items():
        answers.setdefault(f"the same as `nbtrain {verb}`", []).append(word)
    for word, answer in ELSEWHERE.items():
        answers.setdefault(answer, []).append(word)
    rows = [(", ".join(f"`{word}`" for word in words), answer) for answer, words in answers.items()]
    yield from Table(("their verb", "here"), rows).markdown()


def _group(group: str) -> Iterator[str]:
    yield from ("", f"## {group.capitalize()}")
    for verb in GROUPS[group]:
        own = _verbs_of(parser(verb.name))[verb.name]
        yield from _verb(f"nbtrain {verb.name}", own, verb)
        for name, below in _verbs_of(own).items():
            yield from _verb(f"nbtrain {verb.name} {name}", below)


def _verbs_of(group: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return {name: parser} of the verbs below a parser; {} if it has none."""
    groups = [action for action in group._actions if isinstance(action, argparse._SubParsersAction)]
    return groups[0].choices if groups else {}


def _verb(title: str, own: argparse.ArgumentParser, verb: Verb | None = None) -> Iterator[str]:
    yield from ("", f"{'###' if verb else '####'} `{title}`", "")
    also = (
        f" Also: {', '.join(f'`nbtrain {alias}`' for alias in verb.aliases)}."
        if verb and verb.aliases
        else ""
    )
    yield f"{_escaped(own.description or '')}{also}"
    if _verbs_of(own):
        return
    if own.epilog:
        examples = [line.strip() for line in own.epilog.splitlines()[1:]]
        yield from ("", "```console", *(f"$ {line}" for line in examples), "```")
    actions = [action for action in own._actions if not isinstance(action, argparse._HelpAction)]
    if actions:
        defaults = {action: default_text(action) for action in actions}
        rows = [
            (_named(action), _escaped(action.help or ""), f"`{default}`" if default else "")
            for action, default in defaults.items()
        ]
        yield from ("", *Table(("argument", "meaning", "default"), rows).markdown())


def _named(action: argparse.Action) -> str:
    """Return an option with its placeholder, "`-n`, `--limit N`", or a positional argument, "`RUN`"."""
    value = _value(action)
    if not action.option_strings:
        return f"`{value}`"
    *short, long = action.option_strings
    return ", ".join(f"`{flag}`" for flag in (*short, f"{long} {value}".rstrip()))


def _value(action: argparse.Action) -> str:
    """Return the placeholder of an argument's value; "" if the argument takes no value."""
    if action.nargs == 0:
        return ""
    if action.metavar is None:
        names: tuple[str, ...] = ("|".join(map(str, action.choices or [action.dest.upper()])),)
    else:
        names = action.metavar if isinstance(action.metavar, tuple) else (action.metavar,)
    value = " ".join(names).replace("|", "\\|")
    return f"{value} ..." if action.nargs in ("*", "+") else value


def _escaped(text: str) -> str:
    """Escape text for Markdown and its table cells."""
    return text.replace("|", "\\|").replace("<", "\\<")
