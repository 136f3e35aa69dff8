"""README in both languages, from the wheel to the last command, in an empty folder (a soak).

Blocks are run in order: commands in bash, Python as one cell, a YAML diff as a file. The output of a command
is compared with the `text` block after it, except for numbers.
"""

import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import nbformat
import pytest

from tests.docs.pages import REPOSITORY, Block, blocks
from tests.docs.test_commands import differs

READMES = ("README.md", "README.zh-CN.md")
BOOKS_BYTES = 3_000_000
LIMIT_SECONDS = 3600.0


@pytest.fixture(scope="module")
def front_door(tmp_path_factory) -> Path:
    """Create a folder with the wheel, and a virtual environment with only nbtrain's dependencies."""
    folder = tmp_path_factory.mktemp("readme")
    build = ["pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", str(folder), str(REPOSITORY)]
    subprocess.run([sys.executable, "-m", *build], check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return folder


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("name", READMES)
def test_the_readme_does_what_it_says(name, front_door, tmp_path):
    """Each block of the README works after the blocks before it, and needs nothing
    that the page does not say.
    """
    (wheel,) = front_door.glob("nbtrain-*.whl")
    (tmp_path / wheel.name).symlink_to(wheel)
    shell = Shell(front_door / "venv", tmp_path)
    printed, wrong = "", []
    for block in blocks((REPOSITORY / name).read_text(encoding="utf-8")):
        if block.language == "sh":
            write_books(shell.folder)
            printed = shell.run(block.text)
        elif block.language == "text":
            if line := differs(block.text, printed):
                wrong.append(f"{line}\nis not printed:\n{printed}")
        elif block.language == "python":
            check_cell(block, shell)
        else:
            check_diff(block, shell)
    assert not wrong, "\n\n".join(wrong)
    assert shell.folder == tmp_path / "my-workspace"
    check_losses(shell)


class Shell:
    """A user's shell: each block starts in the folder in which the previous block ended."""

    def __init__(self, venv: Path, folder: Path) -> None:
        self.folder = folder
        left = {key: value for key, value in os.environ.items() if not key.startswith("NBTRAIN_")}
        left.pop("PYTHONPATH", None)
        self.environment = {
            **left,
            "PATH": f"{venv / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "VIRTUAL_ENV": str(venv),
            # Jupyter's templates and kernels, which the dependencies have installed.
            "JUPYTER_PATH": str(Path(sys.prefix) / "share" / "jupyter"),
            "NBTRAIN_QUEUE": str(folder / "queue"),
        }

    def run(self, text: str) -> str:
        """Run a block and return its output; a command that fails also fails the test."""
        done = subprocess.run(
            ["bash", "-ec", f"{text}\npwd >{self.folder / 'pwd'}"],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        self.folder = Path((self.folder / "pwd").read_text().strip())
        return done.stdout


def write_books(workspace: Path) -> None:
    """Write my-books.jsonl, the user's text, from the demo's text once that exists."""
    parts = sorted(workspace.glob("data/corpus/python-docs-*/*.jsonl"))
    if not parts or (workspace / "my-books.jsonl").exists():
        return
    lines = parts[0].read_text(encoding="utf-8").splitlines(keepends=True)
    size, books = 0, []
    # From the end, so that it differs from what the demo's tokenizer was trained on.
    for line in reversed(lines):
        books.append(line)
        size += len(line)
        if size > BOOKS_BYTES:
            break
    (workspace / "my-books.jsonl").write_text("".join(books), encoding="utf-8")


def check_cell(block: Block, shell: Shell) -> None:
    """Run the block as one cell; check that it shows the run's plan and panel, and wait for the run."""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(block.text), nbformat.v4.new_code_cell("run.wait().state")]
    )
    path = shell.folder / "readme.ipynb"
    nbformat.write(notebook, path)
    # For the environment's own Python, which has the wheel.
    shell.run("python -m nbconvert --to notebook --execute --inplace readme.ipynb")
    notebook = nbformat.read(path, as_version=4)
    shown = [output.get("data", {}) for output in notebook.cells[0].outputs]
    assert any("memory" in data.get("text/html", "") for data in shown), "the plan"
    # Without a live front end, a panel is the picture that a saved notebook keeps.
    assert any("image/png" in data and "SUCCEEDED" in data.get("text/plain", "") for data in shown), (
        "the panel"
    )
    assert "SUCCEEDED" in json.dumps(notebook.cells[1].outputs)


def check_diff(block: Block, shell: Shell) -> None:
    """Check that the run with the diff is valid and can be written as a cluster's manifest."""
    assert block.language == "diff"
    text = "".join(line[1:] for line in block.text.splitlines(keepends=True) if line[0] != "-")
    (shell.folder / "my-run.yaml").write_text(text)
    shell.run("nbtrain submit my-run.yaml --dry-run my-run.sbatch")
    assert "#SBATCH --partition=gpu" in (shell.folder / "my-run.sbatch").read_text()


def check_losses(shell: Shell) -> None:
    """Check that the demo's validation loss is the published one, and that the books
    have their own tokenizer.
    """
    loss = re.search(r"validation loss +([\d.]+)", shell.run("nbtrain demo"))
    assert loss and float(loss[1]) == pytest.approx(3.38, abs=0.02)
    assert (shell.folder / "data" / "tokenizer" / "my-gpt").is_dir()
