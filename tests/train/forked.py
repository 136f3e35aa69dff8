"""The ranks of a run's newest job, forked from a process that has loaded DeepSpeed."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.proof.fork_client import ForkServer, Launch
from tests.train import launch
from tests.waiting import wait_until

TRAINER = "nbtrain.train.__main__:main"


def start(
    server: ForkServer,
    data_home: Path,
    run: RunDir,
    ranks: int = 1,
    arguments: Sequence[Any] = (),
    program: str = TRAINER,
) -> Launch:
    """Start the ranks, each with program(path of the run, *arguments)."""
    job = run.newest_job()
    assert job is not None
    return server.start(
        ranks,
        program,
        [str(run.path), *arguments],
        log=job.path / "logs" / "{rank}.0.log",
        environment={"NBTRAIN_DATA": str(data_home), "NBTRAIN_JOB": job.job_id},
        sys_path=[launch.REPOSITORY],
        timeout_seconds=launch.TIMEOUT_SECONDS,
    )


def wait_while_alive(condition: Callable[[], Any], started: Launch, pause_seconds: float = 0.05) -> None:
    """Wait until `condition` holds, and fail as soon as the first rank ends before."""
    alive = Path(f"/proc/{started.pids[0]}/exe").exists
    what = "the rank does not get there"
    wait_until(lambda: condition() or not alive(), what, pause_seconds=pause_seconds)
    assert condition(), "the rank has ended"
