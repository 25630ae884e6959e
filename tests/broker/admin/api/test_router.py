"""Paths, parameters and bodies: each is found and read, or named in one line."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import Mount

from broker.admin.access.roles import Role
from broker.admin.api import values
from broker.admin.api.endpoints import Call, Endpoint
from broker.admin.api.router import Router
from broker.admin.api.table import BASE
from broker.admin.pages.routes import error_page
from broker.admin.web.gate import Gate
from broker.admin.web.hygiene import Hygiene
from broker.admin.web.origins import Origins
from tests.broker.admin.application import URL, Application


class Thing(msgspec.Struct, forbid_unknown_fields=True):
    """A thing."""

    name: str
    size: int = 1


async def tell(call: Call) -> Any:
    """Return what was understood."""
    return {"values": call.values, "body": call.body, "who": call.who.name}


NAMED: Final = values.in_path("name", "a name")
TABLE: Final = (
    Endpoint("GET", "/things", "list", Role.VIEWER, "all", tell, dict, values.LIMITED, values.SORT),
    Endpoint("POST", "/things", "make", Role.OPERATOR, "make", tell, dict, body=Thing),
    Endpoint("GET", "/things/{name}", "one", Role.VIEWER, "one", tell, dict, NAMED),
    Endpoint(
        "GET", "/things/{name}/parts", "parts", Role.VIEWER, "parts", tell, dict, NAMED,
        values.OFFLINE,
    ),
    Endpoint("GET", "/secret", "secret", Role.VIEWER, "payload", tell, dict, is_payload=True),
)  # fmt: skip
Ask: Final = Callable[..., Awaitable[httpx.Response]]


@pytest.fixture
def ask(tmp_path: Path) -> Any:
    """Return a function that asks the router of the table, as an operator."""
    application = Application(tmp_path)
    tokens = {
        "viewer": application.token(Role.VIEWER),
        "operator": application.token(Role.OPERATOR),
        "reader": application.token(Role.VIEWER, payloads=True, name="reader"),
    }
    app = Starlette(
        routes=[Mount(BASE, app=Router(application.services, TABLE))],
        middleware=[
            Middleware(Hygiene, names=None),
            Middleware(
                Gate,
                services=application.services,
                error_page=error_page,
                origins=Origins(()),
            ),
        ],
    )

    def ask_one(method: str, path: str, *, kind: str = "operator", **more: Any) -> httpx.Response:
        async def run() -> httpx.Response:
            transport = httpx.ASGITransport(app)
            headers = {"Authorization": f"Bearer {tokens[kind]}", **more.pop("headers", {})}
            async with httpx.AsyncClient(transport=transport, base_url=URL) as client:
                return await client.request(method, BASE + path, headers=headers, **more)

        return asyncio.run(run())

    yield ask_one
    application.services.close()


@pytest.mark.parametrize(
    ("level", "name"),
    [
        ("plain", "plain"),
        ("a%2Fb", "a/b"),
        ("%C3%A4%20%25%3F%23", "ä %?#"),
        ("~Li4", ".."),
        ("~fg", "~"),
        ("%7Efg", "%7Efg"),
        ("a+b", "a+b"),
    ],
)
def test_any_name_can_be_a_level_of_a_path(ask: Any, level: str, name: str) -> None:
    if level.startswith("%7E"):
        name = "~fg"  # only the sign itself says Base64url
    assert ask("GET", f"/things/{level}").json()["values"]["name"] == name
    assert ask("GET", f"/things/{level}/parts").json()["values"]["name"] == name


@pytest.mark.parametrize("level", ["%FF", "~!", "~a", "~_w", "%00", "a%00b"])
def test_a_level_that_is_no_name_is_told(ask: Any, level: str) -> None:
    answer = ask("GET", f"/things/{level}")
    assert answer.status_code == 400
    assert answer.json()["detail"].startswith("name = ")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("limit=0", "limit = '0': expected a number from 1 to 1000"),
        ("limit=1001", "expected a number from 1 to 1000"),
        ("limit=-1", "expected a number"),
        ("limit=٣", "expected a number"),
        ("limit=", "expected a number"),
        ("limit=1&limit=2", "limit is given twice"),
        ("sort=size", "expected one of name, bytes, messages, oldest, since"),
        ("Limit=1", "unknown parameter 'Limit': expected limit, sort"),
        ("name=x", "unknown parameter 'name'"),
        ("limit", "is not name=value"),
        ("limit=%FF", "is not name=value"),
        ("&".join(f"a{each}=1" for each in range(30)), "is not name=value"),
    ],
)
def test_a_parameter_that_is_wrong_is_named_with_what_was_expected(
    ask: Any, query: str, words: str
) -> None:
    answer = ask("GET", f"/things?{query}")
    assert answer.status_code == 400
    assert words in answer.json()["detail"]


def test_parameters_that_are_not_given_have_their_defaults(ask: Any) -> None:
    assert ask("GET", "/things").json()["values"] == {"limit": 50, "sort": "name"}
    told = ask("GET", "/things?limit=7&sort=bytes").json()
    assert told["values"] == {"limit": 7, "sort": "bytes"}


def test_what_is_not_there_and_methods_that_are_not_allowed_are_told(ask: Any) -> None:
    for path in ("/", "/nothing", "/things/a/b/c", "/things/a/nothing", "//things"):
        assert ask("GET", path).status_code == 404, path
    wrong = ask("DELETE", "/things")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "GET, POST")
    assert ask("HEAD", "/things").status_code == 200


def test_the_role_and_the_permission_are_asked_for_before_anything_is_read(ask: Any) -> None:
    assert ask("POST", "/things?nonsense", kind="viewer").status_code == 403
    assert ask("GET", "/secret", kind="operator").status_code == 403
    assert ask("GET", "/secret", kind="reader").status_code == 200


@pytest.mark.parametrize(
    ("content", "content_type", "status", "words"),
    [
        (b'{"name": "a"}', "application/json", 200, ""),
        (b'{"name": "a", "size": 2}', "application/json; charset=utf-8", 200, ""),
        (b'{"name": "a"}', "text/plain", 415, "expected application/json"),
        (b'{"name": "a"}', "", 415, "expected application/json"),
        (b'{"name": 1}', "application/json", 400, "Expected `str`, got `int` - at `$.name`"),
        (b'{"name": "a", "more": 1}', "application/json", 400, "unknown field `more`"),
        (b"{", "application/json", 400, "the body: "),
        (b"", "application/json", 400, "the body: "),
        (b"[" * 100_000, "application/json", 400, "the body: "),
        (b'{"name": "\xff"}', "application/json", 400, "the body: "),
    ],
)
def test_a_body_is_the_record_that_is_expected_or_named(
    ask: Any, content: bytes, content_type: str, status: int, words: str
) -> None:
    headers = {"Content-Type": content_type} if content_type else {}
    answer = ask("POST", "/things", content=content, headers=headers)
    assert answer.status_code == status, answer.text
    assert words in answer.text.replace('\\"', '"')
    if status == 200:
        assert json.loads(content)["name"] == answer.json()["body"]["name"]
