"""The package's source as syntax trees: what the tests of the house rules look at."""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"


@dataclass(frozen=True)
class Module:
    """One file of the package."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def relative(self):
        """Return the path below the package, as people write it."""
        return self.path.relative_to(SOURCE / "corral").as_posix()


@dataclass(frozen=True)
class Import:
    """One imported module, and where."""

    target: str
    line: int
    function: str | None
    """Name of the function it stands in."""
    is_typing_only: bool


@cache
def modules():
    """Return every module of the package."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found.append(Module(name, path, ast.parse(path.read_text("utf-8"), str(path))))
    return tuple(found)


@cache
def module_names():
    """Return the names of all modules."""
    return frozenset(module.name for module in modules())


@cache
def imports(module):
    """Return what a module imports, wherever that stands."""
    return tuple(_imports(module.tree, None, False))


def _imports(node, function, typing_only):
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, function, typing_only)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            for alias in child.names:
                inner = f"{child.module}.{alias.name}"
                target = inner if inner in module_names() else child.module
                yield Import(target, child.lineno, function, typing_only)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _imports(child, function or child.name, typing_only)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _imports(child, function, True)
        else:
            yield from _imports(child, function, typing_only)


def functions(module):
    """Yield (qualified name, node) of every function and method."""
    yield from _functions(module.tree, "")


def _functions(node, prefix):
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child
            yield from _functions(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{prefix}{child.name}.")
        else:
            yield from _functions(child, prefix)
