"""Print each module of a folder with the first line of its docstring: python -m tests.map [FOLDER].

For a JavaScript file, the first comment is printed.
"""

import ast
import sys
from pathlib import Path


def first_line(path: Path) -> str:
    """Return the first line of a module's docstring or of a script's first comment, or "" if there is
    none.
    """
    if path.suffix == ".js":
        return next((line[3:] for line in path.open(encoding="utf-8") if line.startswith("// ")), "").strip()
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    return docstring.splitlines()[0] if docstring else ""


def main(folder: Path) -> None:
    """Print the modules of a folder and its subfolders, each folder under a separate heading."""
    modules = [path for path in folder.rglob("*.*") if path.suffix in (".py", ".js")]
    modules = [path for path in modules if not {"_bundled", "prebuilt", "node_modules"} & set(path.parts)]
    for directory in sorted({path.parent for path in modules}):
        print(f"{directory}/")
        for path in sorted(path for path in modules if path.parent == directory):
            if line := first_line(path):
                print(f"  {path.name:<26} {line}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "nbtrain"))
