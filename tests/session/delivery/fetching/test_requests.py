"""Is each question put to a store once, when the store has what it needs, and again if need be?"""

from session.delivery.context import DeliveryContext
from session.delivery.fetching.requests import LOOK_MAX, Asking, FetchRequest, Requests
from storage.tables.fetch_rows import PUBSUB
from tests.session.feed.backends import NAME, feed
from tests.session.harness import Broker

SOON = (1 << 62, 1 << 62)


class Question(Asking):
    """A question that a test asks."""

    def __init__(self, topic: str) -> None:
        super().__init__(NAME)
        self.topic = topic
        self.has_room = True

    def is_ready(self) -> bool:
        """Is there room for the answer?"""
        return self.has_room

    def question(self) -> FetchRequest:
        """Return what is asked."""
        return FetchRequest(self.number, PUBSUB, "c", self.topic, "", 1)

    def is_alive(self) -> bool:
        """It is."""
        return True


def made() -> tuple[Broker, Requests]:
    """Return a broker, and requests of its parts."""
    broker = Broker(feeds=feed())
    engine = broker.engine
    context = DeliveryContext(
        engine._core,
        engine._maintenance._assembly.database,
        engine._routes,
        broker.policy,
        engine._maintenance._assembly.history,
    )
    return broker, Requests(context, [NAME])


def topic_of(request: FetchRequest | None) -> str | None:
    """Return what is asked."""
    return None if request is None else request.topic


def test_a_question_is_asked_once_until_it_is_answered() -> None:
    _, requests = made()
    asking = Question("a")
    requests.want(asking)
    assert requests.owed(NAME) == 1
    request = requests.next(NAME, SOON)
    assert request is not None and request.topic == "a"
    assert requests.next(NAME, SOON) is None and requests.owed(NAME) == 1
    assert requests.answered(request.number) is asking
    assert requests.answered(request.number) is None and requests.owed(NAME) == 0


def test_what_is_wanted_while_it_is_asked_is_due_and_not_asked_twice() -> None:
    _, requests = made()
    asking = Question("a")
    requests.want(asking)
    assert requests.next(NAME, SOON) is not None
    requests.want(asking)
    assert asking.is_due and requests.next(NAME, SOON) is None
    assert list(requests.invariants()) == []


def test_what_was_not_answered_is_asked_again_with_another_number() -> None:
    _, requests = made()
    requests.want(Question("a"))
    first = requests.next(NAME, SOON)
    requests.ask_again(NAME)
    second = requests.next(NAME, SOON)
    assert first is not None and second is not None and first.number != second.number
    assert requests.answered(first.number) is None
    assert requests.answered(second.number) is not None


def test_what_is_forgotten_is_not_asked_and_its_answer_is_for_nobody() -> None:
    _, requests = made()
    one, other = Question("a"), Question("b")
    requests.want(one)
    requests.want(other)
    request = requests.next(NAME, SOON)
    assert request is not None
    requests.forget(one)
    requests.forget(other)
    assert requests.answered(request.number) is None and requests.next(NAME, SOON) is None


def test_a_store_is_asked_once_it_has_what_came_before() -> None:
    broker, requests = made()
    broker.clean("c", "a")  # the store is to be told of it
    asking = Question("a")
    requests.want(asking)
    assert requests.next(NAME, SOON) is None  # that is in no batch yet
    broker.advance(250)
    end = broker.engine.feeds.end()
    assert requests.next(NAME, (end[0], end[1] - 1)) is None
    assert topic_of(requests.next(NAME, end)) == "a"


def test_those_without_room_stand_behind_the_others() -> None:
    _, requests = made()
    full = [Question(f"full/{number}") for number in range(LOOK_MAX)]
    for each in full:
        each.has_room = False
        requests.want(each)
    requests.want(Question("a"))
    assert requests.next(NAME, SOON) is None  # so many are looked at in one call
    assert topic_of(requests.next(NAME, SOON)) == "a"
    full[3].has_room = True
    assert topic_of(requests.next(NAME, SOON)) == "full/3"


def test_those_that_wait_for_their_own_client_are_told_apart() -> None:
    _, requests = made()
    full, other = Question("full"), Question("other")
    full.has_room = False
    requests.want(full)
    assert (requests.owed(NAME), requests.held(NAME)) == (1, 0)  # nobody has looked
    assert requests.next(NAME, SOON) is None
    requests.want(other)
    assert (requests.owed(NAME), requests.held(NAME)) == (2, 1)
    full.has_room = True
    assert topic_of(requests.next(NAME, SOON)) == "full"
    assert (requests.owed(NAME), requests.held(NAME)) == (2, 0)
    requests.forget(full)
    requests.forget(other)
    assert (requests.owed(NAME), requests.held(NAME)) == (0, 0)


def test_without_stores_that_are_asked_it_is_off() -> None:
    broker, requests = made()
    assert requests.is_on and not broker.engine.requests.is_on
    assert broker.engine.requests.next(NAME, SOON) is None
