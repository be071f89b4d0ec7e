"""One streamed answer as its client saw it: bytes with times in, tokens and delays out. Pure."""

import json
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

BIN_S = 0.25


@dataclass
class Transcript:
    """What came over one connection, and when; times in seconds since the request was sent."""

    pieces: list[bytes] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    num_events: int = 0
    """Server-sent events so far."""
    has_left: bool = False
    """Whether the client went away before the end."""

    def add(self, piece: bytes, time: float) -> None:
        """Take note of bytes that came together."""
        self.pieces.append(piece)
        self.times.append(time)
        self.num_events += piece.count(b"data: ")


@dataclass(frozen=True)
class Seen:
    """What became of one request."""

    times: tuple[float, ...] = ()
    """When each piece of text came."""
    prompt_tokens: int = 0
    generated_tokens: int = 0
    has_left: bool = False
    error: str = ""
    began: float = 0.0
    """When the request was sent, by the clock that all answers of a load share."""


def seen(transcript: Transcript, *, wanted_tokens: int, prompt_tokens: int = 0) -> Seen:
    """Return what a client got that wanted so many tokens.

    Whoever left is not told how long its prompt was; it counts as `prompt_tokens` and the pieces
    that came.
    """
    head, _, _ = b"".join(transcript.pieces).partition(b"\r\n\r\n")
    status = head.split(b" ", 2)[1:2]
    if status != [b"200"]:
        return Seen(error=f"answered {head[:60]!r}")
    try:
        events = _events(transcript)
    except ValueError as error:
        return Seen(error=f"sent what is no JSON: {error}")
    texts = [time for time, event in events if _has_text(event)]
    if transcript.has_left:
        return Seen(tuple(texts), prompt_tokens, len(texts), has_left=True)
    usage = next((event["usage"] for _, event in events if event.get("usage")), None)
    problem = next((event["error"] for _, event in events if "error" in event), None)
    if problem is not None or usage is None:
        return Seen(tuple(texts), error=f"failed: {problem or 'it ended early'}")
    generated = usage["completion_tokens"]
    wrong = "" if generated == wanted_tokens else f"{generated} of {wanted_tokens} tokens came"
    return Seen(tuple(texts), usage["prompt_tokens"], generated, error=wrong)


def _events(transcript: Transcript) -> list[tuple[float, dict]]:
    """Return the objects that came, each with the time of its last byte."""
    found, rest = [], b""
    for time, piece in zip(transcript.times, transcript.pieces, strict=True):
        *lines, rest = (rest + piece).split(b"\n")
        found += [(time, json.loads(line[6:])) for line in lines if line.startswith(b"data: {")]
    return found


def _has_text(event: dict) -> bool:
    return any(choice.get("text") for choice in event.get("choices", ()))


def percentiles(values: Sequence[float], of: Sequence[int] = (50, 90, 99)) -> dict[str, float]:
    """Return percentiles by nearest rank, and the greatest value; nothing of nothing."""
    ordered = sorted(values)
    if not ordered:
        return {}
    ranks = {f"p{p}": ordered[max(0, -(-len(ordered) * p // 100) - 1)] for p in of}
    return {name: round(value, 5) for name, value in (ranks | {"max": ordered[-1]}).items()}


def usual_rate(answers: Sequence[Seen], generated: int) -> float:
    """Return the tokens a second of the median quarter of a second, from first to last text.

    Where few tokens are the beginning of an answer, that is the rate of decoding alone.
    """
    moments = [one.began + time for one in answers for time in one.times]
    counts = Counter(int(moment / BIN_S) for moment in moments)
    if len(counts) < 3:
        return 0.0
    whole = range(min(counts) + 1, max(counts))
    middle = statistics.median(counts[place] for place in whole)
    return round(middle / BIN_S * generated / len(moments), 2)


def figures(answers: Sequence[Seen], seconds: float) -> dict[str, object]:
    """Return what all clients together got in so many seconds."""
    prompt = sum(one.prompt_tokens for one in answers)
    generated = sum(one.generated_tokens for one in answers)
    between = [b - a for one in answers for a, b in zip(one.times, one.times[1:], strict=False)]
    return {
        "requests": len(answers),
        "seconds": round(seconds, 3),
        "prompt_tokens": prompt,
        "generated_tokens": generated,
        "generated_tokens_per_s": round(generated / seconds, 2),
        "all_tokens_per_s": round((generated + prompt) / seconds, 2),
        "usual_tokens_per_s": usual_rate(answers, generated),
        "first_token_s": percentiles([one.times[0] for one in answers if one.times]),
        "between_tokens_s": percentiles(between),
        "left": sum(one.has_left for one in answers),
        "errors": sum(bool(one.error) for one in answers),
        "first_error": next((one.error for one in answers if one.error), ""),
    }
