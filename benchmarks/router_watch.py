"""What a router tells of its models while it is loaded: states, reasons, processes."""

import json
import threading
import time
import urllib.request

LOOK_S = 0.2


class Watch(threading.Thread):
    """Follows a router's events, and looks which processes there are."""

    def __init__(self, port: int) -> None:
        super().__init__(name="watch", daemon=True)
        self._at = f"http://127.0.0.1:{port}"
        self._lock = threading.Lock()
        self.events: list[dict] = []
        self.killed: set[tuple[str, int]] = set()
        """Processes that somebody killed, by model and generation."""
        self._generations: dict[str, int] = {}

    def run(self) -> None:
        """Read events until the server ends."""
        try:
            with urllib.request.urlopen(f"{self._at}/models/events", timeout=600) as stream:
                for line in stream:
                    if line.startswith(b"data:"):
                        self._take(json.loads(line[5:]))
        except (OSError, ValueError):
            return

    def fleet(self) -> dict:
        """Return what the router knows of all models now."""
        with urllib.request.urlopen(f"{self._at}/corral/fleet", timeout=60) as reply:
            return json.loads(reply.read())

    def generation(self, model: str) -> int:
        """Return the number of a model's newest process."""
        (found,) = (one for one in self.fleet()["models"] if one["name"] == model)
        return found["generation"]

    def was_saved(self, model: str, before: int, now: int) -> bool:
        """Whether a model was loaded anew between two processes, none of which was killed."""
        with self._lock:
            ended = {(model, number) for number in range(before, now)}
            return now > before and not ended & self.killed

    def kill_note(self, model: str, generation: int) -> None:
        """Note that a process is about to be killed."""
        with self._lock:
            self.killed.add((model, generation))

    def ready(self) -> list[tuple[str, int, int]]:
        """Return the models that are ready: (name, generation, number of the process)."""
        return [
            (one["name"], one["generation"], one["pid"])
            for one in self.fleet()["models"]
            if one["state"] == "ready" and one["pid"]
        ]

    def wait_until_there(self, seconds: float) -> None:
        """Wait until the server answers; raises TimeoutError if it does not."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                self.fleet()
                return
            except OSError:
                time.sleep(LOOK_S)
        raise TimeoutError(f"the server did not answer in {seconds:g} s")

    def _take(self, event: dict) -> None:
        if "state" in event:
            with self._lock:
                self.events.append(event)
