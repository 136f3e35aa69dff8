"""The tables of durations that are printed after a test run."""

from types import SimpleNamespace

from .conftest import LONGEST, REPOSITORY
from .durations import Durations, folder_of


def test_the_slowest_tests_and_the_sum_of_each_folder():
    """A test's seconds include its set-up and tear-down, and subfolders of tests/x count for tests/x."""
    durations = Durations()
    for test, when, seconds in [
        ("tests/data/test_a.py::test_one", "setup", 2.0),
        ("tests/data/test_a.py::test_one", "call", 1.0),
        ("tests/data/sources/test_b.py::test_two[x/y]", "call", 4.0),
        ("tests/test_c.py::test_three", "call", 0.5),
        ("tests/test_c.py::test_three", "teardown", 0.25),
        ("tests/jobs/backends/slurm/test_d.py::test_four", "call", 0.25),
    ]:
        durations.pytest_runtest_logreport(SimpleNamespace(nodeid=test, when=when, duration=seconds))
    assert durations.longest_files(1) == ["     4.0 s  tests/data/sources/test_b.py"]
    assert durations.slowest(2) == [
        "     4.0 s  (set-up    0.0 s)  tests/data/sources/test_b.py::test_two[x/y]",
        "     3.0 s  (set-up    2.0 s)  tests/data/test_a.py::test_one",
    ]
    assert durations.folders() == [
        "     7.0 s       2 tests  tests/data",
        "     0.8 s       1 tests  tests",
        "     0.2 s       1 tests  tests/jobs",
        "     8.0 s       4 tests  in all",
    ]
    assert durations.clusters() == ["     0.2 s       1 tests  of these on clusters: at most 180 s"]


def test_folders_of_tests():
    assert folder_of("tests/data/wiki/test_dump.py::test_x") == "tests/data"
    assert folder_of("tests/test_cli.py::test_x[a/b]") == "tests"


def test_the_files_that_start_first_are_there():
    """Every file in LONGEST exists. A file that was renamed would start last, while other workers are
    idle.
    """
    assert [name for name in LONGEST if not (REPOSITORY / "tests" / name).is_file()] == []
