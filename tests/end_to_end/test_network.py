"""docs/network.md is complete: it has every address that the code can contact or does contact."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from nbtrain.cli import notebook_runner
from nbtrain.cli.jupyterlab import LAB_STAYS_AT_HOME, lab_command, lab_settings
from tests.corpus.wiki.conftest import Mirror, dump_xml, mirror, multistream, page  # noqa: F401 (a fixture)

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "docs" / "network.md").read_text()
PACKAGE = REPOSITORY / "nbtrain"
TEXT_FILES = [
    path
    for path in sorted(PACKAGE.rglob("*"))
    if path.suffix in (".py", ".js", ".html", ".json", ".svg", ".css", ".yaml")
    and "_bundled" not in path.parts
]

# Code that opens connections, and the modules that may: each has a line in docs/network.md.
NETWORK_MODULES = re.compile(
    r"^\s*(?:import|from)\s+(urllib\.request|urllib\.error|http\.client|http\.server|urllib3|socket|ssl|requests|httpx|aiohttp|"
    r"websockets?|ftplib|smtplib|xmlrpc|huggingface_hub|fsspec|s3fs|boto3|kubernetes|tornado\.httpclient)\b",
    re.MULTILINE,
)
MAY_CONTACT = {
    "base/process/ports.py": {"socket"},  # a free port of this machine
    "corpus/workers/dask_worker.py": {"socket"},  # the host's own name
    "corpus/http.py": {"urllib.request", "urllib3", "ssl"},
    "corpus/partial_file.py": {"urllib3"},  # the errors of an answer
    "dataset/encode/progress.py": {"socket"},  # the host's own name
    "evaluation/judge.py": {"urllib3"},  # the judge that the user names
    "jobs/backends/hosts/probe.py": {"socket"},  # the host's own name
    "jobs/backends/kubernetes/cluster.py": {"urllib3"},  # errors of OpenAI's client
    "jobs/backends/kubernetes/connect.py": {"kubernetes"},
    "jobs/backends/kubernetes/trainer_status.py": {"urllib.request", "ssl", "http.client"},
    "exchange/import_model.py": {"huggingface_hub"},  # hf://owner/name, if the user names it
    "jobs/machine/machine.py": {"socket"},  # the host's own name
    "jobs/node/agent.py": {"socket"},  # the host's own name
    "jobs/machine/node_address.py": {"socket"},  # the host's own address
    "jobs/notify.py": {"urllib.request", "urllib.error", "http.client"},  # the address that notify: names
    "jobs/attempt/rank_wrapper.py": {"socket"},  # a pair inside the process
    "serving/launched.py": {"urllib.request", "urllib.error"},  # the server that the notebook started
    "serving/server.py": {"socket"},  # where it listens
    "train/health/heartbeat.py": {"socket"},  # the host's own name
    "train/figures/stragglers.py": {"socket"},  # the host's own name
}

# Python runs this at start-up in this process and in every child: each connection becomes a line.
RECORDER = """
import json, os, sys

def record(event, arguments, log=os.environ["NETWORK_LOG"]):
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
        address = arguments[1] if event in ("socket.connect", "socket.sendto") else arguments[:2]
        if isinstance(address, (str, bytes)) and event.startswith("socket.connect"):
            return  # a socket of the file system
        if isinstance(address, (str, bytes)):
            address = (address, None)
        with open(log, "a") as stream:
            stream.write(json.dumps([event, str(address[0]), address[1]]) + chr(10))

sys.addaudithook(record)
"""

RUN = """
name: net
model: {num_layers: 1, hidden_size: 16, num_attention_heads: 1, seq_length: 16}
tokenizer: {name: net, vocab_size: 300}
data:
  name: net
  split: "80,10,10"
  num_prepare_workers: 1
  sources: SOURCES
batch: {micro_batch_size: 2, global_batch_size: 4, train_tokens: 640}
lr_schedule: {lr: 1.0e-3}
precision: {dtype: fp32}
evaluation: {eval_interval_steps: 5, eval_iters: 1}
resources: {device: cpu}
"""


@pytest.fixture
def recorded(workspace, tmp_path):
    """Run a Python script in the workspace; return the connections of all its
    processes as (event, host, port).
    """
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(RECORDER)
    log = tmp_path / "network.log"

    def run(script: str, sources: list[dict]) -> list[tuple[str, str, object]]:
        (workspace / "net.yaml").write_text(RUN.replace("SOURCES", json.dumps(sources)))
        log.write_text("")
        environment = {
            **{key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")},
            "NETWORK_LOG": str(log),
            "PYTHONPATH": f"{tmp_path / 'hook'}{os.pathsep}{REPOSITORY}",
        }
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=workspace,
            env=environment,
            capture_output=True,
            text=True,
            timeout=800,
        )
        assert done.returncode == 0, done.stderr
        return [tuple(json.loads(line)) for line in log.read_text().splitlines()]

    return run


DATA_SCRIPT = """
import nbtrain as nb
config = nb.load("net.yaml")
print(nb.prepare(config))
print(nb.plan(config))
print(nb.data_card(config))
"""


ASK = """
import socket, subprocess, sys
if sys.argv[1:]:
    subprocess.run([sys.executable, *sys.argv[1:]])
listener = socket.create_server(("127.0.0.1", 0))
socket.create_connection(listener.getsockname()).close()
"""


@pytest.mark.slow
def test_recorder_sees_connections(recorded, workspace):
    """The recorder sees connections of a process and its child; otherwise the other tests could not fail."""
    (workspace / "ask.py").write_text(ASK)
    found = recorded("import sys; sys.argv[1:] = ['ask.py']; exec(open('ask.py').read())", [])
    connected = [host for event, host, _ in found if event == "socket.connect"]
    assert connected == ["127.0.0.1", "127.0.0.1"]


@pytest.mark.slow
def test_data_from_files_contacts_nobody(recorded, workspace):
    """Loading, preparing, planning and viewing local text opens no connection and resolves no host name."""
    lines = "".join(json.dumps({"text": f"A text of number {number}."}) + "\n" for number in range(300))
    (workspace / "a.jsonl").write_text(lines)
    (workspace / "b.xml").write_bytes(
        dump_xml([page(f"P{number}", f"Page {number}.") for number in range(9)])
    )
    sources = [
        {"kind": "jsonl", "path": "a.jsonl"},
        {"kind": "wiki", "path": "b.xml"},
        {"kind": "python-docs", "max_bytes": 20000},
    ]
    assert recorded(DATA_SCRIPT, sources) == []


@pytest.mark.slow
def test_a_dump_is_fetched_from_its_mirror_alone(recorded, mirror: Mirror):  # noqa: F811
    """A dump is downloaded from the configured mirror, and no other host is contacted."""
    mirror.add_dump(multistream([page(f"Page {number}", f"Text of {number}. " * 9) for number in range(200)]))
    found = recorded(DATA_SCRIPT, [{"kind": "wiki", "language": "test", "mirror": mirror.address}])
    assert {(host, port) for _, host, port in found} == {("127.0.0.1", mirror.server_address[1])}
    assert len(mirror.dump_requests()) == 1


@pytest.mark.slow
def test_a_job_stays_on_the_loopback(recorded):
    """During a short training, the supervisor and the rank connect only to this machine."""
    script = """
import nbtrain as nb
config = nb.load("net.yaml")
nb.prepare(config)
run = nb.submit(config)
run.wait()
assert run.state == "SUCCEEDED", run.state
"""
    found = recorded(script, [{"kind": "mock", "num_documents": 300}])
    assert {host for event, host, _ in found if event != "socket.gethostbyname"} <= {
        "127.0.0.1",
        "localhost",
        "::1",
    }


@pytest.mark.slow
def test_addresses_in_the_package_are_listed():
    """Every URL in the package's files is listed in docs/network.md."""
    found = {
        (str(path.relative_to(PACKAGE)), match[0])
        for path in TEXT_FILES
        for match in re.finditer(
            r"\b(?:https?|wss?|ftp|s3|gs)://[A-Za-z0-9.-]+\.[A-Za-z]{2,}[^\s\"'`)>,|]*", path.read_text()
        )
    }
    assert ("config/sections/sources.py", "https://dumps.wikimedia.org") in found
    hosts = {urlsplit(address).hostname for address in re.findall(r"https?://[^\s`|)]+", PAGE)}
    assert [
        (path, address) for path, address in sorted(found) if urlsplit(address).hostname not in hosts
    ] == []


def test_modules_that_open_connections_are_known():
    """Only the modules listed here open connections; a new one must be added here and to docs/network.md."""
    found = {
        str(path.relative_to(PACKAGE)): set(NETWORK_MODULES.findall(path.read_text()))
        for path in TEXT_FILES
        if path.suffix == ".py"
    }
    assert {path: modules for path, modules in found.items() if modules} == MAY_CONTACT


@pytest.mark.slow
def test_lab_asks_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """`nbtrain lab` sets JupyterLab's options so that no server is contacted; docs/network.md lists them."""
    from jupyterlab.handlers.announcements import NeverCheckForUpdate
    from jupyterlab.labapp import LabApp
    from jupyterlab_server.settings_utils import _get_overrides

    app = LabApp()
    app.parse_command_line(list(LAB_STAYS_AT_HOME))
    assert app.news_url is None
    assert app.check_for_updates_class is NeverCheckForUpdate
    assert app.extension_manager == "readonly"
    command = lab_command(["--LabApp.extension_manager=pypi"])
    assert command[-1] == "--LabApp.extension_manager=pypi"
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "/of/a/person")
    assert lab_settings()["JUPYTER_CONFIG_PATH"] == f"/of/a/person:{PACKAGE / 'lab' / 'jupyter'}"
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(PACKAGE / "lab" / "jupyter"))
    # Without this setting, JupyterLab asks whether the user wants news.
    settings, _ = _get_overrides(str(tmp_path))
    assert settings["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"
    for option in LAB_STAYS_AT_HOME:
        assert option in command
        assert f"`{option}`" in PAGE


@pytest.mark.slow
def test_pages_of_notebooks_name_no_server(workspace):
    """The HTML of an executed notebook contains its pictures, styles and scripts, and loads nothing."""
    import nbformat

    notebook = workspace / "a.ipynb"
    cells = [nbformat.v4.new_markdown_cell("$x$"), nbformat.v4.new_code_cell("1")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), notebook)
    html = notebook_runner.write_html(notebook).read_text()
    loaded = re.findall(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=[\"']([^\"']*)", html)
    assert [address for address in loaded if "//" in address and not address.startswith("data:")] == []
    assert "cdnjs" not in html
