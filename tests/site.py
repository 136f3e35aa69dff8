"""The command `make site`: documentation and executed notebooks as static pages in build/site/html.

    python -m tests.site [--to DIR] [--notebooks DIR]     in seconds: runs nothing
    python -m tests.site --run 00_quickstart ...          first runs these notebooks into the folder of copies

    repository                                   build/site/source           build/site/html
    README.md, docs/, examples/      copied      the same files     Sphinx    the same paths, .html
    notebooks/*.ipynb                            notebooks/*.md
    build/notebooks/*.ipynb, executed  -> as Markdown, if there is one

Needs the extra `site`. The navigation is made from the tables of docs/README.md and docs/evidence/README.md.
"""

import argparse
import base64
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.docs.pages import links

REPOSITORY = Path(__file__).parents[1]
BUILD = REPOSITORY / "build"
COPIES = BUILD / "notebooks"
DEVELOPMENT = ("ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")
# The start page of the site is README.html, as its source is README.md.
INDEX = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>nbtrain</title>
<meta http-equiv="refresh" content="0; url=README.html">
<a href="README.html">nbtrain</a>
</html>
"""
NOT_EXECUTED = "*This copy was not executed: the cells are shown without their output.*"


def gather(source: Path, copies: Path) -> None:
    """Write the sources of all pages to `source`, which must be an empty folder."""
    for name in ("README.md", "README.zh-CN.md", "LICENSE", *DEVELOPMENT):
        shutil.copyfile(REPOSITORY / name, source / name)
    for folder in ("docs", "examples"):
        shutil.copytree(REPOSITORY / folder, source / folder, ignore=shutil.ignore_patterns("conf.py"))
    (source / "notebooks").mkdir()
    for path in sorted((REPOSITORY / "notebooks").glob("*.ipynb")):
        executed = copies / path.name
        page = source / "notebooks" / f"{path.stem}.md"
        page.write_text(notebook_page(executed if executed.is_file() else path, page.parent))
    # In these pages a notebook is a page like any other.
    for page in source.rglob("*.md"):
        folder = "" if page.parent.name == "notebooks" else "[^()\\s]*notebooks/"
        link = rf"(\]\({folder}\w+)\.ipynb\)"
        page.write_text(re.sub(link, r"\1.md)", page.read_text(encoding="utf-8")), encoding="utf-8")
    readme = source / "README.md"
    readme.write_text(f"{readme.read_text(encoding='utf-8')}\n{navigation(source)}", encoding="utf-8")


def navigation(source: Path) -> str:
    """Return hidden tables of contents for the sidebar: the groups in docs/README.md, then all other
    pages.
    """
    index = source / "docs" / "README.md"
    _, *groups = re.split(r"^##+ ", index.read_text(encoding="utf-8"), flags=re.MULTILINE)
    listed = {group.partition("\n")[0]: list(_pages(group, index, source)) for group in groups}
    listed["Start"][:0] = ["docs/README", "README.zh-CN"]
    notebooks = [page for pages in listed.values() for page in pages if page.startswith("notebooks/")]
    listed = {
        title: [page for page in pages if page not in (*notebooks, "README")]
        for title, pages in listed.items()
    }
    evidence = source / "docs" / "evidence" / "README.md"
    listed["Evidence"] = list(_pages(evidence.read_text(encoding="utf-8"), evidence, source))
    listed["Notebooks"] = notebooks
    listed["Development"] = [name.removesuffix(".md") for name in DEVELOPMENT]
    listed["Development"].append("examples/megatron-gpt/cluster/README")
    blocks = []
    for title, pages in listed.items():
        if not pages:  # a heading over other headings
            continue
        blocks.append("\n".join(["```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```", ""]))
    return "\n".join(blocks)


def _pages(text: str, page: Path, source: Path) -> Iterator[str]:
    """Yield the pages that a text links to, by their Sphinx names and without duplicates."""
    seen = set()
    for file, _ in links(text):
        path = (page.parent / file).resolve()
        if path.suffix == ".md" and path.is_file() and path not in seen:
            seen.add(path)
            yield path.relative_to(source).with_suffix("").as_posix()


def notebook_page(path: Path, folder: Path) -> str:
    """Return a notebook as Markdown, and write the pictures in its outputs to `folder`.

    For a widget, the HTML or the picture in its output is shown, as in the HTML that `nbtrain notebook`
    writes.
    """
    import nbformat

    from nbtrain.lab.export import without_widgets

    notebook = nbformat.read(path, as_version=4)
    without_widgets(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    parts = []
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        elif cell.cell_type == "code" and "injected-parameters" not in cell.metadata.get("tags", []):
            parts.append(_fence("python", cell.source))
            for place, output in enumerate(cell.outputs):
                parts += _shown(output, f"{path.stem}-{number}-{place}", folder)
    if not any(cell.outputs for cell in code):
        parts.insert(1, NOT_EXECUTED)
    return "\n\n".join(parts) + "\n"


def _shown(output: Any, name: str, folder: Path) -> Iterator[str]:
    """Return one output of a cell as Markdown, from its picture, HTML or text."""
    from nbconvert.filters import strip_ansi

    data = output.get("data", {})
    if output.output_type == "stream":
        yield _fence("text", strip_ansi(output.text))
    elif output.output_type == "error":
        yield _fence("text", strip_ansi("\n".join(output.traceback)))
    elif "text/html" in data:
        yield _fence("{raw} html", data["text/html"])
    elif "image/png" in data:
        (folder / f"{name}.png").write_bytes(base64.b64decode(data["image/png"]))
        yield f"![output of the cell above]({name}.png)"
    elif "text/plain" in data:
        yield _fence("text", strip_ansi(data["text/plain"]))


def _fence(language: str, text: str) -> str:
    """Return a fenced code block; its fence is longer than any fence in the text."""
    longest = max((len(run) for run in re.findall(r"^`{3,}", text, re.MULTILINE)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def build(to: Path, copies: Path = COPIES) -> Path:
    """Build the site in the folder `to` and return the folder with the HTML pages.

    Raises CalledProcessError if Sphinx prints a warning, which is on stderr.
    """
    source, html = to / "source", to / "html"
    for folder in (source, html):
        shutil.rmtree(folder, ignore_errors=True)
    source.mkdir(parents=True)
    gather(source.resolve(), copies)
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-c", REPOSITORY / "docs"]
    subprocess.run([*command, "-d", to / "doctrees", source, html], check=True)
    pictures = REPOSITORY / "docs" / "pictures"
    if pictures.is_dir():  # Sphinx copies pictures of Markdown, but not pictures of HTML in it.
        shutil.copytree(pictures, html / "docs" / "pictures", dirs_exist_ok=True)
    (html / "index.html").write_text(INDEX)
    return html


def run_notebooks(names: Sequence[str], copies: Path = COPIES) -> None:
    """Run these notebooks with their default parameters in one new workspace, and keep the executed
    copies.
    """
    copies.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="site-") as workspace:
        nbtrain = [sys.executable, "-m", "nbtrain.cli"]
        subprocess.run([*nbtrain, "init", workspace], check=True, stdout=subprocess.DEVNULL)
        for name in names:
            made = Path(workspace) / f"{name}.ipynb"
            subprocess.run([*nbtrain, "notebook", name, "-o", made], check=True, cwd=workspace)
            shutil.copyfile(made, copies / made.name)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.site", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--to", type=Path, default=BUILD / "site", help="default: build/site")
    parser.add_argument("--notebooks", type=Path, default=COPIES, help="executed copies, build/notebooks")
    parser.add_argument("--run", nargs="*", metavar="NAME", help="run these notebooks first; all if none")
    options = parser.parse_args(arguments)
    if options.run is not None:
        every = sorted(path.stem for path in (REPOSITORY / "notebooks").glob("*.ipynb"))
        run_notebooks(options.run or every, options.notebooks)
    try:
        print(build(options.to, options.notebooks) / "index.html")
    except subprocess.CalledProcessError as error:
        return error.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
