"""The panel's script: seven ES modules as one."""

import re
import shutil
import subprocess

import pytest

from nbtrain.lab.ui.script import panel_script


def test_it_is_one_module():
    """Nothing is left to import, and it exports what anywidget and the rescue call."""
    script = panel_script()
    assert "import {" not in script
    assert re.findall(r"^export (?:function )?(\w+)", script, re.MULTILINE) == ["mount", "rescue", "default"]


def test_no_name_is_defined_twice():
    """Joined, the modules share one scope."""
    names = re.findall(r"^(?:export )?(?:class|function|const|let) (\w+)", panel_script(), re.MULTILINE)
    assert len(names) > 15 and len(names) == len(set(names))


@pytest.mark.skipif(
    shutil.which("node") is None, reason="node is not installed; test_browser.py runs the script"
)
def test_a_browser_would_parse_it(tmp_path):
    (tmp_path / "panel.mjs").write_text(panel_script(), encoding="utf-8")
    done = subprocess.run(["node", "--check", str(tmp_path / "panel.mjs")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
