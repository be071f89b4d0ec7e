"""Tests of `corral.text.template_facts` and `tool_messages`: tools in templates of many families.

The templates are written for these tests, in the way of the families they are named after.
"""

import json

import pytest

from corral.text.template import ChatTemplate, ContentForm
from corral.text.template_facts import ArgumentsForm

DEMO = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
QWEN = """\
{%- if tools %}<|im_start|>system
{{ messages[0].content if messages[0].role == 'system' }}<tools>
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
</tools><|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% elif not (m.role == 'system' and tools) %}<|im_start|>{{ m.role }}
{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content }}
{%- for call in m.tool_calls or [] %}
{%- set call = call.function if call.function else call %}
<tool_call>
{"name": "{{ call.name }}", "arguments": \
{% if call.arguments is string %}{{ call.arguments }}{% else %}{{ call.arguments | tojson }}\
{% endif %}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""
LLAMA = """\
{{- bos_token }}{% if tools is not none %}{% for t in tools %}{{ t | tojson(indent=4) }}
{% endfor %}{% endif %}
{%- for m in messages %}
{%- if 'tool_calls' in m %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}
{%- set call = m.tool_calls[0].function %}<|start_header_id|>assistant<|end_header_id|>

{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}<|eot_id|>
{%- elif m.role in ['tool', 'ipython'] %}<|start_header_id|>ipython<|end_header_id|>

{{ m.content }}<|eot_id|>
{%- else %}<|start_header_id|>{{ m.role }}<|end_header_id|>

{{ m.content | trim }}<|eot_id|>
{%- endif %}
{%- endfor %}"""
MISTRAL = """\
{{- bos_token }}{% set last = (messages | selectattr('role', 'equalto', 'user') | list)[-1] %}
{%- for m in messages %}
{%- if m.role == 'user' %}
{%- if tools is not none and m == last %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]\
{% endif %}[INST] {{ m.content }}[/INST]
{%- elif m.tool_calls is defined %}[TOOL_CALLS] [
{%- for call in m.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception('ids have nine letters') }}{% endif %}
{{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' }}{{ ', ' if not loop.last }}
{%- endfor %}]{{ eos_token }}
{%- elif m.role == 'tool' %}[TOOL_RESULTS] {"content": {{ m.content }}}[/TOOL_RESULTS]
{%- elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}
{%- else %}{{ raise_exception('unknown role') }}{% endif %}
{%- endfor %}"""
DEEPSEEK = """\
{{- bos_token }}{% for m in messages %}
{%- if m.role == 'user' %}<｜User｜>{{ m.content }}
{%- elif m.role == 'assistant' and m.tool_calls %}<｜Assistant｜><｜tool▁calls▁begin｜>
{%- for call in m.tool_calls %}
{{- '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + call.function.name + '\n```json\n'
    + call.function.arguments + '\n```<｜tool▁call▁end｜>' }}
{%- endfor %}<｜tool▁calls▁end｜>
{%- elif m.role == 'tool' %}<｜tool▁output▁begin｜>{{ m.content }}<｜tool▁output▁end｜>
{%- elif m.role == 'assistant' %}<｜Assistant｜>{{ m.content }}
{%- else %}{{ m.content }}{% endif %}{% endfor %}"""
CODER = """\
{% if tools %}{% for t in tools %}<function><name>{{ t.function.name }}</name></function>
{% endfor %}{% endif %}{% for m in messages %}<|im_start|>
{{- m.role if m.role != 'tool' else 'user' }}
{{ m.content }}{% for call in m.tool_calls or [] %}
<tool_call>
<function={{ call.function.name }}>
{% for key, value in call.function.arguments | items %}<parameter={{ key }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}<|im_end|>
{% endfor %}"""
GEMMA = """\
{{- bos_token }}{% for m in messages %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles alternate') }}
{%- endif %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}
{{ m.content | trim }}<end_of_turn>
{% endfor %}"""
HARMONY = """\
{% if tools %}namespace functions { {% for t in tools %}type {{ t.function.name }} = () => any;
{% endfor %} }{% endif %}{% for m in messages %}
{%- if m.role == 'assistant' and m.tool_calls %}
{%- if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>
{%- endif %}
{%- set call = m.tool_calls[0].function %}
{{- '<|start|>assistant<|channel|>commentary to=functions.' + call.name
    + '<|constrain|>json<|message|>' + call.arguments | tojson + '<|call|>' }}
{%- elif m.role == 'tool' %}<|start|>functions to=assistant<|message|>{{ m.content }}<|end|>
{%- else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"""

TEMPLATES = {
    "demo": (DEMO, False, ArgumentsForm.NONE, False, None),
    "qwen": (QWEN, True, ArgumentsForm.OBJECT, True, "reasoning_content"),
    "llama": (LLAMA, True, ArgumentsForm.OBJECT, True, None),
    "mistral": (MISTRAL, True, ArgumentsForm.OBJECT, True, None),
    "deepseek": (DEEPSEEK, False, ArgumentsForm.TEXT, True, None),
    "coder": (CODER, True, ArgumentsForm.OBJECT, True, None),
    "gemma": (GEMMA, False, ArgumentsForm.NONE, False, None),
    "harmony": (HARMONY, True, ArgumentsForm.OBJECT, True, "thinking"),
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells it.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
ARGUMENTS = '{"city": "Brüssel <b>"}'


def call(name="weather", arguments=ARGUMENTS, call_id="abcdef123"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def conversation(*calls, results=("sleet",)):
    return [
        {"role": "user", "content": "How is it?"},
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": list(calls)},
        *({"role": "tool", "content": text, "tool_call_id": "abcdef123"} for text in results),
    ]


@pytest.mark.parametrize("name", TEMPLATES)
def test_facts_of_families(name):
    """What a template can write is found by trying it."""
    source, writes_tools, arguments, writes_results, reasoning_key = TEMPLATES[name]
    facts = ChatTemplate(source).facts
    assert facts.content is ContentForm.TEXT
    assert facts.writes_tools is writes_tools
    assert facts.arguments is arguments
    assert facts.writes_results is writes_results
    assert facts.reasoning_key == reasoning_key


@pytest.mark.parametrize("name", TEMPLATES)
def test_tools_calls_and_results_reach_the_prompt(name):
    """Each is written once, arguments as they were made, whatever the template can do."""
    text = ChatTemplate(TEMPLATES[name][0]).render(conversation(call()), tools=TOOLS)
    assert "weather" in text
    assert text.count("Brüssel <b>") == 1
    assert '\\"city' not in text
    assert "'city'" not in text
    assert text.count("sleet") == 1
    assert "How is it?" in text
    thought = TEMPLATES[name][4] is not None
    assert ("hm" in text) is thought


def test_templates_without_tools_get_a_text():
    """Tools are described in the system message, in the form that the parser expects."""
    template = ChatTemplate(DEMO)
    alone = template.render([{"role": "user", "content": "Hi"}], tools=TOOLS)
    assert alone.startswith("<|im_start|>system\n")
    assert json.dumps(TOOLS[0]) in alone
    assert '<tool_call>\n{"name": "<name>", "arguments": <arguments>}\n</tool_call>' in alone
    system = {"role": "developer", "content": "Be brief."}
    text = template.render([system, {"role": "user", "content": "Hi"}], tools=TOOLS)
    assert text.startswith("<|im_start|>system\nBe brief.\n\n")
    assert text.count("<|im_start|>system") == 1
    assert "<tools>" not in template.render([system, {"role": "user", "content": "Hi"}])


def test_tools_are_described_in_the_form_of_the_template():
    """A template that writes calls but no tools is told the form of its own calls."""
    text = ChatTemplate(DEEPSEEK).render([{"role": "user", "content": "Hi"}], tools=TOOLS)
    assert "function<｜tool▁sep｜><name>\n```json\n<arguments>\n```<｜tool▁call▁end｜>" in text
    assert "<tool_call>" not in text


def test_calls_and_results_without_a_form_are_text():
    """Earlier calls become text of the assistant, results in a row one message of the user."""
    messages = conversation(call(), call("b", "{}"), results=("sleet", "sun"))
    text = ChatTemplate(DEMO).render(messages)
    assert f'{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>\n<tool_call>' in text
    assert (
        "<|im_start|>user\n<tool_response>\nsleet\n</tool_response>\n"
        "<tool_response>\nsun\n</tool_response><|im_end|>" in text
    )
    assert ChatTemplate(GEMMA).render(messages).count("<start_of_turn>user") == 2


@pytest.mark.parametrize("arguments", ["", "{", "[1]", '{"a": ' * 2000, "null"])
def test_arguments_that_are_no_object_are_passed_as_they_are(arguments):
    """A model may have written anything; the next turn is rendered all the same."""
    text = ChatTemplate(QWEN).render(conversation(call(arguments=arguments)), tools=TOOLS)
    assert f'"arguments": {arguments or "{}"}}}' in text


def test_calls_without_content_have_none_where_the_template_can():
    """Templates tell a message of calls from one of text by its content; some fail without."""
    source = (
        "{% for m in messages %}{% if m.content is none %}C{% elif m.tool_calls %}D{% endif %}"
        "{{ m.content or '' }}{% for c in m.tool_calls or [] %}{{ c.function.name }}"
        "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    assert ChatTemplate(source).facts.calls_have_no_content
    assert "Cweather" in ChatTemplate(source).render(conversation(call()))
    strict = source.replace("m.content or ''", "m.content + ''")
    assert not ChatTemplate(strict).facts.calls_have_no_content
    assert "Dweather" in ChatTemplate(strict).render(conversation(call()))
    written = source.replace("m.content or ''", "m.content")
    assert "None" not in ChatTemplate(written).render(conversation(call()))


def test_systems_without_a_form_begin_the_first_message():
    """A template that refuses a system message is given its text with the user's."""
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    assert ChatTemplate(GEMMA).render(messages).startswith("<start_of_turn>user\nBe brief.\n\nHi<")
    assert not ChatTemplate(GEMMA).facts.writes_system
    assert ChatTemplate(QWEN).facts.writes_system


def test_users_may_still_give_tool_messages_of_templates():
    """Objects in place of JSON text are taken too."""
    for source in (QWEN, DEEPSEEK, DEMO):
        text = ChatTemplate(source).render(conversation(call(arguments={"city": "Ü"})))
        assert '{"city": "Ü"}' in text
