"""The ES modules of the user interface: each is valid, and together they form one script."""

import re
import shutil
import subprocess

import pytest

from nbtrain.lab.ui import script
from nbtrain.lab.ui.script import panel_script


def test_it_is_one_module():
    """The joined script imports nothing, and exports the functions that anywidget and a restored view
    call.
    """
    script = panel_script()
    assert "import {" not in script
    assert re.findall(r"^export (?:function )?(\w+)", script, re.MULTILINE) == ["mount", "rescue", "default"]


def test_no_two_folders_import_each_other():
    """The folders of lab/ui import each other in one direction only."""
    pairs = set()
    for path in sorted(script.FOLDER.rglob("*.js")):
        for _, imported in script.IMPORT.findall(path.read_text(encoding="utf-8")):
            folder = (path.parent / imported).resolve().parent.name
            pairs.add((path.parent.name, folder))
    pairs = {(folder, other) for folder, other in pairs if folder != other}
    assert len(pairs) > 10 and not [pair for pair in pairs if pair[::-1] in pairs]


def test_no_name_is_defined_twice():
    """No name is defined in two modules, because the joined modules share one scope."""
    defined: dict[str, str] = {}
    for path in sorted(script.FOLDER.rglob("*.js")):
        text = path.read_text(encoding="utf-8")
        found = re.findall(r"^(?:export )?(?:async )?(?:class|function|const|let) (\w+)", text, re.MULTILINE)
        for name in found:
            assert name not in defined, f"{name} is defined in {defined[name]} and in {path.name}"
            defined[name] = path.name
    assert len(defined) > 80


@pytest.mark.skipif(
    shutil.which("node") is None, reason="node is not installed; test_browser.py runs the script"
)
def test_a_browser_would_parse_it(tmp_path):
    (tmp_path / "panel.mjs").write_text(panel_script(), encoding="utf-8")
    done = subprocess.run(["node", "--check", str(tmp_path / "panel.mjs")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
