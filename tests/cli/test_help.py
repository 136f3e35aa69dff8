"""Help: common commands on one screen, all commands on request, and the nearest
name for an unknown command.
"""

import argparse
import re
import shlex

import pytest

from nbtrain.cli import __main__ as cli
from nbtrain.cli.verb_table import ALIASES, ELSEWHERE, GROUPS, SUMMARY_CHARS, VERBS


def subparsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of a parser's subcommands by word."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return groups[0].choices if groups else {}


@pytest.fixture(scope="module")
def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of every command by its words after nbtrain, including data's and checkpoint's
    subcommands.
    """
    found = {}
    for name in VERBS:
        own = subparsers(cli.parser(name))[name]
        found |= {name: own, **{f"{name} {below}": parser for below, parser in subparsers(own).items()}}
    return found


@pytest.mark.parametrize("words", [[], ["help"], ["-h"], ["--help"]])
def test_the_usual_verbs_fit_a_screen(words, capsys):
    """The common commands fit on 24 rows of 80 columns, in groups and in the order of the table."""
    assert cli.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 80
    assert [word for line in lines if (word := line.split(" ")[0]) in GROUPS] == list(GROUPS)
    common = [verb.name for verbs in GROUPS.values() for verb in verbs if verb.common]
    assert [line[14:].split()[0] for line in lines[2:-2]] == common


def test_help_all_names_every_verb_its_other_names_and_the_exit_codes(capsys):
    assert cli.main(["help", "all"]) == 0
    text = capsys.readouterr().out
    assert re.findall(r"^  ([a-z-]+)  ", text, re.M) == list(VERBS)
    assert set(ALIASES) <= set(re.findall(r"[\w-]+", text))
    assert re.findall(r"^  (\d+)  ", text, re.M) == ["0", "1", "2", "3", "4", "5", "6", "7", "8", "130"]


@pytest.mark.parametrize("words", [["plan"], ["data", "card"], ["stop"]])
def test_help_of_a_verb_is_what_its_option_shows(words, capsys):
    """`nbtrain help COMMAND` prints the same as COMMAND --help, also for an alias."""
    shown = []
    for call in (["help", *words], [*words, "--help"]):
        with pytest.raises(SystemExit) as end:
            cli.main(call)
        assert end.value.code == 0
        shown.append(capsys.readouterr().out)
    verb = " ".join([ALIASES.get(words[0], words[0]), *words[1:]])
    assert shown[0] == shown[1] and f"usage: nbtrain {verb} " in shown[0]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["sumbit", "gpt-tiny"], "'sumbit' is not a verb of nbtrain. Did you mean `nbtrain submit`?"),
        (["trian"], "Did you mean `nbtrain train`?"),
        (["xyzzy"], "'xyzzy' is not a verb of nbtrain. `nbtrain help all` lists all verbs."),
        (["help", "stauts"], "Did you mean `nbtrain status`?"),
        (["my-run.yaml"], "name a verb before it, for example `nbtrain submit my-run.yaml`."),
        (["finetune", "x"], "sets init_from: `nbtrain submit gpt-tiny-instructions` starts an example"),
        (["data", "crad"], "'crad' is unknown. Did you mean card? Choose from prepare, download, "),
        (["generate", "x", "--dtype", "bf61"], "'bf61' is unknown. Did you mean bf16? Choose from auto, "),
    ],
)
def test_a_word_that_is_unknown_is_answered_with_the_nearest(words, answer, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    assert end.value.code == 2
    assert answer in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "usage", "answer"),
    [
        ("submit gpt-tiny --wiat", "submit", "unrecognized arguments: --wiat. Did you mean --wait?"),
        ("data card x --htlm=a.html", "data card", "--htlm=a.html. Did you mean --html?"),
        ("stop gpt-tiny --yes please", "cancel", "unrecognized arguments: --yes please"),
    ],
)
def test_arguments_that_a_verb_does_not_know_are_answered_with_its_own_usage(words, usage, answer, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(words.split())
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith(f"usage: nbtrain {usage} [-h] ") and f"nbtrain {usage}: error: " in error
    assert error.rstrip("\n").endswith(answer)


def test_aliases_and_words_of_other_programs_are_no_verbs():
    """No name has two meanings, and every command of LitGPT and Axolotl is either a
    command here or is explained.
    """
    assert len({*VERBS, *ALIASES, *ELSEWHERE}) == len(VERBS) + len(ALIASES) + len(ELSEWHERE)
    litgpt = "download chat finetune pretrain generate evaluate serve merge_lora convert_from_litgpt"
    axolotl = "preprocess train evaluate inference merge-lora fetch vllm-serve config-schema"
    assert {*litgpt.split(), *axolotl.split()} <= {*VERBS, *ALIASES, *ELSEWHERE}


@pytest.mark.parametrize(
    ("typed", "verb", "values"),
    [
        ("train gpt-tiny batch.max_steps=2 --wait", "submit", {"run": "gpt-tiny", "wait": True}),
        ("stop gpt-tiny --now", "cancel", {"run": "gpt-tiny", "now": True}),
        ("inference gpt-tiny Hello", "generate", {"prompts_after": ["Hello"]}),
        ("preprocess gpt-tiny", "prepare", {"run": "gpt-tiny"}),
        ("merge-lora mine out", "export", {"words": ["out"], "to": "hf"}),
    ],
)
def test_an_alias_is_its_verb(typed, verb, values):
    """An alias accepts all arguments of its command."""
    options = vars(cli.parse(typed.split()))
    same = vars(cli.parse([verb, *typed.split()[1:]]))
    assert options["word"] == verb and options["verb"] is not None
    assert {name: options[name] for name in values} == values
    assert {**options, "parser": None} == {**same, "parser": None}


def test_help_pages_are_made_of_sentences(parsers):
    """Each help text is a sentence with a capital letter and a full stop, and numbers are written out."""
    for words, parser in parsers.items():
        page = parser.format_help()
        assert page.startswith(f"usage: nbtrain {words} ") and "e+0" not in page, page
        actions = [action for action in parser._actions if not isinstance(action, argparse._SubParsersAction)]
        for text in (parser.description, *(action.help for action in actions)):
            assert text and re.match(r"[A-Z`]", text) and text.endswith("."), (words, text)
            assert "  " not in text and "(default" not in text, (words, text)


def test_summaries_fit_their_line():
    for verb in VERBS.values():
        assert len(verb.summary) <= SUMMARY_CHARS and verb.summary.endswith("."), verb


def test_the_help_of_settings_says_where_the_keys_are(parsers):
    """The help for `key=value` says where the keys are listed."""
    with_settings = {
        words: action.help
        for words, parser in parsers.items()
        for action in parser._actions
        if action.dest == "overrides" and words != "data card"
    }
    assert {"submit", "plan", "check", "resume", "clone", "prepare", "twin"} <= set(with_settings)
    for text in with_settings.values():
        assert "`nbtrain check RUN --resolved`" in text and "docs/config.md" in text


@pytest.mark.slow
def test_examples_of_help_are_understood(parsers):
    """Each example line in the help can be parsed; its runs and files need not exist."""
    lines = [line.strip() for parser in parsers.values() for line in (parser.epilog or "").splitlines()[1:]]
    assert len(lines) > 20
    for line in lines:
        program, *words = shlex.split(line)
        assert program == "nbtrain" and cli.parse(words).verb
