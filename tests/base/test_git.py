"""Questions to git about a work tree."""

import subprocess

from nbtrain.base.git import commit_of_file


def test_nothing_that_a_work_tree_configures_is_run(tmp_path):
    """A partial clone without the tree of its commit is not completed by the program that it configures."""
    tree, ran, path = tmp_path / "tree", tmp_path / "ran", tmp_path / "tree" / "a.sh"
    tree.mkdir()
    path.write_text("true\n")

    def git(*words: str) -> str:
        settings = ("-c", "user.name=a", "-c", "user.email=a@example.com")
        command = ["git", "-C", tree, *settings, *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("add", "a.sh")
    git("commit", "-qm", "a")
    commit, missing = git("rev-parse", "HEAD"), git("rev-parse", "HEAD^{tree}")
    assert commit_of_file(path, path.read_bytes()) == commit
    (tree / ".git" / "objects" / missing[:2] / missing[2:]).unlink()
    (tree / ".git" / "config").write_text(
        "[core]\nrepositoryformatversion = 1\n[extensions]\npartialClone = origin\n"
        f'[remote "origin"]\npromisor = true\nurl = {tmp_path}\nuploadpack = touch {ran}; false\n'
    )
    assert commit_of_file(path, path.read_bytes()) == f"{commit}+changes"
    assert not ran.exists()
