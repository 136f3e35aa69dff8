"""TensorBoard in JupyterLab in detail: its first page, its theme, and a real configurable-http-proxy.

NBTRAIN_CHP=DIR/node_modules/.bin/configurable-http-proxy   JupyterHub's proxy, if it is not on PATH
"""

import os
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from nbtrain.base.process.ports import port_to_listen_on
from tests.end_to_end.jupyterlab import (
    Lab,
    command,
    fake_job,
    open_notebook,
    run_cell,
    screenshot,
    write_notebook,
)
from tests.end_to_end.stations import choose_theme
from tests.end_to_end.test_browser import assert_points_advance
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.browser, pytest.mark.soak]


# Elements with a visible horizontal scrollbar.
SIDEWAYS = """() => [...document.querySelectorAll("*")].filter((node) => {
    const { overflowX, scrollbarWidth } = getComputedStyle(node);
    const scrolls = /auto|scroll/.test(overflowX) && scrollbarWidth !== "none";
    return scrolls && node.scrollWidth > node.clientWidth;
}).map((node) => `${node.tagName}.${node.className}`)"""


def test_it_opens_on_the_loss_and_follows_the_theme(lab: Lab, page: Any) -> None:
    """TensorBoard opens on the loss with one entry per run and follows the theme; its
    page has no second scrollbar.
    """
    write_notebook(lab, "theme.ipynb", "1")
    with fake_job(lab, "gpt-theme", "--steps", "4000"):
        open_notebook(page, lab, "theme.ipynb")
        choose_theme(page, "Dark")
        command(page, "launcher:create")
        page.locator(".jp-LauncherCard", has_text="TensorBoard").first.click()
        around = page.frame_locator(".nbtrain-TensorBoard iframe")
        board = around.frame_locator("iframe[title=TensorBoard]")
        board.locator("card-view").first.wait_for()
        expect(board.locator("card-view").first).to_contain_text("lm loss")
        runs = [run for run in lab.get("tensorboard/data/runs") if run.startswith("gpt-theme")]
        assert runs == ["gpt-theme"]
        board.locator("body.dark-mode").wait_for()
        screenshot(page, "tensorboard-dark")
        choose_theme(page, "Light")
        board.locator("body:not(.dark-mode) card-view").first.wait_for()
        screenshot(page, "tensorboard-light")
        for frame in page.frames:
            extra = "() => { const e = document.documentElement; return e.scrollHeight - e.clientHeight; }"
            assert frame.evaluate(extra) <= 0, frame.url
            assert frame.evaluate(SIDEWAYS) == [], frame.url


@contextmanager
def behind_a_hubs_proxy(lab: Lab) -> Iterator[Lab]:
    """Put the same server behind a configurable-http-proxy, as JupyterHub does."""
    program = os.environ.get("NBTRAIN_CHP") or shutil.which("configurable-http-proxy")
    if not program:
        pytest.skip(
            "configurable-http-proxy is missing: npm install configurable-http-proxy, NBTRAIN_CHP=..."
        )
    port, api = port_to_listen_on(), port_to_listen_on()
    token = "of-this-test"
    target = urlsplit(lab.base)
    proxy = subprocess.Popen(
        [program, f"--port={port}", f"--api-port={api}", "--ip=127.0.0.1", "--api-ip=127.0.0.1"],
        env={**os.environ, "CONFIGPROXY_AUTH_TOKEN": token},
    )

    def routed() -> bool:
        request = urllib.request.Request(
            f"http://127.0.0.1:{api}/api/routes{target.path}",
            data=b'{"target": "http://%s"}' % target.netloc.encode(),
            headers={"Authorization": f"token {token}"},
            method="POST",
        )
        try:
            urllib.request.urlopen(request, timeout=60).close()
        except urllib.error.HTTPError:
            raise
        except OSError:
            return False
        return True

    try:
        wait_until(routed, "the proxy does not answer")
        yield replace(lab, base=f"http://127.0.0.1:{port}{target.path}")
    finally:
        proxy.terminate()
        proxy.wait()


def test_it_is_live_behind_a_hubs_proxy(lab: Lab, page: Any) -> None:
    """Behind the proxy's address and prefix, the tile and a notebook show a live TensorBoard."""
    write_notebook(lab, "hub.ipynb", 'import nbtrain as nb\n\nnb.tensorboard("gpt-hub")')
    with behind_a_hubs_proxy(lab) as hub, fake_job(lab, "gpt-hub", "--steps", "4000"):
        open_notebook(page, hub, "hub.ipynb")
        run_cell(page, 0)
        frame = page.frame_locator("iframe.nbtrain-tensorboard")
        assert_points_advance(frame.frame_locator("iframe[title=TensorBoard]"))
        assert urlsplit(page.url).netloc == urlsplit(hub.base).netloc != urlsplit(lab.base).netloc
        screenshot(page, "tensorboard-behind-a-hub")
