"""Invariants between the rows of a store at every tick boundary.

They are checked on the rows alone, not on the engine's memory. `audit` yields one sentence per
contradiction.
"""

from collections import Counter
from collections.abc import Iterator

from session.lifetime.repository import INCARNATION_SHIFT
from session.state.backend_record import decode_backend
from session.state.in_flight import FROM_MAILBOX, REFERENCE_SHIFT, SOURCE_MASK
from session.state.records import decode_session
from session.state.session import Session
from session.state.shared_group_record import decode_group
from session.state.subscription import decode_subscription
from session.state.will_record import decode_connection
from storage.local.memory import MemoryStore
from storage.tables.fetch_rows import SUBSCRIPTIONS as LISTS
from storage.tables.fetch_rows import split_fetch_key
from storage.tables.tables import (
    BACKENDS,
    CONNECTIONS,
    DUE,
    FETCHES,
    FILTERS,
    GROUPS,
    HOLDERS,
    INCOMING,
    MAILBOX,
    META,
    RETAINED,
    SESSIONS,
    SUBSCRIPTIONS,
    TOTALS_KEY,
    backend_holder,
    decode_filter,
    group_holder,
    group_key,
    holder_key,
    load_boot,
    load_totals,
    mailbox_key,
    session_holder,
    split_group_key,
    subscription_key,
    unseal,
)
from storage.tables.timers import RETAINED as DUE_RETAINED
from storage.tables.timers import SESSION, WILL, due_key

Rows = dict[bytes, bytes]


def audit(store: MemoryStore, live: set[str]) -> Iterator[str]:
    """Yield the contradictions between the rows; `live` are the connected clients."""
    if store.get(META, TOTALS_KEY) is None:
        return
    sessions = {
        key.decode(): decode_session(key.decode(), unseal(value, "session"))
        for key, value in _rows(store, SESSIONS).items()
    }
    yield from _audit_totals(store, sessions)
    yield from _audit_incarnations(store, sessions)
    yield from _audit_streams(store, sessions)
    yield from _audit_mailbox(store, sessions)
    yield from _audit_fetches(store, sessions)
    yield from _audit_times(store, sessions, live)
    for key in _rows(store, INCOMING):
        if key.partition(b"\0")[0].decode() not in sessions:
            yield f"incoming {key!r}: there is no such session"


def _audit_incarnations(store: MemoryStore, sessions: dict[str, Session]) -> Iterator[str]:
    owners: dict[int, str] = {}
    for client_id, session in sessions.items():
        other = owners.setdefault(session.incarnation, client_id)
        if session.incarnation and other != client_id:
            yield f"{client_id} and {other} are both incarnation {session.incarnation}"
        if session.incarnation >> INCARNATION_SHIFT > load_boot(store)[0]:
            yield f"{client_id}: incarnation {session.incarnation} is of a later boot"


def _rows(store: MemoryStore, family: str) -> Rows:
    return dict(store.scan(family, b"", count=10_000_000))


def _audit_totals(store: MemoryStore, sessions: dict[str, Session]) -> Iterator[str]:
    totals = load_totals(store)
    for name, counted, rows in (
        ("sessions", totals.sessions, len(sessions)),
        ("retained", totals.retained, len(_rows(store, RETAINED))),
        ("subscriptions", totals.subscriptions, len(_rows(store, SUBSCRIPTIONS))),
    ):
        if counted != rows:
            yield f"totals say {counted} {name}, there are {rows}"
    for value in _rows(store, FILTERS).values():
        filter_id, _ = decode_filter(value)
        if filter_id >= totals.next_filter_id:
            yield f"filter id {filter_id} is not below the next one {totals.next_filter_id}"


def _audit_streams(store: MemoryStore, sessions: dict[str, Session]) -> Iterator[str]:
    """Check that every holder is a subscription or a group, and that the filters count them."""
    filters = {key.decode(): decode_filter(value) for key, value in _rows(store, FILTERS).items()}
    expected: set[bytes] = set()
    members: Counter[bytes] = Counter()
    for key, value in _rows(store, SUBSCRIPTIONS).items():
        client, _, name = key.partition(b"\0")
        if client.decode() not in sessions:
            yield f"subscription {key!r}: there is no such session"
        subscription = decode_subscription(name.decode(), None, "", unseal(value, "subscription"))
        if name.startswith(b"$share/"):
            share_name, _, stream = name.decode()[len("$share/") :].partition("/")
            members[group_key(share_name, stream)] += 1
        elif subscription.holds:
            if name.decode() not in filters:
                yield f"subscription {key!r} holds a filter that is not there"
                continue
            filter_id = filters[name.decode()][0]
            expected.add(holder_key(filter_id, session_holder(client.decode())))
    for key, value in _rows(store, GROUPS).items():
        share_name, stream = split_group_key(key)
        record = decode_group(unseal(value, "group"))
        if record.stored_members != members.pop(key, 0):
            yield f"group {key!r} counts {record.stored_members} stored members wrongly"
        if stream not in filters:
            yield f"group {key!r}: its filter is not there"
            continue
        expected.add(holder_key(filters[stream][0], group_holder(share_name)))
    for key, value in _rows(store, BACKENDS).items():
        for topic_filter in decode_backend(unseal(value, "backend")).filters:
            if topic_filter not in filters:
                yield f"backend {key!r}: its filter {topic_filter!r} is not there"
                continue
            expected.add(holder_key(filters[topic_filter][0], backend_holder(key.decode())))
    if members:
        yield f"groups without a row: {sorted(members)}"
    found = set(_rows(store, HOLDERS))
    if found != expected:
        yield f"holders: {sorted(found - expected)} too many, {sorted(expected - found)} missing"
    counts = Counter(key[:8] for key in found)
    for name_text, (filter_id, holders) in filters.items():
        if counts[filter_id.to_bytes(8, "big")] != holders:
            yield f"filter {name_text!r} counts {holders} holders wrongly"


def _audit_mailbox(store: MemoryStore, sessions: dict[str, Session]) -> Iterator[str]:
    """Check that a mailbox row exists exactly while its packet id is in flight."""
    expected = {
        mailbox_key(client_id, entry >> REFERENCE_SHIFT)
        for client_id, session in sessions.items()
        for entry in session.in_flight.values()
        if entry & SOURCE_MASK == FROM_MAILBOX
    }
    found = set(_rows(store, MAILBOX))
    # The row is deleted at once, but QoS 1 progress may reach the record late: rows may be missing.
    if found - expected:
        yield f"mailbox rows nobody is owed: {sorted(found - expected)}"


def _audit_fetches(store: MemoryStore, sessions: dict[str, Session]) -> Iterator[str]:
    """Check that what is fetched is fetched for a subscription."""
    subscriptions = _rows(store, SUBSCRIPTIONS)
    for key in _rows(store, FETCHES):
        client_id, _, kind, topic = split_fetch_key(key)
        if client_id not in sessions:
            yield f"{client_id}: fetches {topic!r} without a session"
        elif kind != LISTS and subscription_key(client_id, topic) not in subscriptions:
            yield f"{client_id}: fetches {topic!r} without a subscription"


def _audit_times(store: MemoryStore, sessions: dict[str, Session], live: set[str]) -> Iterator[str]:
    due = _rows(store, DUE)
    connections = _rows(store, CONNECTIONS)
    for client_id, session in sessions.items():
        name = client_id.encode()
        if client_id in live:
            if name not in connections:
                yield f"{client_id}: connected, but has no connection row"
            if session.expiry_due_ms or session.will_due_ms:
                yield f"{client_id}: connected, but something of it is due"
            continue
        if session.expiry_due_ms and due_key(session.expiry_due_ms, SESSION, name) not in due:
            yield f"{client_id}: expires at {session.expiry_due_ms}, but nothing is due then"
        if not session.disconnected_at_ms:
            yield f"{client_id}: not connected, but not disconnected either"
    for key in connections:
        if key.decode() not in live:
            yield f"connection row of {key!r}, which is not connected"
    for key, value in due.items():
        at_ms, kind, name = int.from_bytes(key[:8], "big"), key[8], key[9:]
        body = unseal(value, "due")
        if kind == SESSION:
            owner = sessions.get(name.decode())
            if owner is None or owner.expiry_due_ms != at_ms:
                yield f"{name!r}: due to expire at {at_ms}, but it does not"
        elif kind == WILL:
            if decode_connection(body).will is None:
                yield f"will of {name!r} without a will"
        elif kind != DUE_RETAINED:
            yield f"due entry of kind {kind}"
