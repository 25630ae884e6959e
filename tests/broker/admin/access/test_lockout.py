"""Who fails too often has to wait, longer each time; tables are bounded."""

from broker.admin.access.lockout import (
    ADDRESS_FAILURES_MAX,
    FIRST_S,
    FORGET_S,
    LONGEST_S,
    NAME_FAILURES_MAX,
    Lockout,
    Table,
)


def test_the_wait_begins_after_some_failures_and_doubles_up_to_a_limit() -> None:
    table = Table(3)
    waits = []
    for _ in range(12):
        table.failed("ann", 0.0)
        waits.append(table.wait_s("ann", 0.0))
    expected = [FIRST_S * 2**number for number in range(10)]
    assert waits == [0.0, 0.0, *(min(LONGEST_S, each) for each in expected)]
    assert table.wait_s("ann", LONGEST_S) == 0.0
    assert table.wait_s("bob", 0.0) == 0.0


def test_failures_are_forgotten_after_a_while_or_a_success() -> None:
    table = Table(2)
    table.failed("ann", 0.0)
    table.failed("ann", FORGET_S + 1)
    assert table.wait_s("ann", FORGET_S + 1) == 0.0
    table.failed("ann", FORGET_S + 2)
    assert table.wait_s("ann", FORGET_S + 2) == FIRST_S
    table.forget("ann")
    assert table.wait_s("ann", FORGET_S + 2) == 0.0


def test_a_table_holds_no_more_than_its_keys() -> None:
    table = Table(1, keys_max=3)
    for number in range(10):
        table.failed(str(number), float(number))
    assert len(table) == 3
    assert table.wait_s("9", 9.0) == FIRST_S
    assert table.wait_s("0", 9.0) == 0.0


def test_a_name_is_locked_from_everywhere_and_an_address_for_every_name() -> None:
    lockout = Lockout()
    for number in range(NAME_FAILURES_MAX):
        lockout.failed("ann", f"10.0.0.{number}", 0.0)
    assert lockout.wait_s("ann", "10.9.9.9", 0.0) > 0
    assert lockout.wait_s("bob", "10.0.0.1", 0.0) == 0
    for number in range(ADDRESS_FAILURES_MAX):
        lockout.failed(f"name-{number}", "10.1.1.1", 0.0)
    assert lockout.wait_s("carol", "10.1.1.1", 0.0) > 0
    assert lockout.wait_s("carol", "10.1.1.2", 0.0) == 0


def test_a_success_frees_the_name_and_not_the_address() -> None:
    lockout = Lockout()
    for number in range(ADDRESS_FAILURES_MAX):
        lockout.failed(f"name-{number % 4}", "10.1.1.1", 0.0)
    lockout.succeeded("name-1")
    assert lockout.wait_s("name-1", "10.2.2.2", 0.0) == 0
    assert lockout.wait_s("name-1", "10.1.1.1", 0.0) > 0


def test_all_addresses_of_an_ipv6_network_count_as_one() -> None:
    lockout = Lockout()
    for number in range(ADDRESS_FAILURES_MAX):
        lockout.failed(f"name-{number}", f"2001:db8::{number:x}", 0.0)
    assert lockout.wait_s("carol", "2001:db8::ffff", 0.0) > 0
    assert lockout.wait_s("carol", "2001:db8:0:1::1", 0.0) == 0
    assert lockout.wait_s("carol", "", 0.0) == 0
