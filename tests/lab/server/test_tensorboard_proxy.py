"""The entry point for jupyter-server-proxy, and how that package uses it."""

import html
import json
import warnings
from pathlib import Path

import pytest

from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.lab.server import tensorboard_door, tensorboard_proxy
from nbtrain.lab.server.tensorboard_proxy import tensorboard_command, tensorboard_entry, tensorboard_page


def test_entry_is_understood_by_jupyter_server_proxy() -> None:
    """Every key of the entry is a trait of jupyter-server-proxy; for an unknown key it would print a warning,
    which is an error here.
    """
    from jupyter_server_proxy.config import ServerProcess

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        process = ServerProcess(name=tensorboard_proxy.PROXY_NAME, **tensorboard_entry())
    assert process.timeout == 60
    assert process.update_last_activity is False
    # The labextension has the tile: a second one would appear under "Notebook".
    assert process.launcher_entry.enabled is False


def test_command_serves_the_output_root_on_the_loopback(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command serves the output directory on the loopback interface; the directory is read from the
    server's environment when TensorBoard starts.
    """
    monkeypatch.setenv("NBTRAIN_OUTPUT", "elsewhere")
    command = tensorboard_command(6006)
    assert command[1:5] == ["-m", "nbtrain.lab.server.tensorboard_door", "--port", "6006"]
    assert command[command.index("--root") + 1] == str(workspace / "elsewhere")
    assert "--host" not in command and tensorboard_door.LOOPBACK == "127.0.0.1"
    assert all(isinstance(part, str) for part in command)


def test_page_opens_on_the_loss() -> None:
    """The page opens with the loss: its pinned cards are scalars of nbtrain, and the address is escaped."""
    page = tensorboard_page("/user/a&b/tensorboard/")
    assert 'data-address="/user/a&amp;b/tensorboard/"' in page
    pinned = json.loads(html.unescape(page.partition('data-pinned="')[2].partition('"')[0]))
    assert [card["tag"] for card in pinned] == [
        *("lm-loss-training/lm loss", "lm-loss-validation/lm loss validation")
    ]
    assert "{{" not in page


def test_extension_names_itself_and_importing_it_is_cheap() -> None:
    """Jupyter Server finds the module of the extension, and importing it does not import jupyter_server."""
    import subprocess
    import sys

    code = (
        "import sys, nbtrain.lab.server as s; "
        "print(s._jupyter_server_extension_points(), 'jupyter_server' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[{'module': 'nbtrain.lab.server'}] False\n"


@pytest.mark.slow
def test_routes_are_loaded_without_the_schema_and_the_planner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The routes import neither the schema nor the planner, which only plans, forms and job pages need.

    A request for an active run, which has buttons, loads the schema, but neither numpy, protobuf nor a
    backend's scheduler.
    """
    import subprocess
    import sys

    from tests.lab.widgets.fake_run import FakeJob

    monkeypatch.setenv("NBTRAIN_OUTPUT", str(tmp_path))
    FakeJob(RunDir(tmp_path / "gpt-fake"), steps=40).one_step()
    code = (
        "import sys, jupyter_server.serverapp; before = {*sys.modules}; import nbtrain.lab.server.extension;"
        "names = ('pydantic', 'numpy', 'nbtrain.config.schema', 'nbtrain.planner', 'google',"
        "'nbtrain.jobs.submission.submit');"
        "print([name for name in names if name in {*sys.modules} - before]);"
        "view, answer = nbtrain.lab.server.runs._look('gpt-fake');"
        "print(b'Pause' in answer, [name for name in names if name in {*sys.modules} - before])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\nTrue ['pydantic', 'nbtrain.config.schema']\n"
