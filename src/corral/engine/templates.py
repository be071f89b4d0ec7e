"""The chat template that a model's file brings, and prompts of all kinds to tokens."""

import json
from collections.abc import Callable
from typing import Any

from corral.contract.messages import ChatPrompt, Message, Prompt, TextPrompt, TokenPrompt, Tool
from corral.errors import InvalidArgument, TemplateError
from corral.gguf import Metadata
from corral.text.chat import encode_chat
from corral.text.rendering import Renderer
from corral.text.template import ChatTemplate
from corral.text.tokenizer import Tokenizer


def chat_template(
    metadata: Metadata, tokenizer: Tokenizer, compiler: Callable[[str], Renderer] | None = None
) -> ChatTemplate:
    """Return the template of the file, which knows the texts of BOS and EOS.

    Args:
        compiler: makes the renderer of its source; by default one in this process.

    Raises:
        TemplateError: if the file has none.
    """
    source = metadata.str("tokenizer.chat_template", "")
    if not source:
        raise TemplateError(
            "the model has no chat template: it continues text, it does not chat; use raw mode"
        )

    def text(token: int | None) -> str:
        return "" if token is None else tokenizer.token_text(token)

    return ChatTemplate(
        source,
        bos_token=text(tokenizer.bos_id),
        eos_token=text(tokenizer.eos_id),
        compiler=compiler,
    )


def prompt_tokens(
    prompt: Prompt,
    tokenizer: Tokenizer,
    template: Callable[[], ChatTemplate],
    *,
    context: int | None = None,
) -> list[int]:
    """Return the tokens of any prompt; control tokens are read in plain text, not in messages.

    Args:
        context: tokens there is room for; a text that is many times too long is then not read.

    Raises:
        ContextExceeded: a text cannot fit the context, however few tokens it has.
        TemplateError: if a chat cannot be rendered; `template` may say so too.
        InvalidArgument: if a text or a variable is not what it may be.
    """
    match prompt:
        case TokenPrompt(tokens):
            return list(tokens)
        case TextPrompt(text):
            return tokenizer.encode(text, add_special=True, parse_special=True, most_tokens=context)
        case ChatPrompt():
            messages = [_message(message) for message in prompt.messages]
            return encode_chat(
                tokenizer,
                template(),
                messages,
                add_generation_prompt=prompt.add_generation_prompt,
                tools=[_tool(tool) for tool in prompt.tools] or None,
                most_tokens=context,
                **_variables(prompt),
            )


def chat_text(prompt: ChatPrompt, template: ChatTemplate) -> str:
    """Return the text of a rendered chat; raises as `prompt_tokens` does."""
    return template.render(
        [_message(message) for message in prompt.messages],
        add_generation_prompt=prompt.add_generation_prompt,
        tools=[_tool(tool) for tool in prompt.tools] or None,
        **_variables(prompt),
    )


def _message(message: Message) -> dict[str, object]:
    """Return a message as templates know it; what is empty is left out."""
    found: dict[str, object] = {"role": message.role, "content": message.content}
    if message.reasoning:
        found["reasoning_content"] = message.reasoning
    if message.tool_calls:
        found["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    if message.tool_call_id:
        found["tool_call_id"] = message.tool_call_id
    if message.name:
        found["name"] = message.name
    return found


def _tool(tool: Tool) -> dict[str, object]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": _object(f"parameters of tool {tool.name}", tool.parameters),
    }
    return {"type": "function", "function": function}


def _variables(prompt: ChatPrompt) -> dict[str, Any]:
    return _object("variables", prompt.variables)


def _object(field: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"{field} is no JSON ({error}); expected a JSON object") from error
    if not isinstance(value, dict):
        raise InvalidArgument(f"{field} is a {type(value).__name__}; expected a JSON object")
    return value
