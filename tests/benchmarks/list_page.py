"""Cost of a minute of the list of 311 runs, with and without the loss curves of the rows in sight.

    python tests/benchmarks/list_page.py [--runs 311] [--steps 2000] [--rows 24] [--times 2]

A page requests the list when it opens and every six seconds, because no run is active; the curves of its rows
are requested once. CPU is that of the server's process, from the first request on.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path

from nbtrain.base.run_directory.rundir import RunDir
from tests.benchmarks.server_cost import cpu_seconds, server_pid
from tests.end_to_end.jupyterlab import TOKEN, jupyter_server
from tests.lab.widgets.fake_run import FakeJob

POLLS, POLL_SECONDS = 9, 6.0


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=311)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=24)
    parser.add_argument("--times", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        make_runs(root, options.runs, options.steps)
        for _ in range(options.times):
            for rows in (0, options.rows):
                print(f"{rows:3} curves: {look(root, rows)}")


def make_runs(root: Path, count: int, steps: int) -> None:
    """Write one run and copy it."""
    job = FakeJob(RunDir(root / "first"), steps)
    for _ in range(steps):
        job.one_step()
    job.finish("SUCCEEDED", "done")
    for number in range(count):
        copy = root / "output" / f"gpt-{number:03d}"
        shutil.copytree(root / "first", copy)
        record = json.loads((copy / "run.json").read_text())
        (copy / "run.json").write_text(json.dumps({**record, "run_id": f"{number:016x}"}))
    # A folder that was changed within two seconds is read again.
    time.sleep(3)


def look(root: Path, rows: int) -> str:
    """Return what a minute of the list costs a new server."""
    with jupyter_server(root, "jupyter_server", NBTRAIN_WORKSPACE=str(root)) as (base, _):
        pid = server_pid(base)
        time.sleep(2)

        def milliseconds(path: str) -> float:
            began = time.monotonic()
            request = urllib.request.Request(
                f"{base}nbtrain/{path}", headers={"Authorization": f"token {TOKEN}"}
            )
            with urllib.request.urlopen(request) as response:
                response.read()
            return 1e3 * (time.monotonic() - began)

        before = cpu_seconds(pid)
        first = milliseconds("runs")
        names = "&".join(f"name=gpt-{number:03d}" for number in range(rows))
        curves = f", curves after {milliseconds(f'sparklines?{names}'):.0f} ms" if rows else ""
        opened = cpu_seconds(pid) - before
        polls = []
        for _ in range(POLLS):
            time.sleep(POLL_SECONDS)
            polls.append(milliseconds("runs"))
        minute = cpu_seconds(pid) - before
        return (
            f"list after {first:.0f} ms{curves}, a poll {statistics.median(polls):.0f} ms; "
            f"CPU {opened:.2f} s at first, {minute:.2f} s in a minute"
        )


if __name__ == "__main__":
    main()
