"""Questions about texts, tokens and the model itself, which need no evaluation."""

from corral.contract.messages import AdapterScale, check_adapters
from corral.contract.questions import (
    AdaptersAnswer,
    AdaptersQuestion,
    AdapterState,
    Answer,
    Description,
    DetokenizeQuestion,
    MemoryRow,
    Question,
    RenderQuestion,
    TextAnswer,
    TokenizeQuestion,
    TokensAnswer,
)
from corral.engine.adapters import Adapters
from corral.engine.opened import OpenedModel
from corral.engine.templates import chat_text
from corral.errors import InternalError
from corral.memory.lifetime import Lifetime
from corral.text.template import TEMPLATE_KEY


def answer(question: Question, opened: OpenedModel) -> Answer:
    """Return what a model's parts know; from any thread.

    Raises:
        CorralError: if the question cannot be answered.
    """
    tokenizer = opened.tokenizer
    match question:
        case TokenizeQuestion():
            tokens = tokenizer.encode(
                question.text,
                add_special=question.add_special,
                parse_special=question.parse_special,
            )
            return TokensAnswer(tuple(tokens), tuple(map(tokenizer.token_bytes, tokens)))
        case DetokenizeQuestion(tokens=given):
            return TextAnswer(tokenizer.decode(given))
        case AdaptersQuestion(scales=scales):
            return _adapters(opened.adapters, scales)
        case RenderQuestion(prompt=prompt):
            return TextAnswer(chat_text(prompt, opened.template))
    raise InternalError(f"nobody answers a {type(question).__name__}")


def _adapters(adapters: Adapters, scales: tuple[AdapterScale, ...] | None) -> AdaptersAnswer:
    check_adapters("scales", scales)
    if scales is not None:
        adapters.set_scales({one.id: one.scale for one in scales})
    return AdaptersAnswer(
        tuple(
            AdapterState(
                id=one.id,
                name=one.name,
                file=one.header.name,
                rank=one.header.max_rank,
                scale=one.scale,
                size_bytes=one.size_bytes,
            )
            for one in adapters
        )
    )


def describe(opened: OpenedModel, name: str) -> Description:
    """Return what a service with these parts runs."""
    rows = opened.memory()
    limits, hyper = opened.loaded.design.limits, opened.loaded.design.hyper
    tokenizer = opened.tokenizer
    weights = [row.allocated_bytes for row in rows if row.lifetime is Lifetime.WEIGHTS]

    def text(token: int | None) -> str:
        return "" if token is None else tokenizer.token_text(token)

    return Description(
        model=name or opened.name,
        architecture=hyper.architecture,
        device=opened.device,
        context=limits.context,
        parallel=limits.parallel,
        vocabulary_size=hyper.vocabulary,
        num_parameters=opened.num_parameters,
        weights_bytes=sum(weights),
        embedding_columns=hyper.width,
        chat_template=opened.metadata.str(TEMPLATE_KEY, "") or None,
        bos=text(tokenizer.bos_id),
        eos=text(tokenizer.eos_id),
        kv_type=limits.kv_type,
        memory=tuple(
            MemoryRow(row.device, row.lifetime.value, row.planned_bytes, row.allocated_bytes)
            for row in rows
        ),
    )
