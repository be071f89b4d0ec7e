"""What chats have beside an answer: the template of a model's file, and a whole reply."""

from dataclasses import dataclass

from corral.engine.metrics import GenerationStatistics
from corral.errors import TemplateError
from corral.gguf import Metadata
from corral.text.template import ChatTemplate
from corral.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ChatReply:
    """A whole answer and how it came to be; `str()` is its text."""

    text: str
    statistics: GenerationStatistics

    def __str__(self) -> str:
        return self.text


def chat_template(metadata: Metadata, tokenizer: Tokenizer) -> ChatTemplate:
    """Return the template of a file, which knows the texts of BOS and EOS.

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
