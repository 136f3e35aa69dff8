"""Cost of nbtrain's Jupyter Server extension: start-up, memory, and CPU with 10 open panels over 1,000 runs.

    python tests/benchmarks/server_cost.py [--runs 1000] [--panels 10] [--points 1000000] [--seconds 60]

Eight panels show runs that train, one step a second after 300 quick ones. One panel shows a run with a
million scalar points, and one a run that has ended. They send requests as often as the page does: at the
interval that the answer gives, at most once a second; every five seconds for ended runs and the sidebar;
every three for the job page. CPU and memory are measured on the server's process; nbtrain's cost is the
difference from a server without it. The first seconds are reported separately, because the server then reads
the million points and loads modules.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nbtrain.base.run_directory.metrics import SCALARS
from nbtrain.base.run_directory.metrics_files import MetricsFile
from nbtrain.base.run_directory.rundir import RunDir
from tests.benchmarks.list_runs import make_run
from tests.benchmarks.process_clock import cpu_seconds_of
from tests.end_to_end.jupyterlab import TOKEN, jupyter_server
from tests.lab.widgets.fake_run import FakeJob

ENDED_SECONDS, LIST_SECONDS, PAGE_SECONDS = 5.0, 5.0, 3.0
WARM_SECONDS = 20.0
STARTS = 5
WITHOUT = "--ServerApp.jpserver_extensions=nbtrain.lab.server=False"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--panels", type=int, default=10)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    print(f"import at a server's start: {1e3 * import_seconds():.0f} ms of CPU beyond jupyter_server's own")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for number in range(options.runs):
            make_run(root / "output", number)
        make_long_run(root / "output" / "gpt-long", options.points)
        bare, _ = measured(root, lambda _: None, WITHOUT)
        print(f"a server without nbtrain: {mib(bare)}")
        idle, cpu = measured(root, lambda _: time.sleep(options.seconds / 2))
        share = cpu / (options.seconds / 2)
        print(f"with nbtrain, no page is open: {mib(idle)}, {mib(idle - bare)} more, {share:.2%} of a core")
        with training(root / "output", options.panels - 2) as names:
            panels = [*names, "gpt-long", "gpt-ended"]
            ended = FakeJob(RunDir(root / "output" / "gpt-ended"), 20)
            for _ in range(20):
                ended.one_step()
            ended.finish("SUCCEEDED", "done")
            looks: dict[str, list[float]] = {}
            shares: list[float] = []
            used, _ = measured(root, lambda base: look(base, panels, options.seconds, looks, shares))
        print(f"with {len(panels)} panels and the list: {mib(used)}, {mib(used - bare)} more")
        print(f"  first {WARM_SECONDS:.0f} s: {shares[0]:.1%} of a core; then {shares[1]:.1%} of a core")
        for what, seconds in sorted(looks.items()):
            first, rest = seconds[0], seconds[1:] or seconds
            print(f"  {what:28} first {first:6.3f} s, then {1e3 * statistics.median(rest):6.1f} ms")


def import_seconds() -> float:
    """Return the CPU seconds of importing the extension in a process that has loaded jupyter_server."""
    code = (
        "import time, jupyter_server.serverapp, jupyter_server.base.handlers; at = time.process_time();"
        "import nbtrain.lab.server.extension; print(time.process_time() - at)"
    )
    found = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(STARTS)
    ]
    return statistics.median(found)


def mib(num_bytes: float) -> str:
    return f"{num_bytes / (1 << 20):.0f} MiB"


def make_long_run(folder: Path, points: int) -> None:
    """Write a run whose metrics file has this many scalars, 20 at each step."""
    run = RunDir(folder)
    job = FakeJob(run, 20)
    job.one_step()
    job.finish("SUCCEEDED", "done")
    for path in run.tensorboard.iterdir():
        path.unlink()
    tags = [scalar.tag for scalar in SCALARS[:20]]
    file = MetricsFile(run.tensorboard, 0)
    for step in range(1, points // len(tags) + 1):
        file.write(step, 1.7e9 + step, 4096 * step, 8 * step, dict.fromkeys(tags, 3.0 + (step % 7) / 10))
    file.flush()


TRAINING = """
import sys, time
from pathlib import Path
from nbtrain.base.run_directory.rundir import RunDir
from tests.lab.widgets.fake_run import FakeJob
job = FakeJob(RunDir(sys.argv[1]), 100_000, 4)
beat, job.heartbeat = job.heartbeat, lambda *_: None
for _ in range(300):
    job.one_step()
job.heartbeat = beat
job.one_step()
Path(sys.argv[1], "ready").touch()
while True:
    time.sleep(1)
    job.one_step()
"""


@contextmanager
def training(output: Path, count: int) -> Iterator[list[str]]:
    """Start a process for each of `count` runs; each finishes one step a second."""
    names = [f"gpt-live-{number}" for number in range(count)]
    jobs = [subprocess.Popen([sys.executable, "-c", TRAINING, str(output / name)]) for name in names]
    try:
        while not all((output / name / "ready").exists() for name in names):
            time.sleep(0.2)
        yield names
    finally:
        for job in jobs:
            job.kill()
            job.wait()


def measured(root: Path, use: Callable[[str], Any], *options: str) -> tuple[int, float]:
    """Return the server's resident bytes after `use`, and the CPU seconds that it needed meanwhile."""
    with jupyter_server(root, "jupyter_server", *options, NBTRAIN_WORKSPACE=str(root)) as (base, _):
        pid = server_pid(base)
        time.sleep(2)
        before = cpu_seconds_of(pid)
        use(base)
        return resident(pid), cpu_seconds_of(pid) - before


def server_pid(base: str) -> int:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if {b"jupyter_server", b"jupyterlab"} & {*words} and any(
            base.split("/")[2].split(":")[1].encode() in w for w in words
        ):
            return int(path.parent.name)
    raise LookupError("the server's process is not found")


def resident(pid: int) -> int:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmRSS" in line]
    return int(line.split()[1]) << 10


def look(
    base: str, names: list[str], seconds: float, looks: dict[str, list[float]], shares: list[float]
) -> None:
    """Send requests as open pages do, in a thread for each page; record the server's
    CPU use at first and later.
    """
    pid, end = server_pid(base), time.monotonic() + WARM_SECONDS + seconds

    def ask(path: str) -> Any:
        request = urllib.request.Request(f"{base}nbtrain/{path}", headers={"Authorization": f"token {TOKEN}"})
        begin = time.monotonic()
        with urllib.request.urlopen(request, timeout=60) as response:
            value = json.loads(response.read())
        what = re.sub(r"gpt-live-\d+", "<active>", path).partition("?")[0]
        looks.setdefault(what, []).append(time.monotonic() - begin)
        return value

    def panel(path: str, wait_seconds: float) -> None:
        while time.monotonic() < end:
            value = ask(path)
            time.sleep(
                value["look_again_seconds"] if path.count("/") == 1 and value["active"] else wait_seconds
            )

    paths = [(f"run/{name}", ENDED_SECONDS) for name in names]
    paths += [(f"run/{name}/job?", PAGE_SECONDS) for name in names[:4]]
    paths += [("runs?archived=0", LIST_SECONDS), ("run/gpt-long/metrics?tags=loss", ENDED_SECONDS)]
    threads = [threading.Thread(target=panel, args=path) for path in paths]
    for thread in threads:
        thread.start()
    for wait_seconds in (WARM_SECONDS, seconds - 1.0):
        began, before = time.monotonic(), cpu_seconds_of(pid)
        time.sleep(wait_seconds)
        shares.append((cpu_seconds_of(pid) - before) / (time.monotonic() - began))
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
