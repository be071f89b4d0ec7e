"""Chat messages to the ids a model continues: template and tokenizer put together."""

from collections.abc import Sequence

from corral.text.template import ChatTemplate, Message
from corral.text.tokenizer import Tokenizer


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    /,
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Message] | None = None,
    most_tokens: int | None = None,
    **extra: object,
) -> list[int]:
    """Return the ids of a rendered chat.

    Control tokens are read where the template writes them; spelled inside messages, tools or extra
    variables they are ordinary text. BOS is put in front if the model wants it and the template
    did not write it; nothing is put behind. A rendered text that certainly has more than
    `most_tokens` is refused without the work of reading it.

    Raises:
        TemplateError: the template refuses the messages, has an error or exceeds its limits.
        InvalidArgument: messages or variables are not what a template can be given.
        ContextExceeded: the rendered text is longer than `most_tokens` can be.
    """
    segments = template.render_segments(
        messages,
        markup=tokenizer.markup,
        add_generation_prompt=add_generation_prompt,
        tools=tools,
        **extra,
    )
    ids = tokenizer.encode_segments(segments, add_special=False, most_tokens=most_tokens)
    bos = tokenizer.bos_id
    if tokenizer.add_bos and bos is not None and ids[:1] != [bos]:
        ids.insert(0, bos)
    return ids
