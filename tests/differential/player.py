"""Plays one sequence against a broker and writes down what came back, step by step.

A step is over when every connection that may be talked to has answered two PINGREQs: by then a
broker has sent all that the step called for. Where nobody may ping (before CONNACK, after bytes
that may be half a packet) a short silence has to do. Must never send what the sequence does not
say but these pings and the acknowledgements of its `acknowledge` steps. Read next:
`tests.differential.sequences`.
"""

import asyncio
import contextlib
from typing import Final

from tests.differential.replies import Reply, Stream
from tests.differential.sequences import ACKNOWLEDGE, DROP, OPEN, Sequence, Step

PINGREQ: Final = bytes.fromhex("c000")
ROUNDS: Final = 2
# How long a broker may take for what must come, and how long nothing is waited for, seconds.
PATIENCE_S: Final = 4.0
SILENCE_S: Final = 0.25
CLOSES_S: Final = 0.02
DROP_S: Final = 0.05


class Peer:
    """One connection."""

    def __init__(self, slow: float) -> None:
        self.stream = Stream()
        self.replies: list[Reply] = []  # of this step
        self.owed: list[Reply] = []  # PUBLISH and PUBREL that were not answered
        self.is_accepted = False
        self.is_closed = False  # by the broker
        self.was_closed = False  # before this step
        self.is_blocked = False  # what it sent may be half a packet: a PINGREQ would be eaten
        self.has_acted = False  # in this step
        self._slow = slow
        self._pongs = 0
        self._changed = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None

    async def open(self, port: int) -> None:
        """Connect."""
        reader, self._writer = await asyncio.open_connection("127.0.0.1", port)
        self._task = asyncio.create_task(self._read(reader))

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                for reply in self.stream.feed(data):
                    self._take(reply)
                self._changed.set()
        self.is_closed = True
        self._changed.set()

    def _take(self, reply: Reply) -> None:
        if reply.kind == "PINGRESP":
            self._pongs += 1
            return
        self.replies.append(reply)
        if reply.text.startswith("CONNACK") and reply.text.endswith(" 00"):
            self.is_accepted = True
        if reply.kind == "PUBREL" or (reply.kind == "PUBLISH" and reply.qos):
            self.owed.append(reply)

    async def send(self, data: bytes) -> None:
        """Send bytes, if there is still somebody to take them."""
        assert self._writer is not None
        if not self.is_closed:
            self._writer.write(data)
            with contextlib.suppress(ConnectionError):
                await self._writer.drain()

    async def until(self, seconds: float, pongs: int | None = None) -> None:
        """Wait for the close, or for so many PINGRESPs, or (None) for any reply; not for ever."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds * self._slow
        seen = len(self.replies)
        while not self.is_closed:
            if self._pongs >= pongs if pongs is not None else len(self.replies) > seen:
                return
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), deadline - loop.time())
            except TimeoutError:
                return

    async def settle(self) -> None:
        """Let the broker finish what it does on this connection."""
        if self.is_closed:
            return
        if not self.is_accepted or self.is_blocked:
            if self.has_acted:
                await self.until(SILENCE_S)
            if not self.is_accepted or self.is_blocked:
                return
        for _ in range(ROUNDS):
            wanted = self._pongs + 1
            await self.send(PINGREQ)
            await self.until(PATIENCE_S, wanted)

    async def close(self) -> None:
        """Close without a word."""
        assert self._writer is not None and self._task is not None
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
        self._writer.transport.abort()

    def outcome(self) -> list[str]:
        """Return what came in this step."""
        texts = [reply.text for reply in self.replies]
        self.replies = []
        if self.is_closed and not self.was_closed:
            self.was_closed = True
            texts.append("closed")
        return texts


class Player:
    """One sequence against one broker."""

    def __init__(self, port: int, slow: float = 1.0) -> None:
        self._port = port
        self._slow = slow  # factor for all waiting
        self._peers: dict[str, Peer] = {}
        self._old: list[Peer] = []

    async def play(self, sequence: Sequence) -> list[list[str]]:
        """Return the outcome of every step: what came, and on which connection."""
        outcomes: list[list[str]] = []
        try:
            for step in sequence.steps:
                await self._do(step)
                outcomes.append(await self._outcome())
        finally:
            for peer in [*self._peers.values(), *self._old]:
                await peer.close()
        return outcomes

    async def _do(self, step: Step) -> None:
        peer = self._peers.get(step.connection)
        if step.action == OPEN:
            if peer is not None:
                self._old.append(peer)
                self._peers[f"{step.connection}'"] = peer
            peer = self._peers[step.connection] = Peer(self._slow)
            peer.stream.version = step.version
            await peer.open(self._port)
        assert peer is not None
        if step.action == DROP:
            await peer.close()
            del self._peers[step.connection]
            await asyncio.sleep(DROP_S * self._slow)
        elif step.action == ACKNOWLEDGE:
            await self._acknowledge(peer)
        else:
            peer.has_acted = True
            peer.is_blocked = peer.is_blocked or step.is_partial
            await peer.send(step.data)
            if step.is_odd:
                await peer.until(CLOSES_S, pongs=1 << 30)

    async def _acknowledge(self, peer: Peer) -> None:
        """Answer everything the broker waits for, as a receiver does, until nothing is left."""
        for _ in range(50):
            owed, peer.owed = peer.owed, []
            if not owed:
                return
            for reply in owed:
                first = {"PUBREL": 0x70}.get(reply.kind, 0x40 if reply.qos == 1 else 0x50)
                await peer.send(bytes((first, 2)) + reply.packet_id.to_bytes(2, "big"))
            await peer.settle()

    async def _outcome(self) -> list[str]:
        """Let everything settle, on all connections twice, and say what came.

        In an order that does not depend on timing. A connection that was taken over has a dash.
        """
        for _ in range(2):
            await asyncio.gather(*(peer.settle() for peer in self._peers.values()))
            for peer in self._peers.values():
                peer.has_acted = False
        return sorted(
            f"{name}: {text}" for name, peer in self._peers.items() for text in peer.outcome()
        )
