"""The load on servers: what is asked, what of an answer counts, and what is judged a failure."""

import importlib
import json
import sys
from itertools import islice
from pathlib import Path

import pytest

from corral.memory.growth import Slope

FOLDER = Path(__file__).parents[3] / "benchmarks"
NAMES = (
    *("serve", "serve_answer", "serve_client", "serve_requests", "serve_servers", "serve_soak"),
    *("children", "machine"),
)
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


@pytest.fixture
def benchmark(monkeypatch):
    """Return what imports a module of the folder, for one test only."""
    monkeypatch.syspath_prepend(FOLDER)
    yield importlib.import_module
    for name in NAMES:
        sys.modules.pop(name, None)


def event(**fields):
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def text(word):
    return event(choices=[{"text": word}])


def usage(prompt, generated):
    return event(choices=[], usage={"prompt_tokens": prompt, "completion_tokens": generated})


def seen(benchmark, *pieces, has_left=False, wanted=2, head=HEAD):
    """Return what counts of pieces that came a second apart."""
    module = benchmark("serve_answer")
    transcript = module.Transcript()
    for number, piece in enumerate((head, *pieces)):
        transcript.add(piece, float(number))
    transcript.has_left = has_left
    return module.seen(transcript, wanted_tokens=wanted, prompt_tokens=9)


def test_equal_numbers_give_equal_requests(benchmark):
    """Both servers get the same; another round gets others."""
    asks = benchmark("serve_requests").asks
    first, again, other = (list(islice(asks(seed), 20)) for seed in (1, 1, 2))
    assert first == again != other


def test_a_dozen_requests_have_every_length_once(benchmark):
    """What is measured does not hang on which lengths chance chose."""
    module = benchmark("serve_requests")
    found = sorted(
        (ask.prompt.count(" ") + 1, ask.answer_tokens) for ask in islice(module.asks(3), 12)
    )
    assert found == sorted((w, t) for w in module.PROMPT_WORDS for t in module.ANSWER_TOKENS)


def test_one_client_in_twenty_leaves_before_the_end(benchmark):
    """So that what is computed for nobody is a part of the load."""
    found = list(islice(benchmark("serve_requests").asks(4), 4000))
    leaving = [ask for ask in found if ask.leaves_after is not None]
    assert 150 < len(leaving) < 250
    assert all(1 <= ask.leaves_after < ask.answer_tokens for ask in leaving)


def test_prompts_begin_alike_only_if_asked_to(benchmark):
    """A server that knows beginnings again gains nothing unless that is what is measured."""
    asks = benchmark("serve_requests").asks
    apart, shared = (
        {ask.prompt[:60] for ask in islice(asks(5, shared=way), 50)} for way in (False, True)
    )
    assert len(apart) == 50
    assert len(shared) == 1


def test_an_answer_has_the_times_of_its_texts(benchmark):
    """The first text and those after it; the usage is no text."""
    found = seen(benchmark, text("a"), text("b"), usage(5, 2) + b"data: [DONE]\n\n")
    assert (found.times, found.prompt_tokens, found.generated_tokens) == ((1.0, 2.0), 5, 2)
    assert found.error == ""


def test_an_event_in_two_pieces_came_with_the_second(benchmark):
    """Where the network cuts is nothing to the result."""
    whole = text("a")
    found = seen(benchmark, whole[:9], whole[9:] + text("b"), usage(5, 2))
    assert (found.times, found.error) == ((2.0, 2.0), "")


def test_who_leaves_has_what_came_until_then(benchmark):
    """No usage was told: the pieces count, and the prompt as it was asked."""
    found = seen(benchmark, text("a"), has_left=True)
    assert (found.prompt_tokens, found.generated_tokens, found.error) == (9, 1, "")
    assert found.has_left


@pytest.mark.parametrize(
    ("head", "pieces", "said"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", (), "503"),
        (b"", (), "answered b''"),
        (HEAD, (text("a"),), "it ended early"),
        (HEAD, (text("a"), event(error={"message": "lost"})), "lost"),
        (HEAD, (text("a"), usage(5, 1)), "1 of 2 tokens"),
        (HEAD, (b"data: {half\n\n",), "no JSON"),
    ],
)
def test_whatever_is_not_the_whole_answer_is_an_error(benchmark, head, pieces, said):
    """A refusal, a broken stream, an error inside it and too few tokens are all told."""
    assert said in seen(benchmark, *pieces, head=head).error


def test_percentiles_are_values_that_were_measured(benchmark):
    """By nearest rank: of ten values the ninth is the 90th."""
    percentiles = benchmark("serve_answer").percentiles
    assert percentiles(range(10, 0, -1)) == {"p50": 5, "p90": 9, "p99": 10, "max": 10}
    assert percentiles([]) == {}


def test_figures_count_every_client(benchmark):
    """Tokens and errors add up; pauses are those between texts of one answer."""
    module = benchmark("serve_answer")
    answers = [
        module.Seen((1.0, 1.5), 10, 2),
        module.Seen((2.0, 2.1, 2.3), 20, 4),
        module.Seen(error="refused"),
    ]
    found = module.figures(answers, 3.0)
    assert (found["generated_tokens_per_s"], found["all_tokens_per_s"]) == (2.0, 12.0)
    assert (found["errors"], found["first_error"]) == (1, "refused")
    assert found["first_token_s"]["max"] == 2.0
    assert found["between_tokens_s"] == {"p50": 0.2, "p90": 0.5, "p99": 0.5, "max": 0.5}


def test_no_round_has_the_requests_of_another(benchmark):
    """A server would know the beginnings of prompts that it has seen, and compute them no more."""
    asks, seed_of = benchmark("serve_requests").asks, benchmark("serve").seed_of
    rounds = [(clients, number) for clients in (1, 4, 8, 16, 64) for number in range(5)]
    assert len({next(asks(seed_of(*one))).prompt[:60] for one in rounds}) == len(rounds)


def test_a_ratio_is_that_of_medians(benchmark):
    """One bad round of either side changes nothing."""

    def rounds(*rates):
        return [dict.fromkeys(benchmark("serve").RATIOS, rate) | {"errors": 0} for rate in rates]

    found = benchmark("serve").compared(
        {"corral": rounds(1, 30, 20), "llama.cpp": rounds(10, 8, 90)}
    )
    assert found["ratios"] == dict.fromkeys(benchmark("serve").RATIOS, 2.0)


def test_growth_is_judged_by_interval_and_noise(benchmark):
    """Memory that grows beyond doubt fails, as does a file or thread that is left."""
    module = benchmark("serve_soak")
    grown = module.Growth("worker", Slope(9e6, 1e6, 60), 2**30, (5, 6), (9, 9))
    unsure = module.Growth("api", Slope(9e6, 9.1e6, 60), 2**30, (5, 5), (9, 8))
    assert [failure.split(",")[0] for failure in grown.failures] == [
        "worker grows by 9000000 bytes a minute",
        "worker has 6 files",
    ]
    assert unsure.failures == []


def test_a_server_is_warm_when_nothing_grew_for_some_rounds(benchmark):
    """However it grew before, and whichever of its processes."""
    module = benchmark("serve_soak")

    def rounds(*sizes):
        return [{"api": 5 << 20, "worker": size << 10} for size in sizes]

    assert not module.is_warm([])
    assert not module.is_warm(rounds(100, 100, 100))
    assert module.is_warm(rounds(100, 900, 910, 912, 900))
    assert not module.is_warm(rounds(100, 100, 140, 140, 140))


def test_own_memory_is_what_no_file_gives_back(benchmark):
    """As the kernel tells it, in KiB."""
    status = (
        "Name:\tx\nVmSwap:\t       4 kB\nRssAnon:\t   10 kB\nRssFile:\t 900 kB\nRssShmem:\t 1 kB\n"
    )
    assert benchmark("serve_servers").own_bytes(status) == 15 * 1024


def test_slopes_are_told_by_the_minute(benchmark):
    """They are sampled against milliseconds."""
    assert benchmark("serve_soak").a_minute(Slope(2.0, 0.5, 7)) == Slope(120_000.0, 30_000.0, 7)


def test_both_servers_get_the_same_setting(benchmark):
    """Slots, threads and the context of each slot; llama-server is told that of all together."""
    module = benchmark("serve_servers")
    given = module.Setting(Path("m.gguf"), parallel=4, context=512, threads=2, clients=16)
    ours = module.corral_command(given, 1)
    peer = module.peer_command(given, 2, server=Path("llama-server"), python=None)

    def value(command, option):
        return command[command.index(option) + 1]

    assert value(ours, "--context") == "512"
    assert value(peer, "--ctx-size") == "2048"
    for option in ("--parallel", "--threads"):
        assert value(ours, option) == value(peer, option)


def test_a_load_has_requests_for_all_its_clients(benchmark):
    """Some for each, not endlessly many."""
    assert [benchmark("serve").count_for(n) for n in (1, 8, 64)] == [12, 32, 96]


def test_the_usual_rate_is_that_of_the_median_quarter_of_a_second(benchmark):
    """A pause at the beginning of each answer hides nothing of how fast the others come."""
    module = benchmark("serve_answer")
    steady = [module.Seen(tuple(0.5 + n / 100 for n in range(300)), 8, 300, began=5.0)] * 2
    assert module.usual_rate(steady, 600) == 200.0
    late = module.Seen(tuple(3.5 + n / 100 for n in range(100)), 8, 100, began=5.0)
    assert module.usual_rate([*steady, late], 700) == 200.0
    assert module.usual_rate([], 0) == 0.0


def test_lengths_are_those_that_were_asked_for(benchmark):
    """So that one load can be compared with another kind of server's."""
    asks = benchmark("serve_requests").asks(6, words=(3,), answers=(7, 9), cancelled=0.0)
    found = list(islice(asks, 4))
    assert {ask.prompt.count(" ") + 1 for ask in found} == {3}
    assert sorted(ask.answer_tokens for ask in found) == [7, 7, 9, 9]
    assert not any(ask.leaves_after for ask in found)
