"""A JupyterLab for tests and a browser that opens it, started once for all tests of a file.

NBTRAIN_CHROMIUM=/usr/bin/chromium   the browser, if it is not found by name
NBTRAIN_REQUIRE_BROWSER=1            fail instead of skipping if there is no browser
NBTRAIN_SCREENSHOTS=DIR              keep a picture of each station
NBTRAIN_PATIENCE_SECONDS=60          waiting.py: maximum seconds for each wait, useful while writing a test
NBTRAIN_SLOW_PAGES=1                 slow_pages.py: every answer arrives late; the number seeds the delays
"""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nbtrain.base.process.ports import port_to_listen_on
from nbtrain.cli.kernel_encryption import kernel_encryption
from tests.conftest import skip_or_fail
from tests.end_to_end.slow_pages import slow_pages
from tests.waiting import PATIENCE_SECONDS, wait_until

REPOSITORY = Path(__file__).parents[2]
BUNDLES = REPOSITORY / "nbtrain" / "lab" / "labextension" / "prebuilt"
FAKE_RUN = REPOSITORY / "tests" / "lab" / "widgets" / "fake_run.py"
TOKEN = "a-token-of-this-test"
BUSY_SECONDS = 1800
# Seconds in which a page has to agree with a Playwright expect(), whose own default is five.
EXPECT_SECONDS = min(PATIENCE_SECONDS, 180)

# Features of Chromium's window that a test without a screen does not need. For each new window, Chromium
# starts a process for its address bar, and a spare one for the next site. Without these two, opening a page
# takes less than half of the processor time.
UNSEEN = (
    "SpareRendererForSitePerProcess",
    "WebUIOmniboxAimPopup",
    "WebUIOmniboxFullPopup",
    "WebUIOmniboxPopup",
    "WebUIOmniboxSimplification",
)
# Features that Playwright disables by default. Chromium obeys only the last --disable-features, so they are
# repeated here (chromiumSwitches in Playwright's driver).
OFF_IN_PLAYWRIGHT = (
    "AvoidCorsURLLoaderRestartOnRedirect",
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsFirstBalancedModeAutoEnable",
    "HttpsUpgrades",
    "LensOverlay",
    "MediaRouter",
    "NetworkTimeServiceQuerying",
    "OptimizationHints",
    "PaintHolding",
    "PreconnectToSearch",
    "ThirdPartyStoragePartitioning",
)
CHROMIUM_FLAGS = [
    f"--disable-features={','.join((*UNSEEN, *OFF_IN_PLAYWRIGHT))}",
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def find_chromium() -> str:
    """Return the path of Chromium; skip if there is none, or fail if NBTRAIN_REQUIRE_BROWSER is set."""
    names = (os.environ.get("NBTRAIN_CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    for name in names:
        if name and (found := shutil.which(name)):
            return found
    skip_or_fail(
        "NBTRAIN_REQUIRE_BROWSER",
        "Chromium is not installed (apt-get install chromium), nor named by NBTRAIN_CHROMIUM",
    )
    return ""


@dataclass
class Lab:
    """A running JupyterLab with its own folders."""

    base: str
    root: Path
    output: Path
    environment: dict[str, str]

    def url(self, path: str) -> str:
        return f"{self.base}{path}{'&' if '?' in path else '?'}token={TOKEN}"

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url(path), timeout=120) as response:
            return json.load(response)

    def restart_kernels(self) -> None:
        for kernel in self.get("api/kernels"):
            request = urllib.request.Request(self.url(f"api/kernels/{kernel['id']}/restart"), method="POST")
            request.add_header("Authorization", f"token {TOKEN}")
            urllib.request.urlopen(request, timeout=120).close()


@contextmanager
def jupyter_server(
    root: Path,
    module: str,
    *options: str,
    extended: bool = True,
    python: str = sys.executable,
    **variables: str,
) -> Iterator[tuple[str, dict[str, str]]]:
    """Start a Jupyter server that keeps all its files below `root`; yield (address,
    environment), then stop it.

    Its address has a prefix, as behind a hub. With `extended`, nbtrain's server extension is enabled, as by
    the file that a wheel installs; a development tree has no such file.
    """
    for name in ("home", "output", "notebooks", "switch/jupyter_server_config.d"):
        (root / name).mkdir(parents=True, exist_ok=True)
    switch = json.loads((REPOSITORY / "nbtrain/lab/server/nbtrain.json").read_text())
    # An installed wheel would enable it, so False has to be stated.
    switch["ServerApp"]["jpserver_extensions"] = {"nbtrain.lab.server": extended}
    (root / "switch/jupyter_server_config.d/nbtrain.json").write_text(json.dumps(switch))
    (root / "switch/labconfig").mkdir(exist_ok=True)
    disabled = {"disabledExtensions": {"nbtrain": not extended}}
    (root / "switch/labconfig/page_config.json").write_text(json.dumps(disabled))
    environment = {
        **os.environ,
        "HOME": str(root / "home"),
        "JUPYTER_CONFIG_DIR": str(root / "config"),
        "JUPYTER_CONFIG_PATH": str(root / "switch"),
        "JUPYTER_DATA_DIR": str(root / "data"),
        "JUPYTER_RUNTIME_DIR": str(root / "runtime"),
        "NBTRAIN_OUTPUT": str(root / "output"),
        **variables,
    }
    port = port_to_listen_on()
    base = f"http://127.0.0.1:{port}/user/x/"
    command = [python, "-m", module, "--no-browser", "--allow-root", *options]
    settings = {
        "ip": "127.0.0.1",
        "port": port,
        "port_retries": 0,
        "base_url": "/user/x/",
        "root_dir": root / "notebooks",
    }
    command += [f"--ServerApp.{name}={value}" for name, value in settings.items()]
    command.append(f"--IdentityProvider.token={TOKEN}")
    # As started by `nbtrain lab`.
    command += [f"--KernelManager.{name}={value}" for name, value in kernel_encryption().items()]
    log_path = root / "server.log"
    with log_path.open("wb") as log:
        server = subprocess.Popen(
            command, env=environment, cwd=root, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        wait_until(lambda: _answers(base, server), lambda: log_path.read_text()[-3000:])
        yield base, environment
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(300)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _answers(base: str, server: subprocess.Popen) -> bool:
    assert server.poll() is None, "the server has ended"
    try:
        with urllib.request.urlopen(f"{base}api?token={TOKEN}", timeout=120) as response:
            return "version" in json.load(response)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Start a JupyterLab with its own home, port, token and output directory."""
    with running_lab(tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture(scope="module")
def plain_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Start a JupyterLab without nbtrain's server extension and labextension.

    Like VS Code, it only has a kernel and its widgets.
    """
    with running_lab(tmp_path_factory.mktemp("plain lab"), extended=False) as lab:
        yield lab


@contextmanager
def running_lab(root: Path, extended: bool = True, bundles: Path = BUNDLES, **more: str) -> Iterator[Lab]:
    """Run JupyterLab below `root`, with nbtrain's two extensions if `extended`, and stop it at the end.

    `bundles` is the folder of the labextension; `more` has environment variables for the server.
    """
    find_chromium()
    settings = root / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True, exist_ok=True)
    (settings / "notification.jupyterlab-settings").write_text(
        '{"fetchNews": "false", "checkForUpdates": false}'
    )
    variables = {
        "JUPYTERLAB_SETTINGS_DIR": str(root / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(root / "workspaces"),
        "IPYTHONDIR": str(root / "ipython"),
        "NBTRAIN_DATA": str(root / "datasets"),
        "NBTRAIN_WORKSPACE": str(REPOSITORY),
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        **more,
    }
    options = ["--expose-app-in-browser"]
    options += [f"--LabApp.extra_labextensions_path={bundles}"] * extended
    with jupyter_server(root, "jupyterlab", *options, extended=extended, **variables) as (base, environment):
        yield Lab(base, root, root / "output", environment)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = find_chromium()
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=1000 * EXPECT_SECONDS)
    with sync_playwright() as playwright:
        # Scrollbars are visible, as for a user.
        browser = playwright.chromium.launch(
            executable_path=chromium, args=CHROMIUM_FLAGS, ignore_default_args=["--hide-scrollbars"]
        )
        if seed := os.environ.get("NBTRAIN_SLOW_PAGES"):
            slow_pages(browser, int(seed))
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    page = context.new_page()
    lines: list[str] = []
    page.set_default_timeout(1000 * PATIENCE_SECONDS)
    page.on("console", lambda message: lines.append(f"{message.type}: {message.text}"))
    yield page
    screenshot(page, "last")
    if folder := os.environ.get("NBTRAIN_SCREENSHOTS"):
        (Path(folder) / "console.txt").write_text("\n".join(lines))
    context.close()


@contextmanager
def fake_job(lab: Lab, name: str, *arguments: str) -> Iterator[subprocess.Popen]:
    """Run a simulated job in another process; it makes four steps a second."""
    run = lab.output / name
    job = subprocess.Popen([sys.executable, str(FAKE_RUN), str(run), *arguments], env=lab.environment)
    try:
        wait_until(lambda: any(run.glob("jobs/*/heartbeat/0.json")), "no heartbeat")
        yield job
    finally:
        job.kill()
        job.wait()


def write_notebook(lab: Lab, name: str, *cells: str) -> None:
    import nbformat

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, lab.root / "notebooks" / name)


def open_notebook(page: Any, lab: Lab, name: str) -> None:
    page.goto(lab.url(f"lab/tree/{name}?reset"))
    page.wait_for_selector(".jp-Notebook .jp-Cell")
    wait_for_kernel(page)


def wait_for_kernel(page: Any) -> None:
    """Wait until the kernel of the open notebook is idle, because a cell that is sent earlier can be lost."""
    page.wait_for_function(
        """() => {
            const panel = window.jupyterapp?.shell.currentWidget;
            return panel?.sessionContext?.session?.kernel?.status === "idle";
        }"""
    )


def command(page: Any, name: str) -> None:
    """Start a JupyterLab command without waiting until it ends."""
    page.evaluate("(name) => { window.jupyterapp.commands.execute(name); }", name)


def run_cell(page: Any, index: int) -> None:
    """Run a cell and return once it has started.

    It is sent again if JupyterLab, which was not ready, has lost it.
    """
    from playwright.sync_api import TimeoutError as Lost

    for _ in range(10):
        page.evaluate(
            """(index) => {
                const app = window.jupyterapp, content = app.shell.currentWidget.content;
                const prompt = content.widgets[index].node.querySelector(".jp-InputPrompt");
                window.hasBegun = false;
                const observer = new MutationObserver(() => (window.hasBegun = true));
                observer.observe(prompt, { childList: true, characterData: true, subtree: true });
                content.activeCellIndex = index;
                app.commands.execute("notebook:run-cell");
            }""",
            index,
        )
        with contextlib.suppress(Lost):
            page.wait_for_function("() => window.hasBegun", timeout=30_000)
            return
    pytest.fail(f"cell {index} was never begun")


def kernel_busy(lab: Lab) -> bool:
    """Return whether the server reports a running cell; a page that was reloaded does not know."""
    return any(kernel["execution_state"] == "busy" for kernel in lab.get("api/kernels"))


def shown_step(page: Any) -> int:
    """Return the step number that the panel shows."""
    text = page.locator(".nbtrain-panel .nbt-step b").first.inner_text()
    return int(re.match(r"([\d,]+) / ", text)[1].replace(",", ""))


def assert_step_advances(page: Any) -> None:
    before = shown_step(page)
    wait_until(lambda: shown_step(page) >= before + 3, lambda: f"step {before} -> {shown_step(page)}")


def stop_at_once(panel: Any) -> None:
    """Click Stop in a run's panel, and skip the seconds in which it can be undone: both clicks are in one
    script, because on a busy machine the seconds may be over before a second script.
    """
    stop = panel.locator(".nbt-stop:enabled")
    stop.wait_for()
    stop.evaluate(
        """(stop) => {
            const panel = stop.closest(".nbtrain-panel");
            stop.click();
            const asked = [...panel.querySelectorAll(".nbt-asked button")];
            asked.find((button) => button.textContent === "Do not wait").click();
        }"""
    )


def screenshot(page: Any, name: str) -> None:
    if folder := os.environ.get("NBTRAIN_SCREENSHOTS"):
        page.screenshot(path=str(Path(folder) / f"{name}.png"))


def saved(lab: Lab, name: str) -> str:
    return (lab.root / "notebooks" / name).read_text()
