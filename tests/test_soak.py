"""The results page of `make soak` can be read back, and a part is repeated only for a reason."""

import dataclasses

import pytest

from tests import soak
from tests.soak import PAGE, PARTS, Result, key_of, page_text, read_page, why_not_done

DEMO = next(part for part in PARTS if part.name == "demo")


def test_the_committed_page_is_what_its_rows_make():
    """The committed page equals the page generated from its rows; every row is an existing part that
    passed.
    """
    results = read_page(PAGE)
    assert set(results) <= {part.name for part in PARTS}
    assert PAGE.read_text() == page_text(results)
    assert [name for name, found in results.items() if not found.passed] == []


@pytest.mark.slow
def test_a_part_is_run_if_it_failed_or_its_code_has_changed(tmp_path, monkeypatch):
    page = tmp_path / "soak.md"
    assert why_not_done(DEMO, read_page(page)) == "not run yet"
    key = key_of(DEMO)
    # Each call reads 400 files, and none of them changes here.
    monkeypatch.setattr(soak, "key_of", lambda part: key)
    passed = Result(True, "1 passed, 3 deselected", 9.5, key)
    page.write_text(page_text({"demo": passed}))
    assert read_page(page) == {"demo": passed}
    assert why_not_done(DEMO, read_page(page)) == ""
    changed = dataclasses.replace(passed, stamp="`0123456789abcdef`, torch 1.0.0")
    assert why_not_done(DEMO, {"demo": changed}) == "what it depends on has changed"
    failed = Result(False, "FAILED: 1 failed", 0.1, key)
    page.write_text(page_text({"demo": failed}))
    assert why_not_done(DEMO, read_page(page)) == "FAILED: 1 failed"


def test_what_the_parts_run_and_depend_on_is_there():
    """Every file that a part runs or depends on exists; otherwise the soak would fail after ninety
    minutes.
    """
    for part in PARTS:
        for argument in (*part.arguments, *part.evidence.tests):
            if argument.startswith(("tests/", "examples/")):
                assert (soak.REPOSITORY / argument.partition("::")[0]).is_file(), part.name
        for name in part.evidence.entry_points:
            path = soak.REPOSITORY.joinpath(*name.split("."))
            assert path.with_suffix(".py").is_file(), (part.name, name)


def test_every_soak_test_is_run_by_a_part():
    """Every file with soak tests belongs to a part; otherwise its tests would never run."""
    named = {argument.partition("::")[0] for part in PARTS for argument in part.arguments}
    files = (path for path in (soak.REPOSITORY / "tests").rglob("test_*.py") if path.name != "test_soak.py")
    marked = [path for path in files if "pytest.mark.soak" in path.read_text(encoding="utf-8")]
    names = {path.relative_to(soak.REPOSITORY).as_posix() for path in marked}
    assert names - named == set()


def test_a_command_that_fails_is_a_failed_part(tmp_path, monkeypatch):
    monkeypatch.setattr(soak, "LOGS", tmp_path)
    # It reads 400 files.
    monkeypatch.setattr(soak, "key_of", lambda part: "a key")
    broken = dataclasses.replace(DEMO, arguments=("-c", "print('half | done in 3.2s'); raise SystemExit(3)"))
    found = soak.run(broken)
    assert (found.passed, found.words) == (False, "FAILED: half / done")
    assert (tmp_path / "demo.log").read_text().startswith("half")


def test_a_part_whose_tests_were_all_skipped_is_a_failed_part(tmp_path, monkeypatch):
    monkeypatch.setattr(soak, "LOGS", tmp_path)
    monkeypatch.setattr(soak, "key_of", lambda part: "a key")
    ends = {"= 10 skipped in 3.2s =": False, "= 3 passed, 4 skipped in 3.2s =": True}
    for line, passes in ends.items():
        part = dataclasses.replace(DEMO, arguments=("-c", f"print('{line}')"))
        assert soak.run(part).passed is passes
