"""The books of a canary: what was promised and did not come, came twice, or came late."""

from broker.cli.canary.books import Books


def books() -> Books:
    """Return the books of two readers that are connected since second 0."""
    made = Books(("reader", "sleeper"), timeout_s=10)
    for name in ("reader", "sleeper"):
        made.connected(name, 0)
    return made


def sent(made: Books, *numbers: int, qos: int = 1) -> None:
    """Publish messages and acknowledge them, each in its own second."""
    for number in numbers:
        made.published(qos, number, number)
        made.acknowledged(qos, number, number)


def got(made: Books, name: str, number: int, *, qos: int = 1) -> list[str]:
    """Let a reader get a message half a second after it was sent; return the problems."""
    return list(made.received(name, qos, number, number + 0.5))


def overdue(made: Books, now: float, *, since: float | None = 0) -> list[str]:
    """Return what should have come by now."""
    return list(made.overdue(now, publisher_since=since))


def test_what_comes_in_order_and_in_time_is_no_problem() -> None:
    made = books()
    sent(made, 1, 2)
    for number in (1, 2):
        assert got(made, "reader", number) == got(made, "sleeper", number) == []
    assert (made.waiting(), made.unanswered(), overdue(made, 100)) == (0, 0, [])
    assert (made.sums.acknowledged, made.sums.received, made.sums.round_trip_max_s) == (2, 4, 0.5)


def test_what_was_acknowledged_and_does_not_come_is_lost_once() -> None:
    made = books()
    sent(made, 1)
    got(made, "sleeper", 1)
    assert overdue(made, 11) == []
    assert overdue(made, 11.1) == [
        "reader: message 1 at QoS 1 was acknowledged and did not come within 10 s"
    ]
    assert (overdue(made, 12), made.sums.lost) == ([], 1)


def test_a_reader_that_is_away_or_just_came_has_time() -> None:
    made = books()
    sent(made, 1)
    got(made, "reader", 1)
    made.disconnected("sleeper")
    assert overdue(made, 500) == []
    made.connected("sleeper", 500)
    assert overdue(made, 510) == []
    assert len(overdue(made, 511)) == 1


def test_a_message_twice_is_a_problem_at_qos_2_alone() -> None:
    made = books()
    sent(made, 1)
    sent(made, 1, qos=2)
    for qos in (1, 2):
        got(made, "reader", 1, qos=qos)
    assert got(made, "reader", 1) == []
    assert got(made, "reader", 1, qos=2) == ["reader: message 1 at QoS 2 came twice"]
    assert made.sums.doubled == 1


def test_a_message_behind_a_later_one_is_a_problem() -> None:
    made = books()
    sent(made, 1, 2)
    got(made, "reader", 2)
    assert got(made, "reader", 1) == ["reader: message 1 at QoS 1 came behind message 2"]
    sent(made, 1, qos=2)
    assert got(made, "reader", 1, qos=2) == []


def test_a_message_without_an_answer_is_told_once_and_owed_to_nobody() -> None:
    made = books()
    made.published(2, 1, 0)
    assert overdue(made, 11, since=None) == []
    assert overdue(made, 11, since=5) == []
    assert overdue(made, 16) == ["message 1 at QoS 2 was not acknowledged within 10 s"]
    assert (overdue(made, 17), made.waiting(), made.unanswered()) == ([], 0, 1)
    made.forget_unanswered()
    assert made.unanswered() == 0


def test_a_refused_message_is_owed_to_nobody_and_a_lost_session_loses_what_waits() -> None:
    made = books()
    made.published(1, 1, 0)
    made.refused(1, 1)
    sent(made, 2)
    made.forget("sleeper")
    assert (made.sums.lost, made.waiting()) == (1, 1)


def test_old_messages_are_forgotten() -> None:
    made = books()
    sent(made, *range(1, 50))
    for number in range(1, 50):
        got(made, "reader", number)
        got(made, "sleeper", number)
    overdue(made, 1000)
    assert not made._sent_at and not any(reader.got for reader in made._readers.values())
