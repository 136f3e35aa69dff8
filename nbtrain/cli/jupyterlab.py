"""`nbtrain lab`: starts JupyterLab on the notebooks, for this machine only and without its news requests."""

import os
import sys
from pathlib import Path

from nbtrain.base.version import PACKAGE
from nbtrain.base.workspace import workspace
from nbtrain.cli.kernel_encryption import kernel_encryption
from nbtrain.lab import jupyter

# JupyterLab asks "Would you like to get notified about Jupyter news?" even if it has no news address. This
# setting answers the question.
SETTINGS = jupyter.FOLDER
# Each option stops requests to addresses that docs/network.md lists. Options after `nbtrain lab` take
# precedence.
LAB_STAYS_AT_HOME = (
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.handlers.announcements.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
)

# The labextension that is committed in the repository. The copy that `pip install -e .` puts into
# JupyterLab's folder is not updated afterwards, so it may be older. An installed wheel does not have this
# folder.
BUNDLES = PACKAGE / "lab" / "labextension" / "prebuilt"


def lab_command(rest: list[str]) -> list[str]:
    """Return the command that opens JupyterLab on the workspace; `rest` is appended."""
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.root_dir={workspace()}",
        "--LabApp.default_url=/lab/tree/notebooks/00_quickstart.ipynb",
        *LAB_STAYS_AT_HOME,
        *(f"--KernelManager.{name}={value}" for name, value in kernel_encryption().items()),
    ]
    if BUNDLES.is_dir():
        command.append(f"--LabApp.extra_labextensions_path={BUNDLES}")
    if os.geteuid() == 0:
        command.append("--allow-root")
    return [*command, *rest]


def open_lab(rest: list[str]) -> int:
    """Replace this process with JupyterLab. Does not return."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    os.execve(sys.executable, lab_command(rest), {**os.environ, "PATH": path, **lab_settings()})


def lab_settings() -> dict[str, str]:
    """Return the environment variables with which JupyterLab also reads nbtrain's settings. The user's own
    settings take precedence.
    """
    folders = filter(None, [os.environ.get("JUPYTER_CONFIG_PATH"), str(SETTINGS)])
    return {"JUPYTER_CONFIG_PATH": os.pathsep.join(folders)}
