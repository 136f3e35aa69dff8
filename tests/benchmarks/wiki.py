"""Wikipedia text: our extraction compared with wikiextractor, by articles per CPU second and leftover markup.

    python tests/benchmarks/wiki.py DUMP.xml.bz2 [--rounds 5] [--wikiextractor PYTHON]

Both read the same .xml.bz2 and write the text of its articles. Each is measured as a whole process, including
start-up and children, and they alternate in one call. wikiextractor (AGPL-3.0; not part of nbtrain) is run by
the Python of --wikiextractor, or by this one if it can import it; otherwise only our results are printed.
Prints medians and their ratio; asserts nothing. For a small sample, start-up dominates: --repeat writes its
pages several times into one dump for both, which shows the rate of a long dump.
"""

import argparse
import bz2
import importlib.util
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]

# Leftover markup, counted over all texts.
RESIDUE = {
    "braces": r"\{\{|\}\}",
    "links": r"\[\[|\]\]",
    "references": r"</?ref\b",
    "tables": r"\{\||\|\}",
    "thumb": r"\bthumb\s*\|",
    "Category": r"\bCategory:",
    "px": r"\b\d+px\b",
    "quotes": r"'''?",
    "tags": r"</?[a-zA-Z][^<>\n]*>",
    "entities": r"&#?\w+;",
}


def ours(dump: str, output: str) -> None:
    """Extract a dump in one process, writing one JSON object per line."""
    from nbtrain.config.sections.sources import WikiSource
    from nbtrain.corpus.sources.base import open_source

    with Path(output).open("w") as stream:
        for text in open_source(WikiSource(kind="wiki", path=dump)).documents():
            stream.write(json.dumps({"text": text}) + "\n")


def cpu_seconds(command: list[str], folder: Path) -> float:
    """Run a process and return its CPU seconds, children included. Modules are compiled in a folder, as pip
    compiles them.
    """
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(command, check=True, cwd=REPOSITORY, env=environment, **quiet)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def texts(path: Path) -> list[str]:
    """Yield all texts of a file or of the folder that wikiextractor writes, where
    redirects are empty articles.
    """
    paths = sorted(path.rglob("wiki_*")) if path.is_dir() else [path]
    read = [json.loads(line)["text"] for one in paths for line in one.read_text().splitlines()]
    return [text for text in read if text.strip()]


def repeated(dump: Path, times: int, folder: Path) -> Path:
    """Write a dump in which the pages occur several times."""
    content = bz2.decompress(dump.read_bytes())
    begin, end = content.index(b"<page>"), content.rindex(b"</mediawiki>")
    path = folder / f"repeated-{times}.xml.bz2"
    path.write_bytes(bz2.compress(content[:begin] + content[begin:end] * times + content[end:]))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("dump", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--wikiextractor", metavar="PYTHON", help="a Python that has wikiextractor")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        ours(str(options.dump), options.only)
        return
    peer = options.wikiextractor or (sys.executable if importlib.util.find_spec("wikiextractor") else None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dump = options.dump.resolve()
        if options.repeat > 1:
            dump = repeated(dump, options.repeat, folder)
        contenders = {
            "nbtrain": (
                folder / "ours.jsonl",
                [sys.executable, str(Path(__file__)), str(dump), "--only", str(folder / "ours.jsonl")],
            )
        }
        if peer:
            contenders["wikiextractor"] = (
                folder / "theirs",
                [
                    *(peer, "-m", "wikiextractor.WikiExtractor", str(dump), "-o", str(folder / "theirs")),
                    *("--json", "--no-templates", "--processes", "1", "-q"),
                ],
            )
        else:
            print("wikiextractor is not here: pip install wikiextractor, or --wikiextractor PYTHON")
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(options.rounds + 1):
            for name, (_, command) in contenders.items():
                taken = cpu_seconds(command, folder)
                if number:  # the first call compiles
                    seconds[name].append(taken)
        rates = {}
        for name, (output, _) in contenders.items():
            read = texts(output)
            median = statistics.median(seconds[name])
            rates[name] = len(read) / median
            left = {
                kind: sum(len(re.findall(pattern, text)) for text in read)
                for kind, pattern in RESIDUE.items()
            }
            print(
                f"{name:14} {median:6.2f} CPU s ({min(seconds[name]):.2f} to {max(seconds[name]):.2f}), "
                f"{len(read):,} articles, {rates[name]:.0f} articles/CPU s, {sum(map(len, read)):,} "
                "characters"
            )
            shown = ", ".join(f"{kind} {count}" for kind, count in left.items() if count) or "none"
            print(f"{'':14} residue per 100 articles: {100 * sum(left.values()) / len(read):.1f} ({shown})")
        if peer:
            print(
                "articles per CPU second, nbtrain / wikiextractor: "
                f"{rates['nbtrain'] / rates['wikiextractor']:.2f}"
            )


if __name__ == "__main__":
    main()
