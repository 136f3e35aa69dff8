"""Reads docstrings of the standard library and of installed packages: English text without a download.

    list the .py files of each package
        -> one order that mixes all packages evenly
        -> parse with ast (nothing is ever imported)
        -> each docstring is one document
        -> stop at max_bytes

File k of a package's n files, sorted by a hash of their path, has position (k + 1/2) / n in the order. Every
range, split or prefix of the order therefore contains each package in proportion to its number of files.
Reading takes about 0.5 CPU seconds per MB.
"""

import ast
import gc
import hashlib
import os
import platform
import sysconfig
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata, util
from pathlib import Path
from typing import Any, NamedTuple

from nbtrain.corpus.records import SourcePart, Tally
from nbtrain.corpus.sources.base import SourceReader

DISTRIBUTIONS = """
deepspeed huggingface-hub ipython ipywidgets jinja2 jupyter-client jupyter-server jupyterlab matplotlib
nbconvert networkx numpy papermill psutil pydantic sympy tensorboard torch tornado tqdm traitlets werkzeug
""".split()  # noqa: SIM905 (read best as words)
# {distribution: import name}, sorted, of packages among nbtrain's dependencies whose docstrings hold much
# English text.
PACKAGES = {name: name.replace("-", "_") for name in DISTRIBUTIONS} | {"ipython": "IPython"}
STANDARD_LIBRARY = "standard library"
TOPICS = "pydoc_data.topics"
# Names of folders to skip. Tests contain little prose, for example, and not every installation has them.
LEFT_OUT = {"test", "tests", "site-packages", "dist-packages", "lib2to3", "idlelib", "_vendor", "__pycache__"}
ABSENT = "absent"


Entries = list[tuple[str, Callable[[], list[str]]]]


class Unit(NamedTuple):
    """An entry in the order that mixes all packages: the docstrings of a file, or a help topic."""

    place: float
    package: str
    name: str
    read: Callable[[], list[str]]


class PythonDocsReader(SourceReader):
    """Reads docstrings and help topics. Duplicates are dropped before the limit max_bytes is applied."""

    kind = "python-docs"
    is_extracted = True

    def accepts_drift(self, then: dict[str, Any], now: dict[str, Any]) -> bool:
        return True  # a dataset stays usable when a package is upgraded later

    def parts(self) -> Iterator[SourcePart]:
        # Duplicates and max_bytes apply to the whole source, so it is one part.
        yield SourcePart("python-docs", size_bytes=self.config.max_bytes)

    def read(self, part: SourcePart, tally: Tally) -> Iterator[str]:
        seen: set[bytes] = set()
        num_bytes = 0
        for unit in self._units(tally):
            for text in unit.read():
                tally.records += 1
                try:
                    content = text.encode()
                except UnicodeEncodeError:
                    tally.dropped["not_unicode"] += 1
                    continue
                digest = hashlib.blake2b(content, digest_size=16).digest()
                if digest in seen:
                    tally.dropped["duplicate"] += 1
                    continue
                seen.add(digest)
                num_bytes += len(content)
                if num_bytes > self.config.max_bytes:
                    return
                yield text

    def _units(self, tally: Tally) -> list[Unit]:
        read = partial(self._docstrings, tally)
        units = [
            *_spread(STANDARD_LIBRARY, _files(Path(sysconfig.get_path("stdlib")), read)),
            *_spread(TOPICS, _topics()),
        ]
        for package in PACKAGES.values():
            if (folder := _folder(package)) is not None:
                units += _spread(package, _files(folder, read))
        return sorted(units, key=lambda unit: (unit.place, unit.package, unit.name))

    def _docstrings(self, tally: Tally, path: Path) -> list[str]:
        try:
            return list(docstrings(path.read_bytes()))
        except (SyntaxError, ValueError, RecursionError):
            # Template files and files for other Python versions cannot be parsed; count them and continue.
            tally.dropped["unparsable_file"] += 1
            return []

    def fingerprint(self) -> dict[str, Any]:
        return {
            "versions": {"python": platform.python_version(), **{name: _version(name) for name in PACKAGES}}
        }

    def licence(self) -> dict[str, str]:
        licences = {"python": "PSF-2.0"}
        for name in PACKAGES:
            if _version(name) != ABSENT:
                licences[name] = _licence(name)
        return licences

    def attribution(self) -> str:
        return "Docstrings of the Python standard library and of the named packages, by their authors."

    def total_bytes(self) -> int | None:
        return self.config.max_bytes


def docstrings(source: bytes) -> Iterator[str]:
    """Yield the docstrings of a module, its classes and functions. Raises SyntaxError or ValueError."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's files
        collecting = gc.isenabled()
        # A syntax tree has a hundred thousand objects and no cycles. With the garbage collector on, parsing
        # takes three times as long.
        gc.disable()
        try:
            tree = ast.parse(source)
        finally:
            if collecting:
                gc.enable()
    stack: list[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef] = [tree]
    while stack:
        node = stack.pop()
        text = ast.get_docstring(node)
        if text and not text.isspace():
            yield text
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        stack.extend(child for child in reversed(node.body) if isinstance(child, kinds))


def _spread(package: str, entries: Entries) -> Iterator[Unit]:
    entries.sort(key=lambda entry: hashlib.blake2b(f"{package}/{entry[0]}".encode(), digest_size=8).digest())
    for index, (name, read) in enumerate(entries):
        yield Unit((index + 0.5) / len(entries), package, name, read)


def _files(folder: Path, read: Callable[[Path], list[str]]) -> Entries:
    entries: Entries = []
    for parent, folders, names in os.walk(folder):  # Path.walk is Python 3.12's
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        for name in names:
            path = Path(parent, name)
            if name.endswith(".py") and path != folder / "pydoc_data" / "topics.py":
                entries.append((path.relative_to(folder).as_posix(), partial(read, path)))
    return entries


def _topics() -> Entries:
    """Return the help topics: the strings of the dictionary in pydoc_data/topics.py."""
    path = Path(sysconfig.get_path("stdlib")) / "pydoc_data" / "topics.py"
    if not path.is_file():
        return []
    entries: Entries = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Dict):
            for name, text in ast.literal_eval(node).items():
                entries.append((name, partial(list, [text.strip()])))
    return entries


def _folder(package: str) -> Path | None:
    # For a top-level name, find_spec looks for the package without importing anything.
    spec = util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _version(distribution: str) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ABSENT


def _licence(distribution: str) -> str:
    entry = metadata.metadata(distribution)
    # Depending on the metadata version, the licence is in one of three fields.
    for field in ("License-Expression", "License"):
        if field in entry and entry[field].strip():
            return entry[field].strip().split("\n")[0]
    classifiers = [line for line in entry.get_all("Classifier") or [] if line.startswith("License ::")]
    return ", ".join(line.rpartition(" :: ")[2] for line in classifiers) or "not stated"
