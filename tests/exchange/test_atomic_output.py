"""A new model folder or file appears only when it is complete, and never replaces an existing one."""

import pytest

from nbtrain.base.errors import CheckpointError
from nbtrain.exchange.atomic_output import new_place


@pytest.mark.parametrize("file", [None, "model.gguf"])
def test_what_appears_meanwhile_is_kept(tmp_path, monkeypatch, file):
    """If two exports write to the same path, the one that ends last is rejected."""
    monkeypatch.setenv("NBTRAIN_WORKSPACE", str(tmp_path))
    to = tmp_path / "out"
    with pytest.raises(CheckpointError) as refused, new_place(to, 0, file) as late:
        (late / "model.gguf").write_text("late")
        with new_place(to, 0, file) as early:
            (early / "model.gguf").write_text("early")
    assert str(refused.value) == "out already exists, and it is not overwritten. Choose another path."
    assert (to / "model.gguf" if file is None else to).read_text() == "early"
    assert list(tmp_path.iterdir()) == [to]


def test_a_name_that_no_disk_takes(tmp_path):
    to = tmp_path / ("o" * 300)
    said = r"cannot be written: File name too long\. Choose another path"
    with pytest.raises(CheckpointError, match=said), new_place(to, 0):
        pass
    assert list(tmp_path.iterdir()) == []


def test_leftovers_are_of_this_name_alone(tmp_path):
    """Temporary leftovers are matched by their exact name, in which pattern characters have no special
    meaning.
    """
    for name in ("a*", "a**b", "[ab]"):
        (tmp_path / f".{name}.1234.tmp").mkdir()
    (tmp_path / ".ab.1234.tmp").mkdir()
    for name in ("a*", "a**b", "[ab]"):
        with new_place(tmp_path / name, 0):
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == [".ab.1234.tmp", "[ab]", "a*", "a**b"]
