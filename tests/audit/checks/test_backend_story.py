"""Is every fault in what stores were told found, and nothing in histories without one?"""

from types import SimpleNamespace
from typing import Any

import pytest

from audit.checks.backend_story import Stored, Verdicts, judge, stories
from audit.input.events import gseq
from storage.history.events import COLUMNS, NAMES_HASHED, UNREADABLE
from tests.audit.checks.mirrored import FAULTS, Mirrored
from tests.audit.checks.test_backend_counting import count

SEEDS = range(40)
NAMES = [name for name, _ in COLUMNS]


def nowhere(node: str, start: int, end: int, with_messages: bool) -> bool:
    """Say that the history has no gap."""
    return False


def rows_of(history: Mirrored, *, carried: bool = False) -> list[Any]:
    """Return the rows about stores as Spark gives them."""
    found = []
    for row in history.rows:
        if str(row["ev"]).startswith("backend"):
            values: dict[str, Any] = dict.fromkeys(NAMES) | row
            place = gseq(values["boot"], values["seq"])
            found.append(Row(values | {"gseq": place, "carried": carried}))
    return found


class Row(SimpleNamespace):
    """A row with attributes and names, as in Spark."""

    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__(**values)

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)


def judged(history: Mirrored) -> Verdicts:
    """Judge a history without gaps."""
    told = stories(rows_of(history))
    return judge(told, count(history, told), nowhere)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_sound_history_balances(seed: int) -> None:
    history = Mirrored(seed).play()
    found = judged(history)
    assert (found.witnesses, found.unknown) == ([], 0)
    ranges = {(row["backend"], row["msg"]) for row in history.rows if row["ev"] == "backend_told"}
    assert found.checked and found.checked <= len(ranges)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_where_it_is(fault: str, seed: int) -> None:
    history = Mirrored(seed).play()
    row = FAULTS[fault](history)
    found = judged(history)
    assert found.witnesses
    for witness in found.witnesses:
        assert witness["backend"] == row["backend"]
        assert witness["next"] == f"holdfast backend verify {row['backend']}"


def test_an_unbalanced_minute_says_its_numbers() -> None:
    history = Mirrored(7, stores=1).play()
    row = FAULTS["message_is_missing"](history)
    (witness,) = judged(history).witnesses
    assert witness["what"] == "a mirrored minute does not balance"
    minute = row["bin"]
    assert witness["minute"] == minute.isoformat()  # type: ignore[attr-defined]
    told = sum(int(str(witness[name])) for name in ("confirmed", "dead_lettered", "refused"))
    assert witness["stored"] == told + 1
    assert (witness["first_message"], witness["last_message"]) == (row["msg"], row["msg_last"])


@pytest.mark.parametrize("fault", FAULTS)
def test_what_touches_a_gap_of_the_history_is_unknown(fault: str) -> None:
    history = Mirrored(3).play()
    FAULTS[fault](history)
    told = stories(rows_of(history))
    found = judge(told, count(history, told), lambda *where: True)
    assert not found.witnesses and found.unknown


def test_hashed_names_cannot_be_balanced() -> None:
    history = Mirrored(3).play()
    FAULTS["message_is_missing"](history)
    for row in history.rows:
        if row["ev"] == "backend_opened":
            row["reason"] = NAMES_HASHED
    found = judged(history)
    assert not found.witnesses and found.unknown


def test_a_range_with_unreadable_messages_cannot_be_balanced() -> None:
    history = Mirrored(3, stores=1).play()
    row = FAULTS["message_is_missing"](history)
    first = int(str(row["msg"]))
    history.gap(history.stores[0], UNREADABLE, first, first)
    found = judged(history)
    assert not found.witnesses and found.unknown == 1


def test_a_missing_filter_makes_unknown_and_not_guilty() -> None:
    history = Mirrored(5, stores=1).play()
    history.rows = [row for row in history.rows if row["ev"] != "backend_follows"]
    found = judged(history)
    assert not found.witnesses and found.unknown


def test_what_an_earlier_batch_has_judged_is_not_judged_again() -> None:
    history = Mirrored(7).play()
    FAULTS["message_is_missing"](history)
    told = stories(rows_of(history, carried=True))
    found = judge(told, count(history, told), nowhere)
    assert (found.checked, found.unknown, found.witnesses) == (0, 0, [])


def test_a_store_that_went_and_came_again_begins_anew() -> None:
    history = Mirrored(1, stores=1).play()
    store = history.stores[0]
    history.row("backend_forgotten", backend=store.name, position=store.upto)
    history.publish()
    store.filters, store.upto = {}, history.end
    store.counted = history.end
    history.start()
    found = judged(history)
    assert not found.witnesses


def test_what_was_told_again_counts_apart() -> None:
    history = Mirrored(2, stores=1).play()
    before = judged(history)
    history.forget(history.stores[0])
    (story,) = stories(rows_of(history))
    assert story.told_again and story.lost_there
    assert judged(history).witnesses == before.witnesses == []


def test_nothing_is_told_of_nothing() -> None:
    found = judge(stories([]), {}, nowhere)
    assert (found.checked, found.unknown, found.witnesses) == (0, 0, [])
    assert Stored().count == 0
