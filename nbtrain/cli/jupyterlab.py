"""`nbtrain lab`: JupyterLab on the notebooks, bound to loopback, asking no server for news."""

import os
import sys
from pathlib import Path

from nbtrain.base.version import PACKAGE
from nbtrain.base.workspace import workspace
from nbtrain.cli.kernel_encryption import kernel_encryption
from nbtrain.lab import jupyter

# JupyterLab asks "Would you like to get notified about Jupyter news?" even if it has no address for them: the
# answer is a setting.
SETTINGS = jupyter.FOLDER
# docs/network.md says what each would contact. Options after `nbtrain lab` come later and win.
LAB_STAYS_AT_HOME = (
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.handlers.announcements.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
)

# In a repository: the labextension as it is committed. `pip install -e .` has put a copy of it beside
# JupyterLab, which is that of the day of the installation; an installed wheel has only this one.
BUNDLES = PACKAGE / "lab" / "labextension" / "prebuilt"


def lab_command(rest: list[str]) -> list[str]:
    """The command line of JupyterLab on the workspace, opened at the notebooks; `rest` follows."""
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
    """Become JupyterLab; does not return."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    os.execve(sys.executable, lab_command(rest), {**os.environ, "PATH": path, **lab_settings()})


def lab_settings() -> dict[str, str]:
    """Variables that add nbtrain's settings to those that JupyterLab reads; a person's own win."""
    folders = filter(None, [os.environ.get("JUPYTER_CONFIG_PATH"), str(SETTINGS)])
    return {"JUPYTER_CONFIG_PATH": os.pathsep.join(folders)}
