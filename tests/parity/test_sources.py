"""The committed page of figures says what it holds for, and a run of the tests says when that is over."""

import pytest

from tests.parity.sources import PAGE, REPOSITORY, sources_sha256, staleness, stamp


def test_the_page_holds_for_these_sources():
    """Where it does not, this is skipped, with the reason among pytest's last lines: sources change in every commit,
    and the whole product takes long."""
    if reason := staleness():
        pytest.skip(reason)


def test_the_page_counts_no_failure():
    """Stale or not, what is committed is whole."""
    if not PAGE.exists():
        pytest.skip("docs/parity.md is not there: `make parity` writes it")
    assert "FAILED" not in PAGE.read_text()


def test_a_changed_source_makes_the_page_stale(tmp_path):
    page = tmp_path / "parity.md"
    assert "is not there" in staleness(page)
    page.write_text(f"# Parity\n\n{stamp()}\n")
    assert staleness(page) == ""
    page.write_text(f"# Parity\n\n{stamp().replace('sha256 `', 'sha256 `0')}\n")
    assert "is stale: it holds for sha256 `0" in staleness(page)


def test_the_hash_is_of_names_and_contents(tmp_path):
    for name, content in (("model/a.py", "one"), ("model/b.py", "two"), ("train/c.txt", "no source")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    first = sources_sha256(tmp_path)
    (tmp_path / "train/c.txt").write_text("other")
    assert sources_sha256(tmp_path) == first
    (tmp_path / "model/b.py").write_text("too")
    second = sources_sha256(tmp_path)
    (tmp_path / "model/b.py").rename(tmp_path / "model/d.py")
    assert len({first, second, sources_sha256(tmp_path), sources_sha256(REPOSITORY / "nbtrain")}) == 4
