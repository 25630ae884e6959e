"""Traces: begun by a form, read by those only who may."""

import html
import re
from collections.abc import Callable

import httpx
import pytest

from tests.broker.admin.pages.scene import csrf_in
from tests.broker.admin.running import Running
from tests.durability.rawclient import RawClient

Browse = Callable[[str], httpx.Client]


def begin(client: httpx.Client, **fields: str) -> httpx.Response:
    """Send the form; follow to what the trace tells."""
    csrf = csrf_in(client.get("/trace").text)
    answer = client.post("/trace", data={"csrf": csrf, "kind": "client", "time": "1m", **fields})
    if answer.status_code != 303:
        return answer
    return client.get(answer.headers["location"])


def test_a_trace_tells_the_packets_of_a_client(port_town: Running, browse: Browse) -> None:
    client = browse("anna")
    page = begin(client, value="traced-<1>", payloads="1")
    assert "The trace has begun." in page.text and "Nothing yet." in page.text
    boat = RawClient(port_town.broker.port, "traced-<1>")
    boat.connect()
    boat.subscribe("t/#")
    boat.publish("t/1", b"<i>hello</i>", qos=1)
    again = client.get(page.url.copy_remove_param("said")).text
    for word in ("CONNECT", "SUBSCRIBE", "t/1", "&lt;i&gt;hello"):
        assert word in again, word
    assert "<i>" not in again
    assert client.get(page.url.copy_remove_param("said")).text.count("SUBSCRIBE") >= 1  # kept
    assert browse("olga").get(page.url).status_code == 403  # it has payloads
    stop = re.search(r'action="(/trace/stop[^"]+)"', again)
    assert stop is not None
    ended = client.post(html.unescape(stop[1]), data={"csrf": csrf_in(again)})
    assert "The trace has ended." in client.get(ended.headers["location"]).text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"kind": "moon", "value": "x"}, "expected a client, a topic filter or an address"),
        ({"value": ""}, "whom?"),
        ({"value": "x", "time": "soon"}, "&#39;soon&#39;: expected a time such as"),
    ],
)
def test_what_was_typed_wrong_is_told_on_the_form(
    browse: Browse, fields: dict[str, str], text: str
) -> None:
    answer = begin(browse("olga"), **fields)
    assert answer.status_code == 400 and text in answer.text


def test_payloads_need_their_permission_also_here(browse: Browse) -> None:
    client = browse("olga")
    assert "payloads" not in client.get("/trace").text
    assert begin(client, value="x", payloads="1").status_code == 403


def test_a_viewer_begins_no_trace(browse: Browse) -> None:
    assert browse("vera").get("/trace").status_code == 403


@pytest.mark.parametrize(("number", "status"), [("99", 404), ("x", 400)])
def test_a_trace_of_somebody_else_is_not_read_here(
    browse: Browse, number: str, status: int
) -> None:
    assert browse("olga").get(f"/trace/lines?trace={number}").status_code == status
