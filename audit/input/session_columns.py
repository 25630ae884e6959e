"""The columns that folds over sessions read, in order, as one tuple per row."""

from typing import Final, NamedTuple

from audit.input.events import boot_of, seq_of

# Not an event of the history: the sum of the changes of the number of packet ids in flight on one
# connection. `conn` 0 = while the session was offline.
BALANCE: Final = "#balance"


class SessionRow(NamedTuple):
    """One row about a session; times are microseconds since 1970."""

    node: str
    client_id: str
    gseq: int
    us: int
    ev: str
    carried: bool
    tenant: str | None
    session: int
    conn: int | None
    reason: int | None
    actor: str | None
    clean_start: bool | None
    sp: bool | None
    expiry_s: int | None
    subs: int | None
    inflight: int | None
    subs_check: int | None
    position: int | None
    at_us: int | None
    topic: str | None
    tfilter: str | None
    qos: int | None
    # Only of a balance: the least and most that the number in flight rose, and how much of that may
    # be undone if the broker crashed at the end of the known history.
    least: int | None
    most: int | None
    fresh_starts: int | None
    fresh_ends: int | None
    again: int | None  # number of messages sent again

    @property
    def boot(self) -> int:
        """Return its boot."""
        return boot_of(self.gseq)

    def place(self) -> dict[str, object]:
        """Return its place in the history, for a witness."""
        return {
            "node": self.node,
            "client_id": self.client_id,
            "session": self.session,
            "boot": boot_of(self.gseq),
            "seq": seq_of(self.gseq),
        }


COLUMNS: Final = SessionRow._fields
