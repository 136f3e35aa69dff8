"""`nbtrain search` and `nbtrain largest`: output, files, and exit codes."""

import json

import pytest

from nbtrain.cli.__main__ import main
from nbtrain.config.load import load

ARGUMENTS = ["--gpus", "8", "--gpu-type", "A100-40GB"]


def test_search_prints_the_table(capsys):
    """search prints the table of layouts, the reasons for the first one, and the refused layouts."""
    assert main(["search", "1.3B", *ARGUMENTS, "--top", "3"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Layouts of gpt-1-3b-4xdp on 8 x A100-40GB: ")
    assert "Why number 1: " in out and "\nRefused\n" in out and "\n3  " in out and "\n4  " not in out


@pytest.mark.slow
def test_search_as_json_one_layouts_reasons_and_all_refusals(capsys):
    """--json prints the table as JSON, --why one layout's reasons, and --refused all refused layouts."""
    assert main(["search", "1.3B", "batch.micro_batch_size=8", *ARGUMENTS, "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["gpu_type"] == "A100-40GB" and len(record["layouts"]) == 10
    assert main(["search", "1.3B", *ARGUMENTS, "--why", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Layout 2: ") and len(lines) == 7
    assert main(["search", "1.3B", *ARGUMENTS, "--refused"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + len(record["refused"])


@pytest.mark.slow
def test_search_writes_the_yaml_of_a_layout(tmp_path, capsys):
    """--use and -o together write the YAML of a layout; --force overwrites an existing file."""
    path = tmp_path / "fast.yaml"
    arguments = ["search", "1.3B", *ARGUMENTS, "--use", "1", "-o", str(path)]
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert load(path).world_size == 8
    assert main(arguments) == 2
    assert "already exists. Name another file, or overwrite the file with --force" in capsys.readouterr().err
    assert main([*arguments, "--force", "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["layouts"] and shown.err == f"{path}\n"
    assert main(["search", "1.3B", *ARGUMENTS, "--use", "1"]) == 2
    assert "--use N and -o RUN.yaml together" in capsys.readouterr().err


def test_more_gpus_than_the_batch_has_copies_for(capsys):
    """If the batch allows too few replicas for all GPUs, that is the only reason reported."""
    assert main(["search", "1.3B", "--gpus", "1000000", "--gpu-type", "H100"]) == 0
    assert capsys.readouterr().out.splitlines()[1] == (
        "No layout is legal. The batch limits the number of model replicas (DP): global_batch_size(512) / "
        "micro_batch_size(1) allows at most 512. With 1,000,000 GPUs, each replica must then be divided "
        "across at least 1,954 GPUs (TP x PP x Ulysses or CP). Use fewer GPUs or larger batches."
    )


@pytest.mark.slow
def test_search_draws(tmp_path, capsys):
    """--picture writes the plot."""
    path = tmp_path / "search.png"
    assert main(["search", "1.3B", *ARGUMENTS, "--picture", str(path)]) == 0
    assert path.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search", "1.3B", "--gpus", "12", "--gpus-per-node", "8"], "Nearest: 8, 16."),
        (["search", "1.3B", "--top", "0"], "top = 0 must be at least 1."),
        (["search", "1.3B", *ARGUMENTS, "--why", "9999"], "numbered from 1."),
        (["largest", "1.3B", "--gpu-type", "A100"], "is not in the device table. Nearest: A100-40GB"),
    ],
)
def test_mistakes_are_messages(arguments, message, capsys):
    """A wrong argument gives exit code 2 and one message, never a traceback."""
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_largest_prints_answers_and_comparison(capsys):
    """largest prints the largest model, and a table that compares three ways to shard models."""
    assert main(["largest", "1.3B", "--gpus", "1", "--gpu-type", "L4"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "The largest model of the GPT family that fits on 1 x L4 with sequences of 2,048 tokens "
    )
    assert [line.split("  ")[0] for line in out.splitlines()[-3:]] == ["pure TP x PP", "pure ZeRO 3", "fused"]
