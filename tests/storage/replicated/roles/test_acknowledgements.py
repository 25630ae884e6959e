"""An acknowledgement counts once the log was read so far, and proves how fresh that is."""

from storage.replicated.log_port import Event
from storage.replicated.roles.acknowledgements import ASKED_MAX, Acknowledgements


class Log:
    """What was sent."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def append(self, data: bytes, token: int | None = None) -> None:
        """Send a record."""
        assert token is not None
        self.tokens.append(token)

    def take(self) -> list[Event]:
        """Return nothing."""
        return []

    def read_from(self, place: int) -> None:
        """Read on."""

    def delete_before(self, place: int) -> None:
        """Delete."""


def test_a_place_is_promised_once_the_log_was_read_beyond_it() -> None:
    log = Log()
    acks = Acknowledgements(log, -1)
    acks.send(3, b"batch")
    acks.acknowledged(log.tokens[0], 7)
    acks.read(7)
    assert acks.promised == -1
    acks.read(8)
    assert (acks.promised, acks.proved) == (7, -1)  # a batch says nothing of when


def test_an_own_word_proves_when_it_was_sent() -> None:
    log = Log()
    acks = Acknowledgements(log, -1)
    acks.ask(b"word", 500)
    acks.acknowledged(log.tokens[0], 7)
    acks.acknowledged(log.tokens[0], 9)  # only once
    acks.read(20)
    assert (acks.promised, acks.proved) == (7, 500)


def test_an_acknowledgement_of_what_was_lost_or_is_sent_again_does_not_count() -> None:
    log = Log()
    acks = Acknowledgements(log, -1)
    acks.send(3, b"batch")
    acks.send(4, b"batch")
    acks.ask(b"word", 500)
    acks.repeat_from(4)
    assert [acks.index_of(token) for token in log.tokens] == [3, 0, 0]
    acks.acknowledged(log.tokens[0], 7)
    acks.read(8)
    acks.shrunk(5)
    acks.acknowledged(log.tokens[1], 8)
    acks.acknowledged(log.tokens[2], 9)
    acks.read(20)
    assert (acks.promised, acks.proved) == (4, -1)


def test_words_that_nobody_answers_do_not_pile_up() -> None:
    log = Log()
    acks = Acknowledgements(log, -1)
    for now in range(ASKED_MAX + 1):
        acks.ask(b"word", 100 + now)
    acks.acknowledged(log.tokens[0], 1)
    acks.read(9)
    assert acks.proved == -1
    acks.acknowledged(log.tokens[1], 1)
    acks.read(9)
    assert acks.proved == 101


def test_an_outcome_that_is_never_known_is_not_awaited_for_ever() -> None:
    log = Log()
    acks = Acknowledgements(log, -1)
    acks.send(3, b"batch")
    acks.give_up(log.tokens[0])
    assert acks.index_of(log.tokens[0]) == 0
