"""The list of patches to DeepSpeed is complete and up to date."""

import ast
import re
from importlib.metadata import version
from pathlib import Path

import pytest

from nbtrain.train.engine.patches import PATCHES

REPOSITORY = Path(__file__).parents[3]
# An assignment to a name of DeepSpeed's engine, optimizer or modules: `engine.x = `, `optimizer.step = `.
REPLACES = re.compile(
    r"^\s*(?:self\._|patched\.)?engine\.(checkpoint_engine|_take_model_step|_INSTRUCTION_MAP) = ", re.M
)


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.replaces)
def test_each_row_names_a_test_and_a_file_that_exist(patch):
    file, _, name = patch.test.partition("::")
    tree = ast.parse((REPOSITORY / file).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, patch.test
    held = (REPOSITORY / patch.where).read_text()
    last = patch.replaces.rpartition(".")[2]
    assert last in held or last in (REPOSITORY / "nbtrain/train/engine/patches.py").read_text()
    assert patch.reason and not patch.reason.endswith(".")


def test_the_rows_are_of_the_installed_deepspeed():
    """Each patch names the installed version of DeepSpeed. After an update, check for each patch whether its
    test still fails without it.
    """
    assert {patch.version for patch in PATCHES} == {version("deepspeed")}


def test_nothing_else_is_replaced():
    """Every place in our code that assigns an attribute of a DeepSpeed engine is in the list of patches."""
    names = " ".join(patch.replaces for patch in PATCHES)
    for path in sorted((REPOSITORY / "nbtrain").rglob("*.py")):
        for name in REPLACES.findall(path.read_text()):
            assert name in names, f"{path}: {name}"
