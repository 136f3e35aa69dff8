"""Mutation testing: change one operator of a file at a time and see whether the tests fail.

    python tests/mutation.py nbtrain/config/batch_schedule.py nbtrain/planner/memory/states.py --number 30

Each mutation changes one comparison, arithmetic operator, boolean operator, condition or number in a copy of
the repository; this tree is not touched. The fast tests that mirror the file (tests/config for
nbtrain/config/x.py, first those called test_x*.py) run until the first failure. A mutation that no test
detects is printed with its place:

    survived  nbtrain/config/arithmetic/stages.py:28: 4 / 3 -> 4 * 3

`--tests tests/config/rules` runs only these tests, which is faster, but may detect fewer mutations.

A surviving mutation means a missing test, or a change without effect (an equivalent mutation). Exits with 1
if less than --aim of the mutations are detected. The same --seed gives the same mutations of the same files.
"""

import argparse
import ast
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import Queue

REPOSITORY = Path(__file__).parents[1]
NUM_MUTATIONS = 60
AIM = 0.9
# A mutation may make a loop endless: it is caught after this many times the duration on correct code.
PATIENCE, LEAST_PATIENCE_SECONDS = 5.0, 120.0

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}


@dataclass(frozen=True)
class Mutation:
    """A single change to an expression or statement of a file."""

    path: Path
    """Path of the file, from the top of the repository."""
    line: int
    begin: int
    end: int
    """End of the bytes of the file that are replaced."""
    before: str
    after: str

    def __str__(self) -> str:
        before, after = (" ".join(text.split()) for text in (self.before, self.after))
        return f"{self.path}:{self.line}: {before} -> {after}"

    def apply(self, source: bytes) -> bytes:
        return source[: self.begin] + self.after.encode() + source[self.end :]


def _is_number(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _changed(node: ast.AST) -> Iterator[ast.AST]:
    """Yield copies of the node, each with one of the possible changes."""
    match node:
        case ast.Compare(left, operators, others):
            for place, operator in enumerate(operators):
                for other in COMPARISONS[type(operator)]:
                    yield ast.Compare(left, [*operators[:place], other(), *operators[place + 1 :]], others)
        case ast.BinOp(left, operator, right) if type(operator) in ARITHMETIC:
            # Text is joined with + and formatted with %: no arithmetic.
            if not _is_text(left) and not _is_text(right):
                yield ast.BinOp(left, ARITHMETIC[type(operator)](), right)
        case ast.AugAssign(target, operator, value) if type(operator) in ARITHMETIC:
            if not _is_text(value):
                yield ast.AugAssign(target, ARITHMETIC[type(operator)](), value)
        case ast.BoolOp(operator, values):
            yield ast.BoolOp(ast.Or() if isinstance(operator, ast.And) else ast.And(), values)
        case ast.UnaryOp(ast.Not(), operand):
            yield operand
        case ast.Constant(bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value) if _is_number(node):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)


def _negated(node: ast.AST) -> Iterator[ast.expr]:
    """Yield conditions that consist of a name or a call; they have no operator to change, so they are
    negated.
    """
    if isinstance(node, ast.If | ast.IfExp | ast.While) and isinstance(
        node.test, ast.Name | ast.Call | ast.Attribute
    ):
        yield node.test


def _is_type(node: ast.AST) -> bool:
    """Return whether a list is part of a type, as in Callable[[int], str]."""
    return (
        isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id[:1].isupper()
    )


def _visible(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes except annotations, decorators, assertions, texts and code that only type checkers
    read.
    """
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or (name == "slice" and _is_type(node)):
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.JoinedStr | ast.Assert):
                continue
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                continue
            yield child
            yield from _visible(child)


def mutations_of(path: Path, source: bytes) -> list[Mutation]:
    """Yield every mutation of a file, in the order of its source text."""
    text = source.decode()
    line_starts = [0]
    for line in source.splitlines(keepends=True):
        line_starts.append(line_starts[-1] + len(line))
    found = []
    for node in _visible(ast.parse(text)):
        changes: list[tuple[ast.AST, ast.AST]] = [(node, other) for other in _changed(node)]
        changes += [(test, ast.UnaryOp(ast.Not(), test)) for test in _negated(node)]
        for old, new in changes:
            begin = line_starts[old.lineno - 1] + old.col_offset  # type: ignore[attr-defined]
            end = line_starts[old.end_lineno - 1] + old.end_col_offset  # type: ignore[attr-defined]
            after = ast.unparse(ast.fix_missing_locations(new))
            if isinstance(new, ast.expr):
                after = f"({after})"
            before = source[begin:end].decode()
            found.append(Mutation(path, old.lineno, begin, end, before, after))  # type: ignore[attr-defined]
    return sorted(found, key=lambda mutation: (mutation.begin, mutation.end, mutation.after))


def arguments_for(path: Path, root: Path) -> list[list[str]]:
    """Yield argument lists for pytest: first the tests of the file, then all tests of its package."""
    *box, _ = path.relative_to("nbtrain").parts
    folder = root / "tests" / box[0] if box else root / "tests"
    # Only files at the top of tests/; the folders below belong to packages.
    every = [folder] if box else sorted(folder.glob("test_*.py"))
    own = sorted(folder.rglob(f"test_{path.stem}*.py")) if path.stem.strip("_") else []
    return [[str(path.relative_to(root)) for path in some] for some in (own, every) if some]


class Copy:
    """A copy of the repository in which one file is mutated at a time."""

    def __init__(self, folder: Path, tests: list[str]):
        self.root = folder / "nbtrain"
        self.tests = tests
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=REPOSITORY, capture_output=True, check=True).stdout.decode()
        for name in filter(None, names.split("\0")):
            if (REPOSITORY / name).is_file():
                (self.root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(REPOSITORY / name, self.root / name)
        if (shared := REPOSITORY.parent / "shared").is_dir():
            (folder / "shared").symlink_to(shared)
        # Bytecode of the unchanged files. No run writes any, since one mutation's would be used for the next.
        compile_ = [sys.executable, "-m", "compileall", "-q", "nbtrain"]
        subprocess.run(compile_, cwd=self.root, check=True)

    def arguments_for(self, path: Path) -> list[list[str]]:
        """Return the argument lists for pytest: those given with --tests, or the tests that belong to the
        file.
        """
        return [self.tests] if self.tests else arguments_for(path, self.root)

    def passes(self, arguments: list[str], limit_seconds: float | None = None) -> bool:
        """Return whether the fast tests pass; tests that exceed the time limit count as failed."""
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-m", "not slow", "--hypothesis-seed=0"]
        process = subprocess.Popen(
            [*command, "-p", "no:cacheprovider", *arguments],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            said, _ = process.communicate(timeout=limit_seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return False
        # 5: every test of these is slow.
        if process.returncode in (0, 5):
            return True
        if process.returncode not in (1, 2, 3, 4) and process.returncode > 0:
            raise RuntimeError(said)
        self.said = said
        return False

    def catches(self, mutation: Mutation, limit_seconds: float) -> bool:
        target, whole = self.root / mutation.path, REPOSITORY / mutation.path
        target.write_bytes(mutation.apply(whole.read_bytes()))
        try:
            return not all(
                self.passes(arguments, limit_seconds) for arguments in self.arguments_for(mutation.path)
            )
        finally:
            shutil.copy2(whole, target)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="+", type=Path, help="files of nbtrain/")
    parser.add_argument("--number", type=int, default=NUM_MUTATIONS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=1, help="copies that are tested at one time")
    parser.add_argument("--aim", type=float, default=AIM, help="the share that must be caught")
    parser.add_argument("--tests", nargs="+", default=[], help="run these instead of the mirrored folder")
    parser.add_argument("--list", action="store_true", help="print the mutations and run nothing")
    options = parser.parse_args()

    paths = [path.resolve().relative_to(REPOSITORY) for path in options.files]
    every = [mutation for path in paths for mutation in mutations_of(path, (REPOSITORY / path).read_bytes())]
    chosen = random.Random(options.seed).sample(every, min(options.number, len(every)))
    chosen.sort(key=lambda mutation: (str(mutation.path), mutation.begin))
    if options.list:
        print(*chosen, sep="\n")
        return 0
    with tempfile.TemporaryDirectory(prefix="nbtrain-mutation-") as temporary:
        copies: Queue[Copy] = Queue()
        for number in range(options.at_once):
            copies.put(Copy(Path(temporary) / str(number), options.tests))
        whole = copies.get()
        began = time.monotonic()
        for arguments in sorted({tuple(some) for path in paths for some in whole.arguments_for(path)}):
            if not whole.passes(list(arguments)):
                print(whole.said[-4000:])
                print(f"{' '.join(arguments)}: fails without any mutation")
                return 2
        limit_seconds = max(PATIENCE * (time.monotonic() - began), LEAST_PATIENCE_SECONDS)
        copies.put(whole)

        def catches(mutation: Mutation) -> bool:
            copy = copies.get()
            try:
                caught = copy.catches(mutation, limit_seconds)
            finally:
                copies.put(copy)
            print(f"{'caught  ' if caught else 'survived'}  {mutation}", flush=True)
            return caught

        with ThreadPoolExecutor(options.at_once) as pool:
            caught = list(pool.map(catches, chosen))
    survivors = [mutation for mutation, is_caught in zip(chosen, caught) if not is_caught]
    print(f"\n{sum(caught)} of {len(chosen)} caught; {len(every)} mutations are possible in these files.")
    print(*(f"survived  {mutation}" for mutation in survivors), sep="\n")
    return int(sum(caught) < options.aim * len(chosen))


if __name__ == "__main__":
    sys.exit(main())
