"""Finds in Cassandra what a session fetches: messages of a topic behind the client's position, the
retained one, and what its client is subscribed to.

Ids are read first, in their order, which is that of the table; then each message that is wanted.
So what a session gets from our own log costs no payloads. Must not import the driver. Read next:
`broker.backends.cassandra_sink`, `broker.backends.inbox.questions`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from broker.backends.inbox.questions import (
    ANSWER_BYTES_MAX,
    SUBSCRIPTIONS_MAX,
    Page,
    Question,
    first_id,
    time_of,
)
from storage.tables.fetch_rows import RETAIN, SUBSCRIPTIONS

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

    def read_retained(self) -> str:
        """The id of the retained message of a topic."""
        ...

    def read_listed(self) -> str:
        """A row for each subscription of a client; at most so many."""
        ...

    def read_subscriptions(self) -> str:
        """The subscriptions of a client behind a topic filter, in their order; at most so many."""
        ...


class CassandraInbox:
    """Answers the questions of one backend."""

    def __init__(self, statements: Statements, node: int) -> None:
        """`node` is the number of this broker in message ids."""
        self._statements: Final = statements
        self._node: Final = node

    def fetch(self, ask: Ask, question: Question) -> Page:
        """Return a page of the answer. Raises what `ask` does."""
        if question.kind == RETAIN:
            return self._retained(ask, question)
        if question.kind == SUBSCRIPTIONS:
            return self._subscriptions(ask, question)
        return self._after(ask, question)

    def _after(self, ask: Ask, question: Question) -> Page:
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
                for row in ask(self._statements.read_message(), [question.topic, each.msgid]):
                    size += page.add(each.msgid, _fields(row))
            page.upto = each.msgid
        return page

    def _retained(self, ask: Ask, question: Question) -> Page:
        """Return the retained message of a topic, unless this broker has written it.

        A topic whose message is gone has none.
        """
        page = Page("")
        for kept in ask(self._statements.read_retained(), [question.topic]):
            name = kept.msgid
            if not name or question.is_written_here(name, self._node):
                continue
            for row in ask(self._statements.read_message(), [question.topic, name]):
                page.add_retained(name, _fields(row), time_of(name), (row.ttl or 0) * 1000)
        return page

    def _subscriptions(self, ask: Ask, question: Question) -> Page:
        """Return what a client is subscribed to, in the order of the filters."""
        page = Page("")
        client_id, count = question.client_id, question.count
        if not question.after:
            # Only numbers: the filters themselves are read in pages.
            listed = ask(self._statements.read_listed(), [client_id, SUBSCRIPTIONS_MAX + 1])
            if len(listed) > SUBSCRIPTIONS_MAX:
                page.why = (
                    f"{client_id} has more than {SUBSCRIPTIONS_MAX} rows of subscriptions: "
                    f"expected at most {SUBSCRIPTIONS_MAX}"
                )
                return page
        after = question.after
        for _ in range(0, SUBSCRIPTIONS_MAX, count):
            found = ask(self._statements.read_subscriptions(), [client_id, after, count])
            page.more = len(found) >= count
            rows = [(row.topic.encode(), _number(row.qos)) for row in found]
            page.add_subscriptions(rows, question)
            # A page that says there is more must have something.
            if page.subscriptions or not page.more:
                return page
            after = found[-1].topic
        page.why = f"the first {SUBSCRIPTIONS_MAX} rows of {client_id} are no subscriptions"
        return page


def _fields(row: Any) -> dict[str, bytes]:
    """Return a message as other stores have it; without a payload it is none."""
    fields = {
        "from": (row.sender or "").encode(),
        "qos": _number(row.qos),
        "at_ms": _number(row.at),
    }
    if row.payload is not None:
        fields["payload"] = row.payload
    return fields


def _number(value: int | None) -> bytes:
    """Return a number as other stores have it, b"" = there is none."""
    return b"" if value is None else b"%d" % value
