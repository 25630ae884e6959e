"""What the garbage collector never looks at again, and when."""

import gc

from broker.process.collector import FROZEN_AT, freeze_if_grown


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
