"""Print every module of a folder with the first line of its docstring: python -m tests.map [FOLDER]."""

import ast
import sys
from pathlib import Path


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring, or an empty text."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return docstring.splitlines()[0] if docstring else ""


def main(folder: Path) -> None:
    """Print the modules of a folder and of those below it, each folder under its own heading."""
    for directory in sorted({path.parent for path in folder.rglob("*.py") if "_bundled" not in path.parts}):
        print(f"{directory}/")
        for path in sorted(directory.glob("*.py")):
            if line := first_line(path):
                print(f"  {path.name:<26} {line}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "nbtrain"))
