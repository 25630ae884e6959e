"""Who gets which broker process, and that none is left."""

from pathlib import Path

import pytest

from conformance.adapters.base import AdapterError, Broker
from conformance.brokers import IDLE_MAX, Brokers
from conformance.failure import NotRun
from tests.conformance.conftest import ToyAdapter


def ids(*brokers: Broker) -> set[int]:
    return {id(broker) for broker in brokers}


def test_a_broker_of_ones_own_is_nobody_elses(toy: type[ToyAdapter], tmp_path: Path) -> None:
    brokers = Brokers(toy(), tmp_path)
    first, second = brokers.own({}), brokers.own({})
    assert len(ids(first, second)) == 2
    assert first.port != second.port
    brokers.end(first)
    assert not first.is_running
    assert second.is_running
    brokers.close()
    assert not second.is_running


def test_equal_options_share_a_broker(toy: type[ToyAdapter], tmp_path: Path) -> None:
    adapter = toy()
    brokers = Brokers(adapter, tmp_path)
    first = brokers.shared({"users": {"a": "1"}, "maximum_qos": 1})
    again = brokers.shared({"maximum_qos": 1, "users": {"a": "1"}})
    other = brokers.shared({"maximum_qos": 2})
    assert again is first
    assert other is not first
    assert len(adapter.options) == 2
    brokers.close()


def test_brokers_nobody_uses_are_ended_but_for_a_few(toy: type[ToyAdapter], tmp_path: Path) -> None:
    brokers = Brokers(toy(), tmp_path)
    kept = brokers.shared({"maximum_qos": 2})
    idle = [brokers.shared({"receive_maximum": n}) for n in range(IDLE_MAX + 1)]
    for broker in idle:
        brokers.give_back(broker)
    assert [broker.is_running for broker in idle] == [False] + [True] * IDLE_MAX
    assert kept.is_running
    assert brokers.shared({"receive_maximum": IDLE_MAX}) is idle[-1]
    brokers.close()


def test_a_shared_broker_that_died_is_replaced(toy: type[ToyAdapter], tmp_path: Path) -> None:
    brokers = Brokers(toy(), tmp_path)
    first = brokers.shared({"maximum_qos": 1})
    first.kill()
    second = brokers.shared({"maximum_qos": 1})
    assert second is not first
    assert second.is_running
    brokers.close()


def test_what_an_adapter_cannot_do_costs_nobody_anything(
    toy: type[ToyAdapter], tmp_path: Path
) -> None:
    brokers = Brokers(toy(), tmp_path)
    for _ in range(2):
        with pytest.raises(NotRun, match="cannot be configured"):
            brokers.shared({"maximum_qos": 0})
    with pytest.raises(ValueError, match="unknown options"):
        brokers.own({"colour": "green"})
    brokers.close()


def test_a_broker_that_does_not_start_is_an_error_with_its_last_words(
    toy: type[ToyAdapter], tmp_path: Path
) -> None:
    brokers = Brokers(toy("late"), tmp_path)
    with pytest.raises(AdapterError, match="toy ended with 1: the disk is on fire"):
        brokers.own({})
    brokers.close()


def test_after_the_end_nothing_is_started(toy: type[ToyAdapter], tmp_path: Path) -> None:
    brokers = Brokers(toy(), tmp_path)
    brokers.close()
    with pytest.raises(AdapterError, match="over"):
        brokers.own({})
