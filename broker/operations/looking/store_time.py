"""The broker time of a store, and what a wall clock shows at it.

Times on disk are broker time. The last heartbeat tells the wall-clock time that belongs to it. Read
next: `storage.time.broker_clock`.
"""

from datetime import UTC, datetime

from storage.api import Store
from storage.tables.tables import META
from storage.time.broker_clock import HEARTBEAT_KEY, Heartbeat, resume


class StoreTime:
    """Converts the times of one store."""

    def __init__(self, store: Store, wall_ms: int, boot_id: str, boottime_ms: int) -> None:
        """Read the last heartbeat; the clocks show the other values now. Raises `StorageError`."""
        value = store.get(META, HEARTBEAT_KEY) if META in store.families() else None
        self._heartbeat = None if value is None else Heartbeat.decode(value)
        # What the broker takes for now, or would if it was started now.
        self.now_ms: int = resume(self._heartbeat, wall_ms, boot_id, boottime_ms)

    def text(self, broker_ms: int) -> str | None:
        """Return a broker time as ISO 8601 in UTC, None for 0, which is "not" or "never".

        One that no calendar has is returned as the number of milliseconds.
        """
        if not broker_ms:
            return None
        wall_ms = broker_ms
        if self._heartbeat is not None:
            wall_ms += self._heartbeat.wall_ms - self._heartbeat.broker_ms
        try:
            moment = datetime.fromtimestamp(wall_ms / 1000, UTC)
        except (OverflowError, ValueError):
            return f"{wall_ms} ms"
        return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
