"""Does the loop rest only where many devices publish and none of them waits for us?"""

from collections.abc import Iterator

import pytest

from broker.loop.pace import COMPANY, EAGER_MS, WARY_MS, WINDOW_MS, Pace

LONG_AGO = -1_000_000
REST_MS = 2
# Messages in a window with which a rest has company.
MANY = int(COMPANY * WINDOW_MS / REST_MS)


@pytest.fixture
def pace() -> Iterator[Pace]:
    pace = Pace(REST_MS)
    yield pace
    assert not list(pace.invariants())


def window(pace: Pace, start: int, calm: int, eager: int = 0) -> int:
    """Let a window pass with so many messages; return when the next one begins."""
    for index in range(calm + eager):
        now = start + index * WINDOW_MS // (calm + eager)
        pace.published(now, now if index < eager else LONG_AGO)
    end = start + WINDOW_MS
    pace.look(end)
    return end


def test_an_idle_broker_answers_at_once(pace: Pace) -> None:
    now = 1000
    for _ in range(10):
        now = window(pace, now, calm=1)
        assert pace.rest_s == 0


def test_the_loop_rests_while_many_devices_publish(pace: Pace) -> None:
    now = window(pace, 1000, calm=MANY)
    assert pace.rest_s == REST_MS / 1000
    window(pace, now, calm=0)
    assert pace.rest_s == 0


def test_a_rest_that_has_begun_goes_on_with_half_of_the_messages(pace: Pace) -> None:
    now = window(pace, 1000, calm=MANY // 2)
    assert pace.rest_s == 0
    now = window(pace, now, calm=MANY)
    now = window(pace, now, calm=MANY // 2 + 1)
    assert pace.rest_s == REST_MS / 1000
    window(pace, now, calm=MANY // 2 - 1)
    assert pace.rest_s == 0


def test_nobody_who_waits_for_an_answer_is_kept_waiting(pace: Pace) -> None:
    """Its next message comes right after our answer to the last one."""
    window(pace, 1000, calm=0, eager=100 * MANY)
    assert pace.rest_s == 0


def test_one_eager_client_among_many_ends_the_rest_for_a_while(pace: Pace) -> None:
    now = window(pace, 1000, calm=MANY)
    assert pace.rest_s > 0
    now = window(pace, now, calm=MANY, eager=2)
    begun = now
    while now < begun + WARY_MS:
        assert pace.rest_s == 0
        now = window(pace, now, calm=MANY)
    assert pace.rest_s > 0


def test_a_message_is_eager_within_moments_of_our_last_packet(pace: Pace) -> None:
    for sent, rests in ((EAGER_MS - 1, False), (EAGER_MS, True)):
        pace = Pace(REST_MS)
        pace.look(1000)
        for _ in range(MANY):
            pace.published(1001, 1001 - sent)
        pace.look(1000 + WINDOW_MS)
        assert (pace.rest_s > 0) is rests


def test_messages_before_a_pause_do_not_count_for_long(pace: Pace) -> None:
    """They are spread over the time since they were counted, however late that is looked at."""
    pace.look(1000)
    for _ in range(MANY):
        pace.published(1001, LONG_AGO)
    pace.look(1000 + 10 * WINDOW_MS)
    assert pace.rest_s == 0


def test_without_a_pace_there_is_no_rest() -> None:
    pace = Pace(0)
    now = 1000
    for _ in range(5):
        now = window(pace, now, calm=100 * MANY)
        assert pace.rest_s == 0
