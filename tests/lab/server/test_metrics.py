"""Metric curves over REST."""

import pytest

from nbtrain.base.run_directory.rundir import RunDir
from tests.lab.server.conftest import Server

pytestmark = pytest.mark.slow


def test_curves_of_a_run(server: Server, run: RunDir) -> None:
    """A request returns the names of all curves and the points of the requested ones, or of a range of them;
    errors name the problem.
    """
    found = server.get("run/gpt-done/metrics?tags=loss,validation_loss")
    assert found["tags"][0] == {
        "tag": "loss",
        "title": "training loss",
        "unit": "nats",
        "meaning": "Training loss: mean over the global batch, fp32.",
        "num_points": 20,
        "form": "number",
        "y_name": "nats",
        "from_zero": False,
        "smooth": True,
        "dots": False,
    }
    assert found["charts"][0] == {"title": "Loss", "names": ["loss", "validation_loss"]}
    assert found["series"]["loss"]["step"] == [*range(1, 21)]
    assert found["series"]["validation_loss"]["step"] == [10, 20]
    assert server.get("run/gpt-done/metrics?tags=loss&from=9.5&to=10")["series"]["loss"]["step"] == [
        9,
        10,
        11,
    ]
    assert "learning_rate" in server.get("run/gpt-done/metrics")["series"]
    for query, status, message in (
        ("x=epoch", 400, "x = 'epoch' must be one of step, tokens, time."),
        ("points=5000", 400, "points = 5,000 must be at most 2,000."),
        ("from=inf", 400, "from = 'inf' must be a finite number."),
        (
            "tags=" + ",".join(f"a{number}" for number in range(65)),
            400,
            "tags has 65 names; a request can have at most 64. ",
        ),
        ("tags=los", 422, "'los' is not one of nbtrain's scalars."),
    ):
        for path in ("metrics", "metrics.csv") if query.startswith("tags") else ("metrics",):
            answer = server.ask(f"run/gpt-done/{path}?{query}")
            assert answer.status == status and answer.message.startswith(message)


def test_curves_as_a_file(server: Server, run: RunDir) -> None:
    """All points of a curve can be downloaded as a file with one point per line."""
    answer = server.ask("run/gpt-done/metrics.csv?tags=loss,validation_loss")
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert answer.headers["Content-Disposition"] == 'attachment; filename="gpt-done-metrics.csv"'
    lines = answer.content.decode().split("\r\n")
    assert lines[0] == "name,step,tokens,time,value" and len(lines) == 1 + 22 + 1
    shown = server.get("run/gpt-done/metrics")["tags"]
    for query in ("", "?tags="):
        every = server.ask(f"run/gpt-done/metrics.csv{query}").content.decode().split("\r\n")[1:-1]
        assert {line.split(",")[0] for line in every} == {one["tag"] for one in shown}
        assert len(every) == sum(one["num_points"] for one in shown)
