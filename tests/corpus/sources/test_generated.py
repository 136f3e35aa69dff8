"""Sources without files: Python's own documentation, and generated words."""

import sys
from importlib import metadata

import pytest

from nbtrain.config.sections.sources import MockSource, PythonDocsSource
from nbtrain.corpus.records import Tally
from nbtrain.corpus.sources import python_docs
from nbtrain.corpus.sources.base import open_source

MOCK_BEGINNING = "To uldo rito yovanyo wenos kiul wedori v"

MODULE = b'''"""The module's words."""
def f():
    """Of f."""
    def inner():
        """Of inner."""
class C:
    """  """
    x = "no docstring"
    async def g(self):
        """Of g.

            indented
        """
'''


def test_docstrings_in_order():
    """Docstrings of modules, functions, classes and methods are read in help()'s
    order, and no other strings.
    """
    assert list(python_docs.docstrings(MODULE)) == [
        "The module's words.",
        "Of f.",
        "Of inner.",
        "Of g.\n\nindented",
    ]


@pytest.fixture
def two_packages(tmp_path, monkeypatch):
    """Create a reader over two packages of 30 files each: `big` has long
    docstrings and `small` short ones.
    """
    for name, size in (("big", 300), ("small", 30)):
        (tmp_path / name / "tests").mkdir(parents=True)
        (tmp_path / name / "tests" / "test_x.py").write_text('"""Not this."""')
        for number in range(30):
            (tmp_path / name / f"f{number}.py").write_text(f'"""{name} {number} {"w" * size}"""')
    (tmp_path / "small" / "template.py").write_text("{{ not python }} (")
    (tmp_path / "small" / "twin.py").write_text(f'"""small 3 {"w" * 30}"""')
    monkeypatch.setattr(python_docs, "PACKAGES", {"big": "big", "small": "small", "none": "none"})
    monkeypatch.setattr(python_docs, "_topics", list)
    monkeypatch.setattr(
        python_docs, "_folder", lambda package: tmp_path / package if (tmp_path / package).is_dir() else None
    )
    monkeypatch.setattr(python_docs.sysconfig, "get_path", lambda name: str(tmp_path / "no stdlib"))
    return lambda max_bytes: python_docs.PythonDocsReader(
        PythonDocsSource(kind="python-docs", max_bytes=max_bytes)
    )


def test_packages_are_mixed_evenly(two_packages):
    """Both packages are mixed in proportion throughout the text; their tests are
    skipped, and duplicates are counted.
    """
    reader, tally = two_packages(10**6), Tally()
    documents = list(reader.documents(tally))
    names = [document.split()[0] for document in documents]
    assert len(documents) == len(set(documents)) == 60
    assert not any("Not this" in document for document in documents)
    for start in (0, 20, 40):
        assert 8 <= names[start : start + 20].count("big") <= 12
    assert tally.dropped == {"duplicate": 1, "unparsable_file": 1}
    assert list(reader.documents()) == documents


def test_cap(two_packages):
    """The text never exceeds the size limit, and a limited text is a prefix of the complete text."""
    whole = list(two_packages(10**6).documents())
    part = list(two_packages(3000).documents())
    assert part == whole[: len(part)]
    size = sum(len(document.encode()) for document in part)
    assert size <= 3000 < size + len(whole[len(part)])


def test_absent_packages_are_recorded(two_packages):
    """The fingerprint records a package that is not installed as absent, and the other packages are read."""
    versions = two_packages(100).fingerprint()["versions"]
    assert versions["none"] == "absent"


@pytest.mark.slow
def test_real_documentation():
    """The installed documentation has packages with versions and licences, and
    reading it imports none of them.
    """
    before = set(sys.modules)
    reader = open_source(PythonDocsSource(kind="python-docs", max_bytes=200_000))
    documents = list(reader.documents())
    size = sum(len(document.encode()) for document in documents)
    assert 190_000 < size <= 200_000
    described = reader.describe()
    assert described["fingerprint"]["versions"]["numpy"] == metadata.version("numpy")
    assert described["licence"]["python"] == "PSF-2.0"
    assert not {"torch", "deepspeed", "sympy", "networkx"} & (set(sys.modules) - before)


def test_help_topics():
    """Help topics are parsed from the source of pydoc with ast."""
    topics = dict(python_docs._topics())
    assert len(topics) > 50
    assert topics["assert"]()[0].startswith("The")
    assert not {"pydoc_data.topics"} & set(sys.modules)


def test_package_list_is_sorted():
    """The list is fixed and sorted, because the order of documents depends on it."""
    assert list(python_docs.PACKAGES) == sorted(python_docs.PACKAGES)


def test_mock_is_the_same_everywhere():
    """The seed determines every character of the generated text; another seed gives another text."""
    settings = {"kind": "mock", "num_documents": 3}
    documents = list(open_source(MockSource(**settings)).documents())
    assert documents == list(open_source(MockSource(**settings)).documents())
    assert documents != list(open_source(MockSource(**settings, seed=5)).documents())
    assert documents[0][:40] == MOCK_BEGINNING
    assert all(20 <= len(document.split()) <= 200 for document in documents)
