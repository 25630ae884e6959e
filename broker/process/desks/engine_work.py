"""Work for the engine on behalf of an operator: its errors are answers, and nobody waits in vain.

Read next: `broker.process.desks.clients`, `broker.loop.driver`.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeAlias

from broker.loop.driver import Driver
from broker.operations.control_socket import ControlError, Request
from storage.errors import DamagedRows, Recoverable

REASON_BYTES_MAX: Final = 1024  # of what is recorded, and may be told to a client, UTF-8
NUMBER_MAX: Final = 1 << 62

# Does what a request asks for; sets the future, at once or later.
Work: TypeAlias = Callable[[Request, "Future[Request]"], None]


def begin(driver: Driver, work: Work, request: Request) -> "Future[Request]":
    """Do `work` in a turn of the engine; return its answer, or the error that it raised.

    Raises `ControlError` for a reason that is too long.
    """
    if len(request.get("reason", "").encode()) > REASON_BYTES_MAX:
        raise ControlError(f"the reason is too long: expected {REASON_BYTES_MAX} bytes at most")
    found: Future[Request] = Future()
    driver.run(_work, work, request, found)
    return found


def _work(work: Work, request: Request, found: "Future[Request]") -> None:
    """Do the work; an exception that is not expected is the driver's, and ends the wait."""
    why: ControlError | None = ControlError("an internal error, which is in the log")
    try:
        work(request, found)
        why = None
    except ControlError as problem:
        why = problem
    except DamagedRows as problem:
        why = ControlError(f"{problem}; `holdfast db repair` saves the rest")
    except Recoverable as problem:
        why = ControlError(str(problem))
    finally:
        if why is not None:
            found.set_exception(why)


def whole_number(request: Request, name: str) -> int:
    """Return a number of a request, 0 if it has none. Raises `ControlError`."""
    text = request.get(name, "0")
    if not text.isascii() or not text.isdecimal() or len(text) > 19 or int(text) >= NUMBER_MAX:
        raise ControlError(f"{name} = {text[:40]!r}: expected a number")
    return int(text)
