"""Commands and Python of the documentation, run page by page in one workspace with trained runs (a soak).

A YAML block with a `name` is saved as `<name>.yaml`, as the pages say, and a sweep by its name; the files are
removed after the page. The output of a block is compared with the `text` block after it, except for numbers;
`...` stands for any lines. RUN is an interrupted run.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbtrain.config.yaml_source import parse_yaml
from tests.docs.errors import without_numbers
from tests.docs.pages import REPOSITORY, Block, blocks, commands
from tests.docs.test_blocks import OWN_TESTS
from tests.end_to_end.test_example_commands import said_of

PAGES = [
    path
    for path in sorted((REPOSITORY / "docs").glob("*.md"))
    if f"docs/{path.name}" not in OWN_TESTS
    and any(block.language in ("sh", "python") and not block.mark for block in blocks(path.read_text()))
]
LIMIT_SECONDS = 1800.0
# Commands after `nbtrain` that run until they are interrupted.
ENDLESS = re.compile(r"serve\b|tensorboard\b|logs .*-f\b")
# The demo runs a tenth of its steps: step 400 of the pages is step 40 here.
SHORTER = {
    "max_bytes: 8_000_000": "max_bytes: 2_000_000",
    "train_tokens: 819_200": "train_tokens: 81_920",
    "save_interval_steps: 100": "save_interval_steps: 20",
    "eval_interval_steps: 100": "eval_interval_steps: 20",
    "eval_iters: 8": "eval_iters: 1",
    "lr_warmup_tokens: 40_960": "lr_warmup_tokens: 8_192",
}
RUN = "gpt-tiny-interrupted"
# Names and steps of the pages, and what they are in this workspace.
STANDS_FOR = {
    r"\bRUN\b": RUN,
    r"\bgpt-a gpt-b\b": f"gpt-tiny {RUN}",
    r"--step 400\b": "--step 40",
    r"--steps 60:90\b": "--steps 6:9",
    r"/backup/gpt-tiny --steps 200:240\b": "output/gpt-tiny --steps 20:24",
}
PUBLISHED = "345M on 8 NPUs: {samples/s: 59.7}\n"
QUESTIONS = {
    "lambada.jsonl": {"text": "It returns the number of items of a list."},
    "hellaswag_val.jsonl": {
        "ctx_a": "A list has",
        "ctx_b": "three items.",
        "activity_label": "Lists",
        "endings": ["Its length is 3.", "It is red.", "It sings.", "It rains."],
        "label": "0",
    },
    "prompts.jsonl": {"prompt": "Return the "},
}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Iterator[Path]:
    """Create a workspace with the finished run gpt-tiny, the interrupted run RUN,
    and files that pages mention.
    """
    folder = tmp_path_factory.mktemp("docs")
    with pytest.MonkeyPatch.context() as patch:
        set_up(folder, patch)
        yield folder


def set_up(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Train the runs and write the files."""
    shutil.copytree(REPOSITORY / "examples" / "megatron-gpt", folder / "examples" / "megatron-gpt")
    demo = folder / "examples" / "megatron-gpt" / "training" / "gpt-tiny.yaml"
    text = demo.read_text()
    for before, after in SHORTER.items():
        assert before in text, before
        text = text.replace(before, after)
    demo.write_text(text)
    patch.setenv("NBTRAIN_WORKSPACE", str(folder))
    patch.setenv("NBTRAIN_QUEUE", str(folder / "queue"))
    for variable in ("NBTRAIN_OUTPUT", "NBTRAIN_DATA"):
        patch.delenv(variable, raising=False)
    patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    shell("nbtrain prepare gpt-tiny", folder)
    shell("nbtrain submit gpt-tiny --wait", folder)
    shell(f"nbtrain submit gpt-tiny name={RUN} batch.exit_interval_steps=10 --wait || true", folder)
    (folder / "others.yaml").write_text(PUBLISHED)
    for name, line in QUESTIONS.items():
        (folder / name).write_text(f"{json.dumps(line)}\n" * 500)
    (corpus,) = (folder / "data" / "corpus").glob("python-docs-*")
    with (folder / "books.jsonl").open("w") as books:
        books.write('{"content": ""}\n')
        for line in (corpus / "000000.jsonl").read_text().splitlines()[:3000]:
            books.write(json.dumps({"content": json.loads(line)["text"]}) + "\n")


def shell(line: str, folder: Path) -> str:
    """Return the output of a command in bash; a command that fails also fails the test."""
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def printed(block: Block, folder: Path, imports: str) -> str:
    """Run a `sh` or `python` block and return its output."""
    if block.language == "python":
        (folder / "block.py").write_text(f"{imports}\n{block.text}")
        return shell(f"{shlex.quote(sys.executable)} block.py", folder)
    texts = []
    for line in commands(block):
        for name, here in STANDS_FOR.items():
            line = re.sub(name, here, line)
        words = shlex.split(line, comments=True)
        endless = words[0] == "nbtrain" and ENDLESS.match(" ".join(words[1:]))
        texts.append(said_of(words, folder) if endless else shell(line, folder))
    return "".join(texts)


def comparable(line: str) -> str:
    """Remove numbers, hashes, units of time and padding from a printed line."""
    # A processor without fp16 computes in bf16, and a deviation may be 0.0e+00.
    line = re.sub(r"\bfp16\b", "bf16", line)
    line = re.sub(r"(?<=\d)e[+-](?=\d)", "e", line)
    line = without_numbers(re.sub(r"\b([0-9a-f]{12,}\b|[0-9a-f]{4}\.\.\.)", "0", line))
    # A slower machine needs minutes where the page says seconds.
    return " ".join(re.sub(r"# (min|h)( # (s|min))?(?!\w)", "# s", line).split())


def differs(shown: str, printed: str) -> str | None:
    """Return the page's first line that is not printed in the page's order; None if all are."""
    lines = iter([comparable(line) for line in printed.splitlines()])
    for line in shown.splitlines():
        if line.strip() != "..." and comparable(line) not in lines:
            return line
    return None


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_the_page_does_what_it_says(page, workspace):
    """The files of a page are saved, its commands and Python run in order, and the outputs match the page."""
    if page.stem == "datasets" and not (workspace / "data" / "dataset" / "books").exists():
        test_the_page_does_what_it_says(page.with_name("data.md"), workspace)
    last = ""
    wrong: list[str] = []
    saved: list[Path] = []
    imports = "import nbtrain as nb"
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language == "yaml":
            value = parse_yaml(block.text, page.name).value or {}
            if name := value.get("name") or value.get("sweep"):
                saved.append(workspace / f"{name}.yaml")
                saved[-1].write_text(block.text)
        elif block.is_output and not block.mark:
            if line := differs(block.text, last):
                wrong.append(f"{line}\nis not printed:\n{last}")
        elif block.language in ("sh", "python") and not block.mark:
            last = printed(block, workspace, imports)
    for path in saved:
        path.unlink(missing_ok=True)
    assert not wrong, f"{page.name} shows what is not printed: " + "\n\n".join(wrong)
