"""A broker of one file that knows just enough to be looked at, and can be told to be wrong.

Run as a process (`python toy.py PORT DIRECTORY`) it is what the tests of the runner start, stop and
kill; the faults are words in the environment variable TOY_FAULTS. It keeps nothing over a restart
but its count of starts. Standard library only, nothing of ours: it must not share a mistake with
what is tested.
"""

import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

FAULTS = frozenset(os.environ.get("TOY_FAULTS", "").split())
lock = threading.Lock()
subscribers: dict[str, set["Session"]] = {}
retained: dict[str, bytes] = {}


def varint(number: int) -> bytes:
    encoded = b""
    while True:
        number, group = number >> 7, number & 0x7F
        encoded += bytes([group | 0x80 if number else group])
        if not number:
            return encoded


def packet(first: int, body: bytes = b"") -> bytes:
    return bytes([first]) + varint(len(body)) + body


class Session:
    """One connection; QoS 0 and 1, topics without wildcards."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.version = 4
        self.next_id = 0

    def take(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self.channel.recv(count - len(data))
            if not piece:
                raise ConnectionError
            data += piece
        return data

    def serve(self) -> None:
        try:
            while True:
                first = self.take(1)[0]
                length = shift = 0
                while True:
                    byte = self.take(1)[0]
                    length |= (byte & 0x7F) << shift
                    shift += 7
                    if byte < 0x80:
                        break
                self.handle(first, self.take(length))
        except (ConnectionError, OSError, IndexError):
            pass
        with lock:
            for group in subscribers.values():
                group.discard(self)
        self.channel.close()

    def handle(self, first: int, body: bytes) -> None:
        kind = first >> 4
        props = b"\0" if self.version >= 5 else b""
        if kind == 1:
            self.connect(body)
        elif kind == 3:
            self.publish(first, body)
        elif kind == 8:
            start = 4 + len(props)  # our own clients send no properties here
            length = int.from_bytes(body[start - 2 : start], "big")
            topic = body[start : start + length].decode()
            qos = body[start + length] & 1
            with lock:
                subscribers.setdefault(topic, set()).add(self)
            answer = 0x93 if "suback_flags" in FAULTS else 0x90
            self.channel.sendall(packet(answer, body[:2] + props + bytes([qos])))
            if topic in retained:
                self.deliver(topic, retained[topic], 0, retain=True)
        elif kind == 12:
            self.channel.sendall(packet(0xD0))
        elif kind == 14:
            raise ConnectionError

    def connect(self, body: bytes) -> None:
        if "hang" in FAULTS:
            threading.Event().wait()
        self.version = body[6]
        if "refuse" in FAULTS:
            self.channel.sendall(packet(0x20, b"\0\5"))
            raise ConnectionError
        self.channel.sendall(packet(0x20, b"\0\0" + (b"\0" if self.version >= 5 else b"")))

    def publish(self, first: int, body: bytes) -> None:
        length = int.from_bytes(body[:2], "big")
        topic = body[2 : 2 + length].decode()
        rest = body[2 + length :]
        qos = (first >> 1) & 3
        packet_id, rest = (rest[:2], rest[2:]) if qos else (b"", rest)
        if self.version >= 5:
            rest = rest[1 + rest[0] :]
        if topic.endswith("/die"):
            os._exit(3)
        if first & 1:
            retained[topic] = rest
            if not rest:
                del retained[topic]
        with lock:
            receivers = list(subscribers.get(topic, ()))
        for receiver in receivers:
            receiver.deliver(topic, rest, min(qos, 1), retain=False)
        if qos:
            self.channel.sendall(packet(0x40, packet_id))

    def deliver(self, topic: str, payload: bytes, qos: int, *, retain: bool) -> None:
        with lock:
            self.next_id += 1
            packet_id = self.next_id.to_bytes(2, "big") if qos else b""
        body = len(topic.encode()).to_bytes(2, "big") + topic.encode() + packet_id
        body += b"\0" if self.version >= 5 else b""
        self.channel.sendall(packet(0x30 | (qos << 1) | retain, body + payload))


def stop(*_: Any) -> None:
    os._exit(0)


def main() -> None:
    port, directory = int(sys.argv[1]), Path(sys.argv[2])
    if "late" in FAULTS:
        sys.exit("the disk is on fire")
    starts = directory / "starts"
    starts.write_text(f"{int(starts.read_text()) + 1 if starts.exists() else 1}")
    signal.signal(signal.SIGTERM, stop)
    listener = socket.create_server(("127.0.0.1", port), backlog=128)
    print("listening", flush=True)
    while True:
        channel, _ = listener.accept()
        threading.Thread(target=Session(channel).serve, daemon=True).start()


if __name__ == "__main__":
    main()
