"""The chat template that a model's file brings, with the tokens it speaks of."""

from corral.errors import TemplateError
from corral.gguf import Metadata
from corral.text.template import ChatTemplate
from corral.text.tokenizer import Tokenizer


def chat_template(metadata: Metadata, tokenizer: Tokenizer) -> ChatTemplate:
    """Return the template of the file, which knows the texts of BOS and EOS.

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

    return ChatTemplate(source, bos_token=text(tokenizer.bos_id), eos_token=text(tokenizer.eos_id))
