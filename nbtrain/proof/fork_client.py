"""The client of the fork server: starts ranks quickly by forking a process that has already loaded torch.

    with ForkServer() as server:
        first = server.start(4, "nbtrain.train.__main__:main", [str(run.path)], log=..., environment=...)
        ended = server.wait(first)                 # several may run at the same time
        assert ended.exit_codes == [0, 0, 0, 0]

train/twin/fork_server.py is the server and explains when forking is safe. These runs have no supervisor,
because a user is waiting for them. Real runs use jobs/submission/submit.py.
"""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbtrain.base.errors import JobError
from nbtrain.base.workspace import folder_variables
from nbtrain.jobs.gpu_side import LAST_LINES, last_output
from nbtrain.jobs.machine.environment import supervisor_environment

# On a busy machine, the server's imports take minutes.
START_SECONDS = 600.0
END_SECONDS = 5.0


@dataclass(frozen=True)
class Launch:
    """A group of ranks that were forked together and may still be running."""

    id: int
    pids: list[int]
    """Process ids, in the order of ranks."""
    log: str
    """Path of the ranks' logs, with {rank} as a placeholder for the rank."""

    def log_of(self, rank: int) -> Path:
        return Path(self.log.replace("{rank}", str(rank)))


@dataclass(frozen=True)
class Ended:
    """The result of a launch that has ended."""

    launch: Launch
    exit_codes: list[int]
    """Exit code of each rank, or the negative number of the signal that ended the rank."""
    timed_out: bool
    seconds: float
    cpu_seconds: float
    """CPU seconds summed over all ranks; unlike `seconds`, independent of other load on the machine."""

    @property
    def succeeded(self) -> bool:
        return not self.timed_out and not any(self.exit_codes)

    def last_output(self, lines: int = LAST_LINES) -> str:
        """Return the last lines of a rank's log: of the first rank that failed, otherwise of rank 0."""
        own = [rank for rank, code in enumerate(self.exit_codes) if code > 0]
        log = self.launch.log_of((own or [0])[0])
        text = log.read_text(errors="replace") if log.exists() else ""
        return "\n".join(text.strip().splitlines()[-lines:])


class ForkServer:
    """The owner of one fork server process. Threads must not share a ForkServer."""

    def __init__(self, modules: Sequence[str] = ()):
        """Start the server. It imports the modules that a run needs, and `modules`, in the background."""
        # stderr goes to a file: no thread reads it while the server runs, and a full pipe would block.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "nbtrain.train.twin.fork_server", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env={
                **supervisor_environment(),
                "DS_ACCELERATOR": "cpu",
                # There are more ranks than cores, and OpenMP threads would not survive the fork.
                "OMP_NUM_THREADS": "1",
                "OMP_WAIT_POLICY": "PASSIVE",
                "GLOO_SOCKET_IFNAME": "lo",
                "PYTHONUNBUFFERED": "1",
            },
            start_new_session=True,
        )
        self._unread = b""
        self._next_id = 0
        self._launches: dict[int, Launch] = {}
        self._ended: dict[int, Ended] = {}
        self._abilities: dict[str, Any] | None = None

    def __enter__(self) -> "ForkServer":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """Process id of the server. If the server ends, its ranks end too."""
        return self._process.pid

    @property
    def abilities(self) -> dict[str, Any]:
        """Number formats that ranks can train in on this machine: {"fp16": bool, "bf16": bool}.

        The first access waits until the server's imports are done.
        """
        if self._abilities is None:
            answer = self._answer(time.monotonic() + START_SECONDS)
            assert answer["kind"] == "ready", answer
            self._abilities = {key: value for key, value in answer.items() if key != "kind"}
        return self._abilities

    def start(
        self,
        ranks: int,
        function: str,
        arguments: Sequence[Any],
        *,
        log: str | Path,
        environment: Mapping[str, str] | None = None,
        sys_path: Sequence[str | Path] = (),
        timeout_seconds: float = 300.0,
        linger_seconds: float = 10.0,
    ) -> Launch:
        """Fork ranks that call `function` ("package.module:name") with `arguments`, which are JSON values.

        The function's return value is the rank's exit code; None counts as 0. `log` is a path that contains
        {rank}. The entries of `sys_path` come before those of the ranks' own sys.path. After
        `timeout_seconds`, all ranks are killed. If a rank fails, the others are killed after
        `linger_seconds`.
        """
        assert self.abilities is not None
        self._next_id += 1
        request = {
            "id": self._next_id,
            "ranks": ranks,
            "function": function,
            "arguments": list(arguments),
            # The workspace's folders may have changed since the server was started.
            "environment": {**folder_variables(), **(environment or {})},
            "log": str(log),
            "timeout_seconds": timeout_seconds,
            "linger_seconds": linger_seconds,
            "sys_path": [str(entry) for entry in sys_path],
        }
        self._send(request)
        while (answer := self._answer(time.monotonic() + START_SECONDS))["id"] != self._next_id:
            self._note(answer)
        if answer["kind"] == "error":
            raise JobError(f"could not fork {ranks} ranks that run {function}: {answer['message']}")
        launch = Launch(self._next_id, answer["pids"], str(log))
        self._launches[launch.id] = launch
        return launch

    def wait(self, launch: Launch) -> Ended:
        """Wait until a launch has ended, at the latest at its time limit, and return the result."""
        while launch.id not in self._ended:
            self._note(self._answer(None))
        return self._ended.pop(launch.id)

    def run(self, ranks: int, function: str, arguments: Sequence[Any], **options: Any) -> Ended:
        """Start ranks, wait until they have ended, and return the result."""
        return self.wait(self.start(ranks, function, arguments, **options))

    def signal(self, launch: Launch, number: int, rank: int | None = None) -> None:
        """Send a signal to one rank or, without `rank`, to all ranks that are still running."""
        self._send({"id": launch.id, "signal": int(number), "rank": rank})

    def close(self) -> None:
        """End the server and all of its ranks."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin and stdout
        stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            # It is still importing, or stuck. Its session contains only itself and its ranks.
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        stdout.close()
        self._said.close()

    def _send(self, request: dict[str, Any]) -> None:
        assert self._process.stdin
        try:
            self._process.stdin.write((json.dumps(request) + "\n").encode())
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._dead() from error

    def _note(self, answer: dict[str, Any]) -> None:
        launch = self._launches.pop(answer["id"])
        figures = ("exit_codes", "timed_out", "seconds", "cpu_seconds")
        self._ended[launch.id] = Ended(launch, *(answer[key] for key in figures))

    def _answer(self, deadline: float | None) -> dict[str, Any]:
        assert self._process.stdout
        stream = self._process.stdout.fileno()
        while b"\n" not in self._unread:
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            if not select.select([stream], [], [], left)[0]:
                said = last_output(self._said)
                raise JobError(
                    f"the fork server did not respond for {START_SECONDS:g} s. Run the command again when "
                    "the machine is less busy." + (f" The server's last output:\n{said}" if said else "")
                )
            content = os.read(stream, 1 << 16)
            if not content:
                raise self._dead()
            self._unread += content
        line, _, self._unread = self._unread.partition(b"\n")
        return json.loads(line)

    def _dead(self) -> JobError:
        code, said = self._process.wait(), last_output(self._said)
        # `nbtrain cancel` sends TERM, with --now QUIT.
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return JobError(f"the fork server {how}." + (f" The server's last output:\n{said}" if said else ""))
