"""The sources behind a committed page of measurements: a hash of the code, and the library versions.

The hash covers the modules that a page's entry points import, directly or indirectly and wherever the import
statement is, and the test files that select and compare. Other modules cannot change a result, so editing a
data source, a widget or a command does not make a page stale. Neither does editing a comment, a docstring or
an empty line.
"""

import ast
import functools
import hashlib
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
LIBRARIES = ("torch", "deepspeed")


@dataclass(frozen=True)
class Evidence:
    """A page of measurements and the sources of its numbers."""

    page: Path
    command: str
    """Command that writes the page."""
    entry_points: tuple[str, ...]
    """Modules that are run; the modules that they import are counted too."""
    tests: tuple[str, ...]
    """Test files that select and compare, relative to the repository; their imports are not counted."""
    without: tuple[str, ...] = ("nbtrain.corpus",)
    """Imported packages that do not affect the numbers. Of corpus, for example, only file names and the hash
    of a tokenizer are used.
    """


PARITY = Evidence(
    REPOSITORY / "docs" / "evidence" / "parity.md",
    "make parity",
    ("nbtrain.train.__main__", "nbtrain.checkpoint.weights.store"),
    (
        "tests/parity/autotp.py",
        "tests/parity/cases.py",
        "tests/parity/oracle.py",
        "tests/parity/plain_gpt.py",
        "tests/parity/reshaping.py",
        "tests/parity/resuming.py",
        "tests/parity/runner.py",
        "tests/parity/worker.py",
        "tests/train/launch.py",
    ),
    # A rule refuses a run; it changes no number of a run that is trained.
    ("nbtrain.corpus", "nbtrain.config.rules.check"),
)
PARITY_ULYSSES = replace(
    PARITY,
    page=PARITY.page.with_name("parity-ulysses.md"),
    command="make parity PARITY_ARGS=--ulysses",
)
PARITY_CONTEXT = replace(
    PARITY,
    page=PARITY.page.with_name("parity-context.md"),
    command="make parity PARITY_ARGS=--context",
)
FAULTS = Evidence(
    REPOSITORY / "docs" / "evidence" / "faults-local.md",
    "make faults",
    ("nbtrain.train.__main__", "nbtrain.jobs.supervisor.__main__", "nbtrain.jobs.attempt.rank_wrapper"),
    ("tests/jobs/faults_table.py",),
    # A backend reads logs for users, which a supervisor does not.
    ("nbtrain.corpus", "nbtrain.monitor"),
)

INTERRUPTIONS = Evidence(
    REPOSITORY / "docs" / "evidence" / "interruptions.md",
    "make soak",
    ("nbtrain.train.__main__", "nbtrain.train.twin.fork_server", "nbtrain.planner.budget.interruptions"),
    (
        "tests/planner/budget/metered_rank.py",
        "tests/planner/budget/real_interruptions.py",
        "tests/train/launch.py",
    ),
    ("nbtrain.corpus", "nbtrain.monitor"),
)


def modules(entry_points: Iterable[str], root: Path = REPOSITORY, without: Iterable[str] = ()) -> list[Path]:
    """Return the files of these modules and of all modules that they import, directly or not, relative to
    `root`.

    Raises ValueError if an entry point does not exist.
    """
    left, found, skipped = list(entry_points), set(), tuple(without)
    seen = set(left)
    for name in left:
        if _file(name, root) is None:
            raise ValueError(
                f"{name} is no module below {root}: tests/parity/sources.py names the entry points"
            )
    while left:
        name = left.pop()
        path = _file(name, root)
        leave_out = any(name == other or name.startswith(f"{other}.") for other in skipped)
        if path is not None and path not in found and not leave_out:
            found.add(path)
            left += (names := set(_imported(path.read_text())) - seen)
            seen |= names
    return sorted(path.relative_to(root) for path in found)


def _file(name: str, root: Path) -> Path | None:
    path = root / Path(*name.split("."))
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((candidate for candidate in candidates if candidate.is_file()), None)


# Pages share most of their files, so each text is parsed and tokenized once.
@functools.cache
def _imported(source: str) -> tuple[str, ...]:
    """Yield names that may be modules of the package, with the packages that contain them."""
    return tuple(_names_imported(ast.parse(source)))


def _names_imported(tree: ast.Module) -> Iterator[str]:
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            left += node.orelse
            continue
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            parts = name.split(".")
            if parts[0] == "nbtrain":
                yield from (".".join(parts[:end]) for end in range(1, len(parts) + 1))
        # Only statements: no expression holds an import, and most nodes are expressions.
        for field in ("body", "handlers", "orelse", "finalbody", "cases"):
            left += getattr(node, field, ())


@functools.cache
def code_of(source: str) -> str:
    """Return a Python file without comments, docstrings, empty lines and trailing whitespace."""
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    gone = [token for token in tokens if token.type == tokenize.COMMENT]
    tokens = [token for token in tokens if token.type not in (tokenize.COMMENT, tokenize.NL)]
    starts = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
    for number, token in enumerate(tokens[:-1]):
        first = number == 0 or tokens[number - 1].type in starts
        if token.type == tokenize.STRING and first and tokens[number + 1].type == tokenize.NEWLINE:
            gone.append(token)
    lines = source.splitlines(keepends=True)
    for token in sorted(gone, key=lambda token: token.start, reverse=True):
        (first_row, first), (last_row, last) = token.start, token.end
        rest = lines[last_row - 1][last:]
        lines[first_row - 1 : last_row] = [lines[first_row - 1][:first] + rest]
    stripped = (line.rstrip() for line in "".join(lines).splitlines())
    return "".join(f"{line}\n" for line in stripped if line)


def sources_sha256(evidence: Evidence = PARITY, root: Path = REPOSITORY) -> str:
    """Return a hash of the names and the code of all files that affect the page's numbers."""
    digest = hashlib.sha256()
    for path in (*modules(evidence.entry_points, root, evidence.without), *map(Path, evidence.tests)):
        text = (root / path).read_text()
        code = (code_of(text) if path.suffix == ".py" else text).encode()
        digest.update(f"{path.as_posix()} {len(code)}\n".encode() + code)
    return digest.hexdigest()


def stamp(evidence: Evidence = PARITY) -> str:
    """Return the line in a page that names the sources of its numbers."""
    # Without a build's suffix, such as +cpu.
    versions = ", ".join(f"{library} {version(library).partition('+')[0]}" for library in LIBRARIES)
    return f"Sources: sha256 `{sources_sha256(evidence)}`, {versions}."


def staleness(evidence: Evidence = PARITY) -> str:
    """Return the reason why the page's numbers are out of date; "" if they are not."""
    name = f"docs/evidence/{evidence.page.name}"
    if not evidence.page.exists():
        return f"{name} is not there: `{evidence.command}` writes it"
    found = re.search(r"^Sources: .*$", evidence.page.read_text(), re.MULTILINE)
    if found is None or found[0] != stamp(evidence):
        said = found[0].replace("Sources: ", "") if found else "nothing."
        return f"{name} is stale: it holds for {said} `{evidence.command}` renews it"
    return ""
