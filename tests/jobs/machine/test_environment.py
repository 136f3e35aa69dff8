"""The part of a machine that a job can use, the environment variables of a rank, and which of them are
recorded.
"""

import os

import psutil
import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.base.hardware import cgroup
from nbtrain.base.hardware.cgroup import MemoryGroup
from nbtrain.base.run_directory.rundir import JobDir, RunDir, new_job_id
from nbtrain.config.load import load
from nbtrain.config.rules.environment import is_secret
from nbtrain.jobs.machine import environment, machine
from nbtrain.jobs.machine.machine import this_machine


@pytest.fixture
def job(workspace):
    return JobDir(RunDir(workspace / "output" / "run"), new_job_id())


def test_variables_of_a_rank(tiny, job):
    """A rank gets the marker, the attempt, its number of threads, the CPU accelerator, and the variables in
    the YAML.
    """
    config = tiny(
        **{"parallel.data_parallel_size": 2, "backend.debug": "distributed", "backend.env": {"A": "b"}}
    )
    variables = environment.rank_variables(config, job, attempt=3, cores=8)
    assert variables == {
        "NBTRAIN_JOB": job.job_id,
        "NBTRAIN_ATTEMPT": "3",
        "NBTRAIN_RUN_DIR": str(job.run.path),
        "OMP_NUM_THREADS": "4",
        "PYTHONUNBUFFERED": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "DS_ACCELERATOR": "cpu",
        "OMP_WAIT_POLICY": "PASSIVE",
        "TORCH_DISTRIBUTED_DEBUG": "DETAIL",
        "A": "b",
    }


def test_the_yaml_has_the_last_word(tiny, job):
    """backend.env overrides variables that nbtrain sets; debug accepts one switch or several."""
    config = tiny(**{"backend.debug": "nccl", "backend.env": {"OMP_NUM_THREADS": "1", "NCCL_DEBUG": "WARN"}})
    variables = environment.rank_variables(config, job, attempt=0, cores=8)
    assert (variables["OMP_NUM_THREADS"], variables["NCCL_DEBUG"]) == ("1", "WARN")
    config = tiny(**{"backend.debug": ["distributed", "cuda_launch_blocking", "anomaly", "cpp_stacks"]})
    names = ("TORCH_DISTRIBUTED_DEBUG", "CUDA_LAUNCH_BLOCKING", "TORCH_SHOW_CPP_STACKTRACES")
    variables = environment.rank_variables(config, job, attempt=0, cores=8)
    assert [variables[name] for name in names] == ["DETAIL", "1", "1"]


@pytest.mark.parametrize(
    ("cores", "ranks", "asked", "threads"), [(8, 2, None, 4), (2, 4, None, 1), (8, 2, 4, 2)]
)
def test_threads_are_cores_over_ranks(tiny, cores, ranks, asked, threads):
    """A rank has the number of cores divided by the number of ranks as threads, at least one;
    resources.cpus_per_node limits the cores.
    """
    config = tiny(
        **{
            "parallel.data_parallel_size": ranks,
            "resources.cpus_per_node": asked,
            "batch.global_batch_size": 8,
        }
    )
    assert environment.threads_per_rank(config, cores) == threads


def test_a_kernels_environment_is_cleaned(workspace, monkeypatch):
    """Ranks do not inherit a server's tokens or the rank variables of an outer job, and relative paths become
    absolute.
    """
    for name in (
        "JPY_API_TOKEN",
        "JUPYTER_TOKEN",
        "RANK",
        "MASTER_PORT",
        "MPLBACKEND",
        "TORCHELASTIC_RUN_ID",
    ):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("MY_OWN", "kept")
    cleaned = environment.supervisor_environment()
    assert not {
        "JPY_API_TOKEN",
        "JUPYTER_TOKEN",
        "RANK",
        "MASTER_PORT",
        "MPLBACKEND",
        "TORCHELASTIC_RUN_ID",
    } & set(cleaned)
    assert cleaned["MY_OWN"] == "kept"
    assert cleaned["NBTRAIN_OUTPUT"] == str(workspace / "output")
    assert cleaned["NBTRAIN_DATA"] == str(workspace / "data")


def test_only_listed_variables_are_recorded():
    """Variables that affect the arithmetic are recorded, but secrets and unknown variables are not."""
    given = {
        "OMP_NUM_THREADS": "2",
        "NCCL_DEBUG": "INFO",
        "HF_TOKEN": "hf_x",
        "NCCL_AUTH": "x",
        "HOME": "/root",
    }
    assert environment.recorded_variables(given) == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "2"}


ALLOWED_AND_HIDDEN = ("GIT_AUTHOR_NAME", "AUTH_METHOD", "TOKEN_FILE", "MYTOKEN", "TRAIN_TOKENS", "API_KEYS")


def test_the_record_shows_what_the_rule_allows():
    """environment.json shows the variables that backend.env may hold, without passwords in addresses. The
    exceptions are names that contain a word such as TOKEN.
    """
    for name, value in (("TOKENIZERS_PARALLELISM", "false"), ("MAX_TOKENS", "3"), ("MY_NUMBER", "x")):
        assert not is_secret(name, value) and environment.hidden(name, value) == value
    proxy = ("HTTPS_PROXY", "http://me:s3cret@proxy:8")
    assert not is_secret(*proxy, addresses=False) and environment.hidden(*proxy) == "http://***@proxy:8"
    for name in ALLOWED_AND_HIDDEN:
        assert not is_secret(name, "x") and environment.hidden(name, "x") == "(hidden)"


@pytest.mark.parametrize(
    "name, value",
    [
        *(
            (f"NBTRAIN_{end}", "x")
            for end in ("HTTP_AUTH", "PRIVATE_KEY", "access_key", "MY_API_KEY", "TOKEN")
        ),
        ("NBTRAIN_ANY", "hf_abcdefghijklmnopqrst"),
    ],
)
def test_a_secret_is_refused_hidden_and_not_kept(name, value, monkeypatch):
    monkeypatch.setenv(name, value)
    monkeypatch.setenv("NBTRAIN_TRACE", "1")
    with pytest.raises(ConfigError, match=f"^override backend.env: backend.env.{name} looks like a secret"):
        load("gpt-tiny", {"backend.env": {name: value}})
    assert environment.hidden(name, value) == "(hidden)"
    kept = environment.variables_to_keep()
    assert kept["NBTRAIN_TRACE"] == "1" and name not in kept


def test_the_machine_is_seen():
    """The cores, memory and CPU name of this machine are plausible, and torch is not imported to find
    them.
    """
    here = this_machine()
    assert 1 <= here.cores <= len(os.sched_getaffinity(0))
    assert 0 < here.memory_available_bytes <= here.memory_bytes
    assert here.cpu


def test_the_memory_is_that_of_the_least_limit(monkeypatch):
    """The available memory is the smallest amount that any control group allows, or the machine's if there is
    no limit.
    """

    def limit(*groups: MemoryGroup) -> None:
        for module in (machine, cgroup):
            monkeypatch.setattr(module, "memory_groups", lambda: list(groups))

    limit()
    whole = this_machine().memory_bytes
    assert whole == psutil.virtual_memory().total
    limit(MemoryGroup(4 << 20, 1 << 20, None), MemoryGroup(8 << 20, 6 << 20, None))
    assert (this_machine().memory_bytes, this_machine().memory_available_bytes) == (4 << 20, 2 << 20)
    limit(MemoryGroup(2 * whole, None, None))
    assert this_machine().memory_bytes == whole
