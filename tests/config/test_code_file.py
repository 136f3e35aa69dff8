"""The Python file that `code` names, read without running it: its functions, its problems, its path."""

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.config.code_file import RUN_CODE, carried, code_file, defines, own_loss
from nbtrain.config.load import load
from nbtrain.config.rules.own_layer import APART

APART_VALUES = {
    "lora": {"rank": 4},
    "precision.fp8": True,
    "model.compile": True,
    "parallel.fpdt_chunk_tokens": 128,
}
GOOD = '''"""A file."""
import math
WEIGHT = 2


def loss(logits, labels, mask, batch, vocabulary):
    return _sum(logits), mask.sum(), {}


def _sum(x):
    return x.sum()


def scalars(step: int) -> dict:
    return {"pi": math.pi}
'''


def read(run_yaml, tmp_path, text, name="my_code.py"):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return load(run_yaml(f"name: mine\ncode: {name}\n"))


def test_the_functions_are_found_with_their_lines(run_yaml, tmp_path):
    config = read(run_yaml, tmp_path, GOOD)
    code = code_file(config)
    assert code.lines == (("loss", 6), ("scalars", 14)) and not code.problems
    assert defines(config, "scalars") and not defines(config, "on_step")
    assert own_loss(config) == "shard"
    # A file of the same name that has changed is read again.
    (tmp_path / "my_code.py").write_text(GOOD.replace(", vocabulary", ""))
    assert own_loss(config) == "whole"


WRONG = {
    "a syntax error": ("def loss(logits:\n    pass\n", "my_code.py:1", "was never closed"),
    "a statement in the wrong place": ("x = 1\nreturn x\n", "my_code.py:2", "'return' outside function"),
    "a misspelled name": ("def los(a):\n    pass\n", "my_code.py:1", "Nearest: loss"),
    "a helper without an underscore": (
        f"{GOOD}\n\ndef smooth(x):\n    return x\n",
        "my_code.py:18",
        "rename it to _smooth",
    ),
    "a layer without its parts": (
        "def layer(config, index):\n    pass\n",
        "my_code.py:1",
        "nbtrain calls it: layer(config, index, parts). Use these parameter names",
    ),
    "a function of Megatron": (
        "def loss_func(loss_mask, output):\n    pass\n",
        "my_code.py:1",
        "Define loss() instead of Megatron's loss_func",
    ),
    "other parameters": (
        "\ndef loss(output, labels, mask, batch):\n    pass\n",
        "my_code.py:2",
        "nbtrain calls it: loss(logits, labels, mask, batch[, vocabulary])",
    ),
    "a missing parameter": ("def scalars():\n    pass\n", "my_code.py:1", "nbtrain calls it: scalars(step)"),
    "keyword parameters": (
        "def scalars(step, *, more):\n    pass\n",
        "my_code.py:1",
        "nbtrain calls it: scalars(step)",
    ),
    "a second definition": (
        f"{GOOD}\n\ndef loss(logits, labels, mask, batch):\n    pass\n",
        "my_code.py:18",
        "the first definition is in line 6",
    ),
    "a class": (
        "class loss:\n    pass\n",
        "my_code.py:1",
        "loss is a class, not a function. Write `def loss(logits",
    ),
    "an async function": ("async def scalars(step):\n    pass\n", "my_code.py:1", "is an async function"),
    "an imported function": (
        "from elsewhere import loss\n",
        "my_code.py:1",
        "loss is imported or assigned, but must be a function defined in this file",
    ),
    "no function": ("x = 1\n", "my_code.py", "defines none of the functions that nbtrain calls"),
    "another encoding": (b"# \xe9\ndef scalars(step): pass\n", "my_code.py:1", "Save the file as UTF-8"),
    "a large file": (b"#" * 100_000, "my_code.py", "may have at most 90,000"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_is_reported_with_its_place_and_the_fix(case, run_yaml, tmp_path):
    text, place, words = WRONG[case]
    problems = code_file(read(run_yaml, tmp_path, text)).problems
    assert len(problems) == 1
    assert problems[0].place.endswith(place) and problems[0].cost.fatal
    assert words in f"{problems[0].message} {problems[0].fix}"


def test_the_path_is_that_of_the_file_that_names_it(run_yaml, tmp_path, monkeypatch):
    """A path is relative to its YAML, also if another YAML extends that one; otherwise to the workspace."""
    (tmp_path / "my_code.py").write_text(GOOD)
    base = run_yaml("name: mine\ncode: my_code.py\n")
    (tmp_path / "inner").mkdir()
    other = tmp_path / "inner" / "other.yaml"
    other.write_text(f"extends: ../{base.name}\nname: other\n")
    assert code_file(load(other)).path == tmp_path / "my_code.py"
    monkeypatch.setenv("NBTRAIN_WORKSPACE", str(tmp_path / "inner"))
    (tmp_path / "inner" / "override.py").write_text(GOOD)
    assert code_file(load(base, {"code": "override.py"})).path == tmp_path / "inner" / "override.py"
    (missing,) = code_file(load(base, {"code": "missing.py"})).problems
    assert missing.place == "override code=missing.py" and "no such file" in missing.message


def test_a_path_with_dots_is_that_of_the_folder_behind_a_symlink(run_yaml, tmp_path):
    """After a symlink, ".." is the parent of its target."""
    (tmp_path / "elsewhere" / "inner").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "elsewhere"):
        (folder / "my_code.py").write_text(GOOD)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "inner")
    (tmp_path / "link" / "mine.yaml").write_text(run_yaml("name: mine\ncode: ../my_code.py\n").read_text())
    code = code_file(load(tmp_path / "link" / "mine.yaml"))
    assert code.path == tmp_path / "elsewhere" / "my_code.py" and not code.problems


def test_a_file_that_cannot_be_read_is_a_problem_until_it_can(run_yaml, tmp_path, monkeypatch):
    config = read(run_yaml, tmp_path, GOOD)
    (long,) = code_file(load(config, {"code": f"{'a' * 300}.py"})).problems
    assert "cannot be read: File name too long" in long.message

    def denied(path):
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "my_code.py").write_text(f"{GOOD}\n")
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.read_bytes", denied)
        (problem,) = code_file(config).problems
        assert "cannot be read: Permission denied" in problem.message
    assert not code_file(config).problems


def test_a_byte_order_mark_is_no_problem(run_yaml, tmp_path):
    assert not code_file(read(run_yaml, tmp_path, b"\xef\xbb\xbf" + GOOD.encode())).problems


def test_a_dry_run_carries_the_file(run_yaml, tmp_path, monkeypatch):
    config = read(run_yaml, tmp_path, GOOD)
    before = code_file(config)
    variables = carried(config)
    (tmp_path / "my_code.py").unlink()
    assert code_file(config).problems
    monkeypatch.setenv(RUN_CODE, variables[RUN_CODE])
    assert (code_file(config).name, code_file(config).sha256) == ("my_code.py", before.sha256)
    monkeypatch.delenv(RUN_CODE)
    with pytest.raises(ConfigError, match="no such file"):
        carried(config)


def test_pairs_have_their_own_loss(run_yaml, tmp_path):
    config = read(run_yaml, tmp_path, GOOD)
    with pytest.raises(ConfigError, match="with dpo the loss is computed from pairs"):
        load(config, {"dpo": {"beta": 0.1}})


def test_a_dataset_of_ones_own_is_the_only_one(run_yaml, tmp_path):
    with pytest.raises(ConfigError, match=r"data\.sources\n  has no effect, .*dataset\(\) in ") as raised:
        read(run_yaml, tmp_path, "def dataset(split):\n    return []\n")
    assert "Set data.split: 949,50,1, or remove dataset() from the file." in str(raised.value)
    load(run_yaml("name: mine\ncode: my_code.py\ndata: {sources: [], split: '949,50,1'}\n"))


def test_a_layer_of_ones_own_goes_alone(run_yaml, tmp_path):
    text = "def layer(config, index, parts):\n    return parts.mlp()\n"
    config = read(run_yaml, tmp_path, text)
    for key, value in APART_VALUES.items():
        with pytest.raises(ConfigError, match=rf"{key}.*\n  .*come from layer\(\) in .*my_code\.py"):
            load(config, {key: value})
    assert set(APART_VALUES) == set(APART)
