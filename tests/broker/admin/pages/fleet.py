"""A hundred thousand sessions, written into the database of a broker that does not run.

They are copies of one session, which a client has made: to connect so many takes minutes. All are
owed the same messages.
"""

from pathlib import Path
from typing import Final

from storage.api import Batch
from storage.local.rocks import RocksStore
from storage.tables.tables import (
    FILTERS,
    HOLDERS,
    META,
    SESSIONS,
    SUBSCRIPTIONS,
    TOTALS_KEY,
    decode_filter,
    encode_filter,
    holder_key,
    load_totals,
    session_holder,
    subscription_key,
)

FIRST: Final = "fleet-000000"  # the session that is copied
TOPIC: Final = "fleet"
BATCH: Final = 5000  # sessions


def name(number: int) -> str:
    """Return the client id of a session."""
    return f"fleet-{number:06}"


def multiply(data_dir: Path, count: int) -> None:
    """Make so many sessions of the first one."""
    store = RocksStore(data_dir / "db")
    first = FIRST.encode()
    record, row = store.get(SESSIONS, first), store.get(FILTERS, TOPIC.encode())
    subscription = store.get(SUBSCRIPTIONS, subscription_key(FIRST, TOPIC))
    assert record is not None and row is not None and subscription is not None
    filter_id, holders = decode_filter(row)
    since = store.get(HOLDERS, holder_key(filter_id, session_holder(FIRST)))
    assert holders == 1 and since is not None
    totals = load_totals(store)
    for begin in range(1, count, BATCH):
        batch: Batch = []
        for number in range(begin, min(count, begin + BATCH)):
            client_id = name(number)
            batch.append((SESSIONS, client_id.encode(), record))
            batch.append((SUBSCRIPTIONS, subscription_key(client_id, TOPIC), subscription))
            batch.append((HOLDERS, holder_key(filter_id, session_holder(client_id)), since))
        store.write(batch)
    totals.sessions += count - 1
    totals.subscriptions += count - 1
    store.write(
        [(FILTERS, TOPIC.encode(), encode_filter(filter_id, count)),
         (META, TOTALS_KEY, totals.encode())]
    )  # fmt: skip
    store.close()
