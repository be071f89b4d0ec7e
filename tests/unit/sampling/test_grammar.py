"""Tests of `corral.sampling.grammar`: which tokens may come, and what is refused in time."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.contract.messages import ConstraintKind
from corral.contract.sampling import SamplingParams
from corral.errors import ConstraintError
from corral.sampling.grammar import GrammarCompiler
from corral.sampling.grammar_text import GrammarPart, GrammarText
from corral.sampling.sampler import Sampler

WORDS = (b'{"', b'":', b"}}", b"true", b"the", "é".encode(), "é".encode()[:1])
TOKENS = (*(bytes([byte]) for byte in range(256)), *WORDS, b"<|end|>", b"<|x|>")
END, CONTROL = len(TOKENS) - 2, len(TOKENS) - 1
SIZE = len(TOKENS) + 5  # some logits belong to no token
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def compiler():
    return GrammarCompiler(TOKENS, special=(CONTROL,), ends=(END,), vocabulary_size=SIZE)


def grammar(compiler, text, kind=ConstraintKind.SCHEMA):
    text = text if isinstance(text, str) else json.dumps(text)
    return compiler.compile(GrammarText("start: @part", (GrammarPart("part", kind, text),)))


def allowed(state):
    """Return the tokens that may come next."""
    logits = np.zeros(SIZE, np.float32)
    state.mask(logits)
    return set(np.flatnonzero(logits == 0).tolist())


def takes(state, text):
    """Say whether the bytes of a text may come, and whether it may end then."""
    state = state.copy()
    for byte in text.encode():
        if byte not in allowed(state):
            return False
        state.accept(byte)
    return state.is_complete


def generate(state, seed, temperature=1.0, steps=300):
    """Return what random logits make of a grammar."""
    sampler = Sampler(SamplingParams(seed=seed, temperature=temperature), SIZE, grammar=state)
    random, out = np.random.default_rng(seed), b""
    for position in range(steps):
        logits = random.standard_normal(SIZE).astype(np.float32) * 4
        token = sampler.sample(logits, position)
        sampler.accept(token)
        if token == END:
            return out
        out += TOKENS[token]
    return None


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=30)
def test_random_answers_fit_the_schema(compiler, seed):
    """Whatever the logits, the answer is JSON of the schema, and it ends."""
    answer = generate(
        grammar(
            compiler,
            {
                **PERSON,
                "properties": {
                    "name": {"enum": ["a", "bé"]},
                    "age": {"type": "integer", "minimum": 0, "maximum": 99},
                },
            },
        ),
        seed,
    )
    value = json.loads(answer)
    assert value.keys() == {"name", "age"}
    assert value["name"] in ("a", "bé")
    assert 0 <= value["age"] <= 99


def test_every_kind_of_constraint(compiler):
    """Each kind takes what it describes and nothing else."""
    cases = [
        (ConstraintKind.JSON, "", '{"a": [1, {"b": null}]}', "[1]"),
        (ConstraintKind.SCHEMA, PERSON, '{"name": "é", "age": 3}', '{"name": "x"}'),
        (ConstraintKind.REGEX, "[ab]+/c", "aba/c", "c"),
        (ConstraintKind.GBNF, 'root ::= "x" num\nnum ::= [0-9]+', "x12", "12"),
        (ConstraintKind.LARK, 'start: "x" NUM\nNUM: /[0-9]+/', "x12", "12"),
    ]
    for kind, text, good, bad in cases:
        state = grammar(compiler, text, kind)
        assert takes(state, good), kind
        assert not takes(state, bad), kind


def test_answers_may_end_only_where_they_are_complete(compiler):
    """The end token is allowed in no other place; control tokens never are."""
    state = grammar(compiler, "ab?", ConstraintKind.REGEX)
    assert not state.is_complete
    assert allowed(state) == {ord("a")}
    state.accept(ord("a"))
    assert state.is_complete
    assert allowed(state) == {ord("b"), END}
    state.accept(ord("b"))
    assert allowed(state) == {END}


def test_tokens_of_several_and_of_parts_of_characters(compiler):
    """Tokens may cross borders of the grammar, and cut characters in two."""
    first, second = "é".encode()
    state = grammar(compiler, {"const": "é"})
    state.accept(ord('"'))
    assert allowed(state) >= {first, TOKENS.index("é".encode())}
    state.accept(first)
    assert allowed(state) == {second}
    nested = grammar(compiler, {"type": "object", "properties": {"a": {"type": "object"}}})
    nested.accept(TOKENS.index(b'{"'))
    for byte in b'a":{':
        nested.accept(byte)
    assert TOKENS.index(b"}}") in allowed(nested)


def test_control_tokens_are_named_by_their_id(compiler):
    """Corral's own rules may ask for a control token; its spelling is no way to it."""
    state = compiler.compile(GrammarText(f'start: "<|x|>" | <[{CONTROL}]> "a"'))
    assert allowed(state) == {ord("<"), CONTROL}
    state.accept(CONTROL)
    assert allowed(state) == {ord("a")}


def test_copies_go_on_by_themselves(compiler):
    """Neither a copy nor a second sequence of the same grammar moves the first."""
    first = grammar(compiler, "abc", ConstraintKind.REGEX)
    first.accept(ord("a"))
    second = first.copy()
    second.accept(ord("b"))
    assert allowed(first) == {ord("b")}
    assert allowed(second) == {ord("c")}
    assert allowed(grammar(compiler, "abc", ConstraintKind.REGEX)) == {ord("a")}


def test_white_space_in_json_is_bounded(compiler):
    """Indentation is allowed, endless white space is not."""
    state = grammar(compiler, PERSON)
    assert takes(state, '{\n  "name": "a",\n  "age": 1\n}')
    assert takes(state, '{"name":"a","age":1}')
    assert not takes(state, "{\n\n")
    assert not takes(state, "{     ")


def test_greedy_sampling_keeps_to_the_grammar(compiler):
    """The likeliest token is that of the masked logits, so the device cannot choose it."""
    state = grammar(compiler, "b", ConstraintKind.REGEX)
    sampler = Sampler(SamplingParams(temperature=0), SIZE, grammar=state)
    assert sampler.draw is None
    assert Sampler(SamplingParams(temperature=0), SIZE).draw is not None
    logits = np.zeros(SIZE, np.float32)
    logits[ord("a")] = 9
    assert sampler.sample(logits, 0) == ord("b")
    assert logits[ord("a")] == 9


def test_what_is_not_allowed_is_refused(compiler):
    """A token outside the grammar ends the sequence with an error, which is its own."""
    state = grammar(compiler, "ab", ConstraintKind.REGEX)
    with pytest.raises(ConstraintError, match="answer's grammar"):
        state.accept(ord("b"))
    with pytest.raises(ConstraintError):
        state.mask(np.zeros(SIZE, np.float32))
    assert allowed(grammar(compiler, "ab", ConstraintKind.REGEX)) == {ord("a")}


def chain(length):
    """Return a schema whose definitions refer to each other in a row."""
    definitions = {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(length)}
    return {"$defs": {**definitions, f"d{length}": True}, "$ref": "#/$defs/d0"}


def rules(count, sign=":"):
    return "".join(f"r{n} {sign} r{n + 1}\n" for n in range(count)) + f'r{count} {sign} "a"\n'


def nested(depth):
    return '{"items":' * depth + "{}" + "}" * depth


HOSTILE = {
    "deep schema": (ConstraintKind.SCHEMA, nested(5000)),
    "less deep schema": (ConstraintKind.SCHEMA, nested(100)),
    "chain of references": (ConstraintKind.SCHEMA, chain(5000)),
    "references to anywhere": (
        ConstraintKind.SCHEMA,
        {"x": [{"items": {"$ref": f"#/x/{n + 1}"}} for n in range(4000)], "$ref": "#/x/0"},
    ),
    "many objects": (ConstraintKind.SCHEMA, {"anyOf": [{"const": n} for n in range(30_000)]}),
    "remote": (ConstraintKind.SCHEMA, {"$ref": "http://127.0.0.1:1/schema"}),
    "unknown type": (ConstraintKind.SCHEMA, {"type": "thing"}),
    "not supported": (ConstraintKind.SCHEMA, {"not": {"type": "string"}}),
    "unsound": (ConstraintKind.SCHEMA, {"patternProperties": {"^a": {"type": "integer"}}}),
    "unsatisfiable": (ConstraintKind.SCHEMA, {"type": "integer", "minimum": 2, "maximum": 1}),
    "no JSON": (ConstraintKind.SCHEMA, "{"),
    "long length": (ConstraintKind.SCHEMA, {"type": "string", "maxLength": 2**63}),
    "open pattern": (ConstraintKind.SCHEMA, {"type": "string", "pattern": "((((("}),
    "open brackets": (ConstraintKind.REGEX, "((((("),
    "long pattern": (ConstraintKind.REGEX, "a" * 10_000),
    "brackets": (ConstraintKind.LARK, "start: " + "(" * 60_000),
    "chain of rules": (ConstraintKind.LARK, "start: r0\n" + rules(5000)),
    "undefined": (ConstraintKind.LARK, "start: nothing"),
    "references in Lark": (ConstraintKind.LARK, f"start: %json {json.dumps(chain(600))}"),
    "chain of GBNF": (ConstraintKind.GBNF, "root ::= r0\n" + rules(5000, "::=")),
    "no GBNF": (ConstraintKind.GBNF, "root ::= ((("),
    "undefined GBNF": (ConstraintKind.GBNF, "root ::= nothing"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars_are_refused(compiler, name):
    """Whatever is sent is refused as an error of the request; the compiler stays usable."""
    kind, text = HOSTILE[name]
    with pytest.raises(ConstraintError):
        grammar(compiler, text, kind)
    assert takes(grammar(compiler, "a", ConstraintKind.REGEX), "a")


EXPENSIVE = {
    "many enums": (ConstraintKind.SCHEMA, {"enum": [f"v{n}" for n in range(25_000)]}),
    "longest chain": (ConstraintKind.SCHEMA, chain(3990)),
    "longest rules": (ConstraintKind.LARK, "start: r0\n" + rules(990)),
    "longest GBNF": (ConstraintKind.GBNF, "root ::= r0\n" + rules(990, "::=")),
    "left recursion": (ConstraintKind.LARK, 'start: start "a" | "b"'),
    "repetition": (ConstraintKind.LARK, 'start: ("a" "b"){0,1000000}'),
    "nested repetition": (ConstraintKind.LARK, 'start: (("a"{2000}){2000})'),
    "ambiguity": (ConstraintKind.LARK, 'start: a\na: a a | "a" |'),
    "backtracking": (ConstraintKind.REGEX, "(a+)+$"),
    "many items": (ConstraintKind.SCHEMA, {"type": "array", "minItems": 10**9}),
    "circle": (ConstraintKind.SCHEMA, {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
    "states": (ConstraintKind.REGEX, "(.*a.{15}){3}"),
}


@pytest.mark.parametrize("name", EXPENSIVE)
def test_expensive_grammars_are_bounded(compiler, name):
    """What compiles can be followed for some tokens, or ends the sequence with an error."""
    kind, text = EXPENSIVE[name]
    try:
        state = grammar(compiler, text, kind)
        for _ in range(20):
            tokens = allowed(state) - {END}
            assert tokens <= set(range(END))
            if not tokens:
                break
            state.accept(max(tokens))
    except ConstraintError as error:
        assert str(error)
    assert takes(grammar(compiler, "a", ConstraintKind.REGEX), "a")


def test_models_without_an_end_take_no_grammar():
    """Where no token ends an answer, none could be complete."""
    compiler = GrammarCompiler(TOKENS, special=(), ends=())
    with pytest.raises(ConstraintError, match="ends an answer"):
        grammar(compiler, "a", ConstraintKind.REGEX)
