"""The repository's pages for readers: their links, headings and code blocks."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
FENCE = re.compile(r"^(`{3,}|~{3,})([^\n`]*)\n(.*?)^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
TARGET = re.compile(r"\]\(([^()\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


def pages() -> list[Path]:
    """Yield README.md and the pages next to it, the documentation, the examples and the notebooks."""
    patterns = ("*.md", "docs/**/*.md", "examples/**/*.md", "notebooks/*.ipynb")
    return sorted(path for pattern in patterns for path in REPOSITORY.glob(pattern))


def markdown(path: Path) -> str:
    """Return the text of a page, or the text cells of a notebook."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def links(text: str) -> Iterator[tuple[str, str]]:
    """Return (path, anchor) of each link in a Markdown text, except links to other hosts."""
    for groups in TARGET.findall(CODE.sub("``", FENCE.sub("", text))):
        target = groups[0] or groups[1]
        if not re.match(r"[a-z]+:", target):
            file, _, anchor = target.partition("#")
            yield file, anchor


def anchors(text: str) -> set[str]:
    """Return the anchors of headings as code hosts form them: lower case, hyphens, no punctuation.

    A repeated heading gets the suffix -1.
    """
    found: dict[str, int] = {}
    names = set()
    for heading in HEADING.findall(FENCE.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if name in found else name)
        found[name] = found.get(name, 0) + 1
    return names


@dataclass(frozen=True)
class Block:
    """A code block, and the comment on the line before it, which names the test that runs it."""

    language: str
    text: str
    mark: str
    """The comment's text, `run by FILE` or `not run: REASON`; "" if
    tests/docs/test_commands.py runs the block.
    """
    is_output: bool
    """Whether the block directly follows a command that is run, and so shows its output."""


def blocks(text: str) -> list[Block]:
    """Return the code blocks of a page, in order."""
    found: list[Block] = []
    end = 0
    for match in FENCE.finditer(text):
        between = text[end : match.start()]
        mark = re.search(r"<!-- (.*) -->\n$", between)
        after_command = bool(found) and found[-1].language in ("sh", "python") and not found[-1].mark
        output = match[2] == "text" and after_command and not between.strip()
        found.append(Block(match[2].strip(), match[3], mark[1] if mark else "", output))
        end = match.end()
    return found


def commands(block: Block) -> list[str]:
    """Return the command lines of a `sh` or `console` block; lines that end with a backslash are joined."""
    lines = block.text.replace("\\\n", " ").splitlines()
    if block.language == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    return [line for line in lines if line.strip() and not line.startswith("#")]
