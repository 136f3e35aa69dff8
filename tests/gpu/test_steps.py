"""Steps and cases without a GPU: what is recorded, what is repeated, and what remains of a killed process."""

import importlib
import json
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace

import pytest

from tests.gpu import __main__ as gpu
from tests.gpu import machine, page
from tests.gpu.cases import read_rows
from tests.gpu.machine import Machine
from tests.gpu.page import Results, outcome_of
from tests.gpu.steps import PAGE, REPOSITORY, STEPS, Step
from tests.parity.sources import Evidence

MACHINE = Machine(1, "Made GPU", "9.0", 80 << 30, "580.1", "13.0", "3.12.3", 16, {"torch": "2.11.0"})
MADE = Step("made-step", "made cases", ("figure",), 1, Evidence(PAGE, "", (), ("tests/gpu/made_step.py",)))


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Make a call of the command with one test step, whose cases are listed by `call.cases`."""
    monkeypatch.setattr(gpu, "WORK", tmp_path)
    monkeypatch.setattr(page, "STEPS", (MADE,))
    monkeypatch.setattr(gpu, "now", lambda: 1.0 if "slow" in (folder / "ran").read_text() else 0.0)
    folder = tmp_path / "made-step"
    folder.mkdir()
    (folder / "ran").write_text("")

    class Called(gpu.Call):
        def try_(self, names: str) -> dict[str, str]:
            """Run the step until the case `slow` has begun; return the outcomes on the page by case."""
            (folder / "cases").write_text(names)
            (folder / "ran").write_text("")
            gpu.run(self, MADE)
            return {name: row["outcome"] for name, row in self.rows.items()}

        @property
        def rows(self):
            return page.read(tmp_path / "docs" / "gpu.json")["1 x Made GPU"].rows["made-step"]

        @property
        def ran(self) -> list[str]:
            return (folder / "ran").read_text().split()

        @property
        def page(self) -> str:
            return (tmp_path / "docs" / "gpu.md").read_text()

    return Called(gpu.parse(["--to", str(tmp_path / "docs")]), MACHINE, 0.5, "make gpu")


@pytest.mark.slow
def test_every_case_is_written_down_whatever_its_process_does(call):
    """An error, a killed process or a broken CUDA context fails only its own case; the other cases run."""
    outcomes = call.try_("good raises killed poisoned impossible")
    assert outcomes == {
        "good": "passed",
        "raises": "failed",
        "killed": "failed",
        "poisoned": "failed",
        "impossible": "impossible",
    }
    assert call.ran == ["good", "raises", "killed", "poisoned", "impossible"]
    words = {name: row["words"] for name, row in call.rows.items()}
    assert words["raises"].startswith("ZeroDivisionError: division by zero (made_step.py:")
    assert words["killed"].startswith("the process ended with signal 9 (SIGKILL)")
    assert words["poisoned"].startswith("RuntimeError: CUDA error: an illegal memory access")
    assert "| good | 7 | passed: 2 / 3 |" in call.page
    assert "| impossible |  | not possible: no disk in docs/evidence/gpu.md |" in call.page
    assert "| `made-step` | made cases | **FAILED**: 1 passed, 3 failed, 1 not possible" in call.page
    assert "no disk in docs/evidence/gpu.md" in words["impossible"]
    # Only the failed case is repeated.
    call.try_("good raises impossible")
    assert call.ran == ["raises"]
    assert sorted(call.rows) == ["good", "impossible", "killed", "poisoned", "raises"]


@pytest.mark.slow
def test_a_step_goes_on_where_it_was_stopped(call):
    """A call that runs out of time keeps its results, and the next call continues
    with the remaining cases.
    """
    assert call.try_("good slow") == {"good": "passed", "slow": "stopped"}
    assert "stopped when the time was up" in call.rows["slow"]["words"]
    assert gpu.why_to_run(call, MADE) == "1 failed or stopped"
    assert call.try_("good impossible slow")["impossible"] == "impossible"
    assert call.ran == ["impossible", "slow"]


@pytest.mark.slow
def test_a_whole_pass_is_done_until_the_code_changes(call, monkeypatch):
    """A complete step is repeated only on request; rows of older code stay until the step runs again."""
    assert gpu.why_to_run(call, MADE) == "not run yet"
    call.try_("good impossible")
    assert gpu.why_to_run(call, MADE) == ""
    call.options.again = True
    assert gpu.why_to_run(call, MADE) == "asked for again"
    call.options.again = False
    monkeypatch.setattr(gpu, "key_of", lambda step: "other")
    assert gpu.why_to_run(call, MADE) == "the code has changed"
    assert call.try_("good") == {"good": "passed"}


def test_steps_that_measure_the_gpu_run_alone(call, monkeypatch):
    """Steps that measure the GPU run alone, after the others; with --smoke, every step runs alone."""
    steps = [replace(MADE, name=name, alone=name == "alone") for name in ("alone", "first", "second")]
    meeting, ran = threading.Barrier(2), []

    def run(call, step):
        if not step.alone:
            meeting.wait(30)
        ran.append((step.name, call.at_once))

    monkeypatch.setattr(gpu, "run", run)
    gpu.run_all(call, steps)
    assert sorted(ran[:2]) == [("first", 2), ("second", 2)] and ran[2:] == [("alone", 1)]
    ran.clear()
    meeting.abort()
    call.options.smoke = True
    monkeypatch.setattr(gpu, "run", lambda call, step: ran.append((step.name, call.at_once)))
    gpu.run_all(call, steps)
    assert ran == [("alone", 1), ("first", 1), ("second", 1)]


def test_a_step_that_cannot_start_says_so(call, monkeypatch):
    """A step whose module is missing gets one row and is not restarted repeatedly."""
    broken = Step("no-such-step", "nothing", (), 1, MADE.evidence)
    monkeypatch.setattr(page, "STEPS", (broken,))
    gpu.run(call, broken)
    rows = call.results()[call.label].rows["no-such-step"]
    assert list(rows) == ["start of the step"] and "No module named" in rows["start of the step"]["words"]


def test_the_committed_page_is_what_its_figures_make():
    """docs/evidence/gpu.md is what gpu.json generates, and has no step that was removed."""
    results = page.read(PAGE.with_name("gpu.json"))
    assert PAGE.read_text() == page.text(results)
    assert {step for found in results.values() for step in found.rows} <= {step.name for step in STEPS}


def test_what_the_steps_rest_on_is_there():
    """Every file that a step depends on exists; a missing one would otherwise show only on a GPU."""
    for step in STEPS:
        assert hasattr(importlib.import_module(step.module), "cases"), step.name
        for name in step.evidence.entry_points:
            assert REPOSITORY.joinpath(*name.split(".")).with_suffix(".py").is_file(), (step.name, name)
        assert [path for path in step.evidence.tests if not (REPOSITORY / path).is_file()] == [], step.name
        assert step.minutes <= 9
    assert sum(step.minutes for step in STEPS) <= gpu.MINUTES + 1


def test_the_arguments(capsys):
    assert gpu.command_of(gpu.parse([])) == "make gpu"
    words = ["--only", "memory", "flash", "--minutes", "9", "--copy-to", "out"]
    assert gpu.command_of(gpu.parse(words)) == "python -m tests.gpu --only memory flash --minutes 9"
    for wrong, message in {
        "--only nothing": "invalid choice: 'nothing'",
        "--minutes 0": "--minutes 0: must be more than 0",
        "--smoke": "--smoke needs --to: results of a CPU do not belong in docs/evidence/gpu.md",
    }.items():
        with pytest.raises(SystemExit):
            gpu.parse(wrong.split())
        assert message in capsys.readouterr().err


def test_what_is_missing_is_said_at_once(monkeypatch, capsys, tmp_path):
    """Missing packages are reported before torch is loaded or anything runs."""
    monkeypatch.setattr(machine, "missing", lambda: ["deepspeed", "hjson"])
    assert gpu.main(["--to", str(tmp_path)]) == 2
    assert capsys.readouterr().out == (
        "missing: deepspeed, hjson. Install them (pip install deepspeed hjson), or give their wheels with "
        "--wheels DIR.\n"
    )
    assert gpu.main(["--to", str(tmp_path), "--wheels", str(tmp_path)]) == 2
    assert capsys.readouterr().out == f"--wheels {tmp_path}: there is no .whl file in it\n"


def test_without_a_gpu_nothing_is_run(monkeypatch, capsys, tmp_path):
    """Without a GPU, the page says so for every step, and the command fails."""
    none = Machine(0, "", "", 0, "none", "none", "3.12.3", 2, {"torch": "2.11.0"})
    monkeypatch.setattr(machine, "look", lambda: none)
    assert gpu.main(["--to", str(tmp_path)]) == 1
    assert "torch 2.11.0 sees no GPU here: nothing was run" in capsys.readouterr().out
    text = (tmp_path / "gpu.md").read_text()
    assert (
        text.count("| not run yet: no GPU |") == len(STEPS)
        and json.loads((tmp_path / "gpu.json").read_text()) == {}
    )


@pytest.mark.slow
def test_wheels_are_installed_without_a_network(monkeypatch, tmp_path):
    """Wheels are installed once, without a network, into a folder that every process of a step uses."""
    wheels, site = tmp_path / "wheels", tmp_path / "site"
    wheels.mkdir()
    info = "made_for_this_test-1.0.dist-info"
    with zipfile.ZipFile(wheels / "made_for_this_test-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("made_for_this_test.py", "word = 'carried'\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: made-for-this-test\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setattr(machine, "SITE", site)
    monkeypatch.setattr(sys, "path", [*sys.path])
    machine.install(wheels)
    before = (site / "wheels.json").stat().st_mtime_ns
    machine.install(wheels)
    assert (site / "wheels.json").stat().st_mtime_ns == before
    code = "import made_for_this_test; print(made_for_this_test.word)"
    said = subprocess.check_output([sys.executable, "-c", code], env=machine.environment(), text=True)
    assert said == "carried\n" and machine.version_of("made-for-this-test") == "1.0"
    (wheels / "broken-1.0-py3-none-any.whl").write_text("no zip")
    with pytest.raises(OSError, match=r"pip failed: .*broken"):
        machine.install(wheels)


def test_a_torn_line_is_no_row(tmp_path):
    """A line that a killed process left incomplete is not a row."""
    rows = tmp_path / "rows"
    rows.write_text('{"begun": "a"}\n{"name": "a"}\n{"begun": "b"}\n{"name": "b"')
    assert read_rows(rows) == ([{"name": "a"}], "b")
    assert read_rows(tmp_path / "none") == ([], None)


def test_outcomes_in_words():
    rows = {name: {"outcome": name} for name in ("passed", "impossible", "stopped")}
    assert outcome_of({}) == "not run yet"
    assert outcome_of(rows) == "1 passed, 1 not possible on this machine, 1 stopped"
    assert outcome_of(rows | {"x": {"outcome": "failed"}}).startswith("**FAILED**: 1 passed, 1 failed")
    assert Results().rows == {}
