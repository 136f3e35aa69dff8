"""The command `nbtrain new` writes a run's YAML of at most 20 lines, which prepare and plan accept
unchanged.
"""

import json

import pytest

import nbtrain as nb
from nbtrain.base.errors import ConfigError, DataError
from nbtrain.base.hardware import nvml
from nbtrain.base.hardware.nvml import Gpu
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.workspace import tokenizer_dir
from nbtrain.cli.__main__ import main
from nbtrain.config.load import load, to_yaml
from nbtrain.jobs.machine import device_needs
from nbtrain.jobs.machine.machine import Machine
from nbtrain.jobs.machine.queue_folder import Queue
from nbtrain.jobs.new_run import name_for
from nbtrain.planner.plan import plan
from nbtrain.planner.time import rates

MACHINE = Machine("box", 2, "CPU X", frozenset(), 16 << 30, 12 << 30, ())
WORDS = ["whale", "captain", "harpoon", "ocean", "ship", "crew", "storm", "sail"]


@pytest.fixture(autouse=True)
def place(workspace, monkeypatch):
    """Create an empty workspace with sea.txt of 300 kB, on a machine with two fast cores."""
    monkeypatch.chdir(workspace)
    monkeypatch.setattr("nbtrain.jobs.new_run.machine_of_run", lambda config: MACHINE)
    monkeypatch.setattr(rates, "matmul_flops_per_core", lambda: 154e9)
    sentences = [" ".join(WORDS[(n * k + n // 8) % 8] for k in range(1, 12)) + f" {n}." for n in range(4000)]
    (workspace / "sea.txt").write_text("\n\n".join(sentences))
    return workspace


def talks(path, number=200):
    turns = [("user", "How many {} are there?"), ("assistant", "There are {}.")]
    records = [
        {"messages": [{"role": role, "content": text.format(n)} for role, text in turns]}
        for n in range(number)
    ]
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.mark.slow
def test_plain_text(place, capsys):
    """The command prints what it found and chose; other commands find its YAML by name, and prepare accepts
    it.
    """
    assert main(["new", "sea", "--text", "sea.txt"]) == 0
    shown = capsys.readouterr().out
    text = (place / "sea.yaml").read_text()
    assert text in shown and shown.endswith("Next: nbtrain prepare sea\n")
    assert len(text.splitlines()) <= 20
    config = load("sea")
    assert (config.data.name, config.tokenizer.name, config.names_tokenizer) == ("sea", "sea", False)
    assert config.data.sources[0].path == "sea.txt" and config.data.sources[0].document_bytes
    report = nb.prepare("sea")
    assert (report.manifest.counts["documents"] >= 200) and tokenizer_dir("sea").is_dir()
    assert plan(config).epochs == pytest.approx(4, rel=0.35)
    assert main(["new", "sea", "--text", "sea.txt"]) == 2
    assert "already exists" in capsys.readouterr().err
    assert main(["new", "sea", "--text", "sea.txt", "--overwrite", "--minutes", "1"]) == 0


@pytest.mark.slow
def test_every_section_has_its_reason(place):
    """Every section of the YAML has a comment with its reason, and the displayed object names the file."""
    made = nb.new("sea", "sea.txt", minutes=2, path="runs.yaml")
    lines = made.text.splitlines()
    for section in ("tokenizer", "model", "batch", "lr_schedule"):
        (number,) = [n for n, line in enumerate(lines) if line.startswith(f"{section}:")]
        assert "  # " in lines[number] or lines[number - 1].startswith("# ")
    assert all(len(line) <= 118 for line in lines)
    assert "runs.yaml: written." in str(made) and "documents, 1 file" in str(made)
    assert made.next_commands[0] == "nbtrain prepare sea"
    assert load("runs.yaml") == made.config


@pytest.mark.slow
def test_a_preset_on_gpus(place):
    """A requested size sets the model and batch, the layout suits the GPUs, and a note says that the text is
    short.
    """
    made = nb.new("sea-4", "sea.txt", size="125M", gpus=4, gpu_type="A100-80GB")
    assert len(made.text.splitlines()) <= 20
    assert made.config.world_size == 4 and made.config.resources.gpu_type == "A100-80GB"
    assert "20 are usual" in str(made)
    with pytest.raises(DataError, match="too little text"):
        nb.new("sea-64", "sea.txt", size="13B", gpus=64, gpu_type="A100-80GB")
    with pytest.raises(ConfigError, match="gpus needs gpu_type"):
        nb.new("sea-x", "sea.txt", gpus=2)


@pytest.mark.slow
def test_devices_json_limits_what_the_run_is_made_for(place, monkeypatch):
    """The run is made for the GPUs and cores that devices.json leaves to jobs, as submit counts them."""
    monkeypatch.setattr("nbtrain.jobs.new_run.machine_of_run", device_needs.machine_of_run)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    there = tuple(Gpu("NVIDIA A100-SXM4-80GB", 80 << 30, index=index) for index in range(4))
    queue = Queue()
    queue.make()

    def made_with(limits):
        queue.devices_json.write_text(json.dumps(limits))
        return nb.new("sea", "sea.txt", size="3M", overwrite=True).config

    for module in (nvml, device_needs):
        monkeypatch.setattr(module, "driver_gpus", lambda: there)
    config = made_with({"gpus": ["1", "3"]})
    assert (config.resources.device, config.world_size) == ("gpu", 2)
    assert device_needs.too_few(config, queue) == ""
    config = made_with({"gpus": [], "cores": 1})
    assert (config.resources.device, config.resources.cpus_per_node) == ("cpu", 1)
    assert device_needs.more_than_is_here(config) == []


@pytest.mark.slow
def test_conversations_become_a_fine_tuning(place, capsys):
    """From conversations, the command makes a run that fine-tunes the demo, the newest trained run, or a
    named one.
    """
    talks(place / "talks.jsonl")
    made = nb.new("talk", "talks.jsonl")
    config = made.config
    assert (config.init_from, config.tokenizer.name, config.data.name) == (
        "gpt-tiny",
        "python-docs-1k",
        "talk",
    )
    assert (config.data.packing, config.data.sources[0].kind) == ("best_fit", "chat")
    assert len(made.text.splitlines()) <= 20
    commands = ["nbtrain prepare gpt-tiny", "nbtrain submit gpt-tiny --wait"]
    assert made.next_commands[:3] == [*commands, "nbtrain prepare talk"]
    assert any("`nbtrain submit gpt-tiny --wait` to train it" in note for note in made.notes)
    # A run YAML of another folder is found by its path, and not by its name.
    (place / "bases").mkdir()
    (place / "bases" / "mine.yaml").write_text("name: mine\nextends: gpt-tiny\n")
    of_path = nb.new("talk-of-mine", "talks.jsonl", init_from="bases/mine.yaml")
    assert any("`nbtrain submit bases/mine.yaml --wait` to train it" in note for note in of_path.notes)
    nb.new("sea", "sea.txt")
    run = RunDir.named("sea")
    run.path.mkdir(parents=True)
    (run.path / "config.yaml").write_text(to_yaml(load("sea")))
    tuned = nb.new("talk-2", "talks.jsonl", init_from="sea").config
    assert (tuned.init_from, tuned.tokenizer.name, tuned.model) == ("sea", "sea", load("sea").model)
    assert tuned.lr_schedule.lr == load("sea").lr_schedule.lr / 2
    # A run YAML that starts from another model passes that start on.
    (place / "start.yaml").write_text(f"{(place / 'talk.yaml').read_text()}")
    again = nb.new("talk-3", "talks.jsonl", init_from="start.yaml").config
    assert again.init_from == "gpt-tiny"
    with pytest.raises(ConfigError, match="--size chooses a model to train from scratch"):
        nb.new("talk-4", "talks.jsonl", size="125M")
    with pytest.raises(ConfigError, match="is plain text"):
        nb.new("talk-4", "sea.txt", init_from="sea")
    talks(place / "few.jsonl", 5)
    with pytest.raises(DataError, match="too few examples to fine-tune a model"):
        nb.new("talk-4", "few.jsonl")


def test_what_is_too_short_writes_nothing(place, capsys):
    """If a text is too short, nothing is written, the message contains the numbers, and the command exits
    with DataError's code.
    """
    (place / "short.txt").write_text("Too short. " * 100)
    assert main(["new", "short", "--text", "short.txt"]) == 3
    assert "too short to train a model on" in capsys.readouterr().err
    assert not (place / "short.yaml").exists()


@pytest.mark.parametrize("verb", ["prepare", "plan", "submit", "check"])
@pytest.mark.parametrize("name", ["my text.jsonl", "book.txt.gz", "tasks.json"])
def test_a_text_in_place_of_a_run(place, capsys, verb, name):
    """If a command gets a text file instead of a run, its message names the command that makes a run from the
    file.
    """
    (place / name).write_text("[{}]")
    quoted = f"'{name}'" if " " in name else name
    assert main([verb, name]) == 2
    assert f"`nbtrain new my-run --text {quoted}` to create a run YAML" in capsys.readouterr().err


def test_a_folder_in_place_of_a_run(place, capsys):
    """If a command gets a folder that contains text instead of a run, its message is the same as for a
    file.
    """
    (place / "texts").mkdir()
    assert main(["prepare", "texts"]) == 2
    assert "nbtrain new" not in capsys.readouterr().err
    (place / "texts" / "a.md").write_text("text")
    assert main(["prepare", "texts"]) == 2
    assert "The folder contains text files. Run `nbtrain new my-run --text texts`" in capsys.readouterr().err


def test_names_of_files(place):
    """The suggested name is a valid name for a run, whatever the file is called."""
    names = {"My Books.jsonl.gz": "my-books", "字.txt": "my-run", "a_b.txt": "a-b", "-x-.md": "x"}
    assert {name: name_for(place / name) for name in names} == names


def test_check_names_what_prepare_would_fail_at(place, capsys):
    """Check reports what would make prepare fail: a missing file, or records that need another kind of
    source.
    """
    talks(place / "talks.jsonl")
    run = "extends: gpt-tiny\nname: x\ndata: {{sources: [{{kind: jsonl, path: {}}}]}}\n"
    (place / "x.yaml").write_text(run.format("gone.jsonl"))
    main(["check", "x"])
    assert "data.sources[0].path = gone.jsonl: no such file or folder." in capsys.readouterr().out
    (place / "x.yaml").write_text(run.format("talks.jsonl"))
    main(["check", "x"])
    fitting = "use the source {kind: chat, path: talks.jsonl} with data.packing: best_fit."
    assert fitting in capsys.readouterr().out
    with pytest.raises(DataError) as caught:
        nb.prepare("x")
    assert str(caught.value).endswith(fitting)
    (place / "x.yaml").write_text(run.format("hf://datasets/org/name"))
    assert main(["check", "x"]) == 2
    assert "hf download org/name --repo-type dataset" in capsys.readouterr().err
