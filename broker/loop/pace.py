"""Decides whether the loop rests after a tick, so that one tick serves several devices.

Thousands of devices that publish now and then make a tick each: a poll, a write, a sync, a wake-up
for every message. If the loop rests for a moment after a tick, what comes meanwhile is one tick. A
rest delays only those who come within it. It never pays for a client that waits for its answer
before it goes on: such a client is *eager*, its next message comes right after our last packet to
it. So the loop rests while many publish and nobody is eager. Pure: time is an argument. Read next:
`broker.loop.driver`, which rests.
"""

from collections.abc import Iterator
from typing import Final

# A PUBLISH is eager if it comes within this time after our last packet to its client. A client on
# the same machine or network answers within one; behind a longer line a rest adds little.
EAGER_MS: Final = 5
WINDOW_MS: Final = 50  # what was counted decides for the next one
# Fewer than one in so many messages that are eager may wait: their clients are idle otherwise.
EAGER_SHARE: Final = 64
# No rest for so long after a window with more: what it would look like without a rest is not known.
WARY_MS: Final = 1000
COMPANY: Final = 1.0  # messages that must be expected within a rest


class Pace:
    """Counts messages, and says how long the loop may rest."""

    def __init__(self, rest_max_ms: int) -> None:
        """`rest_max_ms` is the longest rest, 0 = never."""
        self._rest_max_ms: Final = rest_max_ms
        self._window_ends_ms: int = 0
        self._wary_until_ms: int = 0
        self._calm: int = 0
        self._eager: int = 0
        self.rest_s: float = 0.0  # after each tick, 0 = none

    def published(self, now: int, last_sent_ms: int) -> None:
        """Count a read with a PUBLISH of a client that we sent something last at `last_sent_ms`."""
        if now >= self._window_ends_ms:
            self.look(now)
        if now - last_sent_ms < EAGER_MS:
            self._eager += 1
        else:
            self._calm += 1

    def look(self, now: int) -> None:
        """Decide anew if a window is over. Call it with every tick while there is a rest."""
        if now < self._window_ends_ms:
            return
        calm, eager = self._calm, self._eager
        self._calm = self._eager = 0
        late_ms = now - self._window_ends_ms
        self._window_ends_ms = now + WINDOW_MS
        if eager * EAGER_SHARE > calm:
            self._wary_until_ms = now + WARY_MS
        expected = calm * self._rest_max_ms / (WINDOW_MS + late_ms)
        # Once it rests it goes on with half of that.
        needed = COMPANY / 2 if self.rest_s else COMPANY
        is_calm = now >= self._wary_until_ms and expected >= needed
        self.rest_s = self._rest_max_ms / 1000 if is_calm else 0.0

    def invariants(self) -> Iterator[str]:
        """Yield a sentence for each invariant that does not hold."""
        if self.rest_s * 1000 > self._rest_max_ms:
            yield f"a rest of {self.rest_s} s, {self._rest_max_ms} ms are allowed"
