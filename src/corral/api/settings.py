"""How a server is to behave: frozen settings, nothing of them read from the environment here."""

from dataclasses import dataclass, field

from corral.contract.sampling import SamplingParams

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
STUCK_S = 60.0
MAX_SEQUENCES = 256


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest of what one client may ask; ranges of single values are the contract's."""

    body_bytes: int = 16 << 20
    body_s: float = 60.0
    """Seconds from the first byte of a body to its last."""
    discard_s: float = 5.0
    """Seconds for which a body that is too large is still read, so that its sender hears of it."""
    head_bytes: int = 16 << 10
    head_s: float = 10.0
    """Seconds from the first byte of a request, or from connecting, to the end of its headers."""
    json_depth: int = 64
    choices: int = 16
    """Answers to one prompt (`n`)."""
    prompts: int = 256
    """Prompts, or texts to embed, in one request."""
    tokenized_characters: int = 1 << 19
    """Of a text whose tokens are asked for; that of a prompt is bound by the context."""
    sequences: int = MAX_SEQUENCES
    """Prompts × choices; no more than run and wait at once, or they are refused for ever."""
    connections: int = 512
    queued_events: int = 4096
    """Events that wait for one client; one who reads more slowly is cancelled."""
    request_s: float = 3600.0
    ask_s: float = 60.0


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """Who may ask, for what, and how answers are made where they do not say."""

    model: str
    """The name of the model; requests may leave it out."""
    aliases: tuple[str, ...] = ()
    """Further names; "*" stands for any."""
    key_digests: tuple[bytes, ...] = ()
    """Of the keys that are accepted (`security.digest`); none lets everybody in."""
    allowed_hosts: frozenset[str] = LOOPBACK_HOSTS
    """What a Host header may name, without port; "*" stands for any."""
    allows_addresses: bool = False
    """Whether a Host header may be any IP address: no page elsewhere can make one point at us."""
    cors_origins: tuple[str, ...] = ()
    """Origins of pages elsewhere that may ask; "*" stands for any."""
    sampling: SamplingParams = field(default_factory=SamplingParams)
    """What counts where a request does not say."""
    stuck_s: float = STUCK_S
    """A step older than this, while there is work, makes /health say so."""
    ping_s: float = 15.0
    """A stream that is silent for so long gets a comment."""
    headers_s: float = 5.0
    """How long a stream waits for its first event before its headers are sent."""
    limits: Limits = field(default_factory=Limits)
