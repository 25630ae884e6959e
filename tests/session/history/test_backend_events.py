"""Are the events of external stores in the history as they were told?"""

import pytest

from session.history.backend_events import BackendEvents
from storage.history.events import BACKLOG_FULL, CONFIRMED
from tests.session.harness import Broker
from tests.session.told import Told, told


def events(broker: Broker) -> BackendEvents:
    """Return what records them."""
    return broker.engine.feeds._counts._history


def only(broker: Broker, name: str) -> Told:
    """Return the one event of a name, without what is null."""
    broker.advance(s=2)
    (event,) = told(broker, name)
    return {key: value for key, value in event.items() if value is not None}


def test_a_range_has_its_minute_its_ends_and_its_checksums() -> None:
    broker = Broker()
    with broker.one_tick():
        events(broker).told("cache", CONFIRMED, 120_000, 5, 9, [2, 14, 106])
    event = only(broker, "backend_told")
    assert (event["backend"], event["reason"], event["bin"]) == ("cache", CONFIRMED, 120_000_000)
    assert (event["msg"], event["msg_last"], event["count"]) == (5, 9, 2)
    assert (event["check1"], event["check2"]) == (14, 106)


def test_a_gap_counts_nothing() -> None:
    broker = Broker()
    with broker.one_tick():
        events(broker).gap("cache", BACKLOG_FULL, 5, 9)
    event = only(broker, "backend_gap")
    assert (event["reason"], event["msg"], event["msg_last"]) == (BACKLOG_FULL, 5, 9)
    assert event["count"] == 0


def test_an_opened_store_has_as_many_filters_as_it_says() -> None:
    broker = Broker()
    with broker.one_tick():
        events(broker).opened("cache", 7, {"a/#": 3})
        events(broker).forgotten("old", 9)
    assert only(broker, "backend_opened")["count"] == 1
    follows = only(broker, "backend_follows")
    assert (follows["tfilter"], follows["position"], follows["backend"]) == ("a/#", 3, "cache")
    assert only(broker, "backend_forgotten")["position"] == 9


@pytest.mark.parametrize("detail", ["sessions", "books", "sampled:1/9", "full"])
def test_every_level_has_them(detail: str) -> None:
    broker = Broker(history_detail=detail)
    with broker.one_tick():
        events(broker).gap("cache", BACKLOG_FULL, 5, 9)
    assert only(broker, "backend_gap")["backend"] == "cache"
