"""The record of a run in the notebook that started it: which run, with which settings, and how to repeat it.

An output of the cell holds the record under a MIME type of nbtrain. It is saved with the notebook, so it can
be read later without the kernel and without the run. `nbtrain notebook --again` reads it.
"""

import os
import platform
import shlex
import sys
from pathlib import Path
from typing import Any

from nbtrain.base.code_hashes import code_hashes, joint_sha256
from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import display
from nbtrain.config.load import load_resolved
from nbtrain.config.load.effect import settings_with_effect
from nbtrain.jobs.machine.environment import package_version
from nbtrain.lab.parameters import INJECTED_MARK, assigned_names
from nbtrain.monitor.run.certificate import hash_of

# MIME type of the output that holds a record. Front ends show the plain text of the same output.
RECORD = "application/vnd.nbtrain.record+json"
VERSION = 1
LIBRARIES = ("torch", "deepspeed", "numpy")
HASH_CHARACTERS = 12
# Name in the command that runs the notebook again, as long as the notebook's file is not known.
UNKNOWN_FILE = "NOTEBOOK.ipynb"


def note_record(run: RunDir) -> None:
    """Store the record of a run in the output of the running cell; do nothing outside a notebook."""
    if "ipykernel" not in sys.modules:
        return
    from IPython import get_ipython
    from IPython.display import publish_display_data

    shell = get_ipython()
    if shell is None:
        return
    # Jupyter servers set this variable to the notebook's path.
    session = os.environ.get("JPY_SESSION_NAME", "")
    file = display(Path(session)) if session.endswith(".ipynb") else UNKNOWN_FILE
    made = record_of(run, parameters_of(shell.user_ns), file)
    publish_display_data({RECORD: made, "text/plain": made["text"]})


def record_of(run: RunDir, parameters: dict[str, Any], file: str = UNKNOWN_FILE) -> dict[str, Any]:
    """Return the record of a run that the notebook `file` has started with these parameters."""
    job = run.newest_job()
    settings = settings_with_effect(load_resolved(run.config_yaml))
    made = {
        "version": VERSION,
        "run": run.name,
        "run_id": run.run_id,
        "job_id": None if job is None else job.job_id,
        "settings_sha256": hash_of(settings),
        "settings": settings,
        "versions": {
            "python": platform.python_version(),
            **{name: package_version(name) for name in ("nbtrain", *LIBRARIES)},
        },
        "code_sha256": joint_sha256(code_hashes()),
        "parameters": parameters,
    }
    return with_file(made, file)


def with_file(record: dict[str, Any], file: str) -> dict[str, Any]:
    """Return a copy of a record in which the text and the command name the notebook `file`."""
    again = f"nbtrain notebook --again {shlex.quote(file)}"
    text = (
        f"run {record['run']}, id {record['run_id']}, "
        f"settings {record['settings_sha256'][:HASH_CHARACTERS]}; again: {again}"
    )
    return {**record, "again": again, "text": text}


def records_in(notebook: Any) -> list[dict[str, Any]]:
    """Return the records in the outputs of a notebook (nbformat), in the order of its cells."""
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    found = (output.get("data", {}).get(RECORD) for output in outputs)
    return [dict(record) for record in found if isinstance(record, dict)]


def name_file(notebook: Any, file: str) -> None:
    """Write the notebook's own name into the records of its outputs, and the records into its metadata."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if isinstance(data.get(RECORD), dict):
                data[RECORD] = with_file(dict(data[RECORD]), file)
                data["text/plain"] = data[RECORD]["text"]
    if made := records_in(notebook):
        keys = ("run", "run_id", "settings_sha256", "again")
        notebook.metadata["nbtrain"] = {"runs": [{key: record[key] for key in keys} for record in made]}


def parameters_of(names: dict[str, Any]) -> dict[str, Any]:
    """Return the current values of the notebook's parameters; `names` is the kernel's namespace.

    As in check_parameters(), the first cell that has run assigns the parameters.
    """
    cells = [cell for cell in names.get("In", []) if cell.strip()]
    own = next((cell for cell in cells if not cell.lstrip().startswith(INJECTED_MARK)), "")
    try:
        assigned = assigned_names(own)
    except ConfigError:
        return {}
    return {name: names[name] for name in assigned if name in names and _is_json(names[name])}


def _is_json(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_json, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(_is_json, value.values()))
    return value is None or isinstance(value, bool | int | float | str)
