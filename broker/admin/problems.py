"""Errors as answers: problem+json (RFC 9457), one line that says what was wrong.

Must never carry a traceback. Read next: `broker.admin.api.router`, which turns exceptions into
these.
"""

import http
from typing import Final

import msgspec
from starlette.responses import Response

from broker.admin import records
from broker.admin.access.admin_log import AdminLogError
from broker.admin.access.private_file import AccessFileError, BadEntry, EntryRefused, NoEntry
from broker.admin.asking import BadCursor
from broker.admin.sources.lanes import Busy, NotThere, TooLong, Unreadable
from broker.admin.sources.orders import BeingSorted
from broker.operations.control_socket import ControlError, Unanswered

MEDIA_TYPE: Final = "application/problem+json"
RETRY_S: Final = 2
AGAIN_S: Final = 5  # before one asks again for an order that is being worked out


class Refused(Exception):
    """A request that is answered with an error; `str()` is the one line."""

    def __init__(
        self, status: int, detail: str, *, retry_s: int = 0, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status: Final = status
        self.headers: Final = dict(headers or {})
        if retry_s:
            self.headers["Retry-After"] = str(retry_s)


# What a question may raise that has an answer.
EXPECTED: Final = (
    Refused,
    NotThere,
    BadCursor,
    Busy,
    BeingSorted,
    TooLong,
    Unreadable,
    ControlError,
    AccessFileError,
    AdminLogError,
)


def refused(problem: Exception) -> Refused:
    """Return how an exception of `EXPECTED` is answered."""
    if isinstance(problem, Refused):
        return problem
    text = str(problem)
    if isinstance(problem, (NotThere, NoEntry)):
        return Refused(404, text)
    if isinstance(problem, BadEntry):
        return Refused(400, text)
    if isinstance(problem, BadCursor):
        return Refused(400, "cursor: expected the `next` of another page of this list")
    if isinstance(problem, Unanswered):
        return Refused(503, f"the broker does not answer: {text}", retry_s=RETRY_S)
    if isinstance(problem, BeingSorted):
        return Refused(503, text, retry_s=AGAIN_S)
    if isinstance(problem, Busy):
        return Refused(503, text, retry_s=RETRY_S)
    if isinstance(problem, (ControlError, EntryRefused)):
        return Refused(409, text)
    if isinstance(problem, AdminLogError):
        return Refused(503, f"without a line in the admin log nothing is changed: {text}")
    return Refused(503, text)  # TooLong, Unreadable, AccessFileError


def answer(problem: Refused) -> Response:
    """Return the answer of an error."""
    body = records.Problem(
        type="about:blank",
        title=http.HTTPStatus(problem.status).phrase,
        status=problem.status,
        detail=str(problem),
    )
    return Response(
        msgspec.json.encode(body),
        status_code=problem.status,
        headers=problem.headers,
        media_type=MEDIA_TYPE,
    )
