"""What leaves now, what waits for which commit, and what never overtakes what [MQTT-4.6.0]."""

import pytest

from mqtt.decoder import Decoder
from mqtt.encoder import PACKET_ID
from mqtt.packets import Puback, Publish
from session.counters import Counters
from session.live.commit_gate import REPLY_COST, CommitGate
from session.live.connection import ACTIVE, CLOSED, CLOSING, Connection
from session.settings import Settings
from session.state.session import Session
from tests.session.harness import Broker, Stream


class Gate:
    """A gate with one connection; each batch that is written has the next serial."""

    def __init__(self, **settings: int) -> None:
        chosen = Settings()
        for name, value in settings.items():
            setattr(chosen, name, value)
        self.counters = Counters()
        self.rules = CommitGate(
            chosen,
            self.counters,
            send_pending=self._send_pending,
            send_shared=self._send_shared,
            resume_reading=self._resume_reading,
        )
        self.stream = Stream()
        self.connection = Connection(1, self.stream, Decoder("server", 0), 1000, "tcp", "", None)
        self.connection.state = ACTIVE
        self.connection.session = Session("c", "", 1000)
        self.written = 0
        self.durable = 0
        self.asked: list[str] = []  # what was to be sent once there was room
        self.read_on = 0

    def _send_pending(self, connection: Connection) -> None:
        self.asked.append("pending")

    def _send_shared(self, connection: Connection) -> None:
        self.asked.append("shared")

    def _resume_reading(self, connection: Connection) -> None:
        self.read_on += 1

    def left(self) -> bytes:
        """End the tick without a write; return what has left with it."""
        self.rules.flush()
        data, self.stream.data = self.stream.data, b""
        return data

    def write(self) -> bytes:
        """Write the tick's batch and end the tick; return what has left with it."""
        self.written += 1
        self.rules.batch_written(self.written, self.durable, 2000)
        return self.left()

    def commit(self, serial: int) -> bytes:
        """Everything up to batch `serial` is durable; return what has left with that."""
        self.durable = serial
        self.rules.release(serial, 3000)
        return self.left()

    def message(self, payload: bytes) -> None:
        """Send a PUBLISH that was published now."""
        self.rules.send_message(self.connection, payload, 0, b"")


# Replies


def test_a_reply_that_promises_nothing_leaves_with_its_tick() -> None:
    gate = Gate()
    gate.rules.send(gate.connection, b"a")
    assert not gate.rules.reply(gate.connection, b"b", promises=False)
    gate.rules.send_message_in_turn(gate.connection, b"c")
    gate.message(b"d")
    assert not gate.rules.has_unwritten() and gate.connection.waiting is None
    assert gate.left() == b"abcd" and gate.stream.writes == 1
    assert gate.left() == b"" and gate.stream.writes == 1
    assert gate.counters.bytes_sent == 4


def test_a_reply_waits_for_its_batch() -> None:
    gate = Gate()
    assert gate.rules.reply(gate.connection, b"a", promises=True)
    gate.rules.send_after_commit(gate.connection, b"b")
    assert gate.rules.has_unwritten() and gate.left() == b""
    assert gate.write() == b"" and not gate.rules.has_unwritten() and len(gate.rules) == 1
    assert gate.commit(1) == b"ab" and len(gate.rules) == 0


def test_a_commit_releases_nothing_of_a_later_batch() -> None:
    gate = Gate()
    gate.rules.send_after_commit(gate.connection, b"a")
    gate.write()
    gate.rules.send_after_commit(gate.connection, b"b")
    gate.write()
    gate.rules.send_after_commit(gate.connection, b"c")
    assert gate.commit(1) == b"a"
    assert gate.commit(2) == b"b"
    gate.write()
    assert gate.commit(3) == b"c"


def test_a_later_commit_releases_earlier_ones_first() -> None:
    gate = Gate()
    for reply in (b"a", b"b", b"c"):
        gate.rules.send_after_commit(gate.connection, reply)
        gate.write()
    assert len(gate.rules) == 3
    assert gate.commit(3) == b"abc"


def test_a_reply_whose_batch_is_durable_already_leaves_with_its_tick() -> None:
    """The tick changed nothing, so no batch was written: the serial is that of an earlier one."""
    gate = Gate()
    gate.rules.send_after_commit(gate.connection, b"a")
    gate.durable = 1
    assert gate.write() == b"a" and gate.connection.waiting is None


def test_a_reply_whose_batch_is_durable_already_does_not_overtake_one_that_waits() -> None:
    gate = Gate()
    gate.rules.send_after_commit(gate.connection, b"a")
    gate.write()
    gate.rules.send_after_commit(gate.connection, b"b")
    gate.rules.batch_written(1, 1, 2000)
    assert gate.left() == b""
    assert gate.commit(1) == b"ab"


def test_a_reply_in_order_stays_behind_what_waits_for_this_batch() -> None:
    gate = Gate()
    gate.rules.send_after_commit(gate.connection, b"a")
    assert gate.rules.reply(gate.connection, b"b", promises=False)
    assert gate.write() == b""
    assert gate.commit(1) == b"ab"


def test_a_reply_in_order_leaves_with_the_newest_that_waits_and_no_later() -> None:
    gate = Gate()
    for reply in (b"a", b"b"):
        gate.rules.send_after_commit(gate.connection, reply)
        gate.write()
    assert gate.rules.reply(gate.connection, b"c", promises=False)
    assert not gate.rules.has_unwritten()
    assert gate.commit(1) == b"a"
    assert gate.commit(2) == b"bc"


def test_a_reply_without_an_order_passes_what_waits() -> None:
    gate = Gate()
    gate.rules.send_after_commit(gate.connection, b"a")
    gate.rules.send_messages_after_commit(gate.connection, b"b")
    gate.rules.send(gate.connection, b"pong")
    assert gate.write() == b"pong"


def test_what_waits_for_one_connection_stops_no_other() -> None:
    gate = Gate()
    other = Connection(2, Stream(), Decoder("server", 0), 1000, "tcp", "", None)
    gate.rules.send_messages_after_commit(other, b"a")
    gate.message(b"b")
    assert not gate.rules.reply(gate.connection, b"c", promises=False)
    assert gate.left() == b"bc"


# PUBACK


def test_an_acknowledged_message_is_open_until_its_puback_leaves() -> None:
    gate = Gate()
    gate.connection.inbound_open = 5
    assert not gate.rules.acknowledge(gate.connection, b"a", 2, promises=False)
    assert gate.connection.inbound_open == 3
    assert gate.rules.acknowledge(gate.connection, b"b", 3, promises=True)
    gate.write()
    assert gate.connection.inbound_open == 3
    gate.commit(1)
    assert gate.connection.inbound_open == 0


def test_a_puback_that_promises_nothing_does_not_overtake_one_that_waits() -> None:
    gate = Gate()
    gate.rules.acknowledge(gate.connection, b"a", 1, promises=True)
    gate.write()
    assert gate.rules.acknowledge(gate.connection, b"b", 1, promises=False)
    assert gate.write() == b""
    assert gate.commit(1) == b"a"
    assert gate.commit(2) == b"b"


# Messages


def test_a_message_does_not_overtake_one_that_waits() -> None:
    gate = Gate()
    gate.rules.send_messages_after_commit(gate.connection, b"a")
    gate.message(b"b")
    assert gate.write() == b""
    gate.message(b"c")
    assert gate.left() == b""
    assert gate.commit(1) == b"abc"
    gate.message(b"d")
    assert gate.left() == b"d"


def test_a_message_stays_behind_one_that_only_follows() -> None:
    gate = Gate()
    gate.rules.send_after_commit(gate.connection, b"a")
    gate.write()
    gate.rules.send_message_in_turn(gate.connection, b"b")
    gate.message(b"c")
    assert gate.left() == b""
    assert gate.commit(1) == b"abc"


def test_a_message_of_now_passes_replies_that_wait() -> None:
    gate = Gate()
    gate.rules.send_after_commit(gate.connection, b"a")
    gate.message(b"b")
    assert gate.left() == b"b"
    gate.write()
    gate.message(b"c")
    gate.rules.send_message(gate.connection, b"head", 8, b"tail")
    gate.rules.send_run(gate.connection, [b"h"], [7], [b"t"])
    assert gate.left() == b"chead" + PACKET_ID[8] + b"tailh" + PACKET_ID[7] + b"t"


def test_a_message_from_a_backlog_does_not_pass_replies_that_wait() -> None:
    gate = Gate()
    gate.rules.send_after_commit(gate.connection, b"a")
    gate.rules.send_message_in_turn(gate.connection, b"b")
    assert gate.write() == b""
    assert gate.commit(1) == b"ab"


def test_messages_of_several_batches_keep_their_order() -> None:
    gate = Gate()
    gate.rules.send_messages_after_commit(gate.connection, b"ab", 2)
    gate.write()
    gate.rules.send_messages_after_commit(gate.connection, b"c")
    gate.write()
    gate.rules.send_message(gate.connection, b"d", 9, b"d")
    assert gate.commit(1) == b"ab"
    gate.message(b"e")
    assert gate.left() == b""
    assert gate.commit(2) == b"cd" + PACKET_ID[9] + b"de"


# The CONNACK


def test_while_the_connack_waits_everything_waits_behind_it() -> None:
    gate = Gate()
    gate.connection.inbound_open = 1
    gate.rules.send_connack_after_commit(gate.connection, b"connack ")
    assert gate.connection.connack_waits()
    gate.rules.send(gate.connection, b"pong ")
    assert gate.write() == b""
    gate.message(b"message ")
    assert gate.rules.acknowledge(gate.connection, b"puback", 1, promises=False)
    assert gate.left() == b""
    assert gate.commit(1) == b"connack pong "
    assert not gate.connection.connack_waits()
    gate.write()
    assert gate.commit(2) == b"message puback"


def test_silence_counts_from_the_connack_on() -> None:
    gate = Gate()
    gate.rules.send_connack_after_commit(gate.connection, b"connack")
    gate.write()
    assert gate.connection.last_received_ms == 1000
    gate.commit(1)
    assert gate.connection.last_received_ms == 3000
    gate.rules.send_after_commit(gate.connection, b"a")
    gate.write()
    gate.rules.release(2, 9000)
    assert gate.connection.last_received_ms == 3000


# The end of a connection


def test_a_connection_is_closed_after_what_leaves_with_the_tick() -> None:
    gate = Gate()
    gate.rules.send(gate.connection, b"a")
    gate.connection.state = CLOSING
    gate.rules.close_in_turn(gate.connection, promises=False)
    assert not gate.stream.is_closing
    assert gate.left() == b"a" and gate.stream.is_closing


def test_a_connection_is_closed_after_the_last_reply_that_waits() -> None:
    gate = Gate()
    for reply in (b"a", b"b"):
        gate.rules.send_after_commit(gate.connection, reply)
        gate.write()
    gate.connection.state = CLOSING
    gate.rules.close_in_turn(gate.connection, promises=False)
    gate.write()
    assert gate.commit(2) == b"ab" and not gate.stream.is_closing
    assert gate.commit(3) == b"" and gate.stream.is_closing


def test_an_end_that_promises_something_waits_for_its_commit() -> None:
    gate = Gate()
    gate.connection.state = CLOSING
    gate.rules.close_in_turn(gate.connection, promises=True)
    gate.write()
    assert not gate.stream.is_closing
    gate.commit(1)
    assert gate.stream.is_closing


def test_behind_our_disconnect_nothing_is_released() -> None:
    gate = Gate()
    gate.rules.send_after_commit(gate.connection, b"a")
    gate.write()
    gate.rules.send_after_commit(gate.connection, b"b")
    gate.rules.send(gate.connection, b"disconnect")
    gate.rules.close_at_once(gate.connection)
    assert gate.write() == b"disconnect" and gate.stream.is_closing
    assert gate.commit(2) == b"" and len(gate.rules) == 0


def test_a_connection_that_is_gone_is_sent_nothing_and_not_closed_again() -> None:
    gate = Gate()
    gate.rules.send(gate.connection, b"a")
    gate.rules.send_after_commit(gate.connection, b"b")
    gate.write()
    gate.rules.send_after_commit(gate.connection, b"c")
    gate.rules.send(gate.connection, b"d")
    gate.connection.state = CLOSED
    gate.rules.discard(gate.connection)
    gate.rules.close(gate.connection)
    gate.stream.data = b""
    assert gate.write() == b"" and gate.commit(2) == b""
    assert not gate.stream.is_closing and gate.asked == []


# What waits has a size


def test_what_waits_is_counted_with_what_it_costs_in_memory() -> None:
    gate = Gate()
    gate.rules.send_after_commit(gate.connection, b"abc")
    gate.rules.send_after_commit(gate.connection, b"d")
    assert gate.connection.waiting_size() == 4
    gate.write()
    assert gate.connection.waiting_size() == 4 + 2 * REPLY_COST
    gate.rules.reply(gate.connection, b"ef", promises=False)
    assert gate.connection.waiting_size() == 6 + 2 * REPLY_COST
    gate.commit(1)
    assert gate.connection.waiting_size() == 0 and gate.connection.waiting is None


@pytest.mark.parametrize(("held", "out_buffer"), [(3, 900), (900, 3)])
def test_messages_go_by_the_smaller_of_both_limits(held: int, out_buffer: int) -> None:
    gate = Gate(held_bytes_max=held, out_buffer_bytes_max=out_buffer)
    gate.rules.send_after_commit(gate.connection, b"abc")
    assert not gate.rules.is_full(gate.connection)
    gate.rules.send_after_commit(gate.connection, b"d")
    assert gate.rules.is_full(gate.connection)


def test_messages_are_refused_where_too_much_waits_but_live_ones_only_behind_messages() -> None:
    gate = Gate(out_buffer_bytes_max=3)
    assert not gate.rules.is_full(gate.connection)
    gate.rules.send_after_commit(gate.connection, b"abc")
    assert not gate.rules.is_full(gate.connection)
    gate.rules.send_after_commit(gate.connection, b"d")
    assert gate.rules.is_full(gate.connection)
    assert not gate.rules.blocks_messages(gate.connection)
    gate.rules.send_messages_after_commit(gate.connection, b"e")
    assert gate.rules.blocks_messages(gate.connection)


def test_whose_replies_are_released_is_sent_what_has_waited_for_room() -> None:
    gate = Gate(out_buffer_bytes_max=3)
    gate.rules.send_after_commit(gate.connection, b"a")
    gate.write()
    gate.commit(1)
    assert gate.asked == []  # nothing has
    gate.connection.is_lagging = True
    gate.rules.send_after_commit(gate.connection, b"abcd")
    gate.write()
    gate.commit(2)
    assert gate.asked == ["pending"]


def test_a_member_of_a_group_that_was_full_is_handed_messages_again() -> None:
    gate = Gate(out_buffer_bytes_max=50)
    gate.connection.group_keys["g", "t"] = None
    gate.rules.send_after_commit(gate.connection, b"abc")
    gate.write()
    gate.commit(1)
    assert gate.asked == []
    gate.rules.send_after_commit(gate.connection, b"abcdefghi")
    gate.write()
    gate.commit(2)
    assert gate.asked == ["pending", "shared"]


def test_a_client_for_whom_too_much_waits_is_not_read_from_until_half_of_it_is_gone() -> None:
    gate = Gate(held_bytes_max=100)
    for reply in (b"a" * 10, b"b" * 10, b"c" * 10):
        gate.rules.send_after_commit(gate.connection, reply)
        gate.write()
    assert not gate.stream.is_read and gate.connection.reading_paused
    gate.commit(1)
    assert gate.read_on == 0
    gate.commit(2)
    assert gate.read_on == 0  # 54 of 100
    gate.commit(3)
    assert gate.read_on == 1 and not gate.connection.reading_paused


def test_the_sums_of_a_connection_are_those_of_what_waits() -> None:
    gate = Gate()
    gate.rules.send_messages_after_commit(gate.connection, b"ab", 2)
    gate.write()
    gate.rules.send_after_commit(gate.connection, b"c")
    gate.write()
    gate.message(b"d")
    assert list(gate.rules.invariants()) == []
    assert gate.connection.waiting is not None
    gate.connection.waiting.messages += 1
    size = 4 + 2 * REPLY_COST
    assert list(gate.rules.invariants()) == [f"connection 1: 3 messages wait, {size} bytes"]
    gate.rules.close_at_once(gate.connection)
    assert list(gate.rules.invariants()) == []


def test_batches_are_written_in_the_order_of_their_serials() -> None:
    gate = Gate()
    gate.rules.send_after_commit(gate.connection, b"a")
    gate.rules.batch_written(2, 0, 2000)
    gate.rules.send_after_commit(gate.connection, b"b")
    gate.rules.batch_written(1, 0, 2000)
    assert list(gate.rules.invariants()) == ["batch 1 is behind batch 2"]


# Through the engine


def test_a_reply_leaves_with_the_commit_of_its_own_batch() -> None:
    broker = Broker()
    broker.durable("s", "t").drop()
    publisher = broker.connect("p")
    broker.hold_commits()
    publisher.send(Publish("t", b"1", 1, packet_id=1))
    first = broker.engine.written
    publisher.send(Publish("t", b"2", 1, packet_id=2))
    assert broker.engine.written > first
    broker.engine.committed(first, broker.now)
    broker.engine.end_tick(broker.now)
    publisher.expect(Puback(1))
    broker.commit()
    publisher.expect(Puback(2))


def test_what_promises_nothing_does_not_wait() -> None:
    broker = Broker()
    broker.durable("s", "t").drop()
    publisher = broker.connect("p")
    broker.hold_commits()
    publisher.send(Publish("t", b"1", 1, packet_id=1))
    publisher.ping()
    assert broker.engine.stats()["waiting_replies"] == 1
    broker.commit()
    publisher.expect(Puback(1))
    assert broker.engine.stats()["waiting_replies"] == 0


def test_what_one_tick_has_for_a_connection_is_one_write() -> None:
    broker = Broker()
    reader = broker.clean("r", "t")
    publisher = broker.connect("p")
    before = reader.stream.writes
    publisher.send(*[Publish("t", b"%d" % number) for number in range(50)])
    assert reader.stream.writes == before + 1
    assert len(reader.messages()) == 50


def test_a_publisher_for_whom_too_many_pubacks_wait_is_not_read_from() -> None:
    broker = Broker(held_bytes_max=1000)
    broker.durable("s", "t").drop()
    publisher = broker.connect("p")
    broker.hold_commits()
    for packet_id in range(1, 40):
        publisher.send(Publish("t", b"x", 1, packet_id=packet_id))
    assert not publisher.stream.is_read
    broker.commit()
    assert publisher.stream.is_read
    publisher.expect(*[Puback(packet_id) for packet_id in range(1, 40)])
