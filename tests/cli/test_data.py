"""`nbtrain data ...`: help, run YAMLs and prefixes as targets, messages and exit codes."""

import os
import subprocess
import sys

import pytest

from nbtrain.cli import __main__ as cli
from tests.dataset.conftest import make_config, texts  # noqa: F401
from tests.dataset.dataset_maker import make_dataset

RUN_YAML = """
name: small
model: {num_layers: 1, hidden_size: 8, num_attention_heads: 1, seq_length: 16}
tokenizer: {name: small, vocab_size: 300}
data: {name: small, sources: [{kind: jsonl, path: texts.jsonl}], split: "70,20,10"}
batch: {micro_batch_size: 2, global_batch_size: 4, train_tokens: 1920}
lr_schedule: {lr: 1.0e-3}
evaluation: {eval_iters: 2}
"""


@pytest.mark.parametrize("verb", ["prepare", "inspect", "verify", "card", "merge", "repair"])
def test_each_verb_has_help(verb, capsys):
    """`nbtrain data COMMAND --help` names the command and exits with 0."""
    with pytest.raises(SystemExit) as end:
        cli.main(["data", verb, "--help"])
    assert end.value.code == 0
    assert f"nbtrain data {verb}" in capsys.readouterr().out


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="OpenBLAS makes no threads on one core")
@pytest.mark.slow
def test_prepare_starts_without_threads_that_spin():
    """Importing NumPy starts no further threads, because idle OpenBLAS threads would use CPU time."""
    code = (
        "import os, sys; from nbtrain import cli; code = cli.main(['prepare', 'no-such-run']); "
        "print(code, 'numpy' in sys.modules, len(os.listdir('/proc/self/task')))"
    )
    names = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    made = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert made.stdout.split() == ["2", "True", "1"], made.stderr


def test_a_run_yaml_is_its_dataset(make_config, texts, workspace, capsys):  # noqa: F811
    """A run YAML stands for its dataset: the card shows the run's splits, and the
    other commands read its files.
    """
    make_dataset(make_config(), texts)
    path = workspace / "small.yaml"
    path.write_text(RUN_YAML)
    assert cli.main(["data", "card", str(path), "data.split=50,40,10"]) == 0
    assert "train         60" in capsys.readouterr().out
    for verb in ("inspect", "verify", "repair"):
        assert cli.main(["data", verb, str(path)]) == 0
        assert "small" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (
            ["inspect", "none"],
            3,
            "DataError: none: there is no dataset with this name in data/dataset, and no none.idx.",
        ),
        (["verify", "none.idx"], 3, "DataError: none: there is no dataset with this name"),
        (["repair", "none"], 3, "DataError: none: there is no dataset with this name"),
        (["merge", "all", "none"], 3, "DataError: none: there is no dataset with this name"),
        (["card", "none"], 3, "DataError: none: there is no dataset with this name"),
        (["card", "none", "data.split=1,0,0"], 2, "ConfigError: none: no such run YAML"),
    ],
)
def test_errors_are_a_message_and_a_code(workspace, arguments, code, message, capsys):
    """An error says what is missing and what exists, and sets an exit code."""
    assert cli.main(["data", *arguments]) == code
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_inspect_with_a_tokenizer(make_config, texts, workspace, capsys):  # noqa: F811
    """The option --tokenizer accepts a name or a path."""
    make_dataset(make_config(), texts)
    for named in ("small", "data/tokenizer/small"):
        assert cli.main(["data", "inspect", "small", "--tokenizer", named]) == 0
        assert f"  | {texts[0]}\n" in capsys.readouterr().out
    assert cli.main(["data", "inspect", "small", "--tokenizer", "other"]) == 3
    assert "other: there is no tokenizer with this name in data/tokenizer" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--html", "--json"])
@pytest.mark.parametrize("path", ["/", "nowhere/card", "."])
def test_a_card_that_cannot_be_written(workspace, capsys, option, path):
    """If the card cannot be written, that is reported before the card is computed."""
    path += option.replace("--", ".") if path.endswith("card") else ""
    assert cli.main(["data", "card", "x", option, path]) == 2
    assert capsys.readouterr().err == (
        f"ConfigError: {path} cannot be written. Name a file in a folder that exists.\n"
    )
