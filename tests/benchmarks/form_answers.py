"""CPU milliseconds of the launch form's answers, next to an older version.

    python tests/benchmarks/form_answers.py [--old FOLDER] [--rounds 7] [--yaml gpt-175b]

Each round starts a process per version, in turn. It imports the form and answers once, which are counted
together: the answer imports more, and builds the schema. Then it answers the form, the check of a draft and
the search for layouts four times each, of which the least counts. "first form, prepared" is the first answer
of another process, which has prepared the form, as a server has that has shown the list of runs. `--old` is
the root of another version, as for commands.py.

`--servers 5` starts as many Jupyter servers, twice: CPU milliseconds of the server for its first form, once
as its first request of all, and once SERVER_SECONDS after the list of runs, as a user gets it who has opened
JupyterLab.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from nbtrain.lab.server.runs import FORM_SECONDS
from tests.benchmarks.commands import REPOSITORY, Version
from tests.benchmarks.process_clock import cpu_seconds_of
from tests.benchmarks.server_cost import server_pid
from tests.end_to_end.jupyterlab import TOKEN, jupyter_server

SERVER_SECONDS = FORM_SECONDS + 3

ANSWERS = ("first form", "form", "form/assess", "form/layouts")
PREPARED = ("first form, prepared",)
CODE = """
import json, sys, time
start = time.process_time()
from nbtrain.lab.form.answers import answer
found, paths = {}, json.loads(sys.argv[2])
if paths[0].endswith("prepared"):
    from nbtrain.lab.form.answers import prepare
    prepare()
    start = time.process_time()
for path in paths:
    seconds = []
    for _ in range(1 if path.startswith("first") else 4):
        begin = start if path.startswith("first") else time.process_time()
        answer(path.removeprefix("first ").partition(",")[0], {"yaml": sys.argv[1]}, True)
        seconds.append(time.process_time() - begin)
    found[path] = 1e3 * min(seconds)
print(json.dumps(found))
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--old", type=Path, help="the root of another version of this repository")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--yaml", default="gpt-175b")
    parser.add_argument("--servers", type=int, default=0, help="Jupyter servers, instead of the other rows")
    options = parser.parse_args()
    if options.servers:
        servers(options.yaml, options.servers)
        return
    with tempfile.TemporaryDirectory() as name:
        versions = [Version("this version", REPOSITORY, Path(name) / "this")]
        if options.old:
            versions.append(Version("old", options.old.resolve(), Path(name) / "old"))
        found: dict[tuple[str, str], list[float]] = {}
        for number in range(options.rounds + 1):
            calls = [(version, ANSWERS) for version in versions] + [(versions[0], PREPARED)]
            for version, paths in calls:
                call = [sys.executable, "-P", "-c", CODE, options.yaml, json.dumps(paths)]
                done = subprocess.run(
                    call, env=version.variables, check=True, stdout=subprocess.PIPE, text=True
                )
                for path, milliseconds in json.loads(done.stdout.splitlines()[-1]).items() if number else ():
                    found.setdefault((path, version.title), []).append(milliseconds)
    print("| answer | version | CPU ms, median | least to most |\n| --- | --- | --- | --- |")
    for (path, title), values in sorted(found.items()):
        print(
            f"| {path} | {title} | {statistics.median(values):.0f} | {min(values):.0f} to {max(values):.0f} |"
        )


def servers(yaml: str, count: int) -> None:
    """Print the CPU milliseconds of a Jupyter server for its first form."""
    print("| first form of a server | CPU ms, median | least to most |\n| --- | --- | --- |")
    for title, wait in (("as its first request", 0.0), ("after the list of runs", SERVER_SECONDS)):
        values = [first_of_server(yaml, wait) for _ in range(count)]
        print(f"| {title} | {statistics.median(values):.0f} | {min(values):.0f} to {max(values):.0f} |")


def first_of_server(yaml: str, wait: float) -> float:
    with (
        tempfile.TemporaryDirectory() as folder,
        jupyter_server(Path(folder), "jupyter_server", NBTRAIN_WORKSPACE=folder) as (base, _),
    ):

        def get(path: str) -> None:
            call = urllib.request.Request(
                f"{base}nbtrain/{path}", headers={"Authorization": f"token {TOKEN}"}
            )
            with urllib.request.urlopen(call) as answer:
                answer.read()

        pid = server_pid(base)
        # Extensions still start.
        time.sleep(2)
        if wait:
            get("runs")
            time.sleep(wait)
        before = cpu_seconds_of(pid)
        get(f"form?yaml={yaml}")
        return 1e3 * (cpu_seconds_of(pid) - before)


if __name__ == "__main__":
    main()
