"""The events of a broker's history so far, unpacked from the rows of its store."""

from storage.history.packed_rows import expand, split_history_key, unpack
from storage.tables.tables import HISTORY, unseal
from tests.session.harness import Broker

Told = dict[str, object]


def told(broker: Broker, *names: str) -> list[Told]:
    """Return the events of the store in order; only those in `names`, if any are given."""
    found: list[Told] = []
    for key, value in broker.rows(HISTORY):
        boot, first = split_history_key(key)
        row = unpack(unseal(value, "history"))
        assert row.first_seq == first
        found += expand(row, "node", boot)
    return [event for event in found if not names or event["ev"] in names]


def columns(events: list[Told], *names: str) -> list[tuple[object, ...]]:
    """Return the values of some columns."""
    return [tuple(event[name] for name in names) for event in events]
