"""A grammar before it is compiled: plain text in parts, and the sizes it must keep to.

llguidance bounds its work by fuel, but it follows references by recursion: a long chain of them
takes the stack, and with it the process. So depth is bounded here, before it sees anything.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from corral.contract.limits import MAX_SCHEMA_CHARACTERS
from corral.contract.messages import ConstraintKind
from corral.errors import ConstraintError

MAX_SCHEMA_DEPTH: Final = 64
MAX_OBJECTS: Final = 20_000
MAX_REFERRING_OBJECTS: Final = 4000
"""Objects in a schema with `$ref`: no chain of references can be longer."""
MAX_RULES: Final = 1000
MAX_REFERENCES: Final = 500
"""Of `$ref` in schemas inside a Lark grammar."""
MAX_NESTING: Final = 64
MAX_PATTERN: Final = 8192
"""Characters of a regular expression."""

_NAMES: Final = ("properties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose objects hold schemas by name."""
_DATA: Final = ("enum", "const", "default", "examples")
_UNSOUND: Final = ("patternProperties",)
"""Keywords that llguidance takes without keeping to what they say."""
_RULE = re.compile(r"^[ \t]*[!?]?[\w-]+(?:\{[^}\n]*\}|\[[^\]\n]*\])?[ \t]*(?:::=|:)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class GrammarPart:
    """A grammar that another one refers to by `@name`."""

    name: str
    kind: ConstraintKind
    text: str


@dataclass(frozen=True, slots=True)
class GrammarText:
    """What a reply must fit."""

    top: str
    """A Lark grammar written by corral, from its rule `start` on."""
    parts: tuple[GrammarPart, ...] = ()
    """What others wrote."""


def check_part(part: GrammarPart) -> None:
    """Check that a part is small and flat enough to be compiled.

    Raises:
        ConstraintError: it is not, or it is no JSON where it should be.
    """
    if len(part.text) > MAX_SCHEMA_CHARACTERS:
        _refuse(part, f"{len(part.text)} characters", f"at most {MAX_SCHEMA_CHARACTERS}")
    match part.kind:
        case ConstraintKind.SCHEMA:
            _check_schema(part)
        case ConstraintKind.REGEX if len(part.text) > MAX_PATTERN:
            _refuse(part, f"{len(part.text)} characters", f"at most {MAX_PATTERN}")
        case ConstraintKind.LARK | ConstraintKind.GBNF:
            _check_rules(part)


def _check_rules(part: GrammarPart) -> None:
    if (count := len(_RULE.findall(part.text))) > MAX_RULES:
        _refuse(part, f"{count} rules", f"at most {MAX_RULES}")
    if (count := part.text.count("$ref")) > MAX_REFERENCES:
        _refuse(part, f"{count} references", f"at most {MAX_REFERENCES}")
    depth = deepest = 0
    for char in part.text:
        depth += (char in "([{") - (char in ")]}")
        deepest = max(deepest, depth)
    if deepest > MAX_NESTING:
        _refuse(part, f"{deepest} levels of brackets", f"at most {MAX_NESTING}")


def _check_schema(part: GrammarPart) -> None:
    try:
        schema = json.loads(part.text)
    except (ValueError, RecursionError) as error:
        _refuse(part, f"no JSON ({str(error)[:100]})", "a JSON schema")
    references = 0
    for objects, (node, depth, is_schema) in enumerate(_objects(schema), 1):
        references += "$ref" in node
        limit = MAX_REFERRING_OBJECTS if references else MAX_OBJECTS
        if objects > limit or depth > MAX_SCHEMA_DEPTH:
            expected = f"at most {limit}, {MAX_SCHEMA_DEPTH} levels deep"
            _refuse(part, f"{objects} objects or more, {depth} levels deep", expected)
        unsound = [key for key in _UNSOUND if is_schema and key in node]
        if unsound:
            _refuse(part, f"the keyword {unsound[0]}", "a schema without it")


def _objects(root: Any) -> Iterator[tuple[dict[str, Any], int, bool]]:
    """Yield every object of a schema, how deep it lies, and whether its keys are keywords."""
    stack: list[tuple[Any, int, bool]] = [(root, 1, True)]
    while stack:
        node, depth, is_schema = stack.pop()
        if isinstance(node, list):
            stack += [(child, depth + 1, is_schema) for child in node]
        elif isinstance(node, dict):
            yield node, depth, is_schema
            for key, child in node.items():
                is_inner = not is_schema or key not in (*_NAMES, *_DATA)
                stack.append((child, depth + 1, is_inner))


def _refuse(part: GrammarPart, got: str, expected: str) -> None:
    raise ConstraintError(
        f"the {part.kind.value} of {part.name!r} has {got}; expected {expected}: simplify it"
    )
