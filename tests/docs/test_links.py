"""Links of README, docs, examples and notebooks: each file and heading is there, and each page is reached."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "notebooks/*.ipynb")
    for path in REPOSITORY.glob(pattern)
)
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
TARGET = re.compile(r"\]\(([^()\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")
HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)


def prose(path: Path) -> str:
    """A page without its code; of a notebook, the text cells."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        text = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return FENCE.sub("", text)


def links(path: Path) -> Iterator[tuple[str, str]]:
    """(path, anchor) of each link into the repository."""
    for groups in TARGET.findall(CODE.sub("``", prose(path))):
        target = groups[0] or groups[1]
        if not re.match(r"[a-z]+:", target):
            file, _, anchor = target.partition("#")
            yield file, anchor


def anchors(path: Path) -> set[str]:
    """Anchors of headings as code hosts make them: lower case, hyphens, no punctuation, -1 for a second."""
    found: dict[str, int] = {}
    names = set()
    for heading in HEADING.findall(prose(path)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        name = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if name in found else name)
        found[name] = found.get(name, 0) + 1
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_link_leads_to_a_file_and_a_heading(page):
    dead = []
    for file, anchor in links(page):
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or not target.is_relative_to(REPOSITORY):
            dead.append(file)
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            dead.append(f"{file}#{anchor}")
    assert dead == []


def test_every_page_can_be_reached_from_the_index():
    """By links alone, from docs/README.md."""
    index = REPOSITORY / "docs" / "README.md"
    reached, left = {index}, [index]
    while left:
        page = left.pop()
        near = {(page.parent / file).resolve() for file, _ in links(page) if file}
        new = {path for path in near if path.suffix == ".md" and path.exists()} - reached
        reached |= new
        left += new
    documentation = {path for path in PAGES if path.parts[len(REPOSITORY.parts)] in ("docs", "examples")}
    assert documentation - reached == set()


def test_the_index_names_every_page_of_its_folder():
    """So that a reader need not guess which page leads to which."""
    for folder in ("docs", "docs/evidence"):
        index = REPOSITORY / folder / "README.md"
        named = {file for file, _ in links(index)}
        pages = {path.name for path in (REPOSITORY / folder).glob("*.md")} - {"README.md"}
        assert pages - named == set(), folder
