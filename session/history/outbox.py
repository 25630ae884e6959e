"""The history's rows in the store, seen by whoever exports them: how much waits, and its deletion.

Everything asked for here goes into the batch of the present tick; the shell ticks after it. Pure.
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
from storage.tables.tables import BOOT_KEY, HISTORY, META, encode_boot

_CHECKPOINT: Final = CHECKPOINT | HAS_POSITION | ADMIN << ACTOR_SHIFT


class Outbox:
    """What the exporter may ask of the engine, on the engine's thread."""

    def __init__(self, tick: Tick, recorder: Recorder, log: MessageLog, settings: Settings) -> None:
        self._tick: Final = tick
        self._recorder: Final = recorder
        self._log: Final = log
        self._settings: Final = settings

    @property
    def boot(self) -> int:
        """The number of this start of the broker."""
        return self._recorder.boot

    @property
    def level(self) -> int:
        """The level in force."""
        return self._recorder.level

    @property
    def events(self) -> int:
        """How many events this boot has recorded."""
        return self._recorder.events

    @property
    def suppressed(self) -> int:
        """How many it has lost unexported, and at most has not recorded: those of gaps.

        The latter are not counted one by one: so often a message passed a stage of the books.
        """
        return self._recorder.suppressed

    @property
    def size_bytes(self) -> int:
        """The bytes of this boot's rows in the store."""
        return self._recorder.outbox_bytes

    def trim(self, boot: int, first_seqs: Sequence[int], size: int) -> None:
        """Delete rows that are exported, `size` bytes of them."""
        batch = self._tick.batch
        for first_seq in first_seqs:
            batch.append((HISTORY, history_key(boot, first_seq), None))
        recorder = self._recorder
        if boot == recorder.boot:
            recorder.trimmed(size)
            # The next boot says how far the disk has the history of this one: its rows may be gone.
            batch.append((META, BOOT_KEY, encode_boot(boot, recorder.seq)))

    def discard(
        self, boot: int, first_seqs: Sequence[int], size: int, *, count: int, told: int
    ) -> None:
        """Delete rows that nobody exported, `count` events, and record that in the same batch.

        `told` events more were thrown away before, as these rows tell: they have to be told again.
        """
        self.trim(boot, first_seqs, size)
        self._recorder.lost(count, told, OUTBOX_TRIMMED, self._tick.now, self._log.end)

    def lower(self, level: int, sample: int) -> None:
        """Record no more than `level` from now on, of messages one in `sample`; record that."""
        self._recorder.change(level, sample, OUTBOX_FULL, self._tick.now, self._log.end)

    def restore(self) -> None:
        """Record what is configured again, and how much was left out."""
        settings = self._settings
        sample = max(1, settings.history_sample)
        self._recorder.change(
            settings.history_level, sample, OUTBOX_FULL, self._tick.now, self._log.end
        )

    def copied(self, milliseconds: int) -> None:
        """A copy of the database was made: this is the first event that it does not have."""
        recorder = self._recorder
        if recorder.is_on:
            recorder.at(self._tick.now)
            recorder.put(_CHECKPOINT, 0, 0, recorder.words(f"{milliseconds} ms"), self._log.end)
