"""Wikitext to text: which markup is kept and dropped, and bounded time for any page."""

# ruff: noqa: RUF001 (letters that look alike are meant)

import html
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbtrain.corpus.sentences import segments
from nbtrain.corpus.wiki import dump
from nbtrain.corpus.wiki.article.walker import Walker
from nbtrain.corpus.wiki.templates.call import Wiki
from tests.benchmarks.wiki import RESIDUE
from tests.corpus import made
from tests.fuzzing import num_cases

WALKER = Walker({6: "Datei", 14: "Kategorie"}, Wiki("en"), segments)


def text(wikitext: str) -> str:
    return WALKER.text(wikitext)


@pytest.mark.parametrize(
    ("wikitext", "expected"),
    [
        # links
        ("[[a]] [[a b|c]] [[a#b|]]s", "a c s"),
        ("[[a]]s [[:Category:X]] [[wikt:word]] [[w:x|y]]", "as Category:X word y"),
        ("x [[File:a.jpg|thumb|20px|see [[b|c]] {{d}}]] y", "x y"),
        ("x [[Datei:a.jpg|mini|text]][[Kategorie:B]][[Категория:C]] y", "x y"),
        ("x [[Unbekannt:a.svg|mini|text]] [[fr:Titre]] [[zh-min-nan:T]] y", "x y"),
        ("[[Re:Zero]] [[2001: A Space Odyssey|2001]] [[under_score]]", "Re:Zero 2001 under score"),
        ("[http://a.b label ''of''] [http://a.b] http://c.d [//e f]", "label of http://c.d f"),
        ("a [1] b [x, y) [[open b", "a [1] b [x, y) open b"),
        ("[[File:x.jpg|thumb|c [http://e.com source]]]'''Anarchism''' is", "Anarchism is"),
        ("[[File:x|a [[b|[c]]]]] [[d|[e] f]]] [[g]]] h", "[e] f] g] h"),
        # references, comments, templates
        ("a<ref>b {{c}}</ref>.<ref name=d /> E<references/>", "a. E"),
        ('a<ref\nname="b">c\nd</ref>e<ref name="f"\n/>g', "aeg"),
        ('a<ref>b</\nref>c<\nref name="d">e</ref >f', "acf"),
        ('a<ref name="b"\nc</ref>d<ref\ne</ref>f', "adf"),
        ("a < ref and b > c, x </ y", "a < ref and b > c, x </ y"),
        ("a<!-- b -->c\n<!-- d -->\ne", "ac\ne"),
        ("a {{cn|c={{d|}}}} e {{{f|}}} g {{{h|i}}}", "a e g i"),
        ("a (b, {{lang-el|γ}}; {{IPA|d}}) e", "a (b, Greek: γ; d) e"),
        ("x ({{cn}}) y ({{cn}}, z) w (v {{cn}}) f()", "x y (z) w (v) f()"),
        ("x {{cn}}, y {{cn}}. （{{cn}}）z", "x, y. z"),
        ("x {{cn}} {{cn}} y {{cn}}, z", "x y, z"),
        (
            "{{convert|5|km|mi}}, {{convert|2|to|3|m}}, {{nowrap|[[a|b]] c}}, {{lang|de|W}}",
            "5 km, 2 to 3 m, b c, W",
        ),
        ("H{{sub|2}} {{chem|SO|4|2-}} {{USS|Ohio}} {{frac|1|2}}", "H2 SO4²⁻ USS Ohio 1/2"),
        ("{{nowrap|n {{=}} 12}}, {{math|x {{=}} {{mvar|y}}}}, {{nowrap|n=3}}", "n = 12, x = y,"),
        ("a {{never closed [[b]]", "a never closed b"),
        ("a }} b ]] c", "a b c"),
        # tables
        ("a\n{| class=x\n|-\n| b || c\n{|\n| d\n|}\n|}\ne", "a\n\ne"),
        ("a\n{|\n| b\n== C ==\nd", "a\n\nC\nd"),
        ("a <table><tr><td>b<table></table></td></tr></table>c", "a c"),
        ("a\n|-\n| left = over\n|}\nb", "a\nb"),
        # tags
        ("x<sup>2</sup> H<sub>2</sub>O 1<sup>st</sup> <b>b</b><br/>c", "x² H2O 1st b\nc"),
        # A superscript or subscript number never joins an adjacent number.
        (
            "10<sup>6</sup> 10<sup>−19</sup> 10<sup>100,000</sup> 2<sup>''n''+1</sup>",
            "10^6 10^-19 10^100,000 2^(n+1)",
        ),
        ("log<sub>2</sub>8 7F<sub>16</sub> FF<sub>16</sub> 101<sub>2</sub>", "log₂8 7F₁₆ FF₁₆ 101₂"),
        (
            "C<sub>6</sub>H<sub>12</sub>O<sub>6</sub> (OH)<sub>2</sub> KP<sub>10.3</sub>",
            "C6H12O6 (OH)2 KP10.3",
        ),
        ("SO<sub>4</sub><sup>2−</sup> <sup>235</sup>U 5<sup>1</sup>/<sub>2</sub> cm", "SO4²⁻ ²³⁵U 5 1/2 cm"),
        ("10<sup><small>6</small></sup> m<sup><small>2</small></sup> 5<sup>[1]</sup>", "10^6 m2 5"),
        ("''θ''<sub>''i''</sub> T<sub>1/2</sub>", "θi T_(1/2)"),
        ("<ce>H2O</ce> <chem>CO2</chem>", "$\\ce{H2O}$ $\\ce{CO2}$"),
        ("a <nowiki>[[b]] &amp; ''c''</nowiki>", "a [[b]] & ''c''"),
        ("<math>\\frac{{a}}{b} '' x</math>", "$\\frac{ {a} }{b} '' x$"),
        ("a\n<source lang=c>\nint  x;\n  if (a<b) y;\n</source>\nb", "a\n\nint  x;\n  if (a<b) y;\n\nb"),
        ("1 < 2, vector<T>, <unknown>x</unknown>", "1 < 2, vector<T>, <unknown>x</unknown>"),
        ("a<gallery>\nFile:b.jpg|c\n</gallery>d", "ad"),
        # the rest
        ("'''a''' ''b'' '''''c''''' d's", "a b c d's"),
        # Apostrophes next to quotes: two cases per line, as a line's marks are counted together.
        ("l'''Iliade''\n''Time'''s cover", "l'Iliade\nTime's cover"),
        ("dell''''Eneide'''\n'''''''a'''''", "dell'Eneide\n''a"),
        ("''a '''b cd'''e '''f\n''ab'''cd '''e f'''g", "a b cd'e f\nabcd e f'g"),
        ("''ab '''cd", "ab 'cd"),
        ("l{{'}}''Iliade'' ''Titanic''{{'s}} crew", "l'Iliade Titanic's crew"),
        ("[[A|''A'']]'s, [[B|''B'']]'s, l'[[C|''C'']]", "A's, B's, l'C"),
        ("{{lang|fr|''A''}}'s {{lang|fr|''B''}}'s l'{{lang|fr|''C''}}", "A's B's l'C"),
        ("l'<nowiki/>''A'' l'<nowiki></nowiki>''B'' ''C''</span></i>'s", "l'A l'B C's"),
        ("l'<ref name=a />''A'' [http://a.b ''B'']'s ''C''&#39;s", "l'A B's C's"),
        ("a&nbsp;b &lt;c&gt; &#945;&#x3b2; &amp; & &nosuch; Q&A", "a b <c> αβ & & &nosuch; Q&A"),
        ("__NOTOC__a __FORCETOC__ __init__", "a __init__"),
        ("* a\n** b\n# c\n: d\n; e : f\n*\n* {{g}}", "- a\n- b\n- c\nd\ne : f"),
        ("a\n\n\n\nb\n----\nc", "a\n\nb\n\nc"),
        ("-{zh-hans:计算机;zh-hant:電腦;}- -{x}-", "计算机 x"),
        ("-{H|zh-cn:甲;zh-tw:乙}-正-{A;H|甲}--{T|乙}--{-|丙}-文-{A|zh-cn:丁}--{R|戊}-", "正文丁戊"),
        ("a\u200b \u00adb\u00a0\u00a0c", "a b c"),
        ("", ""),
        ("{{only}}\n[[Category:x]]", ""),
    ],
)
def test_markup(wikitext, expected):
    assert text(wikitext) == expected


def test_sections():
    """A heading follows an empty line; a section without text is dropped, and so are parents without any."""
    wikitext = (
        "Lead.\n== A ==\n=== A1 ===\ntext<ref>x</ref>\n=== A2 ===\n{{t}}\n== B ==\n=== B1 ===\n==== B2 ====\n"
        "== C '''bold''' {{anchor}}==\n* one\n== References ==\n{{reflist}}\n== External links ==\n* "
        "{{x}}\n[[Category:Y]]"
    )
    assert text(wikitext) == "Lead.\n\nA\nA1\ntext\n\nC bold\n- one"


PIECES = [
    *(
        "[[",
        "]]",
        "[[a|",
        "[",
        "]",
        "{{",
        "}}",
        "{{nowrap|",
        "{{lang|de|",
        "|",
        "{|",
        "|}",
        "\n{|\n",
        "\n|}\n",
        "|-",
    ),
    *(
        "<ref>",
        "</ref>",
        "<ref name=a />",
        "<!--",
        "-->",
        "<math>",
        "</math>",
        "<nowiki>",
        "</nowiki>",
        "<table>",
    ),
    *(
        "</table>",
        "<b>",
        "</b>",
        "<br>",
        "<",
        ">",
        "<pre>",
        "</pre>",
        "''",
        "'''",
        "\n==",
        "==\n",
        "\n== a ==\n",
        "=",
        "\n",
    ),
    *(
        "\n* ",
        "\n#",
        "\n:",
        "\n;",
        "&amp;",
        "&#x41;",
        "&",
        "http://a.b/c",
        "[http://a.b ",
        "mailto:x",
        "//",
        "(",
        ")",
        ", ",
    ),
    *(
        "File:",
        "Category:",
        "fr:",
        ":",
        "__NOTOC__",
        "__",
        "-{",
        "}-",
        " ",
        "word",
        "é",
        "\x7f1\x7f",
        "\x1a",
        "\x18",
        "\r\n",
    ),
    *("{{a}}", "({{a}})", "[[File:a|b]]", "x<ref>y</ref>", "{{cn}}", "{{sup|", "<sup>", "5<sup>2</sup>"),
    *("{{#if:", "{{#expr:", "x {{a}}. Y ", "z.{{a}} "),
]


@pytest.mark.slow
@settings(max_examples=num_cases(200), deadline=None)
@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_any_markup_gives_text(pieces):
    """Brackets in any order raise no exception and leave no internal marker, also in a second pass."""
    found = text("".join(pieces))
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f]", found)
    assert found == found.strip()
    WALKER.text(found)


@pytest.mark.slow
@pytest.mark.parametrize("piece", sorted(set(PIECES)))
def test_time_grows_with_the_page(piece):
    """For a page of one repeated bracket, the time about doubles when the page doubles."""

    def seconds(size: int) -> float:
        wikitext = piece * (size // len(piece))
        begun = time.process_time()
        text(wikitext)
        return time.process_time() - begun

    seconds(1000)
    # Garbage collection or another process may slow one measurement, but not every one.
    for _ in range(5):
        small, large = seconds(40_000), seconds(160_000)
        if large < 8 * small + 0.2:
            return
    pytest.fail(f"{small:.2f} s for 40 kB, {large:.2f} s for 160 kB")


def test_deep_nesting():
    """Markup nested deeper than on any real page ends in time, and the text around it is kept."""
    for opening, closing in (
        ("{{nowrap|", "}}"),
        ("[[a|", "]]"),
        ("{|\n", "\n|}\n"),
        ("<table>", "</table>"),
        ("(", ")"),
    ):
        found = text(f"before\n{opening * 3000}x{closing * 3000}\nafter")
        assert found.startswith("before") and found.endswith("after")


def residue(texts: list[str]) -> dict[str, int]:
    return {name: sum(len(re.findall(pattern, one)) for one in texts) for name, pattern in RESIDUE.items()}


def test_articles_of_many_parts():
    """Sections with known text give that text in any order and leave no markup."""
    walker = Walker({0: "", 6: "Datei", 14: "Kategorie"}, Wiki("en"), segments)
    found = [(walker.text(wikitext), expected) for _, wikitext, expected in made.articles(100)]
    assert all(ours == expected for ours, expected in found)
    assert residue([ours for ours, _ in found]) == dict.fromkeys(RESIDUE, 0)
    raw = residue([wikitext for _, wikitext, _ in made.articles(100)])
    assert min(raw.values()) > 0, "each kind of markup occurs in the articles"


def numbers(text: str) -> list[str]:
    """Return the numbers of a text without thousands separators."""
    return re.findall("[0-9]+", re.sub("(?<=[0-9]),(?=[0-9]{3})", "", text))


def strange_sentences(text: str, wikitext: str, language: str) -> list[str]:
    """Return sentences with a number that no paragraph of the wikitext has; ×10^ comes from a power."""
    paragraphs = [{*numbers(html.unescape(part))} for part in re.split(r"\n\s*\n", wikitext)]
    sentences = [part for line in text.split("\n") for part in segments(language, line.replace("×10^", " "))]
    return [part for part in sentences if not any({*numbers(part)} <= known for known in paragraphs)]


@pytest.mark.slow
def test_sample(shared_data):
    """In real articles no markup is left, every number is in its paragraph, and few sentences are dropped."""
    assert strange_sentences("It is 5. Or 2 of 3.", "It is 5.\n\nOr 2.\n \nOr 3.", "en") == ["Or 2 of 3."]
    for name, language in (
        ("enwiki-pages-articles-sample.xml.bz2", "en"),
        ("enwiki-table-markup.xml.bz2", "en"),
        ("bgwiki-pages-articles-sample-utf16.xml.bz2", "bg"),
    ):
        found = dump.open_dump(shared_data / "wiki" / name)
        assert found.language == language
        walker = Walker(found.namespaces, Wiki(language), segments)
        texts = []
        for piece in dump.pieces(found):
            for page, _ in dump.pages(piece.xml):
                if page.namespace == 0 and not page.is_redirect:
                    texts.append(walker.text(page.text, page.title))
                    assert strange_sentences(texts[-1], page.text, language) == [], page.title
        assert residue(texts) == dict.fromkeys(RESIDUE, 0)
        assert walker.dropped_sentences < 0.02 * walker.sentences
        if name.startswith("enwiki-pages"):
            assert len(texts) == 106
            assert sum(map(len, texts)) > 2_800_000
