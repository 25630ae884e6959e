"""What the folds over sessions read: the columns, in their order, as one tuple per row."""

from typing import Final, NamedTuple

from audit.input.events import boot_of, seq_of

# Not an event of the history: how the number of packet ids in flight changed on one connection,
# summed up. `conn` 0 = while the session was offline.
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
    # Of a balance: by how much the number in flight rose, at least and at most; and how much of
    # that may be undone if the broker died at the end of what is known.
    least: int | None
    most: int | None
    fresh_starts: int | None
    fresh_ends: int | None
    again: int | None  # so many messages were sent again

    @property
    def boot(self) -> int:
        """Return the boot it belongs to."""
        return boot_of(self.gseq)

    def place(self) -> dict[str, object]:
        """Return what a witness says about where it is."""
        return {
            "node": self.node,
            "client_id": self.client_id,
            "session": self.session,
            "boot": boot_of(self.gseq),
            "seq": seq_of(self.gseq),
        }


COLUMNS: Final = SessionRow._fields
