"""What a worker says, in order, written by a thread of its own: a slow reader delays no step."""

from queue import SimpleQueue
from threading import Thread

from corral.contract.events import Event, described
from corral.contract.wire import Answered, Channel, Command, Happened, Refused, Report
from corral.errors import CorralError


class Outbox:
    """Reports on their way; events wait until their step is complete and go in one frame.

    It holds no more than the requests there are have events: they are bounded in number and length.
    """

    def __init__(self, channel: Channel[Command]) -> None:
        self._channel = channel
        self._step: list[Event] = []
        self._waiting: SimpleQueue[Report | None] = SimpleQueue()
        self._thread = Thread(target=self._write, name="corral-outbox", daemon=True)
        self._thread.start()

    def put(self, event: Event) -> None:
        """Add an event to those of this step; to be called by one thread, as is `flush`."""
        self._step.append(event)

    def flush(self) -> None:
        """Send the events of this step, if there are some."""
        if self._step:
            events, self._step = tuple(self._step), []
            self.send(Happened(events))

    def send(self, report: Report) -> None:
        """Send a report after all that were sent before."""
        self._waiting.put(report)

    def close(self) -> None:
        """Write all that is there, and end; whoever reads no more must have been shut out."""
        self._waiting.put(None)
        self._thread.join()

    def _write(self) -> None:
        is_heard = True
        while (report := self._waiting.get()) is not None:
            if is_heard:
                is_heard = self._sent(report)

    def _sent(self, report: Report) -> bool:
        """Send a report; return whether there is somebody at the other end."""
        try:
            self._channel.send(report)
        except OSError:
            return False
        except CorralError as error:  # too long for a frame
            if not isinstance(report, Answered):
                raise
            return self._sent(Refused(report.number, *described(error)))
        return True
