"""The rows of the history in the store, for the exporter: their size, and their deletion.

Everything done here goes into the batch of the current tick; the shell ends a tick after it. Pure.
Read next: `session.history.recorder`, which writes the rows, and `broker.history.exporter`, which
calls this.
"""

from collections.abc import Sequence
from typing import Final

from session.history.recorder import Recorder
from session.live.tick import Tick
from session.settings import Settings
from storage.history.events import ADMIN, CHECKPOINT, OUTBOX_FULL, OUTBOX_TRIMMED
from storage.history.packed_rows import ACTOR_SHIFT, HAS_POSITION, history_key
from storage.log.message_log import MessageLog
from storage.tables.export_row import EXPORT_KEY, ExportProgress
from storage.tables.tables import BOOT_KEY, HISTORY, META, encode_boot

_CHECKPOINT: Final = CHECKPOINT | HAS_POSITION | ADMIN << ACTOR_SHIFT


class Outbox:
    """What the exporter may call, on the engine's thread."""

    def __init__(self, tick: Tick, recorder: Recorder, log: MessageLog, settings: Settings) -> None:
        self._tick: Final = tick
        self._recorder: Final = recorder
        self._log: Final = log
        self._settings: Final = settings

    @property
    def boot(self) -> int:
        """The number of this start of the broker; starts are counted."""
        return self._recorder.boot

    @property
    def level(self) -> int:
        """The level of detail in force."""
        return self._recorder.level

    @property
    def events(self) -> int:
        """How many events this boot has recorded."""
        return self._recorder.events

    @property
    def suppressed(self) -> int:
        """How many events are missing from the history of this boot.

        Those deleted before their export, and an upper bound of those not recorded during a gap:
        the number of times a message passed a stage of the books.
        """
        return self._recorder.suppressed

    @property
    def size_bytes(self) -> int:
        """The bytes of this boot's rows in the store."""
        return self._recorder.outbox_bytes

    def trim(self, boot: int, first_seqs: Sequence[int], size: int) -> None:
        """Delete rows that were exported, `size` bytes together."""
        batch = self._tick.batch
        for first_seq in first_seqs:
            batch.append((HISTORY, history_key(boot, first_seq), None))
        recorder = self._recorder
        if boot == recorder.boot:
            recorder.trimmed(size)
            # Lets the next boot record the last event of this one, whose rows may be deleted.
            batch.append((META, BOOT_KEY, encode_boot(boot, recorder.seq)))

    def note_progress(self, progress: ExportProgress) -> None:
        """Say how far the export is, for whoever goes on with this store."""
        self._tick.batch.append((META, EXPORT_KEY, progress.encode()))

    def discard(
        self, boot: int, first_seqs: Sequence[int], size: int, *, count: int, told: int
    ) -> None:
        """Delete rows that were not exported, `count` events, and record the gap.

        These rows record gaps of `told` events themselves: the new gap includes them.
        """
        self.trim(boot, first_seqs, size)
        self._recorder.lost(count, told, OUTBOX_TRIMMED, self._tick.now, self._log.end)

    def lower(self, level: int, sample: int) -> None:
        """Lower the level of detail to `level`, one message in `sample`, and record the gap."""
        self._recorder.change(level, sample, OUTBOX_FULL, self._tick.now, self._log.end)

    def restore(self) -> None:
        """Return to the configured level, and record how much was left out."""
        settings = self._settings
        sample = max(1, settings.history_sample)
        self._recorder.change(
            settings.history_level, sample, OUTBOX_FULL, self._tick.now, self._log.end
        )

    def detail_changed(self) -> None:
        """Record at the level that is configured now."""
        settings = self._settings
        sample = max(1, settings.history_sample)
        self._recorder.want(settings.history_level, sample, self._tick.now, self._log.end)

    def copied(self, milliseconds: int) -> None:
        """Record that the database was copied; the copy does not have this event."""
        recorder = self._recorder
        if recorder.is_on:
            recorder.at(self._tick.now)
            recorder.put(_CHECKPOINT, 0, 0, recorder.words(f"{milliseconds} ms"), self._log.end)
