"""The proxy in front of TensorBoard; these tests run a program that responds with its process id instead."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from nbtrain.base.process.ports import LOOPBACK, port_to_listen_on
from nbtrain.lab.server.tensorboard_door import Door

# Answers every request with its process id, and closes the connection, as TensorBoard does.
ANSWERS = """
import os, socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])))
while True:
    asked, _ = listener.accept()
    if asked.recv(1 << 16):
        asked.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\n%d" % os.getpid())
    asked.close()
"""
COMMAND = [sys.executable, "-c", ANSWERS]


async def look(port: int, path: str = "/") -> bytes:
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    return answer.partition(b"\r\n\r\n")[2]


async def opened(door: Door) -> tuple[asyncio.Task, int]:
    port = asyncio.get_running_loop().create_future()
    task = asyncio.ensure_future(door.serve(LOOPBACK, 0, port.set_result))
    return task, await port


def runs(pid: int) -> bool:
    """Return whether the process is running; a zombie process is not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def closed(task: asyncio.Task) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_the_first_look_starts_it_and_the_door_ends_it() -> None:
    """The first request starts TensorBoard, later requests use the same process, and it ends together with
    the proxy.
    """

    async def story() -> None:
        door = Door(COMMAND, 3600)
        task, port = await opened(door)
        assert door._process is None
        first, second = await asyncio.gather(look(port), look(port))
        assert first == second and runs(int(first))
        await closed(task)
        assert not runs(int(first))

    asyncio.run(story())


def test_it_ends_when_nobody_looks_and_the_next_look_starts_it_again() -> None:
    async def story() -> None:
        door = Door(COMMAND, 0.02)
        task, port = await opened(door)
        first = await look(port)
        while runs(int(first)):
            await asyncio.sleep(0.01)
        assert await look(port) != first
        await closed(task)

    asyncio.run(story())


def test_the_page_is_the_doors_own_and_all_else_is_tensorboards() -> None:
    async def story() -> None:
        task, port = await opened(Door(COMMAND, 3600, b"<p>the page</p>"))
        assert await look(port, "/nbtrain/?run=gpt") == b"<p>the page</p>"
        assert (await look(port, "/data/runs")).isdigit()
        await closed(task)

    asyncio.run(story())


def test_a_page_has_a_run_shown_or_all(tmp_path: Path) -> None:
    """The proxy itself answers how many of the runs are shown, without starting TensorBoard."""
    for number in range(12):
        (tmp_path / f"gpt-{number}" / "tensorboard").mkdir(parents=True)
        os.utime(tmp_path / f"gpt-{number}" / "tensorboard", (number, number))

    async def story() -> None:
        door = Door(COMMAND, 3600, root=tmp_path)
        task, port = await opened(door)
        assert json.loads(await look(port, "/nbtrain-runs")) == {"shown": 10, "runs": 12}
        assert json.loads(await look(port, "/nbtrain-runs?run=gpt-0")) == {"shown": 11, "runs": 12}
        assert json.loads(await look(port, "/nbtrain-runs?run=all")) == {"shown": 12, "runs": 12}
        assert door._process is None
        assert (await look(port, "/nbtrain-runs-of-tensorboard")).isdigit()
        await closed(task)

    asyncio.run(story())


def test_a_tensorboard_that_does_not_start_is_an_answer() -> None:
    """If TensorBoard does not start, jupyter-server-proxy passes the error on, and the page offers to try
    again.
    """

    async def story() -> None:
        task, port = await opened(Door([sys.executable, "-c", "raise SystemExit(1)"], 3600))
        assert await look(port) == b"TensorBoard did not start.\n"
        await closed(task)

    asyncio.run(story())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_the_server_is_gone(tmp_path: Path, number: int) -> None:
    """If the server is killed and cannot clean up, the kernel signals the proxy, and no process is left."""
    parent = (
        "import subprocess, sys\n"
        "door = [sys.executable, '-m', 'nbtrain.lab.server.tensorboard_door']\n"
        "subprocess.Popen([*door, '--port', sys.argv[1], '--logdir', sys.argv[2]])\n"
        "print('started', flush=True)\n"
        "import time; time.sleep(600)"
    )
    command = [sys.executable, "-c", parent, str(port_to_listen_on()), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None and server.stdout.readline() == "started\n"
        (door,) = psutil.Process(server.pid).children()
        port = int(server.args[3])  # type: ignore[index]
        while True:
            try:
                asyncio.run(look(port))
                break
            except OSError:
                assert door.is_running()
        family = [door, *door.children(recursive=True)]
        assert any("tensorboard.main" in process.cmdline() for process in family[1:])
        os.kill(server.pid, number)
    gone, alive = psutil.wait_procs(family, timeout=300)
    assert not alive and len(gone) == len(family)
