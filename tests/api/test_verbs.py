"""The public functions; arguments of the wrong type are refused with a one-sentence message."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import numpy as np
import pytest

import nbtrain as nb
from nbtrain.api import run as api_run
from nbtrain.api import verbs as api
from nbtrain.api.run import Run, open_run
from nbtrain.base import files
from nbtrain.base.errors import ConfigError, JobError, SubmitError
from nbtrain.base.run_directory.events import EventWriter
from nbtrain.base.run_directory.metrics import scalar
from nbtrain.base.run_directory.metrics_files import MetricsFile
from nbtrain.base.run_directory.records import (
    AttemptRecord,
    ExitRecord,
    Heartbeat,
    JobRecord,
    ProcessIdentity,
    ResumeCertificate,
    TrainingProgress,
)
from nbtrain.base.run_directory.rundir import NOT_USED, RunDir
from nbtrain.cli import __main__ as cli
from nbtrain.cli import demo, notebook_runner
from nbtrain.cli.demo import DemoSummary
from nbtrain.config.load import to_yaml
from nbtrain.config.schema import RunConfig
from nbtrain.serving import launched
from nbtrain.serving.resident import RESIDENT
from tests.monitor.metrics.test_event_files import EventFile

pytestmark = pytest.mark.usefixtures("workspace")


@pytest.fixture
def run(workspace):
    """Create a run that was never submitted."""
    directory = RunDir.named("mine")
    directory.path.mkdir(parents=True)
    directory.run_json.write_text("{}")
    return Run(directory)


@pytest.fixture
def asked(monkeypatch):
    """Record the requests that the generating process would receive."""
    requests = []

    def answer(loading, *wanted):
        requests.extend({**request, "step": loading.step} for request in wanted)
        for number in range(len(wanted)):
            yield number, {"index": 0, "text": "!", "tokens": [7], "finish_reason": "length"}
            yield number, {"end": True}

    monkeypatch.setattr(RESIDENT, "stream", answer)
    return requests


@pytest.mark.parametrize("value", [5, None, {}, [], b"gpt-tiny"])
@pytest.mark.parametrize("name", ["load", "plan", "prepare", "submit"])
def test_what_is_no_run_yaml(name, value):
    with pytest.raises(ConfigError) as caught:
        getattr(nb, name)(value)
    assert str(caught.value) == f"run = {value!r} must be the path of a run YAML, or a name such as gpt-tiny."


@pytest.mark.parametrize(
    "value, kind", [(5, "int"), (None, "NoneType"), ({}, "dict"), ("", "str"), (" ", "str")]
)
def test_what_is_no_run(value, kind, asked):
    for call in (nb.open_run, lambda value: nb.generate(value, "def ")):
        with pytest.raises(ConfigError) as caught:
            call(value)
        assert str(caught.value) == (
            f"run = {value!r} ({kind}) must be the name of a run, the path of its folder or YAML, "
            "a RunConfig or a Run."
        )
    assert asked == []


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"prompt": 5}, "prompt = 5 (int) must be text, or a list of texts."),
        ({"prompt": None}, "prompt = None (NoneType) must be text, or a list of texts."),
        ({"max_new_tokens": "5"}, "max_new_tokens = '5' (str) must be a whole number."),
        ({"max_new_tokens": True}, "max_new_tokens = True (bool) must be a whole number."),
        ({"max_new_tokens": -1}, "max_new_tokens = -1 must be from 0 to 1,000,000."),
        ({"prompt": ["a", 5]}, "prompt = 5 (int) must be text."),
        ({"prompt": []}, "prompt = [] must be text, or a list of at least one text."),
        ({"stop": [""]}, "stop = ('',) must be at most 16 texts of 1 to 1000 characters."),
        ({"dtype": "int8"}, "dtype = 'int8' must be one of auto, fp32, bf16, fp16."),
        (
            {"tensor_parallel_size": 0},
            "tensor_parallel_size = 0 must be at least 1, or None for a number that suits the machine.",
        ),
        ({"stream": True, "n": 2}, "stream = True needs one prompt, n = 1 and num_beams = 1."),
        ({"temperature": None}, "temperature = None (NoneType) must be a number."),
        ({"top_k": 1.5}, "top_k = 1.5 (float) must be a whole number."),
        ({"top_p": "x"}, "top_p = 'x' (str) must be a number."),
        ({"seed": 1.5}, "seed = 1.5 (float) must be a whole number, or None for another text each time."),
        ({"step": "x"}, "step = 'x' (str) must be a whole number, or None for the newest checkpoint."),
    ],
)
def test_generate(run, asked, arguments, message):
    """A wrong argument is refused before a process starts, which would take seconds."""
    with pytest.raises(ConfigError) as caught:
        nb.generate(run, **{"prompt": "def ", **arguments})
    assert str(caught.value) == message
    assert asked == []


def test_generate_takes_the_numbers_of_numpy(run, asked):
    """NumPy numbers reach the generating process as JSON numbers."""
    text = nb.generate(
        run, "a", max_new_tokens=np.int64(3), temperature=np.float32(0.5), top_k=np.int32(4), top_p=1
    )
    assert text == "a!"
    request = asked[0]
    assert {
        key: (type(request[key]), request[key]) for key in ("max_new_tokens", "temperature", "top_k", "top_p")
    } == {
        "max_new_tokens": (int, 3),
        "temperature": (float, 0.5),
        "top_k": (int, 4),
        "top_p": (int, 1),
    }
    assert (request["seed"], request["step"]) == (1234, None)


def test_generate_gives_strings_that_a_cell_shows(run, asked):
    """generate() returns one string for a prompt and a list for several, and escapes markup in a cell."""
    text = nb.generate(run, "<b>a")
    assert (text, text.prompt, text.new_text, text.tokens) == ("<b>a!", "<b>a", "!", [7])
    assert "&lt;b&gt;a</span>!" in text._repr_html_() and "1 token, maximum length" in text._repr_html_()
    both = nb.generate(run, ["a", "b"])
    assert both == ["a!", "b!"] and both._repr_html_().count("1 token") == 2
    assert list(nb.generate(run, "a", stream=True)) == ["!"]
    assert len(asked) == 4 and all(request["slides"] for request in asked)


def test_serve_refuses_an_option_before_a_process_is_started(run):
    for options, message in (
        ({"no_such": 1}, "no_such: no such option. The options are: chat_template, dtype, grace_seconds, "),
        ({"port": -1}, "port = -1 must be from 0 (choose a free port) to 65535."),
        ({"max_batch": 0}, "max_batch = 0 must be at least 1."),
        ({"max_queue": "x"}, "an option has a value of the wrong type."),
        (
            {"host": {1}},
            "an option has a value of the wrong type (Object of type set is not JSON serializable).",
        ),
    ):
        with pytest.raises(ConfigError) as caught:
            nb.serve(run, **options)
        assert message in str(caught.value)


def test_serve_takes_a_path_of_a_chat_template(run, monkeypatch):
    monkeypatch.setattr(launched, "Server", lambda options: options.chat_template)
    assert nb.serve(run, chat_template=Path("x.jinja")) == "x.jinja"


@pytest.mark.parametrize(
    "overrides, found",
    [
        (5, "overrides 5 (int)"),
        (True, "overrides True (bool)"),
        (b"a=b", "overrides b'a=b' (bytes)"),
        ([5], "override 5 (int)"),
        (["name=x", None], "override None (NoneType)"),
    ],
)
def test_overrides(overrides, found):
    with pytest.raises(ConfigError) as caught:
        nb.load("gpt-tiny", overrides)
    assert str(caught.value) == (
        f'{found}: overrides must be {{"batch.micro_batch_size": 4}}, ["batch.micro_batch_size=4"], or '
        '"batch.micro_batch_size=4", with spaces between several pairs.'
    )


def test_data_card():
    with pytest.raises(ConfigError) as caught:
        nb.data_card(5)
    assert str(caught.value) == (
        "data = 5 (int) must be a Run, a RunConfig, the name of a run or a dataset, or the prefix of a "
        ".bin/.idx."
    )
    with pytest.raises(
        ConfigError, match=r"^tokenizer = 5 \(int\) must be the name or path of a tokenizer, or None.$"
    ):
        nb.data_card("x", 5)


def test_a_run_asked_in_the_wrong_way(run):
    with pytest.raises(ConfigError, match=r"^lines = 'x' \(str\) must be a whole number.$"):
        run.log("x")
    with pytest.raises(ConfigError, match=r"^rank = 'x' \(str\) must be a whole number.$"):
        run.log(rank="x")
    with pytest.raises(ConfigError, match=r"^timeout_seconds = '5' \(str\) must be a number.$"):
        run.wait("5")
    with pytest.raises(ConfigError, match=r"^lines = -5 must be at least 0\.$"):
        run.log(-5)
    for limit in (2.5, "5", True, -1):
        with pytest.raises(ConfigError, match=r"^limit = .* must be a whole number of at least 0"):
            nb.runs(limit=limit)
    assert [entry.name for entry in nb.runs(state=None, label=None)] == ["mine"]


def test_the_log_of_an_earlier_attempt(cancelled, capsys):
    job = cancelled.job
    for attempt in (0, 1):
        job.log(0, attempt).write_text(f"attempt {attempt} ends\n")
    assert cancelled.log() == ["attempt 1 ends"]
    assert cancelled.log(attempt=0) == ["attempt 0 ends"]
    assert cli.main(["logs", "mine", "--attempt", "0"]) == 0
    assert capsys.readouterr().out == "attempt 0 ends\n"
    with pytest.raises(ConfigError, match=r"rank 0 .* no log of attempt 2; it has logs of attempts 0, 1\."):
        cancelled.log(attempt=2)
    with pytest.raises(ConfigError, match="supervisor has a single log"):
        cancelled.log(rank="supervisor", attempt=0)


def test_files_next_to_the_notebook_are_found(workspace, monkeypatch):
    """A sweep's file is read from the current folder first, as run YAMLs are, and else from the workspace."""
    here = workspace / "notebooks"
    here.mkdir()
    monkeypatch.chdir(here)
    (here / "lr.yaml").write_text("name: [\n")
    with pytest.raises(ConfigError, match=r"^notebooks/lr\.yaml"):
        nb.sweep("lr.yaml", dry_run=True)


def test_a_run_without_a_job_is_printed(run):
    """A cell that ends with such a run shows its name; a traceback would say nothing about it."""
    assert repr(run) == "Run('mine', no job)"


@pytest.mark.slow
def test_curves_and_scalars_of_a_run_and_of_any_folder_of_event_files(run, tmp_path):
    """curves() and scalars() accept a run's name, its folder, a Run, or a path to a folder of event files."""
    EventFile(tmp_path / "other", 100).scalar(7, 2.5, 107, scalar("loss").tag)
    file = MetricsFile(run.directory.tensorboard, 0)
    file.write(7, 107.0, 448, 7, {scalar("loss").tag: 2.5})
    file.flush()
    for source in ("mine", str(run.directory.path), run, str(tmp_path / "other"), tmp_path / "other"):
        assert re.search(r"^loss +2\.5 nats +7  ", str(nb.scalars(source)), re.MULTILINE)
        assert nb.curves(source).axes[0].get_lines()
    assert str(run.scalars()) == str(nb.scalars(run))
    for call in (nb.curves, nb.scalars):
        with pytest.raises(JobError, match="is not a run: it has no run"):
            call("no-such-run")


def test_a_source_of_text_in_place_of_the_runs_own():
    """A text source given to load() replaces the run's own sources, whatever form the overrides have."""
    for overrides in (None, "batch.max_steps=3", ["batch.max_steps=3"], {"batch.max_steps": 3}):
        config = nb.load("gpt-tiny", overrides, "{kind: jsonl, path: a b.jsonl}", "mine")
        assert [source.path for source in config.data.sources] == ["a b.jsonl"]
        assert (config.data.name, config.tokenizer.name) == ("mine", "mine")
        assert config.batch.max_steps == (3 if overrides else None)


@pytest.mark.slow
def test_what_a_loaded_configuration_and_its_plan_show():
    """The plan's picture and DeepSpeed's configuration are available without importing further modules."""
    config = nb.load("gpt-tiny")
    assert nb.deepspeed_config(config)["train_batch_size"] == config.batch.global_batch_size
    assert nb.plan_picture(nb.plan(config))._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("call", [nb.verify, nb.data_card])
def test_what_is_no_dataset(call):
    with pytest.raises(
        ConfigError, match=r"^data = 5 \(int\) must be a Run, a RunConfig, the name of a run or a dataset"
    ):
        call(5)


def test_a_long_value_is_shown_short():
    """A long value is shortened in a message, so that a table passed by mistake does not fill the screen."""
    with pytest.raises(ConfigError) as caught:
        open_run(list(range(100_000)))
    assert str(caught.value).startswith("run = [0, 1, 2, 3, 4, 5, ...] (list) must be")


def test_a_run_of_which_no_rank_began_shows_the_supervisors_log(run, capsys):
    """If no rank started, `nbtrain logs` and failure() begin with the last traceback found in any log."""
    job = run.directory.job("20260101-000000-0000")
    job.make_folders()
    cause = "the launcher ended before any rank wrote an exit record: exit code 1"
    JobRecord(job.job_id, "id", "mine", "FAILED", 0.0, world_size=1, cause=cause).write(job.job_json)
    assert run.failed_rank == 0
    text = "Traceback (most recent call last):\n  File a.py, line 1\nValueError: BOGUS\n"
    job.supervisor_log.write_text(f"attempt 0 starts\n{text}attempt 0 has ended\n")
    assert cli.main(["logs", "mine", "-n", "1"]) == 0
    assert capsys.readouterr().out == (
        f"mine is FAILED. The last traceback of the supervisor's log:\n\n{text}\n"
        "No rank has written a log. The end of the supervisor's log:\n\nattempt 0 has ended\n"
    )
    assert "(the supervisor's log):\n  attempt 0 starts\n  Traceback" in run.failure()
    job.supervisor_log.write_text("attempt 0 starts\n")
    job.node_log(1).write_text(text)
    assert run.failed_rank == "node1" and run.traceback().endswith("ValueError: BOGUS")


def test_the_log_of_a_full_disk_is_no_part_of_the_failure(run):
    """failure() omits the end of the log after a full disk, because only TensorBoard's error is there."""
    job = run.directory.job("20260101-000000-0000")
    job.make_folders()
    job.log(0, 0).write_text("Exception in thread Thread-7:\n  File event_file_writer.py, line 1\n")
    record = JobRecord(job.job_id, "id", "mine", "FAILED", 0.0, world_size=1, cause="rank 0 failed: boom")
    record.write(job.job_json)
    assert "End of its log:\n  Exception in thread" in run.failure()
    record.cause = "rank 0 failed at step 4: the disk is full: OSError; not tried again"
    record.attempts = [AttemptRecord(0, 1.0, 1, 1, ended_at=2.0, cause="the disk is full", reason="disk")]
    record.write(job.job_json)
    assert run.failure() == f"mine is FAILED: {record.cause}\nIts logs: output/mine/jobs/{job.job_id}/logs"


def test_wait_prints_what_a_resume_kept_and_passed_over(run, capsys):
    job = run.directory.job("20260101-000000-0000")
    job.make_folders()
    JobRecord(job.job_id, "id", "mine", "SUCCEEDED", 0.0, world_size=1).write(job.job_json)
    EventWriter(job, "rank0").write(
        "warning",
        f"checkpoint global_step8 {NOT_USED}: a; b is missing; trying the previous checkpoint",
        step=8,
    )
    ResumeCertificate("bit-exact", [], 4, None, 0.0).write(job.resume_json)
    run.wait()
    assert capsys.readouterr().out.splitlines() == [
        "resume from step 4 is bit-exact",
        "  - checkpoint global_step8 is not used: a; b is missing",
        "mine SUCCEEDED",
    ]


def test_wait_says_a_line_once(run, monkeypatch):
    """wait() prints each status line once, however often it polls; `say` replaces print."""
    job = run.directory.job("20260101-000000-0000")
    job.make_folders()
    JobRecord(job.job_id, "id", "mine", "RUNNING", 0.0, world_size=1).write(job.job_json)
    looks = iter(["STARTING"] * 5 + ["RUNNING"] * 5)
    monkeypatch.setattr(api_run, "WAIT_LINE_SECONDS", 0.0)
    monkeypatch.setattr(api_run, "WAIT_POLL_SECONDS", 0.0)
    monkeypatch.setattr("nbtrain.lab.engine_watch.look_after", lambda job: None)

    def progress(run):
        state = next(looks, "SUCCEEDED")
        if state == "SUCCEEDED":
            JobRecord(job.job_id, "id", "mine", state, 0.0, world_size=1).write(job.job_json)
        return f"mine {state}"

    monkeypatch.setattr("nbtrain.monitor.run.status_text.progress_line", progress)
    monkeypatch.setattr(api_run, "_status", lambda job: (JobRecord.read(job.job_json).state, None))
    lines = []
    run.wait(say=lines.append)
    assert lines == ["mine STARTING", "mine RUNNING", "mine SUCCEEDED"]


@pytest.fixture
def cancelled(run):
    """Create a run that was cancelled after 11 of 300 steps."""
    job = run.directory.job("20260101-000000-0000")
    job.make_folders()
    JobRecord(job.job_id, "id", "mine", "CANCELLED", 0.0, world_size=1).write(job.job_json)
    process = ProcessIdentity(1, 1, "")
    Heartbeat(0, 0, process, 0.0, 11, "end", 0.0, TrainingProgress(300, 1000)).write(job.heartbeat(0))
    return run


UNFINISHED = (
    "mine is CANCELLED after 11 of 300 steps: plots and generated texts are from an unfinished run. "
    "`nbtrain resume mine` continues the run."
)


@pytest.mark.parametrize("notebook", ["04_monitor", "05_generate"])
def test_a_notebook_says_first_that_its_run_was_cancelled(cancelled, notebook, capsys):
    """A notebook reports before its curves that its run was cancelled, and reports nothing for a finished
    run.
    """
    cells = json.loads(notebook_runner.find_notebook(notebook).read_text())["cells"]
    source = next(source for cell in cells if "unfinished" in (source := "".join(cell["source"])))
    given = {"run": "mine", "overrides": "", "tensorboard_folder": ""}
    exec(source, dict(given))
    assert capsys.readouterr().out == UNFINISHED + "\n"
    record = JobRecord.read(cancelled.job.job_json)
    record.state = "SUCCEEDED"
    record.write(cancelled.job.job_json)
    exec(source, dict(given))
    assert "steps" not in capsys.readouterr().out


def test_a_demo_whose_run_was_cancelled_has_failed(cancelled, monkeypatch, capsys, tmp_path):
    """A demo whose run was cancelled fails and says so first; the next call repeats notebooks 03 to 05."""
    config = SimpleNamespace(name="mine", model_dump_json=lambda: "{}")
    executed = []
    monkeypatch.setattr(api, "load", lambda *arguments: config)
    monkeypatch.setattr(demo, "open_run", lambda run: cancelled)
    monkeypatch.setattr(
        demo,
        "run_notebook",
        lambda name, parameters, output: (
            executed.append(name),
            output.parent.mkdir(exist_ok=True),
            output.touch(),
        ),
    )

    def summed(run, executed, seconds):
        return DemoSummary(run, None, "def", [], 3.0)

    monkeypatch.setattr(demo, "demo_summary", summed)
    assert cli.main(["demo", "mine"]) == 7
    assert capsys.readouterr().out.splitlines()[0] == f"{UNFINISHED} (3 s for this call)"
    assert cli.main(["demo", "mine"]) == 7
    assert [Path(name).stem[:2] for name in executed] == ["01", "02", "03", "04", "05", "03", "04", "05"]


@pytest.mark.slow
@pytest.mark.parametrize(("state", "last"), [("CANCELLED", "done"), ("FAILED", "")])
def test_a_notebook_ends_as_the_wait_for_its_run(cancelled, tmp_path, capfd, state, last):
    """A notebook fails at the waiting cell if its run failed, and after the last cell if it was cancelled,
    under plain papermill too. tests/end_to_end/test_demo.py has notebooks whose run succeeds.
    """
    record = JobRecord.read(cancelled.job.job_json)
    record.state = state
    record.write(cancelled.job.job_json)
    cells = [
        nbformat.v4.new_code_cell('run = ""', metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell('import nbtrain as nb\n\njob = nb.open_run(run)\njob.wait_if("auto")'),
        nbformat.v4.new_code_cell('print("done")'),
        nbformat.v4.new_code_cell("job.must_finish()"),
    ]
    source, output = tmp_path / "waits.ipynb", tmp_path / "out.ipynb"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), source)
    assert cli.main(["notebook", str(source), "-p", "run", "mine", "-o", str(output)]) == 7
    assert cli.main(["wait", "mine"]) == 7
    said = capfd.readouterr().err
    assert (UNFINISHED in said) == (state == "CANCELLED")
    assert ("JobFailed: waits.ipynb, cell 3: JobFailed: mine is FAILED: " in said) == (state == "FAILED")
    outputs = [cell.get("outputs") for cell in nbformat.read(output, as_version=4).cells]
    assert str(outputs).count("done") == bool(last)
    if state == "FAILED":
        return
    plain = [sys.executable, "-m", "papermill", source, output, "-p", "run", "mine", "--no-progress-bar"]
    done = subprocess.run(plain, capture_output=True, text=True, timeout=600)
    assert done.returncode != 0 and UNFINISHED in done.stderr


def test_a_submit_that_is_refused_prepares_nothing(workspace):
    """A run that cannot start on this machine is refused before its data is prepared."""
    (workspace / "texts.jsonl").write_text(json.dumps({"text": "some words of a text"}) + "\n")
    config = RunConfig.model_validate(
        {
            "name": "hopeless",
            "model": {"num_layers": 1, "hidden_size": 64, "num_attention_heads": 1, "seq_length": 8},
            "tokenizer": {"name": "small", "vocab_size": 300},
            "data": {
                "name": "small",
                "sources": [{"kind": "jsonl", "path": "texts.jsonl"}],
                "split": "90,5,5",
            },
            "batch": {"micro_batch_size": 1, "global_batch_size": 5000, "train_tokens": 40_000},
            "lr_schedule": {"lr": 1e-3},
            "resources": {"device": "gpu", "gpus_per_node": 5000},
            "parallel": {"data_parallel_size": 5000},
        }
    )
    before = sorted(path for path in workspace.rglob("*"))
    with pytest.raises(SubmitError, match="the run needs 5,000 GPUs"):
        nb.submit(config, prepared=False)
    assert sorted(path for path in workspace.rglob("*")) == before


def test_the_log_of_a_failed_run_begins_with_the_traceback_of_the_rank_that_failed(run, capsys):
    """The log of a failed run begins with the failed rank's traceback; --grep searches the logs of all ranks,
    and options that exclude each other are refused.
    """
    job = run.directory.job("20260101-000000-0000")
    job.make_folders()
    files.write_text(run.directory.config_yaml, to_yaml(nb.load("gpt-125m-2xdp")))
    for rank in (0, 1):
        job.log(rank, 0).write_text(f"rank {rank} starts\nrank {rank} ends\n")
    ExitRecord(1, 0, 1.0, 1, None, "failed", 2, "boom", "Traceback ...\nValueError: boom\n").write(
        job.exit_record(1, 0)
    )
    record = JobRecord(job.job_id, "id", "mine", "FAILED", 0.0, 2, "rank 1 failed: ValueError: boom")
    record.attempts = [AttemptRecord(0, 1.0, 2, 2, failed_rank=1)]
    record.write(job.job_json)
    assert cli.main(["logs", "mine", "-n", "1"]) == 0
    assert capsys.readouterr().out == (
        "mine is FAILED. The last traceback of rank 1:\n\nTraceback ...\nValueError: boom\n\n"
        "The end of the log of rank 1:\n\nrank 1 ends\n"
    )
    assert run.failure() == (
        "mine is FAILED: rank 1 failed: ValueError: boom\nThe last traceback of rank 1:\n  Traceback ...\n"
        "  ValueError: boom\nEnd of its log (rank 1):\n  rank 1 starts\n  rank 1 ends"
    )
    assert cli.main(["logs", "mine", "--rank", "0"]) == 0
    assert capsys.readouterr().out == "rank 0 starts\nrank 0 ends\n"
    assert cli.main(["logs", "mine", "--grep", "STARTS", "-i"]) == 0
    at = f"{job.job_id}/"
    assert capsys.readouterr().out == f"{at}0.0.log:1: rank 0 starts\n{at}1.0.log:1: rank 1 starts\n"
    assert cli.main(["logs", "mine", "--grep", "nosuch"]) == 0
    assert capsys.readouterr() == ("", "mine: no line of its logs contains 'nosuch'.\n")
    for options, words in (
        (["-i"], "--ignore-case needs --grep TEXT."),
        (
            ["-f", "--grep", "ends"],
            "--follow prints new lines, --grep searches existing lines",
        ),
    ):
        assert cli.main(["logs", "mine", *options]) != 0
        assert words in capsys.readouterr().err
    earlier = run.directory.job("20250101-000000-0000")
    earlier.make_folders()
    JobRecord(earlier.job_id, "id", "mine", "CANCELLED", 0.0, 2).write(earlier.job_json)
    earlier.log(0, 0).write_text("an earlier job ends\n")
    earlier.node_log(0).write_text("the agent ends\n")
    newest, agent, before = (
        f"{at}1.0.log:2: rank 1 ends",
        "node0.log:1: the agent ends",
        "0.0.log:1: an earlier",
    )
    found = [str(hit) for hit in run.search("ends")]
    assert found[1:3] == [newest, f"{earlier.job_id}/{agent}"] and f"{earlier.job_id}/{before}" in found[3]
    assert [str(hit) for hit in run.search("ends", rank=1)] == [newest]
    assert cli.main(["logs", "mine", "--grep", "ends", "--job", earlier.job_id, "--json", "-n", "1"]) == 0
    line = {"job": earlier.job_id, "log": "node0.log", "line_number": 1, "text": "the agent ends"}
    line |= {"offset_bytes": 0, "spans": [[10, 14]]}
    assert json.loads(capsys.readouterr().out) == line
    assert cli.main(["logs", "mine", "--job", earlier.job_id]) == 0
    assert capsys.readouterr().out == "an earlier job ends\n"
    assert cli.main(["logs", "mine", "--job", earlier.job_id, "--rank", "node0"]) == 0
    assert capsys.readouterr().out == "the agent ends\n"
    assert cli.main(["logs", "mine", "--rank", "2"]) == 2
    assert "rank 2 does not exist: mine has 2 ranks (0 to 1)" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"the text to search for is empty\."):
        run.search("")


def test_a_dry_run_trains_no_twin(workspace):
    """Notebook 06 with mode = "twin" and dry_run = True is refused, because a twin trains on this machine."""
    with pytest.raises(
        ConfigError, match=r'^mode = "twin" trains on this machine, dry_run = True submits noth'
    ):
        api.launch("gpt-tiny", "twin", dry_run=True)
    assert not (workspace / "output").exists()


def test_a_demo_that_launches_nothing_says_why(workspace, monkeypatch, capsys):
    """Notebook 03 ends without an error if it launched nothing; a cell shows NotLaunched with the reason."""
    made = lambda name, parameters, output: output.parent.mkdir(parents=True, exist_ok=True)  # noqa: E731
    monkeypatch.setattr(demo, "run_notebook", made)
    sizes = ["resources.gpus_per_node", "parallel.data_parallel_size", "batch.global_batch_size"]
    asked = ["resources.device=gpu", "batch.micro_batch_size=1", *(f"{size}=64" for size in sizes)]
    assert cli.main(["demo", "gpt-tiny", *asked]) == 6
    said = capsys.readouterr().err
    assert "SubmitError: gpt-tiny was not launched, so there is nothing to watch or to generate " in said
    assert "the run needs 64 GPUs" in said and "no run directory" not in said
    assert said.endswith("\nThe executed notebook: output/gpt-tiny/notebooks/03_launch.ipynb\n")


@pytest.mark.parametrize(
    ("backend", "missing", "shown"),
    [
        ("kubernetes", "backend.kubernetes.image = REPLACE-ME/image:tag", "image: REPLACE-ME/image:tag"),
        ("hosts", "backend.hosts.hosts = [REPLACE-ME-0]", "REPLACE-ME-0 slots=1"),
    ],
)
def test_a_backend_whose_place_is_not_named_is_shown_and_never_submitted(workspace, backend, missing, shown):
    """Without an image or hosts, notebook 06 lists the missing settings and shows placeholders for them."""
    config = api.load("gpt-tiny", f"backend.kind={backend}", placeholders=True)
    said = str(api.launch(config))
    why = f"gpt-tiny was not launched: backend {backend} needs settings that the run does not have."
    assert said.startswith(f"{why}\n  - {missing} is a placeholder. Set it to ")
    assert f"\nTo launch it, set them and run:\n  nbtrain submit gpt-tiny backend.kind={backend} " in said
    heading = "started" if backend == "hosts" else "submitted"
    assert shown in said.partition(f"\nWhat would be {heading}:\n")[2]
    page = api.launch(config)._repr_html_()
    assert f">{missing} is a placeholder." in page
    assert f"<mark>{re.search('REPLACE-ME[^ ]*', shown)[0]}</mark>" in page
    with pytest.raises(SubmitError, match=re.escape(f"{missing} is a placeholder. Set it to ")):
        api.submit(config)
    with pytest.raises(ConfigError):
        api.load("gpt-tiny", f"backend.kind={backend}")
    assert not (workspace / "output").exists()
