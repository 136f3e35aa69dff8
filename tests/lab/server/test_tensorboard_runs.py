"""The folder that TensorBoard reads, with a symlink for each run."""

import os
from pathlib import Path

from nbtrain.lab.server.tensorboard_runs import ALL_RUNS, RunLinks


def test_a_run_is_one_entry_by_its_name(tmp_path: Path) -> None:
    """Each run has one entry under its name; twins, runs without event files and symlinks to other places
    have none, and the entry of a deleted run is removed.
    """
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


def test_of_many_runs_the_newest_are_linked_and_others_when_they_are_asked_for(tmp_path: Path) -> None:
    """If there are many runs, the newest are linked. They stay linked when newer runs appear, until
    TensorBoard is started again; others are linked on request.
    """
    for number in range(30):
        folder = tmp_path / f"gpt-{number}" / "tensorboard"
        folder.mkdir(parents=True)
        os.utime(folder, (number, number))
    links = RunLinks(tmp_path)
    links.refresh()
    assert links.shown == {f"gpt-{number}" for number in range(20, 30)} and links.number_of_runs == 30
    links.ask("gpt-3")
    links.ask("../outside")
    links.refresh()
    assert links.shown == {"gpt-3", *(f"gpt-{number}" for number in range(20, 30))}
    os.utime(tmp_path / "gpt-0" / "tensorboard")
    links.refresh()
    assert links.shown == {"gpt-0", "gpt-3", *(f"gpt-{number}" for number in range(20, 30))}
    links.ask(ALL_RUNS)
    links.refresh()
    assert len(links.shown) == 30
    links.forget()
    links.refresh()
    assert links.shown == {"gpt-0", *(f"gpt-{number}" for number in range(21, 30))}
    links.remove()


def test_an_output_root_that_is_not_there_yet_has_no_run(tmp_path: Path) -> None:
    """If the output directory does not exist, there are no runs until the first one is created."""
    links = RunLinks(tmp_path / "output")
    links.refresh()
    assert list(links.folder.iterdir()) == []
    links.remove()
