"""When new durable state is refused, and when a refused batch is tried again."""

import pytest

from session.publish.store_health import RETRY_MS, STALL_RETRY_MS, StoreHealth
from storage.errors import Recoverable, WriteStalled

FULL = Recoverable("no space left on device")
STALL = WriteStalled("write stall")


def test_a_store_that_takes_everything_refuses_nothing() -> None:
    health = StoreHealth()
    assert health.refused_by is None and health.retry_ms is None and not health.refuses_new


@pytest.mark.parametrize(
    ("refusal", "retry_ms", "refuses_new"), [(FULL, RETRY_MS, True), (STALL, STALL_RETRY_MS, False)]
)
def test_a_full_disk_refuses_new_state_and_a_stall_only_delays(
    refusal: Recoverable, retry_ms: int, refuses_new: bool
) -> None:
    health = StoreHealth()
    health.refused(refusal, 1000)
    assert health.refused_by is refusal
    assert health.retry_ms == 1000 + retry_ms
    assert health.refuses_new is refuses_new
    health.recovered()
    assert health.refused_by is None and health.retry_ms is None and not health.refuses_new


def test_low_space_refuses_new_state_whatever_the_store_says() -> None:
    health = StoreHealth()
    health.note_disk_space(is_low=True)
    assert health.refuses_new and health.refused_by is None and health.retry_ms is None
    health.refused(STALL, 1000)
    assert health.refuses_new
    health.recovered()
    assert health.refuses_new
    health.note_disk_space(is_low=False)
    assert not health.refuses_new


def test_space_that_comes_back_does_not_hide_a_store_that_refuses() -> None:
    health = StoreHealth()
    health.note_disk_space(is_low=True)
    health.refused(FULL, 1000)
    health.note_disk_space(is_low=False)
    assert health.refuses_new
    health.recovered()
    assert not health.refuses_new


def test_a_stall_after_a_full_disk_takes_new_state_again() -> None:
    health = StoreHealth()
    health.refused(FULL, 1000)
    health.refused(STALL, 1100)
    assert not health.refuses_new and health.retry_ms == 1100 + STALL_RETRY_MS
