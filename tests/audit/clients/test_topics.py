"""C5: only a message between two that were received is lost, and only if nothing excuses it."""

from typing import Any

from audit.clients.topics import judge

Row = dict[str, Any]


class Topic:
    """What was published to one topic and received from it; each message is named by its hash."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.place = 0

    def publish(self, hash_: str, *, answered: bool = True, qos: int = 1, **values: Any) -> None:
        """Publish a message; its answer comes before the next one is published."""
        self.place += 2
        given = {
            "kind": "published", "client_id": "p", "log": "lp", "n": self.place, "qos": qos,
            "at_us": 0, "hash": hash_, "place": self.place, "node": "n1", "gseq": self.place,
            "answered": self.place + 1 if answered else None, "epoch": None, "retain": False,
        }  # fmt: skip
        self.rows.append({**given, **values})

    def receive(self, *hashes: str, epoch: int | None = 1, qos: int = 1, reader: str = "r") -> None:
        """Receive messages."""
        for hash_ in hashes:
            self.place += 1
            self.rows.append(
                {
                    "kind": "received", "client_id": reader, "log": "lr", "n": self.place,
                    "at_us": 0, "hash": hash_, "place": self.place, "qos": qos, "epoch": epoch,
                    "node": "n1", "gseq": 100 + self.place, "answered": None, "retain": False,
                }
            )  # fmt: skip

    def lost(self) -> list[tuple[str, str, int, bool]]:
        """Return (reader, hash, count, certain) of what was lost."""
        _, found = judge(self.rows)
        return [(each.client_id, each.hash, each.count, each.certain) for each in found]


def three() -> Topic:
    """Return a topic with three messages."""
    topic = Topic()
    for name in ("a", "b", "c"):
        topic.publish(name)
    return topic


def test_a_message_between_two_that_were_received_is_lost() -> None:
    topic = three()
    topic.receive("a", "c")
    topic.receive("a", "b", "c", reader="other")
    assert topic.lost() == [("r", "b", 1, True)]
    checked, (lost,) = judge(topic.rows)
    assert (checked, lost.publisher, lost.from_gseq, lost.to_gseq) == (2, "p", 2, 6)


def test_what_came_before_or_behind_all_that_was_received_is_not_judged() -> None:
    topic = three()
    topic.receive("b")
    assert topic.lost() == []


def test_a_message_without_an_answer_was_promised_to_nobody() -> None:
    topic = Topic()
    topic.publish("a")
    topic.publish("b", answered=False)
    topic.publish("c")
    topic.receive("a", "c")
    assert topic.lost() == []


def test_a_later_message_that_was_sent_before_the_answer_proves_nothing() -> None:
    topic = three()
    topic.rows[1]["answered"] = 9
    topic.receive("a", "c")
    assert topic.lost() == []


def test_a_change_of_subscriptions_in_between_excuses() -> None:
    topic = three()
    topic.receive("a", epoch=1)
    topic.receive("c", epoch=2)
    topic.receive("a", "c", epoch=None, reader="unsure")
    assert topic.lost() == []


def test_messages_of_another_qos_may_overtake() -> None:
    topic = Topic()
    topic.publish("a")
    topic.publish("b", qos=2)
    topic.publish("c")
    topic.receive("a", "c")
    assert topic.lost() == []


def test_a_client_that_the_broker_dropped_messages_of_is_unknown() -> None:
    topic = three()
    topic.receive("a", "c")
    topic.rows.append({"kind": "dropped", "client_id": "r", "topic": "t"})
    assert topic.lost() == [("r", "b", 1, False)]


def test_equal_payloads_are_counted() -> None:
    topic = Topic()
    for name in ("a", "b", "b", "b", "c"):
        topic.publish(name)
    topic.receive("a", "b", "c")
    assert topic.lost() == [("r", "b", 2, True)]


def test_what_the_history_does_not_have_of_both_sides_proves_nothing() -> None:
    topic = three()
    topic.receive("a", "c")
    topic.rows[0]["gseq"] = None
    assert topic.lost() == []
