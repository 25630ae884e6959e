"""Those that need generations are counted, and the ones that are owed most are named."""

from broker.operations.owing.pins import NAMES_MAX, SETS_MAX, Needing, Needs


def test_the_largest_are_named_and_all_are_counted() -> None:
    needing = Needing()
    for messages in (5, 1, 9, 7, 2):
        needing.add(messages, f"c{messages}")
    assert needing.count == 5
    assert needing.largest == [(9, "c9"), (7, "c7"), (5, "c5")]
    assert NAMES_MAX == 3


def test_equals_are_in_the_order_of_their_names() -> None:
    needing = Needing()
    for name in ("b", "c", "a"):
        needing.add(1, name)
    assert needing.largest == [(1, "a"), (1, "b"), (1, "c")]


def test_a_generation_is_needed_by_all_whose_set_has_it() -> None:
    needs = Needs()
    needs.add(0b011, 1, "x")
    needs.add(0b110, 2, "y")
    needs.add(0b110, 3, "z")
    needs.add(0, 4, "nothing")
    found = [needs.of(index) for index in range(4)]
    assert [each.count for each in found] == [1, 3, 2, 0]
    assert found[1].largest == [(3, "z"), (2, "y"), (1, "x")]
    needs.add(0b1000, 9, "late")
    assert needs.of(3).largest == [(9, "late")]
    assert needs.of(1).count == 3


def test_few_sets_are_remembered_and_nothing_is_forgotten() -> None:
    needs = Needs()
    for number in range(1, 2 * SETS_MAX):
        needs.add(number, number, str(number))
    bits = [sum(number >> bit & 1 for number in range(1, 2 * SETS_MAX)) for bit in range(13)]
    assert [needs.of(bit).count for bit in range(13)] == bits
    assert needs.of(0).largest[0] == (2 * SETS_MAX - 1, str(2 * SETS_MAX - 1))
