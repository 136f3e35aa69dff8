"""Pictures of the documentation are small, described and used; in the soak, none is outdated."""

import re

import pytest

from nbtrain.base import files
from tests.docs.pages import REPOSITORY, links, markdown, pages
from tests.pictures import ALL, MANIFEST, MOST_BYTES, PICTURES


def test_each_picture_is_small_described_and_used():
    """The manifest, the folder and the pages have the same pictures, and each is small and described."""
    manifest = files.read_json(MANIFEST)
    paths = {path.stem: path for path in PICTURES.glob("*.png")}
    linked = {
        match[1]
        for page in pages()
        for target, _ in links(markdown(page))
        if (match := re.search(r"pictures/([\w-]+)\.png$", target))
    }
    assert set(paths) == set(manifest) == {picture.name for picture in ALL}
    assert linked == set(paths), "a picture that no page shows"
    for name, path in paths.items():
        assert path.stat().st_size == manifest[name]["bytes"] < MOST_BYTES
    assert len(list(REPOSITORY.glob("docs/pictures/*"))) == len(paths) + 1
    # Sources that have moved would let a picture be outdated unnoticed.
    patterns = {pattern for picture in ALL for pattern in picture.sources}
    assert [pattern for pattern in patterns if next(REPOSITORY.glob(pattern), None) is None] == []


@pytest.mark.soak
@pytest.mark.parametrize("picture", ALL, ids=lambda picture: picture.name)
def test_the_picture_is_not_stale(picture):
    """A picture is up to date if the sources it depends on are unchanged since `make pictures`."""
    entry = files.read_json(MANIFEST)[picture.name]
    assert entry["sources_sha256"] == picture.sources_sha256(), (
        f"run `python -m tests.pictures --only {picture.name}`"
    )
