"""Hosts by ssh without any host: what the launcher is called with, what is ended, what is refused."""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nbtrain.base.rundir import JobDir, RunDir
from nbtrain.base.version import __version__
from nbtrain.jobs.backends.hosts import checks, end_job
from nbtrain.jobs.backends.hosts.launcher import AGENT_MARKER, runner_command, runner_environment
from nbtrain.jobs.backends.hosts.on_host import as_word, job_of
from nbtrain.jobs.backends.hosts.ssh import Answer
from nbtrain.jobs.dry_run import request_text

JOB_ID = "20261121-031500-a1b2"


@pytest.fixture
def config(tiny: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """The tiny run on hosts a and b, on a machine that has all programs."""
    monkeypatch.setattr(checks.shutil, "which", lambda name: f"/usr/bin/{name}")

    def make(**more: Any) -> Any:
        places = {"backend.kind": "hosts", "backend.hosts.hosts": ["a", "b"], "resources.nodes": 2}
        return tiny(**{"parallel.data_parallel_size": 2, **places, **more})

    return make


def test_deepspeeds_launcher_gets_one_plain_word(config: Callable[..., Any], workspace: Any) -> None:
    """The path of a job may hold blanks and quotes, which its shell commands would split."""
    run = RunDir.named("tiny")
    job = JobDir(run, JOB_ID)
    section = {"backend.hosts.ssh_port": 2222, "backend.hosts.ssh_config": "my_ssh"}
    command = runner_command(config(**section), job, ["a", "b"], job.path / "hostfile")
    assert command[:3] == [sys.executable, "-m", "deepspeed.launcher.runner"]
    assert command[5:-1] == [
        *("--launcher", "pdsh", "--force_multi", "--no_ssh_check", "--master_addr", "a"),
        *("--master_port", "29500", "--no_local_rank", "--module", "nbtrain.jobs.backends.hosts.on_host"),
    ]
    assert command[-1] == as_word(job)
    assert command[-1].replace("-", "").replace("_", "").isalnum()
    assert (job_of(as_word(job)).path, job_of(as_word(job)).job_id) == (job.path, JOB_ID)
    environment = runner_environment(config(**section), job.path / "deepspeed.env")
    assert environment["DS_ENV_FILE"] == str(job.path / "deepspeed.env")
    assert environment["PDSH_SSH_ARGS_APPEND"] == (
        "-oBatchMode=yes -oConnectTimeout=15 -oServerAliveInterval=10 -oServerAliveCountMax=3 "
        f"-F {workspace}/my_ssh -oPort=2222"
    )


def test_openmpi_gets_the_same_options_of_ssh(config: Callable[..., Any]) -> None:
    """One agent per host, not bound to one core."""
    more = {"backend.hosts.launcher": "openmpi", "backend.hosts.network_interface": "eth1"}
    job = JobDir(RunDir.named("tiny"), JOB_ID)
    command = runner_command(config(**more), job, ["a", "b"], job.path / "hostfile")
    [options] = [word for word in command if word.startswith("--launcher_args=")]
    assert options == (
        "--launcher_args=--map-by node --bind-to none --mca plm_rsh_agent ssh --mca plm_rsh_args "
        "'-oBatchMode=yes -oConnectTimeout=15 -oServerAliveInterval=10 -oServerAliveCountMax=3' "
        "--mca oob_tcp_if_include eth1 --mca btl_tcp_if_include eth1"
    )


def test_a_dry_run_shows_files_and_commands_without_values(
    config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is made or asked; secrets of the shell are not even named."""
    monkeypatch.setenv("NCCL_DEBUG", "its-value")
    monkeypatch.setenv("NCCL_AUTH_TOKEN", "s3cret")
    text = request_text(config(**{"backend.env": {"MY_VARIABLE": "my-value"}}))
    lines = text.splitlines()
    assert lines[0].startswith("# Run tiny, job ") and lines[0].endswith(
        "starts on 2 machines, written by nbtrain."
    )
    assert "a slots=1\nb slots=1\n\n# and " in text and f"\n{AGENT_MARKER}=" in text
    agents = [line for line in lines if " -m nbtrain.jobs.node " in line]
    assert [line.rpartition(" --nodes ")[2] for line in agents] == ["2 --node 0", "2 --node 1"]
    [launcher] = [line for line in lines if "deepspeed.launcher.runner" in line]
    assert shlex.split(launcher)[1].endswith("/deepspeed.env") and "ServerAliveInterval=10" in launcher
    assert "NCCL_DEBUG" in text and "MY_VARIABLE" in text
    assert not any(one in text for one in ("its-value", "my-value", "s3cret", "NCCL_AUTH_TOKEN"))
    assert not RunDir.named("tiny").exists()


def test_only_what_carries_the_jobs_marker_is_ended() -> None:
    """An agent that ignores TERM is killed; the agent of another job lives."""
    ignore = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    deaf = f"{ignore}; print(flush=True); time.sleep(600)"
    agents = [
        subprocess.Popen(
            [sys.executable, "-c", deaf], env={**os.environ, AGENT_MARKER: name}, stdout=subprocess.PIPE
        )
        for name in (f"{JOB_ID}-ended", f"{JOB_ID}-left")
    ]
    try:
        for agent in agents:
            agent.stdout.readline()
        # Processes that have ended are seen until their parent, this test, has asked for their end.
        ended = subprocess.Popen([sys.executable, end_job.__file__, f"{JOB_ID}-ended", "0.5"])
        assert agents[0].wait(60) == -9
        assert ended.wait(60) == 0
        assert agents[1].poll() is None
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
            agent.stdout.close()


def answer_of(host: str, asked: list[str], /, **changes: Any) -> Answer:
    """What the probe prints on a host without problems, but for `changes`."""
    question = json.loads(asked[0])
    with Path(question["token"]).open() as token:
        found = {
            "time": time.time(),
            "host": host,
            "boot_id": "x",
            "python": ".".join(map(str, sys.version_info[:3])),
            "versions": {
                "torch": checks.package_version("torch"),
                "deepspeed": checks.package_version("deepspeed"),
                "nbtrain": __version__,
            },
            "missing": [],
            "token": token.read(),
            "writable": True,
            "scratch": "/tmp",
            "scratch_free": 10**12,
            "place": {"address": "10.0.0.1", "port": 1234},
            "gpus": None,
            **changes,
        }
    return Answer(host, 0, f"{json.dumps(found)}\n", "")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        (
            {"python": "3.6.8"},
            "b has Python 3.6.8, and this machine has Python",
        ),
        ({"versions": {}}, "b has no torch, and this machine has torch"),
        (
            {"missing": ["/work"]},
            "b does not see the folder /work, which the run uses. Mount the shared disk",
        ),
        ({"token": None}, "of its own: a file written here is not seen there, and the ranks share their run"),
        ({"writable": False}, "b may not write to"),
        ({"scratch_free": 10**7}, "b: the disk of /tmp has 0.01 GB free, and a run needs 0.25 GB for"),
        (
            {"place": {"address": "127.0.0.1", "port": 1}},
            "b has no IPv4 address but loopback, which no other",
        ),
        (
            {"place": {"trouble": "b: no network interface ib9"}},
            "default: b: no network interface ib9",
        ),
        ({"gpus": []}, "the run needs 1 GPUs on each machine; b has 0. Use machines that have them"),
        ({"time": 0.0}, "the clock of b differs from this machine's by"),
        ({"host": "a"}, "a and b are two names of one machine (a). Name each machine once"),
    ],
)
def test_each_problem_of_a_host_is_named(
    config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str
) -> None:
    """The first host has none; the file that shows whether the disk is shared is removed again."""

    def answers(section: Any, hosts: list[str], program: Any, asked: list[str], *more: Any) -> list[Answer]:
        return [answer_of("a", asked), answer_of("b", asked, **changes)]

    monkeypatch.setattr(checks, "run_everywhere", answers)
    found = [str(problem) for problem in checks.obstacles(config())]
    assert len(found) == (3 if changes.get("versions") == {} else bool(changes)), found
    assert words in "\n".join(found)
    assert not list(checks.workspace().glob(".nbtrain-hosts-*"))
