"""What is kept of a check, and what is booked for the run."""

from conformance.failure import Violation
from conformance.record import LINES_MAX, Ledger, Line, Record


def test_a_violation_is_booked_on_every_statement_it_breaks() -> None:
    ledger = Ledger()
    record = Record(ledger, version=5, check="MQTT-1.1.1-1")
    record.violation(
        "a", Violation(("B-2", "A-1"), "too long", packet=b"\x30\x00", expected="less")
    )
    assert [(b.version, b.statement, b.check) for b in ledger.bookings()] == [
        (5, "A-1", "MQTT-1.1.1-1"),
        (5, "B-2", "MQTT-1.1.1-1"),
    ]
    assert ledger.bookings()[0].packet == b"\x30\x00"
    assert record.lines[-1].data == b"\x30\x00"
    assert [str(line) for line in ledger.bookings()[0].lines] == [str(record.lines[-1])]


def test_only_the_last_lines_of_an_exchange_are_kept() -> None:
    record = Record(Ledger(), version=5, check="c")
    for number in range(LINES_MAX + 5):
        record.sent("a", b"", str(number))
    assert len(record.lines) == LINES_MAX
    assert record.lines[-1].text == str(LINES_MAX + 4)


def test_cleaning_up_is_not_part_of_the_exchange() -> None:
    record = Record(Ledger(), version=5, check="c")
    record.received("a", b"\xd0\x00", "PINGRESP")
    record.freeze()
    record.note("a", "closes the connection")
    assert [line.text for line in record.lines] == ["PINGRESP"]


def test_a_long_packet_is_cut_when_shown() -> None:
    assert Line(0.0, "a", "->", "x", b"\x01\x02").hex() == "01 02"
    assert Line(0.0, "a", "->", "x", bytes(200)).hex().endswith("00 … (200 bytes)")
