"""Bans: made and removed by forms, and told in the admin log."""

import html
import re
from collections.abc import Callable

import httpx
import pytest

from mqtt import reasons
from tests.broker.admin.pages.scene import csrf_in
from tests.broker.admin.running import Running
from tests.durability.rawclient import RawClient

Browse = Callable[[str], httpx.Client]


def ban(client: httpx.Client, **fields: str) -> httpx.Response:
    """Send the form; follow to the page after it."""
    csrf = csrf_in(client.get("/bans").text)
    answer = client.post("/bans", data={"csrf": csrf, "time": "1h", **fields})
    return client.get(answer.headers["location"]) if answer.status_code == 303 else answer


def test_a_banned_client_is_refused_until_the_ban_is_removed(
    port_town: Running, browse: Browse
) -> None:
    client = browse("olga")
    page = ban(client, kind="client-id", value="flood-1", reason="floods").text
    assert "flood-1 is banned for 1h." in page and "floods" in page
    RawClient(port_town.broker.port, "flood-1").connect(reason=reasons.BANNED)
    remove = re.search(r'action="(/bans/remove[^"]+)"', page)
    assert remove is not None
    path = html.unescape(remove[1])
    ended = client.post(path, data={"csrf": csrf_in(page)})
    assert "not banned any more" in client.get(ended.headers["location"]).text
    RawClient(port_town.broker.port, "flood-1").connect()
    lines = [each for each in port_town.log_lines() if each.get("value") == "flood-1"]
    assert [each["what"] for each in lines] == ["ban", "remove ban"]
    assert client.post(path, data={"csrf": csrf_in(page)}).status_code in (404, 409)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"kind": "moon", "value": "x"}, "expected a client id, a user or an address"),
        ({"kind": "user", "value": ""}, "whom?"),
        ({"kind": "user", "value": "x", "time": "soon"}, "&#39;soon&#39;: expected a time"),
        ({"kind": "address", "value": "nowhere"}, "nowhere"),
    ],
)
def test_what_was_typed_wrong_is_told_on_the_form(
    browse: Browse, fields: dict[str, str], text: str
) -> None:
    answer = ban(browse("olga"), **fields)
    assert answer.status_code == 400 and text in answer.text


def test_a_viewer_bans_nobody(browse: Browse) -> None:
    client = browse("vera")
    assert client.get("/bans").status_code == 403
    assert "/bans" not in client.get("/connections").text
    assert browse("olga").get("/bans/remove?kind=user&value=x").status_code == 405
