"""Questions that a service answers at once, beside the generation of texts: plain frozen data.

question                    answer
TokenizeQuestion            TokensAnswer
DetokenizeQuestion          TextAnswer
RenderQuestion              TextAnswer
EmbedQuestion               EmbeddingAnswer
AdaptersQuestion            AdaptersAnswer
DescribeQuestion            Description
StatisticsQuestion          ServiceStatistics
"""

import msgspec

from corral.contract.messages import AdapterScale, ChatPrompt, Prompt
from corral.contract.sessions import SessionCounts


class TokenizeQuestion(msgspec.Struct, frozen=True, tag="tokenize"):
    """What are the tokens of a text?"""

    text: str
    add_special: bool = False
    parse_special: bool = True


class DetokenizeQuestion(msgspec.Struct, frozen=True, tag="detokenize"):
    """What is the text of tokens?"""

    tokens: tuple[int, ...]


class RenderQuestion(msgspec.Struct, frozen=True, tag="render"):
    """What does the model's template make of a chat?"""

    prompt: ChatPrompt


class EmbedQuestion(msgspec.Struct, frozen=True, tag="embed"):
    """What vector stands for a text?"""

    prompt: Prompt
    namespace: str = ""


class AdaptersQuestion(msgspec.Struct, frozen=True, tag="adapters"):
    """Which adapters are there, and what does each count for who says nothing?"""

    scales: tuple[AdapterScale, ...] | None = None
    """What each shall count from now on, before the answer; those not named count nothing. None
    changes nothing."""


class DescribeQuestion(msgspec.Struct, frozen=True, tag="describe"):
    """What model is this?"""


class StatisticsQuestion(msgspec.Struct, frozen=True, tag="statistics"):
    """What does the service hold now?"""


Question = (
    TokenizeQuestion
    | DetokenizeQuestion
    | RenderQuestion
    | EmbedQuestion
    | AdaptersQuestion
    | DescribeQuestion
    | StatisticsQuestion
)


class TokensAnswer(msgspec.Struct, frozen=True, tag="tokens"):
    """Tokens, and the bytes of each."""

    tokens: tuple[int, ...]
    pieces: tuple[bytes, ...] = ()


class TextAnswer(msgspec.Struct, frozen=True, tag="text"):
    """A text."""

    text: str


class EmbeddingAnswer(msgspec.Struct, frozen=True, tag="embedding"):
    """A vector of length 1, as F32 in little-endian bytes."""

    values: bytes
    prompt_tokens: int


class AdapterState(msgspec.Struct, frozen=True):
    """An adapter that requests can have."""

    id: int
    name: str
    file: str
    """The name of its file."""
    rank: int
    scale: float
    size_bytes: int
    """What it holds on the devices."""


class AdaptersAnswer(msgspec.Struct, frozen=True, tag="adapters_answer"):
    """The adapters of a model, in the order of their numbers."""

    adapters: tuple[AdapterState, ...]


class MemoryRow(msgspec.Struct, frozen=True):
    """Bytes of one lifetime on one device."""

    device: str
    lifetime: str
    planned_bytes: int
    allocated_bytes: int


class Description(msgspec.Struct, frozen=True, kw_only=True, tag="description"):
    """What a service runs."""

    model: str
    architecture: str
    device: str
    context: int
    """Tokens of one sequence."""
    parallel: int
    """Sequences at once."""
    vocabulary_size: int
    num_parameters: int
    weights_bytes: int
    embedding_columns: int
    chat_template: str | None
    bos: str
    eos: str
    kv_type: str
    memory: tuple[MemoryRow, ...]


class SlotState(msgspec.Struct, frozen=True):
    """One running sequence."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    """Of prompt and answer, so far."""
    generated_tokens: int
    dropped_tokens: int = 0
    """Computed ones that a full context was shifted by; it holds the others."""


class ServiceStatistics(msgspec.Struct, frozen=True, kw_only=True, tag="service_statistics"):
    """What a service holds now and has done since it started."""

    waiting_requests: int = 0
    running_requests: int = 0
    finished_requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    kv_blocks_used: int = 0
    kv_blocks_total: int = 0
    preemptions: int = 0
    """Sequences whose blocks were taken for others and that were computed again."""
    queue_capacity: int = 0
    steps: int = 0
    step_age_s: float = 0.0
    """Seconds since the engine last finished a step, or since a prompt is being prepared, while
    there is work; where something is stuck it grows."""
    slots: tuple[SlotState, ...] = ()
    sessions: SessionCounts = SessionCounts()


Answer = (
    TokensAnswer | TextAnswer | EmbeddingAnswer | AdaptersAnswer | Description | ServiceStatistics
)
