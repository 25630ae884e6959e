"""What became of a message or of a session, in sentences."""

from pathlib import Path

import pytest

from audit.lookup import explain
from audit.lookup.history import History


@pytest.fixture
def told(tmp_path: Path, history) -> History:
    """A message for two sessions, a crash, a session that ends, and its client on another node."""
    history.boot()
    reader, slow = history.session("reader", 1), history.session("slow", 2)
    giver = history.session("giver", 3)
    for client in (reader, slow, giver):
        client.create()
    reader.subscribe("a/#")
    giver.row("msg_accepted", msg=5, topic="a/1", pub_qos=1, bytes=9)
    history.row("msg_persisted", msg=5)
    giver.row("pub_acked", msg=5, pid=3)
    history.row("msg_enqueued", msg=5, stream=2)
    reader.row("msg_delivered", msg=5, qos=1, pid=1, attempt=1)
    slow.row("msg_delivered", msg=5, qos=1, pid=1, attempt=1)
    slow.row("msg_dropped", msg=3, msg_last=9, count=4, reason=1020)
    history.boot()
    reader.resume()
    reader.row("msg_delivered", msg=5, qos=1, pid=1, attempt=2, dup=True)
    reader.row("msg_acked", msg=5, pid=1)
    reader.leave()
    reader.expire(wait=3600)
    history.node = "n2"
    history.boot()
    history.session("reader", 1).create(wait=60)
    history.write(tmp_path / "h")
    return History(str(tmp_path / "h"))


def test_a_message_is_followed_to_every_session_and_to_its_end(told: History) -> None:
    lines = explain.message(told, 5)
    text = "\n".join(lines)
    assert lines[0] == "message 5 on node n1:"
    assert "  published by 'giver' to 'a/1' at QoS 1, 2026-01-02" in lines[1]
    assert lines[2].startswith("  durable 2026-01-02")
    assert lines[3].startswith("  acknowledged to it 2026-01-02")
    assert lines[4] == "  stored for 1 stream of sessions"
    reader = next(line for line in lines if line.startswith("  'reader', session"))
    assert "was sent it 2 times, acknowledged it 2026" in reader
    assert "    that session ended" in lines[lines.index(reader) + 1]
    assert "'slow', session 1099511627778: did not get it: dropped" in text
    assert text.count("was sent message 5") == 3
    assert explain.message(told, 5, "n2") == []
    assert explain.message(told, 999) == []


def test_what_the_history_does_not_have_is_not_said_to_have_happened(
    tmp_path: Path, history
) -> None:
    history.boot()
    history.session("c").row("msg_delivered", msg=8, qos=1, pid=1, attempt=1)
    history.write(tmp_path)
    text = "\n".join(explain.message(History(str(tmp_path)), 8))
    assert "its acceptance is not in this history" in text
    assert "nothing says that it was durable" in text
    assert "stored for no durable session" in text
    assert "was sent it, nothing says that it acknowledged it" in text


def test_a_session_is_followed_over_starts_and_to_other_nodes(told: History) -> None:
    lines = explain.session(told, 1 << 40 | 1)
    text = "\n".join(lines)
    assert lines[0] == "session 1099511627777 of 'reader' on node n1:"
    assert "began 2026-01-02" in lines[1]
    assert "resumed once, disconnected once, taken over never, over 2 starts" in text
    assert "messages: msg_delivered 2, msg_acked 1" in text
    assert "ended 2026-01-02 04:04" in text
    assert "after it: session 3298534883329 on node n2" in text
    assert "broker started" in text
    assert explain.session(told, 77 << 40 | 1) == []


def test_a_busy_session_is_counted_and_not_told_row_by_row(tmp_path: Path, history) -> None:
    history.boot()
    client = history.session("c")
    client.create()
    for number in range(explain.ROWS_MAX):
        client.row("msg_delivered", msg=number, qos=0)
    client.leave()
    history.write(tmp_path)
    lines = explain.session(History(str(tmp_path)), client.number)
    assert "  messages: msg_delivered 200" in lines
    assert not any("was sent message" in line for line in lines)
    assert len(lines) < 12


def test_what_is_told_is_bounded(tmp_path: Path, history) -> None:
    history.boot()
    for _ in range(1000):
        history.session("c").row("msg_delivered", msg=1, qos=0)
    history.write(tmp_path)
    lines = explain.message(History(str(tmp_path)), 1)
    assert "  ... 800 rows more ..." in lines
    assert len(lines) < explain.ROWS_MAX + 20


def test_names_cannot_control_a_terminal(tmp_path: Path, history) -> None:
    history.boot()
    client = history.session("c\x1b[2J")
    client.create()
    client.row("msg_accepted", msg=1, topic="t\n", pub_qos=0)
    history.write(tmp_path)
    found = History(str(tmp_path))
    for lines in (explain.message(found, 1), explain.session(found, client.number)):
        assert all(line.isprintable() for line in lines)
