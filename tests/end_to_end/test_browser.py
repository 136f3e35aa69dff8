"""JupyterLab in a real browser: the panel, the form and TensorBoard as a person sees them.

NBTRAIN_CHROMIUM=/usr/bin/chromium   the browser, if it is not found by name
NBTRAIN_REQUIRE_BROWSER=1            a missing browser is a failure and not a skip
NBTRAIN_SCREENSHOTS=DIR              keep a picture of each station
"""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.browser]

REPOSITORY = Path(__file__).parents[2]
FAKE_RUN = REPOSITORY / "tests" / "lab" / "widgets" / "fake_run.py"
TOKEN = "a-token-of-this-test"
BUSY_SECONDS = 1800

CHROMIUM_FLAGS = [
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
    """Path of Chromium; skips if there is none, or fails if NBTRAIN_REQUIRE_BROWSER is set."""
    names = (os.environ.get("NBTRAIN_CHROMIUM"), "chromium", "chromium-browser", "google-chrome")
    for name in names:
        if name and (found := shutil.which(name)):
            return found
    reason = "Chromium is not installed (apt-get install chromium), nor named by NBTRAIN_CHROMIUM"
    if os.environ.get("NBTRAIN_REQUIRE_BROWSER"):
        pytest.fail(reason)
    pytest.skip(reason)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@dataclass
class Lab:
    """A running JupyterLab of its own."""

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


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """JupyterLab with its own home, port, token and output root; below a prefix, as behind a hub."""
    find_chromium()
    root = tmp_path_factory.mktemp("lab")
    output = root / "output"
    output.mkdir()
    port = free_port()
    settings = root / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(
        '{"fetchNews": "false", "checkForUpdates": false}'
    )
    environment = {
        **os.environ,
        "HOME": str(root / "home"),
        "JUPYTER_CONFIG_DIR": str(root / "config"),
        "JUPYTER_DATA_DIR": str(root / "data"),
        "JUPYTER_RUNTIME_DIR": str(root / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(root / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(root / "workspaces"),
        "IPYTHONDIR": str(root / "ipython"),
        "NBTRAIN_OUTPUT": str(output),
        "NBTRAIN_DATA": str(root / "datasets"),
        "NBTRAIN_WORKSPACE": str(REPOSITORY),
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    # The extension is switched on by a file of the installed wheel; a tree in use for development has none.
    environment["JUPYTER_CONFIG_PATH"] = str(root / "switch")
    switch = root / "switch" / "jupyter_server_config.d"
    switch.mkdir(parents=True)
    shutil.copy(REPOSITORY / "nbtrain" / "lab" / "server" / "nbtrain.json", switch / "nbtrain.json")
    (root / "home").mkdir()
    (root / "notebooks").mkdir()
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--allow-root",
        "--expose-app-in-browser",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        "--ServerApp.base_url=/user/x/",
        f"--IdentityProvider.token={TOKEN}",
        f"--ServerApp.root_dir={root / 'notebooks'}",
    ]
    with (root / "lab.log").open("wb") as log:
        server = subprocess.Popen(
            command, env=environment, cwd=root, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
    lab = Lab(f"http://127.0.0.1:{port}/user/x/", root, output, environment)
    try:
        wait_for(lambda: answers(lab), 240, lambda: (root / "lab.log").read_text()[-3000:])
        yield lab
    finally:
        server.send_signal(signal.SIGTERM)
        try:
            server.wait(120)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def answers(lab: Lab) -> bool:
    try:
        return "version" in lab.get("api")
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = find_chromium()
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    page = context.new_page()
    lines: list[str] = []
    page.set_default_timeout(240_000)
    page.on("console", lambda message: lines.append(f"{message.type}: {message.text}"))
    yield page
    screenshot(page, "last")
    if folder := os.environ.get("NBTRAIN_SCREENSHOTS"):
        (Path(folder) / "console.txt").write_text("\n".join(lines))
    context.close()


@contextmanager
def fake_job(lab: Lab, name: str, *arguments: str) -> Iterator[subprocess.Popen]:
    """A job that steps four times a second, as another process."""
    run = lab.output / name
    job = subprocess.Popen([sys.executable, str(FAKE_RUN), str(run), *arguments], env=lab.environment)
    try:
        wait_for(lambda: any(run.glob("jobs/*/heartbeat/0.json")), 240, lambda: "no heartbeat")
        yield job
    finally:
        job.kill()
        job.wait()


def wait_for(condition: Callable[[], Any], seconds: float, story: Callable[[], str]) -> Any:
    """Poll until `condition` holds; fail with `story` if it never does."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds:g} s: {story()}")
        time.sleep(0.2)
    return value


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
    """Until the kernel of the open notebook is idle: a cell sent earlier can be lost."""
    page.wait_for_function(
        """() => {
            const panel = window.jupyterapp?.shell.currentWidget;
            return panel?.sessionContext?.session?.kernel?.status === "idle";
        }"""
    )


def command(page: Any, name: str) -> None:
    """Start a JupyterLab command and do not wait for its end."""
    page.evaluate("(name) => { window.jupyterapp.commands.execute(name); }", name)


def run_cell(page: Any, index: int) -> None:
    page.evaluate(
        """(index) => {
            const app = window.jupyterapp;
            app.shell.currentWidget.content.activeCellIndex = index;
            app.commands.execute("notebook:run-cell");
        }""",
        index,
    )


def kernel_busy(lab: Lab) -> bool:
    """Whether a cell runs, by the server: the page itself does not know after a reload."""
    return any(kernel["execution_state"] == "busy" for kernel in lab.get("api/kernels"))


def shown_step(page: Any) -> int:
    """The step number a person reads in the panel."""
    text = page.locator(".nbtrain-panel .nbt-step b").first.inner_text()
    return int(re.match(r"([\d,]+) / ", text)[1].replace(",", ""))


def assert_step_advances(page: Any, seconds: float = 240) -> None:
    before = shown_step(page)
    wait_for(lambda: shown_step(page) >= before + 3, seconds, lambda: f"step {before} -> {shown_step(page)}")


def screenshot(page: Any, name: str) -> None:
    if folder := os.environ.get("NBTRAIN_SCREENSHOTS"):
        page.screenshot(path=str(Path(folder) / f"{name}.png"))


def test_panel_is_live_while_a_cell_runs_and_after_a_reload_and_stops_the_job(lab: Lab, page: Any) -> None:
    """The step advances while the kernel is busy and after reloading the page with the kernel still busy;
    Stop works then.
    """
    write_notebook(
        lab,
        "panel.ipynb",
        'import nbtrain as nb\n\nrun = nb.open_run("gpt-browser")\nrun',
        f"import time\n\ntime.sleep({BUSY_SECONDS})",
    )
    with fake_job(lab, "gpt-browser", "--steps", "4000") as job:
        open_notebook(page, lab, "panel.ipynb")
        run_cell(page, 0)
        page.wait_for_selector(".nbtrain-panel[data-state=RUNNING] .nbt-step")
        assert page.locator(".nbtrain-panel").count() == 1
        wait_for_kernel(page)

        run_cell(page, 1)
        wait_for(lambda: kernel_busy(lab), 240, lambda: "the sleeping cell did not start")
        assert_step_advances(page)
        assert kernel_busy(lab)
        screenshot(page, "panel-busy")

        command(page, "docmanager:save")
        wait_for(
            lambda: "nbtrain-rescue" in saved(lab, "panel.ipynb"), 240, lambda: "the notebook was not saved"
        )
        page.reload()
        page.wait_for_selector(".nbtrain-panel[data-state=RUNNING] .nbt-step")
        assert_step_advances(page)
        assert kernel_busy(lab)
        screenshot(page, "panel-reloaded-busy")

        assert job.poll() is None
        page.locator(".nbtrain-panel .nbt-stop").first.click()
        page.wait_for_selector(".nbtrain-panel[data-state=CANCELLED]")
        assert job.wait(240) == 0
        assert kernel_busy(lab)
        screenshot(page, "panel-stopped")

        # Without its kernel JupyterLab has no model of the widget; the panel comes back all the same.
        lab.restart_kernels()
        page.reload()
        page.wait_for_selector(".nbtrain-panel[data-state=CANCELLED] .nbt-step")
        assert page.locator("text=Error displaying widget").locator("visible=true").count() == 0


def saved(lab: Lab, name: str) -> str:
    return (lab.root / "notebooks" / name).read_text()


# gpt-tiny on random words, small enough for 50 steps a second, long enough to be watched.
WATCHED = (
    "name=watched model.num_layers=1 model.hidden_size=32 model.seq_length=32 batch.micro_batch_size=4 "
    "batch.global_batch_size=4 batch.max_steps=200000 evaluation.eval_iters=0 "
    "checkpoint.save_interval_steps=100000 "
    "tokenizer.name=mock tokenizer.vocab_size=512 data.name=mock 'data.sources=[{kind: mock}]'"
)


def test_the_launch_notebook_trains_a_run_that_is_watched_and_stopped(lab: Lab, page: Any) -> None:
    """03_launch as shipped: a real job; the panel advances while the notebook waits and after a reload; Stop
    saves.
    """
    import nbformat
    from papermill.iorw import load_notebook_node
    from papermill.parameterize import parameterize_notebook

    prepare = [sys.executable, "-m", "nbtrain.cli", "prepare", "gpt-tiny", *shlex.split(WATCHED)]
    subprocess.run(prepare, env=lab.environment, check=True, capture_output=True)
    notebook = load_notebook_node(str(REPOSITORY / "notebooks" / "03_launch.ipynb"))
    notebook = parameterize_notebook(notebook, {"overrides": WATCHED, "wait": "yes"})
    nbformat.write(notebook, lab.root / "notebooks" / "03_launch.ipynb")

    open_notebook(page, lab, "03_launch.ipynb")
    command(page, "notebook:run-all-cells")
    page.locator(".nbtrain-panel[data-state=RUNNING] .nbt-step").first.wait_for()
    wait_for(lambda: shown_step(page) > 0, 240, lambda: "no step was made")
    assert kernel_busy(lab), "the waiting cell should be running"
    assert_step_advances(page)
    screenshot(page, "launch-notebook")
    command(page, "docmanager:save")
    wait_for(
        lambda: "nbtrain-rescue" in saved(lab, "03_launch.ipynb"), 240, lambda: "the notebook was not saved"
    )
    page.reload()
    page.locator(".nbtrain-panel[data-state=RUNNING] .nbt-step").first.wait_for()
    assert_step_advances(page)
    assert kernel_busy(lab)
    page.locator(".nbtrain-panel .nbt-stop").first.click()
    page.locator(".nbtrain-panel[data-state=CANCELLED]").first.wait_for()
    wait_for(lambda: not kernel_busy(lab), 240, lambda: "the notebook still waits for a job that is stopped")
    assert list((lab.output / "watched" / "model").glob("global_step*/manifest.json"))
    # TensorBoard reads every run below the output root: steps of this run would hide steps of the next test.
    shutil.rmtree(lab.output / "watched")


def test_form_checks_plans_and_submits(lab: Lab, page: Any) -> None:
    """The form shows plan, difference and line at once, refuses a batch that does not divide, and takes it
    back.
    """
    write_notebook(lab, "form.ipynb", 'import nbtrain as nb\n\nnb.launcher("gpt-tiny")')
    open_notebook(page, lab, "form.ipynb")
    run_cell(page, 0)
    form = page.locator(".nbtrain-form")
    form.locator("text=Plan of gpt-tiny").wait_for()
    assert 'nb.submit("gpt-tiny")' in form.locator(".nbf-line").inner_text()
    tabs = form.locator(".lm-TabBar-tabLabel")
    expected = ["Distributed", "Model", "Training", "Parallel", "Data", "Evaluation", "Logging"]
    assert tabs.all_inner_texts() == expected
    screenshot(page, "form")

    tabs.get_by_text("Training").click()
    field = form.locator(".widget-text", has=page.locator("text=micro_batch_size")).locator("input").first
    field.fill("5")
    field.press("Enter")
    form.locator("text=must be a multiple of micro_batch_size(5)").wait_for()
    assert form.locator("button", has_text="Submit").is_disabled()
    screenshot(page, "form-refuses")

    field.fill("4")
    field.press("Enter")
    form.locator(".nbf-line", has_text='nb.submit("gpt-tiny", {"batch.micro_batch_size": 4})').wait_for()
    form.locator("text=Changed against the YAML").wait_for()
    assert form.locator("button", has_text="Submit").is_enabled()
    screenshot(page, "form-changed")


def test_tensorboard_shows_new_points_by_itself(lab: Lab, page: Any) -> None:
    """The launcher's tile opens a live TensorBoard; nb.tensorboard shows one of the run in the notebook."""
    write_notebook(lab, "board.ipynb", 'import nbtrain as nb\n\nnb.tensorboard("gpt-board")')
    with fake_job(lab, "gpt-board", "--steps", "4000"):
        open_notebook(page, lab, "board.ipynb")
        command(page, "launcher:create")
        tile = page.locator(".jp-LauncherCard", has_text="TensorBoard")
        tile.wait_for()
        page.wait_for_function(
            "(tile) => { const icon = tile.querySelector('img'); return icon?.complete && icon.naturalWidth "
            "> 0; }",
            arg=tile.element_handle(),
        )
        screenshot(page, "launcher-tile")
        tile.click()
        board = page.frame_locator(".jp-ServerProxy iframe").frame_locator("iframe[title=TensorBoard]")
        assert_points_advance(board, times=2)
        screenshot(page, "tensorboard-tile")

        command(page, "application:close")
        page.locator(".jp-ServerProxy").wait_for(state="detached")
        run_cell(page, 0)
        board = page.frame_locator("iframe.nbtrain-tensorboard").frame_locator("iframe[title=TensorBoard]")
        assert_points_advance(board, times=1)
        screenshot(page, "tensorboard-notebook")


def last_step(board: Any) -> int:
    """The step that the first card's table names: that of its newest point."""
    text = board.locator("card-view").first.inner_text()
    found = re.search(r"([\d,]+)\s+Run\s", text)
    return int(found[1].replace(",", "")) if found else 0


def assert_points_advance(board: Any, times: int) -> None:
    """Reload after reload brings later points, and nobody touches anything."""
    board.locator("card-view").first.wait_for(timeout=240_000)
    step = wait_for(lambda: last_step(board), 240, lambda: "TensorBoard shows no step")
    for _ in range(times):
        step = later_step(board, step)


def later_step(board: Any, step: int) -> int:
    """The next step that is shown after `step`."""
    return wait_for(lambda: (now := last_step(board)) > step and now, 240, lambda: f"stays at step {step}")
