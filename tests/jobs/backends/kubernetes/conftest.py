"""Fixtures: the data from which a job's manifest is built, and an API server on the loopback interface."""

import json
import shutil
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from nbtrain.config.sections.kubernetes_section import KubernetesConfig
from nbtrain.jobs.backends.kubernetes.cluster import Cluster
from nbtrain.jobs.backends.kubernetes.connect import connect
from nbtrain.jobs.backends.kubernetes.manifests.work import PodWork
from tests.jobs.backends.kubernetes.strict_schemas import CRDS, errors
from tests.jobs.backends.kubernetes.stub_server import StubServer

PLAIN = {
    "namespace": "research",
    "image": "registry.example.com/nbtrain:0.1.0",
    "mounts": [{"claim": "workspace", "mount_path": "/workspace"}],
}
JOB_ID = "20261121-031500-a1b2"
RUN_ID = "0123456789abcdef"
# The names that the releases of Kubeflow Trainer use.
URL, TOKEN, CA_CERT = (f"KUBEFLOW_TRAINER_SERVER_{name}" for name in ("URL", "TOKEN", "CA_CERT"))


@pytest.fixture
def work_with() -> Callable[..., PodWork]:
    """Return a function that builds the data of a manifest with two pods of four GPUs: work_with("MPIJob",
    queue="gpu", nodes=1).
    """

    def make(workload: str, nodes: int = 2, local_dir: str | None = None, **fields: Any) -> PodWork:
        section = KubernetesConfig(workload=workload, **{**PLAIN, **fields})
        return PodWork(
            run="gpt-125m-4xdp",
            run_id=RUN_ID,
            job_id=JOB_ID,
            nodes=nodes,
            ranks_per_node=4,
            gpus=4,
            cpus=32,
            memory_bytes=256 << 30,
            image=section.image or "",
            section=section,
            extra_labels=section.labels,
            grace_seconds=90,
            local_dir=local_dir,
        )

    return make


@pytest.fixture
def stub(tmp_path: Path) -> Iterator[StubServer]:
    """Start a new API server with the schemas of the kinds, if the operators' CRDs are next to the
    repository.
    """
    with StubServer(tmp_path, errors if CRDS.is_dir() else None) as server:
        yield server


@pytest.fixture
def cluster(stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Return the official client connected to the stub server, with three attempts and short delays between
    them.
    """
    monkeypatch.setenv("KUBECONFIG", str(stub.kubeconfig))
    return Cluster(connect(), back_off_seconds=(0.01, 0.01), read_seconds=300)


@pytest.fixture
def operator(tmp_path: Path) -> Iterator[tuple[dict[str, str], list[Any], list[int]]]:
    """Start an HTTPS server with a self-signed certificate and yield (environment, requests received,
    responses to send).
    """
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed: no certificate can be made")
    certificate, key = tmp_path / "ca.crt", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    (tmp_path / "token").write_text("secret\n")
    posted: list[Any] = []
    answers: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Discard the log message."""

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            posted.append((self.headers["Authorization"], body))
            status = answers.pop(0) if answers else 200
            self.send_response(status)
            if status == 302:
                self.send_header("Location", self.path)
            self.end_headers()

    server = HTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    address = f"https://localhost:{server.server_port}/status"
    yield {URL: address, TOKEN: str(tmp_path / "token"), CA_CERT: str(certificate)}, posted, answers
    server.shutdown()
    server.server_close()
    thread.join()
