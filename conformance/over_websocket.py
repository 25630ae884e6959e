"""The four statements on MQTT over WebSocket (section 6), which are the same in both versions.

`v311/websocket.py` and `v50/websocket.py` declare the checks. Every function takes a bench whose
check has needs=("websocket",).
"""

import contextlib
from collections.abc import Callable
from typing import Final

from conformance import tables, wire
from conformance.check import Bench
from conformance.client import Client
from conformance.packets import Publish, Suback
from conformance.websocket import (
    BINARY,
    CONTINUATION,
    PING,
    PONG,
    TEXT,
    WebSocket,
    among_empty,
    as_text,
    frame,
    in_bytes,
    in_one_frame,
    in_parts,
    upgrade_request,
)

FRAMINGS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "one frame": in_one_frame,
    "a frame per byte": in_bytes,
    "fragments with pings between them": in_parts,
    "empty frames in between": among_empty,
}


def open_websocket(bench: Bench, subprotocols: str | None = "mqtt") -> WebSocket:
    """Return a WebSocket to the bench's broker, accepted or refused; the caller closes it."""
    broker = bench.broker
    request = upgrade_request(broker.host, broker.websocket_port, subprotocols=subprotocols)
    try:
        return WebSocket.open(
            broker.host, broker.websocket_port, timeout=bench.patience, request=request
        )
    except OSError as problem:
        bench.fail(f"cannot open a connection to the broker: {problem}", expected="a connection")


def client_over(
    bench: Bench,
    name: str,
    *,
    connect: bool = True,
    framing: Callable[[bytes], bytes] | None = None,
) -> tuple[Client, WebSocket]:
    """Return a client over a WebSocket, and the WebSocket."""
    stream = open_websocket(bench)
    if not stream.opened:
        stream.close()
        bench.fail(
            f"the upgrade is answered with status {stream.response.status}", expected="status 101"
        )
    if framing is not None:
        stream.framing = framing
    return bench.client(name, connect=connect, stream=stream), stream


def binary_frames_only(bench: Bench) -> None:
    """The broker sends binary frames, and closes the connection on any other data frame."""
    bench.start(websocket=True)
    topic = bench.topic("t")
    client, stream = client_over(bench, "asking")
    client.subscribe(topic, 1)
    assert client.connack is not None
    limit = client.connack.properties.number(tables.MAXIMUM_PACKET_SIZE) or wire.VARINT_MAX
    for size in (0, 100, 125, 126, 1000, 65_535, 65_536, 200_000):
        if size + len(topic) + 20 > limit:
            break
        with bench.case(f"a message of {size} bytes"):
            client.publish(topic, bytes(size), 1)
            client.expect_publish(topic, bytes(size))
    client.ping()
    strange = set(stream.opcodes) - {BINARY, CONTINUATION, PING, PONG}
    if strange:
        bench.fail(f"frames with opcodes {sorted(strange)}", expected="binary frames, opcode 2")
    client.disconnect()

    with bench.case("CONNECT in a text frame"):
        refused, _ = client_over(bench, "text", connect=False, framing=as_text)
        refused.send(wire.connect(refused.client_id, version=bench.version))
        refused.expect_silent_close()
    texts = {
        "PINGREQ in a text frame": frame(TEXT, wire.pingreq()),
        "letters in a text frame": frame(TEXT, b"hello"),
        "an empty text frame": frame(TEXT),
        "text in fragments": frame(TEXT, b"\xc0", fin=False) + frame(CONTINUATION, b"\x00"),
        "a data frame of no known kind": frame(3, wire.pingreq()),
    }
    for what, data in texts.items():
        with bench.case(what):
            client, stream = client_over(bench, "text")
            stream.send_raw(data)
            client.expect_close()
            client.drop()


def borders_mean_nothing(bench: Bench) -> None:
    """Frames may begin and end anywhere within packets."""
    bench.start(websocket=True)
    topic = bench.topic("t")
    for what, framing in FRAMINGS.items():
        with bench.case(what):
            client, _ = client_over(bench, "framed", framing=framing)
            with bench.case("one packet after the other"):
                client.subscribe(topic, 2)
                for qos in range(3):
                    client.publish(topic, f"at {qos}", qos)
                    client.expect_publish(topic, f"at {qos}", qos)
            with bench.case("five packets at once"):
                five_packets_at_once(bench, client)
            with bench.case("a large packet"):
                client.publish(topic, b"x" * 3000, 1)
                client.expect_publish(topic, b"x" * 3000)
            client.disconnect()
    with bench.case("a frame that ends in the middle of a packet"):
        client, stream = client_over(bench, "framed")
        data = wire.subscribe(61, [(topic, 0)], version=bench.version) + wire.pingreq()
        for border in range(1, len(data)):
            stream.framing = (
                lambda sent, at=border: (  # type: ignore[misc]
                    frame(BINARY, sent[:at]) + frame(BINARY, sent[at:])
                )
            )
            client.send(data)
            client.expect(Suback, packet_id=61)
            stream.framing = in_one_frame
            client.ping()
    with bench.case("pings and a pong nobody asked for"):
        stream.send_raw(frame(PING, b"are you there") + frame(PONG, b"yes"))
        client.ping()


def five_packets_at_once(bench: Bench, client: Client) -> None:
    """Send five packets at once; all must be answered."""
    version, topic = bench.version, bench.topic("five")
    client.send(
        wire.subscribe(51, [(topic, 1)], version=version)
        + wire.publish(topic, "one", version=version, qos=1, packet_id=52)
        + wire.publish(topic, "two", version=version, qos=1, packet_id=53)
        + wire.unsubscribe(54, [bench.topic("never")], version=version)
        + wire.pingreq()
    )
    kinds = {"PUBACK 52", "PUBACK 53", "SUBACK 51", "UNSUBACK 54", "PINGRESP "}
    deliveries: list[Publish] = []
    while kinds or len(deliveries) < 2:
        packet = client.receive()
        if isinstance(packet, Publish):
            deliveries.append(packet)
            client.acknowledge(packet)
        else:
            kinds.discard(f"{type(packet).__name__.upper()} {getattr(packet, 'packet_id', '')}")
    if [delivery.payload for delivery in deliveries] != [b"one", b"two"]:
        bench.fail("what was published", deliveries[-1], expected="one, then two")


def subprotocol_only_if_offered(bench: Bench) -> None:
    """Without mqtt on offer, the upgrade is refused or selects no subprotocol, or one offered."""
    bench.start(websocket=True)
    for offered in (None, "foo", "mqttv3.1", "foo, bar", "mqtt2", "MQTT", "xmqtt", "foo mqtt"):
        with bench.case(f"offered {offered!r}"):
            with contextlib.closing(open_websocket(bench, offered)) as stream:
                found = stream.response.all("Sec-WebSocket-Protocol")
                allowed = [name.strip() for name in (offered or "").split(",")]
                if stream.opened and found and (len(found) > 1 or found[0] not in allowed):
                    bench.fail(f"granted with {found}", expected="a refusal, or no subprotocol")


def subprotocol_is_mqtt(bench: Bench) -> None:
    """An upgrade that offers mqtt among others is accepted with mqtt alone."""
    bench.start(websocket=True)
    for offered in ("mqtt", "foo, mqtt", "mqtt, foo", "foo,mqtt,bar"):
        with bench.case(f"offered {offered!r}"):
            with contextlib.closing(open_websocket(bench, offered)) as stream:
                found = stream.response.all("Sec-WebSocket-Protocol")
                if not stream.opened or found != ["mqtt"]:
                    status = stream.response.status
                    bench.fail(f"status {status}, subprotocol {found}", expected="101, 'mqtt'")
                client = bench.client("offering", stream=stream)
                client.ping()
                client.disconnect()


__all__ = [
    "binary_frames_only",
    "borders_mean_nothing",
    "subprotocol_is_mqtt",
    "subprotocol_only_if_offered",
]
