"""The batch script: its exact text, and how a shell reads it."""

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.config.load import load
from nbtrain.config.rules.backends import OWN_SBATCH_OPTIONS, slurm_options_agree
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.backends.slurm.script import batch_script, duration, sbatch_environment

RECORDED = Path(__file__).with_name("gpt-tiny.sbatch")
JOB_ID = "20260101-120000-abcd"
EXAMPLE = "examples/megatron-gpt/training/gpt-tiny.yaml"
SETTINGS = {
    "resources.nodes": 2,
    "resources.memory_per_node_bytes": 5 * 2**30 + 1,
    "parallel.data_parallel_size": 4,
    "backend.kind": "slurm",
    "backend.slurm.partition": "gpu,debug",
    "backend.slurm.account": "physics",
    "backend.slurm.qos": "normal",
    "backend.slurm.constraint": "a100&ib",
    "backend.slurm.time_limit_seconds": 90_061,
    "backend.slurm.signal_before_seconds": 300,
    "backend.slurm.resubmissions": 4,
    "backend.slurm.exclusive": True,
    "backend.slurm.sbatch_options": ["--mail-type=END", "--mail-user=ann@example.org"],
    "backend.slurm.setup": ["module load cuda", "source '/opt/my env/bin/activate'"],
    "backend.slurm.python": "/opt/my env/bin/python",
}


@pytest.fixture
def script(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return the batch script of gpt-tiny in a workspace whose name contains a space and a quote."""
    monkeypatch.setenv("NBTRAIN_WORKSPACE", "/shared/ann's work")
    monkeypatch.delenv("NBTRAIN_OUTPUT", raising=False)

    def make(after: str = "", **more: object) -> str:
        config: RunConfig = load(repository / EXAMPLE, {**SETTINGS, **more}, check=False)
        job = JobDir(RunDir(Path("/shared/ann's work/output/gpt-tiny")), JOB_ID)
        environment = {"NBTRAIN_WORKSPACE": "/shared/ann's work", "NBTRAIN_DATA": "/shared/data"}
        return batch_script(config, job, environment, after)

    return make


def test_the_batch_script_is_as_recorded(script: Callable[..., str]) -> None:
    """The batch script equals the recorded one: each option appears once, and nothing in it comes from this
    machine.
    """
    assert script() == RECORDED.read_text()


def test_a_shell_reads_every_path_as_it_is(script: Callable[..., str], tmp_path: Path) -> None:
    """A shell passes paths with quotes, spaces and dollar signs to the supervisor unchanged."""
    shown = tmp_path / "it's shown"
    shown.write_text('#!/bin/bash\nprintf \'%s\\n\' "$PWD" "$NBTRAIN_WORKSPACE" "$@"\n')
    shown.chmod(0o755)
    text = script(**{"backend.slurm.python": str(shown), "backend.slurm.setup": []})
    folder = tmp_path / "a $HOME of ann's"
    folder.mkdir()
    text = text.replace(shlex.quote("/shared/ann's work"), shlex.quote(str(folder)))
    answer = subprocess.run(["bash"], input=text, capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines() == [
        str(folder),
        str(folder),
        *("-m", "nbtrain.jobs.supervisor", "--foreground"),
        *("/shared/ann's work/output/gpt-tiny", JOB_ID),
    ]


def test_options_follow_the_section(script: Callable[..., str]) -> None:
    """The script contains the options of backend.slurm: an array, GPUs, no requeue, a dependency, and the
    Python interpreter.
    """
    more = {
        "backend.slurm.array": "1-4%1",
        "backend.slurm.resubmissions": 0,
        "backend.slurm.requeue": False,
        "backend.slurm.time_limit_seconds": None,
        "backend.slurm.python": None,
        "resources.device": "gpu",
        "resources.gpus_per_node": 2,
        "precision.dtype": "bf16",
    }
    lines = script(after="11", **more).splitlines()
    for option in ("--array=1-4%1", "--dependency=afterany:11", "--no-requeue", "--gres=gpu:2"):
        assert f"#SBATCH {option}" in lines
    assert not any(line.startswith("#SBATCH --time") for line in lines)
    assert f"exec {sys.executable} -m nbtrain.jobs.supervisor" in lines[-1]
    assert "#SBATCH --gres=gpu:a100:2" in script(**{"backend.slurm.gres": "gpu:a100:2"})


# Other spellings of the options of a script, and options that contradict them (`man sbatch`).
OTHER_SPELLINGS = {
    "--job-name": ["-J"],
    "--nodes": ["-N"],
    "--ntasks-per-node": ["--ntasks", "-n"],
    "--cpus-per-task": ["-c"],
    "--partition": ["-p"],
    "--account": ["-A"],
    "--qos": ["-q"],
    "--constraint": ["-C"],
    "--time": ["-t"],
    "--array": ["-a"],
    "--output": ["-o", "--error", "-e"],
}


def test_every_option_of_the_script_is_refused_as_a_further_option(script: Callable[..., str]) -> None:
    """An option that the script already has is rejected as an additional option, because one of the two would
    be ignored silently; only a dependency may be given.
    """
    settings = {"backend.slurm.sbatch_options": [], "resources.cpus_per_node": 4}
    chain = {"backend.slurm.array": "1-4%1", "backend.slurm.requeue": False, "backend.slurm.gres": "gpu:1"}
    written = {
        line.removeprefix("#SBATCH ").partition("=")[0]
        for text in (script(**settings), script(**settings, **chain))
        for line in text.splitlines()
        if line.startswith("#SBATCH ")
    }
    spellings = {option for name, others in OTHER_SPELLINGS.items() for option in (name, *others)}
    assert set(OTHER_SPELLINGS) <= written
    assert set(OWN_SBATCH_OPTIONS) == written | spellings
    config = load("gpt-tiny", {**SETTINGS, "backend.slurm.sbatch_options": sorted(spellings)}, check=False)
    assert len(list(slurm_options_agree(config))) == len(spellings)


@pytest.mark.parametrize(
    ("lines", "dependency", "others"),
    [
        (["--dependency=singleton"], "afterany:11,singleton", []),
        (["-d afterok:7 --mail-type=END"], "afterany:11,afterok:7", ["--mail-type=END"]),
        (["-dafterok:7", "--exclude 'n1'"], "afterany:11,afterok:7", ["--exclude 'n1'"]),
        (["--dependency", "--dependency=afterok:7?afterok:8"], "afterany:11", []),
    ],
)
def test_a_resubmission_waits_for_the_allocation_before_it_and_for_what_the_run_says(
    script: Callable[..., str], lines: list[str], dependency: str, others: list[str]
) -> None:
    """A resubmission combines both of its dependencies in one --dependency, because sbatch uses only the last
    such option.
    """
    given = {"backend.slurm.sbatch_options": lines}
    options = [line.removeprefix("#SBATCH ") for line in script("11", **given).splitlines()]
    assert [option for option in options if "depend" in option] == [f"--dependency={dependency}"]
    end = options.index("--open-mode=append") + 1
    assert options[end : options.index("")] == others
    assert all(f"#SBATCH {line}\n" in script(**given) for line in lines)


def test_sbatch_inherits_no_allocation_and_nothing_that_outweighs_the_script() -> None:
    """sbatch gets none of the input variables listed in `man sbatch`, whether from a job, a step or
    ~/.bashrc, because they would override the script.
    """
    kept = {
        "PATH": "/bin",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_CLUSTERS": "east",
        "SLURM_JWT": "x",
        "SBATCH_QOS": "high",
        "SBATCH_EXPORT": "NONE",
    }
    dropped = {
        *("SLURM_MEM_PER_CPU", "SLURM_CPUS_PER_TASK", "SLURM_CPU_BIND", "SLURM_RESTART_COUNT"),
        *("SRUN_CPUS_PER_TASK", "PMI_RANK", "PMIX_RANK", "SBATCH_ARRAY_INX", "SBATCH_WAIT"),
        *("SBATCH_ACCOUNT", "SBATCH_TIMELIMIT", "SBATCH_MEM_PER_CPU", "SBATCH_REQUEUE"),
        *("SBATCH_OPEN_MODE", "SBATCH_ERROR", "SBATCH_RESERVATION", "SBATCH_CONSTRAINT"),
    }
    options = ["--account=physics", "--time=01:00:00", "--mem=1M", "--no-requeue", "--open-mode=append"]
    options += ["--reservation conf", "--exclude=n1 --constraint=a100"]
    given = {**kept, **dict.fromkeys(dropped, "1")}
    assert sbatch_environment(given, [*options, "--output=x"]) == kept


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(59.2, "00:01:00"), (3_600, "01:00:00"), (86_400, "1-00:00:00"), (1e6, "11-13:46:40")],
)
def test_durations_are_slurms(seconds: float, text: str) -> None:
    """Durations are written as D-HH:MM:SS, rounded up."""
    assert duration(seconds) == text
