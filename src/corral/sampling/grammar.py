"""Which tokens a grammar allows next, by llguidance. Knows bytes of tokens, no text and no model.

The library is loaded when the first grammar is compiled. It works with fuel: too large a grammar
does not compile, and one that takes too long over a token ends its sequence.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from corral.contract.messages import ConstraintKind
from corral.errors import ConstraintError
from corral.sampling.candidates import Logits
from corral.sampling.grammar_text import GrammarPart, GrammarText, check_part

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

_T = TypeVar("_T")

MAX_COMPILED: Final = 32
"""Compiled grammars that are kept for the next request with the same one."""
_STACK_BYTES: Final = 64 << 20
"""Of the thread that compiles; 10 KB a level of what `grammar_text.py` lets pass."""
_LEXER_FUEL: Final = 1_000_000  # 20 ms
_STEP_FUEL: Final = 200_000  # 15 ms
_STEP_ITEMS: Final = 50_000
_LEXER_STATES: Final = 20_000  # up to 2 kB each
_GRAMMAR_SYMBOLS: Final = 100_000
_ROW_ITEMS: Final = 1000

# Tokens are left to the model: what the grammar forces need not be tokenized as a text would be.
_OPTIONS: Final = '%llguidance {"no_forcing": true, "skip_repetition": "once"}\n'
# White space in JSON, once between two symbols: without a bound, small models write nothing else.
_JSON_SPACE: Final = r"( {1,4}|\n[ \t]{0,40})"
_SHOWN_ERROR: Final = 300


class Grammar:
    """Where one sequence stands in its grammar."""

    __slots__ = ("_bits", "_matcher", "_size")

    def __init__(self, matcher: "LLMatcher", vocabulary_size: int) -> None:
        """Follow `matcher`, which nobody else uses."""
        self._matcher = matcher
        self._size = vocabulary_size
        self._bits = np.zeros((vocabulary_size + 31) // 32, np.int32)

    def copy(self) -> "Grammar":
        """Return one that stands at the same place and goes on by itself."""
        return Grammar(self._matcher.deep_copy(), self._size)

    @property
    def is_complete(self) -> bool:
        """Whether the sequence may end here."""
        return bool(self._matcher.is_accepting())

    def mask(self, logits: Logits) -> None:
        """Set the logits of all tokens to minus infinity that may not come next, in place.

        Tokens that end a sequence may come where the grammar is complete.

        Raises:
            ConstraintError: no token may come next, or the grammar exceeds its limits.
        """
        bits = self._bits
        self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        if self._matcher.is_error() or not bits.any():
            raise self._failed("allows no token here")
        allowed = np.unpackbits(bits.view(np.uint8), count=self._size, bitorder="little")
        np.copyto(logits, -np.inf, where=allowed == 0)

    def accept(self, token: int) -> None:
        """Note that a token was added to the sequence.

        Raises:
            ConstraintError: the grammar does not allow it, or exceeds its limits.
        """
        if not self._matcher.consume_token(token):
            raise self._failed(f"does not allow token {token} here")

    def _failed(self, otherwise: str) -> ConstraintError:
        reason = self._matcher.get_error()[:_SHOWN_ERROR]
        what = f"cannot be followed further ({reason})" if reason else otherwise
        return ConstraintError(f"the answer's grammar {what}: simplify it")


class GrammarCompiler:
    """The vocabulary of one model, ready to compile grammars for it. Threads may share it."""

    def __init__(
        self,
        tokens: Sequence[bytes],
        *,
        special: Collection[int],
        ends: Collection[int],
        vocabulary_size: int | None = None,
    ) -> None:
        """Take the bytes of each token; the library reads them when it is first needed.

        Args:
            special: control tokens, which no text of a grammar can match.
            ends: the tokens that end a sequence.
            vocabulary_size: of the logits, where there are more than tokens.
        """
        self._size = len(tokens) if vocabulary_size is None else vocabulary_size
        self._tokens = [*tokens, *[b""] * (self._size - len(tokens))]
        self._special = sorted({*special, *ends})  # an end inside a text would end the answer
        self._ends = sorted(ends)
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None
        self._limits: LLParserLimits | None = None
        self._compiled: OrderedDict[GrammarText, Grammar] = OrderedDict()

    def compile(self, text: GrammarText) -> Grammar:
        """Return a grammar at its beginning; the same text is compiled once.

        Raises:
            ConstraintError: the text is no grammar, uses what is not supported, or is too large.
        """
        for part in text.parts:
            check_part(part)
        if not self._ends:
            raise ConstraintError(
                "the model has no token that ends an answer, so it cannot keep to a grammar: "
                "leave the constraint out"
            )
        with self._lock:
            known = self._compiled.get(text)
            if known is None:
                known = on_large_stack(lambda: self._compile(text))
                self._compiled[text] = known
                while len(self._compiled) > MAX_COMPILED:
                    self._compiled.popitem(last=False)
            self._compiled.move_to_end(text)
            return known.copy()

    def _compile(self, text: GrammarText) -> Grammar:
        from llguidance import LLMatcher

        document = {
            "grammars": [
                {"name": "top", "lark_grammar": _OPTIONS + text.top},
                *map(_library_part, text.parts),
            ]
        }
        if self._tokenizer is None:
            self._tokenizer, self._limits = self._build_tokenizer()
        matcher = LLMatcher(self._tokenizer, json.dumps(document), log_level=0, limits=self._limits)
        if matcher.is_error():
            reason = matcher.get_error()[:_SHOWN_ERROR]
            raise ConstraintError(f"the grammar cannot be used: {reason}")
        return Grammar(matcher, self._size)

    def _build_tokenizer(self) -> "tuple[LLTokenizer, LLParserLimits]":
        from llguidance import LLParserLimits, LLTokenizer, TokenizerWrapper

        tokenizer = LLTokenizer(
            TokenizerWrapper(_Vocabulary(self._tokens, self._special, self._ends)),
            eos_token=self._ends,
        )
        limits = LLParserLimits(
            max_items_in_row=_ROW_ITEMS,
            initial_lexer_fuel=_LEXER_FUEL,
            step_lexer_fuel=_STEP_FUEL,
            step_max_items=_STEP_ITEMS,
            max_lexer_states=_LEXER_STATES,
            max_grammar_size=_GRAMMAR_SYMBOLS,
            verbose_errors=False,
        )
        return tokenizer, limits


class _Vocabulary:
    """What llguidance asks of a tokenizer; it never gets to ask for tokens of a text."""

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], special: list[int], ends: list[int]) -> None:
        self.tokens = tokens
        self.special_token_ids = special
        self.eos_token_id = ends[0]

    def __call__(self, text: object) -> list[int]:
        raise NotImplementedError


def on_large_stack(work: Callable[[], _T]) -> _T:
    """Return what `work` returns in a thread whose stack is large; raise what it raises."""
    results: list[_T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    before = threading.stack_size(_STACK_BYTES)
    try:
        thread = threading.Thread(target=run, name="corral-grammar")
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _library_part(part: GrammarPart) -> dict[str, Any]:
    match part.kind:
        case ConstraintKind.JSON:
            text = _lark_of_schema({"type": "object"})
        case ConstraintKind.SCHEMA:
            text = _lark_of_schema(json.loads(part.text))
        case ConstraintKind.REGEX:
            text = f"start: /{_slashed(part.text)}/"
        case ConstraintKind.GBNF:
            text = _lark_of_gbnf(part.text)
        case ConstraintKind.LARK:
            text = part.text
    return {"name": part.name, "lark_grammar": text}


def _lark_of_schema(schema: Any) -> str:
    if isinstance(schema, dict):
        schema = {**schema, "x-guidance": {"whitespace_pattern": _JSON_SPACE}}
    return f"{_OPTIONS}start: %json {json.dumps(schema)}"


def _slashed(pattern: str) -> str:
    """Return a pattern as it stands between slashes."""
    from llguidance import regex_to_lark

    return regex_to_lark(pattern)


def _lark_of_gbnf(text: str) -> str:
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return gbnf_to_lark(text)
    except Exception as error:  # it raises the base class itself
        raise ConstraintError(f"the grammar is no GBNF: {str(error)[:_SHOWN_ERROR]}") from error
