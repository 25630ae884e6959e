"""One client's log beside its rows: each lie is named by its invariant, and a crash excuses."""

from audit.clients.judgement import Finding, judge
from tests.audit.clients.logbook import Logbook, lives_of, rows_of
from tests.audit.conftest import History


def found(history: History, client: Logbook) -> list[Finding]:
    """Return the findings of one client."""
    rows = rows_of(history, client.client_id)
    return judge(client.records, rows, lives_of(history)).findings


def said(history: History, client: Logbook) -> list[tuple[str, bool, int]]:
    """Return (invariant, certain, count) of each finding."""
    return [(each.invariant, each.certain, each.count) for each in found(history, client)]


def begun(*, present: bool = False) -> tuple[History, Logbook]:
    """Return a history in which one client has connected and published two messages."""
    history = History()
    history.boot()
    client = Logbook(history, "c", 1 << 40 | 1)
    client.connect(present=present)
    client.publish(1, "t", "one")
    client.publish(2, "t", "two", qos=2)
    return history, client


def crash(history: History) -> None:
    """Let the broker die and start again."""
    history.now += 3.0
    history.boot()


def test_a_log_that_agrees_with_its_rows_accuses_nobody() -> None:
    history, client = begun()
    client.receive(1, "t", "one")
    client.receive(2, "t", "two", qos=2)
    crash(history)
    client.connect(present=True)
    client.publish(3, "t", "three")
    client.receive(3, "t", "three")
    judged = judge(client.records, rows_of(history, "c"), lives_of(history))
    assert judged.findings == []
    assert judged.checked == {"C1": 3, "C2": 6, "C3": 1, "C4": 2}
    assert [record["event"] for record, _ in judged.pairs] == [
        *("connected", "published", "published", "received", "received"),
        *("connected", "published", "received"),
    ]


def test_an_acknowledged_message_that_the_history_lacks_is_named() -> None:
    history, client = begun()
    client.publish(3, "t", "lost", row=False)
    client.publish(4, "t", "four")
    (finding,) = found(history, client)
    assert (finding.invariant, finding.certain, finding.durable) == ("C1", True, False)
    assert (finding.topic, finding.pid, finding.n) == ("t", 3, 6)
    assert (finding.node, finding.from_gseq, finding.to_gseq) == ("n1", 1 << 40 | 5, 1 << 40 | 7)


def test_over_a_crash_only_what_was_promised_may_be_missed() -> None:
    history, client = begun()
    client.publish(3, "t", "lost", row=False)
    client.publish(4, "nobody", "unwanted", row=False, reason=16)
    crash(history)
    client.connect(present=True)
    client.publish(5, "t", "five")
    (finding,) = found(history, client)
    assert (finding.pid, finding.certain, finding.durable) == (3, True, True)


def test_what_lies_behind_the_last_row_of_the_history_is_unknown() -> None:
    history, client = begun()
    client.publish(3, "t", "not exported yet", row=False)
    assert said(history, client) == [("C1", False, 1)]


def test_a_message_that_was_refused_is_not_missed() -> None:
    history, client = begun()
    client.publish(3, "t", "refused", row=False, reason=0x97)
    client.publish(4, "t", "four")
    assert said(history, client) == []


def test_of_equal_messages_so_many_are_missed_as_there_are_too_few_rows() -> None:
    history, client = begun()
    for row in (True, False, True, False):
        client.publish(9, "t", "same", row=row)
    client.publish(4, "t", "four")
    assert said(history, client) == [("C1", True, 2)]


def test_a_connection_to_another_broker_proves_nothing() -> None:
    history, client = begun()
    client.connect(present=False, row=False, server="elsewhere:1883")
    client.publish(3, "t", "there", row=False)
    client.connect(present=True)
    client.publish(4, "t", "four")
    assert [each for each in said(history, client) if each[0] == "C1"] == [("C1", False, 1)]
    client.records[5]["server"] = "broker:1883"  # now it says that it was this one
    assert [each for each in said(history, client) if each[0] == "C1"] == [("C1", True, 1)]


def test_what_was_received_must_be_recorded_as_sent_but_for_a_crash() -> None:
    history, client = begun()
    client.receive(1, "t", "one")
    client.receive(2, "t", "two", row=False)
    client.receive(3, "$SYS/uptime", "3", row=False)
    client.publish(4, "t", "four")
    assert said(history, client) == [("C2", True, 1)]
    client.receive(5, "t", "cut off", row=False)
    crash(history)
    client.connect(present=True)
    assert said(history, client) == [("C2", True, 1), ("C2", False, 1)]


def test_what_was_received_twice_under_one_identifier_and_sent_once_is_named() -> None:
    history, client = begun()
    client.receive(2, "t", "two", qos=2)
    client.receive(2, "t", "two", qos=2, row=False)
    client.publish(4, "t", "four")
    assert said(history, client) == [("C2", True, 1), ("C3", True, 1)]


def test_a_message_sent_again_at_qos_2_and_shown_once_is_no_double() -> None:
    history, client = begun()
    own = {"msg": 2, "pid": 2, "qos": 2}
    client.tell("msg_delivered", **own, dup=False, retain=False, attempt=1)
    crash(history)
    client.connect(present=True)
    client.receive(2, "t", "two", qos=2)
    assert said(history, client) == []


def test_an_acknowledgement_of_what_the_client_never_saw_is_named() -> None:
    history, client = begun()
    for msg in (3, 4, 5):
        client.publish(msg, "t", "x", log=False)
    client.receive(3, "t", "x")
    client.receive(4, "t", "x", log=False)
    client.receive(5, "t", "x")
    (finding,) = found(history, client)
    assert (finding.invariant, finding.pid, finding.certain) == ("C2", 4, True)


def test_a_log_with_a_hole_does_not_say_what_a_client_never_saw() -> None:
    history, client = begun()
    for msg in (3, 4, 5):
        client.publish(msg, "t", "x", log=False)
    client.receive(3, "t", "x")
    client.receive(4, "t", "x")
    del client.records[-1]
    client.records.append(dict(client.records[-1], n=8, pid=5))
    client.receive(5, "t", "x", log=False)
    assert said(history, client) == []


def test_session_present_is_compared_connection_by_connection() -> None:
    history, client = begun()
    crash(history)
    client.connect(present=True)
    client.records[-1]["session_present"] = False
    (finding,) = found(history, client)
    assert (finding.invariant, finding.certain, finding.n) == ("C4", True, 6)
    assert finding.what == "CONNACK said Session Present 0, the history the opposite"


def test_a_connack_that_was_lost_leaves_the_others_comparable_by_the_clock() -> None:
    history, client = begun()
    for wait in (20.0, 40.0):
        history.now += wait
        client.connect(present=True)
    del client.records[-2]  # the client never got that CONNACK
    assert said(history, client) == []
    client.records[-1]["session_present"] = False
    assert said(history, client) == [("C4", True, 1)]


def test_the_clock_of_a_client_may_be_wrong() -> None:
    history, client = begun()
    crash(history)
    client.connect(present=True)
    client.publish(3, "t", "three")
    for record in client.records:
        record["at_us"] -= 7_200_000_000
    assert said(history, client) == []


def test_a_client_of_which_the_history_has_nothing_is_unknown() -> None:
    history = History()
    history.boot()
    client = Logbook(history, "stranger", 1 << 40 | 9)
    client.connect(present=False, row=False)
    client.publish(1, "t", "one", row=False)
    assert said(history, client) == [("C4", False, 1), ("C1", False, 1)]
