"""Wikitext parsers compared with ours: how they expand templates, and CPU seconds for articles.

    python tests/benchmarks/wiki_parsers.py DUMP.xml.bz2 --parsers PYTHON [--rounds 3]

PYTHON has mwparserfromhell and wikitextparser (pip install them into a separate environment; they are not
part of nbtrain). A template form is right if the sentence around it becomes what a reader of the page sees,
or is dropped if that cannot be known: tests/corpus/wiki/template_forms.txt. The parsers alternate in one
call. Prints medians; asserts nothing.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
sys.path.insert(0, str(REPOSITORY))


def load(name: str):
    """Return a parser's function from wikitext to plain text; only our parser uses the language."""
    if name == "nbtrain":
        from nbtrain.corpus.sentences import segments
        from nbtrain.corpus.wiki.article.walker import Walker
        from nbtrain.corpus.wiki.templates.call import Wiki

        walkers: dict[str, Walker] = {}

        def ours(wikitext: str, language: str) -> str:
            if language not in walkers:
                walkers[language] = Walker({}, Wiki(language), segments)
            return walkers[language].text(wikitext, "Page")

        return ours
    if name == "mwparserfromhell":
        import mwparserfromhell

        return lambda wikitext, language: mwparserfromhell.parse(wikitext).strip_code()
    if name == "mwparserfromhell, parse alone":
        import mwparserfromhell

        return lambda wikitext, language: str(mwparserfromhell.parse(wikitext) and "")
    import wikitextparser

    return lambda wikitext, language: wikitextparser.parse(wikitext).plain_text()


def run(name: str, folder: Path) -> None:
    """Print the number of template forms that a parser gets right, and its CPU seconds for all articles."""
    text = load(name)
    right = 0
    for language, wikitext, expected in json.loads((folder / "forms.json").read_text()):
        found = " ".join(text(wikitext, language).replace("\u2212", "-").split())
        right += found == expected
    articles = json.loads((folder / "articles.json").read_text())
    begun = time.process_time()
    for article in articles:
        text(article, "en")
    print(json.dumps([right, time.process_time() - begun]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dump", type=Path)
    parser.add_argument("--parsers", metavar="PYTHON", required=True)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        run(options.only[0], Path(options.only[1]))
        return
    from nbtrain.corpus.wiki import dump
    from tests.corpus.wiki.test_templates import forms

    pages = [page for piece in dump.pieces(dump.open_dump(options.dump)) for page, _ in dump.pages(piece.xml)]
    articles = [page.text for page in pages if page.namespace == 0 and not page.is_redirect]
    sentences = []
    for language, _, wikitext, shown in forms():
        middle = {"GONE": "", "NOTHING": "It is here. "}.get(shown, f"It is {shown} here. ")
        sentences.append((language, f"Before. It is {wikitext} here. After.", f"Before. {middle}After."))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "articles.json").write_text(json.dumps(articles))
        (folder / "forms.json").write_text(json.dumps(sentences))
        contenders = {
            "nbtrain": sys.executable,
            "mwparserfromhell": options.parsers,
            "mwparserfromhell, parse alone": options.parsers,
            "wikitextparser": options.parsers,
        }
        found: dict[str, list[tuple[int, float]]] = {name: [] for name in contenders}
        for _ in range(options.rounds):
            for name, python in contenders.items():
                command = [python, __file__, str(options.dump), "--parsers", "x", "--only", name, str(folder)]
                found[name].append(json.loads(subprocess.check_output(command, cwd=REPOSITORY)))
        for name, results in found.items():
            seconds = statistics.median(taken for _, taken in results)
            print(
                f"{name:30} {results[0][0]:4} of {len(sentences)} forms right, "
                f"{seconds:.2f} CPU s for {len(articles)} articles"
            )


if __name__ == "__main__":
    main()
