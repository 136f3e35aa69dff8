"""The command line: every command has help, and every error is a message with an exit code."""

import argparse
import io
import json
import math
import os
import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from nbtrain.api import models
from nbtrain.base import files
from nbtrain.base.errors import ConfigError
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.version import __version__
from nbtrain.cli import __main__ as cli
from nbtrain.cli import serve
from nbtrain.cli.jupyterlab import lab_command
from nbtrain.cli.verb_table import ALIASES, VERBS
from nbtrain.cli.verbs import is_override


def choices(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of nbtrain's commands, or of a command's subcommands, by word."""
    return next((action.choices for action in parser._actions if isinstance(action.choices, dict)), {})


@pytest.mark.parametrize(("verb", "default"), [("serve", "1,048,576"), ("export", "5,000,000,000")])
def test_help_shows_all_digits_of_a_default(verb, default, capsys):
    with pytest.raises(SystemExit):
        cli.main([verb, "--help"])
    assert default in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["check", "gpt-tony"], 2, "ConfigError: gpt-tony: no such run YAML"),
        (["check", "gpt-tiny", "optimizer.warmup_tokens=1"], 2, "Nearest: lr_schedule.lr_warmup_tokens."),
        (
            ["check", "gpt-tiny", "tokenizer.vocab_size=1"],
            2,
            "tokenizer.vocab_size = 1\n  must be at least 2:",
        ),
        (["plan", "14B"], 2, "14B: no preset has this size. Nearest: 13B. Presets: 125M, 135M, 345M, "),
        (["check", "gpt-tiny", "batch.micro_batch_size"], 2, "must be key=value"),
        (["status", "no-such-run"], 5, "is not a run: it has no run.json"),
        (
            ["status", "no-such-run"],
            5,
            "`nbtrain runs` lists 0 runs under output. `nbtrain submit` starts a run.",
        ),
        (
            ["notebook", "09_none"],
            2,
            "no such notebook. nbtrain's own notebooks are 00_quickstart, 01_prepare_data",
        ),
    ],
)
def test_errors_are_a_message_and_a_code(workspace, arguments, code, message, capsys):
    """An error prints a message with the fix and sets an exit code, without a traceback."""
    assert cli.main(arguments) == code
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


@pytest.mark.parametrize("verb", ["submit", "plan", "check", "prepare", "twin"])
def test_a_call_without_a_run_says_what_one_is(verb, capsys):
    """A missing RUN is a usage error, and the message says what a RUN may be."""
    with pytest.raises(SystemExit) as end:
        cli.main([verb])
    assert end.value.code == 2
    assert capsys.readouterr().err.endswith(
        f"nbtrain {verb}: error: the following arguments are required: RUN\n"
        "  RUN: A run YAML, an example's name such as gpt-tiny, a preset such as 13B, or a run's name.\n"
    )


def test_a_run_that_is_not_there_names_those_that_look_like_it(workspace, capsys):
    """For an unknown run, the message names at most three similar runs and the number of runs."""
    for name in ("gpt-a", "gpt-b", "gpt-c", "gpt-d", "bert"):
        RunDir.named(name).path.mkdir(parents=True)
        files.write_json(RunDir.named(name).run_json, {"name": name})
    assert cli.main(["status", "gpt-e"]) == 5
    said = capsys.readouterr().err
    assert "it has no run.json. The workspace is " in said
    assert re.search(
        r" Nearest: (gpt-\w(, )?){3}\. `nbtrain runs` lists 5 runs under output\. `nbtrain sub", said
    )


def test_a_preset_is_a_run_everywhere(workspace, capsys):
    """A preset can be used as a run, as in `plan 1.3b`, and in a YAML, as in `extends: 1.3B`."""
    assert cli.main(["plan", "1.3b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "gpt-1-3b-4xdp"
    (workspace / "mine.yaml").write_text("name: mine\nextends: 1.3B\n")
    assert cli.main(["check", str(workspace / "mine.yaml")]) == 0


def test_other_files_are_called_by_their_kind(workspace, capsys):
    """For a file that is not a run YAML, the message says what it is and which command reads it."""
    prices = workspace / "prices.yaml"
    prices.write_text("per_kwh: 0.3\nper_device_hour: {H100: {usual: 2.0}}\n")
    (workspace / "job.sh").write_text("torchrun train.py\n")
    (workspace / "ds.json").write_text('{"train_batch_size": 8}')
    (workspace / "pod.yaml").write_text("apiVersion: v1\nkind: Pod\n")
    (workspace / "job.yaml").write_text("apiVersion: v1\nkind: MPIJob\n")
    for name, words in (
        ("prices.yaml", "is a price table, not a run YAML. Plans read prices from "),
        ("job.sh", "is a shell script, not a run YAML. Run `nbtrain import job.sh -o run.yaml` to"),
        ("ds.json", "is a DeepSpeed JSON, not a run YAML. Run `nbtrain import ds.json --onto gpt-125m"),
        (
            "pod.yaml",
            "is a Kubernetes manifest (Pod), not a run YAML. nbtrain only reads manifests of "
            "kind DeepSpeedJob, TrainJob, ",
        ),
        (
            "job.yaml",
            "is a Kubernetes manifest (MPIJob), not a run YAML. Run `nbtrain import job.yaml -o run",
        ),
    ):
        assert cli.main(["plan", str(workspace / name)]) == 2
        assert f"{name}: {words}" in capsys.readouterr().err
    assert cli.main(["check", str(workspace / "pod.yaml")]) == 2
    assert "pod.yaml: this Kubernetes manifest (Pod) contains no job" in capsys.readouterr().err
    assert cli.main(["check", str(prices)]) == 0
    assert (
        "prices.yaml is not a run YAML, but a valid price table with prices for 1 device. "
        in capsys.readouterr().out
    )
    prices.write_text("per_kwh: -1\n")
    assert cli.main(["check", str(prices)]) == 2


def test_overrides_may_follow_a_flag(workspace, capsys):
    """Overrides may follow a flag, as in `check RUN a=1 --resolved b=2`; other words after it are refused."""
    assert cli.main(["check", "gpt-tiny", "batch.max_steps=3", "--resolved", "data.seed=7"]) == 0
    resolved = capsys.readouterr().out
    assert "max_steps: 3" in resolved and "seed: 7" in resolved
    with pytest.raises(SystemExit) as end:
        cli.main(["check", "gpt-tiny", "--resolved", "batch.max_steps=3", "--no-such-flag"])
    assert end.value.code == 2
    assert "unrecognized arguments: batch.max_steps=3 --no-such-flag" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("call", "where", "words"),
    [
        ("export run --to gguf my.gguf a.b=1", "words", ["my.gguf", "a.b=1"]),
        ("export run out/hf --step 500 model.seed=1", "words", ["out/hf", "model.seed=1"]),
        ("import job.yaml -o run.yaml ds.json --overwrite a.b=1", "words", ["job.yaml", "ds.json", "a.b=1"]),
        ("check a.sh --json ds.json", "overrides", ["ds.json"]),
        ("compare one --json two", "runs", ["one", "two"]),
    ],
)
def test_words_may_follow_a_flag(call, where, words):
    """Positional words may follow a flag, unlike in plain argparse, and parsing
    twice gives the same result.
    """
    for _ in range(2):
        assert getattr(cli.parse(call.split()), where) == words


@pytest.mark.parametrize(
    "call", ["plan gpt-tiny --json more", "export run --no-such-flag x", "runs a --json b"]
)
def test_words_that_a_verb_does_not_take_are_refused(call, capsys):
    with pytest.raises(SystemExit):
        cli.parse(call.split())
    assert "unrecognized arguments: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "plan.xyz",
            (
                "plan.xyz: a picture must be a .png, .svg, .pdf or .jpg file; name a file with one of these "
                "suffixes."
            ),
        ),
        ("none/plan.png", "none/plan.png: its folder does not exist. Name a file in a folder that exists."),
    ],
)
def test_a_picture_that_cannot_be_written(workspace, name, message, capsys):
    """The error about a picture that cannot be written names its suffix or its folder."""
    assert cli.main(["plan", "gpt-tiny", "--picture", str(workspace / name)]) == 2
    assert message in capsys.readouterr().err


def test_half_of_a_dataset_means_the_pair(workspace, capsys):
    """Either file of a dataset stands for the pair: `data verify x.bin` reads x.bin and x.idx."""
    assert cli.main(["data", "verify", str(workspace / "x.bin")]) == 3
    assert "x.idx" in capsys.readouterr().err


def test_generate_prints_nothing_before_it_fails(workspace, capsys):
    """A generate that fails prints only its message, without the prompt."""
    assert cli.main(["generate", "no-such-run", "-p", "def "]) == 5
    assert capsys.readouterr().out == ""
    for wrong, message in (
        (["-p", "a", "-n", "-1"], "max_new_tokens = -1 must be from 0 to 1,000,000."),
        (["-p", "\udcff"], "the prompt is not valid Unicode text: character 0 is half of a surrogate pair."),
    ):
        assert cli.main(["generate", "no-such-run", *wrong]) == 2
        assert message in capsys.readouterr().err


def test_a_line_of_prompts_ends_at_a_line_end_alone(tmp_path):
    """Prompts are split only at newlines, because JSON may contain U+2028 and U+0085."""
    path = tmp_path / "prompts.jsonl"
    prompts = ["one\u2028two", "three\x85four"]
    lines = [json.dumps({"prompt": prompt}, ensure_ascii=False) for prompt in prompts]
    path.write_text("\r\n".join([*lines, "five\x0csix", ""]), encoding="utf-8")
    assert serve._prompts_of(str(path)) == [*prompts, "five\x0csix"]
    path.write_text("\n".join([*lines, '{"prompt"']), encoding="utf-8")
    with pytest.raises(ConfigError, match=f"^{re.escape(str(path))}:3: is not JSON"):
        serve._prompts_of(str(path))


@pytest.mark.parametrize("line", [' {"prompt": "x"}', '{ "prompt": "x"}', '\ufeff{"prompt": "x"}'])
def test_json_of_prompts_in_other_forms(tmp_path, line):
    """A JSON file of prompts may have spaces around the JSON and a byte order mark."""
    path = tmp_path / "prompts.jsonl"
    path.write_text(f"{line}\n{{x}}\n", encoding="utf-8")
    assert serve._prompts_of(str(path)) == ["x", "{x}"]


def test_prompts_from_a_socket():
    """Prompts are read from stdin even if it is a socket, as when Node starts the process."""
    ours, theirs = socket.socketpair()
    ours.sendall("\ufeffeins\r\nzw\xf6lf\n".encode())
    ours.close()
    stdin = os.dup(0)
    try:
        os.dup2(theirs.fileno(), 0)
        assert serve._prompts_of("-") == ["eins", "zw\xf6lf"]
    finally:
        os.dup2(stdin, 0)
        os.close(stdin)
        theirs.close()


def test_end_of_input_deletes_nothing(workspace, monkeypatch, capsys):
    """Ctrl-D at a question counts as no, and nothing is deleted."""
    run = RunDir.named("mine")
    run.path.mkdir(parents=True)
    files.write_json(run.run_json, {"schema_version": 1, "run_id": "a", "name": "mine"})

    def end(question):
        raise EOFError

    monkeypatch.setattr("builtins.input", end)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert cli.main(["delete", "mine"]) == 0
    assert capsys.readouterr().out.endswith("\n\nNothing was deleted.\n") and run.run_json.is_file()


def test_json_of_the_queue_after_a_restart(workspace, monkeypatch, capsys):
    """Messages about a restart of the queue are not mixed with the queue's JSON."""
    said = lambda queue, everything, say: say("gpt-a: started again")  # noqa: E731
    monkeypatch.setattr("nbtrain.jobs.queue.restart.restart", said)
    assert cli.main(["queue", "--restart", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == [] and shown.err == "gpt-a: started again\n"
    assert cli.main(["queue", "--restart"]) == 0
    assert capsys.readouterr().out.startswith("gpt-a: started again\n")


def test_json_of_advice_whose_yaml_is_written(workspace, monkeypatch, capsys):
    """With --use and --json, the diff of the YAML is not mixed with the JSON."""
    advice = SimpleNamespace(use=lambda number, path: "-a +b", to_dict=lambda: {"changes": []})
    monkeypatch.setattr("nbtrain.api.verbs.advise", lambda run: advice)
    assert cli.main(["advise", "mine", "--use", "1", "-o", "b.yaml", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"changes": []}
    assert shown.err == "-a +b\nb.yaml: written. Run `nbtrain submit b.yaml` to start the run.\n"


def test_json_of_a_twin_has_no_nan(workspace, monkeypatch, capsys):
    report = SimpleNamespace(twin="gpt-tiny-twin", passed=False, to_dict=lambda: {"loss": [1.0, math.nan]})
    monkeypatch.setattr("nbtrain.proof.prove.run_twin", lambda config, submitted: report)
    assert cli.main(["twin", "gpt-tiny", "--json"]) == 7
    assert json.loads(capsys.readouterr().out, parse_constant=pytest.fail) == {"loss": [1.0, None]}


def test_what_the_locale_lacks_is_escaped(monkeypatch):
    """A character that the locale cannot encode is escaped, unless the locale passes bytes through."""
    for errors, expected in (("strict", rb"gpt-\u2588 \udce9"), ("surrogateescape", None)):
        stream = io.TextIOWrapper(io.BytesIO(), "ascii", errors)
        monkeypatch.setattr(sys, "stdout", stream)
        cli.main(["help"])
        if expected:
            print("gpt-\u2588 \udce9", end="", file=stream, flush=True)
            assert stream.buffer.getvalue().endswith(expected)
        assert stream.errors == ("backslashreplace" if expected else errors)


def test_init_brings_the_schema_that_the_yamls_name(tmp_path, capsys):
    """init copies docs/run.schema.json, to which the first line of each copied YAML refers for editors."""
    assert cli.main(["init", str(tmp_path / "my own")]) == 0
    yaml = tmp_path / "my own" / "examples" / "megatron-gpt" / "training" / "gpt-tiny.yaml"
    named = yaml.read_text().splitlines()[0].partition("$schema=")[2]
    repository = Path(__file__).parents[2]
    assert (yaml.parent / named).read_text() == (repository / "docs" / "run.schema.json").read_text()
    said = capsys.readouterr().out
    assert f"\n{tmp_path}/my own/docs\n" in said
    assert said.endswith(f"\nNext: cd {shlex.quote(f'{tmp_path}/my own')} && nbtrain lab\n")


def test_init_brings_the_pages_that_its_files_link_to(tmp_path):
    """init copies every page that its files link to, and keeps the user's files;
    other links become plain text.
    """
    assert cli.main(["init", str(tmp_path / "new")]) == 0
    (tmp_path / "old" / "docs").mkdir(parents=True)
    (tmp_path / "old" / "README.md").write_text("mine")
    assert cli.main(["init", str(tmp_path / "old")]) == 0
    for workspace in (tmp_path / "new", tmp_path / "old"):
        pages = [page for page in workspace.rglob("*") if page.suffix in (".md", ".ipynb")]
        missing = {
            link
            for page in pages
            for link in re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", page.read_text(encoding="utf-8"))
            if not (page.parent / link).exists() and (page.suffix == ".md" or workspace.name == "new")
        }
        assert missing == set()
    index = (tmp_path / "new" / "docs" / "README.md").read_text()
    assert "| What is proven, and how |" in index and "[README](../README.md)" in index
    assert not (tmp_path / "new" / "docs" / "evidence").exists()
    assert [page.name for page in (tmp_path / "old" / "docs").iterdir()] == ["run.schema.json"]
    assert (tmp_path / "old" / "README.md").read_text() == "mine"


@pytest.mark.slow
def test_a_closed_pipe_is_no_error(workspace):
    """Output into a closed pipe is not an error: `nbtrain schema | head -1` exits silently."""
    command = f"{shlex.quote(sys.executable)} -m nbtrain.cli.__main__ schema"
    done = subprocess.run(["sh", "-c", f"{command} | head -1"], capture_output=True, text=True)
    assert done.stdout == "{\n"
    assert done.stderr == ""


@pytest.mark.slow
def test_a_short_output_meets_a_closed_pipe_and_a_full_disk(workspace):
    """Output that is buffered until the exit is dropped silently for a closed pipe;
    a full disk is an error.
    """
    command = f"{shlex.quote(sys.executable)} -m nbtrain.cli.__main__ runs"
    closed = subprocess.run(["bash", "-c", f"{command} | true; exit ${{PIPESTATUS[0]}}"], capture_output=True)
    assert (closed.returncode, closed.stderr) == (0, b"")
    full = subprocess.run(["sh", "-c", f"{command} > /dev/full"], capture_output=True, text=True)
    assert full.returncode == 1
    assert full.stderr == "OSError: [Errno 28] No space left on device\n"


def test_lab_shows_the_repositorys_labextension():
    """`nbtrain lab` uses the labextension of the repository, not an older copy in the installation."""
    (option,) = [word for word in lab_command([]) if "extra_labextensions_path" in word]
    assert (Path(option.partition("=")[2]) / "nbtrain" / "package.json").is_file()


def test_lab_encrypts_what_kernels_send():
    """`nbtrain lab` encrypts kernel connections; a
    --KernelManager.transport_encryption of the user overrides that.
    """
    option = "--KernelManager.transport_encryption"
    command = [word for word in lab_command([f"{option}=disabled"]) if word.startswith(option)]
    assert command == [f"{option}=auto", f"{option}=disabled"]


def test_lab_hands_jupyterlabs_own_options_on():
    """`nbtrain lab` passes unknown options to JupyterLab; other commands refuse them."""
    options = cli.parse(["lab", "--no-browser", "--port", "8899"])
    assert options.rest == ["--no-browser", "--port", "8899"]
    with pytest.raises(SystemExit):
        cli.parse(["doctor", "--no-browser"])


def test_the_table_names_the_module_of_every_verb():
    """A command loads only its own module; the table of commands names the module of each."""
    added = {verb.module: set() for verb in VERBS.values()}
    for verb in VERBS.values():
        added[verb.module].add(verb.name)
    for verb in VERBS:
        assert set(choices(cli.parser(verb))) - set(ALIASES) == added[VERBS[verb].module]
    assert set(choices(cli.parser())) == set(VERBS)


@pytest.mark.slow
def test_a_list_of_runs_loads_little(workspace):
    """Listing ended runs imports little, because imports would take longer than the reading."""
    code = "import sys; from nbtrain.cli import main; main(['runs']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert "nbtrain.monitor.runs.runs" in loaded
    late = "hashlib logging subprocess tempfile calendar pydantic yaml psutil nbtrain.api.verbs"
    ours = (
        "nbtrain.base.run_directory.node_records nbtrain.cli.planning nbtrain.cli.checkpoint "
        "nbtrain.jobs.machine.queue_folder"
    )
    assert loaded & {*late.split(), *ours.split()} == set()


@pytest.mark.slow
def test_python_m_nbtrain_is_nbtrain():
    """python -m nbtrain behaves like nbtrain, exit codes included."""
    call = [sys.executable, "-m", "nbtrain"]
    answer = subprocess.run([*call, "--version"], capture_output=True, text=True, check=False)
    assert (answer.returncode, answer.stdout) == (0, f"nbtrain {__version__}\n")
    assert subprocess.run([*call, "nonsense"], capture_output=True, check=False).returncode == 2


def test_an_export_goes_to_a_folder_with_an_equals_sign(monkeypatch):
    """An export destination with an equals sign and a slash is a folder, not an override."""
    asked = []
    monkeypatch.setattr(
        models,
        "export_weights",
        lambda run, folders, to, overrides, *_, **__: asked.append((folders, overrides)),
    )
    assert cli.main(["export", "mine", "out/lr=1e-3", "model.seed=3"]) == 0
    assert asked == [(["out/lr=1e-3"], ["model.seed=3"])]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("model.seq_length=64", True),
        ("data.sources=[{kind: jsonl, path: a/b.jsonl}]", True),
        ("init_from=models/a=b", True),
        ("labels.team/x=a", True),
        ("labels/x=a", False),
        ("out/a=b", False),
        ("./a=b", False),
        ("/tmp/lr=1e-3/export", False),
        ("out", False),
    ],
)
def test_a_path_with_an_equals_sign_is_no_override(word, expected):
    assert is_override(word) is expected
