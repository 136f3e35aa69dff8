"""Templates of the largest Wikipedias: a number is rendered correctly or its sentence is dropped."""

import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from nbtrain.corpus.sentences import segments
from nbtrain.corpus.wiki.article.walker import Walker
from nbtrain.corpus.wiki.markup import GAP
from nbtrain.corpus.wiki.templates.call import Call, Wiki
from nbtrain.corpus.wiki.templates.functions import FUNCTIONS
from nbtrain.corpus.wiki.templates.library import LANGUAGES, tables

FORMS = Path(__file__).with_name("template_forms.txt")


def forms() -> list[tuple[str, str, str, str]]:
    """Return (language, source, wikitext, expected text) of each case in template_forms.txt."""
    language = source = ""
    found = []
    for line in FORMS.read_text(encoding="utf-8").split("\n"):
        if match := re.fullmatch(r"\[([a-z]+)\]", line):
            language = match[1]
        elif language and line.startswith("# "):
            source = line[2:]
        elif language and line:
            wikitext, arrow, text = line.rpartition(" => ")
            assert arrow and source, line
            found.append((language, source, wikitext, text))
    return found


@cache
def walker(language: str) -> Walker:
    return Walker({}, Wiki(language), segments)


def read(wikitext: str, language: str = "en") -> str:
    return walker(language).text(wikitext, "Page")


def test_there_are_thirty_forms_of_each_language():
    """Each language has thirty cases, and in none the expected text is the wikitext itself."""
    counts = Counter(language for language, *_ in forms())
    assert counts.keys() == set(LANGUAGES)
    assert min(counts.values()) >= 30


@pytest.mark.parametrize("language", LANGUAGES)
def test_forms(language):
    """Each template becomes what a reader of the page sees, or its whole sentence is dropped."""
    wrong = []
    for own, source, wikitext, text in forms():
        if own != language:
            continue
        sentence = {"GONE": "", "NOTHING": "It is here. "}.get(text, f"It is {text} here. ")
        expected = f"Before. {sentence}After."
        found = read(f"Before. It is {wikitext} here. After.", language)
        if found != expected:
            wrong.append(f"{source}: {wikitext}: {found!r}, must be {expected!r}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("wikitext", "expected"),
    [
        # A template that cannot be evaluated is dropped with its sentence, and nothing else.
        ("One. It costs {{x|5}} euros. Two.", "One. Two."),
        ("One. {{x|5}} euros were paid. Two.", "Two."),  # "One. 5" may be one sentence
        ("It is approx. {{x|5}} km long. Two.", "Two."),
        ("It is {{x|5}} (see p. 5. And more). Two.", "Two."),
        ("One. He (born in {{x|5}}. He died in 1990) lived. Two.", "One. Two."),
        ("One. He came in 1990 with {{x|5}}\nmen and left. Two.", "One. Two."),
        ("One {{nowrap|of {{x|5}} km}}. Two.", "Two."),
        ("One [[link|of {{x|5}} km]]. Two.", "Two."),
        ("* one {{x|5}} two\n* three", "- three"),
        ("* One. It is {{x|5}}. Two.\n* three", "- One. Two.\n- three"),
        ("== A {{x|5}} ==\nOne.", "One."),
        ("One 10<sup>{{x|5}}</sup>. Two.", "Two."),
        ("One <hiero>G5</hiero>. Two.", "Two."),
        # Outside sentences it is dropped alone: on a separate line, in a reference, table, caption or box.
        ("One.\n\n{{x|5}}\n\nTwo.", "One.\n\nTwo."),
        ("* {{x|5}}\n* one", "- one"),
        ("One<ref>{{x|5}}</ref>. Two.", "One. Two."),
        ("One.\n{|\n| {{x|5}}\n|}\nTwo.", "One.\n\nTwo."),
        ("[[File:a.jpg|thumb|One {{x|5}}]]Two.", "Two."),
        ("{{x\n| name = {{y|5}}\n}}'''One''' is two.", "One is two."),
        # A note mark that follows the end of a sentence without a space is dropped with it.
        ("It ended here.{{x|5}} Then it began.{{x|6}}{{y|7}}\nTwo.", "It ended here. Then it began.\nTwo."),
        ("One. No.{{x|5}} men came. Two.", "One. Two."),
        # A branch that is not taken has no effect; an unknown condition does.
        ("One {{#if:|{{x|5}}|6}}. Two {{#if:{{x}}|7|8}}. Three.", "One 6. Three."),
        ("One {{#switch:{{x}}|a=1|2}}. Two {{#ifexpr:{{x}}>1|1|2}}. Three.", "Three."),
        ("One {{cn|reason={{x|5}}}}. Two.", "One. Two."),
        # An unclosed template hides no text.
        ("One {{cn|date=May. Two.", "One cn|date=May. Two."),
    ],
)
def test_gaps(wikitext, expected):
    assert read(wikitext) == expected


def test_gaps_in_japanese():
    """A Japanese full stop ends a sentence without a space after it."""
    assert read("これは文です。{{不明|5}}円です。終わり。", "ja") == "これは文です。終わり。"
    assert read("これは文です。次は{{不明|5}}円です。終わり。", "zh") == "これは文です。終わり。"


def test_counts():
    """Sentences, dropped sentences, and unknown templates by name are counted."""
    found = Walker({}, Wiki("en"), segments)
    found.text("One. It is {{Unknown template|5}}. Three.\n\n* four {{unknown_template}} five")
    assert (found.sentences, found.dropped_sentences) == (4, 2)
    assert found.unknown_templates == {"unknown template": 2}


def test_unknown_language():
    """For other languages only the common templates are known, and their numbers are not guessed."""
    assert read("It is {{lang|en|house}} {{nowrap|5 km}}. Two.", "xx") == "It is house 5 km. Two."
    assert read("It is {{formatnum:6000}}. Two.", "xx") == "Two."
    assert read("It is {{formatnum:60000}} and {{convert|1500|m|ft}}.", "bg") == "It is 60 000 and 1500 m."


ARGUMENTS = [
    None,
    "",
    "|||||||",
    "1|2|3|4|5|6|7|8|9",
    "²|٣|½|1|۲",
    "0|0|0|0|0|0",
    "-1|\u22122|+3|1e9|1/0|.",
    "99999999999999999999999|99|99|9|9|9",
    "abc|def|ghi|jkl",
    "1=5|2=km|3=|e=6|u=|df=y|99999=1|=|a=b=c",
    f"{GAP}|5|{GAP}",
    f"5|{GAP}|1|1|1|1",
    "[[a|b]]|''c''|<|&amp;",
    "2000|2|30|1999|13|1",
]


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_argument_is_an_error(language):
    """Template rules and parser functions return a text or None for any arguments, and never raise."""
    wiki = Wiki(language, title="Page")
    for name, rule in tables(language).rules.items():
        for arguments in ARGUMENTS:
            shown = rule(Call(name, arguments, "5", "0", wiki))
            assert shown is None or isinstance(shown, str), (name, arguments)
    for name, function in FUNCTIONS.items():
        for arguments in ARGUMENTS:
            shown = function((arguments or "").split("|"), wiki)
            assert shown is None or isinstance(shown, str), (name, arguments)
