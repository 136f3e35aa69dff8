"""The installed wheel works in every JupyterLab that pyproject.toml allows, and in Notebook 7, in a browser.

Each version is installed into a separate environment, which takes all other packages from the tests'
environment. No extension is enabled by hand: the files of the wheel must enable it.
"""

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.end_to_end.jupyterlab import (
    REPOSITORY,
    Lab,
    assert_step_advances,
    fake_job,
    find_chromium,
    jupyter_server,
    run_cell,
    screenshot,
    wait_for_kernel,
    write_notebook,
)

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.soak]

PIP = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")
SIDEBAR_TAB = '.jp-SideBar [data-id="nbtrain-sidebar"]'
CELL = 'import nbtrain as nb\n\nnb.open_run("gpt-version")'


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(REPOSITORY)]
    subprocess.run(build, check=True)
    (found,) = folder.glob("nbtrain-*.whl")
    return found


@contextmanager
def installed(root: Path, wheel: Path, module: str, *packages: str) -> Iterator[Lab]:
    """Run a server of `module` with these package versions and nbtrain, as the wheel installs it."""
    find_chromium()
    there = root / "environment"
    venv.create(there, with_pip=False)
    python = there / "bin" / "python"
    install = [*PIP, "--python", str(python), "install", "--no-deps", *packages, str(wheel)]
    subprocess.run(install, check=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(there)}))
    # The environment's own packages take precedence.
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    variables = {
        "JUPYTER_CONFIG_PATH": str(Path(sys.prefix) / "etc" / "jupyter"),
        "JUPYTER_PATH": str(Path(sys.prefix) / "share" / "jupyter"),
        "IPYTHONDIR": str(root / "ipython"),
        "NBTRAIN_WORKSPACE": str(REPOSITORY),
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        # The wheel's nbtrain instead of the source tree's.
        "PYTHONPATH": "",
    }
    options = ("--expose-app-in-browser",)
    with jupyter_server(root, module, *options, python=str(python), **variables) as (base, environment):
        lab = Lab(base, root, root / "output", environment)
        write_notebook(lab, "version.ipynb", CELL)
        yield lab


@pytest.mark.parametrize(
    "packages",
    [("jupyterlab==4.4.0",), ("jupyterlab==4.4.10",), ("jupyterlab==4.5.11",), ("jupyterlab==4.6.0",)],
    ids=lambda packages: packages[0],
)
def test_a_jupyterlab_shows_the_sidebar_the_run_and_the_widget(
    tmp_path: Path, wheel: Path, page: Any, packages: tuple[str, ...]
) -> None:
    """The requested JupyterLab version runs and shows the sidebar list, a live panel,
    the tile, and a cell's output.
    """
    with (
        installed(tmp_path, wheel, "jupyterlab", *packages) as lab,
        fake_job(lab, "gpt-version", "--steps", "40000"),
    ):
        page.goto(lab.url("lab?reset"))
        page.locator(".jp-Launcher").wait_for()
        assert f"jupyterlab=={page.evaluate('window.jupyterapp.version')}" == packages[0]
        section = page.locator(".jp-Launcher-section", has=page.get_by_text("nbtrain", exact=True))
        # JupyterLab draws the sections one after another.
        section.locator(".jp-LauncherCard").nth(3).wait_for()
        tiles = ["New Run", "Runs", "TensorBoard", "Try a model"]
        expect(section.locator(".jp-LauncherCard")).to_have_text(tiles)
        page.locator(SIDEBAR_TAB).click()
        page.locator(".nbtrain-Sidebar [data-run=gpt-version] .nbt-open").click()
        page.locator(".nbtrain-RunView [data-state=RUNNING] .nbt-step").wait_for()
        screenshot(page, f"version-{packages[0]}-run")
        page.goto(lab.url("lab/tree/version.ipynb?reset"))
        wait_for_kernel(page)
        run_cell(page, 0)
        page.wait_for_selector(".jp-OutputArea .nbtrain-panel[data-state=RUNNING] .nbt-step")
        assert_step_advances(page)
        screenshot(page, f"version-{packages[0]}-cell")


@pytest.mark.parametrize(
    "packages",
    [("notebook==7.4.7", "jupyterlab==4.4.10"), ("notebook==7.6.5", "jupyterlab==4.6.6")],
    ids=lambda packages: packages[0],
)
def test_a_notebook_7_shows_the_widget_live(
    tmp_path: Path, wheel: Path, page: Any, packages: tuple[str, ...]
) -> None:
    """Notebook 7, which has no sidebar, shows the live widget in a notebook."""
    with (
        installed(tmp_path, wheel, "notebook", *packages) as lab,
        fake_job(lab, "gpt-version", "--steps", "40000"),
    ):
        page.goto(lab.url("notebooks/version.ipynb"))
        page.locator(".jp-Notebook .jp-Cell").first.wait_for()
        assert page.evaluate("window.jupyterapp.version") == packages[0].partition("==")[2]
        wait_for_kernel(page)
        run_cell(page, 0)
        page.wait_for_selector(".jp-OutputArea .nbtrain-panel[data-state=RUNNING] .nbt-step")
        assert_step_advances(page)
        screenshot(page, f"version-{packages[0]}-cell")
