"""Queries to git about a work tree. They run no program that the work tree configures."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

SECONDS = 20
# A partial clone would fetch missing objects with programs that its configuration names.
NO_FETCH = {"GIT_ALLOW_PROTOCOL": "", "GIT_NO_LAZY_FETCH": "1"}


def ask_git(folder: Path, *arguments: str) -> str | None:
    """Return the output of a git command in a folder.

    None if git is not installed, if the folder is not in a work tree, if the command fails, or if it takes
    longer than SECONDS.
    """
    git = shutil.which("git")
    if git is None:
        return None
    command = [git, "-C", str(folder), *arguments]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, env=os.environ | NO_FETCH
        )
    except subprocess.TimeoutExpired:
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def commit_of_file(path: Path, content: bytes) -> str | None:
    """Return the commit of the work tree that contains a file. None outside a work tree.

    "+changes" is appended if the commit does not contain the file with this content. Only object names are
    resolved, because `git status` could run a program that an untrusted work tree configures.
    """
    path = path.absolute()
    commit = ask_git(path.parent, "rev-parse", "--verify", "HEAD")
    if not commit:
        return None
    digest = hashlib.sha256 if len(commit) == 64 else hashlib.sha1
    blob = digest(b"blob %d\0" % len(content) + content).hexdigest()
    return (
        commit
        if ask_git(path.parent, "rev-parse", "--verify", f"HEAD:./{path.name}") == blob
        else f"{commit}+changes"
    )
