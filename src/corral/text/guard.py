"""Rewrites a parsed template so that whatever may cost much goes through a filter that asks first.

It changes no meaning: loops, literals, comparisons, slices and ~ give what they gave. What leads to
other templates is refused.
"""

from collections.abc import Callable

from jinja2 import nodes
from jinja2.visitor import NodeTransformer

from corral.text.budget import Refused

# Names of filters; with a space, so that no template can write them.
COUNT, CHARGE, COMPARE, CONCAT, KEY = (
    f"corral {name}" for name in ("count", "charge", "compare", "concat", "key")
)

_REFUSED = (
    nodes.Extends,
    nodes.Include,
    nodes.Import,
    nodes.FromImport,
    nodes.Block,
    nodes.EvalContextModifier,  # switches on escaping, which has operators of its own
    nodes.ScopedEvalContextModifier,
)


class Guard(NodeTransformer):
    """Puts the parts of a template that may cost much through filters."""

    def visit(self, node: nodes.Node, *_args: object, **_kwargs: object) -> nodes.Node:
        """Return what takes the place of a node, its children already done."""
        if isinstance(node, _REFUSED):
            kind = type(node).__name__.lower()
            raise Refused(f"line {node.lineno} uses {kind}, which is not allowed")
        self.generic_visit(node)
        rewrite = _REWRITES.get(type(node))
        return node if rewrite is None else rewrite(node)


def _through(node: nodes.Expr, name: str, *args: nodes.Expr) -> nodes.Expr:
    made = nodes.Filter(node, name, list(args), [], None, None)
    for part in (made, *args):
        part.set_lineno(node.lineno)
        part.environment = node.environment
    return made


def _loop(node: nodes.For) -> nodes.Node:
    node.iter = _through(node.iter, COUNT)  # type: ignore[arg-type]
    return node


def _literal(node: nodes.List) -> nodes.Node:
    return _through(node, CHARGE)


def _tuple(node: nodes.Tuple) -> nodes.Node:
    return _through(node, CHARGE) if node.ctx == "load" else node


def _mapping(node: nodes.Dict) -> nodes.Node:
    for pair in node.items:
        if not isinstance(pair.key, nodes.Const):
            pair.key = _through(pair.key, KEY)
    return _through(node, CHARGE)


def _concatenation(node: nodes.Concat) -> nodes.Node:
    parts = nodes.List(node.nodes, lineno=node.lineno, environment=node.environment)
    return _through(parts, CONCAT)


def _item(node: nodes.Getitem) -> nodes.Node:
    return _through(node, CHARGE) if isinstance(node.arg, nodes.Slice) else node


def _comparison(node: nodes.Compare) -> nodes.Node:
    """Compare in pairs: a < b < c is a < b and b < c, which evaluates b twice."""
    left, out = node.expr, None
    for operand in node.ops:
        one = _through(left, COMPARE, nodes.Const(operand.op), operand.expr)
        if out is not None:
            one = nodes.And(out, one, lineno=node.lineno, environment=node.environment)
        out = one
        left = operand.expr
    return node if out is None else out


_REWRITES: dict[type, Callable[..., nodes.Node]] = {
    nodes.For: _loop,
    nodes.List: _literal,
    nodes.Tuple: _tuple,
    nodes.Dict: _mapping,
    nodes.Concat: _concatenation,
    nodes.Getitem: _item,
    nodes.Compare: _comparison,
}
