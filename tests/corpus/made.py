"""Generated text, vocabulary and Wikipedia dump, always the same, for tests that use no external files."""

# ruff: noqa: RUF001 (letters that look alike are meant)

import json
import random
from collections.abc import Iterator
from pathlib import Path

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from nbtrain.corpus.tokenizer.folder import EOD_TOKEN
from tests.corpus.wiki.conftest import page

# For each script: its characters, the separator between words, and the ends of sentences.
SCRIPTS = {
    "latin": ("abcdefghijklmnopqrstuvwxyz" + "aeinorst" * 3 + "äöüßéèñçåøőžłı", " ", "."),
    "greek": ([chr(point) for point in range(0x3B1, 0x3CA)], " ", ";"),
    "cyrillic": ([chr(point) for point in range(0x430, 0x460)], " ", "!"),
    "armenian": ([chr(point) for point in range(0x561, 0x587)], " ", "։"),
    "hebrew": ([chr(point) for point in range(0x5D0, 0x5EB)], " ", "."),
    "arabic": ([chr(point) for point in range(0x627, 0x64B)], " ", "؟"),
    "devanagari": ([chr(point) for point in range(0x905, 0x94D)], " ", "।"),
    "tamil": ([chr(point) for point in (*range(0xB85, 0xB8B), *range(0xBBE, 0xBC3))], " ", "."),
    "thai": ([chr(point) for point in range(0xE01, 0xE2F)], "", " "),
    "georgian": ([chr(point) for point in range(0x10D0, 0x10F1)], " ", "."),
    "ethiopic": ([chr(point) for point in range(0x1200, 0x1248)], "፡", "።"),
    "hangul": ([chr(point) for point in range(0xAC00, 0xD7A4, 7)], " ", "."),
    "hiragana": ([chr(point) for point in range(0x3041, 0x3097)], "", "。"),
    "han": ([chr(point) for point in range(0x4E00, 0x9FA5, 3)], "", "，"),
    # Characters that take two code units in UTF-16 and four bytes in UTF-8.
    "gothic": ([chr(point) for point in range(0x10330, 0x1034B)], " ", "."),
}


VOCAB_SIZE = 6000


def texts(script: str, count: int, sentences: int = 12) -> list[str]:
    """Return documents of generated words, a few frequent and most rare, mixed with numbers and line ends."""
    letters, blank, end = SCRIPTS[script]
    chance = random.Random(script)
    short = script in ("han", "hiragana", "hangul")
    words = ["".join(chance.choices(letters, k=chance.randint(1, 3 if short else 9))) for _ in range(600)]
    words = [word.capitalize() if number % 11 == 0 else word for number, word in enumerate(words)]
    weights = [1 / (rank + 2) for rank in range(len(words))]

    def sentence() -> str:
        drawn = chance.choices(words, weights, k=chance.randint(3, 14))
        if chance.random() < 0.2:
            drawn.insert(1, str(chance.randrange(10 ** chance.randint(1, 7))))
        return blank.join(drawn) + end

    return [
        chance.choice((" ", "\n", "\n\n", "  ")).join(sentence() for _ in range(chance.randint(1, sentences)))
        for _ in range(count)
    ]


def write_gpt2_files(folder: Path, also: tuple[str, ...] = ()) -> Path:
    """Write vocab.json and merges.txt in GPT-2's layout: bytes first, then merges in order, then EOD."""
    built = tokenizers.Tokenizer(models.BPE())
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - 1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    corpus = [text for script in SCRIPTS for text in texts(script, 300 if script == "latin" else 40)]
    built.train_from_iterator([*corpus, *also * 10], trainer)
    model = json.loads(built.to_str())["model"]
    entries = sorted(model["vocab"], key=model["vocab"].get)
    folder.mkdir(parents=True, exist_ok=True)
    vocab = {entry: number for number, entry in enumerate([*entries, EOD_TOKEN])}
    (folder / "vocab.json").write_text(json.dumps(vocab), encoding="utf-8")
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n", encoding="utf-8")
    return folder


# Templates of articles: wikitext and the text expected from it. {0} to {2} are words of the article.
PARTS = [
    ("'''{0}''' is a '''''{1}''''' of [[{2}]].", "{0} is a {1} of {2}."),
    ("The [[{0} (river)|{0}]] meets the [[{1}]]s near {2}.", "The {0} meets the {1}s near {2}."),
    ("{0} was built<ref>''{1}'', p. 5</ref> in 1850.<ref name=\"x\" />", "{0} was built in 1850."),
    (
        "{{{{Infobox town\n| name = {0}\n| map = {{{{map|{1}|{{{{!}}}}}}}}\n}}}}\n{2} lies there.",
        "{2} lies there.",
    ),
    (
        '{{| class="wikitable sortable"\n|+ {0}\n! a !! b\n|-\n| style="x" | 1\n| {{| \n| '
        "{1}\n|}}\n|}}\nAfter {2}.",
        "After {2}.",
    ),
    ("[[File:{0}.jpg|thumb|250px|A [[{1}]] with a {{{{nowrap|caption}}}}]]\nBeside {2}.", "Beside {2}."),
    ("== {0} ==\n{1} &amp; {2} &lt; 5&nbsp;km", "{0}\n{1} & {2} < 5 km"),
    ("* {0}\n* [https://example.org/a {1}]\n# {2}", "- {0}\n- {1}\n- {2}"),
    ("{0} <!-- [[{1}]] {{{{hidden}}}} --> {2} <small>once</small>.", "{0} {2} once."),
    ("<gallery>\nFile:{0}.jpg|a\nImage:b.png|{1}\n</gallery>\nThen {2}.", "Then {2}."),
    ('{0} (<span lang="x">{1}</span>){{{{citation needed|reason=[[{2}]]}}}}.', "{0} ({1})."),
    ('{{{{Main|{0}}}}}\n__NOTOC__\n<div class="x">{1}<br />{2}</div>', "{1}\n{2}"),
]


def articles(count: int = 60) -> Iterator[tuple[str, str, str]]:
    """Return (title, wikitext, expected text) of articles; they end with categories and language links."""
    chance = random.Random(5)
    words = sorted({word for text in texts("latin", 40) for word in text.split() if word.isalpha()})
    for number in range(count):
        parts = [(part, chance.sample(words, 3)) for part in chance.sample(PARTS, 6)]
        wikitext = "\n\n".join(part[0].format(*drawn) for part, drawn in parts)
        kept = [part[1].format(*drawn) for part, drawn in parts]
        tail = (
            f"{{{{Reflist}}}}\n[[Category:{words[number % len(words)]}]]\n"
            f"[[Kategorie:X|y]]\n[[de:{words[number % len(words)]}]]"
        )
        yield f"Article {number}", f"{wikitext}\n\n{tail}", "\n\n".join(kept)


def dump_pages(count: int = 60) -> list[str]:
    """Return the articles as pages of a dump, with a redirect and a talk page for every tenth article."""
    pages = []
    for number, (title, wikitext, _) in enumerate(articles(count)):
        pages.append(page(title, wikitext))
        if number % 10 == 0:
            pages += [
                page(f"To {title}", f"#REDIRECT [[{title}]]", redirect=True),
                page(f"Talk:{title}", "No article. " * 5, namespace=1),
            ]
    return pages
