"""What concurrent clients get of one model, in this process, without HTTP.

Each client asks again as soon as its answer has ended; prompts and answers are of mixed lengths,
one in twenty is cancelled on the way. Prints a line for each number of clients, and JSON last.

    python benchmarks/serve_engine.py --clients 1,4,8,16 --requests 48
    python benchmarks/serve_engine.py --chunk-beside 64      what that does to the pace of others
"""

import argparse
import json
import queue
import random
import sys
import threading
import time
from dataclasses import dataclass, field

from corral.contract.events import FinishEvent, FinishReason, TokenEvent
from corral.contract.messages import GenerationRequest, TokenPrompt
from corral.contract.questions import StatisticsQuestion
from corral.contract.sampling import SamplingParams
from corral.engine.opened import Sizes, open_by_name
from corral.engine.serving import EngineService
from corral.engine.targets import Targets

PROMPTS = (16, 64, 200, 700)
"""Tokens of prompts, each as frequent as the others."""
ANSWERS = (16, 32, 64)
CANCELLED = 0.05
PERCENTILES = (50, 90, 99)


@dataclass
class Measures:
    """What all clients of one run saw; times in seconds."""

    first: list[float] = field(default_factory=list)
    """Until the first token of each answer."""
    between: list[float] = field(default_factory=list)
    """Between tokens of one answer."""
    prompt_tokens: int = 0
    generated_tokens: int = 0
    errors: int = 0
    cancelled: int = 0


def client(service, numbers, seed, measures):
    """Ask until there is no number left."""
    chance = random.Random(seed)
    while True:
        try:
            number = numbers.get_nowait()
        except queue.Empty:
            return
        ask(service, number, chance, measures)


def ask(service, number, chance, measures):
    """Send one request and follow it to its end."""
    coming = queue.SimpleQueue()
    vocabulary = service.description.vocabulary_size
    prompt = tuple(chance.randrange(vocabulary) for _ in range(chance.choice(PROMPTS)))
    length = chance.choice(ANSWERS)
    stop_after = chance.randrange(length) if chance.random() < CANCELLED else None
    request = GenerationRequest(
        request_id=str(number),
        prompt=TokenPrompt(prompt),
        sampling=SamplingParams(seed=number),
        max_tokens=length,
        ignore_eos=True,
        namespace=str(number % 2),
    )
    last = time.perf_counter()
    service.submit(request, coming.put)
    seen = 0
    while not isinstance(event := coming.get(), FinishEvent):
        now = time.perf_counter()
        if isinstance(event, TokenEvent):
            (measures.between if seen else measures.first).append(now - last)
            seen, last = seen + 1, now
            if seen == stop_after:
                service.cancel(request.request_id)
    measures.prompt_tokens += event.usage.prompt_tokens
    measures.generated_tokens += event.usage.generated_tokens
    measures.errors += event.reason is FinishReason.ERROR
    measures.cancelled += event.reason is FinishReason.CANCELLED


def run(service, num_clients, num_requests):
    """Let so many clients send so many requests together; return what came of it."""
    numbers, measures = queue.Queue(), Measures()
    for number in range(num_requests):
        numbers.put(number)
    clients = [
        threading.Thread(target=client, args=(service, numbers, seed, measures))
        for seed in range(num_clients)
    ]
    started = time.perf_counter()
    for thread in clients:
        thread.start()
    for thread in clients:
        thread.join()
    seconds = time.perf_counter() - started
    statistics = settled(service)
    return {
        "clients": num_clients,
        "requests": num_requests,
        "seconds": round(seconds, 3),
        "generated_tokens_per_s": round(measures.generated_tokens / seconds, 2),
        "all_tokens_per_s": round(
            (measures.generated_tokens + measures.prompt_tokens) / seconds, 2
        ),
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


def percentiles(values):
    """Return percentiles of times, and the greatest."""
    ordered = sorted(values)
    if not ordered:
        return {}
    found = {f"p{p}": ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in PERCENTILES}
    return {name: round(value, 5) for name, value in (found | {"max": ordered[-1]}).items()}


def main():
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--clients", default="1,4,8,16")
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--parallel", type=int, default=8)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--kv-blocks", type=int)
    parser.add_argument("--chunk-beside", type=int)
    args = parser.parse_args()
    opened = open_by_name(
        args.model,
        Targets.of(args.device, None, None),
        Sizes(
            args.context,
            args.parallel,
            kv_blocks=args.kv_blocks,
            chunk_beside=args.chunk_beside,
        ),
    )
    with EngineService(opened) as service:
        found = []
        for count in map(int, args.clients.split(",")):
            found.append(run(service, count, args.requests))
            one = found[-1]
            print(
                f"{count:>3} clients: {one['generated_tokens_per_s']:>8} tokens/s, first token "
                f"{one['first_token_s']}, between {one['between_tokens_s']}",
                file=sys.stderr,
            )
        report = {"model": opened.name, "device": opened.device, "settings": vars(args)}
    print(json.dumps(report | {"runs": found}))


if __name__ == "__main__":
    main()
