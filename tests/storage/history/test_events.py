"""Do the words of the history fit what carries them, and each other?"""

from pathlib import Path

import pytest

from storage.history import events


@pytest.mark.parametrize(
    ("table", "limit"),
    [
        (events.EVENTS, 2**8),
        (events.ACTORS, 2**4),
        (events.REASONS, 2**15),
        (events.STAGES, 2**15),
    ],
)
def test_numbers_fit_their_bits_and_names_are_used_once(table: dict[int, str], limit: int) -> None:
    assert all(0 <= number < limit for number in table)
    assert len(set(table.values())) == len(table)


def test_every_event_actor_and_stage_has_its_constant() -> None:
    for number, name in events.EVENTS.items():
        assert getattr(events, name.upper()) == number
    for number, name in events.ACTORS.items():
        assert getattr(events, name.upper()) == number
    for number, name in events.STAGES.items():
        assert getattr(events, f"STAGE_{name.upper()}") == number


def test_own_reasons_are_no_reason_codes_of_mqtt() -> None:
    assert min(events.REASONS) >= 1000


def test_columns_have_a_name_each_and_a_type_that_is_known() -> None:
    names = [name for name, _ in events.COLUMNS]
    assert len(set(names)) == len(names)
    types = {kind for _, kind in events.COLUMNS}
    assert types == {"int8", "int16", "int32", "int64", "bool", "string", "dict", "time"}


def test_what_is_on_disk_is_never_renumbered() -> None:
    tables = (events.EVENTS, events.ACTORS, events.REASONS, events.STAGES)
    known = {f"{number} {name}" for table in tables for number, name in table.items()}
    golden = (Path(__file__).parents[1] / "golden" / "history-numbers.txt").read_text().splitlines()
    assert known >= set(golden), "numbers are only ever added"
    assert known == set(golden), "new numbers go into the golden file, too"


def test_columns_are_only_added_and_at_the_end() -> None:
    golden = (Path(__file__).parents[1] / "golden" / "history-columns.txt").read_text().splitlines()
    assert [f"{name} {kind}" for name, kind in events.COLUMNS] == golden
