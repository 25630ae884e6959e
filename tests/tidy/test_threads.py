"""Is a thread found that outlives its file, and only such a one?"""

import threading
from collections.abc import Iterator

import pytest

from tests.threads import LASTING, left_over, runs


@pytest.fixture
def waiting() -> Iterator[threading.Event]:
    """What threads of a test wait for; they end with the test."""
    event = threading.Event()
    before = threading.enumerate()
    yield event
    event.set()
    for thread in set(threading.enumerate()) - set(before):
        thread.join()


def test_a_thread_that_stays_is_found(waiting: threading.Event) -> None:
    before = threading.enumerate()
    thread = threading.Thread(target=waiting.wait, daemon=True)
    thread.start()
    assert left_over(before, patience_s=0.01) == [thread]
    assert runs(thread) == "threading"


def test_a_thread_of_before_is_nobodys(waiting: threading.Event) -> None:
    threading.Thread(target=waiting.wait).start()
    assert left_over(threading.enumerate(), patience_s=0.01) == []


def test_a_thread_that_is_about_to_end_is_waited_for(waiting: threading.Event) -> None:
    before = threading.enumerate()
    threading.Thread(target=waiting.wait).start()
    threading.Timer(0.05, waiting.set).start()
    assert left_over(before, patience_s=60) == []


class Gateway(threading.Thread):
    """A thread as those of a library that stays."""

    __module__ = "py4j.clientserver"

    def __init__(self, ended: threading.Event) -> None:
        super().__init__()
        self.ended = ended

    def run(self) -> None:
        """Wait for the end."""
        self.ended.wait()


def test_what_may_stay_is_known_by_whose_code_it_runs(waiting: threading.Event) -> None:
    before = threading.enumerate()
    thread = Gateway(waiting)
    thread.start()
    assert runs(thread) == "py4j.clientserver"
    assert left_over(before, patience_s=0.01) == []
    assert all(LASTING.values())
