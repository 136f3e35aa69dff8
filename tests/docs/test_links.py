"""Links in README, docs, examples and notebooks: files and headings exist, and every page is reachable."""

import pytest

from tests.docs.pages import REPOSITORY, anchors, links, markdown, pages


@pytest.mark.parametrize("page", pages(), ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_link_leads_to_a_file_and_a_heading(page):
    dead = []
    for file, anchor in links(markdown(page)):
        target = (page.parent / file).resolve() if file else page
        if not target.exists() or not target.is_relative_to(REPOSITORY):
            dead.append(file)
        elif anchor and target.suffix == ".md" and anchor not in anchors(markdown(target)):
            dead.append(f"{file}#{anchor}")
    assert dead == []


def test_every_page_can_be_reached_from_the_index():
    """Every page is reachable by links from docs/README.md."""
    index = REPOSITORY / "docs" / "README.md"
    reached, left = {index}, [index]
    while left:
        page = left.pop()
        near = {(page.parent / file).resolve() for file, _ in links(markdown(page)) if file}
        new = {path for path in near if path.suffix == ".md" and path.exists()} - reached
        reached |= new
        left += new
    markdown_pages = {path for path in pages() if path.suffix == ".md" and path.parent != REPOSITORY}
    assert markdown_pages - reached == set()


@pytest.mark.parametrize("folder", ["docs", "docs/evidence"])
def test_the_index_names_every_page_of_its_folder(folder):
    """The index lists every page of its folder."""
    index = REPOSITORY / folder / "README.md"
    named = {file for file, _ in links(markdown(index))}
    names = {path.name for path in (REPOSITORY / folder).glob("*.md")} - {"README.md"}
    assert names - named == set()
