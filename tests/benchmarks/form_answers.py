"""CPU milliseconds of the launch form's answers, next to an older version.

    python tests/benchmarks/form_answers.py [--old FOLDER] [--rounds 7] [--yaml gpt-175b]

Each round starts a process per version, in turn. It imports the form and answers once, which are counted
together: the answer imports more, and builds the schema. Then it answers the form, the check of a draft and
the search for layouts four times each, of which the least counts. "first form, prepared" is the first answer
of another process, which has prepared the form, as a server has that has shown the list of runs. `--old` is
the root of another version, as for commands.py.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.commands import REPOSITORY, Version

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
    options = parser.parse_args()
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
        spread = f"{min(values):.0f} to {max(values):.0f}"
        print(f"| {path} | {title} | {statistics.median(values):.0f} | {spread} |")


if __name__ == "__main__":
    main()
