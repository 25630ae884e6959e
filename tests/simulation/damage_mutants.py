"""Planted bugs in what is done about damaged rows.

Read next: `tests.simulation.planting`.
"""

from typing import Any

from session.delivery.backlog import Backlog
from session.routing.loading import FilterLoad
from storage.log.cursor import Cursor
from storage.log.layouts.block_reader import BlockReader
from storage.tables.tables import FILTERS, decode_filter, scan_all
from tests.simulation.planting import Patcher, mutant


@mutant("damage", seeds=60)
def rest_behind_a_damaged_message_is_skipped(patch: Patcher) -> None:
    """Everything behind a damaged block is lost with it."""

    def around(original: Any, self: Any, reader: Any) -> int:
        count: int = original(self, reader)
        reader.position = self.position = self._generations.end
        self._reader, self._number = None, 0
        return count

    patch.wrap(Cursor, "_note_damage", around)


@mutant("damage", start=55, seeds=100)
def neighbour_of_a_damaged_block_comes_twice(patch: Patcher) -> None:
    """What is read beside a damaged block is delivered two times."""

    def around(original: Any, self: Any, count: int, upto: int, scan_max: int) -> Any:
        messages = original(self, count, upto, scan_max)
        return [messages[0], *messages] if self.damage is not None and messages else messages

    patch.wrap(BlockReader, "next", around)


@mutant("damage", seeds=60)
def damaged_messages_are_not_counted(patch: Patcher) -> None:
    """Messages are lost in damaged rows, and nobody is told."""

    def pass_over(self: Any, connection: Any, session: Any, cursor: Any) -> None:
        cursor.lost.clear()

    patch.set(Backlog, "_pass_over", pass_over)


@mutant("damage", seeds=60)
def damaged_filter_is_passed_over(patch: Patcher) -> None:
    """The broker starts without a filter whose row is damaged: nobody gets what matches it."""

    def finish(self: Any, store: Any) -> None:
        for key, value in scan_all(store, FILTERS, b"", None, []):
            self._lay(key.decode(), *decode_filter(value))

    patch.set(FilterLoad, "finish", finish)
