"""What is changed: shown first, done by a form, and told in the admin log."""

import html
import re
from collections.abc import Callable

import httpx
import pytest

from tests.broker.admin.pages.scene import csrf_in, owe
from tests.broker.admin.running import Running
from tests.durability.rawclient import RawClient

Browse = Callable[[str], httpx.Client]
ACTION = re.compile(r'<form class="sheet" method="post" action="([^"]+)"')


def submit(client: httpx.Client, path: str, **fields: str) -> httpx.Response:
    """Open the page that asks, and send its form; follow to the page after it."""
    page = client.get(path)
    assert page.status_code == 200, page.text
    found = ACTION.search(page.text)
    assert found is not None, page.text
    data = {"csrf": csrf_in(page.text), **fields}
    answer = client.post(html.unescape(found[1]), data=data)
    assert answer.status_code == 303, answer.text
    return client.get(answer.headers["location"])


def outcomes(running: Running, what: str, client_id: str) -> list[str]:
    """Return how the changes of this kind to a client ended."""
    lines = running.log_lines()
    keys = {
        each["change"]
        for each in lines
        if each["what"] == what and each.get("client_id") == client_id
    }
    return [each["outcome"] for each in lines if each.get("change") in keys]


def test_a_purge_drops_what_it_showed(port_town: Running, browse: Browse) -> None:
    owe(port_town, "p-1", 4, topic="p/1")
    client = browse("olga")
    page = client.get("/session/purge?id=p-1").text
    assert "4 messages would be dropped, for good." in page
    assert outcomes(port_town, "purge session", "p-1") == []
    young = client.get("/session/purge?id=p-1&older=2d").text
    assert (
        "No message older than 2d waits for it" in young and '<button class="danger"' not in young
    )
    after = submit(client, "/session/purge?id=p-1", reason="old").text
    assert "4 messages dropped; that is durable." in after
    assert outcomes(port_town, "purge session", "p-1") == ["asked", "done"]
    again = client.get("/session?id=p-1").text
    assert "It is owed nothing." in again and "that is durable" not in again


def test_a_time_that_is_none_is_told(browse: Browse) -> None:
    page = browse("olga").get("/session/purge?id=boat-17&older=soon").text
    assert "&#39;soon&#39;: expected a time such as 45s" in page
    assert '<button class="danger"' not in page


def test_a_deleted_session_is_gone(port_town: Running, browse: Browse) -> None:
    owe(port_town, "d/../1", 2, topic="d/1")
    client = browse("olga")
    path = "/session/delete?id=d/../1"
    assert "2 messages that wait for it would be gone." in client.get(path).text
    assert "The session of d/../1 is deleted." in submit(client, path).text
    assert client.get("/session?id=d/../1").status_code == 404
    assert outcomes(port_town, "delete session", "d/../1") == ["asked", "done"]


@pytest.mark.parametrize(("durable", "place"), [(True, "/session?id=k-1"), (False, "/connections")])
def test_a_kicked_client_is_told_why(
    port_town: Running, browse: Browse, durable: bool, place: str
) -> None:
    loud = RawClient(port_town.broker.port, "k-1")
    loud.connect(clean_start=True, expiry=60 if durable else 0)
    after = submit(browse("olga"), "/client/kick?id=k-1", reason="too loud")
    assert "The connection of k-1 has ended." in after.text
    assert str(after.url.copy_remove_param("said").raw_path.decode()) == place
    left = loud.expect_closed()
    assert left is not None and left.reason_string == "too loud"


def test_a_connected_client_is_kicked_for_a_purge(port_town: Running, browse: Browse) -> None:
    owe(port_town, "lags-1", 3, topic="lags/1")
    client = RawClient(port_town.broker.port, "lags-1")
    assert client.resume(receive_maximum=1).session_present
    olga = browse("olga")
    page = olga.get("/session/purge?id=lags-1").text
    assert "Its connection ends first, and it cannot come back until this is done." in page
    after = submit(olga, "/session/purge?id=lags-1").text
    assert "2 messages dropped; that is durable." in after
    client.expect_closed()
    assert outcomes(port_town, "purge session", "lags-1") == ["asked", "done"]


def test_a_reason_that_is_too_long_changes_nothing(port_town: Running, browse: Browse) -> None:
    client = browse("olga")
    csrf = csrf_in(client.get("/session/delete?id=boat-17").text)
    data = {"csrf": csrf, "reason": "x" * 2000}
    answer = client.post("/session/delete?id=boat-17", data=data)
    assert answer.status_code == 400 and "the reason: expected at most" in answer.text
    assert client.get("/session?id=boat-17").status_code == 200


def test_what_the_broker_refuses_is_told_and_logged(port_town: Running, browse: Browse) -> None:
    client = browse("olga")
    csrf = csrf_in(client.get("/").text)
    answer = client.post("/session/purge?id=there-1", data={"csrf": csrf})
    assert answer.status_code == 409 and "is connected" in answer.text
    started, ended = outcomes(port_town, "purge session", "there-1")
    assert started == "asked" and ended.startswith("409 ")


def test_reclaim_is_asked_for_with_a_form(port_town: Running, browse: Browse) -> None:
    client = browse("olga")
    csrf = csrf_in(client.get("/storage").text)
    answer = client.post("/storage/reclaim", data={"csrf": csrf})
    assert "generation is closed" in client.get(answer.headers["location"]).text
    assert client.get("/storage/reclaim").status_code == 405


def test_a_retained_message_is_deleted_after_a_question(port_town: Running, browse: Browse) -> None:
    publisher = RawClient(port_town.broker.port, "publisher")
    publisher.connect()
    publisher.publish("r/1", b"x", qos=1, retain=True)
    client = browse("olga")
    assert "/retained/delete?topic=r%2F1" in client.get("/retained?topic=r/1").text
    assert "/retained/delete" not in browse("vera").get("/retained?topic=r/1").text
    after = submit(client, "/retained/delete?topic=r/1", reason="wrong").text
    assert "The retained message on r/1 is deleted." in after
    assert client.get("/retained?topic=r/1").status_code == 404
    assert client.get("/retained/delete?topic=r/1").status_code == 404
    assert client.get("/retained/delete?topic=a/%23").status_code == 400


def test_a_purge_by_topic_leaves_the_others(port_town: Running, browse: Browse) -> None:
    boat = RawClient(port_town.broker.port, "p-2")
    boat.durable()
    boat.subscribe("pt/+")
    boat.disconnect()
    publisher = RawClient(port_town.broker.port, "publisher")
    publisher.connect()
    for topic in ("pt/1", "pt/2", "pt/2"):
        publisher.publish(topic, b"x", qos=1)
    client = browse("olga")
    path = "/session/purge?id=p-2&topic=pt/2"
    assert "2 messages on topics that match pt/2 would be dropped" in client.get(path).text
    assert "must be last" in client.get("/session/purge?id=p-2&topic=a/%23/b").text
    after = submit(client, path)
    assert "2 messages dropped" in after.text
    queue = client.get("/session?id=p-2&topic=pt/1").text
    assert queue.count("pt/1</bdi>") == 1
