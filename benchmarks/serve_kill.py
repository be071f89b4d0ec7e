"""Kills a worker at random moments of its requests, again and again, and looks what is left.

Each round: some requests run, the process is killed (SIGKILL), every request must end with exactly
one last event, the next process must answer a canned request as the first one did, and at the end
no process, thread or open file may be left. Prints JSON last; its `failures` should be empty.

    python benchmarks/serve_kill.py --rounds 50
"""

import argparse
import json
import os
import queue
import random
import signal
import sys
import threading
import time

import psutil

from corral.contract.events import FinishEvent, FinishReason, TokenEvent
from corral.contract.messages import GenerationRequest, TextPrompt
from corral.contract.sampling import SamplingParams
from corral.contract.worker import WorkerSpec, WorkerState
from corral.errors import CorralError
from corral.hub.resolve import resolve
from corral.router import supervisor
from corral.router.supervisor import supervise

PATIENCE_S = 120.0


def request(name, max_tokens, prompt="The weather today is"):
    """Return a request whose answer is the same every time."""
    return GenerationRequest(
        request_id=name,
        prompt=TextPrompt(prompt),
        sampling=SamplingParams(temperature=0.0),
        max_tokens=max_tokens,
        ignore_eos=True,
    )


def submit(worker, *given):
    """Submit a request and return the queue of its events."""
    coming = queue.SimpleQueue()
    worker.submit(request(*given), coming.put)
    return coming


def end_of(coming):
    """Wait for the last event; return it and the tokens before."""
    tokens = []
    while not isinstance(event := coming.get(timeout=PATIENCE_S), FinishEvent):
        if isinstance(event, TokenEvent):
            tokens.append(event.token)
    return event, tokens


def canned(worker):
    """Return the tokens of the request that must always be answered alike."""
    return end_of(submit(worker, "canned", 8))[1]


def one_round(worker, number, chance, expected):
    """Kill the worker somewhere in its requests; return what was wrong and the times."""
    failures = []
    flying = [
        submit(worker, f"{number}-{i}", 200, "word " * chance.randrange(1, 90)) for i in range(4)
    ]
    time.sleep(chance.random() * 0.5)
    pid = worker.status.pid
    killed_at = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    for coming in flying:
        event, _ = end_of(coming)
        if event.reason not in (FinishReason.ERROR, FinishReason.LENGTH):
            failures.append(f"round {number}: a request ended with {event.reason.value}")
        if not coming.empty():
            failures.append(f"round {number}: something came after the last event")
    told_s = time.perf_counter() - killed_at
    while worker.state is WorkerState.READY and worker.status.pid == pid:
        time.sleep(0.001)
    worker.wait_until_ready(PATIENCE_S)
    back_s = time.perf_counter() - killed_at
    if canned(worker) != expected:
        failures.append(f"round {number}: the next answer is another one")
    return failures, told_s, back_s


def main():
    """Kill, look and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    supervisor.MOST_CRASHES = args.rounds + 1  # here they are no accident
    supervisor.LONGEST_PAUSE_S = supervisor.FIRST_PAUSE_S
    chance, process = random.Random(args.seed), psutil.Process()
    spec = WorkerSpec(
        model=str(resolve(args.model)), devices=(args.device,), context=512, parallel=2
    )
    files, failures, told, back = process.num_fds(), [], [], []
    with supervise(spec) as worker:
        worker.wait_until_ready(PATIENCE_S)
        expected = canned(worker)
        for number in range(args.rounds):
            try:
                found, told_s, back_s = one_round(worker, number, chance, expected)
            except (CorralError, queue.Empty) as error:
                failures.append(f"round {number}: {type(error).__name__}: {error}")
                break
            failures += found
            told.append(told_s)
            back.append(back_s)
            print(f"round {number}: told {told_s:.3f} s, back {back_s:.2f} s", file=sys.stderr)
        restarts = worker.status.restarts
    print(
        json.dumps(
            {
                "settings": vars(args),
                "restarts": restarts,
                "told_s": {"median": sorted(told)[len(told) // 2], "max": max(told)},
                "back_s": {"median": sorted(back)[len(back) // 2], "max": max(back)},
                "processes_left": len(process.children(recursive=True)),
                "threads_left": threading.active_count() - 1,
                "files_left": process.num_fds() - files,
                "failures": failures,
            }
        )
    )


if __name__ == "__main__":
    main()
