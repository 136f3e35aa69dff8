"""Updates the messages on docs/errors.md: `python -m tests.docs.errors`.

The block after a command shows what the command prints. The block after `<!-- measured: FAULT -->` shows what
a run reported after that fault, from the row of docs/evidence/faults-local.md that begins with FAULT.
"""

import contextlib
import io
import os
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from nbtrain.base.run_directory.records import JobRecord
from nbtrain.base.run_directory.rundir import JobDir
from nbtrain.cli import __main__ as cli
from nbtrain.proof.fork_client import ForkServer
from tests.docs.pages import REPOSITORY
from tests.train import launch
from tests.train.layouts import Place

PAGE = REPOSITORY / "docs" / "errors.md"
FAULTS = REPOSITORY / "docs" / "evidence" / "faults-local.md"
FILES = {
    "tabs.yaml": "extends: gpt-tiny\nname: tabs\nbatch:\n\tmicro_batch_size: 4\n",
    "mine.yaml": "extends: gpt-tiny\nname: mine\ntokenizer: {name: mine}\ndata:\n  name: mine\n"
    "  sources:\n    - {kind: jsonl, path: mine.jsonl}\n",
    "mine.jsonl": '{"body": "The sea was calm."}\n',
}
# A command and its output.
COMMAND = re.compile(r"^(```sh\n([^\n]+)\n```\n\n)```text\n.*?```$", re.MULTILINE | re.DOTALL)
# The beginning of a fault's name, and the message that a run reported after it.
REPORT = re.compile(r"^(<!-- measured: ([^\n]+) -->\n)```text\n.*?```$", re.MULTILINE | re.DOTALL)
# The page's names for the workspace and the machine.
SHOWN_WORKSPACE = "/home/me/work"


def page_with_messages(page: str, folder: Path, server: ForkServer) -> str:
    """Return the page with the current output of its commands.

    They run in a workspace below `folder` that has the trained run `one`.
    """
    workspace = folder / "workspace"
    run = launch.make_run(workspace, {"batch.max_steps": 6, "model.hidden_size": 16}, "one")
    launch.make_dataset(workspace / "data")
    Place(workspace, workspace / "data", server).train(run, 1)
    end(run.newest_job())
    for name, text in FILES.items():
        (workspace / name).write_text(text)
    with_outputs = COMMAND.sub(lambda match: _with_text(match[1], printed(match[2], workspace)), page)
    return page_with_reports(with_outputs)


def page_with_reports(page: str) -> str:
    """Return the page with the messages of docs/evidence/faults-local.md."""
    reports = measured_reports()
    return REPORT.sub(lambda match: _with_text(match[1], reported(match[2], reports)), page)


def renew_reports() -> None:
    """Write the page with the messages of docs/evidence/faults-local.md, if they differ by more than
    chance.
    """
    page = PAGE.read_text(encoding="utf-8")
    renewed = page_with_reports(page)
    if without_chance(renewed) != without_chance(page):
        PAGE.write_text(renewed, encoding="utf-8")


def _with_text(head: str, text: str) -> str:
    return f"{head}```text\n{text.rstrip()}\n```"


def end(job: JobDir) -> None:
    """Record that a job was cancelled, in the form that its supervisor writes."""
    record = JobRecord.read(job.job_json)
    record.state, record.cause, record.ended_at = "CANCELLED", "cancelled", time.time()
    record.write(job.job_json)


def printed(command: str, workspace: Path) -> str:
    """Return the output of a command of the page, with the page's names for the workspace and the machine."""
    out = io.StringIO()
    with (
        _in_workspace(workspace),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
        contextlib.suppress(SystemExit),
    ):
        cli.main(command.split()[1:])
    text = out.getvalue().replace(str(workspace), SHOWN_WORKSPACE).replace(os.uname().nodename, "node-a")
    # Of a plan, only the finding that says why it does not fit.
    if finding := re.search(r"^error, cannot run.*\n(?: .*\n)+", text, re.MULTILINE):
        return finding[0]
    return text


@contextlib.contextmanager
def _in_workspace(workspace: Path) -> Iterator[None]:
    variables = {"NBTRAIN_WORKSPACE": str(workspace), "NBTRAIN_QUEUE": str(workspace.parent / "queue")}
    variables["CUDA_VISIBLE_DEVICES"] = ""
    before = {key: os.environ.get(key) for key in (*variables, "NBTRAIN_OUTPUT", "NBTRAIN_DATA")}
    for key in before:
        os.environ.pop(key, None)
    os.environ.update(variables)
    try:
        with contextlib.chdir(workspace):
            yield
    finally:
        for key, value in before.items():
            os.environ.pop(key, None)
            if value is not None:
                os.environ[key] = value


def measured_reports() -> dict[str, str]:
    """Return the message that a user reads after each fault, from docs/evidence/faults-local.md."""
    rows = re.findall(r"^\| (.+?) \| (.+?) \| .+ \| .+ \|$", FAULTS.read_text(encoding="utf-8"), re.MULTILINE)
    return {fault: words.replace("\\|", "|") for fault, words in rows}


def reported(fault: str, reports: dict[str, str]) -> str:
    """Return the message of the first fault whose name begins with this text."""
    for name, words in reports.items():
        if name.startswith(fault):
            return words
    raise ValueError(f"docs/evidence/faults-local.md has no fault that begins with {fault}")


def without_numbers(text: str) -> str:
    """Replace every number by #, because counts, times and sizes differ from machine to machine."""
    return re.sub(r"\d+(?:[.,]\d+)*", "#", text)


def without_chance(text: str) -> str:
    """Replace every number by #, and omit the file whose writing found a disk full: it may be any file."""
    return without_numbers(re.sub(r"(?<=No space left on device): '[^']*'", "", text))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, ForkServer() as server:
        text = page_with_messages(PAGE.read_text(encoding="utf-8"), Path(folder), server)
        PAGE.write_text(text, encoding="utf-8")
