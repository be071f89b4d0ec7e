"""What concurrent clients get of one model, in this process, without HTTP.

Each client asks again as soon as its answer has ended; prompts and answers are of mixed lengths,
one in twenty is cancelled on the way. Prints a line for each number of clients, and JSON last.

    python benchmarks/serve_engine.py --clients 1,4,8,16 --requests 48
    python benchmarks/serve_engine.py --chunk-beside 64      what that does to the pace of others
    python benchmarks/serve_engine.py --alone 128            the engine's steps by themselves, too
"""

import argparse
import json
import random
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from corral.contract.events import Event, FinishEvent, FinishReason, TokenEvent
from corral.contract.messages import GenerationRequest, TokenPrompt
from corral.contract.questions import StatisticsQuestion
from corral.contract.sampling import SamplingParams
from corral.engine.opened import Sizes, open_by_name
from corral.engine.serving import EngineService
from corral.engine.targets import Targets
from gpu_child import through_engine
from serve_answer import percentiles

PROMPTS = (16, 64, 200, 700)
"""Tokens of prompts, each as frequent as the others."""
ANSWERS = (16, 32, 64)
CANCELLED = 0.05


@dataclass(frozen=True)
class Lengths:
    """What requests are like."""

    prompts: Sequence[int] = PROMPTS
    answers: Sequence[int] = ANSWERS
    cancelled: float = CANCELLED
    temperature: float = 1.0


@dataclass
class Measures:
    """What all clients of one run saw; times in seconds. The engine's thread alone writes it."""

    first: list[float] = field(default_factory=list)
    """Until the first token of each answer."""
    between: list[float] = field(default_factory=list)
    """Between tokens of one answer."""
    prompt_tokens: int = 0
    generated_tokens: int = 0
    errors: int = 0
    cancelled: int = 0


class Load:
    """Requests of which so many are under way at once; each client asks again when one ends."""

    def __init__(self, service, lengths: Lengths, count: int) -> None:
        """Ask so many requests of a service."""
        self._service = service
        self._lengths = lengths
        self._left = count
        self._numbers = iter(range(count))
        self._chance = random.Random(0)
        self.measures = Measures()
        self.ended = threading.Event()

    def ask(self) -> None:
        """Send the next request, if there is one."""
        number = next(self._numbers, None)
        if number is None:
            return
        chance, vocabulary = self._chance, self._service.description.vocabulary_size
        prompt = chance.choices(range(vocabulary), k=chance.choice(self._lengths.prompts))
        length = chance.choice(self._lengths.answers)
        leaves = chance.random() < self._lengths.cancelled
        request = GenerationRequest(
            request_id=str(number),
            prompt=TokenPrompt(tuple(prompt)),
            sampling=SamplingParams(seed=number, temperature=self._lengths.temperature),
            max_tokens=length,
            ignore_eos=True,
            namespace=str(number % 2),
        )
        taker = Taker(self, str(number), chance.randrange(1, length + 1) if leaves else None)
        self._service.submit(request, taker.take)

    def cancel(self, request_id: str) -> None:
        """Have a request ended."""
        self._service.cancel(request_id)

    def finished(self, event: FinishEvent) -> None:
        """Count a request that has ended, and ask the next."""
        measures = self.measures
        measures.prompt_tokens += event.usage.prompt_tokens
        measures.generated_tokens += event.usage.generated_tokens
        measures.errors += event.reason is FinishReason.ERROR
        measures.cancelled += event.reason is FinishReason.CANCELLED
        self._left -= 1
        if not self._left:
            self.ended.set()
        self.ask()


class Taker:
    """Takes the events of one request, in the engine's thread."""

    def __init__(self, load: Load, name: str, leaves_after: int | None) -> None:
        """Cancel the request after so many tokens."""
        self._load, self._name, self._leaves_after = load, name, leaves_after
        self._seen = 0
        self._last = time.perf_counter()

    def take(self, event: Event) -> None:
        """Note when it came."""
        if isinstance(event, FinishEvent):
            self._load.finished(event)
        elif isinstance(event, TokenEvent):
            now, measures = time.perf_counter(), self._load.measures
            (measures.between if self._seen else measures.first).append(now - self._last)
            self._seen, self._last = self._seen + 1, now
            if self._seen == self._leaves_after:
                self._load.cancel(self._name)


def run(service, num_clients, num_requests, lengths):
    """Let so many clients send so many requests together; return what came of it."""
    load = Load(service, lengths, num_requests)
    started = time.perf_counter()
    for _ in range(num_clients):
        load.ask()
    load.ended.wait()
    seconds = time.perf_counter() - started
    statistics, measures = settled(service), load.measures
    tokens = measures.generated_tokens
    return {
        "clients": num_clients,
        "requests": num_requests,
        "seconds": round(seconds, 3),
        "generated_tokens_per_s": round(tokens / seconds, 2),
        "all_tokens_per_s": round((tokens + measures.prompt_tokens) / seconds, 2),
        "first_token_s": percentiles(measures.first),
        "between_tokens_s": percentiles(measures.between),
        "cancelled": measures.cancelled,
        "errors": measures.errors,
        "leaked_blocks": statistics.kv_blocks_used,
        "preemptions": statistics.preemptions,
    }


def settled(service):
    """Return the statistics once the last request is off the books."""
    for _ in range(200):
        statistics = service.ask(StatisticsQuestion(), timeout_s=10)
        if not statistics.kv_blocks_used and not statistics.running_requests:
            break
        time.sleep(0.01)
    return statistics


def say(text):
    """Print a line for people now."""
    print(text, file=sys.stderr, flush=True)


def numbers(text):
    """Return numbers with commas between them."""
    return tuple(map(int, text.split(",")))


def parsed():
    """Return what is to be measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--clients", type=numbers, default=(1, 4, 8, 16))
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--prompts", type=numbers, default=PROMPTS, help="tokens of prompts")
    parser.add_argument("--answers", type=numbers, default=ANSWERS, help="tokens of answers")
    parser.add_argument("--cancelled", type=float, default=CANCELLED)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--kv-blocks", type=int)
    parser.add_argument("--chunk-beside", type=int)
    parser.add_argument("--alone", type=int, help="also the engine's steps with so many sequences")
    return parser.parse_args()


def main():
    """Measure and print."""
    args = parsed()
    lengths = Lengths(args.prompts, args.answers, args.cancelled, args.temperature)
    sizes = Sizes(
        args.context, args.parallel, kv_blocks=args.kv_blocks, chunk_beside=args.chunk_beside
    )
    began = time.perf_counter()
    opened = open_by_name(args.model, Targets.of(args.device, None, None), sizes)
    report = {"model": opened.name, "device": opened.device, "settings": vars(args)}
    say(f"loaded in {time.perf_counter() - began:.1f} s")
    if args.alone:
        prompt, answer = min(args.prompts), min(args.answers)
        report["alone"] = round(through_engine(opened, args.alone, prompt, answer - 8), 1)
        say(f"the engine alone: {report['alone']} tokens/s")
    with EngineService(opened, queue_capacity=max(args.clients)) as service:
        run(service, 1, 2, lengths)  # what happens only once is not measured
        found = []
        for count in args.clients:
            found.append(run(service, count, args.requests, lengths))
            one = found[-1]
            say(
                f"{count:>3} clients: {one['generated_tokens_per_s']:>8} tokens/s, first token "
                f"{one['first_token_s']}, between {one['between_tokens_s']}"
            )
    print(json.dumps(report | {"runs": found}))


if __name__ == "__main__":
    main()
