"""tests/mutation.py changes every operator of a file, in the right place, and nothing else."""

import ast
from pathlib import Path

from .mutation import arguments_for, mutations_of

SOURCE = '''
"""A text with 1 < 2."""
from dataclasses import dataclass

@dataclass(frozen=True)
class Ümlaut:
    size: int | None = 3

def twice(value: list[int], é="é", on=True) -> int | None:
    assert value[0] > 1
    if not value or done():
        return None
    if ready(value):
        value[0] += 2 * len(value)
    return value[0] if value[0] <= 7 else f"{1 + 1}" + "x"
'''


def test_every_operator_and_number_is_changed_in_its_place():
    """Annotations, decorators, assertions and texts are not changed; column numbers count bytes."""
    found = [
        (mutation.line, mutation.before, mutation.after)
        for mutation in mutations_of(Path("x.py"), SOURCE.encode())
    ]
    assert sorted(found) == [
        (7, "3", "(2)"),
        (7, "3", "(4)"),
        (9, "True", "(False)"),
        (11, "not value", "(value)"),
        (11, "not value or done()", "(not value and done())"),
        (13, "ready(value)", "(not ready(value))"),
        (14, "0", "(-1)"),
        (14, "0", "(1)"),
        (14, "2", "(1)"),
        (14, "2", "(3)"),
        (14, "2 * len(value)", "(2 / len(value))"),
        (14, "value[0] += 2 * len(value)", "value[0] -= 2 * len(value)"),
        (15, "0", "(-1)"),
        (15, "0", "(-1)"),
        (15, "0", "(1)"),
        (15, "0", "(1)"),
        (15, "7", "(6)"),
        (15, "7", "(8)"),
        (15, "value[0] <= 7", "(value[0] < 7)"),
        (15, "value[0] <= 7", "(value[0] > 7)"),
    ]


def test_a_mutation_changes_its_place_alone_and_can_be_read():
    source = SOURCE.encode()
    for mutation in mutations_of(Path("x.py"), source):
        mutated = mutation.apply(source)
        ast.parse(mutated)
        assert mutated != source
        assert mutated.startswith(source[: mutation.begin]) and mutated.endswith(source[mutation.end :])


def test_the_arguments_for_a_file_are_its_own_then_those_of_its_folder(tmp_path):
    for name in ("config/test_stages.py", "config/test_check.py", "test_cli.py", "test_files.py"):
        (tmp_path / "tests" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tests" / name).touch()
    assert arguments_for(Path("nbtrain/config/stages.py"), tmp_path) == [
        ["tests/config/test_stages.py"],
        ["tests/config"],
    ]
    assert arguments_for(Path("nbtrain/config/deep/batch.py"), tmp_path) == [["tests/config"]]
    assert arguments_for(Path("nbtrain/cli.py"), tmp_path) == [
        ["tests/test_cli.py"],
        ["tests/test_cli.py", "tests/test_files.py"],
    ]
