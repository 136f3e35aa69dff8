"""The hosts backend without real hosts: the arguments of launchers, which processes are ended, and what is
rejected.
"""

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from nbtrain.base.hardware import nvml
from nbtrain.base.hardware.nvml import Gpu
from nbtrain.base.run_directory.node_records import NodeRecord
from nbtrain.base.run_directory.records import JobRecord, ProcessIdentity
from nbtrain.base.run_directory.rundir import JobDir, RunDir
from nbtrain.base.version import __version__
from nbtrain.config.load import to_yaml
from nbtrain.config.load.elastic import fitted
from nbtrain.config.sections.backend_section import HostsConfig
from nbtrain.jobs.backends.hosts import checks, end_job, probe
from nbtrain.jobs.backends.hosts import launcher as launcher_module
from nbtrain.jobs.backends.hosts.launcher import (
    AGENT_END_SECONDS,
    AGENT_MARKER,
    HostsHandle,
    HostsLauncher,
    runner_command,
    runner_environment,
)
from nbtrain.jobs.backends.hosts.on_host import as_word, job_of
from nbtrain.jobs.backends.hosts.ssh import RemoteOutput, run_everywhere
from nbtrain.jobs.machine.hostfile import read_hostfile
from nbtrain.jobs.machine.node_disk import NodeDisk
from nbtrain.jobs.submission.dry_run import request_text

JOB_ID = "20261121-031500-a1b2"


@pytest.fixture
def config(tiny: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return the tiny run on the hosts a and b, on a machine that has all programs."""
    monkeypatch.setattr(checks.shutil, "which", lambda name: f"/usr/bin/{name}")

    def make(**more: Any) -> Any:
        places = {"backend.kind": "hosts", "backend.hosts.hosts": ["a", "b"], "resources.nodes": 2}
        return tiny(**{"parallel.data_parallel_size": 2, **places, **more})

    return make


def test_deepspeeds_launcher_gets_one_plain_word(config: Callable[..., Any], workspace: Any) -> None:
    """DeepSpeed's launcher gets its command as one word without spaces or quotes, because it would split a
    path that contains them.
    """
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
    """OpenMPI gets the same ssh options, and starts one agent on each host without binding it to a core."""
    more = {"backend.hosts.launcher": "openmpi", "backend.hosts.network_interface": "eth1"}
    job = JobDir(RunDir.named("tiny"), JOB_ID)
    command = runner_command(config(**more), job, ["a", "b"], job.path / "hostfile")
    [options] = [word for word in command if word.startswith("--launcher_args=")]
    assert options == (
        "--launcher_args=--map-by node --bind-to none --mca plm_rsh_agent ssh --mca plm_rsh_args "
        "'-oBatchMode=yes -oConnectTimeout=15 -oServerAliveInterval=10 -oServerAliveCountMax=3'"
    )


def test_what_is_typed_by_hand_has_the_port_and_the_configuration(
    config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Commands that the user should type contain the port and the ssh configuration, so that they reach the
    same sshd.
    """
    refused = subprocess.CompletedProcess([], 255, "", "Host key verification failed.")
    monkeypatch.setattr(subprocess, "run", lambda *rest, **more: refused)
    section = HostsConfig(hosts=["a"], ssh_port=2299, ssh_config=str(tmp_path / "conf"))
    [answer] = run_everywhere(section, ["a"], Path(__file__))
    assert answer.trouble == (
        "a has a host key that is not known on this machine",
        f"Log in once by hand (`ssh -F {tmp_path}/conf -p 2299 a`) and verify the key, or add it with "
        "ssh-keyscan.",
    )
    changed = RemoteOutput("a", 255, "", "REMOTE HOST IDENTIFICATION HAS CHANGED", " -p 2299", 2299)
    assert "`ssh-keygen -R '[a]:2299'`" in changed.trouble[1]


def test_what_a_host_says_need_not_be_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output of a host may contain bytes that are not UTF-8, such as a Latin-1 greeting before the answer."""
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\ncat >/dev/null\nprintf 'gr\\374ezi\\n{}\\n'\nprintf '\\377' >&2\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    [answer] = run_everywhere(HostsConfig(hosts=["a"]), ["a"], Path(__file__))
    assert (answer.output, answer.errors) == ("gr\ufffdezi\n{}\n", "\ufffd")


def test_machines_that_cannot_be_used_have_no_devices(
    config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """A machine that cannot be used counts as having no devices, with the reason in the log; one with fewer
    GPUs counts those it has.
    """
    gone = RemoteOutput("a", 255, "", "ssh: connect to host a port 22: No route to host")

    def ask(*rest: Any) -> list[RemoteOutput]:
        return [gone, answer_of("b", rest[3], gpus=["A100"])]

    monkeypatch.setattr(checks, "run_everywhere", ask)
    found = config(
        **{"parallel.data_parallel_size": 4, "resources.device": "gpu", "resources.gpus_per_node": 2}
    )
    assert checks.usable_devices(found) == {"a": 0, "b": 1}
    said = capsys.readouterr().out
    assert said.startswith("a is not used: ") and "a did not respond within 15 s" in said


def test_a_host_that_no_name_server_knows_is_a_mistake(
    config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host name that cannot be resolved is an error, not a shortage, which a notebook would skip."""
    words = "ssh: Could not resolve hostname a: Name or service not known"
    monkeypatch.setattr(checks, "run_everywhere", lambda *rest: [RemoteOutput("a", 255, "", words)])
    found = [finding for finding in checks.findings(config()) if "cannot resolve" in str(finding)]
    assert [finding.lacks for finding in found] == [""]


@pytest.fixture
def started(config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Return a function that lists the calls of start_agents(): started(launcher, config). The host `off`
    never answers.
    """
    calls: list[Any] = []

    def end(
        section: Any, hosts: list[str], job_id: str, grace_seconds: float, agents: float | None = None
    ) -> list[RemoteOutput]:
        assert agents is None or agents == 10 * grace_seconds + AGENT_END_SECONDS
        calls.append((tuple(hosts), job_id, grace_seconds))
        words = "ssh: connect to host off port 22: No route to host"
        return [
            RemoteOutput(host, 255 if host == "off" else 0, "", words if host == "off" else "")
            for host in hosts
        ]

    monkeypatch.setattr(launcher_module, "end_marked", end)
    monkeypatch.setattr(launcher_module, "start_runner", lambda config, job, hosts: calls.append(hosts))

    def start(launcher: HostsLauncher, config: Any) -> list[Any]:
        calls.clear()
        launcher._config = config
        agents = launcher.start_agents(config)
        return [*calls, *([agents.end_message] if agents else [])]

    return start


def make_job(config: Any, job_id: str, state: str = "RUNNING", hosts: tuple[str, ...] = ("a", "b")) -> JobDir:
    run = RunDir.named("tiny")
    job = run.job(job_id)
    job.make_folders()
    run.config_yaml.write_text(to_yaml(config))
    JobRecord(job_id, "id", "tiny", state, time.time(), 2, backend="hosts").write(job.job_json)
    HostsHandle(list(hosts)).write(job.handle_json)
    return job


def test_ranks_of_a_lost_job_leave_before_others_start(
    config: Callable[..., Any], started: Callable[..., list[Any]]
) -> None:
    """The ranks of a lost job exit, with time to save, before new ones are started; a job that has ended has
    no ranks left.
    """
    lost = make_job(config(), "20260101-120000-aaaa", hosts=("b", "c"))
    job = make_job(config(), "20260101-120001-bbbb")
    asked = [(("a", "b"), job.job_id, 0.0), (("b", "c"), lost.job_id, 20.0), ["a", "b"]]
    assert started(HostsLauncher(job, ()), config()) == asked
    make_job(config(), lost.job_id, "CANCELLED")
    assert started(HostsLauncher(job, ()), config()) == [asked[0], asked[2]]
    make_job(config(), lost.job_id, hosts=("b", "off"))
    said = started(HostsLauncher(job, ()), config())[-1]
    assert said.startswith(
        "off did not respond within 15 s; the processes that job 20260101-120000-aaaa left there end by "
        "themselves within"
    )
    # Long enough after its last sign of life its agents have exited by themselves.
    os.utime(lost.job_json, (0, 0))
    assert started(HostsLauncher(job, ()), config())[-1] == ["a", "b"]


def test_a_restart_takes_the_machines_that_answer(
    config: Callable[..., Any], started: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With backend.elastic, a restart uses the machines that respond, and ignores the record of an agent that
    ran before.
    """
    job = make_job(config(), "20260101-120000-aaaa")
    launcher, whole = HostsLauncher(job, ()), config()
    old = ProcessIdentity(7, 1, "boot of a", "a")
    NodeRecord(0, old, "a", "10.0.0.1", 5000, 1.0).write(job.node(0))
    monkeypatch.setattr(launcher_module, "usable_devices", lambda config: {"a": 0, "b": 1})
    assert launcher.devices(whole) == [1, 0]
    assert started(launcher, fitted(whole, [1, 0]))[-1] == ["b"]
    assert launcher._known_agents() == []
    new = ProcessIdentity(8, 1, "boot of b", "b")
    NodeRecord(0, new, "b", "10.0.0.2", 5000, 1.0).write(job.node(0))
    assert [record.agent for record in launcher._known_agents()] == [new]
    monkeypatch.setattr(launcher_module, "usable_devices", lambda config: {})
    assert launcher.devices(whole) is None, "a full disk says nothing of machines"


def test_a_preempted_run_waits_until_enough_machines_answer(
    config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a preemption, machines are counted at intervals; a machine with too few devices does not count,
    and machines that cannot be counted are not waited for.
    """
    launcher, counts = HostsLauncher(make_job(config(), JOB_ID), ()), [{"a": 1, "b": 0}, {"a": 1, "b": 1}, {}]
    launcher._config, clock = config(), [1000.0]
    monkeypatch.setattr(launcher_module.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(launcher_module, "usable_devices", lambda config: counts.pop(0))
    few = "only 1 of 2 machines is usable"
    assert (launcher.missing(), launcher.missing(), len(counts)) == (few, few, 2)
    clock[0] += launcher_module.COUNT_SECONDS
    assert (launcher.missing(), len(counts)) == ("", 1)
    clock[0] += launcher_module.COUNT_SECONDS
    assert (launcher.missing(), len(counts)) == ("", 0)


def test_a_dry_run_shows_files_and_commands_without_values(
    config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dry run shows files and commands without the values of environment variables, and does not mention
    secrets of the shell.
    """
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
    assert not any(secret in text for secret in ("its-value", "my-value", "s3cret", "NCCL_AUTH_TOKEN"))
    assert not RunDir.named("tiny").exists()


@pytest.mark.slow
def test_only_what_carries_the_jobs_marker_is_ended() -> None:
    """Only processes that have the job's marker are ended, with KILL if they ignore TERM."""
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
        # Ended processes stay visible until their parent, this test, has waited for them.
        ended = subprocess.Popen([sys.executable, end_job.__file__, f"{JOB_ID}-ended", "600", "0.5"])
        assert agents[0].wait(600) == -9
        assert ended.wait(600) == 0
        assert agents[1].poll() is None
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
            agent.stdout.close()


@pytest.mark.parametrize(
    ("left", "words"),
    [
        ({4: ([], b""), 5: ([], b"")}, "2 processes of the job do not exit (perhaps an NFS server hangs)"),
        ({4: ([], b"")}, "1 process of the job does not exit (perhaps an NFS server hangs)"),
    ],
)
def test_what_does_not_end_is_said_in_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, left: dict[int, Any], words: str
) -> None:
    """A process in uninterruptible sleep, which survives KILL, is reported."""
    monkeypatch.setattr(end_job, "marked", lambda job_id: left)
    monkeypatch.setattr(end_job, "send", lambda pids, number: None)
    monkeypatch.setattr(end_job, "KILL_SECONDS", 0.0)
    code = end_job.main(JOB_ID, 0.0, 0.0)
    said = capsys.readouterr()
    assert said.out == f"{len(left)} {len(left)} {len(left)}\n"
    assert launcher_module.why(RemoteOutput("node-b", code, said.out, said.err)) == f"node-b: {words}"


def answer_of(host: str, asked: list[str], /, **changes: Any) -> RemoteOutput:
    """Return the output of the check on a host without problems, changed by `changes`."""
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
            "shared_memory": 10**9,
            "place": {"address": "10.0.0.1", "port": 1234},
            "gpus": None,
            **changes,
        }
    return RemoteOutput(host, 0, f"{json.dumps(found)}\n", "")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        (
            {"python": "3.6.8"},
            "b has Python 3.6.8, but this machine has Python",
        ),
        ({"versions": {}}, "b has no torch, but this machine has torch"),
        (
            {"missing": ["/work"]},
            "b does not see the folder /work, which the run uses. Mount the shared disk",
        ),
        (
            {"token": None},
            ": a file written on this machine does not appear there, but all ranks must share the run",
        ),
        ({"writable": False}, "b has no permission to write to"),
        (
            {"local_disk": asdict(NodeDisk("/nvme", False, 0, 0))},
            "checkpoint.local_dir = /nvme/x: b has no permission to write to /nvme. Create the folder on a "
            "local disk",
        ),
        (
            {"local_disk": asdict(NodeDisk("/nvme", True, 10**4, 10**5))},
            "b has 9.8 KiB free on /nvme, but the run's checkpoints there need 825.4 KiB. ",
        ),
        ({"shared_memory": 65536}, "but /dev/shm on b has only 64.0 KiB free. Set data.num_workers=0"),
        ({"scratch_free": 10**7}, "b: the disk of /tmp has 9.5 MiB free, but a run needs 238.4 MiB for"),
        (
            {"place": {"address": "127.0.0.1", "port": 1}},
            "b has only a loopback IPv4 address, which no other",
        ),
        (
            {"place": {"trouble": "b: no network interface ib9"}},
            "tiny.yaml:12: b: no network interface ib9",
        ),
        ({"gpus": []}, "the run needs 1 GPU on each machine, but b has 0. Use machines with enough GPUs"),
        ({"time": 0.0}, "the clock of b differs from this machine's by"),
        ({"host": "a"}, "a and b are two names of the same machine (a). List each machine only once"),
    ],
)
def test_each_problem_of_a_host_is_named(
    config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str
) -> None:
    """Each problem of a host is reported, and the file that tests for a shared disk is removed again."""

    def answers(
        section: Any, hosts: list[str], program: Any, asked: list[str], *more: Any
    ) -> list[RemoteOutput]:
        return [answer_of("a", asked), answer_of("b", asked, **changes)]

    monkeypatch.setattr(checks, "run_everywhere", answers)
    local = {"checkpoint.local_dir": "/nvme/x", "data.num_workers": 2}
    found = [str(problem) for problem in checks.findings(config(**local))]
    assert len(found) == (3 if changes.get("versions") == {} else bool(changes)), found
    assert words in "\n".join(found)
    assert not list(checks.workspace().glob(".nbtrain-hosts-*"))


def test_a_fix_names_the_variable_that_decides(
    config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With NBTRAIN_DATA, the fix names this variable, because another workspace would not move the data. A
    command to try by hand has the port and the configuration of ssh.
    """
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("NBTRAIN_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("NBTRAIN_OUTPUT", raising=False)
    broken = RemoteOutput("b", 7, "", "hello", by_hand=" -p 2299")

    def fixes(answer: Callable[[list[str]], RemoteOutput]) -> str:
        monkeypatch.setattr(checks, "run_everywhere", lambda *given: [answer(given[3])])
        return "\n".join(str(problem) for problem in checks.findings(config()))

    assert "or set NBTRAIN_DATA to a folder" in fixes(
        lambda asked: answer_of("b", asked, missing=[str(tmp_path / "data")])
    )
    assert "or set NBTRAIN_WORKSPACE to a folder" in fixes(lambda asked: answer_of("b", asked, token=None))
    assert "Run `ssh -p 2299 b " in fixes(lambda asked: broken)


def probe_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make `ssh` run its command on this machine."""
    ssh = folder / "ssh"
    ssh.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nexec sh -c "$3"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


@pytest.mark.slow
def test_each_host_is_asked_for_the_folder_of_its_own_number(
    config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The probe fills in {node} and {host} as the ranks do, and looks at no folder if a run writes no
    checkpoints.
    """
    probe_here(tmp_path, monkeypatch)
    (tmp_path / "disk0").mkdir()
    (tmp_path / "disk1").write_text("a file, where node 1 has its folder")
    local = {"checkpoint.local_dir": f"{tmp_path}/disk{{node}}/{{host}}"}

    def said(**more: Any) -> list[str]:
        looked = checks.looked_at(config(**local, **more), ["a", "b"], 600.0)
        return [
            str(problem) for _, _, problems in looked for problem in problems if "local_dir" in str(problem)
        ]

    [only] = said()
    assert f"b has no permission to write to {tmp_path}/disk1." in only
    assert said(mode="perf") == []


def test_gpus_of_a_host_are_those_that_its_ranks_see(
    config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host has the GPUs that backend.env leaves to the ranks, whatever the variable of its shell says."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    four = tuple(Gpu("H100", 80 << 30, index=index) for index in range(4))
    monkeypatch.setattr(nvml, "driver_gpus", lambda: four)

    def answers(
        section: Any, hosts: list[str], program: Any, asked: list[str], *more: Any
    ) -> list[RemoteOutput]:
        chosen = json.loads(asked[0])["gpus"]
        return [answer_of(host, asked, gpus=probe.gpus(chosen)) for host in hosts]

    monkeypatch.setattr(checks, "run_everywhere", answers)
    gpu = {"parallel.data_parallel_size": 4, "resources.device": "gpu", "resources.gpus_per_node": 2}
    assert checks.usable_devices(config(**gpu)) == {"a": 2, "b": 2}
    hidden = config(**gpu, **{"backend.env": {"CUDA_VISIBLE_DEVICES": "0"}})
    assert checks.usable_devices(hidden) == {"a": 1, "b": 1}
    found = [str(problem) for problem in checks.findings(hidden) if "GPU" in str(problem)]
    assert len(found) == 2
    assert "needs 2 GPUs on each machine, but b has 1 (backend.env.CUDA_VISIBLE_DEVICES=0)." in found[1]


@pytest.mark.parametrize("launcher", ["openmpi", "pdsh"])
def test_mpirun_needs_its_daemon_on_every_host(
    config: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, launcher: str
) -> None:
    """mpirun needs orted in the PATH of every host, because DeepSpeed passes no prefix; pdsh needs nothing on
    the hosts.
    """
    asked_for = []

    def answers(
        section: Any, hosts: list[str], program: Any, asked: list[str], *more: Any
    ) -> list[RemoteOutput]:
        asked_for.append(json.loads(asked[0])["daemons"])
        return [answer_of("a", asked, daemon=True), answer_of("b", asked, daemon=False)]

    monkeypatch.setattr(checks, "run_everywhere", answers)
    run = config(**{"backend.hosts.launcher": launcher})
    found = [str(problem) for problem in checks.findings(run)]
    if launcher == "pdsh":
        assert (found, asked_for) == ([], [[]])
        return
    assert asked_for == [["orted", "prted", "/usr/bin/orted", "/usr/bin/prted"]]
    assert found == [
        f"{run.where('backend.hosts.launcher')}: backend.hosts.launcher = openmpi: mpirun needs orted or "
        "prted on b to start the run, and neither is on the PATH that `ssh b env` shows. Install Open MPI "
        "there (Debian: openmpi-bin) and add its bin/ folder to that PATH, or set backend.hosts.launcher "
        "to pdsh."
    ]


def test_a_hostfile_from_windows(tmp_path: Path) -> None:
    """A byte order mark and CRLF line ends in a hostfile do not become part of a host name."""
    hostfile = tmp_path / "hosts"
    hostfile.write_bytes("\ufeffnode-a slots=1\r\nnode-b slots=2\r\n".encode())
    assert read_hostfile(hostfile) == {"node-a": 1, "node-b": 2}
