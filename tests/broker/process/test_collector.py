"""What the garbage collector never looks at again, and when."""

import asyncio
import gc
import weakref

from broker.process.collector import FROZEN_AT, GarbageCollector, freeze_if_grown


class Cycle:
    """An object that only a collection frees."""

    def __init__(self) -> None:
        self.itself = self


def test_garbage_of_the_start_is_freed_before_the_rest_is_frozen() -> None:
    before = gc.get_threshold()
    loop = asyncio.new_event_loop()
    gc.disable()
    try:
        garbage, kept = weakref.ref(Cycle()), Cycle()
        GarbageCollector().start(loop)
        assert garbage() is None
        assert gc.get_freeze_count() and not any(each is kept for each in gc.get_objects())
    finally:
        loop.close()
        gc.unfreeze()
        gc.enable()
        gc.set_threshold(*before)


def test_what_has_survived_is_frozen_only_when_it_is_much() -> None:
    before = gc.get_threshold()
    gc.collect()
    frozen = gc.get_freeze_count()
    try:
        gc.set_threshold(1000, 1000, 1000)
        freeze_if_grown()
        assert gc.get_freeze_count() == frozen
        grown = [[] for _ in range(1000 * (FROZEN_AT + 1))]  # type: ignore[var-annotated]
        freeze_if_grown()
        assert gc.get_freeze_count() >= frozen + 1000 * FROZEN_AT
        del grown
    finally:
        gc.unfreeze()
        gc.set_threshold(*before)
