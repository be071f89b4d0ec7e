"""Whether anything grows: memory against work done, and objects that are alive."""

import gc
from collections import Counter

from corral.engine.growth import held_bytes
from corral.memory import growth


def live_objects():
    """Return how many objects of corral's own types are alive, by type."""
    gc.collect()
    kinds = Counter(map(type, gc.get_objects()))
    return {kind: n for kind, n in kinds.items() if str(kind.__module__).startswith("corral.")}


class Samples(growth.Samples):
    """What this process holds at amounts of work."""

    def __init__(self, capacity):
        super().__init__(1, capacity=capacity)

    def sample(self, work):
        """Sample now."""
        self.add(work, held_bytes())
