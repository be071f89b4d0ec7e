"""Jinja as chat templates expect it, but with a budget for everything a template does.

Loops, calls, operators, filters and literals are rewritten after parsing so that each asks the
budget of `budget.py`. Nothing is computed while compiling, and no other template is reachable.
"""

import functools
import re
import types
from collections.abc import Callable, Iterable, Iterator
from string import Formatter
from typing import Any

from jinja2 import Undefined, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.filters import FILTERS
from jinja2.lexer import TokenStream
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.tests import TESTS
from jinja2.utils import Cycler, Joiner, Namespace

from corral.text.budget import Budget, Containers, Refused, Rejected, check_items
from corral.text.guard import CHARGE, COMPARE, CONCAT, COUNT, KEY, Guard
from corral.text.operations import Operations, Value

MAX_TOKENS = 25_000
"""Lexical tokens of a template, each 20 µs to compile; the longest templates have some thousand."""
MAX_WORDS_TEXT = 1 << 18
"""Characters of a text that is looked at word by word."""

_CALLABLE_TYPES = (dict, Namespace, Cycler, Joiner)
_LONG_NUMBER = re.compile(r"\d{5,}")

# Filters of Jinja that take one value and do no more than read it.
_SIMPLE = "abs count d default dictsort first float int items last length map reject rejectattr "
_SIMPLE += "select selectattr"
# Filters that treat their value as text.
_TEXTUAL = "capitalize lower trim truncate upper urlencode"
# Filters that look at words, which is slow.
_WORDY = "title wordcount"
# Filters that go through a list more than once or compare its items.
_LISTING = "batch groupby max min sort unique"


class BudgetedEnvironment(ImmutableSandboxedEnvironment):
    """A sandbox whose templates share one budget, so that one of them is rendered at a time."""

    intercepted_binops = frozenset(["+", "-", "*", "/", "//", "%", "**"])

    def __init__(self, budget: Budget, now: Callable[[str], str]) -> None:
        """Charge everything to `budget`; `now` formats the present time."""
        self.budget = budget
        self.operations = Operations(budget, blank=Undefined)
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            cache_size=0,
            extensions=[LoopControlExtension, GenerationTag],
            finalize=self._finalize(),
        )
        self.concat = self.operations.joined  # type: ignore[method-assign]
        self.filters = _filters(self)
        self.tests = {**TESTS, **_tests(self.operations)}
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = now

    def _tokenize(
        self, source: str, name: str | None, filename: str | None = None, state: str | None = None
    ) -> TokenStream:
        stream = super()._tokenize(source, name, filename, state)
        return TokenStream(self._counted_tokens(stream), name, filename)

    def _counted_tokens(self, tokens: Iterable[Any]) -> Iterator[Any]:
        for count, token in enumerate(tokens):
            if count > MAX_TOKENS:
                raise Refused(f"it has more than {MAX_TOKENS} words and symbols")
            yield token

    def _generate(
        self,
        source: nodes.Template,
        name: str | None,
        filename: str | None,
        defer_init: bool = False,
    ) -> str:
        guarded = Guard().visit(source)
        return super()._generate(
            guarded,  # type: ignore[arg-type]
            name,
            filename,
            defer_init,
        )

    def call_binop(self, context: Context, operator: str, left: Value, right: Value) -> Value:
        """Apply an operator within the budget."""
        return self.operations.binary(operator, left, right, self.binop_table[operator])

    def getitem(self, obj: Value, argument: Value) -> Value:
        """Look up an item; a key that is a tuple must not be huge."""
        if isinstance(argument, Containers):
            self.budget.measure(argument)
        return super().getitem(obj, argument)

    def call(
        __self,  # noqa: N805
        __context: Context,
        __obj: Value,
        *args: Value,
        **kwargs: Value,
    ) -> Value:
        """Call something within the budget, but no method that is not known to be harmless."""
        if isinstance(__obj, types.BuiltinFunctionType):
            args = __self.operations.check_method(__obj.__self__, __obj.__name__, args)
        elif isinstance(__obj, LoopContext):
            args = tuple(__self.counted(argument) for argument in args)
        elif isinstance(__obj, type | types.MethodType):
            if isinstance(__obj, type) and __obj not in _CALLABLE_TYPES:
                raise SecurityError(f"the type {__obj.__name__} is not for templates")
            for argument in args:  # dict() hashes what it is given, loop.changed() compares it
                __self.budget.measure(argument)
        __self.budget.tick()
        return __self.budget.charged(super().call(__context, __obj, *args, **kwargs))

    def wrap_str_format(self, value: Value) -> Callable[..., str] | None:
        """Replace `str.format` by a function that has limits, wherever it is looked up."""
        if not isinstance(value, types.BuiltinFunctionType) or not isinstance(value.__self__, str):
            return None
        template, formatter = value.__self__, _BoundedFormatter(self)
        if value.__name__ == "format":
            return lambda *args, **kwargs: formatter.vformat(template, args, kwargs)
        if value.__name__ == "format_map":
            return lambda mapping: formatter.vformat(template, (), mapping)
        return None

    def counted(self, iterable: Value) -> "_Counted":
        """Return something to loop over that asks the budget at each step."""
        if isinstance(iterable, str):
            check_items(len(iterable))
        return _Counted(self.budget, iterable)

    def _finalize(self) -> Callable[..., str]:
        # That it takes a context keeps Jinja from computing outputs while compiling.
        @pass_context
        def finalize(_context: Context, value: Value) -> str:
            return self.operations.text(value)

        return finalize


class GenerationTag(Extension):
    """The block `{% generation %}`, which marks the text to train on and changes no output."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own type)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return what stands inside the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Counted:
    """An iterable that asks the budget at each step and keeps its length."""

    def __init__(self, budget: Budget, iterable: Value) -> None:
        self._budget = budget
        self._iterable = iterable

    def __len__(self) -> int:
        return len(self._iterable)

    def __iter__(self) -> Iterator[Value]:
        for item in self._iterable:
            self._budget.tick()
            yield item


class _BoundedFormatter(SandboxedFormatter):
    """`str.format` that pads no further than allowed."""

    def __init__(self, environment: BudgetedEnvironment) -> None:
        super().__init__(environment)
        self._operations = environment.operations

    def format_field(self, value: Value, format_spec: str) -> str:
        if _LONG_NUMBER.search(format_spec):
            raise Refused("it pads a value to more than 9999 characters")
        if isinstance(value, Containers):
            value = self._operations.text(value)
        return self._operations.budget.charged(str(super().format_field(value, format_spec)))

    def convert_field(self, value: Value, conversion: Value) -> Value:
        if conversion and isinstance(value, Containers):
            return self._operations.text(value)
        return Formatter.convert_field(self, value, conversion)


def _filters(environment: BudgetedEnvironment) -> dict[str, Callable[..., Value]]:
    """Return the filters of templates: Jinja's where harmless, otherwise those of Operations."""
    operations, budget = environment.operations, environment.budget

    def unchanged(value: Value) -> Value:
        return value

    def short(value: Value) -> str:
        text = operations.text(value)
        if len(text) > MAX_WORDS_TEXT:
            raise Refused(f"it takes apart a text of more than {MAX_WORDS_TEXT} characters")
        return text

    def measured(value: Value) -> Value:
        items = operations.listed(value)
        budget.measure(items)
        return items

    out: dict[str, Callable[..., Value]] = {}
    for names, prepare in (
        (_SIMPLE, unchanged),
        (_TEXTUAL, operations.text),
        (_LISTING, measured),
        (_WORDY, short),
    ):
        out |= {name: _bounded(FILTERS[name], budget, prepare) for name in names.split()}

    def attributes(value: Value, attribute: Value) -> Value:
        items = operations.listed(value)
        if attribute is None:
            return items
        return [environment.getitem(item, attribute) for item in items]

    def reverse(value: Value) -> Value:
        return value[::-1] if isinstance(value, str) else operations.listed(value)[::-1]

    def join(value: Value, d: Value = "", attribute: Value = None) -> str:
        return operations.join(attributes(value, attribute), d)

    def total(value: Value, attribute: Value = None, start: Value = 0) -> Value:
        return operations.total(attributes(value, attribute), start)

    def escape(value: Value) -> str:
        text = operations.text(value).replace("&", "&amp;").replace("<", "&lt;")
        text = text.replace(">", "&gt;").replace("'", "&#39;").replace('"', "&#34;")
        return budget.charged(text)

    def key(value: Value) -> Value:
        if isinstance(value, Containers):
            budget.measure(value)
        return value

    own: dict[str, Callable[..., Value]] = {
        "center": operations.center,
        "e": escape,
        "escape": escape,
        "format": operations.format,
        "indent": operations.indent,
        "join": join,
        "list": operations.listed,
        "replace": operations.replace,
        "reverse": reverse,
        "round": operations.rounded,
        "safe": operations.text,
        "string": operations.text,
        "sum": total,
        "tojson": operations.tojson,
        COUNT: environment.counted,
        CHARGE: budget.charged,
        CONCAT: operations.concatenated,
        COMPARE: operations.compare,
        KEY: key,
    }
    return out | own


def _tests(operations: Operations) -> dict[str, Callable[..., bool]]:
    """Return the tests that compare, within the budget."""
    names = {
        "eq": "eq equalto ==",
        "ne": "ne !=",
        "lt": "lt lessthan <",
        "lteq": "le <=",
        "gt": "gt greaterthan >",
        "gteq": "ge >=",
        "in": "in",
    }

    def test(name: str, value: Value, other: Value) -> bool:
        return operations.compare(value, name, other)

    out: dict[str, Callable[..., bool]] = {
        spelling: functools.partial(test, name)
        for name, spellings in names.items()
        for spelling in spellings.split()
    }
    out["lower"] = lambda value: operations.text(value).islower()
    out["upper"] = lambda value: operations.text(value).isupper()
    return out


def _bounded(
    function: Callable[..., Value], budget: Budget, prepare: Callable[[Value], Value]
) -> Callable[..., Value]:
    """Return a filter that prepares its value, takes no huge number, and pays for its result."""
    place = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def bounded(*args: Value, **kwargs: Value) -> Value:
        for argument in (*args[place + 1 :], *kwargs.values()):
            if isinstance(argument, Containers):
                budget.measure(argument)
        if function is FILTERS["batch"]:  # fills up the last list
            check_items(int(kwargs.get("linecount") or args[1]))
        value = prepare(args[place])
        result = function(*args[:place], value, *args[place + 1 :], **kwargs)
        return budget.charged(result)

    return bounded


def _raise_exception(message: Value = "") -> None:
    raise Rejected(message[:500] if isinstance(message, str) else type(message).__name__)


def format_time(moment: Any, template: str) -> str:
    """Format a time as `strftime_now` does, with plain directives only."""
    if not isinstance(template, str) or len(template) > 200:
        raise Refused("strftime_now takes a format of up to 200 characters")
    if re.search(r"%(?!-?[A-Za-z%])", template):
        raise Refused("strftime_now takes directives of one letter only")
    return str(moment.strftime(template))
