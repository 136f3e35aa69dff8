"""Writing a planned run as a YAML: what it extends, what it contains, and when it is not written."""

import pytest

from nbtrain.base.errors import ConfigError
from nbtrain.config.load import load
from nbtrain.planner.run_file import write_run

LAYOUT = {"parallel.data_parallel_size": 8, "parallel.pipeline_parallel_size": 2, "batch.micro_batch_size": 8}


def test_the_file_holds_what_differs(tmp_path):
    """The file extends a shipped example by name and contains only the differences; when it is loaded, the
    run has the file's name.
    """
    config = load("gpt-13b-4xdp-4xpp", LAYOUT)
    path = write_run(config, tmp_path / "faster.yaml", "Written by a test.\nTwo lines.")
    assert path.read_text() == (
        "# Written by a test.\n# Two lines.\nname: faster\nextends: gpt-13b-4xdp-4xpp\n"
        "batch:\n  micro_batch_size: 8\nparallel:\n  data_parallel_size: 8\n  pipeline_parallel_size: 2\n"
    )
    assert load(path).model_dump() == load(config, {"name": "faster"}).model_dump()
    assert [entry.name for entry in tmp_path.iterdir()] == ["faster.yaml"]


def test_a_name_with_dots_stays_one_name(tmp_path):
    """A label with dots, as on a cluster's nodes, stays a single key."""
    config = load("gpt-tiny", {"backend.kubernetes.node_selector": {"nvidia.com/gpu.product": "A100"}})
    text = write_run(config, tmp_path / "b.yaml").read_text()
    assert "\n  kubernetes:\n    node_selector:\n      nvidia.com/gpu.product: A100\n" in text


def test_a_run_of_ones_own_is_extended_by_file(tmp_path):
    """A user's YAML is extended by its file name if it is in the same folder as the new file, and by its path
    otherwise.
    """
    own = tmp_path / "own.yaml"
    own.write_text("name: own\nextends: gpt-tiny\nmodel:\n  num_layers: 2\n")
    config = load(own, {"batch.max_steps": 3})
    assert "extends: own.yaml\nbatch:\n  max_steps: 3\n" in write_run(config, tmp_path / "b.yaml").read_text()
    (tmp_path / "deep").mkdir()
    text = write_run(config, tmp_path / "deep" / "c.yaml").read_text()
    assert f"extends: {own}\n" in text
    # A file that shares the name of a shipped one does not extend itself.
    shipped = write_run(load("gpt-tiny", {"batch.max_steps": 3}), tmp_path / "gpt-tiny.yaml")
    assert load(shipped).batch.max_steps == 3


def test_nothing_is_overwritten_unasked(tmp_path):
    """An existing file is overwritten only with overwrite=True, even by a run that was derived from it."""
    path = write_run(load("gpt-tiny", {"batch.max_steps": 3}), tmp_path / "run.yaml")
    before = path.read_text()
    with pytest.raises(ConfigError) as error:
        write_run(load(path, {"batch.max_steps": 4}), path)
    assert str(error.value) == (
        f"{path} already exists. Name another file, or overwrite the file with --force (in Python, "
        "overwrite=True)."
    )
    assert path.read_text() == before
    write_run(load(path, {"batch.max_steps": 4}), path, overwrite=True)
    assert load(path).batch.max_steps == 4
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(ConfigError, match=r"folder\.yaml is a folder\. Name a file in the folder"):
        write_run(load("gpt-tiny"), tmp_path / "folder.yaml", overwrite=True)


def test_a_broken_run_is_not_written(tmp_path):
    """No file is written for a run that breaks a rule, for a name that does not end like a YAML, or in a
    folder that does not exist.
    """
    broken = load("gpt-tiny", {"batch.micro_batch_size": 7}, check=False)
    with pytest.raises(ConfigError, match=r"batch.global_batch_size = 8\n  must be a multiple of"):
        write_run(broken, tmp_path / "broken.yaml")
    with pytest.raises(ConfigError, match=r"run.json: the name of a run YAML must end in .yaml or .yml\."):
        write_run(load("gpt-tiny"), tmp_path / "run.json")
    with pytest.raises(ConfigError, match=r"^5 is not the path of a file to write"):
        write_run(load("gpt-tiny"), 5)
    with pytest.raises(ConfigError, match=r"missing/run.yaml cannot be written \(No such file"):
        write_run(load("gpt-tiny"), tmp_path / "missing" / "run.yaml")
    assert list(tmp_path.iterdir()) == []


def test_another_architecture_is_written_with_all_of_its_fields(workspace):
    """If the architecture differs, all fields that its name sets when it is loaded are written, even those
    that are equal in the base run.
    """
    (workspace / "base.yaml").write_text(
        "name: base\nmodel: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, rotary_base: 500.0}\n"
        "tokenizer: {name: a, vocab_size: 500}\ndata: {name: a}\nlr_schedule: {lr: 1e-4}\n"
        "batch: {micro_batch_size: 1, global_batch_size: 1, train_tokens: 1e6}\n"
    )
    config = load("base.yaml", {"model.architecture": "llama", "model.rotary_base": 500.0})
    assert load(write_run(config, workspace / "new.yaml")).model == config.model
