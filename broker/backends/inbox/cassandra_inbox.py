"""Finds in Cassandra what a session fetches: messages of a topic behind the client's position.

Ids are read first, in their order, which is that of the table; then each message that is wanted.
So what a session gets from our own log costs no payloads. Must not import the driver. Read next:
`broker.backends.cassandra_sink`, `broker.backends.inbox.questions`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from broker.backends.inbox.questions import ANSWER_BYTES_MAX, Page, Question, first_id

READ_IDS: Final = 500  # of a topic, for one question
# Runs a prepared statement with its values; returns rows.
Ask: TypeAlias = Callable[[str, Sequence[object]], list[Any]]


class Statements(Protocol):
    """The texts of what is asked."""

    def read_acked(self) -> str:
        """The position of a client in a topic."""
        ...

    def read_ids(self) -> str:
        """The ids of a topic behind a position, the oldest first; at most so many."""
        ...

    def read_message(self) -> str:
        """One message of a topic."""
        ...


class CassandraInbox:
    """Answers the questions of one backend."""

    def __init__(self, statements: Statements, node: int) -> None:
        """`node` is the number of this broker in message ids."""
        self._statements: Final = statements
        self._node: Final = node

    def fetch(self, ask: Ask, question: Question) -> Page:
        """Return a page of the messages behind the position of a client, the oldest first."""
        acked = ask(self._statements.read_acked(), [question.client_id, question.topic])
        # Below the first id of a time there may be others of that time only.
        after = max(
            question.after,
            (acked[0].msgid or "") if acked else "",
            first_id(question.not_before_ms),
            key=str.encode,
        )
        page = Page(after)
        found = ask(self._statements.read_ids(), [question.topic, after, READ_IDS])
        page.more = len(found) >= READ_IDS
        size = 0
        for each in found:
            if len(page.messages) >= question.count or size >= ANSWER_BYTES_MAX:
                page.more = True
                break
            if not question.is_ours(each.msgid, self._node):
                size += self._add(ask, page, question.topic, each.msgid)
            page.upto = each.msgid
        return page

    def _add(self, ask: Ask, page: Page, topic: str, name: str) -> int:
        """Add a message to a page; return its size, 0 if it is gone or has no payload."""
        rows = ask(self._statements.read_message(), [topic, name])
        if not rows or rows[0].payload is None:
            return 0
        (row,) = rows
        fields = {"payload": row.payload, "from": (row.sender or "").encode()}
        if row.qos is not None:
            fields["qos"] = b"%d" % row.qos
        if row.at is not None:
            fields["ts"] = b"%d" % (row.at // 1000)
        return page.add(name, fields)
