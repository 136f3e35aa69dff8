"""Forks ranks from one process that has imported torch and DeepSpeed, so that only one import is needed.

    python -m nbtrain.train.twin.fork_server         proof/fork_client.py starts it and sends requests
        {"id": 1, "ranks": 4, "function": "nbtrain.train.__main__:main", "arguments": ["output/gpt"],
         "log": "{rank}.log", ...}
            -> {"kind": "started", "id": 1, "pids": [...]}
            -> {"kind": "ended", "id": 1, "exit_codes": [0, 0, 0, 0], "timed_out": false, ...}
        {"id": 1, "signal": 15, "rank": 0}
            -> sends the signal to this rank or, if rank is null, to all ranks that still run

`nbtrain twin` and tests use it to run many ranks on few cores. It is for CPUs only, where a rank's imports
take longer than a few steps of a small model. A fork is safe before there is a second thread, a process group
or a parallel region, and the server has none of these: it imports, forks and waits. If there is a second
thread, it refuses to fork. Forked ranks begin as if they had been started as new processes: with their own
environment, their own log and a new port.

If a rank dies, the other ranks wait for it in a collective; they are killed after `linger_seconds`. The
server ends, together with its ranks, when its standard input is closed or the process that holds it dies.
"""

import contextlib
import gc
import importlib
import json
import logging
import os
import select
import signal
import sys
import time
import traceback
from dataclasses import dataclass, field
from typing import Any

from nbtrain.base.code_hashes import code_hashes
from nbtrain.base.process.parent_death import die_with_parent
from nbtrain.base.process.ports import port_to_listen_on
from nbtrain.base.process.signals import hear_signals

# Modules that a rank of a training run imports, including those that DeepSpeed imports at its first call.
PRELOADED = (
    "deepspeed",
    "deepspeed.runtime.engine",
    "deepspeed.runtime.pipe.engine",
    "deepspeed.runtime.zero.stage3",
    "deepspeed.runtime.zero.stage_1_and_2",
    "deepspeed.runtime.bf16_optimizer",
    "torch.utils.data",
    "torch.profiler",
    "nbtrain.train.__main__",
    "nbtrain.config.rules.check",
    "nbtrain.dataset.samples.gpt_dataset",
    "nbtrain.train.trainer",
)
POLL_SECONDS = 0.02


@dataclass
class ForkedRanks:
    """Ranks that were forked together."""

    id: int
    started: float
    deadline: float
    linger_seconds: float
    running: dict[int, int]
    """{pid: rank} of the ranks that still run."""
    exit_codes: list[int | None]
    """Exit codes by rank: the negative signal number if a signal ended the rank, None while it runs."""
    cpu_seconds: float = 0.0
    timed_out: bool = False
    kill_at: float = field(default=float("inf"))


class Server:
    """Reads requests, forks ranks, waits for their end and sends answers, in one thread."""

    def __init__(self, requests: int, answers: int):
        """Set up the server; `requests` and `answers` are file descriptors of JSON lines."""
        self._requests, self._answers = requests, answers
        self._unread = b""
        self._launches: dict[int, ForkedRanks] = {}

    def serve(self) -> None:
        """Serve until the requests end, then kill the ranks that still run."""
        self.answer({"kind": "ready", **_abilities()})
        try:
            while True:
                wait = POLL_SECONDS if self._launches else None
                if select.select([self._requests], [], [], wait)[0] and not self._read():
                    return
                self._look_after()
        finally:
            for launch in self._launches.values():
                _signal(launch, signal.SIGKILL)

    def answer(self, value: dict[str, Any]) -> None:
        line = (json.dumps(value) + "\n").encode()
        while line:
            line = line[os.write(self._answers, line) :]

    def _read(self) -> bool:
        """Read pending requests and carry them out. Return False once the requests have ended."""
        content = os.read(self._requests, 1 << 16)
        *lines, self._unread = (self._unread + content).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if "signal" in request:
                if launch := self._launches.get(request["id"]):
                    _signal(launch, request["signal"], request.get("rank"))
                continue
            try:
                self._launch(request)
            except Exception as error:
                message = f"{type(error).__name__}: {error}"
                self.answer({"kind": "error", "id": request["id"], "message": message})
        return bool(content)

    def _launch(self, request: dict[str, Any]) -> None:
        threads = len(os.listdir("/proc/self/task"))
        if threads > 1:
            raise RuntimeError(f"the fork server has {threads} threads; forking it would lose all but one")
        ranks, now = request["ranks"], time.monotonic()
        port, running = port_to_listen_on(""), {}
        sys.stdout.flush()
        sys.stderr.flush()
        for rank in range(ranks):
            pid = os.fork()
            if pid == 0:
                os.close(self._answers)
                _be_rank(request, rank, port)
            running[pid] = rank
        deadline, linger = now + request["timeout_seconds"], request["linger_seconds"]
        launch = ForkedRanks(request["id"], now, deadline, linger, running, [None] * ranks)
        self._launches[launch.id] = launch
        self.answer({"kind": "started", "id": request["id"], "pids": list(running)})

    def _look_after(self) -> None:
        for launch in list(self._launches.values()):
            for pid in list(launch.running):
                done, status, used = os.wait4(pid, os.WNOHANG)
                if done:
                    launch.cpu_seconds += used.ru_utime + used.ru_stime
                    code = os.waitstatus_to_exitcode(status)
                    launch.exit_codes[launch.running.pop(pid)] = code
                    if code != 0:
                        launch.kill_at = min(launch.kill_at, time.monotonic() + launch.linger_seconds)
            if launch.running and time.monotonic() > min(launch.deadline, launch.kill_at):
                launch.timed_out = launch.timed_out or time.monotonic() > launch.deadline
                _signal(launch, signal.SIGKILL)
            if not launch.running:
                del self._launches[launch.id]
                self.answer(
                    {
                        "kind": "ended",
                        "id": launch.id,
                        "exit_codes": launch.exit_codes,
                        "timed_out": launch.timed_out,
                        "seconds": time.monotonic() - launch.started,
                        "cpu_seconds": launch.cpu_seconds,
                    }
                )


def _signal(launch: ForkedRanks, number: int, rank: int | None = None) -> None:
    for pid, this_rank in launch.running.items():
        if rank is None or rank == this_rank:
            # Not reaped yet, so the pid still belongs to this rank.
            os.kill(pid, number)


def _be_rank(request: dict[str, Any], rank: int, port: int) -> None:
    """Run as a forked rank. Never returns."""
    code = 1
    try:
        # This must come first, so that all output and the exit code belong to this rank.
        die_with_parent(signal.SIGKILL)
        path = request["log"].replace("{rank}", str(rank))
        log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        null = os.open(os.devnull, os.O_RDONLY)
        for source, target in ((null, 0), (log, 1), (log, 2)):
            os.dup2(source, target)
        os.environ.update(
            {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(request["ranks"]),
                "LOCAL_WORLD_SIZE": str(request["ranks"]),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                **request["environment"],
            }
        )
        sys.path[:0] = request["sys_path"]
        module, _, name = request["function"].partition(":")
        function = getattr(importlib.import_module(module), name)
        code = int(function(*request["arguments"]) or 0)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        # Exit without the interpreter's cleanup, which would run handlers that the server registered for
        # itself.
        with contextlib.suppress(Exception):
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _abilities() -> dict[str, Any]:
    """Return {dtype: whether DeepSpeed's accelerator on this machine supports it} for fp16 and bf16."""
    from deepspeed.accelerator import get_accelerator

    accelerator = get_accelerator()
    fp16, bf16 = accelerator.is_fp16_supported(), accelerator.is_bf16_supported()
    return {"fp16": bool(fp16), "bf16": bool(bf16)}


def main(modules: list[str]) -> None:
    """Import everything, then serve. `modules` are imported before any fork, in addition to those that every
    run needs.
    """
    die_with_parent(signal.SIGKILL)
    # Output of libraries during their import must not appear among the answers.
    answers = os.dup(1)
    os.dup2(2, 1)
    # Imported late because it loads torch, which takes seconds; die_with_parent() must take effect before.
    from nbtrain.parallel.startup import prepare_deepspeed

    prepare_deepspeed("cpu")
    for module in (*modules, *PRELOADED):
        importlib.import_module(module)
    # The hashes are computed now, because the ranks run the code that is loaded now even if a file changes
    # later.
    code_hashes()
    # The garbage collector must never visit the objects created so far, because a visit would copy their
    # memory pages in every rank.
    gc.collect()
    gc.freeze()
    Server(0, answers).serve()


if __name__ == "__main__":
    hear_signals()
    main(sys.argv[1:])
