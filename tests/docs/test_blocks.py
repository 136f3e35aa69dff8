"""Every code block of the documentation is run by a test, in most cases by test_commands.py in the soak.

A comment before a block names another test, `<!-- run by FILE -->`, or a reason, `<!-- not run: REASON -->`.
The tests here make the cheap checks: commands are parsed, and YAML is compared with the schema.
"""

import json
import re
import shlex

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.cli.__main__ import parse
from nbtrain.config.arithmetic.devices import find_device
from nbtrain.config.load import load
from nbtrain.jobs.sweep.sweep_file import read_sweep
from nbtrain.monitor.runs.published import parse_published
from nbtrain.planner.budget.cost import checked_prices
from tests.docs.pages import REPOSITORY, Block, blocks, commands, markdown

# Pages whose blocks are all run by separate tests.
OWN_TESTS = {
    "README.md": "tests/end_to_end/test_readme.py",
    "README.zh-CN.md": "tests/end_to_end/test_readme.py",
    "docs/commands.md": "tests/cli/test_cli.py",
    "docs/errors.md": "tests/docs/test_errors.py",
    "docs/finetuning-data.md": "tests/docs/test_finetuning_data.py",
    "docs/import.md": "tests/docs/test_import.py",
    "docs/parallelism-explained.md": "tests/docs/test_parallelism_explained.py",
    "docs/preferences.md": "tests/docs/test_preferences.py",
    "docs/serving-elsewhere.md": "tests/docs/test_serving_elsewhere.py",
    "examples/megatron-gpt/README.md": "tests/end_to_end/test_example_commands.py",
}
PAGES = {
    str(path.relative_to(REPOSITORY)): blocks(markdown(path))
    for pattern in ("README*.md", "docs/*.md", "examples/**/*.md")
    for path in sorted(REPOSITORY.glob(pattern))
}
BLOCKS = [(page, block) for page, found in PAGES.items() for block in found]
# Verbs whose `key=value` is not a setting of a run.
NOT_SETTINGS = ("compare", "evaluate", "lab", "label", "notebook", "runs")
# Run in the soak, checked here, shown as a command's output, or data that no program of the page reads.
RUN, CHECKED, SHOWN = ("sh", "python"), ("yaml", "json"), ("text", "diff")


def every(*languages: str) -> pytest.MarkDecorator:
    found = [(page, block) for page, block in BLOCKS if block.language in languages]
    ids = [f"{page}-{number}" for number, (page, _) in enumerate(found)]
    return pytest.mark.parametrize(("page", "block"), found, ids=ids)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_run_by_a_test(page):
    """Every block has a language that a test runs, or a comment that names an existing test or a reason."""
    for block in PAGES[page]:
        if page in OWN_TESTS:
            assert (REPOSITORY / OWN_TESTS[page]).is_file()
            continue
        first = block.text.partition("\n")[0]
        if not block.mark:
            assert block.language in (*RUN, *CHECKED, *SHOWN), (
                f"{page}: nothing runs {block.language}: {first}"
            )
        elif runner := re.fullmatch(r"run by (tests/\S+\.py)", block.mark):
            assert (REPOSITORY / runner[1]).is_file(), f"{page}: {runner[1]}"
        else:
            assert re.fullmatch(r"not run: .{10,}", block.mark), (
                f"{page}: <!-- {block.mark} --> before {first}"
            )


@every("sh", "console")
def test_commands_are_understood(page, block):
    """Commands in blocks are accepted by the parsers; their GPU types and keys exist."""
    for line in " && ".join(commands(block)).split(" && "):
        words = shlex.split(line.partition(" > ")[0].partition(" | ")[0], comments=True)
        if not words or words[0] != "nbtrain" or words[1:2] == ["help"]:
            continue
        options = parse(words[1:])
        if gpu_type := getattr(options, "gpu_type", None):
            assert find_device(gpu_type), line
        overrides = [word for word in words if re.match(r"[a-z_]+(\.[a-z_]+)*=", word)]
        if words[1] not in NOT_SETTINGS and page != "docs/errors.md":
            load("gpt-tiny", overrides, check=False)


@every("yaml")
def test_yaml_has_keys_that_a_run_has(page, block, tmp_path):
    """YAML blocks have only keys that a run has, at the top level or in the section
    that the page describes. Published figures (docs/runs.md), prices (docs/plan.md) and sweeps
    (docs/sweeps.md) are read as such.
    """
    if "per_device_hour" in block.text:
        (tmp_path / "prices.yaml").write_text(block.text)
        assert checked_prices(tmp_path / "prices.yaml")
        return
    if "samples/s" in block.text:
        assert parse_published(block.text, page)
        return
    if block.text.startswith("sweep:"):
        (tmp_path / "sweep.yaml").write_text(block.text)
        assert read_sweep(tmp_path / "sweep.yaml").runs
        return
    text = re.sub(r"^extends: output/.*$", "extends: gpt-125m", block.text, flags=re.MULTILINE)
    path = tmp_path / "page.yaml"
    path.write_text(text if "extends:" in text else f"extends: gpt-125m\nname: page\n{text}")
    load(path, check=False)


@every("json")
def test_json_can_be_read(page, block):
    """JSON blocks can be parsed, as a whole or line by line."""
    try:
        json.loads(block.text)
    except ValueError:
        for line in block.text.splitlines():
            json.loads(line)


@pytest.mark.parametrize("page", PAGES)
def test_python_names_are_there(page):
    """Python names in blocks, tables and sentences are public functions and methods."""
    import nbtrain as nb
    from nbtrain.api.run import Run

    text = markdown(REPOSITORY / page)
    functions = set(re.findall(r"\bnb\.(\w+)\(", text))
    assert functions <= set(nb.__all__), page
    methods = set(re.findall(r"`run\.(\w+)", text)) - {"schema"}
    assert {name for name in methods if not hasattr(Run, name)} == set(), page


def test_a_wrong_block_is_noticed(tmp_path):
    """Each of these checks fails on a block with a mistake."""
    with pytest.raises(SystemExit):
        test_commands_are_understood("page", Block("sh", "nbtrain plan gpt-tiny --no-such-option", "", False))
    with pytest.raises(ConfigError, match="has no key"):
        test_commands_are_understood("page", Block("sh", "nbtrain plan gpt-tiny optimizer.lr=1", "", False))
    with pytest.raises(ConfigError, match="has no key"):
        test_yaml_has_keys_that_a_run_has(
            "page", Block("yaml", "batch: {micro_batch: 1}", "", False), tmp_path
        )
    (block,) = blocks("<!-- run by tests/none.py -->\n```sh\nls\n```\n")
    assert (block.language, block.mark, block.is_output) == ("sh", "run by tests/none.py", False)
    assert [
        block.is_output for block in blocks("```sh\nls\n```\n\n```text\na\n```\n\n```text\nb\n```\n")
    ] == [
        False,
        True,
        False,
    ]
