"""Each error that is expected has a status and a line; an answer of one is problem+json."""

import json

import pytest

from broker.admin.access.admin_log import AdminLogError
from broker.admin.access.private_file import AccessFileError, BadEntry, EntryRefused, NoEntry
from broker.admin.asking import BadCursor
from broker.admin.problems import EXPECTED, Refused, answer, refused
from broker.admin.sources.lanes import Busy, NotThere, TooLong, Unreadable
from broker.operations.control_socket import ControlError, Unanswered


@pytest.mark.parametrize(
    ("problem", "status", "words"),
    [
        (NotThere("no session 'x'"), 404, "no session 'x'"),
        (BadCursor(), 400, "cursor: expected the `next` of another page"),
        (Busy("too many"), 503, "too many"),
        (TooLong("too long"), 503, "too long"),
        (Unreadable("no database"), 503, "no database"),
        (ControlError("it is connected"), 409, "it is connected"),
        (Unanswered("cannot ask"), 503, "the broker does not answer: cannot ask"),
        (AccessFileError("a bad file"), 503, "a bad file"),
        (EntryRefused("there is one already"), 409, "there is one already"),
        (BadEntry("too short"), 400, "too short"),
        (NoEntry("no user 'x'"), 404, "no user 'x'"),
        (AdminLogError("disk full"), 503, "nothing is changed: disk full"),
        (Refused(403, "no"), 403, "no"),
    ],
)
def test_an_expected_error_has_a_status_and_a_line(
    problem: Exception, status: int, words: str
) -> None:
    assert isinstance(problem, EXPECTED)
    found = refused(problem)
    assert (found.status, words in str(found)) == (status, True)
    sent = answer(found)
    told = json.loads(bytes(sent.body))
    assert sent.media_type == "application/problem+json"
    assert told == {
        "type": "about:blank",
        "title": told["title"],
        "status": status,
        "detail": str(found),
    }


def test_who_may_come_again_is_told_when() -> None:
    assert answer(refused(Busy("x"))).headers["retry-after"] == "2"
    assert answer(refused(Unanswered("x"))).headers["retry-after"] == "2"
    assert "retry-after" not in answer(refused(TooLong("x"))).headers
