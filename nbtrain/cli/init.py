"""`nbtrain init DIR`: copy notebooks, example YAMLs, documentation and README out of the package."""

import re
import shutil
from pathlib import Path

from nbtrain.base import files
from nbtrain.base.errors import ConfigError
from nbtrain.base.workspace import bundled

# Parts of docs/ that a workspace does not need: measurements with their large pictures, and the site's
# configuration. The wheel does not contain them (pyproject.toml), so a workspace made from a clone omits them
# too.
LEFT_OUT = ("evidence", "conf.py")
# [text](target), ![text](target), and the HTML elements with which a README shows a picture for each theme.
LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
PICTURE = re.compile(r"<picture>.*?</picture>\n*|<img\b[^>]*>\n*", re.DOTALL)
PICTURE_FILE = re.compile(r'(?:src|srcset)="([^"]+)"')


def copy_workspace(folder: Path) -> list[Path]:
    """Copy notebooks/, examples/megatron-gpt/, docs/ and README.md to `folder`; return the paths written.

    The user's files are never overwritten: raises ConfigError if `folder` has notebooks/ or
    examples/megatron-gpt/, and skips docs/ or README.md if it exists.
    """
    copies = {part: folder / part for part in ("notebooks", "examples/megatron-gpt")}
    if existing := next((copy for copy in copies.values() if copy.exists()), None):
        raise ConfigError(f"{existing} already exists; choose another folder, or move the existing one away.")
    # The examples' README, the notebooks and nbtrain's messages refer to pages in docs/.
    copies |= {part: folder / part for part in ("docs", "README.md") if not (folder / part).exists()}
    for part, copy in copies.items():
        source = bundled(part)
        if source.is_dir():
            left_out = LEFT_OUT if part == "docs" else ()
            shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__", ".ipynb_*", *left_out))
        else:
            shutil.copyfile(source, copy)
    for copy in copies.values():
        for page in copy.rglob("*.md") if copy.is_dir() else [copy]:
            text = page.read_text(encoding="utf-8")
            if (fewer := without_dead_links(text, page.parent)) != text:
                files.write_text(page, fewer)
    return list(copies.values())


def without_dead_links(text: str, folder: Path) -> str:
    """Return `text` with links to missing files replaced by the link's text, and without missing pictures.

    `folder` is the folder of the page that contains `text`.
    """

    def exists(target: str) -> bool:
        path = target.partition("#")[0]
        return not path or ":" in path or (folder / path).exists()

    def picture(match: re.Match) -> str:
        return match[0] if all(map(exists, PICTURE_FILE.findall(match[0]))) else ""

    def link(match: re.Match) -> str:
        if exists(match[2]):
            return match[0]
        return "" if match[0].startswith("!") else match[1]

    return LINK.sub(link, PICTURE.sub(picture, text))
