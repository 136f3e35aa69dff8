"""Print the functions that a function may call, directly or not, by file, in three measures.

    python -m tests.call_path nbtrain.jobs.submission.submit.submit
    python -m tests.call_path --methods                                of submit and of plan
    python -m tests.call_path --repository ../old nbtrain.jobs.submit.submit

By name: calls of functions and classes that are named where they are called, `read_request(...)` or
`amounts.size(...)`, on any branch; a class counts with its __init__ and __post_init__. Methods of objects and
functions that are passed as values are not followed, and base and config, the ground of every path, are not
counted. This is what a reader opens who follows every name.

Of its box: the same, but a call into another box ends there: the files of the function's own box, and the
files of other boxes that they call. This is what a reader opens who believes the first line of another box's
docstring.

With methods (--methods, half a minute): every function of nbtrain on any branch, base and config included.
Methods are resolved through mypy's type of the expression before the dot. A call of a base class's method may
also call the methods that override it. A function that is passed as a value counts as called where it is
named, and reading a property counts as a call. Functions in a module's variable, such as a tuple of checks,
count as called where the variable is named.
"""

import argparse
import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mypy import build, types
from mypy.find_sources import create_source_list
from mypy.fscache import FileSystemCache
from mypy.options import Options
from mypy.server.subexpr import get_subexpressions

REPOSITORY = Path(__file__).parents[1]
DEFAULT = ("nbtrain.jobs.submission.submit.submit", "nbtrain.planner.plan.plan")
COMMON_GROUND = ("base", "config")
Place = tuple[int, int, int | None, int | None]


@dataclass
class Module:
    """A file of nbtrain: its functions, its imported names, and the classes of its expressions by
    position.
    """

    tree: ast.Module
    classes_at: Mapping[Place, tuple[str, ...]]
    functions: dict[str, ast.AST] = field(default_factory=dict)
    """Functions by name in the module: "submit", "Run.wait"."""
    variables: dict[str, ast.AST] = field(default_factory=dict)
    """The values of the module's variables by name: "CHECKS"."""


def checked() -> build.BuildResult:
    """Run mypy on all of nbtrain and return its result, which has the type of every expression."""
    options = Options()
    options.export_types = options.preserve_asts = options.check_untyped_defs = True
    options.incremental = False
    # Classes of other packages have no calls of ours.
    options.follow_imports = "skip"
    options.ignore_missing_imports = True
    options.python_version = (3, 11)
    return build.build(create_source_list([str(REPOSITORY / "nbtrain")], options, FileSystemCache()), options)


def classes_of(found: types.Type | None) -> Iterator[str]:
    """Yield the full names of the classes that a value of this type may belong to."""
    proper = types.get_proper_type(found) if found else None
    if isinstance(proper, types.Instance):
        yield proper.type.fullname
    elif isinstance(proper, types.TypeType):
        yield from classes_of(proper.item)
    elif isinstance(proper, types.UnionType):
        for item in proper.items:
            yield from classes_of(item)
    elif isinstance(proper, types.CallableType) and proper.is_type_obj():
        yield proper.type_object().fullname


def modules(result: build.BuildResult) -> dict[str, Module]:
    """Return every module of nbtrain by its dotted name."""
    found = {}
    for name, state in result.graph.items():
        if not name.startswith("nbtrain") or state.path is None:
            continue
        classes_at: dict[Place, tuple[str, ...]] = {}
        for expression in get_subexpressions(result.files[name]):
            place = expression.line, expression.column, expression.end_line, expression.end_column
            if classes := tuple(classes_of(result.types.get(expression))):
                classes_at[place] = classes
        module = Module(ast.parse(Path(state.path).read_text(encoding="utf-8")), classes_at)
        for node in module.tree.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                module.functions[node.name] = node
            elif isinstance(node, ast.ClassDef):
                for inner in node.body:
                    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                        module.functions[f"{node.name}.{inner.name}"] = inner
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        module.variables[target.id] = node.value
        found[name] = module
    return found


def imported(tree: ast.AST) -> dict[str, str]:
    """Return {local name: full name} of the names that a file or a function imports from nbtrain."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nbtrain"):
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return names


class Calls:
    """Everything in nbtrain that can be called: functions, methods and classes."""

    def __init__(self, result: build.BuildResult):
        self.modules = modules(result)
        self.bases: dict[str, tuple[str, ...]] = {}
        self.overriding: dict[str, set[str]] = defaultdict(set)
        for name in self.modules:
            tree = result.files[name]
            for symbol in tree.names.values():
                info = symbol.node
                if type(info).__name__ == "TypeInfo" and info.fullname.startswith(f"{name}."):
                    self.bases[info.fullname] = tuple(base.fullname for base in info.mro)
                    for base in info.mro[1:]:
                        for method in info.names:
                            if method in base.names:
                                self.overriding[f"{base.fullname}.{method}"].add(f"{info.fullname}.{method}")
        self.functions = {
            f"{name}.{function}": (name, node)
            for name, module in self.modules.items()
            for function, node in module.functions.items()
        }
        self.variables = {
            f"{name}.{variable}": (name, value)
            for name, module in self.modules.items()
            for variable, value in module.variables.items()
        }

    def named_in(self, function: str) -> Iterator[str]:
        """Yield the full names of the functions and variables that a function, or a variable's value,
        mentions.
        """
        name, node = self.functions.get(function) or self.variables[function]
        module = self.modules[name]
        local = imported(module.tree)
        local |= {own: f"{name}.{own}" for own in (*module.functions, *module.variables) if "." not in own}
        local |= {full.rpartition(".")[2]: full for full in self.bases if full.rpartition(".")[0] == name}
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and part.id in local:
                yield local[part.id]
            elif isinstance(part, ast.Attribute):
                value = part.value
                if isinstance(value, ast.Name) and f"{local.get(value.id)}" in self.modules:
                    yield f"{local[value.id]}.{part.attr}"
                place = value.lineno, value.col_offset, value.end_lineno, value.end_col_offset
                for found in module.classes_at.get(place, ()):
                    for base in self.bases.get(found, ()):
                        if f"{base}.{part.attr}" in self.functions:
                            yield f"{base}.{part.attr}"
                            break

    def path(self, start: str) -> dict[str, list[str]]:
        """Return {module: its functions} for every function that `start` may call, directly or not."""
        if start not in self.functions:
            raise SystemExit(f"{start} is not a function of nbtrain.")
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            name = waiting.pop()
            if name in self.bases:
                waiting += [f"{name}.__init__", f"{name}.__post_init__"]
            if name in seen or (name not in self.functions and name not in self.variables):
                continue
            seen.add(name)
            for called in self.named_in(name):
                waiting += [called, *self.overriding[called]]
        return by_module({name: self.functions[name][0] for name in seen & self.functions.keys()})


class NamedCalls:
    """The functions and classes of a checkout, and the calls between them that are made by name."""

    def __init__(self, repository: Path):
        self.trees = {}
        for path in (repository / "nbtrain").rglob("*.py"):
            parts = path.relative_to(repository).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            self.trees[name] = ast.parse(path.read_text(encoding="utf-8"))
        self.imports = {module: imported(tree) for module, tree in self.trees.items()}
        self.definitions = {
            f"{module}.{node.name}": (module, node)
            for module, tree in self.trees.items()
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        }

    def _defined(self, name: str) -> str:
        """Return the name of the definition that an imported name stands for, through packages that pass it
        on.
        """
        module, _, last = name.rpartition(".")
        passed_on = self.imports.get(module, {}).get(last)
        return name if name in self.definitions or passed_on is None else self._defined(passed_on)

    def _called(self, name: str) -> Iterator[str]:
        """Yield the full names that a function, or the making of a class, calls by name."""
        module, node = self.definitions[name]
        bodies: list[ast.AST] = [node]
        if isinstance(node, ast.ClassDef):
            inits = ("__init__", "__post_init__")
            bodies = [inner for inner in node.body if getattr(inner, "name", "") in inits]
        own = {
            full.rpartition(".")[2]: full for full, (home, _) in self.definitions.items() if home == module
        }
        local = own | self.imports[module]
        for call in (part for body in bodies for part in ast.walk(body) if isinstance(part, ast.Call)):
            function = call.func
            if isinstance(function, ast.Name) and function.id in local:
                yield self._defined(local[function.id])
            elif isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
                yield self._defined(f"{local.get(function.value.id)}.{function.attr}")

    def path(self, start: str, own_box: bool = False) -> dict[str, list[str]]:
        """Return {module: its functions and classes} that `start` calls by name, directly or not.

        With `own_box`, what other boxes call is not followed.
        """
        if start not in self.definitions:
            raise SystemExit(f"{start} is not a function of nbtrain.")
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            name = waiting.pop()
            box = name.split(".")[1]
            if name in seen or name not in self.definitions or box in COMMON_GROUND:
                continue
            seen.add(name)
            if not own_box or box == start.split(".")[1]:
                waiting += self._called(name)
        return by_module({name: self.definitions[name][0] for name in seen})


def by_module(module_of: Mapping[str, str]) -> dict[str, list[str]]:
    """Return {module: names in it}, sorted, from {full name: its module}."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, module in sorted(module_of.items()):
        found[module].append(name.removeprefix(f"{module}."))
    return dict(sorted(found.items()))


def write(title: str, path: Mapping[str, list[str]]) -> None:
    """Print the functions of a path by module, and the number of files and functions."""
    for module, names in path.items():
        print(f"{module}: {', '.join(names)}")
    print(f"# {title}: {len(path)} files, {sum(map(len, path.values()))} functions\n")


def main() -> None:
    """Print the measures of each function, the first with the functions in it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("functions", nargs="*", default=[*DEFAULT])
    parser.add_argument("--methods", action="store_true", help="follow methods too, with mypy's types")
    parser.add_argument("--repository", type=Path, default=REPOSITORY, help="another checkout")
    arguments = parser.parse_args()
    named = NamedCalls(arguments.repository)
    calls = Calls(checked()) if arguments.methods else None
    for start in arguments.functions:
        if calls:
            write(f"{start}, with methods", calls.path(start))
            continue
        write(f"{start}, by name", named.path(start))
        own = named.path(start, own_box=True)
        box = start.split(".")[1]
        inside = [module for module in own if module.split(".")[1] == box]
        print(
            f"# {start}, of its box: {len(own)} files, {len(inside)} of {box} and {len(own) - len(inside)} "
            "of other boxes that they call\n"
        )


if __name__ == "__main__":
    main()
