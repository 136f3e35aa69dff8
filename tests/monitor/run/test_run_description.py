"""A snapshot as text, for the panel and for the static picture."""

from pathlib import Path

import pytest

from nbtrain.base.run_directory.records import AttemptRecord
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.load import to_yaml
from nbtrain.monitor.job.job_records import describe_job
from nbtrain.monitor.job.job_tables import job_tables
from nbtrain.monitor.run.run_view import RunView
from nbtrain.monitor.run.status_text import status_report
from nbtrain.monitor.status.life import elapsed_words
from nbtrain.monitor.status.run_status import UNKNOWN
from tests.lab.widgets.fake_run import FakeJob, run_config


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    """Create a job on two ranks that has trained 20 of 40 steps."""
    job = FakeJob(RunDir(tmp_path / "gpt-fake"), steps=40, world_size=2)
    for _ in range(20):
        job.one_step()
    return job


def test_an_active_run(job: FakeJob) -> None:
    job.events.write("alert", "MFU 12 % is under min_mfu = 50 %")
    words = RunView(job.run).describe().texts
    assert words["about"] == f"2.6M parameters  ·  2 x cpu, bf16, ZeRO 1  ·  job {job.job.job_id}"
    assert (words["note"], words["tone"]) == ("Alert: MFU 12 % is under min_mfu = 50 %", "alert")
    assert words["alerts"] == "Events (1 alert)"
    line = dict(words["line"])
    assert (line["step"], line["tokens"], line[""]) == ("20 / 40", "20.5k / 41k", "50.0 %")
    tiles = {label: (value, unit) for label, value, unit in words["tiles"]}
    assert tiles["learning rate"] == ("5.50e-4", "")
    assert tiles["gradient norm"] == ("0.800", "")
    assert tiles["throughput"][1] == "tokens/s"
    assert tiles["validation loss"][1].startswith("ppl ")
    assert any(label.startswith("CPU, of ") and label.endswith(" cores") for label in tiles)
    assert [(row["bad"], row["cells"][:4]) for row in words["ranks"]["rows"]] == [
        (False, ["0", "Running", "training", "20"]),
        (False, ["1", "Running", "training", "20"]),
    ]
    rows = dict(words["job"])
    assert rows["model"] == "4 layers, hidden 192, 6 heads, sequence 128, vocabulary 4,096"
    assert rows["backend"] == "local, 2 ranks, attempt 0, 0 restarts"


def test_how_it_saves_and_why(job: FakeJob) -> None:
    saving = "checkpoints are written in the background: the 1.2 GiB copy fits into 24.0 GiB of host memory"
    job.record.attempts = [AttemptRecord(0, 0.0, 2, 2, saving=saving)]
    job.record.write(job.job.job_json)
    assert dict(RunView(job.run).describe().texts["job"])["saves"] == saving
    assert f"saves: {saving}" in str(status_report(job.run))


def test_the_elapsed_time_is_the_same_on_every_page(job: FakeJob) -> None:
    """With the part in which the job was paused: in the head, on Overview and in `nbtrain job`."""
    job.record.created_at -= 120
    job.record.started_at -= 120
    job.record.write(job.job.job_json)
    job.supervisor_events.write("state", "SUSPENDED: paused", state="SUSPENDED")
    job.supervisor_events.write("state", "RUNNING: rank 0 trains", state="RUNNING")
    job.finish("CANCELLED", "stopped on request")
    head = dict(RunView(job.run).describe().texts["line"])["elapsed"]
    page = describe_job(job.run)
    assert head == dict(job_tables(job.run)["basics"])["elapsed"] and head.startswith("2 min")
    assert head == elapsed_words(page.elapsed_seconds, page.paused_seconds)


def test_a_failed_run(job: FakeJob) -> None:
    """A failed run shows its cause instead of an alert, the last memory of rank 0, and no time left."""
    job.events.write("alert", "MFU 12 % is under min_mfu = 50 %")
    job.finish("FAILED", "rank 0 failed: boom")
    words = RunView(job.run).describe().texts
    assert (words["note"], words["tone"]) == ("rank 0 failed: boom", "error")
    assert "time left" not in dict(words["line"])
    assert ["memory, rank 0", "488.3", "MiB"] in words["tiles"]
    assert all(row["bad"] and row["cells"][6] == "" for row in words["ranks"]["rows"])


def test_a_run_that_was_never_submitted(tmp_path: Path) -> None:
    """A run that was never submitted shows dashes for unknown values and has no empty rows."""
    run = RunDir(tmp_path / "gpt-new")
    run.path.mkdir()
    words = RunView(run).describe().texts
    assert (words["about"], words["note"], words["tone"]) == ("", "nothing was submitted yet", "")
    assert (words["line"], words["job"], words["ranks"]["rows"]) == ([], [], [])
    assert {value for _, value, _ in words["tiles"]} == {UNKNOWN}
    assert words["alerts"] == "Events"


def test_a_clone_that_was_not_submitted_has_all_its_ranks(tmp_path: Path) -> None:
    """For a clone that has not been submitted, the number of devices is computed from its data, tensor,
    pipeline and Ulysses parallelism, which the layout row names.
    """
    run = RunDir(tmp_path / "gpt-new")
    run.path.mkdir()
    config = run_config("gpt-new", 10, world_size=2)
    sizes = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "ds_sequence_parallel_size": 2}
    parallel = config.parallel.model_copy(update=sizes)
    run.config_yaml.write_text(to_yaml(config.model_copy(update={"parallel": parallel})))
    texts = RunView(run).describe().texts
    assert texts["about"] == "16 x cpu, bf16, ZeRO 1"
    layout = next(words for name, words in texts["job"] if name == "layout")
    assert layout == "data 2 x pipeline 2 x tensor 2 x Ulysses 2, ZeRO 1, bf16"
    sizes = {"ds_sequence_parallel_size": 1, "context_parallel_size": 4}
    parallel = config.parallel.model_copy(update=sizes)
    run.config_yaml.write_text(to_yaml(config.model_copy(update={"parallel": parallel})))
    texts = RunView(run).describe().texts
    layout = next(words for name, words in texts["job"] if name == "layout")
    assert layout == "data 2 x context 4, ZeRO 1, bf16"


@pytest.mark.parametrize(
    ("perplexity", "words"), [(12.345, "12.3"), (1234.0, "1.23k"), (9e14, "900T"), (2.688e43, "2.7e+43")]
)
def test_a_perplexity_is_short_however_large_it_is(job: FakeJob, perplexity: float, words: str) -> None:
    description = RunView(job.run).describe()
    assert description.progress is not None
    description.progress["validation_perplexity"] = perplexity
    tiles = {label: unit for label, _, unit in description.texts["tiles"]}
    assert tiles["validation loss"] == f"ppl {words}"


def test_gpus(job: FakeJob) -> None:
    """Each GPU is shown with its utilization, memory and power, as far as the driver reports them."""
    description = RunView(job.run).describe()
    gpu = {"index": 0, "utilization_fraction": 0.973, "memory_used_bytes": 30 * 2**30, "power_watts": 412.4}
    silent = {"index": 1, "utilization_fraction": None, "memory_used_bytes": None, "power_watts": None}
    assert description.resources is not None
    description.resources["gpus"] = [gpu, silent]
    tiles = description.texts["tiles"]
    assert ["GPU 0", "97 %", "30.0 GiB, 412 W"] in tiles
    assert ["GPU 1", UNKNOWN, UNKNOWN] in tiles
