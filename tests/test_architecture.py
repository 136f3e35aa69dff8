"""The dependency rules in ARCHITECTURE.md: which imports are allowed, which modules load torch, and how long
`import nbtrain` takes.
"""

import ast
import functools
import graphlib
import itertools
import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbtrain.base.run_directory import outcomes
from nbtrain.base.run_directory.jobstate import RUN_MEANING
from nbtrain.base.run_directory.rank_phases import OUTCOMES

REPOSITORY = Path(__file__).parent.parent
PACKAGE = REPOSITORY / "nbtrain"

# The boxes in order: none imports a box to its right on the same side.
ORDER = [
    "base",
    "config",
    "pretrained",
    "parallel",
    "corpus",
    "model",
    "monitor",
    "dataset",
    "evaluation",
    "planner",
    "checkpoint",
    "foreign",
    "jobs",
    "train",
    "inference",
    "exchange",
    "proof",
    "serving",
    "lab",
    "api",
    "cli",
]
GPU_SIDE = ("parallel", "model", "checkpoint", "train", "inference")
NOTEBOOK_BOXES = {
    "config",
    "pretrained",
    "corpus",
    "dataset",
    "evaluation",
    "monitor",
    "planner",
    "foreign",
    "jobs",
    "exchange",
    "proof",
    "serving",
    "lab",
}

# box: (boxes of ours, packages of others) that it may import, in addition to base and itself
ALLOWED = {
    "base": (set(), {"tqdm", "pynvml", "IPython"}),
    "config": (set(), {"pydantic", "pydantic_core", "yaml"}),
    "pretrained": ({"config"}, {"pydantic", "numpy"}),
    "corpus": (
        {"config"},
        {"pydantic", "numpy", "tokenizers", "fastokens", "orjson", "urllib3", "xxhash", "loky"}
        | {"lxml", "zstandard", "pyarrow", "ftfy", "rensa", "rustbpe", "sentencex"}
        | {"distributed", "dask"},
    ),
    "dataset": (
        {"config", "corpus"},
        {"pydantic", "numpy", "tokenizers", "orjson", "xxhash", "loky", "matplotlib"},
    ),
    "evaluation": ({"config", "corpus", "dataset"}, {"numpy", "orjson", "urllib3", "lm_eval"}),
    "monitor": ({"config"}, {"orjson", "psutil", "tensorboard", "google", "matplotlib"}),
    "planner": ({"config", "dataset"}, {"matplotlib", "numpy", "pydantic", "pydantic_core", "yaml"}),
    "foreign": ({"config", "planner"}, {"pydantic", "yaml", "tree_sitter", "tree_sitter_bash"}),
    "jobs": (
        {"config", "corpus", "dataset", "evaluation", "monitor", "planner", "pretrained"},
        {"psutil", "yaml", "kubernetes", "urllib3"},
    ),
    "exchange": (
        {"config", "corpus", "dataset", "jobs", "planner", "pretrained"},
        {"huggingface_hub"},
    ),
    "proof": ({"config", "dataset", "jobs", "monitor"}, set()),
    "serving": (
        {"config", "corpus", "jobs"},
        {"starlette", "uvicorn", "prometheus_client", "orjson", "pydantic", "jinja2"},
    ),
    "lab": (
        {"monitor", "jobs", "planner", "config", "dataset"},
        {
            "pydantic",
            "ipywidgets",
            "anywidget",
            "traitlets",
            "IPython",
            "jupyter_server",
            "tornado",
            "nbconvert",
        },
    ),
    "api": (NOTEBOOK_BOXES, set()),
    "cli": (NOTEBOOK_BOXES | {"api"}, set()),
    "parallel": (set(), {"torch", "deepspeed", "numpy", "flash_attn", "bitsandbytes"}),
    "model": ({"parallel"}, {"torch"}),
    "checkpoint": (
        {"model", "parallel", "config", "dataset", "pretrained"},
        {"torch", "deepspeed", "numpy", "safetensors", "gguf"},
    ),
    "train": (
        {"checkpoint", "model", "parallel", "config", "dataset", "evaluation"},
        {"torch", "deepspeed", "numpy", "tensorboard"},
    ),
    "inference": (
        {"checkpoint", "model", "parallel", "config", "corpus", "dataset"},
        {"torch", "orjson", "psutil"},
    ),
}

# (box, module in a string): the only names of modules in strings that cross from one box to another.
DOORS = {
    ("jobs", "nbtrain.train"),
    ("proof", "nbtrain.train.__main__"),
    ("jobs", "nbtrain.train.calibration"),
    ("jobs", "nbtrain.train.code"),
    ("jobs", "nbtrain.train.calibration.network"),
    ("proof", "nbtrain.train.twin.export"),
    ("proof", "nbtrain.train.twin.fork_server"),
    ("proof", "nbtrain.checkpoint.weights.differences"),
    ("serving", "nbtrain.inference"),
    ("cli", "nbtrain.checkpoint.universal"),
    ("exchange", "nbtrain.checkpoint.pretrained"),
    # Files that nbtrain wrote are recognized by the module that they start.
    ("foreign", "nbtrain.jobs.supervisor"),
    ("foreign", "nbtrain.jobs.node"),
    # Not GPU-side: `nbtrain twin`, which the form starts as a process.
    ("lab", "nbtrain.cli"),
}


def modules() -> dict[str, Path]:
    """Return {dotted name: file} for all modules of nbtrain."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if "_bundled" in path.parts:
            continue
        parts = path.relative_to(REPOSITORY).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """Parse a file, once for all tests."""
    return ast.parse(path.read_text(encoding="utf-8"))


def is_for_types(node: ast.AST) -> bool:
    """Return whether a statement is `if TYPE_CHECKING:`."""
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imports_of(path: Path) -> Iterator[str]:
    """Return the dotted names that a file imports, also inside functions, but not for type checking only."""

    def walk(node: ast.AST) -> Iterator[str]:
        # Visit statements only: no expression holds one, and most nodes are expressions.
        blocks = (getattr(node, name, ()) for name in ("body", "handlers", "orelse", "finalbody", "cases"))
        for child in itertools.chain(*blocks):
            if is_for_types(child):
                continue
            if isinstance(child, ast.Import):
                yield from (alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}: imports are absolute"
                for alias in child.names:
                    dotted = f"{child.module}.{alias.name}"
                    yield dotted if dotted in MODULES else child.module
            else:
                yield from walk(child)

    yield from walk(tree_of(path))


MODULES = modules()


def room(module: str) -> str:
    """Return the box (top-level package) that a module belongs to; "__init__" for nbtrain's __init__.py and
    __main__.py.
    """
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] != "__main__" else "__init__"


@functools.cache
def arrows() -> tuple[tuple[str, str], ...]:
    """Yield (module, imported dotted name) for every import in nbtrain, including those inside functions."""
    return tuple((module, imported) for module, path in MODULES.items() for imported in imports_of(path))


@functools.cache
def strings_of(path: Path) -> tuple[str, ...]:
    """Return every string constant in a file except docstrings."""
    nodes = list(ast.walk(tree_of(path)))
    said = {
        id(node.value)
        for node in nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    strings = (node for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return tuple(str(node.value) for node in strings if id(node) not in said)


def may_import(box: str) -> set[str]:
    """Return the boxes that a box may import; nbtrain's __init__.py and __main__.py may import any."""
    return set(ORDER) if box == "__init__" else {"base", box, *ALLOWED[box][0]}


def architecture(heading: str) -> str:
    """Return the text of a section of ARCHITECTURE.md."""
    text = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
    return text.partition(f"## {heading}")[2].partition("\n## ")[0]


def test_every_box_has_its_row():
    """Every box is listed in this file and in ARCHITECTURE.md."""
    assert {room(module) for module in MODULES} == {"__init__", *ALLOWED} and set(ORDER) == set(ALLOWED)


def test_the_table_is_that_of_the_architecture():
    """The table in ARCHITECTURE.md allows each box the same imports as ALLOWED."""
    text = architecture("Dependency rules").partition("\n- ")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    everything = {"everything on the notebook side": NOTEBOOK_BOXES}
    written = {
        box: {word for word in allowed.replace(",", " ").split() if word in ALLOWED}.union(
            *(boxes for words, boxes in everything.items() if words in allowed)
        )
        for box, allowed in rows
        if box in ALLOWED
    }
    assert written == {box: ours for box, (ours, _) in ALLOWED.items()}


def test_the_files_to_open_are_there():
    """Every path that ARCHITECTURE.md mentions exists, below nbtrain/ or in the repository."""
    text = (REPOSITORY / "ARCHITECTURE.md").read_text(encoding="utf-8")
    folders = "|".join((*ORDER, "nbtrain", "tests", "docs", "examples"))
    named = set(re.findall(rf"`((?:{folders})/[^`*<]*)`", text))
    assert len(named) >= 80
    missing = {path for path in named if not ((PACKAGE / path).exists() or (REPOSITORY / path).exists())}
    assert missing == set()
    # A file elsewhere than in a folder that is looked into would be overlooked.
    assert set(re.findall(r"`([\w/]+/\w+\.(?:py|js|yaml))`", text)) <= named


def test_nobody_imports_across_a_wall():
    """The table allows every import in every file, including imports inside functions."""
    crossings = []
    for module, imported in arrows():
        top, here = imported.split(".")[0], room(module)
        if top in sys.stdlib_module_names or here == "__init__":
            continue
        if top == "nbtrain":
            allowed = room(imported) in may_import(here)
        elif here in ("api", "cli"):
            allowed = top not in ("torch", "deepspeed")
        else:
            allowed = top in ALLOWED[here][1]
        if not allowed:
            crossings.append(f"{module} imports {imported}")
    assert crossings == []


def test_no_arrow_runs_upward():
    """A box imports only boxes that come before it in the order."""
    for box, (ours, _) in ALLOWED.items():
        assert {other for other in ours if ORDER.index(other) >= ORDER.index(box)} == set(), box


def test_a_name_of_a_module_in_a_string_is_an_import():
    """A string that names a module counts as an import of it: the module exists, and the import is allowed or
    a listed exception.
    """
    wrong = []
    for module, path in MODULES.items():
        for text in strings_of(path):
            if not (found := re.fullmatch(r"(nbtrain(?:\.\w+)+)(?::\w+)?", text)):
                continue
            name = found[1]
            if name not in MODULES:
                wrong.append(f"{module} names {name}, which does not exist")
            elif not ({(room(module), name)} & DOORS or room(name) in may_import(room(module))):
                wrong.append(f"{module} names {name} across a wall")
    assert wrong == []


def test_files_of_the_package_are_found_beside_the_file_that_reads_them():
    """Data files are read from the folder of the module that reads them; only base/version.py locates the
    package.
    """
    climbs = [
        module
        for module, path in MODULES.items()
        if module != "nbtrain.base.version"
        and re.search(r"__file__\)(?!\.with_name)", path.read_text(encoding="utf-8"))
    ]
    assert climbs == []


# A docstring that begins like this reads as the answer to a question that the page does not ask.
RIDDLE = re.compile(r"(Of|What|Whose|As)\b")


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each docstring, including those below fields and constants."""
    # Visit statements only: no expression holds one, and most nodes are expressions.
    for name in ("body", "handlers", "orelse", "finalbody", "cases"):
        for statement in getattr(tree, name, ()):
            if not isinstance(statement, ast.Expr):
                yield from docstrings(statement)
            elif isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str):
                yield statement.lineno, statement.value.value.strip()


def test_docstrings_begin_with_a_verb_or_a_noun():
    found = [
        f"{path.relative_to(REPOSITORY)}:{line}: {text.splitlines()[0]}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for line, text in docstrings(tree_of(path))
        if RIDDLE.match(text)
    ]
    assert not found, "\n".join(found)


def test_there_is_no_circle():
    """Neither boxes nor modules import each other in a circle, also counting imports inside functions."""
    boxes: dict[str, set[str]] = {}
    for module, imported in arrows():
        if imported.startswith("nbtrain.") and room(imported) != room(module) and room(module) != "__init__":
            boxes.setdefault(room(module), set()).add(room(imported))
    graphlib.TopologicalSorter(boxes).prepare()
    loading: dict[str, set[str]] = {module: set() for module in MODULES}
    for module, imported in arrows():
        if imported in MODULES and imported != module:
            loading[module].add(imported)
    graphlib.TopologicalSorter(loading).prepare()


def folder_of(module: str) -> str:
    """Return the folder of a module, as a dotted name."""
    return module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]


def test_no_two_folders_of_a_box_import_each_other():
    """No two folders of a box import each other."""
    found = {
        (folder_of(module), folder_of(imported))
        for module, imported in arrows()
        if imported in MODULES and room(imported) == room(module)
    }
    pairs = {(folder, other) for folder, other in found if folder < other and (other, folder) in found}
    assert pairs == set()


def test_no_circle_for_types():
    """There is no import circle between modules, even if imports under TYPE_CHECKING are counted."""
    loading: dict[str, set[str]] = {module: set() for module in MODULES}
    for module, imported in arrows():
        loading[module].add(imported)
    for module, path in MODULES.items():
        for block in tree_of(path).body:
            if is_for_types(block):
                named = [node for node in block.body if isinstance(node, ast.ImportFrom)]
                loading[module].update(
                    f"{node.module}.{alias.name}" for node in named for alias in node.names
                )
                loading[module].update(str(node.module) for node in named)
    folders = {module for module, path in MODULES.items() if path.name == "__init__.py"}
    graph = {module: (names & MODULES.keys()) - {module} - folders for module, names in loading.items()}
    graphlib.TopologicalSorter(graph).prepare()


def run_python(code: str, workspace: Path | None = None) -> dict:
    """Run code in a new interpreter and return the JSON that it prints last."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if workspace:
        environment.update(NBTRAIN_WORKSPACE=str(workspace), NBTRAIN_OUTPUT="", NBTRAIN_DATA="")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=600,
        env=environment,
        cwd=REPOSITORY,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_import_nbtrain_costs_nothing():
    """`import nbtrain` loads only the standard library and nbtrain/__init__.py, in less than 0.1 s of CPU
    time.
    """
    answer = run_python(
        """
        import json, sys, time
        before = set(sys.modules)
        start = time.process_time()
        import nbtrain
        seconds = time.process_time() - start
        print(json.dumps({"seconds": seconds, "modules": sorted(set(sys.modules) - before)}))
        """
    )
    foreign = {name.split(".")[0] for name in answer["modules"]} - {"nbtrain"} - set(sys.stdlib_module_names)
    assert foreign == set()
    ours = [name for name in answer["modules"] if name.startswith("nbtrain")]
    assert ours == ["nbtrain", "nbtrain.base", "nbtrain.base.version"]
    assert answer["seconds"] < 0.1


def test_status_and_logs_load_neither_the_schema_nor_numpy(workspace):
    """A command that reads the records of a run starts without the modules that a plan or a dataset needs."""
    answer = run_python(
        """
        import contextlib, io, json, sys, time
        from nbtrain.base import files
        from nbtrain.base.run_directory.records import AttemptRecord, JobRecord
        from nbtrain.base.run_directory.rundir import JobDir, RunDir, new_job_id
        from nbtrain.cli import main
        job = JobDir(RunDir.named("tiny"), new_job_id())
        job.make_folders()
        files.write_json(job.run.run_json, {"run_id": "id", "name": "tiny", "parent": None})
        job.run.config_yaml.write_text("resources: {device: gpu}")
        at = time.time() - 7200
        attempt = AttemptRecord(0, at, 2, 2, running_at=at + 60, ended_at=at + 3600, reached_step=5)
        record = JobRecord(job.job_id, "id", "tiny", "SUCCEEDED", at, 2, started_at=at, ended_at=at + 3600)
        record.attempts.append(attempt)
        record.write(job.job_json)
        job.log(0, 0).write_text("the last line")
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown):
            codes = [main(["status", "tiny"]), main(["logs", "tiny"])]
        print(json.dumps({"text": shown.getvalue(), "codes": codes, "modules": sorted(sys.modules)}))
        """,
        workspace,
    )
    assert answer["codes"] == [0, 0]
    assert "cost: 2 GPU hours" in answer["text"] and "the last line" in answer["text"]
    loaded = {name.partition(".")[0] for name in answer["modules"]}
    assert loaded & {"pydantic", "numpy", "matplotlib", "tensorboard"} == set()


@pytest.mark.slow
def test_the_notebook_side_never_loads_torch():
    """Importing all modules of the notebook side loads neither torch nor deepspeed nor any module of the GPU
    side.
    """
    names = [module for module in MODULES if room(module) not in GPU_SIDE and not module.endswith("__main__")]
    answer = run_python(
        f"""
        import importlib, json, sys
        for name in {names!r}:
            importlib.import_module(name)
        print(json.dumps(sorted(sys.modules)))
        """
    )
    loaded = {name.split(".")[0] for name in answer}
    assert {"nbtrain", "pydantic"} <= loaded
    assert loaded & {"torch", "deepspeed", "transformers", "pandas"} == set()
    assert [name for name in answer if name.startswith("nbtrain.") and room(name) in GPU_SIDE] == []
    late = {"matplotlib", "tensorboard", "tensorflow", "pynvml", "kubernetes", "distributed", "dask"}
    assert loaded & late == set(), "imported on use only"


@pytest.mark.slow
def test_every_public_name_can_be_called_when_all_modules_are_loaded(workspace):
    """Every public function can still be called after all modules were imported: importing a submodule
    nbtrain.x would replace the function nbtrain.x.
    """
    (workspace / "examples").symlink_to(REPOSITORY / "examples")
    answer = run_python(
        f"""
        import contextlib, importlib, io, json, types
        import nbtrain as nb
        from nbtrain.base.errors import NbtrainError
        for name in {list(MODULES)!r}:
            importlib.import_module(name)
        arguments = {{
            "load": ("gpt-tiny",), "plan": ("gpt-tiny",), "launcher": ("gpt-tiny",), "runs": (),
            "generate": ("no-such-run", "x"), "data_card": ("no-such-data",), "verify": ("no-such-data",),
            "check_parameters": (), "compare": (["no-such-run", "b"],), "plan_picture": ("gpt-tiny",),
            "deepspeed_config": ("gpt-tiny",), "export_run": ("no-such-run", "no-such-program"),
            "export": ("no-such-run", "dir"), "import_model": ("no-such-folder", "name"),
            "new": ("mine", "no-such-text"), "sweep": ("no-such-sweep.yaml",),
        }}
        answer = {{}}
        for name in nb.__all__:
            function = getattr(nb, name)
            assert not isinstance(function, types.ModuleType), name
            with contextlib.redirect_stdout(io.StringIO()):
                try:
                    answer[name] = type(function(*arguments.get(name, ("no-such-run",)))).__name__
                except NbtrainError as error:
                    answer[name] = str(error)
        print(json.dumps(answer))
        """,
        workspace,
    )
    assert " ".join(sorted(answer)) == (
        "advise baselines calibrate check check_parameters compare curves data_card deepspeed_config "
        "evaluate export export_run generate import_model import_run largest launch launcher load new "
        "open_run plan plan_picture prepare queue reproduce runs scalars search serve submit sweep "
        "tensorboard twin verify what_if"
    )
    assert (answer["load"], answer["plan"]) == ("RunConfig", "Plan")
    for name in (
        "open_run",
        "prepare",
        "submit",
        "launch",
        "generate",
        "serve",
        "twin",
        "search",
        "largest",
        "what_if",
        "baselines",
        "curves",
        "scalars",
        "advise",
    ):
        assert "no-such-run" in answer[name]


# Words of others that are spelled like a state, by the module that has them.
OTHER_WORDS = {
    "nbtrain.jobs.backends.slurm.states": "names of Slurm's own states",
    "nbtrain.monitor.run.twin_picture": "the verdict of a twin",
    "nbtrain.proof.report": "the verdict of a twin",
}
SCRIPTS = ("lab/ui/**/*.js", "lab/widgets/*.js", "lab/labextension/src/*.ts", "serving/**/*.js", "**/*.html")


def test_no_other_module_spells_a_state():
    """Only base/run_directory/jobstate.py contains the names of states as strings. Scripts of pages use what
    the server reports about a state: its tone, and whether the job is active, queued or failed.
    """
    spelled = {module for module, path in MODULES.items() if RUN_MEANING.keys() & set(strings_of(path))}
    assert spelled == {"nbtrain.base.run_directory.jobstate", *OTHER_WORDS}
    scripts = [path for pattern in SCRIPTS for path in PACKAGE.glob(pattern) if "prebuilt" not in path.parts]
    in_quotes = re.compile(rf"""["'`]({"|".join(RUN_MEANING)})["'`]""")
    literals = [
        f"{path.relative_to(PACKAGE)}:{number}: {line.strip()}"
        for path in scripts
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if in_quotes.search(line)
    ]
    assert len(scripts) > 60 and literals == []


# Words of others that are spelled like an outcome of a rank, by the module that has them.
OTHER_OUTCOMES = {
    "nbtrain.base.run_directory.end_kinds": "the end of an attempt",
    "nbtrain.corpus.workers.dask_pool": "the status of a future of Dask",
    "nbtrain.jobs.sweep.results": "trials that were stopped",
    "nbtrain.monitor.status.spending": "a job that was stopped",
    "nbtrain.jobs.supervisor.recovery": "a part of a cause",
    "nbtrain.jobs.backends.kubernetes.states": "a condition of a cluster's job",
    "nbtrain.monitor.job.pods": "a condition of a cluster's job",
    "nbtrain.monitor.run.run_description": "a field of a description",
    "nbtrain.cli.output": "the tone of a state",
    "nbtrain.proof.report": "the outcome of a check",
    "nbtrain.proof.prove": "the outcome of a check",
}


def test_no_other_module_spells_an_outcome_of_a_rank():
    """Only base/run_directory/outcomes.py contains the outcomes of ranks as strings; "rollback" is also the
    name of an action and an event.
    """
    words = set(OUTCOMES) - {outcomes.ROLLBACK}
    spelled = {module for module, path in MODULES.items() if words & set(strings_of(path))}
    assert words == {"finished", "stopped", "failed", "killed"}
    assert spelled == {"nbtrain.base.run_directory.outcomes", *OTHER_OUTCOMES}
    assert set(OUTCOMES) == outcomes.LEFT_IN_ORDER | outcomes.FAILED_OUTCOMES
