"""Whether restored conversations are of use: what their next prompts find of them.

A prompt that goes on from a restored conversation must find all of its tokens, unless their blocks
were needed for others meanwhile. If it does not, the restoring was in vain, and that is an error.
"""

from collections.abc import Iterable

from corral.contract.sessions import SessionCounts, SessionsRestored
from corral.engine.sequence import Sequence
from corral.kv.chains import Chain
from corral.kv.prefix import as_bytes, root
from corral.kv.spec import BLOCK_TOKENS
from corral.log import logger

_log = logger(__name__)


class Returns:
    """Waits for the next prompt of each restored conversation."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, list[Chain]] = {}
        """By the name of the last full block, or of what comes before the first."""
        self._num_forgotten = 0
        self._report = SessionsRestored()
        self._sessions = self._tokens = self._errors = 0

    def expect(
        self, chains: Iterable[Chain], report: SessionsRestored, *, num_forgotten: int
    ) -> None:
        """Wait for the next prompts of conversations that a cache knows again.

        Args:
            num_forgotten: how often the cache has forgotten a block so far.
        """
        self._report, self._num_forgotten = report, num_forgotten
        self._errors += report.lost_sessions
        for chain in chains:
            self._waiting.setdefault(chain.pieces[-1].end, []).append(chain)

    def admitted(self, sequence: Sequence, *, num_forgotten: int) -> None:
        """Look what a prompt found of the conversation that it goes on from, if it does."""
        if not self._waiting or not sequence.is_reusing:
            return
        expected = self._gone_on_from(sequence)
        if not expected:
            return
        longest = max(chain.num_tokens for chain in expected)
        for chain in expected:
            self._strike(chain)
        if sequence.num_cached >= longest:
            self._sessions += 1
            self._tokens += longest
        elif num_forgotten == self._num_forgotten:
            self._errors += 1
            _log.error(
                "a prompt goes on from a restored conversation of %d tokens and found %d of them",
                longest,
                sequence.num_cached,
            )

    @property
    def counts(self) -> SessionCounts:
        """What came of it so far."""
        return SessionCounts(
            restored_sessions=self._report.sessions,
            restored_tokens=self._report.tokens,
            returned_sessions=self._sessions,
            returned_tokens=self._tokens,
            errors=self._errors,
        )

    def _gone_on_from(self, sequence: Sequence) -> list[Chain]:
        """Return the conversations all of whose tokens a prompt begins with."""
        ends = [root(sequence.namespace), *(link.digest for link in sequence.links)]
        found = []
        for number, end in enumerate(ends):
            for chain in self._waiting.get(end, ()):
                tail, first = chain.pieces[-1].tail, number * BLOCK_TOKENS
                rest = as_bytes(sequence.tokens[first : first + BLOCK_TOKENS][:-1])
                if tail is None or rest.startswith(tail.tokens):
                    found.append(chain)
        return found

    def _strike(self, chain: Chain) -> None:
        end = chain.pieces[-1].end
        self._waiting[end].remove(chain)
        if not self._waiting[end]:
            del self._waiting[end]
