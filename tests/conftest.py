"""Fixtures for all tests, such as a temporary workspace, and skips that become failures in CI."""

import contextlib
import gc
import itertools
import logging
import os
import re
import sys
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from .durations import Durations

if TYPE_CHECKING:
    from nbtrain.proof.fork_client import ForkServer
    from tests.train.launch import ForkedRuns
    from tests.train.layouts import Place

REPOSITORY = Path(__file__).parent.parent
SHARED = REPOSITORY.parent / "shared"
WORKSPACES = itertools.count()
# The longest files, the longest first: the end of every run prints its slowest tests (durations.py).
LONGEST = (
    "parity/test_parity.py",
    "jobs/supervisor/test_supervise.py",
    "end_to_end/test_notebooks.py",
    "jobs/backends/slurm/test_cluster.py",
    "parity/test_resuming.py",
    "jobs/test_faults.py",
    "end_to_end/test_labextension.py",
    "end_to_end/test_browser.py",
    "lab/ui/test_run_page.py",
    "checkpoint/test_reshape.py",
    "dataset/encode/test_encoder.py",
    "proof/test_prove.py",
    "jobs/test_real_trainer.py",
    "planner/memory/test_states_allocated.py",
    "corpus/sources/test_memory.py",
    "corpus/tokenizer/test_exactness.py",
    "checkpoint/pretrained/test_gguf.py",
    "end_to_end/test_twin_notebook.py",
    "end_to_end/test_form_browser.py",
    "parity/test_reshaping.py",
    "checkpoint/test_universal.py",
    "test_architecture.py",
    "lab/ui/test_runs.py",
    "serving/test_life.py",
    "train/test_training.py",
    "jobs/backends/test_hosts_cluster.py",
    "jobs/queue/test_queued_jobs.py",
    "jobs/sweep/test_drive.py",
    "lab/ui/test_form_words.py",
    "parallel/test_tensor_gpt.py",
    "end_to_end/test_demo.py",
    "end_to_end/test_kernel_death.py",
    "dataset/prepare/test_dask.py",
    "train/health/test_stability.py",
    "config/rules/test_engine_agrees.py",
    "api/test_verbs.py",
)
# What ranks import at their first steps: with ZeRO 3 or a pipeline, torch's compiler; DeepSpeed's Muon, which
# loads more of it; and, to compare tensors, torch's distributed ones. To import them once for all ranks saves
# more time than the steps of small models take. Real jobs leave the compiler out, as
# tests/parallel/test_compiler.py shows.
IMPORTED_BY_RANKS = (
    "deepspeed.runtime.zero.muon.muon_optimizer",
    "torch.distributed.tensor",
    "torch.testing",
    "pytest",
)

# Several ranks and several tests share few cores; OpenMP teams that wait for each other would crawl.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# torch's compiler caches its code in one folder for all programs, whatever instructions they may use. Code
# that was compiled for another instruction set ends the process ("free(): invalid pointer").
_INSTRUCTIONS = os.environ.get("ATEN_CPU_CAPABILITY", "default")
os.environ.setdefault(
    "TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/nbtrain-tests-{os.getuid()}/inductor-{_INSTRUCTIONS}"
)


# With this package jsonschema checks a format of addresses that no test uses, and builds the parser when it
# is imported, in 2 s. Without the package jsonschema does not check that format.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

# The mark of a file with only slow tests, a test, and the mark of a slow one, at the beginning of a line.
ALL_SLOW = re.compile(r"^pytestmark = (\[[^\]]*)?pytest\.mark\.slow\b", re.MULTILINE)
TEST = re.compile(r"^(?:async )?def test_|^class Test", re.MULTILINE)
SLOW_TEST = re.compile(r"^@pytest\.mark\.slow\b", re.MULTILINE)


def has_only_slow_tests(text: str) -> bool:
    """Return whether the text of a file shows that all its tests are slow."""
    return bool(ALL_SLOW.search(text)) or 0 < len(TEST.findall(text)) == len(SLOW_TEST.findall(text))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """In `make check`, skip files that contain only slow tests, without importing them."""
    if config.option.markexpr != "not slow" or not collection_path.name.startswith("test_"):
        return None
    return has_only_slow_tests(collection_path.read_text(encoding="utf-8")) or None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="run the tests marked `soak`, and no others")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--soak")
    left = [item for item in items if (item.get_closest_marker("soak") is not None) != wanted]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]
    if hasattr(config, "workerinput"):
        # Workers take one file after the other: the long ones first, so that none is left alone at the end.
        slow = {item.path for item in items if item.get_closest_marker("slow") is not None}
        rank = {REPOSITORY / "tests" / name: number for number, name in enumerate(LONGEST)}
        items.sort(key=lambda item: (item.path not in slow, rank.get(item.path, len(rank))))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Exclude the objects that imports create, about a million, from garbage collection during the tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """In `make check`, spend no time on garbage, on torch's compiler and on torch's loggers."""
    if session.config.option.markexpr != "not slow":
        return
    # Tests parse hundreds of files and load thousands of runs. By default, after every 700 new objects, the
    # collector would look again and again at objects that are still in use.
    gc.set_threshold(20_000, 20, 20)
    if "nbtrain.parallel" in sys.modules:
        # Importing the compiler takes 4 s, and the first step of an optimizer or the first recomputation
        # would do so. A run that is not compiled keeps it out in the same way.
        from nbtrain.parallel.compiler import leave_out_compiler

        leave_out_compiler()
    # About 40 loggers of torch do not propagate. To each of them pytest adds six handlers for every test.
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("torch") and isinstance(logger, logging.Logger):
            logger.propagate = True


def pytest_configure(config: pytest.Config) -> None:
    # A worker of pytest-xdist reports to the process that started it, which prints.
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations(), "nbtrain-durations")


@pytest.fixture
def repository() -> Path:
    return REPOSITORY


@pytest.fixture(scope="session", autouse=True)
def queue_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Use a separate job queue, so that jobs of the tests never wait for other jobs on this machine."""
    folder = tmp_path_factory.mktemp("queue")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NBTRAIN_QUEUE", str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def no_fsync() -> Iterator[None]:
    """Replace fsync, which takes 15 ms per file on a busy disk, and the tests write thousands of files.

    The flush of files that numpy maps waits for the disk in the same way.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr("numpy.memmap.flush", lambda array: None)
        yield


@pytest.fixture
def workspace(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create an empty workspace for output/, data/ and queue/; its path contains a space and a quote."""
    # mktemp reads all folders of the run to find the next number: 2.5 ms of CPU after 4,000 of them.
    folder = tmp_path_factory.getbasetemp() / f"it's a workspace{next(WORKSPACES)}"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("NBTRAIN_WORKSPACE", str(folder))
    monkeypatch.delenv("NBTRAIN_OUTPUT", raising=False)
    monkeypatch.delenv("NBTRAIN_DATA", raising=False)
    monkeypatch.setenv("NBTRAIN_QUEUE", str(folder / "queue"))
    return folder


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of real text next to the repository, or skip the test without it."""
    if not (SHARED / "data").is_dir():
        pytest.skip("no ../shared/data next to the repository")
    return SHARED / "data"


@pytest.fixture(scope="session", params=["made", "shared"])
def gpt2_files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with vocab.json and merges.txt, once with a small generated vocabulary and once with
    GPT-2's.
    """
    if request.param == "shared":
        return request.getfixturevalue("shared_data") / "gpt2"
    from tests.corpus import made

    return made.write_gpt2_files(tmp_path_factory.mktemp("gpt2"))


def skip_or_fail(variable: str, reason: str) -> None:
    """Skip the test with a reason, or fail it if the environment variable `variable` is set, as in CI."""
    if os.environ.get(variable):
        pytest.fail(f"{reason}, and {variable} is set")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def fork_server() -> Iterator["ForkServer"]:
    """Start one process that has torch loaded and forks the ranks of all tests, on CPU and without a
    supervisor.
    """
    from nbtrain.proof.fork_client import ForkServer

    with ForkServer(IMPORTED_BY_RANKS) as server:
        yield server


@pytest.fixture(scope="session")
def data_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a data directory with the dataset `test`: 400 documents of about 50 tokens, vocabulary 500."""
    from tests.train import launch

    home = tmp_path_factory.mktemp("data home")
    launch.make_dataset(home)
    return home


@pytest.fixture(scope="session")
def forked(fork_server: "ForkServer", data_home: Path) -> "ForkedRuns":
    """Return a runner that trains with forked ranks on the data in `data_home`."""
    from tests.train.launch import ForkedRuns

    return ForkedRuns(fork_server, data_home)


@pytest.fixture(scope="module")
def place(fork_server: "ForkServer", data_home: Path, tmp_path_factory: pytest.TempPathFactory) -> "Place":
    """Return the place of a test file's runs, which trains each layout once on the data in `data_home`."""
    from tests.train.layouts import Place

    return Place(tmp_path_factory.mktemp("runs"), data_home, fork_server)


@pytest.fixture
def root() -> None:
    """Skip the test unless it runs as root."""
    if os.geteuid() != 0:
        skip_or_fail("NBTRAIN_REQUIRE_ROOT", "needs root")


@pytest.fixture
def another_user(root: None) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return a context manager in which this process runs as a user who owns no files and no processes."""

    @contextlib.contextmanager
    def rights() -> Iterator[None]:
        os.setresuid(65534, 65534, 0)
        try:
            yield
        finally:
            os.setresuid(0, 0, 0)

    return rights


@pytest.fixture
def open_output(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Create an output directory that every user can read, unlike pytest's temporary folders."""
    umask = os.umask(0o022)
    try:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            monkeypatch.setenv("NBTRAIN_OUTPUT", folder)
            yield Path(folder)
    finally:
        os.umask(umask)
