"""The work whose instructions bench/stores.py counts: every message arrives, in every case."""

import pytest

from bench.engine_work import PACKET_IDS, PAYLOAD, RULES, TOPIC, Pair
from bench.store_goals import STATES
from bench.stores import COUNTED_WORKS, turned


@pytest.mark.parametrize("rule", [None, *RULES])
@pytest.mark.parametrize("is_durable", [False, True])
@pytest.mark.parametrize(("qos", "window"), [(0, 100), (1, 1), (1, 100)])
def test_every_message_arrives(qos: int, window: int, rule: str | None, is_durable: bool) -> None:
    pair = Pair(qos, rule, is_durable=is_durable)
    before = pair.wire.size
    pair.publish(300, window)
    head = 5 if len(TOPIC) + len(PAYLOAD) > 122 else 4  # of a PUBLISH at QoS 0
    assert pair.wire.size - before == 300 * (head + len(TOPIC) + len(PAYLOAD) + 2 * qos)
    stored = pair.engine.counters.messages_stored
    assert stored == (300 if qos and (is_durable or rule == "all") else 0)


def test_what_is_counted_fits_the_packet_ids() -> None:
    pair = Pair(1, None, is_durable=False)
    with pytest.raises(SystemExit, match="too many messages"):
        pair.publish(PACKET_IDS + 100, 100)


def test_the_works_differ() -> None:
    assert len(set(COUNTED_WORKS.values())) == len(COUNTED_WORKS)


def test_every_case_of_a_round_is_the_first_one_in_turn() -> None:
    orders = [turned(STATES, number) for number in range(len(STATES))]
    assert [order[0] for order in orders] == list(STATES)
    assert all(sorted(order) == sorted(STATES) for order in orders)
