"""paho-mqtt with a log: what it calls back is logged, in an order that can be judged."""

import json
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from audit.clients.records import parsed
from holdfast_mqtt.client_log import ClientLog
from holdfast_mqtt.paho_log import LoggedClient


class Logged:
    """A client without a broker: the test calls back what paho would."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.client = LoggedClient(ClientLog(path, "c"), protocol=paho.MQTTv5)

    def lines(self) -> list[dict[str, Any]]:
        """Return the records, which must be good."""
        texts = self.path.read_text().splitlines()
        assert [parsed(text)[1] for text in texts] == [None] * len(texts)
        return [json.loads(text) for text in texts]


@pytest.fixture
def logged(tmp_path: Path) -> Logged:
    """A client with an empty log."""
    return Logged(tmp_path / "log")


def message(mid: int, qos: int) -> paho.MQTTMessage:
    """Return a message as paho hands it over."""
    made = paho.MQTTMessage(mid=mid, topic=b"t")
    made.qos, made.payload = qos, b"one"
    return made


def test_a_message_is_logged_before_its_answer_even_if_paho_is_quicker(
    logged: Logged,
) -> None:
    client = logged.client
    reason = ReasonCode(PacketTypes.PUBACK, "Success")
    told: list[int] = []
    client.on_publish = lambda client, userdata, mid, reason, properties: told.append(mid)
    first = client.publish("t", "one", 1)  # not connected: paho keeps it
    with client._answers.asking():  # another thread is about to send
        client.on_publish(client, None, first.mid, reason, None)
        client.on_publish(client, None, first.mid + 1, reason, None)
        second = client.publish("t", b"two", 2, retain=True)
    assert told == [first.mid, second.mid]
    assert [(line["event"], line["pid"]) for line in logged.lines()] == [
        ("published", first.mid),
        ("puback", first.mid),
        ("published", second.mid),
        ("pubcomp", second.mid),
    ]
    assert [line["bytes"] for line in logged.lines()[::2]] == [3, 3]
    client.publish("t", None, 0)
    last = logged.lines()[-1]
    assert (last["event"], last["pid"], last["bytes"]) == ("published", 0, 0)


def test_a_message_for_several_callbacks_is_logged_once(logged: Logged) -> None:
    client = logged.client
    seen: list[str] = []
    client.on_message = lambda *_: seen.append("all")
    for name in ("t", "+"):
        client.message_callback_add(name, lambda *_, name=name: seen.append(name))
    client._handle_on_message(message(7, 2))
    client._handle_on_message(message(7, 2))  # another one
    client.message_callback_remove("t")
    client.message_callback_remove("+")
    client._handle_on_message(message(0, 0))
    assert sorted(seen) == ["+", "+", "all", "t", "t"]
    assert [(line["event"], line["pid"], line["qos"]) for line in logged.lines()] == [
        ("received", 7, 2),
        ("received", 7, 2),
        ("received", 0, 0),
    ]


def test_a_connection_is_logged_with_the_will_it_has(logged: Logged) -> None:
    client = logged.client
    client.will_set("w", "gone", 1, True)
    client.connect_async("broker", 1234)
    flags = paho.ConnectFlags(session_present=True)
    client.on_connect(client, None, flags, ReasonCode(PacketTypes.CONNACK, "Success"), None)
    client.on_connect(client, None, flags, ReasonCode(PacketTypes.CONNACK, "Banned"), None)
    ended = paho.DisconnectFlags(is_disconnect_packet_from_server=True)
    client.on_disconnect(
        client, None, ended, ReasonCode(PacketTypes.DISCONNECT, "Server busy"), None
    )
    client.will_clear()
    client.on_connect(client, None, flags, ReasonCode(PacketTypes.CONNACK, "Success"), None)
    client.log.close()
    first, second, third, fourth = logged.lines()
    assert (first["session_present"], first["server"]) == (True, "broker:1234")
    assert (first["will_topic"], first["will_bytes"], first["will_retain"]) == ("w", 4, True)
    assert (second["event"], second["reason"]) == ("disconnected", 0x89)
    assert "will_topic" not in third and fourth["event"] == "closed"


def test_filters_are_logged_with_what_was_granted(logged: Logged) -> None:
    client = logged.client
    granted = [
        ReasonCode(PacketTypes.SUBACK, "Granted QoS 1"),
        ReasonCode(PacketTypes.SUBACK, "Not authorized"),
    ]
    client._filters._asked[5] = ("subscribed", ["a", "b"])
    client.on_subscribe(client, None, 5, granted, None)
    client.on_subscribe(client, None, 5, granted, None)  # of nobody
    client._filters._asked[6] = ("unsubscribed", ["a"])
    client.on_unsubscribe(client, None, 6, [], None)
    assert [(line["event"], line["filter"], line["reason"]) for line in logged.lines()] == [
        ("subscribed", "a", 1),
        ("subscribed", "b", 0x87),
        ("unsubscribed", "a", 0),
    ]


@pytest.mark.filterwarnings("ignore:Callback API version 1:DeprecationWarning")
def test_callbacks_of_version_1_and_another_client_id_are_refused(tmp_path: Path) -> None:
    log = ClientLog(tmp_path / "log", "c")
    with pytest.raises(ValueError, match="callback_api_version: expected VERSION2"):
        LoggedClient(log, callback_api_version=CallbackAPIVersion.VERSION1)
    with pytest.raises(ValueError, match="client_id: expected that of the log, 'c'"):
        LoggedClient(log, client_id="d")
    log.close()
