"""The engine's thread, reduced to a queue that a test runs."""

import queue
from collections.abc import Callable


class Loop:
    """Takes calls from other threads and makes them when the test says so."""

    def __init__(self) -> None:
        self.calls: queue.Queue[tuple[Callable[..., object], tuple[object, ...]]] = queue.Queue()

    def call_soon_threadsafe(self, call: Callable[..., object], *arguments: object) -> None:
        """Queue a call."""
        self.calls.put((call, arguments))

    def take(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """Wait for a call and return it, not made."""
        return self.calls.get(timeout=30)

    def run_one(self) -> None:
        """Wait for a call and make it."""
        call, arguments = self.take()
        call(*arguments)
