"""Committed pages of measurements name their sources, and the tests report pages that are out of date."""

import dataclasses
import os
import re
import subprocess
import sys

import pytest

from nbtrain.base.process.ports import port_to_listen_on
from tests.parity.sources import (
    FAULTS,
    PARITY,
    PARITY_CONTEXT,
    PARITY_ULYSSES,
    code_of,
    modules,
    sources_sha256,
    staleness,
    stamp,
)
from tests.train import launch

PAGES = pytest.mark.parametrize(
    "evidence",
    [PARITY, PARITY_ULYSSES, PARITY_CONTEXT, FAULTS],
    ids=["parity", "parity-ulysses", "parity-context", "faults"],
)
MODULE = (
    '"""What it is."""\nimport nbtrain.b  # because\n\n\ndef f():\n    """Says so."""\n    return "a # b"\n'
)


@pytest.mark.slow
@PAGES
def test_the_page_holds_for_these_sources(evidence):
    """If a page is out of date, this test is skipped with the reason, because measuring again takes long."""
    if reason := staleness(evidence):
        pytest.skip(reason)


def test_the_page_counts_no_failure():
    """A committed page lists no failure, even if it is out of date."""
    assert not any(
        "FAILED" in evidence.page.read_text() for evidence in (PARITY, PARITY_ULYSSES, PARITY_CONTEXT)
    )


def test_a_changed_source_makes_the_page_stale(tmp_path):
    evidence = dataclasses.replace(
        PARITY, page=tmp_path / "parity.md", entry_points=("nbtrain.base.version",)
    )
    assert "is not there" in staleness(evidence)
    evidence.page.write_text("# Parity\n")
    assert "is stale: it holds for nothing. `make parity` renews it" in staleness(evidence)
    evidence.page.write_text(f"# Parity\n\n{stamp(evidence)}\n")
    assert staleness(evidence) == ""
    evidence.page.write_text(f"# Parity\n\n{stamp(evidence).replace('sha256 `', 'sha256 `0')}\n")
    assert "is stale: it holds for sha256 `0" in staleness(evidence)


@pytest.fixture
def package(tmp_path):
    """Create a package with direct, late and type-only imports. Only imports that do not count lead to
    nbtrain.cli.
    """
    for name, content in {
        "__init__": "",
        "a": MODULE,
        "b": "def f():\n    from nbtrain.deep import late\n",
        "cli": "",
        "deep/__init__": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import nbtrain.cli\n",
        "deep/late": "from nbtrain import corpus\n",
        "corpus/__init__": "import nbtrain.cli\n",
    }.items():
        path = tmp_path / "nbtrain" / f"{name}.py"
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(content)
    (tmp_path / "case.py").write_text("STEPS = 4\n")
    return tmp_path


def test_what_the_entry_points_import_is_counted(package):
    found = [path.as_posix() for path in modules(["nbtrain.a"], package, ["nbtrain.corpus"])]
    names = ("__init__", "a", "b", "deep/__init__", "deep/late")
    assert found == [f"nbtrain/{name}.py" for name in names]
    with pytest.raises(ValueError, match=r"nbtrain\.c is no module below"):
        modules(["nbtrain.c"], package)


def test_the_hash_is_of_the_names_and_the_code_of_what_is_counted(package):
    evidence = dataclasses.replace(PARITY, entry_points=("nbtrain.a",), tests=("case.py",))
    seen = [sources_sha256(evidence, package)]

    def write(name: str, content: str) -> bool:
        """Write a file and return whether the hash changed."""
        (package / name).write_text(content)
        seen.append(sources_sha256(evidence, package))
        return seen[-1] != seen[-2]

    assert not write("nbtrain/cli.py", "import sys\n")
    assert not write("nbtrain/corpus/__init__.py", "import sys\n")
    assert not write("nbtrain/a.py", MODULE.replace("What it is", "What\nthis is").replace("because", "why"))
    assert not write("nbtrain/a.py", MODULE.replace("\n\n\n", "\n").replace("Says so", "Tells it"))
    assert write("nbtrain/a.py", MODULE.replace("a # b", "a # c"))
    assert write("case.py", "STEPS = 5\n")
    (package / "nbtrain" / "b.py").rename(package / "nbtrain" / "c.py")
    assert write("nbtrain/a.py", MODULE.replace("nbtrain.b", "nbtrain.c"))


def test_code_is_what_is_left_without_words():
    assert code_of(MODULE) == 'import nbtrain.b\ndef f():\n    return "a # b"\n'


@pytest.mark.slow
@PAGES
def test_boxes_above_the_engine_are_not_counted(evidence):
    counted = {path.parts[1] for path in modules(evidence.entry_points, without=evidence.without)}
    assert not counted & {"corpus", "lab", "cli", "api", "monitor", "inference"}
    assert {"train", "model", "parallel", "config"} < counted


@pytest.mark.slow
def test_a_training_process_imports_nothing_that_is_not_counted(tmp_path):
    """Every module that a training process imports, by Python's own list, is counted."""
    run = launch.make_run(tmp_path)
    launch.make_dataset(tmp_path)
    variables = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1}
    variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port_to_listen_on(), "NBTRAIN_DATA": tmp_path}
    rank = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "nbtrain.train", str(run.path)],
        env={**os.environ, **{name: str(value) for name, value in variables.items()}},
        capture_output=True,
        text=True,
    )
    assert rank.returncode == 0, rank.stderr[-4000:]
    imported = set(re.findall(r"\| +(nbtrain(?:\.\w+)*)$", rank.stderr, re.M))
    assert len(imported) > 50
    counted = {path.with_suffix("").as_posix() for path in modules(PARITY.entry_points)}
    found = {name.replace(".", "/") for name in imported}
    assert {name for name in found if not {name, f"{name}/__init__"} & counted} == set()
