"""Finding a run's name by its run id."""

from pathlib import Path

from nbtrain.base.files import write_json
from nbtrain.monitor.status.run_ids import name_of


def test_a_run_is_found_by_its_id_and_lost_with_its_folder(tmp_path: Path) -> None:
    """A run is found by its id after its folder was renamed, also next to damaged runs, but not after it was
    deleted.
    """
    for name, run_id in (("first", "a1"), ("second", "b2")):
        (tmp_path / name).mkdir()
        write_json(tmp_path / name / "run.json", {"run_id": run_id, "name": name})
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.json").write_text('{"run_id": "a1"')
    assert (name_of("a1", tmp_path), name_of("b2", tmp_path), name_of("c3", tmp_path)) == (
        "first",
        "second",
        None,
    )
    (tmp_path / "first").rename(tmp_path / "renamed")
    assert name_of("a1", tmp_path) == "renamed"
    (tmp_path / "second").rename(tmp_path / ".second.00ff.deleted")
    assert name_of("b2", tmp_path) is None
