"""Commands on docs/serving-elsewhere.md use only flags that the other programs' parsers have."""

import re
import shlex
from pathlib import Path

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.cli import __main__ as cli
from nbtrain.config.load import load
from nbtrain.pretrained.written import family_of

PAGE = Path(__file__).parents[2] / "docs" / "serving-elsewhere.md"
# From the argument parsers of vllm-0.33.0 (engine/arg_utils.py, entrypoints/common/cli_args.py) and
# sglang-0.5.23 (srt/arg_groups/fields), and tools/server/README.md of llama.cpp at 00dc805.
FLAGS = {
    "vllm": {
        "--data-parallel-address",
        "--data-parallel-rpc-port",
        "--data-parallel-size",
        "--data-parallel-size-local",
        "--data-parallel-start-rank",
        "--dtype",
        "--headless",
        "--master-addr",
        "--nnodes",
        "--node-rank",
        "--pipeline-parallel-size",
        "--port",
        "--served-model-name",
        "--tensor-parallel-size",
    },
    "python": {
        "--dist-init-addr",
        "--dp-size",
        "--dtype",
        "--host",
        "--model-path",
        "--nnodes",
        "--node-rank",
        "--port",
        "--served-model-name",
        "--tp-size",
    },
    "llama-server": {
        "--ctx-size",
        "--model",
        "--n-gpu-layers",
        "--port",
        "--split-mode",
        "--tensor-split",
    },
}


def commands() -> list[list[str]]:
    """Return the words of all commands in console blocks."""
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    lines = [line.split("$ ", 1)[1] for block in blocks for line in block.splitlines() if "$ " in line]
    return [shlex.split(line) for line in lines]


@pytest.mark.parametrize("program", FLAGS)
def test_flags_are_the_programs_own(program):
    """Every flag on the page is in the list here, and every flag in the list is on the page."""
    used = {word for words in commands() if words[0] == program for word in words if word.startswith("--")}
    used |= {"--dtype"} & FLAGS[program]  # in the table
    assert used == FLAGS[program]


def test_our_own_commands_are_accepted():
    """nbtrain's parser accepts the page's nbtrain commands."""
    ours = [words[1:] for words in commands() if words[0] == "nbtrain"]
    assert ours
    for words in ours:
        cli.parse(words)


@pytest.mark.parametrize(
    ("architecture", "changes", "row"),
    [
        ("qwen3", {"model.add_bias_linear": True}, "biases of `add_bias_linear` in a Qwen3"),
        ("qwen2", {"model.kv_channels": 40}, "in a Qwen2 (`kv_channels`)"),
    ],
)
def test_no_row_is_about_a_model_that_is_not_exported(architecture, changes, row):
    config = load("gpt-tiny", {"model.architecture": architecture, **changes})
    with pytest.raises(
        ConfigError, match="is not supported by any Hugging Face architecture that nbtrain writes"
    ):
        family_of(config)
    assert row not in PAGE.read_text(encoding="utf-8")
