"""Does the history say of every delivery when it went out, how it ended, and why not?"""

from mqtt.encoder import encode
from mqtt.packets import Puback, Pubcomp, Publish, Pubrec
from tests.session.harness import NEVER, Broker, Rules
from tests.session.told import columns, told


def full(**options: object) -> Broker:
    return Broker(history_detail="full", **options)


def test_a_delivery_is_told_with_its_packet_id_and_its_end() -> None:
    broker = full()
    session = broker.durable("c", "a", qos=1)
    broker.publish("a", b"12345", 1)
    (message,) = session.messages()
    session.send(Puback(message.packet_id))
    broker.advance(s=1)
    (delivered,) = told(broker, "msg_delivered")
    assert (delivered["client_id"], delivered["pid"], delivered["qos"]) == ("c", 1, 1)
    assert (delivered["dup"], delivered["attempt"], delivered["msg"]) == (False, 1, 1)
    (acked,) = told(broker, "msg_acked")
    assert (acked["pid"], acked["msg"], acked["reason"]) == (1, 1, 0)
    assert (acked["session"], acked["conn"]) == (delivered["session"], delivered["conn"])


def test_qos_2_is_told_in_both_its_halves_and_each_once() -> None:
    broker = full()
    session = broker.durable("c", "a", qos=2)
    broker.publish("a", b"", 2)
    (message,) = session.messages()
    session.send(Pubrec(message.packet_id), Pubrec(message.packet_id), Pubcomp(message.packet_id))
    broker.advance(s=1)
    assert columns(told(broker, "msg_acked"), "msg", "pid", "qos") == [(1, 1, 2)]
    assert columns(told(broker, "msg_completed"), "msg", "pid", "qos") == [(1, 1, 2)]


def test_a_refusal_by_the_receiver_is_told_with_its_reason() -> None:
    broker = full()
    session = broker.durable("c", "a", qos=2)
    broker.publish("a", b"", 2)
    (message,) = session.messages()
    session.send(Pubrec(message.packet_id, 0x83))
    broker.advance(s=1)
    assert columns(told(broker, "msg_acked"), "msg", "reason") == [(1, 0x83)]
    assert told(broker, "msg_completed") == []


def test_what_is_sent_again_after_a_reconnect_is_told_as_that() -> None:
    broker = full()
    session = broker.durable("c", "a", qos=1)
    broker.publish("a", b"", 1)
    session.drop()
    broker.connect("c", expiry=NEVER)
    broker.advance(s=1)
    sent = columns(told(broker, "msg_delivered"), "msg", "pid", "dup", "attempt")
    assert sent == [(1, 1, False, 1), (1, 1, True, 2)]


def test_a_backlog_is_told_message_by_message_in_its_order() -> None:
    broker = full()
    broker.durable("c", "a/#", qos=1).drop()
    for number in range(20):
        broker.publish(f"a/{number % 3}", b"x", 1 + number % 2, retain=False)
    session = broker.connect("c", expiry=NEVER)
    messages = session.messages()
    broker.advance(s=1)
    sent = columns(told(broker, "msg_delivered"), "msg", "pid", "qos")
    assert sent == [(number + 1, m.packet_id, m.qos) for number, m in enumerate(messages)]
    assert len(sent) == 20


def test_a_run_of_acknowledgements_is_told_like_single_ones() -> None:
    stories = []
    for together in (True, False):
        broker = full()
        session = broker.durable("c", "a", qos=1)
        publisher = broker.connect("p")
        publisher.send(*[Publish("a", b"x", 1, False, False, n + 1) for n in range(6)])
        answers = [Puback(m.packet_id) for m in session.messages()]
        answers = [*answers[::2], *answers[1::2]]
        for group in [answers] if together else [[answer] for answer in answers]:
            session.send(*group)
        broker.advance(s=1)
        stories.append(
            [
                columns(told(broker, ev), "msg", "pid", "qos")
                for ev in ("msg_delivered", "msg_acked")
            ]
        )
    assert stories[0] == stories[1]
    assert len(stories[0][1]) == 6


def test_a_message_that_no_log_has_keeps_its_id_to_the_acknowledgement() -> None:
    broker = full()
    session = broker.connect("clean")
    session.subscribe("a", qos=1)
    publisher = broker.connect("p")
    publisher.send(*[Publish("a", b"x", 1, False, False, n + 1) for n in range(3)])
    for message in session.messages():
        session.send(Puback(message.packet_id))
    broker.advance(s=1)
    accepted = columns(told(broker, "msg_accepted"), "msg")
    assert columns(told(broker, "msg_delivered"), "msg") == accepted
    assert columns(told(broker, "msg_acked"), "msg") == accepted
    assert len(set(accepted)) == 3


def test_what_is_not_delivered_is_told_with_its_reason() -> None:
    broker = full()
    session = broker.connect("c", version=5, maximum_packet_size=60)
    session.subscribe("a", qos=0)
    broker.publish("a", b"x" * 100, 0)
    broker.engine.pause_writing(session.connection)
    broker.publish("a", b"x", 0)
    broker.advance(s=1)
    assert columns(told(broker, "msg_dropped"), "reason", "client_id") == [(1021, "c"), (1028, "c")]


def test_a_full_queue_is_told_with_the_message_that_had_to_go() -> None:
    broker = full(clean_queue_messages_max=2, max_inflight=1)
    session = broker.connect("c", version=5)
    session.subscribe("a", qos=1)
    for _ in range(5):
        broker.publish("a", b"x", 1)
    broker.advance(s=1)
    ids = [event["msg"] for event in told(broker, "msg_accepted")]
    dropped = columns(told(broker, "msg_dropped"), "reason", "msg")
    assert dropped == [(1020, ids[1]), (1020, ids[2])]  # the oldest that were not sent


def test_what_expired_in_a_backlog_is_told() -> None:
    broker = full()
    broker.durable("c", "a", qos=1).drop()
    broker.publish("a", b"x", 1, message_expiry_interval=5)
    broker.publish("a", b"y", 1)
    broker.advance(s=6)
    broker.connect("c", expiry=NEVER)
    broker.advance(s=1)
    assert columns(told(broker, "msg_expired"), "msg", "client_id") == [(1, "c")]
    assert columns(told(broker, "msg_delivered"), "msg") == [(2,)]
    assert told(broker, "msg_accepted")[0]["expiry_s"] == 5


def test_what_a_session_may_not_receive_any_more_is_told() -> None:
    rules = Rules()
    broker = full(policy=rules)
    broker.durable("c", "a", qos=1).drop()
    broker.publish("a", b"x", 1)
    rules.forbidden.add(("receive", "a"))
    broker.connect("c", expiry=NEVER)
    broker.advance(s=1)
    assert columns(told(broker, "msg_dropped"), "msg", "reason") == [(1, 1025)]


def test_shared_deliveries_are_told_with_their_group_and_when_they_move_on() -> None:
    broker = full()
    first = broker.connect("first", version=5, expiry=10)
    first.subscribe("$share/g/a", qos=1)
    broker.publish("a", b"x", 1)
    broker.durable("second", "$share/g/a", qos=1)
    first.drop()
    broker.advance(s=20)
    delivered = columns(told(broker, "msg_delivered"), "client_id", "msg", "share", "stream")
    (enqueued,) = columns(told(broker, "msg_enqueued"), "stream")
    assert delivered == [("first", 1, "g", *enqueued), ("second", 1, "g", *enqueued)]
    moved = columns(told(broker, "msg_moved"), "client_id", "msg", "share", "stream")
    assert moved == [("first", 1, "g", *enqueued)]


def test_retained_copies_are_told_as_such_and_their_acknowledgement_without_a_message() -> None:
    broker = full()
    broker.publish("a", b"kept", 1, retain=True)
    session = broker.durable("c", "a", qos=1)
    (message,) = session.messages()
    session.send(Puback(message.packet_id))
    broker.advance(s=1)
    (sent,) = told(broker, "retained_sent")
    assert (sent["topic"], sent["pid"], sent["qos"], sent["retain"]) == ("a", 1, 1, True)
    assert told(broker, "msg_delivered") == []
    assert columns(told(broker, "msg_acked"), "msg", "pid") == [(None, 1)]


def test_books_count_what_went_out_and_what_came_back() -> None:
    broker = Broker(history_detail="books")
    session = broker.durable("c", "a", qos=1)
    publisher = broker.connect("p")
    publisher.send(*[Publish("a", b"xyz", 1, False, False, n + 1) for n in range(6)])
    messages = session.messages()
    session.send(*[Puback(m.packet_id) for m in messages[:4]])
    session.drop()
    broker.connect("c", expiry=NEVER)
    broker.advance(s=90)
    books = {event["stage"]: event for event in told(broker, "books")}
    counted = {
        stage: (books[stage]["count"], books[stage]["check1"], books[stage]["check2"])
        for stage in ("delivered", "acked", "redelivered")
    }
    assert counted == {"delivered": (6, 21, 91), "acked": (4, 10, 30), "redelivered": (2, 11, 61)}
    assert books["delivered"]["total_bytes"] == 18


def test_what_the_broker_says_of_itself_is_no_message() -> None:
    broker = full()
    session = broker.connect("c")
    session.subscribe("$SYS/#", qos=0)
    broker.engine.publish_system("$SYS/broker/uptime", b"1", broker.now)
    broker.settle()
    session.subscribe("$SYS/broker/#", qos=0)
    broker.advance(s=1)
    assert len(session.messages()) == 2
    assert told(broker, "msg_delivered", "retained_sent", "msg_accepted") == []


def test_of_acknowledgements_in_one_piece_only_those_of_the_sample_are_told() -> None:
    broker = Broker(history_detail="sampled:1/4")
    session = broker.durable("c", "a", qos=1)
    for _ in range(8):
        broker.publish("a", b"", 1)
    acks = [encode(Puback(message.packet_id), 5) for message in session.messages()]
    session.send_bytes(b"".join(acks))
    broker.advance(s=1)
    assert columns(told(broker, "msg_delivered"), "msg") == [(4,), (8,)]
    assert columns(told(broker, "msg_acked"), "msg", "pid") == [(4, 4), (8, 8)]


def test_of_messages_that_are_dropped_only_those_of_the_sample_are_told() -> None:
    rules = Rules()
    broker = Broker(history_detail="sampled:1/4", policy=rules)
    broker.durable("c", "a", qos=1).drop()
    for _ in range(8):
        broker.publish("a", b"", 1)
    rules.forbidden.add(("receive", "a"))
    broker.connect("c", expiry=NEVER)
    broker.advance(s=1)
    assert columns(told(broker, "msg_dropped"), "msg", "reason") == [(4, 1025), (8, 1025)]


def test_a_message_bound_ahead_is_told_when_it_is_sent() -> None:
    broker = full(ahead_after=0)
    session = broker.durable("c", "a", receive_maximum=1)
    for _ in range(3):
        broker.publish("a", b"", 1)
    broker.advance(s=1)
    assert columns(told(broker, "msg_delivered"), "msg", "pid") == [(1, 1)]
    session.drop()
    broker.advance(s=1)
    *_, disconnected = told(broker, "session_disconnected")
    assert (disconnected["inflight"], disconnected["position"]) == (1, 1)


def test_after_a_crash_what_was_perhaps_sent_is_told_when_it_is_sent_with_dup() -> None:
    broker = full(ahead_after=0)
    broker.durable("c", "a", receive_maximum=1)
    for _ in range(3):
        broker.publish("a", b"", 1)
    broker.advance(s=1)
    broker.restart()
    session = broker.durable("c", receive_maximum=2)
    (resumed,) = told(broker, "session_resumed")
    assert (resumed["inflight"], resumed["position"]) == (1, 1)
    assert [message.dup for message in session.messages()] == [True, True]
    broker.advance(s=1)
    sent = columns(told(broker, "msg_delivered"), "msg", "pid", "dup", "attempt")
    assert sent == [(1, 1, False, 1), (1, 1, True, 2), (2, 2, False, 1)]


def test_a_start_finds_a_session_as_far_as_the_history_knows_it_though_ids_were_bound_ahead() -> (
    None
):
    broker = full(ahead_after=0)
    broker.durable("c", "a", receive_maximum=1)
    for _ in range(3):
        broker.publish("a", b"", 1)
    broker.advance(s=1)
    broker.restart()
    broker.advance(s=1)
    found = told(broker, "session_disconnected", "session_restored")
    mine = columns([row for row in found if row["client_id"] == "c"], "ev", "inflight", "position")
    assert mine == [("session_disconnected", 1, 1), ("session_restored", 1, 1)]


def test_an_answer_shows_that_a_message_was_sent_before_the_crash() -> None:
    broker = full(ahead_after=0)
    broker.durable("c", "a", qos=2, receive_maximum=1)
    for _ in range(2):
        broker.publish("a", b"", 2)
    broker.restart()
    session = broker.durable("c", receive_maximum=1)
    session.send(Pubrec(2))
    broker.advance(s=1)
    sent = columns(told(broker, "msg_delivered"), "msg", "pid", "qos", "dup")
    assert (2, 2, 2, False) in sent
    assert columns(told(broker, "msg_acked"), "msg", "pid", "qos") == [(2, 2, 2)]


def test_a_qos_2_message_that_was_perhaps_sent_and_is_given_up_was_sent() -> None:
    broker = full(ahead_after=0)
    broker.durable("c", "a", qos=2, receive_maximum=1)
    for _ in range(2):
        broker.publish("a", b"x" * 100, 2)
    broker.restart()
    broker.durable("c", maximum_packet_size=50)
    broker.advance(s=1)
    sent = columns(told(broker, "msg_delivered"), "msg", "pid", "dup")
    assert sent == [(1, 1, False), (2, 2, False)]
    assert columns(told(broker, "msg_dropped"), "msg", "pid") == [(1, 1), (2, 2)]
