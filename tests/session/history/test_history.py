"""Do all parts of the history write into one sequence of events?"""

from session.counters import Counters
from session.live.tick import Tick
from session.settings import Settings
from storage.api import Batch
from storage.history.packed_rows import expand, unpack
from storage.local.memory import MemoryStore
from storage.log.message_log import MessageLog
from storage.tables.tables import FAMILIES, HISTORY, unseal
from tests.session.harness import untold_history


def test_what_its_parts_are_told_has_one_sequence_of_events() -> None:
    store, settings = MemoryStore(FAMILIES), Settings()
    tick, batch = Tick(200), Batch()
    history = untold_history(tick, MessageLog(store), settings, Counters())
    history.recorder.begin(1, 1000, store)
    tick.now = 1000
    history.sessions.collected(3)
    history.outbox.copied(7)
    history.sessions.shut_down()
    history.recorder.seal(batch, 1000)
    rows = [value for family, _, value in batch if family == HISTORY and value is not None]
    told = [event for row in rows for event in expand(unpack(unseal(row, "history")), "n", 1)]
    assert [(event["seq"], event["ev"]) for event in told] == [
        (1, "gc_run"),
        (2, "checkpoint"),
        (3, "shutdown"),
    ]


def test_messages_are_recorded_by_all_parts_at_the_same_levels() -> None:
    for detail, expected in (("off", False), ("sessions", False), ("books", True), ("full", True)):
        store, settings = MemoryStore(FAMILIES), Settings()
        settings.history_detail = detail
        history = untold_history(Tick(200), MessageLog(store), settings, Counters())
        history.recorder.begin(1, 1000, store)
        assert history.publishes.is_on is history.deliveries.is_on is expected, detail
