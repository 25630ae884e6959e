"""What somebody gets who asks for a page in vain."""

from starlette.requests import Request

from broker.admin.pages.routes import error_page
from broker.admin.problems import Refused


def test_an_error_has_its_status_and_its_headers() -> None:
    request = Request({"type": "http", "method": "GET", "path": "/", "headers": [], "state": {}})
    answer = error_page(request, Refused(429, "wait", retry_s=7))
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
