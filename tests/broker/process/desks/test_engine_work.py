"""Work for the engine: whatever it raises is an answer."""

from collections.abc import Callable
from concurrent.futures import Future

import pytest

from broker.operations.control_socket import ControlError, Request
from broker.process.desks.engine_work import REASON_BYTES_MAX, begin, whole_number
from storage.errors import CorruptRecord, Recoverable
from tests.broker.inside import InsideBroker, run


def test_work_is_done_in_a_turn_of_the_engine_and_answered() -> None:
    async def play(broker: InsideBroker) -> None:
        def work(request: Request, found: "Future[Request]") -> None:
            found.set_result({"echo": request["do"]})

        assert begin(broker.driver, work, {"do": "it"}).result(0) == {"echo": "it"}

    run(play)


def raises(error: Exception) -> Callable[[Request, "Future[Request]"], None]:
    """Return work that fails."""

    def work(request: Request, found: "Future[Request]") -> None:
        raise error

    return work


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ControlError("no such thing"), "^no such thing$"),
        (Recoverable("later"), "^later$"),
        (CorruptRecord("row"), "^row; `holdfast db repair` saves the rest$"),
        (KeyError("bug"), "^an internal error, which is in the log$"),
    ],
)
def test_an_error_is_the_answer(error: Exception, words: str) -> None:
    async def play(broker: InsideBroker) -> None:
        found = begin(broker.driver, raises(error), {"do": "it"})
        with pytest.raises(ControlError, match=words):
            found.result(0)
        assert broker.counters.internal_errors == isinstance(error, KeyError)

    run(play)


def test_a_reason_has_a_limit() -> None:
    async def play(broker: InsideBroker) -> None:
        reason = "ö" * (REASON_BYTES_MAX // 2)
        found = begin(broker.driver, lambda _, done: done.set_result({}), {"reason": reason})
        assert found.result(0) == {}
        with pytest.raises(ControlError, match="expected 1024 bytes at most"):
            begin(broker.driver, raises(AssertionError()), {"reason": reason + "x"})

    run(play)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "x", "٣", str(1 << 62), "1" * 10_000])
def test_what_is_no_number_is_named(text: str) -> None:
    with pytest.raises(ControlError, match=r"^older_ms = '.{0,40}': expected a number$"):
        whole_number({"older_ms": text}, "older_ms")


def test_a_number_that_is_not_there_is_zero() -> None:
    assert whole_number({}, "older_ms") == 0
    assert whole_number({"older_ms": "42"}, "older_ms") == 42
