"""Build of the labextension: `make labextension`, which needs node 20 or newer and the npm registry.

    sources (here, and lab/ui/**/*.js) -> a copy in .cache/labextension -> jlpm install, tsc, jupyter-builder
                                    -> prebuilt/nbtrain, which is committed

The copy keeps node_modules (420 MB) out of the package. The same sources give the same bundle, byte for byte,
in every folder. built_from.json in the bundle lists its sources and files, so that a test detects a stale or
mixed bundle without node.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from nbtrain.base.version import PACKAGE

HERE = PACKAGE / "lab" / "labextension"
USER_INTERFACE = PACKAGE / "lab" / "ui"
PREBUILT = HERE / "prebuilt" / "nbtrain"
CACHE = PACKAGE.parent / ".cache" / "labextension"

SETTINGS = ("package.json", "yarn.lock", ".yarnrc.yml", "tsconfig.json", "bundler.config.js", "install.json")
FOLDERS = ("src", "schema", "style")
BUILT_FROM = "built_from.json"
# tsc's numbers for "cannot find name".
NO_SUCH_NAME = re.compile(r"error TS(2304|2552)\b")


def sources() -> dict[str, Path]:
    """Return {path below lab/: file} of all sources of the bundle."""
    files = [HERE / name for name in SETTINGS]
    files += (path for folder in FOLDERS for path in (HERE / folder).iterdir() if path.is_file())
    files += USER_INTERFACE.rglob("*.js")
    return {path.relative_to(PACKAGE / "lab").as_posix(): path for path in sorted(files)}


def sha256_of(files: dict[str, Path]) -> str:
    """Return one hash over names and contents."""
    words = (
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n" for name, path in sorted(files.items())
    )
    return hashlib.sha256("".join(words).encode()).hexdigest()


def files_below(folder: Path) -> dict[str, Path]:
    """Return {path below `folder`: file}, without built_from.json."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != BUILT_FROM)
    return {path.relative_to(folder).as_posix(): path for path in sorted(found)}


def record_of(bundle: Path) -> dict[str, object]:
    """Return the content of built_from.json for a bundle of these sources."""
    files = files_below(bundle)
    return {"sources": sha256_of(sources()), "bundle": sha256_of(files), "files": sorted(files)}


def build(cache: Path = CACHE, target: Path = PREBUILT) -> None:
    """Build the bundle and replace the old one."""
    work = cache / "labextension"
    for old in (*(work / folder for folder in (*FOLDERS, "lib", "prebuilt")), cache / "ui"):
        shutil.rmtree(old, ignore_errors=True)
    for name, path in sources().items():
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, cache / name)
    tools = Path(sys.executable).parent
    run([tools / "jlpm", "install", "--immutable"], work)
    run([tools / "jlpm", "run", "tsc"], work)
    check_names(tools, work)
    run([tools / "jupyter-builder", "build", "."], work)
    built = work / "prebuilt" / "nbtrain"
    shutil.copyfile(HERE / "install.json", built / "install.json")
    (built / BUILT_FROM).write_text(json.dumps(record_of(built), indent=2) + "\n", encoding="utf-8")
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(built, target)


def check_names(tools: Path, work: Path) -> None:
    """Exit if a module of lab/ui uses an undefined name, which tsc also detects in JavaScript."""
    options = [
        "--noEmit",
        "--allowJs",
        "--checkJs",
        "--skipLibCheck",
        "--target",
        "ES2022",
        "--module",
        "ESNext",
    ]
    modules = [f"../{path.relative_to(work.parent)}" for path in sorted((work.parent / "ui").rglob("*.js"))]
    command = [str(tools / "jlpm"), "run", "tsc", *options, *modules]
    done = subprocess.run(command, cwd=work, stdout=subprocess.PIPE, text=True)
    # tsc also reports types that do not match. They are ignored, because JavaScript declares no types.
    if bad := [line for line in done.stdout.splitlines() if NO_SUCH_NAME.search(line)]:
        sys.exit("\n".join(bad))


def run(command: Iterable[str | Path], folder: Path) -> None:
    """Run a tool of the build. If the tool fails, exit with its output and a message."""
    words = [str(word) for word in command]
    environment = {**os.environ, "PATH": f"{Path(words[0]).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    done = subprocess.run(words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(
            f"{done.stdout}\n`{' '.join(words[1:])}` in {folder} ended with exit code {done.returncode}. "
            "The build needs node 20 or newer: `node --version` shows yours."
        )


if __name__ == "__main__":
    build()
    print(f"built {PREBUILT}: {len(files_below(PREBUILT))} files")
