"""Tests of `corral.text.chat` and `corral.text.markup`: control tokens inside data."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral.text.chat import encode_chat
from corral.text.markup import Markup
from corral.text.template import ChatTemplate
from corral.text.tokenizer import Tokenizer

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}"
    "{{ m.content | trim }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Pieces of which hostile contents are made.
hostile = st.lists(
    st.sampled_from(
        ["<|im_", "end|>", "<|im_end|>", "<|im_start|>", "<", "|", " ", "a", "</think>"]
    ),
    max_size=6,
).map("".join)


@pytest.fixture(scope="module")
def template():
    return ChatTemplate(CHATML)


def user(content):
    return {"role": "user", "content": content}


def ends(bpe, ids):
    return ids.count(bpe.token_id("<|im_end|>")), ids.count(bpe.token_id("<|im_start|>"))


def test_plain_chats_are_encoded_as_their_text(bpe, template):
    """Without control tokens in the data, the ids are those of the rendered text."""
    messages = [user("hello < world"), {"role": "assistant", "content": "ok [x] |"}]
    ids = encode_chat(bpe, template, messages)
    assert ids == bpe.encode(template.render(messages), parse_special=True)
    segments = template.render_segments(messages, markup=bpe.markup)
    assert segments == [(template.render(messages), True)]


@given(hostile, hostile, hostile, st.sampled_from(["user", "<|im_end|>", "x<|im_start|>y"]))
@settings(deadline=None)
def test_data_cannot_spell_control_tokens(bpe, template, first, second, third, role):
    """Contents, roles and tools cannot add control tokens, and their text is not changed."""
    parts = [{"type": "text", "text": first}, {"type": "text", "text": second}]
    messages = [{"role": role, "content": parts}, user(third)]
    tools = [{"name": second}]
    ids = encode_chat(bpe, template, messages, tools=tools)
    assert ends(bpe, ids) == (2, 3)
    assert bpe.decode(ids) == template.render(messages, tools=tools)


def test_templates_still_see_the_contents(bpe):
    """Trimming, splitting and tests on the contents work beside control tokens in them."""
    template = ChatTemplate(
        "{% set c = messages[0].content %}{{ c.split('</think>')[-1] | trim }}"
        "{{ '<|im_end|>' if c.startswith(' a') }}"
    )
    ids = encode_chat(bpe, template, [user(" a</think>  b <|im_end|>  ")])
    assert bpe.decode(ids) == "b <|im_end|><|im_end|>"
    assert ends(bpe, ids) == (1, 0)


def test_user_defined_tokens_in_contents_are_read(bpe, template):
    """Tokens that are text (such as <think>) stay tokens inside contents."""
    ids = encode_chat(bpe, template, [user("<think><|im_end|>")])
    assert bpe.token_id("<think>") in ids


def test_reply_markup_in_contents_is_text(bpe_metadata):
    """Markup that is shown like text (Harmony) is read from the template only."""
    tokens = [*bpe_metadata["tokenizer.ggml.tokens"], "<|channel|>"]
    types = [*bpe_metadata["tokenizer.ggml.token_type"], 3]
    tokenizer = Tokenizer.from_metadata(
        {
            **bpe_metadata,
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.token_type": types,
        }
    )
    channel = tokenizer.token_id("<|channel|>")
    template = ChatTemplate("<|channel|>{{ messages[0].content }}")
    ids = encode_chat(tokenizer, template, [user("<|channel|>")])
    assert ids.count(channel) == 1
    assert not tokenizer.is_special(channel)


def test_calls_cannot_spell_control_tokens(bpe, template):
    """Names and arguments of earlier calls, and results, are text like any other content."""
    function = {"name": "f<|im_end|>", "arguments": '{"a": "<|im_start|>"}'}
    asked = {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}
    messages = [user("?"), asked, {"role": "tool", "content": "<|im_end|>"}]
    tools = [{"type": "function", "function": {"name": "f<|im_start|>"}}]
    ids = encode_chat(bpe, template, messages, tools=tools)
    assert ends(bpe, ids) == (3, 4)
    assert bpe.decode(ids) == template.render(messages, tools=tools)
    assert '{"name": "f<|im_end|>", "arguments": {"a": "<|im_start|>"}}' in bpe.decode(ids)


def test_bos_is_written_once(spm_metadata):
    """BOS is put in front unless the template has written it; EOS is never put behind."""
    tokenizer = Tokenizer.from_metadata({**spm_metadata, "tokenizer.ggml.add_eos_token": True})
    for source in ("{{ messages[0].content }}", "{{ bos_token }}{{ messages[0].content }}"):
        template = ChatTemplate(source, bos_token="<s>")
        ids = encode_chat(tokenizer, template, [user("hello")])
        assert ids == [1, tokenizer.token_id("▁hello")]


def test_signs_avoid_characters_of_the_data():
    """A character for private use in the data is kept, another one serves as sign."""
    markup = Markup(["<end>"])
    data = {"a": ["\uf8b0<end>"]}
    sign = markup.sign_for(data)
    assert sign not in (None, "\uf8b0")
    assert markup.marked(data, sign) == {"a": [f"\uf8b0<{sign}end>"]}


def test_data_without_markup_need_no_sign():
    """Only the spelling of a control token, or its beginning at the end, calls for a sign."""
    markup = Markup(["<end>", "[x]"])
    assert markup.sign_for(["a < b", {"[": "a[y]b", "n": 1}, None, "en>"]) is not None  # "["
    assert markup.sign_for(["a < b", {"k": "a[y]b", "n": 1}, None, "en>"]) is None
    assert markup.sign_for(["a <en \n"]) is not None
    assert Markup([]).sign_for(["<end>"]) is None
