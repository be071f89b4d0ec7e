"""How a model gets from one state to the next: wanted, drained, ended, at rest, failed.

What all events have in common; which of these happens, and when, others decide.
"""

from dataclasses import dataclass

from corral.contract.events import error_of
from corral.contract.fleet import ExitKind, ModelState
from corral.errors import CorralError, OutOfMemory, WorkerLost
from corral.router.effects import Confirm, Find, Save, Stop
from corral.router.entry import HOST, Unusable
from corral.router.register import Register
from corral.router.residence import Progress, Residence

_State = ModelState


@dataclass(frozen=True, slots=True)
class Patience:
    """How many may wait, and how often and how soon something that failed is tried again."""

    most_waiting: int = 512
    """Requests that may wait for all models together."""
    memory_tries: int = 2
    """Loads in a row for one request, if the device has no memory for the first."""
    failure_s: float = 2.0
    """How long a model whose load failed is not tried again; who asks gets the same error."""
    crash_pause_s: float = 0.5
    longest_pause_s: float = 30.0
    """Before a start after a crash; it doubles with each crash lately."""
    most_crashes: int = 5
    crash_window_s: float = 120.0
    """After so many crashes in so many seconds, whoever asks is told so."""


class Moves:
    """The steps of a model's life, under the router's lock."""

    def __init__(self, register: Register, patience: Patience) -> None:
        """Move models of a register."""
        self._register = register
        self._patience = patience

    def want(self, residence: Residence) -> None:
        """See to it that a model that rests is loaded, or say why it is not."""
        if residence.state not in (_State.UNLOADED, _State.FAILED):
            return
        now = self._register.now_s
        if residence.not_before_s > now and residence.error and not self._may_wait(residence):
            self._register.deny_all(residence, residence.error)
            return
        residence.wanted_s, residence.tries = now, 0
        self._register.move(residence, _State.PLANNING, "wanted")
        self.look_up(residence)
        self._register.look_again()

    def look_up(self, residence: Residence) -> None:
        """See to it that the header of a model that is wanted is known, or say why it is not."""
        header = residence.entry.header
        if isinstance(header, Unusable):
            self.give_up(residence, error_of(header.code, header.message))
        elif header is None and not residence.is_looked_for:
            residence.is_looked_for = True
            self._register.order(Find(residence.name))

    def _may_wait(self, residence: Residence) -> bool:
        """Whether who comes during the pause after a failure waits for its end."""
        is_loop = len(residence.crashed_s) >= self._patience.most_crashes
        return residence.exit_kind is ExitKind.CRASHED and not is_loop

    def rest(self, residence: Residence, reason: str) -> None:
        """Let a model that holds nothing be as if nobody had wanted it."""
        residence.need, residence.victims = None, ()
        self._register.move(residence, _State.UNLOADED, reason)

    def drain(self, residence: Residence, kind: ExitKind, reason: str) -> None:
        """Let a model that is ready end what runs and go."""
        residence.exit_kind = kind
        residence.drained_s = self._register.now_s + residence.entry.preset.drain_s
        self._register.move(residence, ModelState.DRAINING, reason)
        self.save_if_idle(residence)

    def save_if_idle(self, residence: Residence) -> None:
        """Have a draining model that runs nothing any more keep its sessions."""
        is_over = residence.state is ModelState.DRAINING and not residence.running
        if is_over and not residence.is_saving:
            residence.is_saving = True
            self._register.order(Save(residence.name, residence.generation))

    def give_up(self, residence: Residence, error: CorralError) -> None:
        """Take a model that holds nothing for failed, and tell everybody who waits."""
        residence.error = error
        residence.need, residence.victims = None, ()
        self._register.deny_all(residence, error)
        self._register.move(residence, ModelState.FAILED, str(error))

    def end(self, residence: Residence, kind: ExitKind, reason: str, *, is_there: bool) -> None:
        """Let a process end, or see it ended; `is_there` if it has to be told."""
        residence.exit_kind, residence.is_saving = kind, False
        residence.progress = Progress()
        self._register.move(residence, _State.STOPPING, reason)
        order = Stop if is_there else Confirm
        self._register.order(order(residence.name, residence.generation))

    def lack_memory(self, residence: Residence, error: OutOfMemory) -> None:
        """Have another try with the next victim gone, or tell whoever waits."""
        residence.tries += 1
        if residence.tries < self._patience.memory_tries and residence.is_wanted:
            _observe(residence, error)
        else:
            residence.tries, residence.observed = 0, {}
            residence.not_before_s = self._register.now_s + self._patience.failure_s
            self._register.deny_all(residence, error)
        self.end(residence, ExitKind.OUT_OF_MEMORY, str(error), is_there=False)

    def crash(self, residence: Residence, error: CorralError) -> None:
        """Have a model whose process died loaded again after a pause, if it is wanted."""
        now, patience = self._register.now_s, self._patience
        residence.counts.crashes += 1
        since = now - patience.crash_window_s
        lately = [moment for moment in residence.crashed_s if moment >= since]
        residence.crashed_s = [*lately, now][-patience.most_crashes :]
        residence.is_kept = residence.is_pinned or residence.entry.preset.preload
        pause = min(patience.longest_pause_s, patience.crash_pause_s * 2.0 ** len(lately))
        residence.not_before_s = now + pause
        if len(residence.crashed_s) >= patience.most_crashes:
            loop = WorkerLost(f"{residence.name} died {len(residence.crashed_s)} times: {error}")
            residence.error = loop
            residence.not_before_s = now + patience.longest_pause_s
            self._register.deny_all(residence, loop)
        self.end(residence, ExitKind.CRASHED, str(error), is_there=False)


def _observe(residence: Residence, error: OutOfMemory) -> None:
    """Note what a model needs at least where it was placed and did not fit.

    What it found too little is more than what was free, and no less than what it says.
    """
    need = residence.need
    assert need is not None, "it was placed"
    cards = {memory for memory in need.bytes if memory != HOST}
    short = cards or set(need.bytes)
    residence.observed[need.sites] = {
        memory: max(size, residence.free.get(memory, 0) + 1, error.needed_bytes or 0)
        for memory, size in need.bytes.items()
        if memory in short
    }
