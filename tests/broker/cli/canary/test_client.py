"""One client of a canary and a real broker: what is logged, sent again, and said in one line."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.cli.canary.client import CanaryClient, ClientError, Server
from broker.cli.canary.log import CanaryLog
from mqtt.packets import Publish
from tests.durability.process import BrokerProcess, free_port

Start = Callable[..., BrokerProcess]
PATIENCE_S = 60.0


def server(port: int) -> Server:
    """Return a broker of this machine."""
    return Server("127.0.0.1", port, None, None, None)


class Both:
    """A client that publishes to itself."""

    def __init__(self, port: int, log: CanaryLog | None = None) -> None:
        self.got: list[Publish] = []
        self.answers: list[tuple[int, int]] = []
        self.client = CanaryClient(server(port), "both", log, time.monotonic, expiry_s=60)
        self.client.on_message = self.got.append
        self.client.on_acknowledged = lambda *answer: self.answers.append(answer)

    def turn_until(self, what: Callable[[], bool]) -> None:
        """Handle what comes until something is true."""
        deadline = time.monotonic() + PATIENCE_S
        while not what():
            assert time.monotonic() < deadline
            self.client.turn()

    def publish(self, payload: bytes, qos: int) -> int:
        """Publish, without waiting for anything."""
        packet_id = self.client.publish("a/b", payload, qos)
        self.client.flush(packet_id)
        return packet_id


def test_messages_go_around_and_each_step_is_logged(start: Start, tmp_path: Path) -> None:
    log = CanaryLog(str(tmp_path / "log"), lambda: 7)
    both = Both(start().port, log)
    both.client.connect(clean_start=True)
    both.client.subscribe("a/#", 2)
    both.turn_until(lambda: "a/#" in both.client.granted)
    ids = [both.publish(b"one", 1), both.publish(b"two", 2)]
    both.turn_until(lambda: len(both.answers) == len(both.got) == 2)
    assert sorted(both.answers) == [(number, 0) for number in ids]
    assert sorted(publish.payload for publish in both.got) == [b"one", b"two"]
    both.client.leave(expiry_s=0)
    assert (both.client.socket, both.client.connected_at) == (None, None)
    log.close()
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    events = [line["event"] for line in lines]
    assert events[:2] == ["connected", "subscribed"] and events[-2:] == ["disconnected", "closed"]
    assert sorted(events[2:-2]) == [
        *("puback", "pubcomp", "published", "published", "pubrec", "received", "received"),
    ]


def test_what_has_no_answer_is_sent_again_after_a_crash(start: Start) -> None:
    broker = start()
    both = Both(broker.port)
    both.client.connect(clean_start=True)
    both.client.subscribe("a/#", 2)
    both.turn_until(lambda: "a/#" in both.client.granted)
    broker.freeze()
    ids = [both.publish(b"%d" % number, 1 + number % 2) for number in range(10)]
    broker.kill()
    with pytest.raises(ClientError, match="connection lost"):
        both.turn_until(lambda: len(both.answers) == 10)
    assert both.client.socket is None
    broker.start()
    both.client.connect(clean_start=False)
    assert both.client.session_present
    both.turn_until(lambda: len(both.answers) == 10 and len(both.got) == 10)
    assert sorted(packet_id for packet_id, _ in both.answers) == ids
    both.client.close()


def test_nobody_there_and_a_refusal_are_one_line_and_wait_longer_each_time(start: Start) -> None:
    port = free_port()
    client = CanaryClient(server(port), "c", None, lambda: 100.0, expiry_s=0)
    assert client.may_connect(100.0)
    with pytest.raises(ClientError, match=f"cannot connect to 127.0.0.1:{port}: .*refused"):
        client.connect(clean_start=True)
    assert not client.may_connect(100.4) and client.may_connect(100.5)
    with pytest.raises(ClientError):
        client.connect(clean_start=True)
    assert not client.may_connect(100.9) and client.may_connect(101.0)
    broker = start(HOLDFAST__LIMITS__CLIENT_ID_BYTES="23")
    client = CanaryClient(
        server(broker.port), "one character too many!!", None, time.monotonic, expiry_s=0
    )
    with pytest.raises(ClientError, match="refused the connection: reason 0x85"):
        client.connect(clean_start=True)
