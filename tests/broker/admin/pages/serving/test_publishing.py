"""A message is published with a form."""

from collections.abc import Callable

import httpx

from tests.broker.admin.pages.scene import csrf_in
from tests.broker.admin.running import Running
from tests.durability.rawclient import RawClient

Browse = Callable[[str], httpx.Client]


def test_a_subscriber_gets_what_was_typed_and_the_log_does_not_have_it(
    port_town: Running, browse: Browse
) -> None:
    reader = RawClient(port_town.broker.port, "form-reader")
    reader.connect()
    reader.subscribe("form/1")
    client = browse("olga")
    page = client.get("/publish?topic=form/1").text
    assert 'value="form/1"' in page
    fields = {"topic": "form/1", "payload": "first\r\nsecond", "qos": "1", "retain": "1"}
    fields |= {"content_type": "text/plain", "properties": "unit=m", "expires": "1h"}
    answer = client.post("/publish", data={"csrf": csrf_in(page), "written": "text", **fields})
    assert answer.status_code == 303, answer.text
    after = client.get(answer.headers["location"]).text
    assert "The message on form/1 is stored; 1 subscription gets it." in after
    message = reader.expect_publish()
    assert message.payload == b"first\nsecond"
    retained = browse("anna").get("/retained?topic=form/1").text
    assert "second" in retained
    assert "text/plain" in retained and "User properties" in retained and "unit" in retained
    hidden = browse("vera").get("/retained?topic=form/1").text
    assert "text/plain" not in hidden and "User properties" not in hidden
    lines = [each for each in port_town.log_lines() if each.get("topic") == "form/1"]
    assert (lines[0]["what"], lines[0]["bytes"], lines[0]["name"]) == ("publish", 12, "olga")
    assert "second" not in str(port_town.log_lines())


def test_what_was_typed_wrong_is_told_and_stays_in_the_form(browse: Browse) -> None:
    client = browse("olga")
    csrf = csrf_in(client.get("/publish").text)
    for fields, text in (
        ({"topic": "a/#"}, "a/#"),
        ({"topic": "a", "written": "base64", "payload": "?"}, "expected Base64"),
        ({"topic": "$SYS/x"}, "$SYS"),
    ):
        answer = client.post("/publish", data={"csrf": csrf, "reason": "kept", **fields})
        assert answer.status_code == 400 and text in answer.text, answer.text
        assert 'value="kept"' in answer.text
