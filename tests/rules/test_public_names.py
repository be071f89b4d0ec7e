"""What is public is listed, documented, and changes only on purpose."""

import ast

import pytest

import corral
from source_tree import modules

PUBLIC = (
    "AdapterInfo",
    "ChatReply",
    "CorralError",
    "DeviceReading",
    "FinishReason",
    "Generation",
    "GenerationStatistics",
    "MemoryGrowth",
    "MemoryRow",
    "MemoryStatistics",
    "Model",
    "PlanReport",
    "SamplingParams",
    "Slope",
    "devices",
    "plan",
)


def test_the_package_exports_exactly_this():
    """Adding or removing a public name is a decision, made here."""
    assert tuple(sorted(corral.__all__)) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_exported_name_exists(name):
    """What is listed can be had."""
    assert getattr(corral, name) is not None


def undocumented(node, prefix):
    """Yield public classes, functions and methods without a docstring."""
    for child in node.body:
        if not isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if child.name.startswith("_"):
            continue
        if not ast.get_docstring(child) and not is_override(child):
            yield prefix + child.name
        if isinstance(child, ast.ClassDef):
            yield from undocumented(child, f"{prefix}{child.name}.")


def is_override(node):
    """Whether a method is documented elsewhere: by a base class, a getter, an overloaded whole."""
    decorators = {ast.unparse(d).split(".")[-1] for d in node.decorator_list}
    return bool(decorators & {"override", "overload", "setter"})


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.relative)
def test_public_things_are_documented(module):
    """A public class, function or method says what it does in a full sentence."""
    assert not list(undocumented(module.tree, ""))


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.relative)
def test_modules_say_what_they_are_for(module):
    """A file opens with its purpose, a package's own too."""
    assert ast.get_docstring(module.tree)


@pytest.mark.parametrize("module", modules(), ids=lambda module: module.relative)
def test_docstrings_begin_with_a_sentence(module):
    """The first paragraph is a full sentence: it ends like one."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            doc = ast.get_docstring(node)
            if doc:
                paragraph = doc.split("\n\n")[0].strip()
                assert paragraph[-1] in ".:)`;!?", f"{node.name}: {paragraph!r}"
