"""The walls of ARCHITECTURE.md: who may import whom, what loads torch, and what `import nbtrain` costs."""

import ast
import functools
import graphlib
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parent.parent
PACKAGE = REPOSITORY / "nbtrain"

# Files of the ground, and what of others they may import.
GROUND = {
    **dict.fromkeys(
        (
            "rundir",
            "jobstate",
            "metrics",
            "topology",
            "workspace",
            "files",
            "errors",
            "amounts",
            "parent_death",
            "addresses",
            "terminal",
        ),
        (),
    ),
    "progress": ("tqdm",),
    "notebook_parameters": ("IPython",),
}
# On top of everything on the notebook side: the public names, the command line and what only they use.
ROOF = {
    "__init__",
    "api",
    "cli",
    "cli_checkpoint",
    "cli_data",
    "cli_twin",
    "doctor",
    "notebook_runner",
    "workspace_init",
}
NOTEBOOK_SIDE = ("config", "data", "planner", "jobs", "monitor", "widgets", "server")
GPU_SIDE = ("parallel", "model", "train", "generation", "export")

# package: (packages of ours, packages of others) that it may import, besides the ground and itself
ALLOWED = {
    "config": (set(), {"pydantic", "pydantic_core", "yaml"}),
    "data": (
        {"config"},
        {"pydantic", "numpy", "tokenizers", "fastokens", "orjson", "xxhash", "matplotlib", "loky"}
        | {"lxml", "mwparserfromhell", "zstandard", "pyarrow", "ftfy", "rensa", "rustbpe", "sentencex"},
    ),
    "planner": ({"config", "data"}, {"matplotlib", "numpy", "pydantic", "pydantic_core"}),
    "jobs": ({"config", "data", "planner"}, {"psutil"}),
    "monitor": ({"config"}, {"psutil", "tensorboard", "google", "matplotlib", "pynvml"}),
    "widgets": (
        {"monitor", "jobs", "planner", "config", "data"},
        {"pydantic", "ipywidgets", "anywidget", "traitlets", "IPython"},
    ),
    "server": ({"monitor", "jobs"}, {"jupyter_server", "tornado"}),
    "parallel": (set(), {"torch", "deepspeed", "numpy", "flash_attn"}),
    "model": ({"parallel"}, {"torch"}),
    "train": (
        {"model", "parallel", "config", "data"},
        {"torch", "deepspeed", "numpy", "tensorboard", "pynvml"},
    ),
    "generation": ({"train", "model", "parallel", "config", "data"}, {"torch"}),
    "export": ({"train", "model", "parallel", "config", "data"}, {"torch"}),
}


def modules() -> dict[str, Path]:
    """{dotted name: file} of all of nbtrain."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        if "_bundled" in path.parts:
            continue
        parts = path.relative_to(REPOSITORY).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(path: Path, everywhere: bool) -> Iterator[str]:
    """Dotted names that a file imports; `everywhere` looks into functions too. Imports for types do not count."""

    def walk(node: ast.AST) -> Iterator[str]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                yield from (alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}: imports are absolute"
                for alias in child.names:
                    dotted = f"{child.module}.{alias.name}"
                    yield dotted if dotted in MODULES else child.module
            elif everywhere or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield from walk(child)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")))


MODULES = modules()


def room(module: str) -> str:
    """The package below nbtrain, or the file that lies directly in it."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


@functools.cache
def arrows() -> tuple[tuple[str, str], ...]:
    """(module, imported dotted name) for every import of nbtrain, those inside functions too."""
    return tuple(
        (module, imported)
        for module, path in MODULES.items()
        for imported in imports_of(path, everywhere=True)
    )


def test_every_package_has_its_row():
    """A new package or file must be given its place here and in ARCHITECTURE.md."""
    assert {room(module) for module in MODULES} == {*GROUND, *ROOF, *ALLOWED}


def test_the_table_is_that_of_the_architecture():
    """For each package the names of ours in ARCHITECTURE.md's table are those of ALLOWED."""
    text = (
        (REPOSITORY / "ARCHITECTURE.md")
        .read_text(encoding="utf-8")
        .partition("## Walls")[2]
        .partition("\n- ")[0]
    )
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    written = {
        package: {word for word in allowed.replace(",", " ").split() if word in ALLOWED}
        for packages, allowed in rows
        for package in packages.split(", ")
        if package in ALLOWED
    }
    assert written == {package: ours for package, (ours, _) in ALLOWED.items()}


def test_nobody_imports_across_a_wall():
    """Each import of each file, late ones too, is in the table."""
    crossings = []
    for module, imported in arrows():
        top, here = imported.split(".")[0], room(module)
        if top in sys.stdlib_module_names or here in ROOF:
            continue
        if here in GROUND:
            allowed = room(imported) in GROUND if top == "nbtrain" else top in GROUND[here]
        elif top == "nbtrain":
            allowed = room(imported) in {*GROUND, here, *ALLOWED[here][0]} or imported == "nbtrain"
        else:
            allowed = top in ALLOWED[here][1]
        if not allowed:
            crossings.append(f"{module} imports {imported}")
    assert crossings == []


def test_the_roof_imports_no_gpu_side():
    """api, cli and their helpers reach the GPU side through subprocesses only."""
    crossings = [
        f"{module} imports {imported}"
        for module, imported in arrows()
        if room(module) in ROOF
        and (
            imported.split(".")[0] in ("torch", "deepspeed")
            or (imported.startswith("nbtrain.") and room(imported) in GPU_SIDE)
        )
    ]
    assert crossings == []


def test_nothing_imports_the_roof_but_the_roof():
    """No arrow upward: a package that needs a helper of the command line needs it in the ground."""
    crossings = [
        f"{module} imports {imported}"
        for module, imported in arrows()
        if imported.startswith("nbtrain.") and room(imported) in ROOF and room(module) not in ROOF
    ]
    assert crossings == []


def test_there_is_no_circle():
    """Neither between packages, late imports counted, nor between modules when they are loaded."""
    packages: dict[str, set[str]] = {}
    for module, imported in arrows():
        if imported.startswith("nbtrain.") and room(imported) != room(module):
            packages.setdefault(room(module), set()).add(room(imported))
    graphlib.TopologicalSorter({key: value for key, value in packages.items() if key not in ROOF}).prepare()
    loading = {
        module: {name for name in imports_of(path, everywhere=False) if name in MODULES and name != module}
        for module, path in MODULES.items()
    }
    graphlib.TopologicalSorter(loading).prepare()


def run_python(code: str, workspace: Path | None = None) -> dict:
    """The JSON that a fresh interpreter prints last."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if workspace:
        environment.update(NBTRAIN_WORKSPACE=str(workspace), NBTRAIN_OUTPUT="", NBTRAIN_DATA="")
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        cwd=REPOSITORY,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_import_nbtrain_costs_nothing():
    """The standard library and nbtrain's own first file, in under 0.1 s of CPU: no torch, pandas, matplotlib."""
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
    assert [name for name in answer["modules"] if name.startswith("nbtrain")] == ["nbtrain"]
    assert answer["seconds"] < 0.1


def test_the_notebook_side_never_loads_torch():
    """All its modules imported into one process: no torch, no deepspeed, and none of the GPU side."""
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
    late = {"matplotlib", "tensorboard", "tensorflow", "pynvml"}
    assert loaded & late == set(), "imported on use only"


@pytest.mark.slow
def test_every_public_name_can_be_called_when_all_modules_are_loaded(workspace):
    """No submodule hides a public name: importing `nbtrain.x` would set the attribute x of the package."""
    (workspace / "examples").symlink_to(REPOSITORY / "examples")
    answer = run_python(
        f"""
        import contextlib, importlib, io, json, types
        import nbtrain as nb
        from nbtrain.errors import NbtrainError
        for name in {list(MODULES)!r}:
            importlib.import_module(name)
        arguments = {{
            "load": ("gpt-tiny",), "plan": ("gpt-tiny",), "launcher": ("gpt-tiny",), "runs": (),
            "generate": ("no-such-run", "x"), "data_card": ("no-such-data",),
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
    assert sorted(answer) == [
        "data_card",
        "generate",
        "launcher",
        "load",
        "open_run",
        "plan",
        "prepare",
        "runs",
        "submit",
        "tensorboard",
        "twin",
    ]
    assert (answer["load"], answer["plan"]) == ("RunConfig", "Plan")
    for name in ("open_run", "prepare", "submit", "generate", "twin"):
        assert "no-such-run" in answer[name]
