"""Check the file that a run's `code` names, try it on the CPU, and copy it into the run directory.

The functions, in the order in which they are called:

    check    findings_of_code    names and parameters of its functions, from the syntax tree
             code_is_the_same    a trained run keeps the file with which it was submitted
    try      try_code            import it and train one step of a two-layer model, if torch is installed here
    write    write_code          output/<run>/own_code/<name>.py, which the ranks import, and own_code.json
"""

import importlib.util
import logging
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

from nbtrain.base import files
from nbtrain.base.errors import CodeError
from nbtrain.base.findings import Finding
from nbtrain.base.run_directory.rundir import SCHEMA_VERSION, RunDir
from nbtrain.base.workspace import display, resolve
from nbtrain.config.code_file import OMITTED, PASSED, CodeFile, code_file, copy_of
from nbtrain.config.findings import mistake
from nbtrain.config.own_blocks import write_own_block
from nbtrain.config.schema import RunConfig
from nbtrain.config.shape import OwnBlock
from nbtrain.jobs.gpu_side import stream
from nbtrain.jobs.request.request import Request

logger = logging.getLogger(__name__)


def findings_of_code(config: RunConfig) -> Iterator[Finding]:
    """Yield the problems in the file that `code` names, without running the file."""
    if (code := code_file(config)) is not None:
        yield from code.problems


def code_is_the_same(request: Request) -> Iterator[Finding]:
    """Check that the file that `code` names has not changed since the run trained with it."""
    run, config = request.run, request.config
    record = files.read_json(run.own_code_json)
    code = code_file(config)
    if record is None or code is None or code.problems or not request.existing.has_trained:
        return
    if code.sha256 == record["sha256"]:
        return
    copy = copy_of(run, record["file"])
    restore = shlex.join(["cp", display(copy), display(resolve(config.code or ""))])
    yield mistake(
        config,
        "code",
        f"code: {config.code} has changed since {display(run.path)} was submitted"
        f"{_first_difference(copy, code)}. A run must be trained with the same file from start to end.",
        f"To restore the file, run `{restore}`. To train with the changed file, make a new run: `nbtrain "
        f"clone {run.name} NEWNAME` starts from the beginning; add init_from={run.name} to start from this "
        "run's weights.",
    )


def submitted_path(run: RunDir, config: RunConfig) -> str | None:
    """Return the path of the file with which the run was submitted; None if the run has no `code`.

    It is `code` itself, or the run's copy if the file at `code` has changed since.
    """
    record, code = files.read_json(run.own_code_json), code_file(config)
    if record is None or code is None:
        return config.code
    copy = copy_of(run, record["file"])
    is_the_same = code.sha256 == record["sha256"] and code.path != copy
    return config.code if is_the_same or not copy.is_file() else display(copy)


def _first_difference(copy: Path, code: CodeFile) -> str:
    """Return where a file first differs from the run's copy, such as ", first in line 12: <the line>".

    Returns "" if there is no copy.
    """
    if not copy.is_file():
        return ""
    contents = (copy.read_bytes(), code.content)
    before, now = (content.decode("utf-8", "replace").splitlines(keepends=True) for content in contents)
    for number, (old, new) in enumerate(zip(before, now), start=1):
        if old != new:
            return f", first in line {number}: {new.strip()[:80]!r}"
    return f", from line {min(len(before), len(now)) + 1} on"


def tried_before(run: RunDir, code: CodeFile | None) -> str:
    """Return the result of an earlier trial of the same file, from own_code.json; "" without a trial."""
    record = files.read_json(run.own_code_json)
    if record is None or code is None or record["sha256"] != code.sha256:
        return ""
    return record["tried"]


def try_code(config: RunConfig, code: CodeFile | None, wanted: bool = True) -> str:
    """Import the file in a process with torch, and train one step of a two-layer model with it.

    Returns PASSED, or why the trial was skipped; "" for a run without `code`. The number of parameters in a
    block from layer() is kept for plans (config/own_blocks.py). If the user has skipped the trial of this
    same file before, it is skipped again, so that a job that is restarted without the user cannot fail
    because of it. Raises CodeError with the line of an error in the file.
    """
    if code is None:
        return ""
    if (before := tried_before(RunDir.named(config.name), code)) in (PASSED, OMITTED):
        return before
    if not wanted:
        return OMITTED
    if importlib.util.find_spec("torch") is None:
        return "not tried: torch is not installed on the machine that submitted the run"
    logger.info("%s: trying %s with one step of a two-layer model.", config.name, config.code)
    answers = stream("nbtrain.train.code", {"path": str(code.path), "config": config.model_dump(mode="json")})
    tried = next((answer for answer in answers if answer.get("kind") == "tried"), None)
    if tried is None:
        raise CodeError(f"{display(code.path)}: the process that tried the file ended without a result.")
    if block := tried.get("own_block"):
        write_own_block(config, code.sha256, OwnBlock(**block))
    return PASSED


def write_code(run: RunDir, config: RunConfig, code: CodeFile | None, tried: str) -> None:
    """Copy the file into the run directory and write own_code.json; remove both if the run has no `code`."""
    if code is None:
        run.own_code_json.unlink(missing_ok=True)
        shutil.rmtree(run.own_code, ignore_errors=True)
        return
    run.own_code.mkdir(exist_ok=True)
    files.write_bytes(copy_of(run, code.name), code.content)
    for path in run.own_code.glob("*.py"):
        if path.name != code.name:
            path.unlink()
    record = {
        "schema_version": SCHEMA_VERSION,
        "file": code.name,
        "path": config.code,
        "sha256": code.sha256,
        "functions": list(code.functions),
        "tried": tried,
    }
    files.write_json(run.own_code_json, record)
