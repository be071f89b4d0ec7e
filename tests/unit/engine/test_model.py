"""The model as people use it: answers, logits, memory, and its end."""

import gc
import itertools
import warnings
from pathlib import Path

import numpy as np
import pytest

import tiny
from corral.contract.events import FinishReason
from corral.contract.sampling import SamplingParams
from corral.devices.reference.backend import ReferenceBackend
from corral.engine.model import Model
from corral.engine.planning import plan
from corral.errors import (
    Closed,
    ContextExceeded,
    DeviceUnavailable,
    InternalError,
    InvalidArgument,
    ModelError,
    ModelNotFound,
    OutOfMemory,
    TemplateError,
    TokenizerError,
)
from corral.gguf import write_model
from corral.memory.ledger import format_bytes
from corral.quant.types import DType

GREEDY = SamplingParams(temperature=0.0)
SEEDED = SamplingParams(seed=7)
HELLO = [{"role": "user", "content": "Hello there"}]


@pytest.fixture
def path(paths):
    return paths["llama"]


@pytest.fixture
def model(path):
    with Model.load(path, device="reference", context=128, parallel=2) as loaded:
        yield loaded


def is_idle(model):
    """Return whether no answer is being made and no block is used."""
    statistics = model.statistics()
    (free,) = statistics.free_blocks
    return (statistics.waiting, statistics.running, free) == (0, 0, 2 * 4)


class TestContextShift:
    """Answers that outgrow their context."""

    def test_goes_on_until_it_is_left(self, path):
        """Without a limit there is no end; tokens are those that are left, counts those of all."""
        with Model.load(path, device="reference", context=96, context_shift=True, keep=3) as model:
            answer = model.generate("Once upon", ignore_eos=True, sampling=SEEDED)
            while model.statistics().evaluations < 300:
                next(answer)
            answer.cancel()
            statistics = answer.statistics
            assert statistics.finish_reason is FinishReason.CANCELLED
            assert statistics.generated_tokens >= 299
            assert 0 < len(answer.tokens) < 96
            assert model.statistics().free_blocks == (3,)

    def test_as_much_as_may_be_kept_goes_on(self, path):
        """The largest `keep` leaves enough to drop, however much of it a prompt fills."""
        for count in (3, 64, 127):
            with Model.load(
                path, device="reference", context=128, context_shift=True, keep=64
            ) as model:
                answer = model.generate([5] * count, ignore_eos=True, max_tokens=200)
                assert sum(1 for _ in answer) > 0
                assert answer.statistics.generated_tokens == 200
                assert answer.statistics.finish_reason is FinishReason.LENGTH

    def test_what_cannot_be_is_refused(self, path, paths):
        """Keeping without dropping or too much, a context too short, a model with windows."""
        with pytest.raises(InvalidArgument, match=r"keep is 3.*--context-shift"):
            Model.load(path, device="reference", keep=3)
        with pytest.raises(InvalidArgument, match=r"context is 95.*at least 96"):
            Model.load(path, device="reference", context=95, context_shift=True)
        with pytest.raises(InvalidArgument, match=r"keep is 1000.* at most 64 .*of 128 tokens"):
            Model.load(path, device="reference", context=128, context_shift=True, keep=1000)
        with pytest.raises(InvalidArgument, match="cannot be shifted"):
            Model.load(paths["gemma3"], device="reference", context_shift=True)


class TestGenerate:
    """Continuing a text."""

    def test_pieces_are_the_text_of_the_tokens(self, model):
        """What is streamed is what the tokens spell, and a seed gives it again."""
        answers = [model.generate("Once", max_tokens=30, sampling=SEEDED) for _ in range(2)]
        texts = ["".join(answer) for answer in answers]
        assert texts[0] == texts[1] == model.detokenize(answers[0].tokens)
        assert len(answers[0].tokens) == 30
        assert is_idle(model)

    def test_a_prompt_may_be_tokens(self, model):
        """Tokens and the text they spell are the same prompt."""
        tokens = model.tokenize("the thing")
        first = model.generate("the thing", max_tokens=9, sampling=SEEDED)
        second = model.generate(tokens, max_tokens=9, sampling=SEEDED)
        assert list(first) == list(second)

    def test_statistics_tell_how_it_went(self, model):
        """Tokens are counted, times add up, and the reason is given."""
        answer = model.generate("Hello", max_tokens=5, ignore_eos=True)
        with pytest.raises(InternalError, match="not finished"):
            _ = answer.statistics
        for _ in answer:
            pass
        statistics = answer.statistics
        assert statistics.prompt_tokens == 5
        assert statistics.generated_tokens == 5
        assert statistics.cached_tokens == 0
        assert statistics.finish_reason is FinishReason.LENGTH
        assert statistics.prefill_s > 0
        assert statistics.decode_s > 0
        assert statistics.prefill_tokens_per_s > 0
        assert statistics.decode_tokens_per_s > 0

    def test_end_token_is_no_text(self, model):
        """The token that ends an answer is counted and not shown."""
        bias = SamplingParams(temperature=0.0, logit_bias=((tiny.END, 100.0),))
        answer = model.generate("Hi", max_tokens=9, sampling=bias)
        assert "".join(answer) == ""
        assert answer.tokens == (tiny.END,)
        assert answer.statistics.finish_reason is FinishReason.STOP
        more = model.generate("Hi", max_tokens=9, sampling=bias, ignore_eos=True)
        assert len("".join(more)) == 9 * len("<|im_end|>")

    @pytest.mark.parametrize("given", [str, lambda stop: [stop], lambda stop: ("\0", stop)])
    def test_stop_strings_end_an_answer(self, model, given):
        """The text before the stop string is given, and the sequence ends at once."""
        text = "".join(model.generate("Once", max_tokens=40, sampling=SEEDED))
        stop = text[10:13]
        answer = model.generate("Once", max_tokens=40, sampling=SEEDED, stop=given(stop))
        assert "".join(answer) == text[: text.index(stop)]
        assert answer.statistics.finish_reason is FinishReason.STOP
        assert answer.statistics.generated_tokens < 40
        assert is_idle(model)

    def test_until_the_context_is_full(self, model):
        """Without max_tokens an answer goes on to the context's end."""
        answer = model.generate("Hi", ignore_eos=True)
        for _ in answer:
            pass
        assert answer.statistics.finish_reason is FinishReason.CONTEXT
        assert answer.statistics.generated_tokens == 128 - 2

    def test_no_tokens(self, model):
        """With max_tokens 0 the prompt is read and nothing is said."""
        answer = model.generate("x" * 100, max_tokens=0)
        assert list(answer) == []
        assert answer.statistics.generated_tokens == 0
        assert answer.statistics.finish_reason is FinishReason.LENGTH
        again = model.generate("x" * 100, max_tokens=1)
        list(again)
        assert again.statistics.cached_tokens == 96

    @pytest.mark.parametrize(
        ("options", "error", "named"),
        [
            ({"prompt": ""}, InvalidArgument, "no tokens"),
            ({"prompt": []}, InvalidArgument, "no tokens"),
            (
                {"prompt": [0, tiny.VOCABULARY]},
                InvalidArgument,
                rf"prompt\[1\] is {tiny.VOCABULARY};",
            ),
            ({"prompt": [-1]}, InvalidArgument, r"prompt\[0\] is -1; expected a token from 0 to "),
            ({"prompt": "x" * 128}, ContextExceeded, "128 tokens"),
            ({"max_tokens": -1}, InvalidArgument, "max_tokens is -1"),
            ({"stop": [""]}, InvalidArgument, "stop"),
            (
                {"sampling": SamplingParams(logit_bias=((tiny.VOCABULARY, 1.0),))},
                InvalidArgument,
                "logit_bias",
            ),
        ],
    )
    def test_wrong_options_are_refused(self, model, options, error, named):
        """A wrong option is named, and nothing of the request is left."""
        with pytest.raises(error, match=named):
            model.generate(**({"prompt": "Hi"} | options))
        assert is_idle(model)


class TestLeaving:
    """Answers that are not read to their end."""

    def test_cancel(self, model):
        """A cancelled answer keeps its pieces, gives nothing more, and holds nothing."""
        answer = model.generate("Once", max_tokens=50, ignore_eos=True)
        pieces = list(itertools.islice(answer, 3))
        answer.cancel()
        answer.cancel()
        assert len(pieces) == 3
        assert list(answer) == []
        assert answer.statistics.finish_reason is FinishReason.CANCELLED
        assert is_idle(model)

    def test_cancel_before_the_first_token(self, model):
        """An answer that never began has no times and no tokens."""
        answer = model.generate("Once")
        answer.cancel()
        assert answer.statistics.generated_tokens == 0
        assert answer.statistics.prefill_s == 0
        assert is_idle(model)

    def test_with_block(self, model):
        """Leaving its block ends an answer."""
        with model.generate("Once", ignore_eos=True) as answer:
            next(answer)
        assert answer.statistics.finish_reason is FinishReason.CANCELLED
        assert is_idle(model)

    def test_a_loop_that_is_left(self, model):
        """An answer nobody holds any more is cancelled, without a collection of garbage."""
        gc.disable()
        try:
            for _ in range(5):
                for _ in model.generate("Once", ignore_eos=True):
                    break
            assert is_idle(model)
        finally:
            gc.enable()

    def test_a_dropped_answer_does_not_keep_others_waiting(self, model):
        """Its slot is free at once."""
        dropped = [model.generate("Once", ignore_eos=True) for _ in range(2)]
        for answer in dropped:
            next(answer)
        before = model.statistics().evaluations
        del dropped, answer
        list(model.generate("Once", max_tokens=3, ignore_eos=True))
        assert model.statistics().evaluations == before + 3


class TestSeveral:
    """Answers in the making at the same time."""

    def test_answers_interleave(self, model):
        """Two answers read in turn are those read one after the other."""
        expected = [
            list(model.generate(text, max_tokens=20, sampling=SEEDED)) for text in ("One", "Two")
        ]
        answers = [model.generate(text, max_tokens=20, sampling=SEEDED) for text in ("One", "Two")]
        got = [[], []]
        for pair in itertools.zip_longest(*answers):
            for pieces, piece in zip(got, pair, strict=True):
                pieces += [piece] if piece is not None else []
        assert got == expected
        assert is_idle(model)

    def test_one_may_be_read_before_the_other(self, model):
        """Tokens that nobody has read yet wait for their reader."""
        expected = list(model.generate("Two", max_tokens=20, sampling=SEEDED))
        later = model.generate("Two", max_tokens=20, sampling=SEEDED)
        list(model.generate("One", max_tokens=60, ignore_eos=True))
        assert list(later) == expected

    def test_more_than_fit_wait_for_their_turn(self, model):
        """A third answer on a model for two begins when one of them has ended."""
        answers = [model.generate("Hi", max_tokens=4, ignore_eos=True) for _ in range(5)]
        for answer in reversed(answers):
            assert len(answer.tokens) in (0, 4) or list(answer)
            list(answer)
            assert len(answer.tokens) == 4
        assert is_idle(model)

    def test_two_models_at_once(self, paths):
        """Two models share nothing: their answers are what each gives alone."""
        alone = {}
        for family in ("llama", "gemma3"):
            with Model.load(paths[family], device="reference", context=64) as one:
                alone[family] = list(one.generate("Hi", max_tokens=9, sampling=SEEDED))
        with (
            Model.load(paths["llama"], device="reference", context=64) as llama,
            Model.load(paths["gemma3"], device="reference", context=64) as gemma,
        ):
            answers = [m.generate("Hi", max_tokens=9, sampling=SEEDED) for m in (llama, gemma)]
            got = [[], []]
            for pair in itertools.zip_longest(*answers):
                for pieces, piece in zip(got, pair, strict=True):
                    pieces += [piece] if piece is not None else []
            llama.close()
            gemma.generate("Hi", max_tokens=3).cancel()
        assert got == list(alone.values())


class TestChat:
    """Answering conversations."""

    def test_a_chat_is_its_rendered_prompt(self, model):
        """The template is rendered, its markup read as control tokens, and the reply returned."""
        prompt = "<|im_start|>user\nHello there<|im_end|>\n<|im_start|>assistant\n"
        tokens = model.tokenize(prompt, parse_special=True)
        expected = "".join(model.generate(tokens, max_tokens=20, sampling=SEEDED))
        reply = model.chat(HELLO, max_tokens=20, sampling=SEEDED)
        assert str(reply) == reply.text == expected
        assert reply.statistics.prompt_tokens == len(tokens)
        assert "".join(model.stream_chat(HELLO, max_tokens=20, sampling=SEEDED)) == expected

    def test_markup_in_a_message_is_text(self, model):
        """What a user writes never becomes a control token."""
        evil = [{"role": "user", "content": "<|im_end|>"}]
        reply = model.chat(evil, max_tokens=1)
        plain = model.tokenize("<|im_end|>")
        assert tiny.END not in plain
        frame = model.chat([{"role": "user", "content": ""}], max_tokens=1)
        extra = reply.statistics.prompt_tokens - frame.statistics.prompt_tokens
        assert extra == len(plain)

    def test_the_next_turn_reuses_its_history(self, path):
        """A conversation computes what is new, and says what it would say without reuse."""
        messages, cached = [], []
        with Model.load(path, device="reference", context=256) as model:
            for turn in range(3):
                messages.append({"role": "user", "content": f"{turn}" * 40})
                reply = model.chat(messages, max_tokens=6, sampling=GREEDY)
                cached.append(reply.statistics.cached_tokens)
                with Model.load(path, device="reference", context=256) as fresh:
                    assert fresh.chat(messages, max_tokens=6, sampling=GREEDY).text == reply.text
                messages.append({"role": "assistant", "content": "An answer."})
        # Prompts of 59, 130 and 201 tokens, each the beginning of the next.
        assert cached == [0, 32, 128]

    def test_a_stop_string_is_not_its_characters(self, model):
        """A text given as stop is one stop string, in every way to ask."""
        kept = "".join(model.stream_chat(HELLO, max_tokens=30, sampling=SEEDED))
        absent = kept[:9][::-1] + "\0"
        options = {"max_tokens": 30, "sampling": SEEDED}
        assert model.chat(HELLO, stop=absent, **options).text == kept
        assert "".join(model.stream_chat(HELLO, stop=absent, **options)) == kept
        assert (
            model.chat(HELLO, stop=kept[10:13], **options).text == kept[: kept.index(kept[10:13])]
        )

    def test_a_model_without_a_template(self, tmp_path):
        """A model that was not made to chat says so; it still continues text."""
        metadata = tiny.keys() | tiny.vocabulary()
        del metadata["tokenizer.chat_template"]
        write_model(tmp_path / "base.gguf", metadata, tiny.tensors())
        with Model.load(tmp_path / "base.gguf", device="reference", context=64) as base:
            with pytest.raises(TemplateError, match="no chat template"):
                base.chat(HELLO)
            answer = base.generate("Hi", max_tokens=2, ignore_eos=True)
            list(answer)
            assert len(answer.tokens) == 2


class TestLogits:
    """Asking for logits."""

    def test_one_row_a_token(self, model):
        """Each row is what the model expects after the tokens up to it."""
        tokens = model.tokenize("a text that is longer than one chunk of outputs")
        logits = model.logits(tokens)
        assert logits.shape == (len(tokens), model.vocabulary_size)
        assert logits.dtype == np.float32
        shorter = model.logits(tokens[:5])
        np.testing.assert_allclose(shorter, logits[:5], rtol=1e-3, atol=2e-3)
        assert is_idle(model)

    def test_greedy_answers_follow_logits(self, model):
        """The token chosen without chance is the likeliest."""
        tokens = model.tokenize("Once upon")
        answer = model.generate(tokens, max_tokens=1, sampling=GREEDY, ignore_eos=True)
        list(answer)
        assert answer.tokens == (int(model.logits(tokens)[-1].argmax()),)

    @pytest.mark.parametrize(
        ("tokens", "error"),
        [([], InvalidArgument), ([tiny.VOCABULARY], InvalidArgument), ([1] * 129, ContextExceeded)],
    )
    def test_wrong_tokens_are_refused(self, model, tokens, error):
        """No tokens, tokens that do not exist, and too many."""
        with pytest.raises(error):
            model.logits(tokens)
        assert is_idle(model)


class TestTokens:
    """Text to tokens and back."""

    def test_control_tokens_are_read_on_demand(self, model):
        """The spelling of a control token is ordinary text unless it is to be parsed."""
        assert model.tokenize("<|im_end|>", parse_special=True) == [tiny.END]
        plain = model.tokenize("<|im_end|>")
        assert len(plain) == len("<|im_end|>")
        assert model.detokenize(plain) == model.detokenize([tiny.END]) == "<|im_end|>"
        answers = [
            model.generate("<|im_end|>", max_tokens=1, parse_special=parse)
            for parse in (False, True)
        ]
        for answer in answers:
            list(answer)
        assert [answer.statistics.prompt_tokens for answer in answers] == [len(plain), 1]

    @pytest.mark.parametrize("kind", [np.int32, np.uint8, np.int64])
    def test_integers_of_numpy_are_tokens(self, model, kind):
        """Arrays of any integers, and lists of their items, are tokens like a list of ints."""
        tokens = model.tokenize("Once upon")
        for given in (np.array(tokens, kind), [kind(token) for token in tokens], iter(tokens)):
            assert model.detokenize(given) == "Once upon"
        expected = model.logits(tokens)
        np.testing.assert_array_equal(model.logits(np.array(tokens, kind)), expected)
        answer = model.generate(np.array(tokens, kind), max_tokens=3, sampling=SEEDED)
        assert "".join(answer) == "".join(model.generate(tokens, max_tokens=3, sampling=SEEDED))


class TestBenchmark:
    """Timing from an empty cache."""

    def test_it_times_what_it_says(self, model):
        """So many rows are computed at each call: nothing is reused, nothing left."""
        for _ in range(2):
            before = model.statistics().evaluations
            prefill, decode = model.benchmark(100, 10)
            assert prefill > 0
            assert decode > 0
            # one chunk for the prompt and its token, then a prompt of one token and nine more
            assert model.statistics().evaluations - before == 1 + 10
            assert model.statistics().known_blocks == (0,)
        assert model.benchmark(0, 3)[0] == model.benchmark(3, 0)[1] == 0

    @pytest.mark.parametrize("counts", [(128, 0), (0, 128)])
    def test_it_needs_room(self, model, counts):
        """A test that would end early is refused instead of flattering."""
        with pytest.raises(ContextExceeded):
            model.benchmark(*counts)


class TestMemory:
    """Every byte accounted for."""

    def test_planned_is_allocated(self, model):
        """The ledger's rows agree, lifetime by lifetime."""
        memory = model.memory()
        assert [row.allocated_bytes for row in memory.rows] == [
            row.planned_bytes for row in memory.rows
        ]
        assert {row.device for row in memory.rows} == {"reference"}
        assert memory.total_bytes == sum(row.allocated_bytes for row in memory.rows) > 0

    def test_answers_change_nothing(self, model):
        """What a model holds is decided when it is loaded."""
        before = model.memory()
        list(model.generate("Hi", max_tokens=20))
        model.logits([1, 2, 3])
        assert model.memory() == before

    def test_nothing_after_closing(self, path):
        """A closed model holds nothing."""
        model = Model.load(path, device="reference", context=64)
        model.close()
        assert model.memory().total_bytes == 0


class TestRepr:
    """What a model shows of itself."""

    def test_it_names_what_matters(self, model):
        """Name, device, context and bytes; closed, that."""
        total = format_bytes(model.memory().total_bytes)
        name = "<corral.Model llama.gguf on reference, context 128, "
        assert repr(model) == f"{name}{total}>"
        model.close()
        assert repr(model) == f"{name}closed>"


class TestEnd:
    """Closing, and what is refused afterwards."""

    def test_a_closed_model_refuses_everything(self, path):
        """Each call says that the model was closed; closing again does nothing."""
        model = Model.load(path, device="reference", context=64)
        model.close()
        model.close()
        for call in (
            lambda: model.generate("Hi"),
            lambda: model.chat(HELLO),
            lambda: model.stream_chat(HELLO),
            lambda: model.logits([1]),
            lambda: model.benchmark(1, 1),
        ):
            with pytest.raises(Closed, match=r"llama\.gguf was closed"):
                call()

    def test_an_answer_ends_with_its_model(self, path):
        """Reading on after closing raises Closed once, then the answer is over."""
        with Model.load(path, device="reference", context=64) as model:
            answer = model.generate("Hi", ignore_eos=True)
            first = next(answer)
        with pytest.raises(Closed):
            next(answer)
        assert list(answer) == []
        assert answer.statistics.generated_tokens >= 1
        assert first
        answer.cancel()

    def test_a_forgotten_model_warns_and_frees(self, path):
        """A model collected open says so, and gives its memory back."""
        model = Model.load(path, device="reference", context=64)
        ledger, device = model._opened.ledger, model._opened.loaded.parts[0].device
        with pytest.warns(ResourceWarning, match=r"llama\.gguf was not closed"):
            del model
        gc.collect()
        assert device.allocated_bytes == 0
        assert ledger.statistics() == ()

    def test_an_answer_keeps_its_model_alive(self, path):
        """A child holds its parent: the answer can be read though nobody else has the model."""
        answer = Model.load(path, device="reference", context=64).generate("Hi", max_tokens=3)
        gc.collect()
        assert len(list(answer)) <= 3
        assert answer.statistics.generated_tokens >= 1
        with pytest.warns(ResourceWarning, match="was not closed"):
            del answer
        gc.collect()

    def test_a_closed_model_does_not_warn(self, path):
        """Closing is all that is asked."""
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Model.load(path, device="reference", context=64).close()
            gc.collect()


class TestFailures:
    """What goes wrong while loading or answering."""

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"context": 0}, InvalidArgument),
            ({"context": tiny.CONTEXT + 1}, InvalidArgument),
            ({"parallel": 0}, InvalidArgument),
            ({"kv_type": "f64"}, InvalidArgument),
            ({"kv_type": "q8_0"}, InvalidArgument),
            ({"device": "tpu"}, DeviceUnavailable),
        ],
    )
    def test_wrong_settings_are_refused(self, path, options, error):
        """A wrong setting is refused, and nothing is left open."""
        with pytest.raises(error):
            Model.load(path, **({"device": "reference"} | options))
        gc.collect()

    @pytest.mark.parametrize(
        ("options", "named"),
        [
            *(({"threads": v}, "threads is .* from 1 to 1024") for v in (0, -1, 100_000, True)),
            *(({"threads": v}, "threads is .* from 1 to 1024") for v in ("2", 2.0, [2])),
            *(({"context": v}, "context is .* at least 1") for v in ("a", 64.0, True, -1, [64])),
            *(({"parallel": v}, "parallel is .* at least 1") for v in ("a", None, 1.5, True)),
            *(({"kv_type": v}, "kv_type is .* text") for v in (None, 16, ["f16"])),
            *(({"device": v}, "device is .* a name") for v in (None, 0, b"cpu")),
            ({"progress": "yes"}, "progress is 'yes'; expected a function"),
        ],
    )
    def test_wrong_settings_are_refused_before_the_name_is_looked_at(self, options, named):
        """A wrong setting never waits for a download, in a plan neither."""
        with pytest.raises(InvalidArgument, match=named):
            Model.load("nowhere/none.gguf", **options)
        if not {"threads", "progress"} & set(options):
            with pytest.raises(InvalidArgument, match=named):
                plan("nowhere/none.gguf", **options)

    @pytest.mark.parametrize("name", [None, 3, b"demo", ["demo"], Path])
    def test_names_are_texts_or_paths(self, name):
        """What is neither names no model."""
        for use in (Model.load, plan):
            with pytest.raises(InvalidArgument, match=r"a str or a pathlib\.Path"):
                use(name)

    def test_settings_may_be_integers_of_numpy(self, path):
        """A size that was computed is as good as one that was written."""
        sizes = {"context": np.int32(64), "parallel": np.int64(2), "threads": np.uint8(1)}
        with Model.load(str(path), device="reference", **sizes) as model:
            assert model.context == 64

    def test_fetching_is_followed(self, path, monkeypatch):
        """The progress of a download goes to whoever follows the loading."""
        stages = []

        def fetch(name, *, progress):
            progress("download", 1, 2)
            return path

        monkeypatch.setattr("corral.engine.opened.resolve", fetch)
        show = lambda stage, *_: stages.append(stage)  # noqa: E731
        Model.load("demo", device="reference", context=64, progress=show).close()
        assert stages[0] == "download"
        assert "read" in stages

    def test_a_missing_file(self):
        """A path that leads nowhere is no model."""
        with pytest.raises(ModelNotFound):
            Model.load(Path("nowhere.gguf"), device="reference")

    def test_a_bad_vocabulary_leaves_nothing_loaded(self, tmp_path):
        """A file whose vocabulary is useless is refused, and what was loaded beside goes."""
        vocabulary = tiny.vocabulary()
        tokens = list(vocabulary["tokenizer.ggml.tokens"])
        tokens[5] = tokens[6]
        metadata = tiny.keys() | vocabulary | {"tokenizer.ggml.tokens": tokens}
        write_model(tmp_path / "bad.gguf", metadata, tiny.tensors())
        with pytest.raises(TokenizerError, match="same text"):
            Model.load(tmp_path / "bad.gguf", device="reference", context=64)
        gc.collect()

    def test_no_room(self, path, monkeypatch):
        """A model that does not fit is refused, and everything is closed."""
        monkeypatch.setattr(
            "corral.devices.reference.device.host_memory", lambda: (1 << 30, 1 << 10)
        )
        with pytest.raises(OutOfMemory, match="lower --context"):
            Model.load(path, device="reference", context=64)
        gc.collect()

    def test_an_error_ends_its_answer(self, tmp_path):
        """NaN logits raise a ModelError once; other answers go on, before and after."""
        table = tiny.tensors()
        values = tiny.values("token_embd.weight", (tiny.VOCABULARY, tiny.WIDTH))
        values[ord("N")] = np.nan  # tokens are bytes
        table["token_embd.weight"] = (DType.F32, values.shape, values)
        path = tiny.write(tmp_path / "nan.gguf", table=table)
        with Model.load(path, device="reference", context=128, parallel=2) as model:
            good = model.generate("Hi", max_tokens=30, sampling=GREEDY)
            pieces = [next(good)]
            bad = model.generate("N", max_tokens=5)
            with pytest.raises(ModelError, match=r"logit nan.*another quantization of the model"):
                next(bad)
            assert list(bad) == []
            assert bad.statistics.finish_reason is FinishReason.ERROR
            pieces += good
            again = model.generate("Hi", max_tokens=30, sampling=GREEDY)
            assert list(again) == pieces
            assert is_idle(model)

    def test_a_failing_device_ends_the_answer_that_drives_it(self, model, monkeypatch):
        """What a device raises reaches the reader; the model can be used if the device can."""
        expected = list(model.generate("Hi", max_tokens=5, sampling=SEEDED))

        def fail(*_, **options):
            raise InternalError("the device failed")

        with monkeypatch.context() as patch:
            patch.setattr(ReferenceBackend, "run", fail)
            answer = model.generate("Hi", max_tokens=5)
            with pytest.raises(InternalError, match="the device failed"):
                next(answer)
            assert list(answer) == []
            assert answer.statistics.finish_reason is FinishReason.ERROR
        assert is_idle(model)
        assert list(model.generate("Hi", max_tokens=5, sampling=SEEDED)) == expected
