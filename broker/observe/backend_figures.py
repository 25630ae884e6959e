"""What is told of one external store: its state and its numbers, for metrics and commands.

Read next: `broker.backends.pump.pump`, which fills it, and docs/backends.md.
"""

from typing import Final

from session.counters import LogBuckets

STARTING: Final = "starting"  # the process is there and has said nothing yet
CONNECTING: Final = "connecting"
CONNECTED: Final = "connected"
DISCONNECTED: Final = "disconnected"  # the store cannot be reached, or takes nothing
FAILED: Final = "failed"  # the process has ended and is started again

UNIT_S: Final = 1e-4  # the smallest time of a batch or of an answer that is told apart


class BackendFigures:
    """The state of a backend at one moment."""

    __slots__ = (
        "backlog_bytes",
        "batch_seconds",
        "cursor",
        "dead_letters",
        "fetch_seconds",
        "fetches_owed",
        "gaps",
        "is_paused",
        "is_refusing",
        "is_required",
        "is_up",
        "lag_s",
        "name",
        "retries",
        "rewinds",
        "rows",
        "rows_behind",
        "state",
        "why",
    )

    def __init__(self, name: str, *, is_required: bool) -> None:
        self.name: str = name
        self.is_required: bool = is_required
        self.state: str = STARTING
        self.why: str = ""  # of the last time when it was not connected
        self.is_up: bool = False
        self.is_paused: bool = False  # nothing is sent, on request
        self.cursor: tuple[int, int] = (0, 0)  # what the store has confirmed
        self.lag_s: float = 0.0  # age of the oldest row that the store has not confirmed
        self.rows_behind: int = 0  # at most
        self.backlog_bytes: int = 0  # what waits for the store, with what others want of it
        self.is_refusing: bool = False  # are its messages refused, for too much waits?
        self.rows: int = 0  # confirmed since the start of the broker, as the numbers below
        self.retries: int = 0
        self.rewinds: int = 0
        self.gaps: int = 0
        self.dead_letters: int = 0  # that are in the database now
        self.fetches_owed: int = 0  # subscriptions whose answer has not come
        self.batch_seconds: LogBuckets = LogBuckets(UNIT_S)
        self.fetch_seconds: LogBuckets = LogBuckets(UNIT_S)  # from a question to its answer
