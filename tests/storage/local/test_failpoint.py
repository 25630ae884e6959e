"""Which failpoints can be armed. That they kill is tested where they are: test_writer.py."""

import pytest

from storage.local import failpoint


@pytest.mark.parametrize("spec", ["", "nowhere", ":3", "before_write:0", "before_write:x"])
def test_a_failpoint_that_is_none_is_named(spec: str) -> None:
    with pytest.raises(ValueError, match="expected NAME"):
        failpoint.arm(spec)


def test_passing_other_places_does_not_count() -> None:
    failpoint.arm("after_sync_before_reply:1")
    try:
        assert failpoint.hook is not None
        failpoint.hook(failpoint.BEFORE_WRITE)
        failpoint.hook(failpoint.AFTER_WRITE_BEFORE_SYNC)
    finally:
        failpoint.disarm()
    assert failpoint.hook is None
