"""The folder that TensorBoard reads: a link for each run."""

from pathlib import Path

from nbtrain.lab.server.tensorboard_runs import RunLinks


def test_a_run_is_one_entry_by_its_name(tmp_path: Path) -> None:
    """A run is one entry by its name, without runs in twins, without event files, or elsewhere; a deleted run
    is removed."""
    root = tmp_path / "output"
    for folder in (
        "gpt/tensorboard",
        "twin/tensorboard",
        "twin/proof/gpt/tensorboard",
        "new",
        ".gone/tensorboard",
    ):
        (root / folder).mkdir(parents=True)
    (tmp_path / "elsewhere" / "tensorboard").mkdir(parents=True)
    (root / "outside").symlink_to(tmp_path / "elsewhere")
    links = RunLinks(root)
    links.refresh()
    shown = {link.name: link.resolve() for link in links.folder.iterdir()}
    assert shown == {name: root / name / "tensorboard" for name in ("gpt", "twin")}
    (root / "gpt").rename(root / ".gpt")
    (root / "new" / "tensorboard").mkdir()
    links.refresh()
    assert {link.name for link in links.folder.iterdir()} == {"twin", "new"}
    links.remove()
    assert not links.folder.exists() and (root / "new" / "tensorboard").is_dir()


def test_an_output_root_that_is_not_there_yet_has_no_run(tmp_path: Path) -> None:
    """A missing output directory has no runs until the first one is created."""
    links = RunLinks(tmp_path / "output")
    links.refresh()
    assert list(links.folder.iterdir()) == []
    links.remove()
