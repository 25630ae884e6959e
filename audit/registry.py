"""What each invariant forbids, which modules decide it, and which tests try them. Pure.

The tables in docs/audit.md are made from it: `python -m tests.audit.registry_tables` writes them,
and a test holds that they agree. Its title and its source are in `audit.checks.verdict`.
"""

from dataclasses import dataclass
from typing import Final

from audit.checks.verdict import INVARIANTS

ANCHOR: Final = "what-the-invariants-mean"  # of docs/audit.md, if an entry has none of its own
_CHECKS: Final = "audit/checks"
_TESTS: Final = "tests/audit/checks"
# Histories with made-up faults, counted by an oracle that shares no code with the checks.
GENERATED: Final = "tests/audit/generate/test_history_audited.py"


@dataclass(frozen=True)
class Entry:
    """One invariant. Modules and tests are names in `audit/checks` and `tests/audit/checks`.

    A name with a folder is one of `audit` and of `tests/audit`.
    """

    id: str
    forbids: str  # "it is violated if ...", as Markdown
    decided_by: tuple[str, ...]
    tried_by: tuple[str, ...]
    anchor: str = ANCHOR

    @property
    def modules(self) -> tuple[str, ...]:
        """Return the files that decide it."""
        return tuple(
            f"audit/{name}.py" if "/" in name else f"{_CHECKS}/{name}.py"
            for name in self.decided_by
        )

    @property
    def tests(self) -> tuple[str, ...]:
        """Return the files that try it."""
        return tuple(
            f"tests/audit/{name.replace('/', '/test_')}.py" if "/" in name
            else f"{_TESTS}/test_{name}.py"
            for name in self.tried_by
        )  # fmt: skip


REGISTRY: Final[dict[str, Entry]] = {
    entry.id: entry
    for entry in (
        Entry(
            "H1",
            "rows are missing without explanation or are there twice, boots are not "
            "consecutive, a segment does not match its name, or the time goes back within a "
            "boot; witnesses name node, rows and files",
            ("log_checks", "clock_check", "chain_check"),
            ("log_checks", "clock_check", "chain_check"),
        ),
        Entry(
            "L1",
            "a PUBACK or PUBREC went to a publisher before the commit that holds its message "
            "returned",
            ("publish_checks",),
            ("delivery_checks",),
        ),
        Entry(
            "L2",
            "a message for a session was lost: the session skipped it; it was in flight and "
            "never sent again after a resume; or the session was connected and idle beyond "
            "the horizon (`--horizon`, 300 s) and did not get it",
            ("sending_checks", "message_outcomes", "delivery_checks"),
            ("judge_session", "message_outcomes", "delivery_checks"),
        ),
        Entry(
            "L3",
            "a message was stored, and the stream of a durable subscription that matches its "
            "topic did not get it (3.3.4)",
            ("routing_check", "topic_matching"),
            ("routing_check", "topic_matching", "delivery_checks"),
        ),
        Entry(
            "D1",
            "a QoS 2 message was accepted twice in one exchange, or sent again after its "
            "PUBREC or PUBCOMP (4.3.3). A crash may take a PUBREC that refused the message in "
            "the last second, no other. Over a crash only a second acceptance with DUP 1 "
            "counts: with DUP 0 the client says that the message is new",
            ("incoming_qos2", "sending_checks", "message_outcomes"),
            ("incoming_qos2", "judge_session"),
        ),
        Entry(
            "D2",
            "a message was sent again without a reconnect, with another packet identifier, "
            "without DUP, or after its PUBACK (3.3.1-1, 4.4.0-1). A crash may take the last "
            "second of progress at QoS 1, no more",
            ("sending_checks", "message_outcomes"),
            ("judge_session", "message_outcomes"),
        ),
        Entry(
            "D3",
            "a packet identifier named two messages of one session at once, or an "
            "acknowledgement is recorded for another message than the last one sent under its "
            "identifier (2.2.1)",
            ("sending_checks",),
            ("judge_session",),
        ),
        Entry(
            "S1",
            "Session Present was wrong, or a session was ended for a Clean Start that its "
            "client did not request (3.2.2-2, 3.2.2-3)",
            ("session_lifetimes",),
            ("session_lifetimes",),
        ),
        Entry(
            "S2",
            "a resumed session had other subscriptions or another in-flight window than "
            "before (4.1.0-1, 3.1.2-5)",
            ("session_lifetimes",),
            ("session_lifetimes",),
        ),
        Entry(
            "S3",
            "a session expired early, late by more than the tolerance, while connected, or "
            "was resumed afterwards; or it ended with its connection, though it had an expiry "
            "interval (3.1.2-23)",
            ("session_lifetimes",),
            ("session_lifetimes",),
        ),
        Entry(
            "S4",
            "a session had two connections, or the old one did not get 0x8E before the new "
            "one got its CONNACK (3.1.4-3)",
            ("session_lifetimes",),
            ("session_lifetimes",),
        ),
        Entry(
            "S5",
            "what existed before a crash did not exist after it, or existed differently: "
            "sessions, subscriptions, in-flight windows, positions. A crash may take the last "
            "second of PUBACKs and PUBCOMPs: what they ended is in flight again. The most "
            "important one",
            ("session_lifetimes", "session_checks"),
            ("session_lifetimes", "session_checks"),
        ),
        Entry(
            "F1",
            "more was in flight than the client's Receive Maximum (3.3.4-9)",
            ("sending_checks",),
            ("judge_session",),
        ),
        Entry(
            "O1",
            "a session got a publisher's messages of one topic in a different order than they "
            "were accepted (4.6.0-5, -6), or a message before it was stored",
            ("sending_checks", "order_check"),
            ("judge_session", "delivery_checks"),
        ),
        Entry(
            "E1",
            "a message was first sent after its expiry, or dropped as expired before it (3.3.2-5)",
            ("expiry_check",),
            ("delivery_checks",),
        ),
        Entry(
            "W1",
            "a will was published twice (also if only one event says so), early, after a "
            "DISCONNECT with 0x00, after a resume within its delay, or never; or not "
            "published because of a resume or a DISCONNECT that did not happen (3.1.2-8, -10, "
            "3.1.3-9)",
            ("wills", "will_publications"),
            ("wills", "will_publications"),
        ),
        Entry(
            "R1",
            "a retained message was sent that was not the last one set (3.3.1-5)",
            ("retained_checks",),
            ("retained_checks",),
        ),
        Entry(
            "R2",
            "a new subscription asked for retained messages and did not get one that matched and "
            "stayed: its session was connected beyond the horizon, nothing was dropped for it, "
            "and its window was not full (3.3.1-9). Of brokers that did not record what a "
            "subscription asks for (`retain` of `subscribed`) nothing is said",
            ("retained_owed",),
            ("retained_owed",),
        ),
        Entry(
            "G1",
            "garbage collection deleted a message still needed, or kept something no longer needed",
            ("session_lifetimes", "session_checks"),
            ("session_lifetimes", "session_checks"),
        ),
        Entry(
            "B1",
            "an [external store](#external-stores) was told of other messages than were "
            "stored for it, of some twice, or of some never",
            ("backend_checks", "backend_counting", "backend_story"),
            ("backend_checks", "backend_counting", "backend_story"),
            anchor="external-stores",
        ),
        Entry(
            "C1",
            "a client had the acknowledgement of a message, and the history does not know "
            "the message: a disk has lied. A message that no stored subscription wanted may "
            "go with a crash",
            ("clients/judgement", "clients/reconcile"),
            ("clients/judgement", "clients/reconcile"),
            "what-clients-saw",
        ),
        Entry(
            "C2",
            "a client received what was never recorded as sent to it; or the history has an "
            "acknowledgement by a client that never saw the message",
            ("clients/judgement", "clients/reconcile"),
            ("clients/judgement", "clients/reconcile"),
            "what-clients-saw",
        ),
        Entry(
            "C3",
            "a client received a message twice at QoS 2, or a will more often than it was "
            "published (4.3.3)",
            ("clients/judgement", "clients/reconcile"),
            ("clients/judgement", "clients/reconcile"),
            "what-clients-saw",
        ),
        Entry(
            "C4",
            "Session Present in CONNACK was not what the history says (3.2.2-2, 3.2.2-3)",
            ("clients/judgement", "clients/reconcile"),
            ("clients/judgement", "clients/reconcile"),
            "what-clients-saw",
        ),
        Entry(
            "C5",
            "a message was acknowledged to its publisher, and a client whose subscription "
            "matched did not receive it, though it received earlier and later ones of that "
            "publisher and topic (4.3.2, 4.3.3)",
            ("clients/judgement", "clients/reconcile"),
            ("clients/judgement", "clients/reconcile"),
            "what-clients-saw",
        ),
    )
}
assert list(REGISTRY) == list(INVARIANTS), "every invariant has an entry, in the same order"


def meanings() -> list[str]:
    """Return the table of what the invariants mean."""
    rows = [f"| **{entry.id}** | {entry.forbids} |" for entry in REGISTRY.values()]
    return ["| id | it is violated if |", "| --- | --- |", *rows]


def places() -> list[str]:
    """Return the table of where they are decided and tried; links are those of docs/audit.md."""
    rows = [
        f"| [{entry.id}](#{entry.anchor}) | {_linked(entry.modules)} | {_linked(entry.tests)} |"
        for entry in REGISTRY.values()
    ]
    return ["| id | decided by | tried by |", "| --- | --- | --- |", *rows]


def _linked(paths: tuple[str, ...]) -> str:
    return ", ".join(f"[`{path.rpartition('/')[2]}`](../{path})" for path in paths)
