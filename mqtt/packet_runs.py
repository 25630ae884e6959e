"""Runs: consecutive packets of one kind that differ only in packet id and payload.

Under load a TCP segment holds many PUBLISHes of one topic, or many PUBACKs. On request the decoder
joins such neighbours into a run, so that what they share is handled once, and each message costs
only its payload and its packet id. `packets` returns the packets of a run. Must never hold a
PUBLISH with RETAIN, DUP, QoS 2 or a property. Read next: `mqtt.decoder`.
"""

from typing import Final, TypeAlias

from mqtt.packets import PUBACK, PUBLISH, Packet, Puback, Publish


class PublishRun:
    """PUBLISHes of one topic in the order received: QoS 0 or 1, no DUP, RETAIN or properties."""

    __slots__ = ("is_sequential", "packet_ids", "payloads", "qos", "topic")
    kind: Final = PUBLISH

    def __init__(self, first: Publish) -> None:
        self.topic: str = first.topic
        self.qos: int = first.qos
        self.payloads: list[bytes] = [first.payload]
        self.packet_ids: list[int] = [first.packet_id]  # all 0 at QoS 0
        self.is_sequential: bool = True  # does each packet id follow the one before?

    def add(self, packet_id: int, payload: bytes) -> None:
        """Append the next packet."""
        packet_ids = self.packet_ids
        if packet_id != packet_ids[-1] + 1:
            self.is_sequential = False
        packet_ids.append(packet_id)
        self.payloads.append(payload)

    def first(self, count: int) -> "PublishRun":
        """Return a run of the first `count` packets; this one keeps them."""
        packet_ids = self.packet_ids
        run = PublishRun(
            Publish(
                self.topic,
                self.payloads[0],
                self.qos,
                retain=False,
                dup=False,
                packet_id=packet_ids[0],
            )
        )
        for index in range(1, count):
            run.add(packet_ids[index], self.payloads[index])
        return run

    def remove_first(self, count: int) -> None:
        """Remove the first `count` packets, which must not be all."""
        del self.payloads[:count]
        del self.packet_ids[:count]

    def packets(self) -> list[Publish]:
        """Return the packets one by one."""
        topic, qos = self.topic, self.qos
        ids = self.packet_ids
        return [
            Publish(topic, payload, qos, retain=False, dup=False, packet_id=ids[index])
            for index, payload in enumerate(self.payloads)
        ]


class PubackRun:
    """PUBACKs with reason 0x00 in the order received, at least one."""

    __slots__ = ("packet_ids",)
    kind: Final = PUBACK

    def __init__(self, packet_ids: list[int]) -> None:
        self.packet_ids: list[int] = packet_ids

    def packets(self) -> list[Puback]:
        """Return the packets one by one."""
        return [Puback(packet_id) for packet_id in self.packet_ids]


# What a decoder returns when it joins packets into runs.
Received: TypeAlias = Packet | PublishRun | PubackRun


def one_by_one(received: list[Received]) -> list[Packet]:
    """Return the packets received, with those of runs listed singly."""
    packets: list[Packet] = []
    for item in received:
        if isinstance(item, PublishRun):
            packets += item.packets()
        elif isinstance(item, PubackRun):
            packets += item.packets()
        else:
            packets.append(item)
    return packets
