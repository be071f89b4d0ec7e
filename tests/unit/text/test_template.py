"""Tests of `corral.text.template`: what real templates need."""

from datetime import datetime

import pytest

from corral.errors import InvalidArgument, TemplateError
from corral.text.template import MAX_SOURCE, ChatTemplate, ContentForm

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

LLAMA3 = """\
{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + strftime_now("%d %b %Y") + "\\n\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {{- message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' + tool_call.arguments | tojson }}
        {{- '}<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

GEMMA = """\
{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}
    {%- set first_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Conversation roles must alternate user/assistant/user/assistant/...") }}
    {%- endif -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\\n' }}{%- endif -%}
"""

QWEN = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {{- "# Tools\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content %}
        {%- if '</think>' in content and loop.index0 < ns.last_query_index %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' + content }}
        {%- for tool_call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' ~ tool_call.function.name ~ '", "arguments": ' }}
            {{- tool_call.function.arguments | tojson ~ '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- else %}
        {{- '<|im_start|>' ~ message.role ~ '\\n' ~ message.content ~ '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}
"""

PARTS_ONLY = (
    "{% for m in messages %}{{ m.role }}:{% for part in m.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}"
    ";{% endfor %}"
)


def user(content):
    return {"role": "user", "content": content}


def assistant(content, **more):
    return {"role": "assistant", "content": content, **more}


def test_demo_model_template(demo_metadata):
    """The demo model's own template writes its default system message and ChatML."""
    template = ChatTemplate.from_metadata(demo_metadata)
    text = template.render([user("Hi")])
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_chatml():
    """ChatML: every message between its markers, and the beginning of the reply on demand."""
    template = ChatTemplate(CHATML)
    messages = [user("Hi"), assistant("Hello"), user("é😀")]
    body = (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
        "<|im_start|>user\né😀<|im_end|>\n"
    )
    assert template.render(messages, add_generation_prompt=False) == body
    assert template.render(messages) == body + "<|im_start|>assistant\n"


def test_llama3():
    """Llama 3: slices, trimming, the date and tool calls; contents are texts."""
    template = ChatTemplate(LLAMA3, bos_token="<s>", now=lambda: datetime(2026, 7, 4))
    assert template.content_form is ContentForm.TEXT
    call = {"function": {"name": "add", "arguments": {"a": 1, "b": "é"}}}
    text = template.render(
        [
            {"role": "system", "content": " Be kind. "},
            user("  Hi\n"),
            assistant("", tool_calls=[call]),
        ]
    )
    assert text == (
        "<s><|start_header_id|>system<|end_header_id|>\n\nToday Date: 04 Jul 2026\n\nBe kind."
        "<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        '{"name": "add", "parameters": {"a": 1, "b": "é"}}<|eot_id|>'
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    with pytest.raises(TemplateError, match=r"line 18 .*single tool-calls"):
        template.render([assistant("", tool_calls=[call, call])])


def test_gemma():
    """Gemma: role names of its own, contents of both forms, and complaints about the order."""
    template = ChatTemplate(GEMMA, bos_token="<bos>")
    assert template.content_form is ContentForm.BOTH
    expected = (
        "<bos><start_of_turn>user\nSys\n\nHi<end_of_turn>\n<start_of_turn>model\nYo<end_of_turn>\n"
        "<start_of_turn>model\n"
    )
    for content in ("Hi ", [{"type": "text", "text": "Hi "}]):
        messages = [{"role": "system", "content": "Sys"}, user(content), assistant("Yo")]
        assert template.render(messages) == expected
    with pytest.raises(TemplateError, match="refuses the messages: Conversation roles"):
        template.render([user("a"), user("b")])


def test_qwen_with_tools():
    """Qwen: tools as JSON, earlier thoughts dropped, tool replies gathered, thinking off."""
    template = ChatTemplate(QWEN)
    tool = {"type": "function", "function": {"name": "f", "description": "für <b>"}}
    call = {"function": {"name": "f", "arguments": {"x": [1, None, True]}}}
    text = template.render(
        [
            user("q"),
            assistant("<think>hm</think>\n\nfirst"),
            user("again"),
            assistant("", tool_calls=[call]),
            {"role": "tool", "content": "1"},
            {"role": "tool", "content": "2"},
        ],
        tools=[tool],
        enable_thinking=False,
    )
    assert text == (
        "<|im_start|>system\n# Tools\n<tools>\n"
        '{"type": "function", "function": {"name": "f", "description": "für <b>"}}'
        "\n</tools><|im_end|>\n<|im_start|>user\nq<|im_end|>\n"
        "<|im_start|>assistant\nfirst<|im_end|>\n<|im_start|>user\nagain<|im_end|>\n"
        '<|im_start|>assistant\n\n<tool_call>\n{"name": "f", "arguments": {"x": [1, null, true]}}\n'
        "</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n1\n</tool_response>\n"
        "<tool_response>\n2\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )


def test_parts_of_text_become_one_text_for_templates_of_texts():
    """A list of text parts is put together, a line each, where the template knows texts only."""
    template = ChatTemplate(CHATML)
    assert template.content_form is ContentForm.TEXT
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert "user\na\nb<" in template.render([user(parts)])
    with pytest.raises(InvalidArgument, match="image_url"):
        template.render([user([{"type": "image_url", "image_url": {"url": "x"}}])])


def test_texts_become_parts_for_templates_of_parts():
    """A text becomes a part where the template knows parts only."""
    template = ChatTemplate(PARTS_ONLY)
    assert template.content_form is ContentForm.PARTS
    assert template.render([user("hi")]) == "user:hi;"
    assert template.render([user([{"type": "image"}, {"type": "text", "text": "x"}])]) == (
        "user:<image>x;"
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for i in [1, 2] %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "2"),
        ("{% for i in range(9) %}{% if i > 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        ("{% generation %}a{% for i in [1] %}{{ i }}{% endfor %}{% endgeneration %}b", "a1b"),
        ("  {% if true %}\n  x\n  {% endif %}\ny", "  x\ny"),
        ("{{ {'b': 'é', 'a': [1, none]} | tojson }}", '{"b": "é", "a": [1, null]}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ {'a': 1} | tojson(separators=(',', ':'), sort_keys=true) }}", '{"a":1}'),
        ("{{ 1 < 2 < 3 }} {{ 1 < 2 > 2 }} {{ 'a' in ('a', 'b') }} {{ 1 not in [2] }}", None),
        ("{{ 'a' ~ 1 ~ none ~ nothing ~ [1, 'x'] }}", "a1None[1, 'x']"),
        ("{% set ns = namespace(n=0) %}{% for i in [3, 4] %}{% set ns.n = ns.n + i %}{% endfor %}"
         "{{ ns.n }}", "7"),
        ("{% macro m(x, y='d') %}[{{ x }}{{ y }}{{ caller() if caller }}]{% endmacro %}"
         "{{ m(1) }}{% call m(2, y=3) %}c{% endcall %}", "[1d][23c]"),
        ("{% for a, b in {'x': 1}.items() %}{{ a }}{{ b }}{% endfor %}", "x1"),
        ("{% for k, v in {'y': 1, 'x': 2} | dictsort %}{{ k }}{{ v }}{% endfor %}", "x2y1"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='role') "
         "| join(',') }}", "user"),
        ("{{ messages | rejectattr('role', 'in', ['user']) | list | length }}", "0"),
        ("{{ ['b', 'a', 'b'] | unique | sort | join('+') }} {{ [1, 2] | sum }}", "a+b 3"),
        ("{{ [{'n': 2}, {'n': 1}] | sort(attribute='n') | map(attribute='n') | list }}", "[1, 2]"),
        ("{{ 'x\ny\n\nz' | indent(2) }}|{{ 'x\ny' | indent(1, true) }}", None),
        ("{{ 'Ab' | lower }}{{ 'ab' | upper }}{{ 'ab' | capitalize }}{{ 'a b' | title }}", None),
        ("{{ '%s-%03d' | format('a', 7) }} {{ '%s' % 'b' }} "
         "{{ '{}{x:>3}'.format(1, x=2) }}", None),
        ("{{ 2.5 | round }} {{ 2.345 | round(2) }} {{ 2.1 | round(0, 'ceil') }} "
         "{{ '3' | int + 1 }}", None),
        ("{{ 'a,b'.split(',')[1] }}{{ ' x '.strip() }}{{ 'ab'.startswith('a') }}", "bxTrue"),
        ("{{ '-'.join(['a', 'b']) }}{{ 'aXb'.replace('X', '..') }}{{ 'a-b' | replace('-', '') }}",
         None),
        ("{{ ['a', 'b'] | reverse | list }}{{ 'ab' | reverse }}{{ 'a' | safe }}"
         "{{ '<' | e }}", None),
        ("{% for x in [1, 2] %}{{ loop.index }}{{ loop.last }}{{ loop.length }}"
         "{{ loop.previtem }}{{ loop.nextitem }}{% endfor %}", "1False222True21"),
        ("{% for x in [[1], 2] recursive %}{{ loop(x) if x is iterable else x }}"
         "{% endfor %}", "12"),
        ("{% for x in [] %}{% else %}none{% endfor %}{% set x %}a{% endset %}{{ x }}", "nonea"),
        ("{% filter upper %}a{% endfilter %}{{ cycler('a', 'b').next() }}", "Aa"),
        ("{{ [1, 2, 3][1:] }}{{ 'abc'[::-1] }}{{ (1, 2)[-1] }}{{ {'a': {'b': 1}}.a.b }}",
         "[2, 3]cba21"),
        ("{{ [1, 2] | batch(2) | list }}{{ [3, 1] | max }}{{ [3, 1] | min }}{{ [1] | first }}",
         "[[1, 2]]311"),
        ("{{ x | default('d') }}{{ none | d('e', true) }}{{ x is undefined }}{{ tools is none }}",
         "deTrueTrue"),
    ],
)  # fmt: skip
def test_templates_mean_what_they_mean_in_jinja(source, expected):
    """The guarded environment gives what Jinja gives."""
    messages = [user("hi")]
    text = ChatTemplate(source).render(messages)
    if expected is not None:
        assert text == expected
    if "generation" not in source and "tojson" not in source:
        assert text == plain_jinja(source, messages)


def plain_jinja(source, messages):
    from jinja2 import Environment

    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    return environment.from_string(source).render(messages=messages, tools=None)


def test_a_model_without_template_says_what_to_do():
    """There is no default template; the error tells of raw mode."""
    with pytest.raises(TemplateError, match="raw mode"):
        ChatTemplate.from_metadata({"general.name": "base"})


def test_variants_are_templates_of_their_own():
    """A file may hold a second template, such as for tools."""
    metadata = {"tokenizer.chat_template": "a", "tokenizer.chat_template.tool_use": "b"}
    assert ChatTemplate.from_metadata(metadata).render([]) == "a"
    assert ChatTemplate.from_metadata(metadata, variant="tool_use").render([]) == "b"


def test_errors_name_the_line():
    """Errors in the source and while rendering say where."""
    with pytest.raises(TemplateError, match="line 3 of the chat template fails"):
        ChatTemplate("a\nb\n{% if %}")
    with pytest.raises(TemplateError, match=r"line 2 .* UndefinedError"):
        ChatTemplate("a\n{{ x.y }}").render([])


@pytest.mark.parametrize(
    "name", ["messages", "tokenize", "chat_template", "range", "_x", "a b", ""]
)
def test_reserved_variables_are_refused(name):
    """Extra variables cannot replace what a template relies on."""
    with pytest.raises(InvalidArgument, match="cannot be a variable"):
        ChatTemplate("{{ messages }}").render([], **{name: 1})


@pytest.mark.parametrize("messages", [["text"], [user(object())], [user({1, 2})], [user(b"x")]])
def test_messages_of_other_types_are_refused(messages):
    """Messages are mappings of JSON's types."""
    with pytest.raises(InvalidArgument):
        ChatTemplate(CHATML).render(messages)


def test_endless_messages_are_refused():
    """A list that holds itself is no message."""
    endless = []
    endless.append(endless)
    with pytest.raises(InvalidArgument, match="more than"):
        ChatTemplate(CHATML).render([user(endless)])


def test_long_sources_are_refused():
    """A template of megabytes is refused before it is read."""
    with pytest.raises(TemplateError, match="characters"):
        ChatTemplate("a" * (MAX_SOURCE + 1))


def test_long_conversations_are_rendered():
    """Thousands of long messages are far from the limits."""
    messages = [user("hello " * 40), assistant("world " * 40)] * 2000
    for source in (CHATML, GEMMA, QWEN):
        assert len(ChatTemplate(source).render(messages)) > 900_000
