"""Answers to the requests of the launch form, which the server's routes and a notebook kernel share."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import nbtrain.jobs.submission.submit
import nbtrain.lab.form.twin
from nbtrain.base.errors import ConfigError, SubmitError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.config.load import load, to_yaml
from nbtrain.config.schema import RunConfig
from nbtrain.jobs.control.control import ask_pause
from nbtrain.lab.form.answers import TWIN_WORDS, answer, yaml_for_others
from tests.lab.widgets.fake_run import FakeJob


def assessed(
    run: str = "gpt-tiny", overrides: Any = None, mode: str = "full", **typed: str
) -> dict[str, Any]:
    """Return the assessment of typed values; a double underscore in a name stands for a dot."""
    texts = {key.replace("__", "."): text for key, text in typed.items()}
    request = {"yaml": run, "overrides": overrides, "typed": texts, "mode": mode}
    return json.loads(json.dumps(answer("form/assess", request)))


def at(fields: list[dict[str, Any]], key: str) -> dict[str, Any]:
    return next(one for one in fields if one["key"] == key)


def test_a_yaml_is_described(workspace: Path) -> None:
    """Each field comes with its page, description, unit, default, and its values in the YAML and in the form.
    The 12 most important fields come first.
    """
    found = answer("form", {"yaml": "gpt-tiny", "overrides": "batch.max_steps=400"})
    assert json.loads(json.dumps(found)) == found
    assert at(found["fields"], "batch.max_steps") == {
        "key": "batch.max_steps",
        "label": "max_steps",
        "title": "Stop after steps",
        "group": "Training",
        "kind": "yaml",
        "choices": [],
        "description": RunConfig.model_fields["batch"].annotation.model_fields["max_steps"].description,
        "unit": "steps",
        "within": "",
        "default": "null",
        "base": "null",
        "value": "400",
    }
    assert at(found["fields"], "model.num_layers")["default"] is None
    assert at(found["fields"], "backend.kind")["choices"] == ["local", "hosts", "slurm", "kubernetes"]
    assert len(found["essentials"]) == 12
    assert set(found["essentials"]) < {one["key"] for one in found["fields"]}
    keys = [key for group in found["groups"] for section in group["sections"] for key in section["keys"]]
    assert ["name", *keys] == [one["key"] for one in found["fields"]]
    assert found["given"] == [["batch.max_steps", "null", "400", "given"]]
    assert found["yamls"][0] == "gpt-tiny"


def test_the_length_that_comes_first_is_in_the_yamls_own_unit(workspace: Path) -> None:
    """Among the first fields is the training length in the unit that the YAML uses, such as steps."""
    overrides = {"batch.train_tokens": None, "batch.train_steps": 5}
    (workspace / "steps.yaml").write_text("extends: gpt-tiny\nbatch: {train_tokens: null, train_steps: 5}\n")
    assert "batch.train_steps" in answer("form", {"yaml": "steps.yaml"})["essentials"]
    assert "batch.train_tokens" in answer("form", {"yaml": "gpt-tiny", "overrides": overrides})["essentials"]


def test_overrides_may_be_a_json_object_as_text(workspace: Path) -> None:
    """Overrides may be given as the text of a JSON object, as in the address of a GET request."""
    found = answer("form", {"yaml": "gpt-tiny", "overrides": '{"batch.max_steps": 3}'})
    assert found["assessment"]["line"] == 'nb.submit("gpt-tiny", {"batch.max_steps": 3})'
    for text in ("{batch", '{"batch":' * 100_000):
        with pytest.raises(ConfigError, match="overrides must be a JSON object"):
            answer("form", {"overrides": text})


def test_another_yaml_keeps_the_notebooks_overrides_or_says_why_not(workspace: Path) -> None:
    """When the user chooses another YAML, the notebook's overrides are kept; those that do not fit are
    dropped, with the schema's message.
    """
    found = answer("form", {"yaml": "gpt-125m", "overrides": "batch.max_steps=400"})
    assert found["given"] == [["batch.max_steps", "null", "400", "given"]]
    assert found["left_out"] == ""
    found = answer("form", {"yaml": "gpt-tiny", "overrides": "batch.rampup.start_batch_size=4"})
    assert found["given"] == []
    assert "batch.rampup.batch_size_increment is missing" in found["left_out"]


def test_every_problem_is_at_its_field_without_what_the_field_shows(workspace: Path) -> None:
    """All problems are reported at their fields at the same time: invalid YAML, schema errors, and a rule
    between two fields. A message does not repeat what the field shows.
    """
    found = assessed(
        batch__micro_batch_size="[5",
        batch__global_batch_size="7",
        model__num_layers="four",
        data__sources='[{"kind": "json"}]',
    )
    said = {one["key"]: one["message"] for one in found["problems"]}
    fields = ["model.num_layers", "batch.micro_batch_size", "batch.global_batch_size", "data.sources"]
    assert list(said) == fields
    assert said["batch.global_batch_size"].startswith("Must be a multiple of micro_batch_size(8)")
    assert said["model.num_layers"] == "Must be a whole number."
    assert said["batch.micro_batch_size"].startswith("Not YAML: expected")
    assert said["data.sources"].startswith("data.sources.0.kind = json: must be one of python-docs")
    assert not found["may_submit"] and found["headline"] is None and found["plan"] is None


def test_a_rule_of_two_fields_names_the_changed_one_too(workspace: Path) -> None:
    """A broken rule between two fields is reported at one of them, and the field that the user changed is
    marked too.
    """
    (problem,) = assessed(batch__micro_batch_size="5")["problems"]
    assert problem == {
        "key": "batch.global_batch_size",
        "message": "Must be a multiple of micro_batch_size(5) * data_parallel_size(1) = 5; nearest: 5, 10.",
        "full": "gpt-tiny.yaml:29: batch.global_batch_size = 8\n  must be a multiple of micro_batch_size(5) "
        "* data_parallel_size(1) = 5; nearest: 5, 10.",
        "also": ["batch.micro_batch_size"],
    }
    (problem,) = assessed(batch__train_steps="5")["problems"]
    assert problem["key"] == "batch.train_tokens"
    assert problem["message"] == (
        "Together with batch.train_steps = 5: set the same length in different units. Keep one of them, and "
        "set the others to null."
    )
    assert problem["also"] == ["batch.train_steps"]


@pytest.mark.parametrize(
    ("typed", "key", "message"),
    [
        (
            {"resources__nodes": "3"},
            "resources.nodes",
            "data(1) * pipeline(1) * tensor(1) = 1 process, which",
        ),
        ({"name": "My Run"}, "name", "Must be 1 to 53 lower case letters"),
        ({"data__sources": '[{"kind": "jsonl"}]'}, "data.sources", "data.sources.0.path is missing"),
        ({"backend__env": '{"HF_TOKEN": "x"}'}, "backend.env", "backend.env.HF_TOKEN looks like a secret"),
        ({"lr_schedule__min_lr": "1.0"}, "lr_schedule.min_lr", "Must be at most lr(0.002)."),
    ],
)
def test_where_a_problem_stands(workspace: Path, typed: dict[str, str], key: str, message: str) -> None:
    (problem,) = assessed(**typed)["problems"]
    assert problem["key"] == key
    assert problem["message"].startswith(message)


def test_headline_plan_and_changes(workspace: Path) -> None:
    """The headline contains fit, time and disk space, and the tables everything else. Each change says
    whether it comes from the notebook or the user.
    """
    found = assessed(overrides={"batch.max_steps": 400}, batch__micro_batch_size="4")
    assert found["headline"]["fits"].startswith("yes, ") and found["headline"]["kind"] == "good"
    assert set(found["headline"]) == {"fits", "kind", "time", "disk"}
    assert [title for title, _ in found["plan"]] == ["Model", "Training", "Memory", "Time", "Disk"]
    assert found["changes"] == [
        ["batch.max_steps", "null", "400", "given"],
        ["batch.micro_batch_size", "8", "4", "form"],
    ]
    assert found["line"] == 'nb.submit("gpt-tiny", {"batch.max_steps": 400, "batch.micro_batch_size": 4})'
    assert found["may_submit"] and not found["ready"]
    assert {one["kind"] for one in found["shortages"]} == {"data"}
    assert all("RUN.yaml" not in one["message"] for one in found["shortages"])


def test_a_given_hostfile_is_read_as_check_reads_it(workspace: Path) -> None:
    """A hostfile is read in the same way as by `nbtrain check`, and a problem in it is reported at the
    field.
    """
    (workspace / "hosts.txt").write_text("node-a slots=8\nnode-b slots\n")
    hosts = {"backend.kind": "hosts", "backend.hosts.hostfile": "hosts.txt"}
    [found] = [one for one in assessed(overrides=hosts)["findings"] if one["level"] == "error"]
    assert found["key"] == "backend.hosts.hostfile"
    assert "'node-b slots' does not describe a machine" in found["message"]


def test_the_cell_does_what_the_form_holds_and_prepares_what_is_missing(workspace: Path) -> None:
    """The generated cell does what the form shows. It has several lines, formatted like a code formatter's
    output, and prepares data that is missing.
    """
    found = assessed(batch__micro_batch_size="4")
    assert found["cell"] == (
        "import nbtrain as nb\n\n"
        'job = nb.submit("gpt-tiny", {"batch.micro_batch_size": 4}, prepared=False)\njob'
    )
    cell = assessed(batch__micro_batch_size="4", batch__max_steps="5", data__split="8,1,1")["cell"]
    assert cell == (
        'import nbtrain as nb\n\njob = nb.submit("gpt-tiny", {\n    "batch.micro_batch_size": 4,\n'
        '    "batch.max_steps": 5,\n    "data.split": "8,1,1",\n}, prepared=False)\njob'
    )
    compile(cell, "cell", "exec")
    assert found["unprepared"] and not assessed(mode="twin")["unprepared"]


def test_mode_twin_is_heeded(workspace: Path) -> None:
    """With mode "twin", the generated line trains the twin, even if this machine cannot train the run
    itself.
    """
    found = assessed(mode="twin", batch__max_steps="5")
    assert found["line"] == 'nb.twin("gpt-tiny", {"batch.max_steps": 5})'
    assert found["cell"].endswith('twin = nb.twin("gpt-tiny", {"batch.max_steps": 5})\ntwin')
    assert (found["may_submit"], found["words"], found["shortages"]) == (True, TWIN_WORDS, [])
    with pytest.raises(ConfigError, match='mode = \'dry\' must be "full" or "twin"'):
        assessed(mode="dry")


# Replaces `nbtrain twin`: what its process does first, or how it ends.
BEGINS = """
import json, os, pathlib, sys, time
import yaml
config = yaml.safe_load(pathlib.Path(sys.argv[1]).read_text())
folder = pathlib.Path(os.environ["NBTRAIN_OUTPUT"]) / (config["name"] + "-twin")
folder.mkdir()
steps = config["batch"]["max_steps"]
record = {"run_id": "a", "twin_of": config["name"], "created_at": time.time(), "steps": steps}
(folder / "run.json").write_text(json.dumps(record))
time.sleep(3600)
"""
ENDS = "import sys; sys.exit('ConfigError: a twin of pipeline and Ulysses needs 16 ranks.')"


def test_submit_starts_a_twin(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Submitting a twin uses the form's values and returns the twin's name once its folder exists; if it is
    rejected, the form shows the message.
    """
    started: list[subprocess.Popen] = []
    popen = subprocess.Popen

    def kept(*arguments: Any, **options: Any) -> subprocess.Popen:
        assert options["start_new_session"]
        started.append(popen(*arguments, **options))
        return started[-1]

    monkeypatch.setattr(nbtrain.lab.form.twin.subprocess, "Popen", kept)
    request = {"yaml": "gpt-tiny", "mode": "twin", "typed": {"batch.max_steps": "5"}}
    monkeypatch.setattr(nbtrain.lab.form.twin, "COMMAND", ("-c", BEGINS))
    assert answer("submit", request) == {"name": "gpt-tiny-twin", "job_id": None, "twin_of": "gpt-tiny"}
    assert (RunDir.named("gpt-tiny-twin").record() or {})["steps"] == 5
    assert started[0].poll() is None
    monkeypatch.setattr(nbtrain.lab.form.twin, "COMMAND", ("-c", ENDS))
    with pytest.raises(SubmitError, match="ConfigError: a twin of pipeline and Ulysses needs 16 ranks"):
        answer("submit", request)
    for process in started:
        process.kill()
        process.wait()


def test_layouts_are_suggested_with_what_they_change(workspace: Path) -> None:
    """A suggested layout, typed into the form, gives a run that the same search ranks first."""
    request = {"yaml": "gpt-1-3b-4xdp", "typed": {"name": "mine"}}
    found = answer("form/layouts", request)
    best = found["rows"][0]
    assert found["title"].endswith(" estimated layouts fit") and best["against"] == "-"
    assert best["changes"] and "name" not in best["typed"]
    after = assessed("gpt-1-3b-4xdp", **{key.replace(".", "__"): text for key, text in best["typed"].items()})
    assert after["problems"] == [] and after["headline"]["fits"].startswith("yes, ")


def test_layouts_of_a_run_on_cpu_need_gpus(workspace: Path) -> None:
    """Layouts can be suggested for a CPU run only if GPUs are given; without them, the answer states the
    reason.
    """
    with pytest.raises(ConfigError, match="does not specify a GPU type"):
        answer("form/layouts", {"yaml": "gpt-tiny"})
    found = answer("form/layouts", {"yaml": "gpt-tiny", "gpus": 8, "gpu_type": "A100-80GB"})
    assert found["rows"][0]["typed"]["resources.gpu_type"] == "A100-80GB"
    with pytest.raises(ConfigError, match="Correct the marked fields first"):
        answer("form/layouts", {"yaml": "gpt-tiny", "typed": {"model.num_layers": "four"}})


def test_submit_gives_the_draft_to_jobs(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Submitting passes the configuration of the generated line to jobs and returns the job's id. If it is
    rejected, the error has the message.
    """
    given = []

    def submit(config: Any, parent: str | None, tries_code: bool) -> Any:
        assert parent is None
        given.append((config, tries_code))
        job = FakeJob(RunDir.named(config.name), steps=10)
        job.finish("CANCELLED", "only a test")
        return job.job

    monkeypatch.setattr(nbtrain.jobs.submission.submit, "submit", submit)
    request = {"yaml": "gpt-tiny", "overrides": {"batch.max_steps": 3}, "name": "mine"}
    found = answer("submit", request)
    assert found["name"] == "mine" and found["job_id"]
    answer("submit", {**request, "name": "other", "try_code": False})
    found = [(config.name, config.batch.max_steps, tries) for config, tries in given]
    assert found == [("mine", 3, True), ("other", 3, False)]
    with pytest.raises(ConfigError, match=r"model\.num_layers = four: must be a whole number"):
        answer("submit", {**request, "typed": {"model.num_layers": "four", "batch.max_steps": "[5"}})
    assert len(given) == 2

    def refuse(config: Any, parent: str | None, tries_code: bool) -> None:
        raise SubmitError("output/mine has succeeded.")

    monkeypatch.setattr(nbtrain.jobs.submission.submit, "submit", refuse)
    with pytest.raises(SubmitError, match="has succeeded"):
        answer("submit", request)


@pytest.mark.slow
def test_a_clone_has_a_free_name_and_a_parent(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clone has the fields of the original run, an unused name and a parent, and the generated line clones
    the run. A name that is in use is rejected.
    """
    given: list[Any] = []

    def submit(config: Any, parent: str | None = None, tries_code: bool = True) -> Any:
        given.append((config.name, config.batch.max_steps, parent))
        return FakeJob(RunDir.named(config.name), steps=10).job

    monkeypatch.setattr(nbtrain.jobs.submission.submit, "submit", submit)
    parent = FakeJob(RunDir.named("first"), steps=10)
    parent.job.run.config_yaml.write_text(to_yaml(load("gpt-tiny", {"name": "first", "batch.max_steps": 9})))
    run_id = parent.job.run.record()["run_id"]
    found = answer("form", {"clone": "first"})
    assert at(found["fields"], "name")["value"] == found["assessment"]["name"] == "first-2"
    assert at(found["fields"], "batch.max_steps")["base"] == "9"
    request = {"clone": "first", "typed": {"batch.max_steps": "3"}}
    found = answer("form/assess", request)
    line = 'nb.submit(nb.open_run("first").clone("first-2", {"batch.max_steps": 3}))'
    assert found["line"] == line
    assert found["cell"] == (
        'import nbtrain as nb\n\njob = nb.submit(nb.open_run("first").clone("first-2", {\n'
        '    "batch.max_steps": 3,\n}), prepared=False)\njob'
    )
    assert answer("submit", request)["name"] == "first-2"
    assert given == [("first-2", 3, run_id)]
    assert answer("form", {"clone": "first"})["assessment"]["name"] == "first-3"
    with pytest.raises(SubmitError, match="there is already a run first-2"):
        answer("submit", {**request, "name": "first-2"})
    with pytest.raises(ConfigError, match=r"clone = 'second' must be the name of a run\. .*`nbtrain runs`"):
        answer("form", {"clone": "second"})


def run_as_submitted(name: str, **overrides: Any) -> FakeJob:
    """Return an active run with the settings of the example gpt-tiny."""
    job = FakeJob(RunDir.named(name), steps=10)
    config = load("gpt-tiny", {"name": name, "batch.max_steps": 300, **overrides})
    job.job.run.config_yaml.write_text(to_yaml(config))
    return job


def test_an_active_run_of_the_name_stands_against_other_settings(workspace: Path) -> None:
    """If an active run has the same name and other settings, that is reported at the name, and again if the
    user submits.
    """
    job = run_as_submitted("mine")
    found = assessed(name="mine", batch__max_steps="250")
    assert found["problems"] == [
        {
            "key": "name",
            "message": (
                text := "mine is RUNNING with other settings: batch.max_steps = 300, not 250. Choose another "
                "name, or stop that run first."
            ),
            "full": text,
            "also": ["batch.max_steps"],
        }
    ]
    assert (found["may_submit"], found["ready"]) == (False, False)
    assert assessed(name="mine", batch__max_steps="300")["may_submit"]
    assert assessed(name="mine", batch__max_steps="250", mode="twin")["may_submit"]
    request = {"yaml": "gpt-tiny", "typed": {"batch.max_steps": "250"}, "name": "mine"}
    joined = {"name": "mine", "job_id": job.job.job_id, "joined": "RUNNING"}
    assert answer("submit", request) == {**joined, "not_applied": ["batch.max_steps: 300 -> 250"]}
    request["typed"] = {"batch.max_steps": "300"}
    assert answer("submit", request) == {**joined, "not_applied": []}
    assert len(job.job.run.job_ids()) == 1


def test_a_paused_run_of_the_name_stands_against_other_settings(workspace: Path) -> None:
    """If a paused run has the same name and other settings, it is rejected before and after submitting; with
    its own settings, it is resumed.
    """
    job = run_as_submitted("mine").job
    ask_pause(job, True)
    [problem] = assessed(name="mine", batch__max_steps="250")["problems"]
    assert problem["key"] == "name"
    assert problem["message"] == "mine is paused, with other settings: batch.max_steps = 300, not 250."
    assert "`nbtrain resume mine batch.max_steps=250` ends the job;" in problem["full"]
    request = {"yaml": "gpt-tiny", "typed": {"batch.max_steps": "250"}, "name": "mine"}
    with pytest.raises(SubmitError, match="its job is paused, and the submission would change its settings"):
        answer("submit", request)
    assert assessed(name="mine", batch__max_steps="300")["may_submit"]


def test_a_run_of_the_name_that_is_done_stands_against_it(workspace: Path) -> None:
    """If a finished run has the same name, it is rejected, with the advice to resume it or to choose another
    name.
    """
    run_as_submitted("mine").finish("SUCCEEDED", "all steps are done")
    found = assessed(name="mine", batch__max_steps="300")
    [problem] = found["problems"]
    assert problem["key"] == "name" and not found["may_submit"]
    assert problem["message"] == "mine has already been trained for 300 steps."
    assert "To continue training: `nbtrain resume mine" in problem["full"]
    assert found["taken"] == {"name": "mine", "is_run": True, "free": "mine-2"}
    run_as_submitted("mine-2")
    assert assessed(name="mine-2")["taken"]["free"] == "mine-3"
    RunDir.named("other").path.mkdir()
    assert assessed(name="other")["taken"] == {"name": "other", "is_run": False, "free": "other-2"}
    # "other-" is not a valid name, so "other--2" is not a numbered copy of it.
    RunDir.named("other--2").path.mkdir()
    assert assessed(name="other--2")["taken"]["free"] == "other--2-2"
    assert assessed(name="third")["may_submit"] and assessed(name="third")["taken"] is None


def test_exceeded_limit_refuses_before_submit_and_has_ways_out(workspace: Path) -> None:
    """A run whose plan exceeds a limit cannot be submitted; a shorter training that stays within the limit is
    proposed, and a higher limit if it is the run's own.
    """
    [problem] = (found := assessed("gpt-125m", limits__gpu_hours="2"))["problems"]
    assert problem["key"] == "limits.gpu_hours" and not found["may_submit"] and found["headline"]
    assert re.match(
        r"Is exceeded: all GPUs .* [\d.]+ GPU hours, but the limit is 2 GPU hours\.", problem["message"]
    )
    assert "limits.gpu_hours" not in [finding["key"] for finding in found["findings"]]
    shorter, higher = problem["ways"]
    [tokens], [limit] = shorter.values(), higher.values()
    assert assessed("gpt-125m", limits__gpu_hours="2", batch__train_tokens=tokens)["may_submit"]
    assert assessed("gpt-125m", limits__gpu_hours=limit)["may_submit"]
    # A trial is shortened in its steps. A twin is not the run, and has its own plan.
    [problem] = assessed("gpt-125m", limits__gpu_hours="2", batch__max_steps="4000")["problems"]
    assert problem["ways"][0].keys() == {"batch.max_steps"}
    assert assessed("gpt-125m", limits__gpu_hours="2", mode="twin")["may_submit"]
    # The owner of the workspace's limits raises them; no training is short enough for its checkpoints.
    (workspace / "limits.yaml").write_text("disk_bytes: 1000\n")
    [problem] = assessed("gpt-125m")["problems"]
    assert problem["ways"] == [] and "ask the owner of limits.yaml:1 to raise the limit" in problem["message"]


def test_a_warning_whose_fix_is_one_value_carries_it(workspace: Path) -> None:
    """A warning contains the value that would fix it, for a button in the form. A run with learning rate 1000
    can still be submitted.
    """
    found = assessed(lr_schedule__lr="1000")
    [warning] = [one for one in found["findings"] if one["key"] == "lr_schedule.lr"]
    assert warning["level"] == "warning" and warning["typed"] == {"lr_schedule.lr": "0.0001"}
    assert found["may_submit"]


def test_a_server_reads_run_yamls_of_the_workspace_only(workspace: Path, tmp_path: Path) -> None:
    """A server reads YAMLs only inside the workspace, neither by path nor through a symlink outside it; a
    kernel may read any.
    """
    outside = tmp_path / "outside.yaml"
    outside.write_text("extends: gpt-tiny\nname: outside\n")
    (workspace / "link.yaml").symlink_to(outside)
    for run in (str(outside), "link.yaml"):
        with pytest.raises(ConfigError, match="is outside the workspace"):
            answer("form", {"yaml": run})
        assert answer("form", {"yaml": run}, anywhere=True)["assessment"]["name"] == "outside"


def test_malformed_requests_are_refused(workspace: Path) -> None:
    """A malformed request is answered with an error message and no traceback."""
    for request, words in (
        ({"yaml": 5}, "yaml = 5 must be text"),
        ({"typed": []}, None),
        ({"typed": ["a"]}, "typed = "),
        ({"typed": {"batch.nothing": "5"}}, "the form has no field 'batch.nothing'"),
        ({"overrides": 5}, "overrides"),
    ):
        if words is None:
            answer("form/assess", request)
            continue
        with pytest.raises(ConfigError, match=words):
            answer("form/assess", request)


def test_no_widget_is_imported(repository: Path) -> None:
    """The module with the form's answers does not import ipywidgets, because a Jupyter server uses it too."""
    for path in (repository / "nbtrain" / "lab" / "form").glob("*.py"):
        assert not re.search(r"^\s*(from|import) .*widgets", path.read_text(), re.MULTILINE), path


def test_a_yaml_beside_the_notebook_is_named_whole(
    workspace: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A YAML next to the notebook is given by its absolute path, because the server's current folder differs
    from the kernel's.
    """
    monkeypatch.chdir(workspace)
    training = repository / "examples" / "megatron-gpt" / "training"
    shutil.copytree(training, workspace / "mine")
    assert yaml_for_others("gpt-tiny") == "gpt-tiny"
    assert yaml_for_others("mine/gpt-tiny.yaml") == str(workspace / "mine" / "gpt-tiny.yaml")
    assert yaml_for_others("13B") == "13B"


def test_an_architecture_changes_what_its_fields_have(workspace: Path) -> None:
    """Choosing an architecture changes the values and defaults of the fields it sets, except those that were
    typed or given; the generated line contains only the architecture.
    """
    found = assessed(model__architecture="llama")
    assert found["line"] == 'nb.submit("gpt-tiny", {"model.architecture": "llama"})'
    assert found["changes"] == [["model.architecture", "qwen3", "llama", "form"]]
    follow = found["following"]
    assert follow["model.normalization"] == {"base": "RMSNorm", "value": "RMSNorm", "default": "RMSNorm"}
    assert follow["model.rotary_base"]["default"] == "500000.0"
    assert "model.num_query_groups" not in follow and not found["problems"]
    typed = assessed(model__normalization="LayerNorm", model__architecture="llama")
    assert [key for key, *_ in typed["changes"]] == ["model.architecture", "model.normalization"]
    assert typed["following"]["model.normalization"]["default"] == "RMSNorm"
    given = assessed(overrides="model.norm_epsilon=1e-3", model__architecture="qwen3")
    assert given["following"]["model.norm_epsilon"] == {
        "base": "1.0e-06",
        "value": "0.001",
        "default": "1.0e-06",
    }


def test_an_architecture_that_is_given_is_the_base_of_its_fields(workspace: Path) -> None:
    """If a notebook or clone sets the architecture, its fields start from that architecture's values; another
    architecture that the user types replaces all of them.
    """
    found = answer("form", {"yaml": "gpt-tiny", "overrides": "model.architecture=mistral"})
    window = at(found["fields"], "model.window_size")
    assert (window["base"], window["value"], window["default"]) == ("4096", "4096", "4096")
    assert found["given"] == [["model.architecture", "qwen3", "mistral", "given"]]
    other = assessed(overrides="model.architecture=mistral", model__architecture="qwen2")
    assert other["following"]["model.window_size"]["value"] == "null"
    assert other["line"] == 'nb.submit("gpt-tiny", {"model.architecture": "qwen2"})'
    back = assessed(overrides="model.architecture=mistral", model__architecture="qwen3")
    # As in the YAML.
    assert back["changes"] == [] and back["following"]["model.hidden_dropout"]["value"] == "0.0"


def test_a_name_that_is_no_architecture_is_a_problem_at_its_field(workspace: Path) -> None:
    found = assessed(model__architecture="lama")
    [problem] = found["problems"]
    assert problem["key"] == "model.architecture" and "Nearest: llama." in problem["message"]
    assert found["following"]["model.normalization"]["base"] == "RMSNorm"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (
            {"evaluation__tasks": "[{kind: lambada, pth: q.jsonl}]"},
            [
                ("evaluation.tasks", "evaluation.tasks.0.task is missing; it has no default."),
                ("evaluation.tasks", "evaluation.tasks.0.path is missing; it has no default."),
                ("evaluation.tasks", "evaluation.tasks.0 has no key `kind`."),
                ("evaluation.tasks", "evaluation.tasks.0 has no key `pth`. Nearest: path."),
            ],
        ),
        (
            # No finding says that there are no tasks: there is one, which is wrong.
            {
                "evaluation__tasks": "[{task: lambada, path: q.jsonl, limit: 0}]",
                "evaluation__tasks_interval_steps": "100",
            },
            [("evaluation.tasks", "evaluation.tasks.0.limit = 0: must be at least 1.")],
        ),
        (
            {"lora": "{}", "lora__rank": "8", "optimizer__type": "AdamW"},
            [
                (
                    "lora",
                    "Trains adapters for frozen weights, but init_from, which names these weights, is null. "
                    "Set init_from to a run, or to a folder with a Hugging Face model.",
                )
            ],
        ),
        (
            {"lora": "{rank: 8}"},
            [
                (
                    "lora",
                    "Must be {} (on) or null (off) here. Its keys are separate fields, such as lora.kind: "
                    "set those.",
                )
            ],
        ),
        ({"lora__targets": "[]"}, [("lora.targets", "Must have at least 1 item.")]),
        (
            {"lora__kind": "ia3", "lora__rank": "8", "init_from": "base", "optimizer__type": "AdamW"},
            [
                (
                    "lora.rank",
                    "Applies only to lora.kind: lora, but lora.kind is ia3. IA3 trains vectors that scale "
                    "keys, values and the MLP. Remove rank.",
                )
            ],
        ),
        (
            {"batch__rampup": "{}"},
            [
                (f"batch.rampup.{key}", "Is missing; it has no default.")
                for key in ("start_batch_size", "batch_size_increment", "ramp_samples")
            ],
        ),
        (
            {"batch__rampup__start_batch_size": "4"},
            [
                (f"batch.rampup.{key}", "Is missing; it has no default.")
                for key in ("batch_size_increment", "ramp_samples")
            ],
        ),
        ({"init_step": "-1"}, [("init_step", "Must be newest, best, or the number of a step, at least 1.")]),
        (
            {"dpo__beta": "0.2", "init_from": "base", "data__packing": "best_fit"},
            [
                (
                    "data.sources",
                    "data.sources[0].kind = python-docs: with dpo, every source must have kind: preference, "
                    "and at least one source is required.",
                )
            ],
        ),
    ],
)
def test_fields_of_fine_tuning_and_of_tasks(workspace: Path, typed: dict[str, str], said: Any) -> None:
    """Problems in fine-tuning and task settings are reported at their field; the message names the invalid
    key, but does not begin with it.
    """
    assert [(one["key"], one["message"]) for one in assessed(**typed)["problems"]] == said


def test_a_mistake_that_only_the_machine_shows_is_at_its_field(workspace: Path) -> None:
    """A run or file that does not exist on this machine is reported at its field; the message does not repeat
    the override.
    """
    typed = {"init_from": "nowhere", "evaluation__tasks": "[{task: lambada, path: nope.jsonl}]"}
    found = {one["key"]: one for one in assessed(**typed)["shortages"] if one["kind"] == "error"}
    assert list(found) == ["init_from", "evaluation.tasks"]
    assert found["init_from"]["message"].startswith("init_from: there is no run nowhere in ")
    assert found["init_from"]["rule"].startswith("There is no run nowhere in ")
    tasks = found["evaluation.tasks"]
    assert tasks["message"] == tasks["rule"]
    assert tasks["fix"].startswith("Correct the path (relative paths start at the workspace)")
    assert tasks["rule"].startswith("evaluation.tasks.0.path is not a file with lambada questions: ")
    (workspace / "mine.yaml").write_text("extends: gpt-tiny\ninit_from: nowhere\n")
    [one] = [one for one in assessed("mine.yaml")["shortages"] if one["key"]]
    assert one["message"].startswith("mine.yaml:2: init_from: there is no run")


def test_runs_that_fine_tune_are_offered_too(workspace: Path) -> None:
    """Example runs for fine-tuning are offered next to gpt-tiny, and a list in the generated cell is
    formatted as by a code formatter.
    """
    found = answer("form", {"yaml": "gpt-tiny"})
    assert {"gpt-tiny-instructions", "gpt-tiny-preferences", "gpt-125m"} <= set(found["yamls"])
    assert found["yamls"][0] == "gpt-tiny"
    line = assessed(evaluation__tasks="[{task: lambada, path: q.jsonl}]")["line"]
    assert line == 'nb.submit("gpt-tiny", {"evaluation.tasks": [{"task": "lambada", "path": "q.jsonl"}]})'
