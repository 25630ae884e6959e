"""Packets and their bytes, written out by hand from chapters 2 and 3 of both standards.

`GOLDEN` is the table every codec test starts from. Bytes are in the order that the encoder uses, so
that they hold in both directions.
"""

from typing import Literal

from mqtt.decoder import Decoder
from mqtt.packets import (
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)

Sender = Literal["client", "server"]

USER = (("k", "v"),)
FORWARD = bytes.fromhex("0101 03000174 08000172 090001ff 2600016b000176")
WILL_FORWARD = bytes.fromhex("0101 03000174 08000172 09000100 260001610000")


class Sample:
    """One packet of `version` as `sender` sends it."""

    def __init__(self, version: int, sender: Sender, hexadecimal: str, packet: Packet) -> None:
        self.version = version
        self.sender: Sender = sender
        self.data = bytes.fromhex(hexadecimal)
        self.packet = packet

    def __repr__(self) -> str:
        return f"v{self.version}-{self.sender}-{self.data[:24].hex()}"


def _both(version: int, hexadecimal: str, packet: Packet) -> list[Sample]:
    return [
        Sample(version, "client", hexadecimal, packet),
        Sample(version, "server", hexadecimal, packet),
    ]


def _client(version: int, hexadecimal: str, packet: Packet) -> list[Sample]:
    return [Sample(version, "client", hexadecimal, packet)]


def _server(version: int, hexadecimal: str, packet: Packet) -> list[Sample]:
    return [Sample(version, "server", hexadecimal, packet)]


GOLDEN: list[Sample] = [
    # CONNECT, 3.1
    *_client(4, "10 0c 0004 4d515454 04 02 003c 0000", Connect("", 4, True, 60)),
    *_client(4, "10 0d 0004 4d515454 04 00 0000 0001 63", Connect("c", 4, False, 0)),
    *_client(
        4,
        "10 1d 0004 4d515454 04 f4 000a 0001 63 0003 772f74 0002 00ff 0001 75 0002 7000",
        Connect("c", 4, False, 10, Will("w/t", b"\x00\xff", 2, True), "u", b"p\x00"),
    ),
    *_client(5, "10 0d 0004 4d515454 05 02 003c 00 0000", Connect("", 5, True, 60)),
    *_client(
        5,  # password without user name, legal in v5 only
        "10 10 0004 4d515454 05 42 ffff 00 0000 0001 70",
        Connect("", 5, True, 65_535, password=b"p"),
    ),
    *_client(
        5,
        "10 5f 0004 4d515454 05 f6 003c"
        "24 11 0000000a 21 0014 27 00000064 22 000a 19 01 17 00 26 0001 6b 0001 76"
        "15 0001 6d 16 0002 0001"
        "0001 63"
        "1e 18 00000005 02 00000006 0101 03 000174 08 000172 09 000100 26 0001 61 0000"
        "0003 772f74 0001 78 0001 75 0001 70",
        Connect(
            "c",
            5,
            True,
            60,
            Will("w/t", b"x", 2, True, 5, 6, WILL_FORWARD),
            "u",
            b"p",
            session_expiry_interval=10,
            receive_maximum=20,
            maximum_packet_size=100,
            topic_alias_maximum=10,
            request_response_information=True,
            request_problem_information=False,
            user_properties=USER,
            authentication_method="m",
            authentication_data=b"\x00\x01",
        ),
    ),
    # CONNACK, 3.2
    *_server(4, "20 02 00 00", Connack(False)),
    *_server(4, "20 02 01 00", Connack(True)),
    *_server(4, "20 02 00 05", Connack(False, 5)),
    *_server(5, "20 03 00 00 00", Connack(False)),
    *_server(5, "20 03 01 00 00", Connack(True)),
    *_server(
        5,
        "20 3f 00 9c 3c 11 00000001 21 0002 24 01 25 00 27 00000003 12 0001 69 22 0004"
        "1f 0001 72 26 0001 6b 0001 76 28 00 29 00 2a 00 13 0005 1a 0001 73 1c 0001 74"
        "15 0001 6d 16 0001 64",
        Connack(
            False,
            0x9C,
            session_expiry_interval=1,
            receive_maximum=2,
            maximum_qos=1,
            retain_available=False,
            maximum_packet_size=3,
            assigned_client_id="i",
            topic_alias_maximum=4,
            reason_string="r",
            user_properties=USER,
            wildcard_subscription_available=False,
            subscription_identifier_available=False,
            shared_subscription_available=False,
            server_keep_alive=5,
            response_information="s",
            server_reference="t",
            authentication_method="m",
            authentication_data=b"d",
        ),
    ),
    # PUBLISH, 3.3
    *_both(4, "30 05 0003 612f62", Publish("a/b", b"")),
    *_both(4, "30 03 0001 61", Publish("a", b"")),
    *_both(4, "3b 08 0003 612f62 000a 21", Publish("a/b", b"!", 1, True, True, 10)),
    *_both(4, "34 07 0003 612f62 ffff", Publish("a/b", b"", 2, packet_id=65_535)),
    *_both(5, "30 06 0003 612f62 00", Publish("a/b", b"")),
    *_both(5, "32 09 0003 612f62 0001 00 00", Publish("a/b", b"\x00", 1, packet_id=1)),
    *_both(
        5,
        "3d 26 0003 612f62 000a 1d 02 0000003c 23 0007"
        "0101 03 0001 74 08 0001 72 09 0001 ff 26 0001 6b 0001 76 70",
        Publish("a/b", b"p", 2, True, True, 10, FORWARD, 60, 7),
    ),
    *_both(5, "32 08 0000 0001 03 23 0009", Publish("", b"", 1, packet_id=1, topic_alias=9)),
    *_server(
        5,
        "30 09 0001 74 05 0b 01 0b 8001",
        Publish("t", b"", subscription_identifiers=(1, 128)),
    ),
    # PUBACK, PUBREC, PUBREL, PUBCOMP, 3.4 to 3.7
    *_both(4, "40 02 0001", Puback(1)),
    *_both(4, "50 02 0102", Pubrec(0x102)),
    *_both(4, "62 02 ffff", Pubrel(65_535)),
    *_both(4, "70 02 0001", Pubcomp(1)),
    *_both(5, "40 02 0001", Puback(1)),
    *_server(5, "40 03 0001 10", Puback(1, 0x10)),
    *_both(
        5,
        "40 0f 0001 87 0b 1f 0001 72 26 0001 6b 0001 76",
        Puback(1, 0x87, "r", USER),
    ),
    *_both(5, "50 02 0001", Pubrec(1)),
    *_both(5, "50 03 0001 97", Pubrec(1, 0x97)),
    *_both(5, "50 0f 0001 00 0b 1f 0001 72 26 0001 6b 0001 76", Pubrec(1, 0, "r", USER)),
    *_both(5, "62 02 0001", Pubrel(1)),
    *_both(5, "62 03 0001 92", Pubrel(1, 0x92)),
    *_both(5, "62 0f 0001 92 0b 1f 0001 72 26 0001 6b 0001 76", Pubrel(1, 0x92, "r", USER)),
    *_both(5, "70 02 0001", Pubcomp(1)),
    *_both(5, "70 03 0001 92", Pubcomp(1, 0x92)),
    *_both(5, "70 0f 0001 92 0b 1f 0001 72 26 0001 6b 0001 76", Pubcomp(1, 0x92, "r", USER)),
    # SUBSCRIBE and SUBACK, 3.8 and 3.9
    *_client(
        4,
        "82 0e 000a 0003 612f62 01 0003 632f64 02",
        Subscribe(10, [Subscription("a/b", 1), Subscription("c/d", 2)]),
    ),
    *_client(5, "82 07 000a 00 0001 61 01", Subscribe(10, [Subscription("a", 1)])),
    *_client(
        5,
        "82 17 000a 0a 0b 8001 26 0001 6b 0001 76 0003 612f23 2e 0001 62 00",
        Subscribe(10, [Subscription("a/#", 2, True, True, 2), Subscription("b", 0)], 128, USER),
    ),
    *_server(4, "90 06 000a 00 01 02 80", Suback(10, [0, 1, 2, 0x80])),
    *_server(5, "90 04 000a 00 02", Suback(10, [2])),
    *_server(
        5,
        "90 10 000a 0b 1f 0001 72 26 0001 6b 0001 76 00 8f",
        Suback(10, [0, 0x8F], "r", USER),
    ),
    # UNSUBSCRIBE and UNSUBACK, 3.10 and 3.11
    *_client(4, "a2 0c 000a 0003 612f62 0003 632f64", Unsubscribe(10, ["a/b", "c/d"])),
    *_client(5, "a2 06 000a 00 0001 61", Unsubscribe(10, ["a"])),
    *_client(5, "a2 0d 000a 07 26 0001 6b 0001 76 0001 61", Unsubscribe(10, ["a"], USER)),
    *_server(4, "b0 02 000a", Unsuback(10, [])),
    *_server(5, "b0 04 000a 00 11", Unsuback(10, [0x11])),
    *_server(
        5,
        "b0 10 000a 0b 1f 0001 72 26 0001 6b 0001 76 00 87",
        Unsuback(10, [0, 0x87], "r", USER),
    ),
    # PINGREQ, PINGRESP, DISCONNECT, AUTH, 3.12 to 3.15
    *_client(4, "c0 00", Pingreq()),
    *_client(5, "c0 00", Pingreq()),
    *_server(4, "d0 00", Pingresp()),
    *_server(5, "d0 00", Pingresp()),
    *_client(4, "e0 00", Disconnect()),
    *_both(5, "e0 00", Disconnect()),
    *_client(5, "e0 01 04", Disconnect(4)),
    *_server(5, "e0 01 8b", Disconnect(0x8B)),
    *_client(
        5,
        "e0 12 04 10 11 00000001 1f 0001 72 26 0001 6b 0001 76",
        Disconnect(4, 1, "r", USER),
    ),
    *_server(
        5,
        "e0 11 9c 0f 1f 0001 72 26 0001 6b 0001 76 1c 0001 73",
        Disconnect(0x9C, None, "r", USER, "s"),
    ),
    *_both(5, "f0 06 18 04 15 0001 6d", Auth(0x18, "m")),
    *_server(5, "f0 06 00 04 15 0001 6d", Auth(0, "m")),
    *_client(
        5,
        "f0 15 19 13 15 0001 6d 16 0001 64 1f 0001 72 26 0001 6b 0001 76",
        Auth(0x19, "m", b"d", "r", USER),
    ),
]

# Legal bytes that our encoder would write shorter, with what they mean.
LONG_FORMS: list[Sample] = [
    *_both(5, "40 03 0001 00", Puback(1)),
    *_both(5, "40 04 0001 00 00", Puback(1)),
    *_both(5, "50 04 0001 80 00", Pubrec(1, 0x80)),
    *_both(5, "62 04 0001 92 00", Pubrel(1, 0x92)),
    *_both(5, "70 04 0001 00 00", Pubcomp(1)),
    *_both(5, "e0 01 00", Disconnect()),
    *_both(5, "e0 02 00 00", Disconnect()),
    *_client(
        5,  # every property of CONNECT with its default value
        "10 21 0004 4d515454 05 02 0000 14 11 00000000 21 ffff 22 0000 19 00 17 01"
        "26 0000 0000 0000",
        Connect("", 5, True, 0, user_properties=(("", ""),)),
    ),
    *_client(
        5,  # will properties present but empty, empty payload
        "10 13 0004 4d515454 05 06 0000 00 0000 00 0001 77 0000",
        Connect("", 5, True, 0, Will("w", b"", 0, False)),
    ),
    *_server(
        5,  # every property of CONNACK that has a default, with it
        "20 16 00 00 13 21 ffff 22 0000 25 01 28 01 29 01 2a 01 26 0000 0000",
        Connack(False, user_properties=(("", ""),)),
    ),
]


def decoder_for(sender: Sender, version: int, *, connected: bool = True) -> Decoder:
    """Return a decoder for what `sender` sends; a server's one may still wait for CONNECT."""
    if sender == "server":
        return Decoder("client", 0, version)
    return Decoder("server", 0, version if connected else 0)


def decode(sample: Sample) -> tuple[list[Packet], Decoder]:
    """Decode the bytes of one sample as they would come on a connection of its version."""
    return decode_bytes(sample.data, sample.sender, sample.version)


def decode_bytes(data: bytes, sender: Sender, version: int) -> tuple[list[Packet], Decoder]:
    """Decode `data`, the first bytes of a connection if they start with CONNECT."""
    is_connect = sender == "client" and data[0] >> 4 == 1
    decoder = decoder_for(sender, version, connected=not is_connect)
    return decoder.receive(data), decoder


def frame(first: int, body: bytes) -> bytes:
    """Put a fixed header before `body`."""
    length = len(body)
    header = bytearray((first,))
    while True:
        header.append(length & 127 | (128 if length > 127 else 0))
        length >>= 7
        if not length:
            return bytes(header) + body


def body_of(data: bytes) -> bytes:
    """Return what follows the fixed header of one complete packet."""
    position = 1
    while data[position] > 127:
        position += 1
    return data[position + 1 :]


def streams() -> list[tuple[Sender, int, bytes, list[Packet]]]:
    """Return all golden packets as four connections: (sender, version, bytes, packets)."""
    result: list[tuple[Sender, int, bytes, list[Packet]]] = []
    for version in (4, 5):
        for sender in ("client", "server"):
            chosen: list[Sample] = []
            for sample in GOLDEN:
                if sample.version != version or sample.sender != sender:
                    continue
                if isinstance(sample.packet, Connect) and chosen:
                    chosen[0] = sample  # one CONNECT per connection, the fullest
                else:
                    chosen.append(sample)
            data = b"".join([sample.data for sample in chosen])
            result.append((sender, version, data, [sample.packet for sample in chosen]))
    return result
