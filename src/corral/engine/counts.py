"""What a service has done so far: counted by the engine's thread, read by any."""

import time
from collections.abc import Mapping

from corral.contract.events import Usage
from corral.contract.questions import ServiceStatistics, SlotState
from corral.contract.sessions import SessionCounts
from corral.engine.answering import Answering
from corral.engine.engine import Engine
from corral.engine.metrics import EngineStatistics

_NOTHING = EngineStatistics(0, 0, 0, (0,), (0,), (0,))


class Counts:
    """Totals, and the state of the engine after its last step."""

    def __init__(self, queue_capacity: int) -> None:
        self._queue_capacity = queue_capacity
        self._finished = 0
        self._usage = Usage()
        self._engine = _NOTHING
        self._slots: tuple[SlotState, ...] = ()
        self._sessions = SessionCounts()
        self._busy_since: float | None = None
        """When the last step ended, or the first after a rest began; None while there is rest."""
        self._preparing_since: float | None = None

    def woke(self) -> None:
        """Note that a rest is over."""
        self._busy_since = time.monotonic()

    def preparing(self) -> None:
        """Note that a prompt is being prepared from now on."""
        self._preparing_since = time.monotonic()

    def prepared(self) -> None:
        """Note that none is any more."""
        self._preparing_since = None

    def stepped(self, engine: Engine, answers: Mapping[int, Answering]) -> None:
        """Note the state of the engine after a step."""
        self._engine = engine.statistics()
        self._sessions = engine.returns.counts
        running = (answers.get(sequence.id) for sequence in engine.running)
        self._slots = tuple(answering.slot for answering in running if answering is not None)
        self._busy_since = time.monotonic() if engine.has_work else None

    def finished(self, usage: Usage) -> None:
        """Count a request that has ended."""
        total = self._usage
        self._finished += 1
        self._usage = Usage(
            prompt_tokens=total.prompt_tokens + usage.prompt_tokens,
            cached_tokens=total.cached_tokens + usage.cached_tokens,
            generated_tokens=total.generated_tokens + usage.generated_tokens,
        )

    def statistics(self, num_live: int) -> ServiceStatistics:
        """Return all counts; `num_live` requests run, wait or are being prepared."""
        engine, usage, now = self._engine, self._usage, time.monotonic()
        begun = [at for at in (self._busy_since, self._preparing_since) if at is not None]
        total = engine.num_blocks[-1]
        return ServiceStatistics(
            waiting_requests=max(0, num_live - engine.running),
            running_requests=min(num_live, engine.running),
            finished_requests=self._finished,
            prompt_tokens=usage.prompt_tokens,
            cached_tokens=usage.cached_tokens,
            generated_tokens=usage.generated_tokens,
            kv_blocks_used=total - engine.free_blocks[-1],
            kv_blocks_total=total,
            preemptions=engine.preemptions,
            queue_capacity=self._queue_capacity,
            steps=engine.evaluations,
            step_age_s=now - min(begun) if begun and num_live else 0.0,
            slots=self._slots,
            sessions=self._sessions,
        )
