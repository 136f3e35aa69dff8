"""Print the functions that a function may call, directly or not: every function of nbtrain on any branch, by
file.

    python -m tests.call_path nbtrain.jobs.submission.submit.submit

Names are resolved through the imports of a file, and methods through mypy's type of the expression before the
dot. A call of a base class's method may also call the methods that override it. A function that is passed as
a value counts as called where it is named, and reading a property counts as a call. Functions in a module's
variable, such as a tuple of checks, count as called where the variable is named.
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


def imported(tree: ast.AST, known: Mapping[str, Module]) -> dict[str, str]:
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
        local = imported(module.tree, self.modules)
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
        by_module: dict[str, list[str]] = defaultdict(list)
        for name in sorted(seen & self.functions.keys()):
            module, _ = self.functions[name]
            by_module[module].append(name.removeprefix(f"{module}."))
        return dict(sorted(by_module.items()))


def main() -> None:
    """Print these functions by module, and the number of files and functions."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "functions", nargs="*", default=["nbtrain.jobs.submission.submit.submit", "nbtrain.api.verbs.plan"]
    )
    arguments = parser.parse_args()
    calls = Calls(checked())
    for start in arguments.functions:
        by_module = calls.path(start)
        print(f"# {start}")
        for module, names in by_module.items():
            print(f"{module}: {', '.join(names)}")
        print(f"# {len(by_module)} files, {sum(map(len, by_module.values()))} functions\n")


if __name__ == "__main__":
    main()
