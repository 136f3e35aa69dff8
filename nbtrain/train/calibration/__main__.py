"""`python -m nbtrain.train.calibration`: one JSON request on stdin, JSON lines on stdout.

    request   {"device": "cpu" or "gpu", "seconds", "cores", "clock"}
    answers   {"kind": "plan", "figures"}                 number of measurements to come
              {"kind": "figure", "what", "ranks", ...}    one measurement (kernels.py, collectives.py, ...)
              {"kind": "end", "seconds"}
              {"kind": "late", "seconds"}                 time ran out before everything was measured
              {"kind": "error", "error", "message"}       an NbtrainError's class and message

Ranks are separate processes. On a CPU, one rank with all threads is measured first, then two ranks with half
of the threads each, because caches and memory behave differently. The collectives are also measured with 4,
8, ... ranks, which share the threads. On GPUs, one rank is measured first, then the collectives of one rank
per GPU.
"""

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import IO, Any

from nbtrain.base.errors import JobError
from nbtrain.base.process.answers import answer_request
from nbtrain.base.process.parent_death import die_with_parent
from nbtrain.base.process.ports import port_to_listen_on
from nbtrain.base.process.signals import hear_signals
from nbtrain.base.text import amounts

MODEL_FORMATS = {"cpu": ["fp32", "bf16"], "gpu": ["bf16"]}
# Number of measurements in one start of the ranks, checked by tests/train/calibration. A GPU that lacks a
# number format yields fewer.
FIGURES = {"cpu": 2 + 17 + 2 * (4 + 14 + 4) + 20, "gpu": 2 + 5 * 8 + (4 + 12 + 5) + 8, "collectives": 30}
# Number of these measurements that time engine steps; an engine is built for each of them.
ENGINES = {"cpu": 20, "gpu": 8}
# The time is divided into slices, one for each measurement. These are the additional slices in one start of
# the ranks: engine steps get several (engine_steps.SLICES), and attention and blocks get one more, because
# their forward pass is also measured alone.
MORE_SLICES = {"cpu": 2 * 20 + 2 * (4 + 7), "gpu": 2 * 8 + (4 + 6)}
# Seconds that an idle CPU needs to import torch, DeepSpeed and the optimizer, and to build an engine.
START_SECONDS = 15.0
BUILD_SECONDS = 0.9
# Fraction of the remaining time in which all measurements must end.
END_SHARE = 0.95
LAST_LINES = 12


def main() -> int:
    return answer_request(answers)


def answers(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every response to a request, within the time that the request allows."""
    started, device, cores = time.monotonic(), request["device"], request["cores"]
    starts = plan_of(device, cores)
    yield {"kind": "plan", "figures": sum(figures for *_, figures in starts)}
    slices = [figures + MORE_SLICES[device] * ("steps" in parts) for *_, parts, figures in starts]
    engines = [ENGINES[device] * ("steps" in parts) for *_, parts, _ in starts]
    until = started + request["seconds"]
    for number, (ranks, threads, parts, _) in enumerate(starts):
        work = {
            "device": device,
            "parts": parts,
            "model_formats": MODEL_FORMATS[device],
            "until": measured_until(time.monotonic(), until, slices[number:], engines[number:]),
            "slices": slices[number],
            "engines": engines[number],
            "build_seconds": BUILD_SECONDS,
            "clock": request.get("clock", "wall"),
        }
        try:
            yield from run_ranks(ranks, threads, work, until)
        except TimeoutError:
            yield {"kind": "late", "seconds": time.monotonic() - started}
            return
    yield {"kind": "end", "seconds": time.monotonic() - started}


def measured_until(now: float, until: float, slices: list[int], engines: list[int]) -> float:
    """Return the time by which the next start of the ranks must finish its measurements.

    `slices` and `engines` have one entry for each remaining start: its number of time slices (MORE_SLICES)
    and its number of engines to build. Imports and building engines get the time they need, up to half of
    the remaining time. The rest is divided equally among the slices.
    """
    left = END_SHARE * (until - now)
    fixed = [START_SECONDS + BUILD_SECONDS * count for count in engines]
    fixed_part = min(1.0, left / 2 / sum(fixed))
    measuring = left - fixed_part * sum(fixed)
    return now + fixed_part * fixed[0] + measuring * slices[0] / sum(slices)


def plan_of(device: str, cores: int) -> list[tuple[int, int, list[str], int]]:
    """Return (ranks, threads per rank, parts, number of measurements) for each start of the ranks.

    The parts say what is measured: "kernels", "steps" (of engines), "collectives". On a GPU machine, `cores`
    is the number of GPUs.
    """
    own, between = FIGURES[device], FIGURES["collectives"]
    if device == "gpu":
        alone = (1, 1, ["kernels", "steps"], own)
        return [alone, (cores, 1, ["collectives"], between)] if cores > 1 else [alone]
    starts = [(1, cores, ["kernels", "steps"], own)]
    if cores > 1:
        starts.append((2, cores // 2, ["kernels", "steps", "collectives"], own + between))
    sizes, size = [], 4
    while size <= cores:
        sizes.append(size)
        size *= 2
    return starts + [(size, cores // size, ["collectives"], between) for size in sizes]


def run_ranks(ranks: int, threads: int, work: dict[str, Any], until: float) -> Iterator[dict[str, Any]]:
    """Start `ranks` processes and yield the JSON lines that rank 0 prints.

    Raises JobError with the last lines of output if a process fails. Processes that still run at `until`, by
    the monotonic clock, are killed, and TimeoutError is raised.
    """
    port = port_to_listen_on()
    with tempfile.TemporaryFile() as said:
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "nbtrain.train.calibration.worker", json.dumps(work)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if rank == 0 else said,
                stderr=said,
                env={**os.environ, **_variables(rank, ranks, threads, port, work["device"])},
                preexec_fn=die_with_parent,
            )
            for rank in range(ranks)
        ]
        try:
            for line in lines_until(processes[0].stdout, until):
                if line.startswith(b'{"kind"'):
                    yield json.loads(line)
            codes = [process.wait() for process in processes]
            if any(codes):
                said.seek(0)
                words = said.read().decode(errors="replace").strip().splitlines()[-LAST_LINES:]
                raise JobError(
                    f"the calibration with {amounts.counted(ranks, 'rank')} failed; exit codes by rank: "
                    f"{codes}. "
                    "Last lines of its output:\n" + "\n".join(f"  {line}" for line in words)
                )
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
            if processes[0].stdout is not None:
                processes[0].stdout.close()


def lines_until(stream: IO[bytes] | None, until: float) -> Iterator[bytes]:
    """Yield the lines of a pipe up to its end. Raises TimeoutError if the pipe has not ended at `until`, by
    the monotonic clock.
    """
    assert stream is not None
    rest = b""
    while True:
        if not select.select([stream], [], [], max(until - time.monotonic(), 0.0))[0]:
            raise TimeoutError
        content = os.read(stream.fileno(), 1 << 16)
        *lines, rest = (rest + content).split(b"\n")
        yield from lines
        if not content:
            return


def _variables(rank: int, ranks: int, threads: int, port: int, device: str) -> dict[str, str]:
    """Return a rank's environment variables, the same ones that jobs/machine/environment.py sets for the
    ranks of a job.
    """
    variables = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": str(max(threads, 1)),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    if device == "cpu":
        variables |= {"DS_ACCELERATOR": "cpu", "OMP_WAIT_POLICY": "PASSIVE"}
    return variables


if __name__ == "__main__":
    hear_signals()
    sys.exit(main())
