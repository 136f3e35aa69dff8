"""Run axe-core on a page, and describe its findings about nbtrain's own elements.

axe/package.json and axe/yarn.lock pin axe-core. jlpm fetches it into .cache/axe, like the packages of `make
labextension`; it is not part of any page that nbtrain ships (MPL-2.0).

    NBTRAIN_REQUIRE_AXE=1    fail instead of skipping if axe-core cannot be installed
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.conftest import skip_or_fail
from tests.end_to_end.jupyterlab import REPOSITORY

SOURCES = Path(__file__).parent / "axe"
SETTINGS = ("package.json", "yarn.lock", ".yarnrc.yml")
CACHE = REPOSITORY / ".cache" / "axe"
SCRIPT = CACHE / "node_modules" / "axe-core" / "axe.min.js"
INSTALL_SECONDS = 120.0


def axe_script() -> str:
    """Return the JavaScript of axe-core; skip the test if it cannot be installed."""
    wanted = {name: (SOURCES / name).read_bytes() for name in SETTINGS}
    there = SCRIPT.is_file() and all(
        (CACHE / name).is_file() and (CACHE / name).read_bytes() == text for name, text in wanted.items()
    )
    if not there:
        why = _install()
        if why:
            skip_or_fail("NBTRAIN_REQUIRE_AXE", f"axe-core cannot be had: {why}")
    return SCRIPT.read_text(encoding="utf-8")


def _install() -> str:
    """Install axe-core; return the reason why that failed, or "" if it is installed."""
    jlpm = Path(sys.executable).parent / "jlpm"
    if shutil.which("node") is None or not jlpm.is_file():
        return "node 20 and JupyterLab's jlpm are needed"
    CACHE.mkdir(parents=True, exist_ok=True)
    for name in SETTINGS:
        shutil.copyfile(SOURCES / name, CACHE / name)
    try:
        done = subprocess.run(
            [jlpm, "install", "--immutable"],
            cwd=CACHE,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"the registry did not answer in {INSTALL_SECONDS:g} s"
    return "" if done.returncode == 0 else " ".join(done.stdout.split())[-300:]


# Elements of ipywidgets and JupyterLab inside our outputs, with findings that occur in every notebook.
NOT_OURS = ((".noUi-handle", "aria-input-field-name"),)


# Content that is scrolled out of sight is checked only down to the page's height, or the color rule ends
# early.
TALL_PIXELS = 3000
SETTLE_MS = 500


def findings(page: Any, script: str, within: Sequence[str]) -> list[str]:
    """Return the findings inside the elements `within`, one line per element."""
    size = page.viewport_size
    page.set_viewport_size({**size, "height": TALL_PIXELS})
    page.wait_for_timeout(SETTLE_MS)
    try:
        return _findings(page, script, within)
    finally:
        page.set_viewport_size(size)


def _findings(page: Any, script: str, within: Sequence[str]) -> list[str]:
    if not page.evaluate("() => Boolean(window.axe)"):
        page.evaluate(script)
    found = page.evaluate(
        """(within) => {
            const there = within.filter((one) => document.querySelector(one));
            if (!there.length) throw new Error(`nothing of ${within} is in the page`);
            // JupyterLab's <body> has no height and hides what leaves it: axe would take all text for unseen.
            document.body.style.minHeight = "100vh";
            return axe.run({ include: there.map((one) => [one]) });
        }""",
        list(within),
    )
    broken = {one["id"]: one["error"]["message"] for one in found["incomplete"] if one.get("error")}
    assert broken == {}, f"axe has not judged {within}: {broken}"
    judged = {one["id"] for one in [*found["passes"], *found["violations"]]}
    assert "color-contrast" in judged, f"no colour of {within} was judged"
    return [
        f"{one['impact']} {one['id']} at {' '.join(map(str, node['target']))}: "
        f"{' '.join((node.get('failureSummary') or one['help']).split())} [{node['html'][:160]}]"
        for one in found["violations"]
        for node in one["nodes"]
        if (str(node["target"][-1]), one["id"]) not in NOT_OURS
    ]
