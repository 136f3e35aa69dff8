"""Cost of opening one of nbtrain's notebooks: CPU seconds of its first cells, and the front end's files.

    python tests/benchmarks/notebook_cost.py [--rounds 5]

The first cells are the parameters and the cell that loads the run. Each round runs them in a fresh process
with IPython's shell, whose start is not counted. The minimum of the rounds is reported, because other work on
the machine can only add to it.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from nbtrain.base.run_directory.rundir import RunDir
from tests.lab.widgets.fake_run import FakeJob

REPOSITORY = Path(__file__).parents[2]
BUNDLE = REPOSITORY / "nbtrain" / "lab" / "labextension" / "prebuilt"
CELLS = """
import json, sys, time
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
begin = time.process_time()
for source in json.loads(sys.argv[1]):
    shell.run_cell(source).raise_error()
print(time.process_time() - begin)
"""


def first_cells(notebook: Path) -> list[str]:
    """Return a notebook's first two code cells: the parameters, and the cell that loads the run."""
    cells = [one for one in json.loads(notebook.read_text())["cells"] if one["cell_type"] == "code"]
    return ["".join(one["source"]) for one in cells[:2]]


def cpu_seconds(cells: list[str], environment: dict[str, str], rounds: int) -> float:
    """Return the minimum CPU time of these cells over the rounds."""
    command = [sys.executable, "-c", CELLS, json.dumps(cells)]
    said = (
        subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
        for _ in range(rounds)
    )
    return min(float(text.splitlines()[-1]) for text in said)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NBTRAIN_OUTPUT": folder, "NBTRAIN_WORKSPACE": str(REPOSITORY)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        # Used by the notebooks that open a run.
        job = FakeJob(RunDir(Path(folder) / "gpt-tiny"), 20)
        for _ in range(20):
            job.one_step()
        job.finish("SUCCEEDED", "done")
        print(f"import nbtrain: {1e3 * cpu_seconds(['import nbtrain'], environment, rounds):.0f} ms of CPU")
        for notebook in sorted((REPOSITORY / "notebooks").glob("*.ipynb")):
            seconds = cpu_seconds(first_cells(notebook), environment, rounds)
            print(f"{notebook.name}, its first cells: {1e3 * seconds:.0f} ms of CPU")
    scripts = [path.read_bytes() for path in sorted(BUNDLE.rglob("*.js"))]
    packed = sum(len(gzip.compress(one)) for one in scripts)
    total = sum(map(len, scripts))
    print(f"front end: {len(scripts)} scripts, {total / 1e3:.0f} kB, {packed / 1e3:.0f} kB packed by gzip")


if __name__ == "__main__":
    main()
