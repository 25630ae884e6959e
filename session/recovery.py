"""The start of the broker: opens the tables of the store and cleans up after a crash.

Clients that were connected when the broker died count as disconnected from the time of its last
sign of life on. Runs once, before anything else; a million sessions cost no more than their
filters. Read next: `session.lifetime.disconnect` (`recover`), `session.lifetime.repository`.
"""

from typing import Final

from session.assembly import Assembly
from session.live.core import Core, Database
from session.publish.storage_quota import generation_size
from storage.api import Store
from storage.errors import DamagedRows
from storage.log.message_log import MessageLog
from storage.tables.tables import (
    BOOT_KEY,
    CONNECTIONS,
    FAMILIES,
    META,
    check_format,
    encode_boot,
    load_boot,
    load_totals,
    scan_all,
)
from storage.tables.timers import Due
from storage.time.broker_clock import HEARTBEAT_KEY, Heartbeat

RECOVER_SLICE: Final = 1000  # connections ended by one batch of the recovery


class Recovery:
    """The counts of a start."""

    __slots__ = ("filters", "forgotten", "retained", "sessions", "were_connected")

    def __init__(
        self,
        sessions: int,
        filters: int,
        retained: int,
        were_connected: int,
        forgotten: list[str],
    ) -> None:
        self.sessions = sessions
        self.filters = filters
        self.retained = retained
        self.were_connected = were_connected  # clients that a crash disconnected
        self.forgotten = forgotten  # backends that are not configured any more


def open_database(store: Store, core: Core, told_of: int) -> Database:
    """Create the tables that are missing, check their format, and begin a new boot.

    `told_of` is the newest boot of the exported history. Raises `StorageError`.
    """
    existing = set(store.families())
    for family in FAMILIES:
        if family not in existing:
            store.create_family(family)
    batch = core.tick.batch
    check_format(store, batch)
    boot = max(load_boot(store)[0], told_of) + 1
    batch.append((META, BOOT_KEY, encode_boot(boot, 0)))
    log = MessageLog(
        store,
        layout=core.settings.layout,
        generation_size_bytes=generation_size(core.settings),
        generation_age_ms=core.settings.generation_age_s * 1000,
    )
    return Database(store, log, Due(store), load_totals(store), boot)


def recover(assembly: Assembly, now: int, alive_ms: int) -> Recovery:
    """Open every part on its rows and clean up after a crash.

    `alive_ms` is a sign of life that may be later than the last heartbeat. Raises `DamagedRows` for
    rows that everything depends on. The last batch is not written yet on return.
    """
    database = assembly.database
    store = database.store
    assembly.history.recorder.begin(database.boot, now, store)
    database.log.open(now)
    assembly.history.publishes.begin(database.log.end)
    assembly.history.sessions.booted(store, assembly.core.settings.member)
    database.due.open()
    assembly.bans.open()
    assembly.sessions.open()
    assembly.delivery.groups.open()
    _drop_deserted_groups(assembly)
    forgotten = assembly.feeds.open()
    heartbeat = store.get(META, HEARTBEAT_KEY)
    if heartbeat is not None:
        alive_ms = max(alive_ms, Heartbeat.decode(heartbeat).broker_ms)
    were_connected = _settle_connections(assembly, alive_ms)
    assembly.feeds.crashed(alive_ms)
    assembly.housekeeping.open()
    totals = database.totals
    return Recovery(
        totals.sessions, len(assembly.routes), totals.retained, were_connected, forgotten
    )


def _drop_deserted_groups(assembly: Assembly) -> None:
    for group in assembly.delivery.groups.all():
        if not group.stored_members:
            assembly.sessions.end_if_empty(group)


def _settle_connections(assembly: Assembly, alive_ms: int) -> int:
    """End the connections that a crash left in the store, in batches; return their number."""
    were_connected = 0
    damage = assembly.core.damage
    damages: list[DamagedRows] = []
    for key, value in scan_all(assembly.database.store, CONNECTIONS, b"", None, damages):
        client_id = key.decode()
        try:
            assembly.disconnects.recover(client_id, value, alive_ms)
        except DamagedRows as problem:
            damage.note("connection", problem, client_id)
        were_connected += 1
        if were_connected % RECOVER_SLICE == 0:
            assembly.writer.write()
    damage.note_all("connection", damages)
    return were_connected
