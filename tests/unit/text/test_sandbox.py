"""Tests of hostile templates: each ends in a typed error, soon and without filling memory."""

import time
import tracemalloc

import pytest

from corral.errors import TemplateError
from corral.text.template import ChatTemplate

ESCAPES = [
    "{{ ''.__class__.__mro__ }}",
    "{{ cycler.__init__.__globals__ }}",
    "{{ '%s'|attr('format') }}",
    "{{ [''] | map(attribute='__class__.__mro__') | list }}",
    "{{ messages.append(1) }}",
    "{{ dict.fromkeys('a') }}",
    "{{ 'a'.encode() }}",
    "{{ (1).to_bytes(1000000000, 'big') }}",
    "{% include 'a' %}",
    "{% extends 'a' %}",
    "{% import 'a' as b %}",
    "{% from 'a' import b %}",
    "{% block a %}{% endblock %}",
    "{% autoescape true %}{% endautoescape %}",
    "{{ self.x() }}",
    "{{ lipsum(n=1000000) }}",
    "{{ [1] | pprint }}",
]

LOOP = "{% for i in range(60) %}"
BIG = "{% set x = 'a' * 10000000 %}"
NEST = (
    "{% set ns = namespace(x=(1,), y=(1,)) %}{% for i in range(60) %}"
    "{% set ns.x = (ns.x, ns.x) %}{% set ns.y = (ns.y, ns.y) %}{% endfor %}"
)

LARGE = [
    "{% for i in range(10**9) %}{% endfor %}",
    "{{ 'a' * 10**9 }}",
    "{{ [1] * 10**9 }}",
    "{{ 10**9 * 'a' }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '%.999999999f' % 1 }}",
    "{{ '%*d' % (999999999, 1) }}",
    "{{ '%999999999d' | format(1) }}",
    "{{ '{:>999999999}'.format(1) }}",
    "{{ '{:{w}}'.format(1, w=999999999) }}",
    "{{ 9 ** (9 ** 9) }}",
    "{% set ns = namespace(x=2) %}" + LOOP + "{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "{% set ns = namespace(x='a') %}" + LOOP + "{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "{% set ns = namespace(x='a') %}" + LOOP + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "{% set ns = namespace(x=[1]) %}" + LOOP + "{% set ns.x = ns.x + ns.x %}{% endfor %}",
    NEST + "{{ ns.x }}",
    NEST + "{{ ns.x == ns.y }}",
    NEST + "{{ ns.x in [ns.y] }}",
    NEST + "{{ ns.x < ns.y }}",
    NEST + "{{ ns.x is eq ns.y }}",
    NEST + "{{ {ns.x: 1} }}",
    NEST + "{{ {}[ns.x] }}",
    NEST + "{{ {}.get(ns.x) }}",
    NEST + "{{ dict([(ns.x, 1)]) }}",
    NEST + "{{ ns.x | tojson }}",
    NEST + "{{ ns.x | string }}",
    NEST + "{{ ns.x ~ '' }}",
    NEST + "{{ [ns.x, ns.y] | unique | list }}",
    NEST + "{{ [ns.x, ns.y] | sort }}",
    NEST + "{{ '%s' % ns.x }}",
    NEST + "{{ '{}{!r}'.format(1, ns.x) }}",
    NEST + "{% for i in [1, 2] %}{{ loop.changed(ns.x) }}{% endfor %}",
    BIG + "{{ x.replace('a', x) }}",
    BIG + "{{ x | replace('a', x) }}",
    BIG + "{{ x | list | length }}",
    BIG + "{{ x.split('a') | length }}",
    BIG + "{{ x | replace('a', '\n') | indent(9999) }}",
    BIG + "{{ x.join([x, x]) }}",
    BIG + "{{ [x, x] | join(x) }}",
    BIG + "{{ [x] * 100000 == [x ~ ''] * 100000 }}",
    BIG + "{{ '%s%s' % (x, x) }}",
    BIG + "{{ '{0}{0}{0}'.format(x) }}",
    BIG + "{{ x | title }}",
    BIG + "{{ x }}{{ x }}",
    BIG + "{% set y %}{{ x }}{{ x }}{% endset %}",
    BIG + "{% set ns = namespace(x=[]) %}{% for i in range(999) %}{% set ns.x = [ns.x, x ~ i] %}"
    "{% endfor %}",
    "{{ [1] | batch(999999999, 'x') | list }}",
    "{{ 'a' | center(999999999) }}",
    "{{ 'a'.ljust(999999999) }}",
    "{{ [1] | tojson(indent=999999999) }}",
    "{{ 1.5 | round(999999999) }}",
    "{{ [[1]] | sum(start=[]) }}",
    "{{ strftime_now('%999999999d') }}",
    "{{ strftime_now('%d' * 999999) }}",
    "{{ raise_exception('a' * 10000000) }}",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "{% for i in range(9) recursive %}{{ loop(range(9)) }}{% endfor %}",
]

DEEP = [
    "{{" + "(" * 3000 + "1" + ")" * 3000 + "}}",
    "{% if 1 %}" * 200 + "{% endif %}" * 200,
    "{{ [" * 3000,
    "{{ " + "not " * 30000 + "1 }}",
    "{{ a" + "|trim" * 5000 + " }}",
    "{{ 1" + "+1" * 60000 + " }}",
    "{{a}}" * 20000,
    "{{" * 100000,
    "{#" * 100000,
    "{% raw %}" * 20000,
    "{% if x %}",
    "{{ " + "1" * 100000 + " }}",
    "{% for x in 5 %}{% endfor %}",
    "{{ 1 / 0 }}",
]

ENDLESS = [
    "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for i in range(99999) recursive %}{% if loop.depth < 4 %}{{ loop(range(99999)) }}"
    "{% endif %}{% endfor %}",
    "{% set l = range(9999) | list %}{% for i in l %}{% set q = l | select('in', l) | list %}"
    "{% endfor %}",
    "{% set x %}{% for i in range(99999) %}{% for j in range(99999) %}{{ i * j }}{% endfor %}"
    "{% endfor %}{% endset %}",
]


@pytest.mark.parametrize("source", [*ESCAPES, *DEEP])
def test_what_leads_out_or_too_deep_is_refused(source):
    """No way leads out of the sandbox, and no nesting breaks the compiler."""
    with pytest.raises(TemplateError) as caught:
        ChatTemplate(source).render([{"role": "user", "content": "x"}])
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("source", LARGE)
def test_what_is_too_large_is_refused(source):
    """Nothing large is made: the refusal comes before the memory is taken."""
    measured = BIG in source  # measuring is slow
    if measured:
        tracemalloc.start()
    try:
        with pytest.raises(TemplateError):
            ChatTemplate(source).render([])
        assert tracemalloc.get_traced_memory()[1] < 320 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("source", ENDLESS)
def test_what_takes_too_long_is_stopped(source, monkeypatch):
    """A rendering ends within its deadline."""
    monkeypatch.setattr("corral.text.template.DEADLINE_S", 0.3)
    started = time.perf_counter()
    with pytest.raises(TemplateError, match="too long"):
        ChatTemplate(source).render([])
    assert time.perf_counter() - started < 2


@pytest.mark.parametrize(
    "source", ["{{ '{0.__class__}'.format('') }}", "{{ '{x.__class__}'.format_map({'x': 1}) }}"]
)
def test_formats_see_no_internals(source):
    """What is not for templates is undefined, and written as nothing."""
    assert ChatTemplate(source).render([]) == ""


def test_a_stopped_rendering_leaves_the_template_usable(monkeypatch):
    """Each rendering has a budget of its own."""
    monkeypatch.setattr("corral.text.template.DEADLINE_S", 0.3)
    template = ChatTemplate(
        "{% for i in range(n) %}{% for j in range(n) %}{% endfor %}{% endfor %}x"
    )
    with pytest.raises(TemplateError):
        template.render([], n=90_000)
    assert template.render([], n=2) == "x"
