"""A server of a small run that was trained on conversations, and a helper that sends it requests."""

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from nbtrain.serving.launched import Server
from nbtrain.serving.options import ServeOptions

CHAT = {"model.seq_length": 256, "data.sources": [{"kind": "chat", "path": "talk.jsonl"}]}


@pytest.fixture(scope="package")
def served(tmp_path_factory) -> Iterator[SimpleNamespace]:
    """Start a server that runs at most 4 texts at once and queues 8; yield the server, its run and its
    workspace.
    """
    from tests.inference import saved  # loads torch; the fast tests of this folder start no server

    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("served workspace")
        patch.setenv("NBTRAIN_WORKSPACE", str(folder))
        patch.setenv("NBTRAIN_QUEUE", str(folder / "queue"))
        run = saved.save_run("talks", CHAT)
        options = ServeOptions(
            run=str(run.path),
            port=0,
            max_batch=4,
            max_queue=8,
            max_new_tokens=200,
            max_body_bytes=20_000,
            request_seconds=60.0,
            write_seconds=3.0,
            threads=1,
        )
        with Server(options) as server:
            yield SimpleNamespace(server=server, run=run, folder=folder)
