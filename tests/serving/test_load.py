"""Under load, the server answers correctly or rejects requests, and recovers afterwards. A longer test is
part of the soak.
"""

import asyncio

import pytest

from nbtrain.serving.launched import Server
from nbtrain.serving.options import ServeOptions
from tests.inference import saved
from tests.serving.load import GOOD, figures, load, table

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seconds", [3, pytest.param(300, marks=pytest.mark.soak)])
def test_sixty_four_clients_some_of_them_bad(workspace, seconds):
    """Sixty-four clients, some of them bad, cause no wrong text and no status 500, and no request is left
    over.
    """
    run = saved.save_run("loaded")
    options = ServeOptions(run=str(run.path), port=0, max_batch=16, max_queue=40, threads=1)
    with Server(options) as server:
        seen = asyncio.run(load(server, seconds))
        print(table(seen, "small"))
        assert seen.problems() == [] and server.is_running
        # At least one for each client, and four once all have finished.
        assert seen.good["ok"] >= GOOD + 4
        left = figures(server)
    assert left["nbtrain_running_texts"] == left["nbtrain_waiting_texts"] == 0
    assert seen.grown_bytes < 100 << 20
