"""The static picture of a run is complete, safe, and needs no scripts."""

import base64
import html
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from nbtrain.base.files import write_json, write_text
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.load import load, load_resolved, to_yaml
from nbtrain.lab.widgets.panel import report_html
from nbtrain.lab.widgets.static import run_html, run_text
from nbtrain.lab.widgets.static_charts import chart_svg
from nbtrain.monitor.job.job_tables import job_tables
from nbtrain.monitor.metrics.chart_data import charts
from nbtrain.monitor.run.run_view import RunView
from tests.lab.widgets.fake_run import FakeJob, measure


class Tags(HTMLParser):
    """A parser that records the names of all elements and checks that each is closed."""

    def __init__(self, text: str):
        super().__init__()
        self.names: set[str] = set()
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.names.add(tag)
        if tag not in ("img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> FakeJob:
    job = FakeJob(RunDir(tmp_path_factory.mktemp("output") / "gpt-fake"), steps=40, world_size=2)
    for _ in range(20):
        job.one_step()
    job.events.write("alert", "MFU 12 % is under min_mfu = 50 %")
    with job.job.log(0, 0).open("a") as stream:
        stream.write("<script>alert('log')</script>\n")
    return job


def test_everything_that_the_panel_shows_is_in_it(job: FakeJob) -> None:
    """The picture shows the same state, progress, numbers, curves, ranks, alert and log as the panel, without
    anything that needs a network.
    """
    page = run_html(RunView(job.run).describe())
    for words in (
        "gpt-fake",
        "RUNNING",
        f"job {job.job.job_id}",
        "20 / 40",
        "50.0 %",
        "validation loss",
        "ppl ",
        "tokens/s",
        "MFU 12 % is under min_mfu = 50 %",
        "&lt;script&gt;alert(&#x27;log&#x27;)&lt;/script&gt;",
    ):
        assert words in page
    tags = Tags(page)
    assert tags.open == []
    assert tags.names == {
        "div",
        "span",
        "strong",
        "table",
        "thead",
        "tbody",
        "tr",
        "td",
        "th",
        "img",
        "br",
        "pre",
    }
    assert not re.search(r"(src|href)=.(?!data:)", page)


def test_curves_are_the_points(job: FakeJob) -> None:
    """The curves are SVG lines with exactly as many vertices as the run has points."""
    page = run_html(RunView(job.run).describe())
    pictures = [base64.b64decode(data).decode() for data in re.findall(r"svg\+xml;base64,([^\"]+)", page)]
    corners = [
        [len(line.split()) for line in re.findall(r'points="([^"]*)"', picture)] for picture in pictures
    ]
    # The loss is drawn raw and smoothed.
    assert corners == [[20, 20, 2], [20], [20]]
    assert pictures[0].count("<circle") == 2


def test_what_a_job_has_kept_is_in_it(job: FakeJob) -> None:
    """The picture shows conditions and resource usage over time, with lines for requests and limits, without
    a script or the network.
    """
    measure(job)
    tables = job_tables(job.run)
    assert tables["warnings"] == []
    tables["warnings"] = ["resources/0.jsonl: <b>"]
    page = run_html(RunView(job.run).describe(), tables)
    assert "Conditions, UTC" in page and "Rank0Trains" in page
    pictures = [base64.b64decode(data).decode() for data in re.findall(r"svg\+xml;base64,([^\"]+)", page)]
    assert len(pictures) == 8
    cpu, memory = pictures[3:5]
    assert len(re.findall("<polyline", cpu)) == 3 and "2 cores" in cpu and "18 s" not in cpu
    assert memory.count('stroke-dasharray="5 4"') == 1, "the limit"
    for words in ("Basic info", "Events, UTC", "Replicas", "Ranks", "worker 0", "request per replica"):
        assert words in page
    assert "<div>resources/0.jsonl: &lt;b&gt;</div>" in page
    assert Tags(page).open == [] and not re.search(r"(src|href)=.(?!data:)", page)


def test_every_tab_of_the_panel_is_in_it(tmp_path: Path) -> None:
    """The picture contains the tabs Metrics, Plan and Config, with the differences from the parent run,
    without a script or the network.
    """
    parent = RunDir(tmp_path / "gpt-first")
    FakeJob(parent, steps=4).tensorboard.close()
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=40)
    for _ in range(20):
        job.one_step()
    job.finish("SUCCEEDED", "all steps are trained and saved: 20 steps")
    job.tensorboard.close()
    record = job.run.record() or {}
    write_json(job.run.run_json, {**record, "parent": (parent.record() or {})["run_id"]})
    changed = load(load_resolved(job.run.config_yaml), {"lr_schedule.lr": 0.007}, check=False)
    write_text(job.run.config_yaml, to_yaml(changed))
    page = report_html(RunView(job.run))
    pictures = re.findall(r"<strong>([^<]+)</strong>[^<]*<span[^>]*>[^<]*</span>[^<]*.*?<img alt", page)
    assert {"Loss", "Gradient norm", "Throughput"} <= set(pictures)
    for words in ("Metrics", "Plan", "Config", "All numbers of the plan", "Differences from its parent run"):
        assert words in page
    assert "gpt-first" in page and "lr_schedule.lr" in page and "schema_version: 1" in page
    assert Tags(page).open == [] and not re.search(r"(src|href)=.(?!data:)", page)
    assert len(page) < 250_000


def test_ended_run_says_its_cause(tmp_path: Path) -> None:
    """The cause of a run's end is shown below its name, and text and HTML show the same step."""
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=4)
    for _ in range(2):
        job.one_step()
    job.finish("FAILED", "rank 0 failed: loss is NaN at step 2 <b>")
    description = RunView(job.run).describe()
    assert "rank 0 failed: loss is NaN at step 2 &lt;b&gt;" in run_html(description)
    assert run_text(description.status).startswith("gpt-fake: FAILED, step 2 / 4, loss ")
    assert run_text(description.status).endswith("\nrank 0 failed: loss is NaN at step 2 <b>")


def test_run_without_a_job_is_shown_too(tmp_path: Path) -> None:
    """A run without a job is shown without made-up values."""
    run = RunDir(tmp_path / "gpt-new")
    run.path.mkdir()
    description = RunView(run).describe()
    assert "nothing was submitted yet" in run_html(description)
    assert run_text(description.status) == "gpt-new: NEW\nnothing was submitted yet"


def test_every_word_and_number_is_the_descriptions(job: FakeJob) -> None:
    """The picture contains exactly the same texts as the live panel."""
    description = RunView(job.run).describe()
    page, shown = run_html(description), description.texts
    words = [shown["about"], shown["note"], *(word for tile in shown["tiles"] for word in tile)]
    words += [word for pair in [*shown["line"], *shown["job"]] for word in pair]
    words += [cell for row in shown["ranks"]["rows"] for cell in row["cells"]]
    assert [word for word in words if html.escape(word) not in page] == []


def test_chart_of_one_point_and_of_gaps() -> None:
    """A chart can draw a single point, and leaves gaps where values are missing."""

    def drawn(steps: list[int], values: list[float | None]) -> str:
        empty = {"steps": [], "values": []}
        curves = {name: empty for name in ("loss", "learning_rate", "tokens_per_second")}
        curves["validation_loss"] = {"steps": steps, "values": values}
        return chart_svg(charts(curves)[0], curves, 300, 100)

    one = drawn([5], [2.0])
    assert one.count("<circle") == 1
    assert "nan" not in one
    assert drawn([1, 2, 3], [1.0, None, 2.0]).count("<circle") == 2


def test_a_thinned_curve_is_a_band_and_nan_is_a_marked_gap() -> None:
    """The range of each interval is shaded, and the line is interrupted where the loss was NaN, also between
    two points.
    """
    empty = {"steps": [], "values": []}
    curves = dict.fromkeys(("validation_loss", "learning_rate", "tokens_per_second"), empty)
    curves["loss"] = {
        "steps": [1, 10, 20, 30],
        "values": [4.0, 3.0, 3.0, 2.0],
        "low": [4.0, 2.0, 2.5, 2.0],
        "high": [4.0, 9.0, 3.5, 2.0],
        "bad": [[12, 15]],
    }
    chart = charts(curves)[0]
    assert chart["y"][1] > 9.0
    picture = chart_svg(chart, curves, 300, 100)
    lines = [len(line.split()) for line in re.findall(r'<polyline points="([^"]*)"', picture)]
    areas = [len(area.split()) for area in re.findall(r'<polygon points="([^"]*)"', picture)]
    assert (lines, areas, picture.count("<rect")) == ([2, 2, 2, 2], [4, 4], 1)
