"""`nbtrain code`: describe the file that a run's `code` names, or write such a file to start from."""

import ast
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from nbtrain.base import files
from nbtrain.base.errors import ConfigError
from nbtrain.base.printing.report import Facts, Findings, Report, Sentence
from nbtrain.base.run_directory.rundir import RunDir
from nbtrain.base.text.nearest import nearest
from nbtrain.base.workspace import bundled, display
from nbtrain.config.code_file import FILE_NAME, HOOKS, PASSED, code_file
from nbtrain.config.schema import RunConfig
from nbtrain.dataset.of_run import find_dataset

START = "examples/megatron-gpt/code/start.py"
# Values to replace in dataset() of START: dataset, sequence length and data.split of gpt-tiny.
DATASET = '"data/dataset/python-docs-1k/text_document", 256'
SPLITS = ("train", "valid", "test")
BOUNDS = '"train": (0.0, 0.9), "valid": (0.9, 0.97), "test": (0.97, 1.0)'


def code_text(functions: Sequence[str], config: RunConfig) -> str:
    """Return the text of a Python file with nbtrain's own versions of these functions, adapted to a run.

    Raises ConfigError for an unknown name, and for dataset() if the run's samples are not windows.
    """
    if not functions:
        raise ConfigError(f"--start requires the name of one of these functions: {', '.join(HOOKS)}.")
    for name in functions:
        if name not in HOOKS:
            raise ConfigError(
                f"--start {name}: nbtrain does not call a function of this name.{nearest(name, HOOKS)} It "
                f"calls {', '.join(HOOKS)}."
            )
    source = bundled(START).read_text(encoding="utf-8")
    if "dataset" in functions:
        source = source.replace(DATASET, _dataset_of(config)).replace(BOUNDS, _bounds_of(config))
    tree = ast.parse(source)
    defined = {
        node.name: ast.get_source_segment(source, node) or ""
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    wanted = [defined[name] for name in dict.fromkeys(functions)]
    helpers = [
        text
        for name, text in defined.items()
        if name.startswith("_") and any(re.search(rf"\b{name}\b", body) for body in wanted)
    ]
    bodies = [*helpers, *wanted]
    imports = [
        ast.unparse(node)
        for node in tree.body
        if isinstance(node, ast.Import | ast.ImportFrom)
        and any(re.search(rf"\b{alias.name}\b", body) for alias in node.names for body in bodies)
    ]
    own = [line for line in imports if line.startswith("from nbtrain")]
    third = [line for line in imports if "torch" in line and line not in own]
    standard = [line for line in imports if line not in own and line not in third]
    groups = "\n\n".join("\n".join(group) for group in (standard, third, own) if group)
    title = '"""Functions that the ranks of an nbtrain run call; docs/code.md explains them."""'
    return "\n\n".join(part for part in (title, groups) if part) + "\n\n\n" + "\n\n\n".join(bodies) + "\n"


def _dataset_of(config: RunConfig) -> str:
    """Return the first arguments of _Windows() in start.py for a run: its dataset and sequence length."""
    packed = config.data.resolved_packing == "best_fit"
    if packed or config.data.blend:
        what = "packing: best_fit packs documents" if packed else "data.blend mixes datasets"
        raise ConfigError(
            f"--start dataset: the samples of {config.name} are not windows of one dataset ({what}). Use a "
            "run that reads one dataset, such as gpt-tiny, and adapt the file."
        )
    return f'"{display(find_dataset(config).prefix)}", {config.model.seq_length}'


def _bounds_of(config: RunConfig) -> str:
    """Return the text that replaces BOUNDS in start.py: the bounds of each split in a run's data.split."""
    shares = [float(share) for share in config.data.split.split(",")]
    ends = [round(sum(shares[:number]) / sum(shares), 6) for number in range(4)]
    bounds = zip(SPLITS, itertools.pairwise(ends), strict=True)
    return ", ".join(f'"{name}": ({first}, {last})' for name, (first, last) in bounds)


def start_code(functions: Sequence[str], path: Path, config: RunConfig) -> Path:
    """Write a file with nbtrain's own versions of these functions, adapted to a run; return its path.

    Raises ConfigError if the file exists, and the errors of code_text().
    """
    text = code_text(functions, config)
    if not FILE_NAME.fullmatch(path.name):
        raise ConfigError(
            f"{path.name} is not a valid name for a Python module. Use a name such as my_code.py."
        )
    if path.exists():
        raise ConfigError(f"{path} already exists; nothing was written. Choose another file.")
    try:
        files.write_output(path, text)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}. Choose another file.") from error
    return path


def describe_code(config: RunConfig) -> Report:
    """Return a report on the file that a run's `code` names: functions, problems, and the submitted file."""
    code = code_file(config)
    if code is None:
        name = config.as_arguments[0]
        return Report(
            "",
            [
                Sentence(
                    f"{config.name} has no `code`, so nbtrain's own functions train it. To write a file to "
                    f"start from, run `nbtrain code {name} --start loss`."
                )
            ],
        )
    functions = ", ".join(f"{name} (line {line})" for name, line in code.lines)
    facts = {"file": display(code.path)}
    if code.content:
        facts |= {"SHA-256": code.sha256, "functions": functions or "none"}
    run = RunDir.named(config.name)
    if record := files.read_json(run.own_code_json):
        same = (
            "the same file"
            if record["sha256"] == code.sha256
            else f"another file, with SHA-256 {record['sha256']}"
        )
        trial = "its trial step passed" if record["tried"] == PASSED else record["tried"] or "not tried"
        facts["submitted"] = f"{same}; {trial}"
    return Report("", [Facts(facts), Findings(list(code.problems), places=True)])
