"""Relative paths mean the same from the workspace root, from notebooks/ and from folders below it."""

from pathlib import Path

import pytest

from nbtrain.base import workspace as places
from nbtrain.base.errors import ConfigError


def test_the_workspace_is_found_from_below(tmp_path, monkeypatch):
    """The workspace is found from any folder below it, where JupyterLab and papermill start kernels."""
    for variable in places.FOLDER_VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "notebooks" / "deep").mkdir(parents=True)
    (tmp_path / "examples" / "megatron-gpt").mkdir(parents=True)
    for folder in (tmp_path, tmp_path / "notebooks", tmp_path / "notebooks" / "deep", tmp_path / "examples"):
        monkeypatch.chdir(folder)
        assert places.workspace() == tmp_path
        assert places.output_root() == tmp_path / "output"
        assert places.resolve("corpus/a.txt") == tmp_path / "corpus" / "a.txt"


def test_an_error_says_which_folder_was_looked_in_and_why(tmp_path, monkeypatch):
    """The error gives the absolute path that was searched and, outside a workspace, how to fix it."""
    monkeypatch.delenv("NBTRAIN_WORKSPACE", raising=False)
    monkeypatch.chdir(tmp_path)
    assert places.the_workspace().startswith(
        f"The workspace is {tmp_path}, the current folder, because no folder at"
    )
    assert places.the_workspace().endswith("Go to the workspace of the run, or set NBTRAIN_WORKSPACE to it.")
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "examples" / "megatron-gpt").mkdir(parents=True)
    assert places.the_workspace() == f"The workspace is {tmp_path}, found from the current folder."
    monkeypatch.setenv("NBTRAIN_WORKSPACE", str(tmp_path))
    assert places.the_workspace() == f"The workspace is {tmp_path} (NBTRAIN_WORKSPACE)."


def test_a_home_folder_is_meant_by_a_tilde(monkeypatch):
    monkeypatch.setenv("HOME", "/home/of-mine")
    for read in (places.typed_path, places.resolve):
        assert read("~/model") == Path("/home/of-mine/model")
        with pytest.raises(
            ConfigError, match=r"^~absent-user/x: there is no home folder ~absent-user on this machine"
        ):
            read("~absent-user/x")


def test_the_environment_moves_output_and_data(workspace, monkeypatch, tmp_path):
    """An absolute NBTRAIN_OUTPUT is used unchanged, and a relative one is below the workspace."""
    monkeypatch.setenv("NBTRAIN_OUTPUT", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("NBTRAIN_DATA", "shared-data")
    assert places.output_root() == tmp_path / "elsewhere"
    assert places.data_home() == workspace / "shared-data"
    assert places.folder_variables() == {
        "NBTRAIN_WORKSPACE": str(workspace),
        "NBTRAIN_OUTPUT": str(tmp_path / "elsewhere"),
        "NBTRAIN_DATA": str(workspace / "shared-data"),
    }


def test_a_free_name_is_the_name_of_nothing(workspace):
    """A folder or a link to nothing occupies its name, and a long name is cut to make room for the number."""
    root = places.output_root()
    assert places.free_name("gpt") == "gpt" and places.free_name("gpt", "again") == "gpt-again"
    for name in ("gpt", "gpt-2", "gpt-again"):
        (root / name).mkdir(parents=True)
    (root / "gpt-3").symlink_to(root / "gone")
    assert places.free_name("gpt") == "gpt-4" and places.free_name("gpt", "again") == "gpt-again-2"
    long = f"{'a' * 50}-bc"
    assert places.free_name(long) == long and places.valid_name(long)
    (root / long).mkdir()
    assert places.free_name(long) == f"{'a' * 50}-2"
    assert places.suffixed_name(long, "reference") == f"{'a' * 43}-reference"


def test_a_folder_without_marks_is_its_own_workspace(tmp_path, monkeypatch):
    """Outside any workspace, output and data are stored below the working directory."""
    monkeypatch.delenv("NBTRAIN_WORKSPACE", raising=False)
    monkeypatch.chdir(tmp_path)
    assert places.workspace() == tmp_path
