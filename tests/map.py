"""Print each module of a folder with the first sentence of its docstring: python -m tests.map [FOLDER].

For a JavaScript or TypeScript file, the first comment is printed.
"""

import ast
import itertools
import re
import signal
import sys
from pathlib import Path

SCRIPTS = (".js", ".ts")


def first_sentence(path: Path) -> str:
    """Return the first sentence of a module's docstring or of a script's first comment, or "" if there is
    none.
    """
    text = path.read_text(encoding="utf-8")
    if path.suffix in SCRIPTS:
        comment = itertools.takewhile(lambda line: line.startswith("//"), text.splitlines())
        text = "\n".join(line[3:] for line in comment)
    else:
        text = ast.get_docstring(ast.parse(text)) or ""
    paragraph = " ".join(text.partition("\n\n")[0].split())
    sentence = re.match(r".*?[.](?= [A-Z{`]|$)", paragraph)
    return sentence[0] if sentence else paragraph


def main(folder: Path) -> None:
    """Print the modules of a folder and its subfolders, each folder under a separate heading."""
    modules = [path for path in folder.rglob("*.*") if path.suffix in (".py", *SCRIPTS)]
    modules = [path for path in modules if not {"_bundled", "prebuilt", "node_modules"} & set(path.parts)]
    for directory in sorted({path.parent for path in modules}):
        print(f"{directory}/")
        for path in sorted(path for path in modules if path.parent == directory):
            if sentence := first_sentence(path):
                print(f"  {path.name:<26} {sentence}")


if __name__ == "__main__":
    # `| head` ends the output, not with an error.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "nbtrain"))
