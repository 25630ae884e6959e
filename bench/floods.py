"""Measure what clients that flood the broker cost a client that only pings.

    python bench/floods.py                        every flood, Holdfast interpreted and compiled
    python bench/floods.py --only pings acks      some floods
    python bench/floods.py --brokers holdfast     one build; others that are installed work, too

Each flood meets a fresh broker with its default configuration. A process of its own sends PINGREQ
every 5 ms and notes how long PINGRESP takes. Prints a Markdown row for each flood: the longest and
the 99th percentile in milliseconds, the processor seconds of the broker, and how much its memory
grew at its peak. Exit status 1 if a flood closed the bystander's connection or ended the broker.
"""

import argparse
import itertools
import json
import os
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.brokers import COMPILED, HOLDFAST, OTHERS, BenchError, Broker, compile_holdfast, python
from mqtt.encoder import encode
from mqtt.packets import (
    Connect,
    Packet,
    Pingreq,
    Puback,
    Publish,
    Pubrel,
    Subscribe,
    Subscription,
    Unsubscribe,
    Will,
)

SECONDS: Final = 5.0  # how long a flood without an end lasts
SECONDS_MAX: Final = 180.0  # for a flood that has an end
QUIET_S: Final = 0.5  # a flood is over when nothing came for so long, and
IDLE: Final = 0.3  # the broker used less of a processor than this; the bystander costs some
PING_EVERY_S: Final = 0.005
CLIENTS: Final = 20
NEVER: Final = 0xFFFFFFFF  # Session Expiry Interval
DEEP: Final = 13  # levels: a topic of that depth matches 8,192 filters
TOPIC: Final = "/".join("abcdefghijklm")
SUBSCRIBE_FILTERS: Final = 1000


class Flow:
    """A connection, what it sends, and whether it sends that again and again.

    `data` None resets the connection.
    """

    def __init__(
        self, connection: socket.socket, data: bytes | None = b"", *, again: bool = False
    ) -> None:
        self.connection: socket.socket = connection
        self.data: bytes | None = data
        self.again: bool = again
        self.at: int = 0


Flood = Callable[[Broker], list[Flow]]


# ---- clients


def connection_to(port: int) -> socket.socket:
    """Return a new connection to the broker."""
    connection = socket.create_connection(("127.0.0.1", port), 30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def client(port: int, name: str, *packets: Packet, keep: bool = False) -> socket.socket:
    """Connect with MQTT 5, send the packets, and return when the broker has handled them."""
    connection = connection_to(port)
    expiry = NEVER if keep else 0
    connect = Connect(name, clean_start=not keep, session_expiry_interval=expiry)
    send(connection, connect, *packets)
    connection.settimeout(SECONDS_MAX)
    reader = connection.makefile("rb")  # holds nothing back: every packet is answered by one
    for _ in range(1 + len(packets)):
        skip_packet(reader, name)
    return connection


def skip_packet(reader: BinaryIO, name: str) -> None:
    """Read one packet and throw it away."""
    length = shift = 0
    head = reader.read(2)
    while head:
        length |= (head[-1] & 0x7F) << shift
        shift += 7
        if head[-1] < 0x80:
            reader.read(length)
            return
        head = reader.read(1)
    raise BenchError(f"the broker closed the connection of {name}")


def send(connection: socket.socket, *packets: Packet) -> None:
    """Send packets of MQTT 5."""
    connection.sendall(b"".join(encode(packet, 5) for packet in packets))


def subscribes(filters: list[str], *, identifiers: bool = False) -> list[Packet]:
    """Return SUBSCRIBE packets of QoS 1, with an identifier of its own for each filter if asked."""
    size = 1 if identifiers else SUBSCRIBE_FILTERS
    return [
        Subscribe(
            number % 65_535 + 1,
            [Subscription(one, 0 if identifiers else 1) for one in filters[first : first + size]],
            subscription_identifier=number + 1 if identifiers else 0,
        )
        for number, first in enumerate(range(0, len(filters), size))
    ]


def matching_filters() -> list[str]:
    """Return all filters without `#` that match the topic."""
    levels = (("+", level) for level in TOPIC.split("/"))
    return ["/".join(chosen) for chosen in itertools.product(*levels)]


def absent_sessions(port: int, filters: list[str], count: int = 4) -> None:
    """Make offline sessions that share out the filters."""
    for number in range(count):
        client(port, f"absent{number}", *subscribes(filters[number::count]), keep=True).close()


def publisher(port: int, count: int, topic: str = TOPIC) -> Flow:
    """Return a client that publishes at QoS 1."""
    messages = [Publish(topic, b"x", 1, packet_id=number + 1) for number in range(count)]
    return Flow(client(port, "publisher"), b"".join(encode(one, 5) for one in messages))


def senders(port: int, data: bytes) -> list[Flow]:
    """Return clients that send the same again and again."""
    return [Flow(client(port, f"flood{n}"), data, again=True) for n in range(CLIENTS)]


# ---- floods


def index_rows(broker: Broker) -> list[Flow]:
    """1,000 messages, 8,192 filters of 4 absent sessions."""
    absent_sessions(broker.port, matching_filters())
    return [publisher(broker.port, 1000)]


def deep_filters(broker: Broker) -> list[Flow]:
    """1,000 messages on 123 levels, 8,192 filters of that depth, none of which matches."""
    stem = "/".join("+" * 60)
    filters = [f"{stem}/{number}/" + "/".join("+" * 62) for number in range(8192)]
    absent_sessions(broker.port, filters)
    return [publisher(broker.port, 1000, "/".join("l" * 123))]


def groups(broker: Broker) -> list[Flow]:
    """1,000 messages, 9,000 shared subscriptions of 4 absent sessions."""
    absent_sessions(broker.port, [f"$share/g{number}/{TOPIC}" for number in range(9000)])
    return [publisher(broker.port, 1000)]


def receivers(broker: Broker) -> list[Flow]:
    """1,000 messages of 8 KiB to 500 connected receivers."""
    asks = Subscribe(1, [Subscription(TOPIC, 0)])
    reading = [Flow(client(broker.port, f"r{n}", asks)) for n in range(500)]
    messages = encode(Publish(TOPIC, bytes(8192)), 5) * 1000
    return [*reading, Flow(client(broker.port, "publisher"), messages)]


def identifiers(broker: Broker) -> list[Flow]:
    """1,000 messages to a receiver with 2,048 filters that match, each with an identifier."""
    asks = subscribes(matching_filters()[:2048], identifiers=True)
    reader = client(broker.port, "reader", *asks)
    return [
        Flow(reader),
        Flow(client(broker.port, "publisher"), encode(Publish(TOPIC, b"x"), 5) * 1000),
    ]


def pings(broker: Broker) -> list[Flow]:
    """PINGREQ."""
    return senders(broker.port, encode(Pingreq(), 5) * 50_000)


def acks(broker: Broker) -> list[Flow]:
    """PUBACK of packet ids that are not in use."""
    return senders(broker.port, b"".join(encode(Puback(n % 65_535 + 1), 5) for n in range(50_000)))


def releases(broker: Broker) -> list[Flow]:
    """PUBREL of packet ids that are not in use."""
    return senders(broker.port, b"".join(encode(Pubrel(n % 65_535 + 1), 5) for n in range(50_000)))


def publishes(broker: Broker) -> list[Flow]:
    """Empty PUBLISH of QoS 0 without a subscriber."""
    return senders(broker.port, encode(Publish("t", b""), 5) * 50_000)


def user_properties(broker: Broker) -> list[Flow]:
    """PUBLISH of QoS 0 with 1,000 user properties."""
    properties = b"\x26\x00\x01a\x00\x01b" * 1000
    return senders(broker.port, encode(Publish("t", b"", properties=properties), 5) * 20)


def aliases(broker: Broker) -> list[Flow]:
    """PUBLISH of QoS 0 by an alias of a topic with 60,000 characters."""
    first = encode(Publish("t" * 60_000, b"", topic_alias=1), 5)
    later = encode(Publish("", b"", topic_alias=1), 5) * 20_000
    flows = []
    for number in range(CLIENTS):
        connection = client(broker.port, f"flood{number}")
        connection.sendall(first)
        flows.append(Flow(connection, later, again=True))
    return flows


def subscribing(broker: Broker) -> list[Flow]:
    """SUBSCRIBE with 1,000 filters, then UNSUBSCRIBE of the same."""
    flows = []
    for number in range(CLIENTS):
        filters = [f"s/{number}/{n}" for n in range(SUBSCRIBE_FILTERS)]
        data = encode(subscribes(filters)[0], 5) + encode(Unsubscribe(2, filters), 5)
        flows.append(Flow(client(broker.port, f"flood{number}"), data, again=True))
    return flows


def unsubscribing(broker: Broker) -> list[Flow]:
    """UNSUBSCRIBE with 1,000 filters that are not subscribed."""
    return senders(broker.port, encode(Unsubscribe(1, [f"n/{n}" for n in range(1000)]), 5) * 10)


def retained(broker: Broker) -> list[Flow]:
    """50 clients, 3 filters each, 20,000 retained messages."""
    _retain(broker)
    asks = [Subscribe(1, [Subscription(one, 0) for one in ("r/#", "+/+", "#")])]
    return [
        Flow(client(broker.port, f"reader{n}"), b"".join(encode(one, 5) for one in asks))
        for n in range(50)
    ]


def replaced(broker: Broker) -> list[Flow]:
    """20,000 retained messages are replaced while 50 clients subscribe to them."""
    flows = retained(broker)
    writer = client(broker.port, "writer")
    return [*flows, Flow(writer, _retained_messages(b"new"))]


def _retain(broker: Broker) -> None:
    writer = client(broker.port, "retainer")
    writer.sendall(_retained_messages(b"old"))
    send(writer, Pingreq())
    pour(broker, [Flow(writer)])


def _retained_messages(payload: bytes) -> bytes:
    return b"".join(
        encode(Publish(f"r/{number}", payload, retain=True), 5) for number in range(20_000)
    )


def backlog(broker: Broker) -> list[Flow]:
    """A session with 8,192 filters that match comes back to 1,000 messages for each of them."""
    absent_sessions(broker.port, matching_filters(), 1)
    pour(broker, [publisher(broker.port, 1000)])
    back = Connect("absent0", clean_start=False, session_expiry_interval=NEVER)
    return [Flow(connection_to(broker.port), encode(back, 5))]


def wills(broker: Broker) -> list[Flow]:
    """200 clients with a will for 8,192 filters are lost."""
    absent_sessions(broker.port, matching_filters())
    flows = []
    for number in range(200):
        connection = connection_to(broker.port)
        send(connection, Connect(f"mortal{number}", will=Will(TOPIC, b"gone", 1, False)))
        connection.recv(100)
        flows.append(Flow(connection, None))
    return flows


def takeovers(broker: Broker) -> list[Flow]:
    """50 CONNECTs in a row take over a session with 10,000 filters."""
    filters = [f"s/{number}" for number in range(10_000)]
    client(broker.port, "wanted", *subscribes(filters), keep=True)
    taking = Connect("wanted", clean_start=False, session_expiry_interval=NEVER)
    return [Flow(connection_to(broker.port), encode(taking, 5)) for _ in range(50)]


def clean_starts(broker: Broker) -> list[Flow]:
    """10 CONNECTs in a row end a session with 10,000 filters and make it again."""
    packets = subscribes([f"s/{number}" for number in range(10_000)])
    anew = Connect("wanted", clean_start=True, session_expiry_interval=NEVER)
    data = b"".join(encode(one, 5) for one in (anew, *packets))
    client(broker.port, "wanted", *packets, keep=True)
    return [Flow(connection_to(broker.port), data) for _ in range(10)]


FLOODS: Final[dict[str, Flood]] = {
    flood.__name__: flood
    for flood in (
        index_rows,
        deep_filters,
        groups,
        receivers,
        identifiers,
        pings,
        acks,
        releases,
        publishes,
        user_properties,
        aliases,
        subscribing,
        unsubscribing,
        retained,
        replaced,
        backlog,
        wills,
        takeovers,
        clean_starts,
    )
}


# ---- pouring and measuring


def pour(broker: Broker, flows: list[Flow]) -> None:
    """Send what the flows hold and throw away what comes back.

    Ends SECONDS after the beginning for flows without an end; for others, when nothing has come
    for QUIET_S and the broker was nearly idle in that time.
    """
    began = heard = time.monotonic()
    worked_s = _cpu_s(broker.pid)
    endless = any(flow.again for flow in flows)
    with selectors.DefaultSelector() as selector:
        for flow in flows:
            if flow.data is None:
                flow.connection.setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
                flow.connection.close()
                continue
            flow.connection.setblocking(False)
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if flow.data else 0)
            selector.register(flow.connection, wanted, flow)
        while True:
            for key, events in selector.select(0.05):
                if _serve(selector, key.data, events):
                    heard = time.monotonic()
            now = time.monotonic()
            if now - began > (SECONDS if endless else SECONDS_MAX):
                break
            if not endless and now - heard > QUIET_S:
                before_s, worked_s = worked_s, _cpu_s(broker.pid)
                if worked_s - before_s < IDLE * (now - heard):
                    break
                heard = now
    for flow in flows:
        flow.connection.close()


def _serve(selector: selectors.BaseSelector, flow: Flow, events: int) -> bool:
    """Read and write once; return whether anything moved."""
    moved = False
    try:
        if events & selectors.EVENT_READ:
            if not flow.connection.recv(1 << 20):
                selector.unregister(flow.connection)
                return True
            moved = True
        if events & selectors.EVENT_WRITE and flow.data:
            flow.at += flow.connection.send(memoryview(flow.data)[flow.at : flow.at + (1 << 18)])
            moved = True
            if flow.at == len(flow.data):
                flow.at = 0
                if not flow.again:
                    selector.modify(flow.connection, selectors.EVENT_READ, flow)
    except BlockingIOError:
        return moved
    except ConnectionError:
        selector.unregister(flow.connection)
        return True
    return moved


def probe(port: int) -> dict[str, float]:
    """Ping until standard input ends; return the latencies in milliseconds."""
    connection = client(port, "bystander")
    connection.settimeout(SECONDS_MAX)
    print("ready", flush=True)
    found: list[float] = []
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        while not selector.select(PING_EVERY_S):
            began = time.perf_counter()
            send(connection, Pingreq())
            if connection.recv(2) != b"\xd0\x00":
                raise BenchError("the broker closed the bystander's connection")
            found.append((time.perf_counter() - began) * 1000)
    found.sort()
    return {"max": found[-1], "p99": found[len(found) * 99 // 100], "pings": len(found)}


def measure(kind: str, name: str) -> dict[str, float]:
    """Return what a flood costs a bystander of a fresh broker."""
    with Broker(kind) as broker:
        began_mib = broker.memory_mib()
        flows = FLOODS[name](broker)
        cpu_s = _cpu_s(broker.pid)
        with subprocess.Popen(
            [python(), str(Path(__file__).resolve()), "--probe", str(broker.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as bystander:
            assert bystander.stdin and bystander.stdout
            bystander.stdout.readline()
            pour(broker, flows)
            bystander.stdin.close()
            said = bystander.stdout.read()
        if bystander.returncode:
            raise BenchError(f"{name}: the bystander was not served to the end")
        line: dict[str, Any] = json.loads(said)
        line["cpu_s"] = _cpu_s(broker.pid) - cpu_s
        line["mib"] = _peak_mib(broker.pid) - began_mib
        return line


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise BenchError("the system does not tell the peak of a process's memory")


def rows(names: list[str], kinds: list[str]) -> Iterator[str]:
    """Yield the table as Markdown lines."""
    titles = "".join(f" {kind}: longest, p99 ms; CPU s; MiB |" for kind in kinds)
    yield f"| flood |{titles}"
    yield "| --- |" + " --- |" * len(kinds)
    for name in names:
        cells = ""
        for kind in kinds:
            line = measure(kind, name)
            cells += " {max:.0f}, {p99:.0f}; {cpu_s:.1f}; {mib:.0f} |".format(**line)
        yield f"| {(FLOODS[name].__doc__ or name).rstrip('.')} (`{name}`) |{cells}"


def main() -> int:
    """Measure the floods that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", nargs="+", choices=sorted(FLOODS), default=list(FLOODS))
    known = (HOLDFAST, COMPILED, *OTHERS)
    parser.add_argument("--brokers", nargs="+", choices=known, default=[HOLDFAST, COMPILED])
    parser.add_argument("--probe", type=int, metavar="PORT", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        if arguments.probe:
            print(json.dumps(probe(arguments.probe)))
            return 0
        if COMPILED in arguments.brokers:
            compile_holdfast()
        for row in rows(arguments.only, arguments.brokers):
            print(row, flush=True)
    except BenchError as error:
        print(f"floods: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
