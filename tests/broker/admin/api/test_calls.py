"""Every endpoint for every role, and what each one does to a real broker."""

import asyncio
import base64
import json
import re
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from broker.admin.access.roles import Role
from broker.admin.api.endpoints import Endpoint
from broker.admin.api.table import BASE, ENDPOINTS
from broker.admin.sources.lanes import Unreadable
from broker.admin.sources.orders import Orders, Sorted
from tests.broker.admin.application import Application
from tests.broker.admin.running import KINDS, Running
from tests.durability.rawclient import RawClient

# What an endpoint needs at least, written down a second time: a slip in the table shows here.
LEAST: Final = {
    "me": "viewer",
    "change_password": "viewer",
    "list_clients": "viewer",
    "show_client": "viewer",
    "kick_client": "operator",
    "list_sessions": "viewer",
    "show_session": "viewer",
    "delete_session": "operator",
    "list_queue": "viewer",
    "purge_session": "operator",
    "list_groups": "viewer",
    "show_group": "viewer",
    "purge_group": "operator",
    "list_retained": "viewer",
    "show_retained": "viewer+payloads",
    "delete_retained": "operator",
    "delete_all_retained": "operator",
    "topic_who": "viewer",
    "show_storage": "viewer",
    "list_pins": "viewer",
    "show_backlog": "viewer",
    "reclaim_storage": "operator",
    "restart_check": "viewer",
    "why": "viewer",
    "list_bans": "viewer",
    "ban": "operator",
    "unban": "operator",
    "publish": "operator",
    "list_traces": "operator",
    "trace": "operator",
    "read_trace": "operator",
    "end_trace": "operator",
    "set_log_level": "admin",
    "reload": "admin",
    "watch": "viewer",
    "list_log": "admin",
    "list_tokens": "admin",
    "add_token": "admin",
    "remove_token": "admin",
    "list_users": "admin",
    "add_user": "admin",
    "change_user": "admin",
    "remove_user": "admin",
    "metrics": "viewer",
    "openapi": "viewer",
}
# What each kind of token may do at least as much as.
MAY: Final = {
    "viewer": {"viewer"},
    "viewer+payloads": {"viewer", "viewer+payloads"},
    "operator": {"viewer", "operator"},
    "operator+payloads": {"viewer", "operator", "viewer+payloads"},
    "admin": {"viewer", "operator", "admin"},
}


def path_of(endpoint: Endpoint) -> str:
    """Return the path of an endpoint with names of what is not there."""
    return BASE + re.sub(r"\{(\w+)\}", "nobody", endpoint.path)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda each: each.name)
@pytest.mark.parametrize("kind", ["", *KINDS])
def test_an_endpoint_is_for_its_role_and_those_above(
    shared: Running, endpoint: Endpoint, kind: str
) -> None:
    with shared.http(kind).stream(endpoint.method, path_of(endpoint)) as answer:
        allowed = kind and LEAST[endpoint.name] in MAY[kind]
        if not kind:
            assert answer.status_code == 401
            assert answer.headers["www-authenticate"] == "Bearer"
        elif allowed:
            # What it needs besides is not there, or was not counted yet.
            assert answer.status_code in (200, 400, 404, 409, 415), answer.read()
        else:
            assert answer.status_code == 403
        if answer.status_code >= 400:
            problem = json.loads(answer.read())
            assert answer.headers["content-type"] == "application/problem+json"
            assert problem["status"] == answer.status_code and problem["detail"]


def test_the_table_here_has_every_endpoint_and_whatever_changes_is_not_for_viewers() -> None:
    assert [each.name for each in ENDPOINTS] == list(LEAST)
    for each in ENDPOINTS:
        if each.method != "GET" and each.name != "change_password":
            assert each.role >= Role.OPERATOR, each.name


def get(running: Running, path: str, kind: str = "viewer+payloads", **parameters: Any) -> Any:
    """Return the record at a path."""
    answer = running.http(kind).get(BASE + path, params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def everything(running: Running, path: str, **parameters: Any) -> list[Any]:
    """Return all items of a list, page by page."""
    items: list[Any] = []
    page = get(running, path, **parameters)
    while True:
        items += page["items"]
        if page["next"] is None:
            return items
        page = get(running, path, **parameters, cursor=page["next"])


def test_sessions_are_listed_page_by_page_in_every_order(shared: Running) -> None:
    for number, (count, size) in enumerate([(3, 10), (1, 900), (2, 15), (0, 0), (4, 5)]):
        shared.owe(f"lists/{number}", count, topic=f"lists/{number}", payload=b"x" * size)
    expected = {
        "name": ["lists/0", "lists/1", "lists/2", "lists/3", "lists/4"],
        "messages": ["lists/4", "lists/0", "lists/2", "lists/1", "lists/3"],
        "bytes": ["lists/1", "lists/0", "lists/4", "lists/2", "lists/3"],
        "oldest": ["lists/0", "lists/1", "lists/2", "lists/4", "lists/3"],
        "since": ["lists/0", "lists/1", "lists/2", "lists/3", "lists/4"],
    }
    for order, names in expected.items():
        for limit in (1, 2, 5, 1000):
            rows = everything(shared, "/sessions", sort=order, match="lists/*", limit=limit)
            assert [row["client_id"] for row in rows] == names, (order, limit)
    one = get(shared, "/sessions/lists%2F1")
    assert (one["state"], one["waiting"], one["bytes"]) == ("offline", 1, 900 + len("lists/1"))
    assert [each["topic_filter"] for each in one["subscriptions"]] == ["lists/1"]


def test_an_order_that_takes_long_is_answered_with_202_until_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    application = Application(tmp_path)
    headers = {"Authorization": f"Bearer {application.token()}"}
    go_on = asyncio.Event()
    asking = application.services.asking

    async def sort(key: Hashable) -> Sorted:
        await go_on.wait()
        raise Unreadable("there is no database yet")

    async def story(client: httpx.AsyncClient) -> None:
        monkeypatch.setattr(asking, "_sorted_lists", Orders(sort, wait_s=0.0))
        for _ in range(3):
            answer = await client.get(f"{BASE}/sessions?sort=bytes", headers=headers)
            assert answer.status_code == 202, answer.text
            assert answer.headers["retry-after"] == "5"
            assert set(answer.json()) == {"detail", "seconds"}
        go_on.set()
        while answer.status_code == 202:
            answer = await client.get(f"{BASE}/sessions?sort=bytes", headers=headers)
        assert answer.status_code == 503 and "no database" in answer.text

    application.play(story)


def test_a_queue_is_peeked_at_page_by_page_and_payloads_need_a_permission(shared: Running) -> None:
    shared.owe("queued", 5, topic="queue/a", payload=b"\x00\xffsecret")
    path = "/sessions/queued/queue"
    for limit in (1, 2, 5):
        rows = everything(shared, path, limit=limit)
        assert [row["topic"] for row in rows] == ["queue/a"] * 5
        assert len({row["offset"] for row in rows}) == 5
        assert not any("payload" in row for row in rows)
    told = get(shared, path, payloads="true", limit=1)["items"][0]
    assert base64.b64decode(told["payload"]) == b"\x00\xffsecret"
    refused = shared.http("operator").get(BASE + path, params={"payloads": "true"})
    assert refused.status_code == 403
    assert get(shared, path, topic="queue/b")["items"] == []


def test_a_connected_client_is_shown_and_kicked(shared: Running) -> None:
    name = "boat 17/ä%2F?#"
    client = RawClient(shared.broker.port, name)
    client.connect(keep_alive=30)
    client.subscribe("sea/#")
    level = "~" + base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")
    shown = get(shared, f"/clients/{level}")
    assert (shown["client_id"], shown["keep_alive_seconds"]) == (name, 30)
    assert shown["topic_filters"] == [{"topic_filter": "sea/#", "qos": 1}]
    shared.wait(
        lambda: (
            [row["client_id"] for row in everything(shared, "/clients", match="boat*")] == [name]
        )
    )
    operator = shared.http("operator")
    kicked = operator.post(f"{BASE}/clients/{level}/kick", params={"reason": "too loud"})
    assert kicked.json() == {"client_id": name}
    told = client.expect_closed()
    assert told is not None and told.reason_code == 0x98
    assert everything(shared, "/clients", match="boat*") == []
    assert operator.post(f"{BASE}/clients/{level}/kick").status_code == 404


def test_groups_topics_and_retained_messages_are_told(shared: Running) -> None:
    member = RawClient(shared.broker.port, "member")
    member.durable()
    member.subscribe("$share/g/work/+", "$share/h/work/+", "work/1")
    member.publish("work/1", b"\x01kept", qos=1, retain=True)
    member.publish("work/2", b"", qos=1, retain=True)
    groups = everything(shared, "/groups", limit=1)
    assert [(each["share_name"], each["topic_filter"]) for each in groups] == [
        ("g", "work/+"),
        ("h", "work/+"),
    ]
    one = get(shared, "/groups/g/work%2F%2B")
    assert one["members"] == 1 and one["first_members"][0]["client_id"] == "member"
    readers = get(shared, "/topics/work%2F1/who")
    assert [each["client_id"] for each in readers["sessions"]] == ["member"]
    assert readers["groups_count"] == 2
    assert [each["topic"] for each in everything(shared, "/retained", match="work/#")] == ["work/1"]
    message = get(shared, "/retained/work%2F1")
    assert base64.b64decode(message["payload"]) == b"\x01kept"
    assert not message["payload_is_cut"]
    member.drop()


def test_the_whole_is_told(shared: Running) -> None:
    storage = get(shared, "/storage")
    assert storage["generations"] >= 1
    reclaimed = shared.http("operator").post(BASE + "/storage/reclaim").json()
    assert set(reclaimed) == set(storage)
    check = get(shared, "/restart-check")
    assert check["is_safe"] and check["against_it"] == [] and check["sentences"]
    why = get(shared, "/why/nobody", topic="a/b", since="2h")
    assert why["now"][0].startswith("it has no stored session")
    assert get(shared, "/me") == {
        "name": "viewer-payloads",
        "role": "viewer",
        "payloads": True,
        "how": "token",
    }


def test_what_is_owed_and_who_needs_what_is_told_as_it_was_counted(
    run_one: Callable[..., Running],
) -> None:
    running = run_one(HOLDFAST__METRICS__BACKLOG_INTERVAL="1s")
    running.owe("boat", 3, topic="sea", payload=b"x" * 97)
    viewer = running.http("viewer")

    def counted() -> bool:
        answer = viewer.get(BASE + "/backlog")
        return answer.status_code == 200 and answer.json()["messages"] == 3

    running.wait(counted)
    told = viewer.get(BASE + "/backlog").json()
    assert (told["bytes"], told["sessions"], told["problem"]) == (300, 1, "")
    assert told["top"][0]["client_id"] == "boat"
    (generation,) = viewer.get(BASE + "/storage/pins").json()
    assert generation["largest_sessions"] == [{"name": "boat", "messages": 3}]


def test_who_has_access_and_who_used_it_is_told_to_admins(shared: Running) -> None:
    tokens = get(shared, "/tokens", "admin")
    assert {each["name"] for each in tokens} == {kind.replace("+", "-") for kind in KINDS}
    assert not any(secret in json.dumps(tokens) for secret in shared.tokens.values())
    assert get(shared, "/users", "admin") == []
    shared.http("operator").post(BASE + "/storage/reclaim")
    first = get(shared, "/log", "admin", limit=1)
    assert first["items"][0]["what"] == "reclaim storage"
    assert first["items"][0]["from"] == "127.0.0.1"
    second = get(shared, "/log", "admin", limit=1, cursor=first["next"])
    assert second["items"][0]["outcome"] == "asked"
    assert second["items"][0]["change"] == first["items"][0]["change"]
