"""Measure how long clients wait when the node that serves them is killed, or hands over.

Each cluster has persistent sessions with a subscription each, some of them connected. In each turn
the leader is asked to hand over (Holdfast only), and then whoever leads is killed. One client
publishes all the time and comes back as fast as it can; it tells the pause between two PUBACKs. The
log of the node that takes over tells how much of it is detection (until it leads) and how much is
work (from there to the first CONNACK). Read next: `bench.clusters`, `bench.cluster_table`.
"""

import contextlib
import json
import resource
import selectors
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from threading import Thread
from typing import Any, Final

from bench.brokers import NATS, POLL_S, REPLICATED, BenchError, Broker
from bench.clusters import MEMBERS, Cluster
from bench.scenarios import FILL_PREFIX, FILL_RUN, Context, fill
from broker.cluster.describing import PROMOTE, STATUS
from broker.operations.control_socket import ControlError, ask
from mqtt.encoder import encode
from mqtt.packets import V4, Connect, Publish

Turn = dict[str, Any]  # as `bench.run` writes it

SIZES: Final = (1_000, 10_000, 100_000, 1_000_000)
NATS_SESSIONS: Final = (100,)  # each session is a Raft group of its own
TURNS: Final = 2
HELD_MAX: Final = 5_000  # clients that are connected when the leader goes
TOGETHER: Final = 250  # of them connect at a time
PATIENCE_S: Final = 120.0
KILL: Final = "kill -9"
HAND_OVER: Final = "hand-over"
CONNACK_BYTES: Final = 4
PUBACK: Final = 0x40
PUBACK_BYTES: Final = 4


class Client:
    """A persistent session that publishes one message after the other."""

    def __init__(self, number: int) -> None:
        self.client_id: str = f"{FILL_PREFIX}-s{number}"
        self._socket: socket.socket | None = None
        self.session_present: bool = False

    def connect(self, port: int) -> bool:
        """Connect; return whether a node has taken it."""
        self.close()
        with contextlib.suppress(OSError):
            channel = socket.create_connection(("127.0.0.1", port), 5.0)
            self._socket = channel
            channel.settimeout(10.0)
            channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            channel.sendall(connect_packet(self.client_id))
            answer = _exactly(channel, CONNACK_BYTES)
            if answer[0] == 0x20 and answer[3] == 0:
                self.session_present = answer[2] == 1
                return True
        self.close()
        return False

    def publish(self) -> bool:
        """Publish one message; return whether it was acknowledged before the connection ended."""
        assert self._socket is not None
        with contextlib.suppress(OSError):
            packet = Publish(topic="takeover", payload=b"x", qos=1, packet_id=1)
            self._socket.sendall(encode(packet, V4))
            return _exactly(self._socket, PUBACK_BYTES)[0] == PUBACK
        return False

    def close(self) -> None:
        """Leave without a word. Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def connect_packet(client_id: str) -> bytes:
    """Return CONNECT of a session to keep."""
    packet = Connect(client_id=client_id, clean_start=False, keep_alive=0, protocol_version=V4)
    return encode(packet, V4)


def _exactly(channel: socket.socket, count: int) -> bytes:
    """Return the next bytes. Raises `OSError` if the connection ends before."""
    data = b""
    while len(data) < count:
        piece = channel.recv(count - len(data))
        if not piece:
            raise ConnectionError("closed")
        data += piece
    return data


class Held:
    """Clients that are connected and say nothing; they leave when the broker ends the connection.

    A client that did not would be waited for at a hand-over.
    """

    def __init__(self) -> None:
        self._open: list[socket.socket] = []
        self._listening: Thread | None = None
        self._end: socket.socket | None = None  # closed to end that

    def connect(self, port: int, count: int) -> None:
        """Connect so many, in place of those before. Raises `BenchError`."""
        self.close()
        for first in range(1, count + 1, TOGETHER):
            together = range(first, min(first + TOGETHER, count + 1))
            channels = [socket.create_connection(("127.0.0.1", port), 30.0) for _ in together]
            self._open += channels
            for number, channel in zip(together, channels, strict=True):
                channel.sendall(connect_packet(f"{FILL_PREFIX}-s{number}"))
            for channel in channels:
                try:
                    answer = _exactly(channel, CONNACK_BYTES)
                except OSError as problem:
                    raise BenchError(f"a client could not connect: {problem}") from None
                if answer[3]:
                    raise BenchError(f"a client was refused: {answer[3]}")
        self._end, other = socket.socketpair()
        self._listening = Thread(target=self._listen, args=(other,), name="held", daemon=True)
        self._listening.start()

    def _listen(self, end: socket.socket) -> None:
        with end, selectors.DefaultSelector() as selector:
            selector.register(end, selectors.EVENT_READ)
            for channel in self._open:
                selector.register(channel, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select():
                    one = key.fileobj
                    assert isinstance(one, socket.socket)
                    if one is end:
                        return
                    try:
                        is_over = not one.recv(4096)
                    except OSError:
                        is_over = True
                    if is_over:
                        selector.unregister(one)
                        one.close()

    def close(self) -> None:
        """Close all. Idempotent."""
        if self._listening is not None and self._end is not None:
            self._end.close()
            self._listening.join()
            self._listening = None
        for channel in self._open:
            channel.close()
        self._open.clear()


def measure(
    context: Context, kinds: list[str], sizes: tuple[int, ...], say: Callable[[str], None]
) -> list[Turn]:
    """Return what each turn of each size took, on every cluster of `kinds`.

    Ctrl-C ends it; the turns so far are returned.
    """
    _raise_file_limit()
    turns: list[Turn] = []
    try:
        for kind in kinds:
            for sessions in NATS_SESSIONS if kind == NATS else sizes:
                for turn in _told(context, kind, sessions):
                    say(written(turn))
                    turns.append(turn)
    except KeyboardInterrupt:
        say("interrupted: this is what there is")
    return turns


def _told(context: Context, kind: str, sessions: int) -> Iterator[Turn]:
    """Yield the turns of a cluster; one that failed says why."""
    try:
        yield from _turns(context, kind, sessions)
    except (BenchError, ControlError, OSError) as problem:
        yield {
            "broker": kind,
            "sessions": sessions,
            "held": 0,
            "how": KILL,
            "ok": False,
            "trouble": f"{kind}, {sessions:,} sessions: {str(problem).splitlines()[0]}",
        }


def written(turn: Turn) -> str:
    """Return a turn as a line of progress."""
    parts = [
        f"{name.removesuffix('_s')} {turn[name]:.2f} s"
        for name in ("detection_s", "work_s", "recovery_s", "connack_s", "pause_s")
        if name in turn
    ]
    return (
        f"{turn['how']} of {turn['broker']}, {turn['sessions']:,} sessions, {turn['held']:,} "
        f"connected: {', '.join(parts)}" + ("" if turn["ok"] else f"  NOT OK: {turn['trouble']}")
    )


def _turns(context: Context, kind: str, sessions: int) -> Iterator[Turn]:
    filled = None
    if kind in REPLICATED:
        filled, _ = fill(context, sessions)
    try:
        seed = None if filled is None else filled / "data"
        with Cluster(kind, context.kafka, directory=context.disk, seed=seed) as cluster:
            if filled is None:
                _make_sessions(context, cluster, sessions)
            with contextlib.closing(Held()) as held, contextlib.closing(Client(0)) as client:
                for number in range(TURNS):
                    for how in (HAND_OVER, KILL) if kind in REPLICATED else (KILL,):
                        yield _turn(cluster, held, client, sessions, how)
                        if number + 1 < TURNS or how == HAND_OVER:
                            _mend(cluster)
    finally:
        if filled is not None:
            shutil.rmtree(filled, ignore_errors=True)


def _make_sessions(context: Context, cluster: Cluster, sessions: int) -> None:
    """Make sessions by connecting and subscribing, where they cannot be written directly."""
    line = context.generator.run(
        "offline",
        cluster,
        phase="create",
        sessions=sessions,
        prefix=FILL_PREFIX,
        concurrency=10,
        messages=1,
        run=FILL_RUN,
        timeout=PATIENCE_S,
    )
    if not line["ok"]:
        raise BenchError(f"{cluster.kind} did not make {sessions} sessions")


def _turn(cluster: Cluster, held: Held, client: Client, sessions: int, how: str) -> Turn:
    """Take the node away that clients are sent to; return what that has cost them."""
    node = cluster.node
    count = min(sessions - 1, HELD_MAX)
    held.connect(node.port, count)
    if not client.connect(node.port) or not client.publish():
        raise BenchError(f"{cluster.kind} does not acknowledge")
    _until_level(cluster)
    if not client.publish():
        raise BenchError(f"{cluster.kind} does not acknowledge")
    acked = time.monotonic()
    began, began_wall = acked, time.time()
    if how == HAND_OVER:
        ask(node.data, {"do": PROMOTE, "node": _name(cluster, cluster.others()[0])})
        while client.publish():
            acked = time.monotonic()
        began = time.monotonic()
    else:
        node.kill()
    connected, back = _come_back(cluster, client)
    turn: Turn = {
        "broker": cluster.kind,
        "sessions": sessions,
        "held": count,
        "how": how,
        "connack_s": round(connected - began, 4),
        "pause_s": round(back - acked, 4),
        "ok": client.session_present,
        "trouble": "" if client.session_present else f"{cluster.kind}: the session was gone",
    }
    if cluster.kind in REPLICATED and cluster.node is not node:
        turn |= _split(cluster.node, began_wall, connected - began)
        if how == HAND_OVER:  # clients were served for a part of it
            del turn["detection_s"], turn["work_s"]
    return turn


def _come_back(cluster: Cluster, client: Client) -> tuple[float, float]:
    """Connect to whichever node takes the client; return when it did, and when it acknowledged."""
    deadline = time.monotonic() + PATIENCE_S
    connected = 0.0
    while time.monotonic() < deadline:
        for node in cluster.nodes:
            if node.is_running() and client.connect(node.port):
                connected = connected or time.monotonic()
                if client.publish():
                    cluster.node = node
                    return connected, time.monotonic()
        time.sleep(POLL_S)
    raise BenchError(f"{cluster.kind}: nobody took over in {PATIENCE_S:.0f} s")


def _split(node: Broker, began_wall: float, connack_s: float) -> Turn:
    """Return detection, work and the recovery in it, as the node's log tells them."""
    led_s = ready = None
    for line in node.log().splitlines():
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if found["event"] == "cluster_leads":
                led_s = datetime.fromisoformat(found["ts"]).timestamp() - began_wall
            elif found["event"] == "ready":
                ready = found
    if led_s is None or ready is None:
        raise BenchError("the node that took over does not tell so in its log")
    return {
        "detection_s": round(led_s, 3),
        "work_s": round(connack_s - led_s, 3),
        "recovery_s": ready["seconds"],
    }


def _name(cluster: Cluster, node: Broker) -> str:
    return MEMBERS[cluster.nodes.index(node)]


def _until_level(cluster: Cluster) -> None:
    """Wait until the followers have what the leader has, and could lead."""
    if cluster.kind not in REPLICATED:
        return
    deadline = time.monotonic() + PATIENCE_S
    said = ""
    while time.monotonic() < deadline:
        try:
            written = int(ask(cluster.node.data, {"do": STATUS})["written"])
            there = [ask(node.data, {"do": STATUS}) for node in cluster.others()]
        except ControlError as problem:
            said = str(problem)
        else:
            if all(int(each["applied"]) >= written and _is_ready(each) for each in there):
                return
            said = f"it has {', '.join(each['applied'] for each in there)} of {written} records"
        time.sleep(POLL_S)
    raise BenchError(f"{cluster.kind}: the follower does not catch up: {said}")


def _is_ready(status: Mapping[str, str]) -> bool:
    return bool(status["ready"]) and not status["loaded"]


def _mend(cluster: Cluster) -> None:
    """Start again what was killed."""
    for node in list(cluster.nodes):
        if not node.is_running():
            cluster.relaunch(node)
    if cluster.kind == NATS:
        deadline = time.monotonic() + PATIENCE_S
        while not all(Client(0).connect(node.port) for node in cluster.nodes):
            if time.monotonic() > deadline:
                raise BenchError("nats: a server that was killed does not come back")
            time.sleep(POLL_S)


def _raise_file_limit() -> None:
    """Allow as many connections as the system does: each is a file."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
