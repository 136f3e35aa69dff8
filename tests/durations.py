"""The time that the tests take: the slowest tests and files, and the seconds per folder, printed after a run.

A test's seconds are the sum of its set-up, its call and its tear-down, so the first test that uses a shared
fixture pays for it. With several workers (pytest-xdist) the sums are over all of them and exceed the run's
own time. CONTRIBUTING.md defines the time budget for these sums.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import pytest

NUM_SLOWEST = 20
NUM_FILES = 15
# A run of a few tests ends without tables.
SHORTEST_RUN_SECONDS = 30.0
# Jobs on a real Slurm, on two hosts, and on a stub of Kubernetes' API server.
CLUSTERS = tuple(f"tests/jobs/backends/{name}" for name in ("slurm", "kubernetes", "test_hosts_cluster.py"))


def folder_of(node_id: str) -> str:
    """Return the folder that a test counts for: tests/data for tests/data/sources/test_x.py, tests for
    tests/test_x.py.
    """
    return "/".join(node_id.partition("::")[0].split("/")[:-1][:2])


@dataclass(eq=False)
class Durations:
    """A pytest plugin that adds up the durations reported by all workers and prints them."""

    seconds: Counter[str] = field(default_factory=Counter)
    """Seconds by test."""
    setup_seconds: Counter[str] = field(default_factory=Counter)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.seconds[report.nodeid] += report.duration
        if report.when == "setup":
            self.setup_seconds[report.nodeid] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if sum(self.seconds.values()) < SHORTEST_RUN_SECONDS:
            return
        terminalreporter.section(f"slowest {NUM_SLOWEST} tests")
        for line in self.slowest():
            terminalreporter.line(line)
        terminalreporter.section(f"longest {NUM_FILES} files, which tests/conftest.py starts first")
        for line in self.longest_files():
            terminalreporter.line(line)
        terminalreporter.section("seconds per folder")
        for line in [*self.folders(), *self.clusters()]:
            terminalreporter.line(line)

    def slowest(self, number: int = NUM_SLOWEST) -> list[str]:
        """Yield a line for each test, slowest first."""
        return [
            f"{seconds:8.1f} s  (set-up {self.setup_seconds[test]:6.1f} s)  {test}"
            for test, seconds in self.seconds.most_common(number)
        ]

    def longest_files(self, number: int = NUM_FILES) -> list[str]:
        """Yield a line for each file, slowest first."""
        seconds: Counter[str] = Counter()
        for test, of_test in self.seconds.items():
            seconds[test.partition("::")[0]] += of_test
        return [f"{sum_:8.1f} s  {name}" for name, sum_ in seconds.most_common(number)]

    def folders(self) -> list[str]:
        """Yield a line for each folder, slowest first, and one for all folders together."""
        seconds: Counter[str] = Counter()
        tests: defaultdict[str, int] = defaultdict(int)
        for test, of_test in self.seconds.items():
            seconds[folder_of(test)] += of_test
            tests[folder_of(test)] += 1
        lines = [f"{sum_:8.1f} s  {tests[name]:6,} tests  {name}" for name, sum_ in seconds.most_common()]
        return [*lines, f"{seconds.total():8.1f} s  {len(self.seconds):6,} tests  in all"]

    def clusters(self) -> list[str]:
        """Return a line with the seconds of the tests that need Slurm, two hosts or a Kubernetes API
        server.
        """
        found = [seconds for test, seconds in self.seconds.items() if test.startswith(CLUSTERS)]
        return [f"{sum(found):8.1f} s  {len(found):6,} tests  of these on clusters: at most 180 s"]
