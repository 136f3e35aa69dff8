"""Charts of resource usage over time: lines, limits, ticks and text."""

from pathlib import Path

import pytest

from nbtrain.base.run_directory.records import Stamp
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.run_directory.usage_files import UsageWriter
from nbtrain.monitor.job.job_records import describe_job
from nbtrain.monitor.job.job_tables import job_tables
from nbtrain.monitor.job.usage_charts import Curve, UsageChart, drawn, time_ticks, usage_charts
from nbtrain.monitor.metrics.chart_data import byte_ticks
from nbtrain.monitor.usage.usage import Points
from tests.lab.widgets.fake_run import GIB, FakeJob, measure


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=40, world_size=2)
    job.one_step()
    job.tensorboard.close()
    return job


def test_a_chart_has_its_lines_and_bounds(job: FakeJob) -> None:
    """A limit that is close to the curve is drawn as a line, and a distant one is given in the title. Times
    are relative to the submission.
    """
    measure(job, gpu=True)
    page = describe_job(job.run)
    charts = {chart.title: drawn(chart, page.created_at) for chart in usage_charts(page)}
    memory = charts["Memory"]
    assert [(line["label"], line["color"]) for line in memory["lines"]] == [
        ("all ranks", "c0"),
        ("rank 0", "c1"),
        ("rank 1", "c2"),
    ]
    assert memory["bounds"] == [{"word": "limit", "value": 8 * GIB}]
    assert memory["curves"]["0"]["steps"] == [2.0 * number for number in range(1, 11)]
    assert memory["curves"]["0"]["words"][-1] == "5.0 GiB"
    assert memory["y_ticks"] == [
        [2 * number * GIB, f"{2 * number} GiB" if number else "0 B"] for number in range(5)
    ]
    assert memory["x_ticks"] == [[5.0 * number, f"{5 * number} s" if number else "0"] for number in range(5)]
    assert charts["GPU use"]["curves"]["0"]["words"][0] == "90 %"
    assert charts["CPU"]["curves"]["0"]["words"][-1] == "2.00 cores"
    assert charts["CPU"]["y_ticks"] == [[0.0, "0 cores"], [2.0, "2 cores"], [4.0, "4 cores"]]
    calm = drawn(
        UsageChart("", "gpu_fraction", [Curve("", Points([0, 9], [0.004] * 2, [0.004] * 2))], [], []), 0
    )
    assert [label for _, label in calm["y_ticks"]] == ["0.0 %", "0.2 %", "0.4 %"]
    page.limits["memory_bytes"] = 512 * GIB
    assert usage_charts(page)[1].heading == "Memory, limit 512.0 GiB"
    page.requests["memory_bytes"] = page.limits["memory_bytes"] = 8 * GIB
    [bound] = drawn(usage_charts(page)[1], page.created_at)["bounds"]
    assert bound == {"word": "request = limit", "value": 8 * GIB}


def test_many_ranks_are_a_mean_with_a_band_and_the_extremes_by_name(tmp_path: Path) -> None:
    """For 64 ranks, a chart shows their mean with a band and names the ranks with the highest and lowest
    mean; a single rank is one line.
    """
    job = FakeJob(RunDir(tmp_path / "gpt-wide"), steps=40, world_size=2)
    job.one_step()
    job.tensorboard.close()
    writer = UsageWriter(job.job.resources, 0)
    for number in range(1, 11):
        cores = {rank: 9.0 if rank == 37 else 0.5 if rank == 5 else 1.0 for rank in range(64)}
        sample = {f"rank {rank}": {"cpu_cores": value} for rank, value in cores.items()}
        about = {"ranks": [*range(64)], "requests": {}, "limits": {}}
        at = job.record.created_at + 2 * number
        writer.add(sample, about, Stamp("boot", 1000.0 + 2 * number), at)
    page = describe_job(job.run)
    (chart,) = [drawn(each, page.created_at) for each in usage_charts(page)]
    labels = ["mean of 64 ranks", "rank 37, highest mean", "rank 5, lowest mean"]
    assert [line["label"] for line in chart["lines"]] == labels
    curve = chart["curves"]["0"]
    assert curve["values"][0] == pytest.approx(71.5 / 64, rel=1e-5) and len(curve["steps"]) == 10
    assert (curve["minima"][0], curve["maxima"][0], curve["steps"][-1]) == (0.5, 9.0, 20.0)
    (alone,) = [drawn(each, page.created_at) for each in usage_charts(page, rank=37)]
    assert [line["label"] for line in alone["lines"]] == ["rank 37"]


@pytest.mark.parametrize(
    ("last", "labels"),
    [
        (1.0, ["0", "1 s"]),
        (95.0, ["0", "20 s", "40 s", "60 s", "80 s"]),
        (300.0, ["0", "1 min", "2 min", "3 min", "4 min", "5 min"]),
        (40_000.0, ["0", "4 h", "8 h"]),
        (86_400.0 * 30, ["0", "10 d", "20 d", "30 d"]),
    ],
)
def test_times_are_round(last: float, labels: list[str]) -> None:
    """Ticks on a time axis are whole seconds, minutes, hours or days."""
    assert [label for _, label in time_ticks(last, 5)] == labels


def test_bytes_are_round_in_their_binary_unit() -> None:
    assert byte_ticks(5 * GIB) == [GIB * number for number in range(6)]
    assert byte_ticks(1.06) == [0.0, 1.0]


def test_the_pages_of_a_job(job: FakeJob) -> None:
    """The panel lists all jobs, newest first, the logs of each rank, newest attempt first, and tables of
    basic facts, events and usage.
    """
    earlier = job.run.job("20200101-000000-abcd")
    earlier.make_folders()
    job.record.labels = {"team": "nlp"}
    job.record.write(job.job.job_json)
    job.job.log(1, 0).write_text("x\n")
    job.job.log(1, 1).write_text("x\n")
    job.job.supervisor_log.write_text("x\n")
    job.events.write("alert", "memory")
    shown = job_tables(job.run)
    newest = job.job.job_id
    assert shown["jobs"] == [[newest, f"job {newest}, newest"], [earlier.job_id, f"job {earlier.job_id}"]]
    assert shown["logs"] == [
        ["0", 0, "rank 0"],
        ["1", 1, "rank 1, attempt 1"],
        ["1", 0, "rank 1, attempt 0"],
        ["supervisor", None, "supervisor"],
    ]
    assert dict(shown["basics"])["labels"] == "team=nlp"
    assert shown["active"] and dict(shown["basics"])["size"] == "1 replica, 2 ranks, attempt 0, 0 restarts"
    assert [row["kind"] for row in shown["events"]["rows"]] == ["", "warning"]
    assert shown["events"]["rows"][1]["cells"] == ["Warning", "Alert", "rank 0", "memory"]
    assert shown["charts"] == [] and shown["conditions"]["heads"][0] == "since"
    measure(job)
    row = next(row for row in job_tables(job.run)["figures"]["rows"] if row["cells"][1] == "memory")
    assert row["cells"] == ["worker 0", "memory", "5.0 GiB", "2.8 GiB", "5.0 GiB", "6.0 GiB", "8.0 GiB"]


def test_rising_times_are_cut_as_any_others_are():
    """For increasing times, the faster algorithm downsamples exactly like the one that looks at every
    point.
    """
    from nbtrain.monitor.usage.usage import Points

    times = [float(at * at % 977 + 10 * at) for at in range(500)]
    times.sort()
    points = Points(times, [*map(float, range(500))], [*map(float, range(500))])
    for most in (1, 2, 7, 160, 499):
        assert points._rising(most) == points._parts(most)
    assert Points([5.0] * 9, [1.0] * 9, [1.0] * 9).thinned(4).means == [1.0]
