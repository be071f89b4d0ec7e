"""Work with LoRA adapters for leak.py: swapped beside an answer, merged into a file."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from corral import Model, SamplingParams
from corral.engine.merging import merge, plan_merge
from corral.gguf import open_model
from leak_work import CONTEXT, NONE, PROMPT, SETTLING, Action, Setting, Work


def _written(setting: Setting) -> list[Path]:
    """Write two adapters of different ranks."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
    import make_lora

    paths = []
    for rank in (4, 16):
        paths.append(setting.folder / f"rank{rank}.gguf")
        make_lora.write(setting.model, paths[-1], rank=rank)
    return paths


@contextmanager
def swaps(setting: Setting) -> Iterator[Action]:
    """Load an adapter, answer with it beside an answer that has none, and unload it."""
    paths = _written(setting)
    with Model.load(
        setting.model, device=setting.device, context=CONTEXT, parallel=2, context_shift=True
    ) as model:
        beside = model.generate(PROMPT, ignore_eos=True, sampling=SamplingParams(seed=1))

        def act(number: int) -> None:
            one = model.adapters.load(paths[number % 2], scale=0.0)
            sampling = SamplingParams(seed=number)
            with model.generate(
                PROMPT, max_tokens=3, ignore_eos=True, sampling=sampling, adapters={one.id: 1.0}
            ) as answer:
                for _ in answer:
                    next(beside)
            model.adapters.unload(one.id)

        yield act
        beside.cancel()


@contextmanager
def merges(setting: Setting) -> Iterator[Action]:
    """Merge an adapter into the model, as a file that is written over the last one."""
    paths, out = _written(setting), setting.folder / "merged.gguf"

    def act(number: int) -> None:
        with open_model(setting.model) as file:
            merge(file, out, plan_merge(file, [(paths[number % 2], 0.5)]))

    yield act
    out.unlink()


WORKS = (
    Work("swap adapters", "swap", swaps, 1000, NONE, every=5, warm_up=40, settling=SETTLING),
    Work("merge adapters", "merge", merges, 200, NONE, warm_up=10, settling=SETTLING),
)
