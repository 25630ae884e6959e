"""The table of pages: each is reached by its methods, and nothing else is."""

from starlette.requests import Request
from starlette.routing import Route

from broker.admin.pages.routes import ROUTES, error_page
from broker.admin.problems import Refused


def test_only_what_changes_something_takes_a_form() -> None:
    changing = {
        route.path for route in ROUTES if isinstance(route, Route) and "POST" in route.methods
    }
    assert changing == {
        "/access/token/remove",
        "/access/tokens",
        "/access/user",
        "/access/user/remove",
        "/access/users",
        "/bans",
        "/bans/remove",
        "/broker/log-level",
        "/broker/reload",
        "/client/kick",
        "/group/purge",
        "/password",
        "/publish",
        "/retained/delete",
        "/session/delete",
        "/session/purge",
        "/storage/reclaim",
        "/trace",
        "/trace/stop",
    }


def test_no_page_has_a_name_of_a_client_in_its_path() -> None:
    paths = [route.path for route in ROUTES if isinstance(route, Route)]
    assert [path for path in paths if "{" in path] == ["/static/{name:path}"]
    assert not [path for path in paths if path.startswith("/api")]


def test_an_error_for_a_program_has_its_status_and_its_headers() -> None:
    request = Request({"type": "http", "method": "GET", "path": "/", "headers": [], "state": {}})
    answer = error_page(request, Refused(429, "wait", retry_s=7))
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
