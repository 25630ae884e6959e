"""What an operator changes over HTTP: tried first, then done, and written down."""

import base64
from typing import Any

import httpx
import pytest

from broker.admin.api.table import BASE
from tests.broker.admin.running import Running
from tests.durability.rawclient import Closed, RawClient


def get(running: Running, path: str) -> Any:
    """Return the record at a path."""
    answer = running.http("viewer").get(BASE + path)
    assert answer.status_code == 200, answer.text
    return answer.json()


def outcomes(running: Running, since: int) -> list[tuple[str, str]]:
    """Return what the admin log tells behind some lines."""
    return [(line["what"], line["outcome"]) for line in running.log_lines()[since:]]


def test_a_purge_is_tried_then_done_and_stands_in_both_logs(shared: Running) -> None:
    shared.owe("purged", 3, topic="purged")
    url = BASE + "/sessions/purged/purge"
    operator = shared.http("operator")
    tried = operator.post(url, params={"dry_run": "true"}).json()
    assert tried == {"client_id": "purged", "dry_run": True, "dropped": 3, "in_flight": 0}
    assert get(shared, "/sessions/purged")["waiting"] == 3
    lines = len(shared.log_lines())
    done = operator.post(url, params={"reason": "old data"})
    assert done.json() == {"client_id": "purged", "dry_run": False, "dropped": 3, "in_flight": 0}
    asked, ended = shared.log_lines()[lines:]
    assert (asked["name"], asked["role"], asked["how"]) == ("operator", "operator", "token")
    assert (asked["what"], asked["client_id"], asked["reason"], asked["outcome"]) == (
        "purge session",
        "purged",
        "old data",
        "asked",
    )
    assert (ended["change"], ended["outcome"]) == (asked["change"], "done")
    assert '"operator (http)"' in shared.broker.log()
    shared.wait(lambda: get(shared, "/sessions/purged")["waiting"] == 0)


def test_a_connected_client_is_kicked_for_a_purge_if_that_is_asked_for(shared: Running) -> None:
    client = RawClient(shared.broker.port, "lags")
    client.durable()
    url = BASE + "/sessions/lags/purge"
    operator = shared.http("operator")
    shared.wait(lambda: operator.get(BASE + "/sessions/lags").status_code == 200)
    refused = operator.post(url)
    assert refused.status_code == 409 and "is connected" in refused.json()["detail"]
    client.ping()
    assert operator.post(url, params={"kick": "true"}).json()["dropped"] == 0
    client.expect_closed()


def test_only_what_is_older_is_purged(shared: Running) -> None:
    shared.owe("fresh", 2, topic="fresh")
    operator = shared.http("operator")
    for dry in ("true", "false"):
        answer = operator.post(
            BASE + "/sessions/fresh/purge", params={"older": "1h", "dry_run": dry}
        )
        assert answer.json()["dropped"] == 0


def test_a_session_is_deleted_once(shared: Running) -> None:
    shared.owe("deleted", 2, topic="deleted")
    operator = shared.http("operator")
    tried = operator.delete(BASE + "/sessions/deleted", params={"dry_run": "true"}).json()
    assert tried == {"client_id": "deleted", "dry_run": True, "waiting": 2}
    assert operator.delete(BASE + "/sessions/deleted").json()["waiting"] == 2
    again = operator.delete(BASE + "/sessions/deleted")
    assert again.status_code == 404
    assert shared.log_lines()[-1]["outcome"].startswith("404 ")


def test_only_what_is_on_topics_that_match_is_purged(shared: Running) -> None:
    shared.owe("choosy", 2, topic="choosy/#", publish_to="choosy/a")
    publisher = RawClient(shared.broker.port, "publisher")
    publisher.connect()
    publisher.publish("choosy/b", b"x", qos=1)
    publisher.disconnect()
    operator = shared.http("operator")
    url = BASE + "/sessions/choosy/purge"
    shared.wait(lambda: get(shared, "/sessions/choosy")["waiting"] == 3)
    for dry in ("true", "false"):
        answer = operator.post(url, params={"topic": "choosy/a", "dry_run": dry})
        assert answer.json()["dropped"] == 2, answer.text
    assert operator.post(url, params={"topic": "a/#/b"}).status_code == 400


def test_a_client_that_is_banned_is_sent_away_and_let_in_again(shared: Running) -> None:
    operator = shared.http("operator")
    name = "banned/1"
    client = RawClient(shared.broker.port, name)
    client.connect()
    made = operator.post(
        BASE + "/bans",
        json={"kind": "client-id", "value": name, "for": "1h", "reason": "too loud"},
    )
    assert made.status_code == 200, made.text
    assert (made.json()["value"], made.json()["by"]) == (name, "operator (http)")
    client.expect_closed()
    with pytest.raises((Closed, AssertionError)):
        RawClient(shared.broker.port, name).connect()
    (row,) = get(shared, "/bans")
    assert row["reason"] == "too loud" and 3500 < row["left_seconds"] <= 3600
    path = BASE + "/bans/client-id/banned%2F1"
    assert operator.delete(path).json() == {"kind": "client-id", "value": name}
    assert operator.delete(path).status_code == 404
    assert get(shared, "/bans") == []
    RawClient(shared.broker.port, name).connect()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "name"}, "kind"),
        ({"value": ""}, "$.value"),
        ({"for": "1"}, "$.for"),
        ({"for": "0s"}, "$.for"),
        ({"more": 1}, "more"),
        ({"kind": "address", "value": "nowhere"}, "nowhere"),
    ],
)
def test_a_ban_that_is_none_is_refused_in_one_line(
    shared: Running, change: dict[str, Any], words: str
) -> None:
    body = {"kind": "client-id", "value": "x", "for": "1h", **change}
    answer = shared.http("operator").post(BASE + "/bans", json=body)
    assert answer.status_code in (400, 409)
    assert words in answer.json()["detail"] and "\n" not in answer.json()["detail"]
    assert get(shared, "/bans") == []


def test_a_message_is_published_as_its_fields_say(shared: Running) -> None:
    reader = RawClient(shared.broker.port, "reader")
    reader.connect()
    reader.subscribe("news/#")
    operator = shared.http("operator")
    lines = len(shared.log_lines())
    sent = operator.post(
        BASE + "/publish",
        json={
            "topic": "news/1",
            "payload": base64.b64encode(b"\x00\xff").decode(),
            "qos": 1,
            "retain": True,
            "content_type": "text/plain",
            "user_properties": [["site", "A"]],
            "reason": "a test",
        },
    )
    assert sent.status_code == 200, sent.text
    assert sent.json()["connected"] == 1
    (message,) = reader.take(1)
    assert (message.topic, message.payload) == ("news/1", b"\x00\xff")
    assert b"text/plain" in message.properties and b"site" in message.properties
    asked, _ = shared.log_lines()[lines:]
    assert (asked["what"], asked["topic"], asked["bytes"]) == ("publish", "news/1", 2)
    assert "payload" not in asked
    text = operator.post(BASE + "/publish", json={"topic": "news/2", "text": "hällo", "qos": 0})
    assert text.status_code == 200
    assert reader.take(1)[0].payload == "hällo".encode()
    kept = shared.http("viewer+payloads").get(BASE + "/retained/news%2F1").json()
    assert (kept["content_type"], kept["user_properties"]) == ("text/plain", [["site", "A"]])
    assert kept["correlation_data_base64"] is None and kept["response_topic"] is None
    tried = operator.delete(BASE + "/retained/news%2F1", params={"dry_run": "true"})
    assert tried.json() == {"dry_run": True, "deleted": 1}
    assert operator.delete(BASE + "/retained/news%2F1").json()["deleted"] == 1
    assert operator.delete(BASE + "/retained/news%2F1").status_code == 404
    reader.drop()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"topic": "a"}, "expected text or payload, one of them"),
        ({"topic": "a", "text": "x", "payload": "eA=="}, "one of them"),
        ({"topic": "a", "payload": "?"}, "payload: expected Base64"),
        ({"topic": "a/#", "text": ""}, "a/#"),
        ({"topic": "$SYS/x", "text": ""}, "the broker's own"),
        ({"topic": "a", "text": "", "qos": 3}, "$.qos"),
    ],
)
def test_a_message_that_cannot_be_published_is_refused_in_one_line(
    shared: Running, body: dict[str, Any], words: str
) -> None:
    answer = shared.http("operator").post(BASE + "/publish", json=body)
    assert answer.status_code in (400, 409), answer.text
    assert words in answer.json()["detail"]


def test_retained_messages_that_match_are_deleted_and_all_only_by_name(shared: Running) -> None:
    client = RawClient(shared.broker.port, "retainer")
    client.connect()
    for number in range(3):
        client.publish(f"kept/{number}", b"x", qos=1, retain=True)
    operator = shared.http("operator")
    assert operator.delete(BASE + "/retained").status_code == 400
    shared.wait(lambda: len(get(shared, "/retained?match=kept/%23")["items"]) == 3)
    tried = operator.delete(BASE + "/retained", params={"match": "kept/#", "dry_run": "true"})
    assert tried.json() == {"dry_run": True, "deleted": 3}
    done = operator.delete(BASE + "/retained", params={"match": "kept/#"})
    assert done.json() == {"dry_run": False, "deleted": 3}
    assert get(shared, "/retained?match=kept/%23")["items"] == []
    client.drop()


def test_what_waits_for_a_shared_subscription_is_dropped(shared: Running) -> None:
    shared.owe("worker", 0, topic="$share/crew/jobs")
    publisher = RawClient(shared.broker.port, "publisher")
    publisher.connect()
    for _ in range(3):
        publisher.publish("jobs", b"x", qos=1)
    url = BASE + "/groups/crew/jobs/purge"
    operator = shared.http("operator")
    viewer = shared.http("viewer")
    shared.wait(lambda: viewer.get(BASE + "/groups/crew/jobs").json().get("waiting") == 3)
    assert operator.post(url, params={"dry_run": "true"}).json()["dropped"] == 3
    done = operator.post(url).json()
    assert (done["dry_run"], done["dropped"]) == (False, 3)
    assert operator.post(BASE + "/groups/crew/other/purge").status_code == 404


def test_a_trace_is_begun_read_and_ended(shared: Running) -> None:
    operator = shared.http("operator")
    begun = operator.post(BASE + "/traces", json={"kind": "client", "value": "traced"})
    assert begun.status_code == 200, begun.text
    number = begun.json()["trace"]
    (row,) = operator.get(BASE + "/traces").json()
    assert (row["trace"], row["value"], row["by"]) == (number, "traced", "operator (http)")
    client = RawClient(shared.broker.port, "traced")
    client.connect()
    found: list[Any] = []

    def has_lines() -> bool:
        answer = operator.get(f"{BASE}/traces/{number}/lines").json()
        found.extend(answer["lines"])
        return bool(found)

    shared.wait(has_lines)
    assert operator.delete(f"{BASE}/traces/{number}").json() == {"trace": number}
    assert operator.delete(f"{BASE}/traces/{number + 7}").status_code == 404
    client.drop()


def test_payloads_of_a_trace_need_the_permission_to_begin_and_to_read(shared: Running) -> None:
    body = {"kind": "topic", "value": "told/#", "for": "1m", "payload_bytes": 16}
    assert shared.http("operator").post(BASE + "/traces", json=body).status_code == 403
    reader = shared.http("operator+payloads")
    number = reader.post(BASE + "/traces", json=body).json()["trace"]
    client = RawClient(shared.broker.port, "teller")
    client.connect()

    def told(by: httpx.Client) -> list[Any]:
        client.publish("told/1", b"secret", qos=1)
        lines: list[Any] = []

        def has_publish() -> bool:
            lines.extend(by.get(f"{BASE}/traces/{number}/lines").json()["lines"])
            return any(line.get("topic") == "told/1" for line in lines)

        shared.wait(has_publish)
        return [line.get("payload") for line in lines if line.get("topic") == "told/1"]

    assert b"secret".hex() in told(reader)
    assert set(told(shared.http("operator"))) == {None}
    reader.delete(f"{BASE}/traces/{number}")
    client.drop()


def test_the_level_of_the_log_and_a_reload_are_for_admins(shared: Running) -> None:
    admin = shared.http("admin")
    set_to = admin.post(BASE + "/log-level", json={"level": "debug", "for": "1m"})
    assert set_to.json() == {"level": "debug", "configured": "info"}
    assert admin.post(BASE + "/log-level", json={"level": "loud"}).status_code == 400
    read = admin.post(BASE + "/configuration/reload").json()
    assert read["problems"] == []
    lines = len(shared.log_lines())
    shared.http("operator").post(BASE + "/configuration/reload")
    assert outcomes(shared, lines) == []
