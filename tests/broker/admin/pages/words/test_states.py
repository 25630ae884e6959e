"""Every state that a queue names has a word and a meaning."""

import pytest

from broker.admin.pages.words import states
from broker.operations.looking.why import STATES


@pytest.mark.parametrize("state", STATES)
def test_a_state_has_a_word_a_class_and_a_sentence(state: str) -> None:
    assert state in states.WORDS
    assert states.queue_kind(state).startswith("state ")
    assert states.queue_meaning(state) == STATES[state]


def test_what_is_in_flight_is_not_what_is_lost() -> None:
    assert states.queue_kind("sent") != states.queue_kind("expired")
    assert states.queue_kind("damaged") == "state bad"


def test_versions_and_times_of_delivery() -> None:
    assert [states.mqtt(version) for version in (3, 4, 5, 9)] == ["3.1", "3.1.1", "5.0", "9"]
    assert states.gets("later") == "when it is back"
    assert states.queue_word("new-state") == states.queue_meaning("new-state") == "new-state"
