"""Files and functions stay small enough to be read at once."""

import ast
from statistics import median

import pytest

from source_tree import functions, modules

FILE_LINES = 400
FUNCTION_LINES = 60
MEDIAN_FUNCTION_LINES = 10
POSITIONAL = 6
KERNEL_ABI = ("k", "record", "thread", "threads")
"""What every CPU kernel begins with; only what follows is its own."""

LONGER_FILES = {}
LONGER_FUNCTIONS = {
    "text/sandbox.py:_filters": "a table of filters, most of them closures of one line",
}
MORE_PARAMETERS = {}
"""Exceptions by path (and name), each with its reason."""


def length(node):
    """Return the lines of a function without its docstring."""
    first = node.body[0]
    documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    doc = first.end_lineno - first.lineno + 1 if documented else 0
    return node.end_lineno - node.lineno + 1 - doc


def positional(node):
    """Return how many parameters can be given by position, self and cls left out."""
    names = [a.arg for a in (*node.args.posonlyargs, *node.args.args)]
    if tuple(names[:4]) == KERNEL_ABI:
        names = names[4:]
    return len([name for name in names if name not in ("self", "cls")])


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.relative)
def test_files(module):
    """No file is longer than anyone wants to scroll."""
    lines = module.path.read_text("utf-8").splitlines()
    assert len(lines) <= FILE_LINES or module.relative in LONGER_FILES


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.relative)
def test_functions(module):
    """A function fits a screen and takes few things by position."""
    for name, node in functions(module):
        where = f"{module.relative}:{name}"
        assert length(node) <= FUNCTION_LINES or where in LONGER_FUNCTIONS, where
        assert positional(node) <= POSITIONAL or where in MORE_PARAMETERS, where


def test_most_functions_are_short():
    """The median function has ten lines or fewer."""
    lengths = [length(node) for module in modules() for _, node in functions(module)]
    assert median(lengths) <= MEDIAN_FUNCTION_LINES


def test_the_exceptions_are_needed():
    """An exception that nothing needs any more goes."""
    lengths = {m.relative: m.path.read_text("utf-8").count("\n") for m in modules()}
    named = {f"{m.relative}:{name}": node for m in modules() for name, node in functions(m)}
    assert set(LONGER_FILES) <= {name for name, lines in lengths.items() if lines > FILE_LINES}
    assert set(LONGER_FUNCTIONS) <= {n for n, f in named.items() if length(f) > FUNCTION_LINES}
    assert set(MORE_PARAMETERS) <= {n for n, f in named.items() if positional(f) > POSITIONAL}


def test_the_measure_counts_what_it_says():
    """Docstrings do not count, bodies do; self is no parameter."""
    code = 'def f(self, a, b, *, c):\n    """One.\n\n    Two.\n    """\n    return a\n'
    node = ast.parse(code).body[0]
    assert length(node) == 2
    assert positional(node) == 2
