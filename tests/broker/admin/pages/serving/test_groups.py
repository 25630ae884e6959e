"""A shared group: its page, and the purge of what waits for it."""

from collections.abc import Callable

import httpx

from tests.broker.admin.pages.scene import csrf_in
from tests.broker.admin.pages.serving.test_actions import submit
from tests.broker.admin.running import Running
from tests.durability.rawclient import RawClient

Browse = Callable[[str], httpx.Client]


def owe_group(running: Running, name: str, *topics: str) -> None:
    """Make a group whose member is away, to which messages are owed."""
    member = RawClient(running.broker.port, f"member-of-{name}")
    member.durable()
    member.subscribe(f"$share/{name}/g/{name}/#")
    member.disconnect()
    publisher = RawClient(running.broker.port, "publisher")
    publisher.connect()
    for topic in topics:
        publisher.publish(f"g/{name}/{topic}", b"x", qos=1)
    publisher.disconnect()


def test_a_purge_drops_what_waits_for_the_group_and_is_in_both_logs(
    port_town: Running, browse: Browse
) -> None:
    owe_group(port_town, "pumps", "1", "1", "2")
    client = browse("olga")
    assert "/group?name=pumps" in client.get("/topics").text
    path = "/group?name=pumps&filter=g/pumps/%23"
    page = client.get(path).text
    assert "member-of-pumps" in page and "/group/purge?name=pumps" in page
    assert "/group/purge" not in browse("vera").get(path).text
    purge = path.replace("/group", "/group/purge")
    assert "3 messages wait for it." in client.get(purge).text
    after = submit(client, f"{purge}&topic=g/pumps/1", reason="half").text
    assert "2 messages dropped; that is durable." in after
    assert "1 message dropped" in submit(client, purge, reason="rest").text
    assert "nothing would be dropped" in client.get(purge).text
    lines = [each for each in port_town.log_lines() if each.get("share_name") == "pumps"]
    assert [(each["what"], each["topic_filter"], each["topic"]) for each in lines] == [
        ("purge group", "g/pumps/#", "g/pumps/1"),
        ("purge group", "g/pumps/#", ""),
    ]


def test_what_was_chosen_wrong_is_told_and_drops_nothing(
    port_town: Running, browse: Browse
) -> None:
    owe_group(port_town, "fans", "1")
    client = browse("olga")
    path = "/group/purge?name=fans&filter=g/fans/%23"
    csrf = csrf_in(client.get(path).text)
    for wrong, text in (("older=soon", "expected a time"), ("topic=a/%23/b", "must be last")):
        assert text in client.get(f"{path}&{wrong}").text
        answer = client.post(f"{path}&{wrong}", data={"csrf": csrf})
        assert answer.status_code == 400 and text in answer.text
    assert "1 message waits for it." in client.get(path).text
