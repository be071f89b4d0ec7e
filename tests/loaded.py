"""A model file on a device with an engine on it, and what goes in: samplers and prompts."""

import numpy as np

import tiny
from corral.contract.sampling import SamplingParams
from corral.engine.engine import Engine
from corral.engine.load import load_file, load_split
from corral.engine.runner import Runner
from corral.gguf import open_model
from corral.memory.ledger import Ledger
from corral.models.footprint import write_graph
from corral.sampling.sampler import Sampler


def sampler(seed=1, temperature=1.0):
    """Return a sampler whose choices depend on every logit."""
    params = SamplingParams(seed=seed, temperature=temperature, top_k=0, top_p=1.0, min_p=0.0)
    return Sampler(params, tiny.VOCABULARY)


def prompt(length, seed=0):
    """Return a random prompt."""
    return np.random.RandomState(seed).randint(0, tiny.VOCABULARY - 2, length).tolist()


def load_model(path, limits, device, ledger, *, progress=None):
    """Load a model by its path; raises as `load_file` and `open_model` do."""
    with open_model(path) as file:
        return load_file(file, limits, device, ledger, progress=progress)


def load_parts(path, limits, devices, layers, ledger):
    """Load a model with a run of layers on each device; raises as `load_split` does."""
    with open_model(path) as file:
        design = write_graph(file.metadata, file.tensors, limits)
        return load_split(file, design, devices, layers, ledger)


class Loaded:
    """A model file on a device, or with a run of layers on each of several; and an engine on it."""

    def __init__(self, path, device, limits, *, layers=(), keep=None):
        self.devices = device if layers else (device,)
        self.device = self.devices[0]
        self.ledger = Ledger()
        if layers:
            self.loaded = load_parts(path, limits, device, layers, self.ledger)
        else:
            self.loaded = load_model(path, limits, device, self.ledger)
        groups = self.loaded.design.kv.groups
        self.runner = Runner(self.loaded.parts, groups)
        self.engine = Engine(self.runner, groups, context=limits.context, keep=keep)
        self.num_blocks = tuple(group.num_blocks for group in groups)

    def submit(self, tokens, max_tokens=8, *, seed=1, temperature=1.0, **options):
        """Queue a prompt with a sampler of its own."""
        chooser = sampler(seed, temperature)
        return self.engine.submit(tokens, sampler=chooser, max_tokens=max_tokens, **options)

    def finish(self, *sequences):
        """Step until all sequences have ended; return what each of them generated."""
        while any(sequence.finish_reason is None for sequence in sequences):
            self.engine.step()
        return [sequence.tokens[sequence.num_prompt :] for sequence in sequences]

    def answer(self, tokens, max_tokens=8, **options):
        """Run one prompt to its end and return what it generated."""
        return self.finish(self.submit(tokens, max_tokens, **options))[0]

    @property
    def is_empty(self):
        """Whether no sequence is there and no block is used."""
        statistics = self.engine.statistics()
        idle = (statistics.waiting, statistics.running) == (0, 0)
        return idle and statistics.free_blocks == self.num_blocks

    def close(self):
        """Close the model and check that nothing is left."""
        self.loaded.close()
        assert [device.allocated_bytes for device in self.devices] == [0] * len(self.devices)
        assert self.ledger.statistics() == ()


def logits_together(path, devices, layers, limits, *, max_tokens=6, temperature=0.0):
    """Return the logits of three answers that are made together, row by row."""
    loaded = Loaded(path, devices, limits, layers=layers)
    recorder = Recorder.on(loaded)
    sequences = [
        loaded.submit(prompt(length), max_tokens, temperature=temperature) for length in (40, 3, 17)
    ]
    loaded.finish(*sequences)
    loaded.close()
    return np.concatenate([np.stack(recorder.logits[sequence]) for sequence in sequences])


class Recorder:
    """Passes batches on to a runner and keeps the logits of each sequence."""

    def __init__(self, runner):
        self._runner = runner
        self.shapes = runner.shapes
        self.is_asynchronous = self.can_feed = False
        self.logits = {}

    @classmethod
    def on(cls, loaded):
        """Give a loaded model a new engine whose logits are recorded."""
        recorder = cls(loaded.runner)
        groups = loaded.loaded.design.kv.groups
        loaded.engine = Engine(recorder, groups, context=loaded.engine.context)
        return recorder

    def can_choose(self, samplers):
        """Leave no choice to the device."""
        return False

    def start(self, batch, *, chooses=False):
        """Start a batch and note who wants logits."""
        assert not chooses, "who looks at logits needs them"
        self._wanting = [rows.sequence for rows in batch for _ in range(rows.num_outputs)]
        self._runner.start(batch)

    def run(self, batch):
        """Run a batch and copy its logits."""
        self.start(batch)
        return self.finish()

    def finish(self):
        """Finish a batch and copy its logits."""
        logits = self._runner.finish()
        wanting = self._wanting
        for sequence, row in zip(wanting, logits, strict=True):
            self.logits.setdefault(sequence, []).append(row.copy())
        return logits
