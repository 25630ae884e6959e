"""What a node loads while it follows, so that its clients do not wait for it when it leads.

That is the index of the filters of all sessions: page by page from its database, and kept as
batches are applied. Read next: `session.routing.loading`, `broker.cluster.member` (`Database`).
"""

from collections.abc import Callable, Sequence
from typing import Final

from session.routing.loading import FilterLoad
from storage.api import Store
from storage.errors import StorageError
from storage.replicated.batch_codec import Operation
from storage.tables.tables import FILTERS


class Preparation:
    """The filters of a database, as far as they are loaded."""

    def __init__(self, base: Store, failed: Callable[[StorageError], None]) -> None:
        """`failed` is told once of rows that cannot be read: the broker's start tries again."""
        self.filters: Final = FilterLoad()
        self._base: Final = base
        self._failed: Final = failed
        self._has_failed: bool = False

    @property
    def is_over(self) -> bool:
        """Whether there is nothing to load, now or later."""
        return self._has_failed or self.filters.is_complete

    def step(self, count: int) -> bool:
        """Load at most `count` rows more; return whether there may be more now."""
        if self.is_over or FILTERS not in self._base.families():  # which come from the log
            return False
        self._try(lambda: self.filters.load(self._base, count))
        return not self.is_over

    def applied(self, operations: Sequence[Operation]) -> None:
        """Take a batch that the database has now; it may be told again."""
        if not self._has_failed:
            self._try(lambda: self._take(operations))

    def _take(self, operations: Sequence[Operation]) -> None:
        for operation in operations:
            if len(operation) == 3:
                if operation[0] == FILTERS:
                    self.filters.changed(operation[1], operation[2])
            elif operation[1] == FILTERS:
                self.filters.forget()

    def _try(self, call: Callable[[], None]) -> None:
        try:
            call()
        except StorageError as problem:
            self._has_failed = True
            self.filters.forget()
            self._failed(problem)
