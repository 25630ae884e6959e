"""Broker time: elapsed milliseconds that survive wall-clock jumps and reboots.

Everything that expires is compared with broker time. Within one boot of the machine it follows the
boot-time clock (which counts suspend), so setting the wall clock changes nothing. Across a reboot
only the wall clock knows how long the machine was off: it may add time, but never take time back.
Pure: the clocks are read in `storage.time.machine_clocks`.
"""

import struct
import zlib
from typing import Final

from storage.errors import CorruptRecord

HEARTBEAT_KEY: Final = b"heartbeat"  # in the family `meta`
VERSION: Final = 1
# version, broker_ms, wall_ms, boottime_ms, length of boot_id; then boot_id and a crc32 of it all.
HEAD: Final = struct.Struct(">BQqQB")
CRC: Final = struct.Struct(">I")


class Heartbeat:
    """The clocks' values when the broker was last known to run. Written once a second."""

    __slots__ = ("boot_id", "boottime_ms", "broker_ms", "wall_ms")

    def __init__(self, broker_ms: int, wall_ms: int, boot_id: str, boottime_ms: int) -> None:
        self.broker_ms: int = broker_ms
        self.wall_ms: int = wall_ms  # since 1970, by the wall clock at that time
        self.boot_id: str = boot_id  # changes with each boot
        self.boottime_ms: int = boottime_ms  # since that boot, suspend included

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Heartbeat) and self.encode() == other.encode()

    def __hash__(self) -> int:
        return hash(self.encode())

    def __repr__(self) -> str:
        return (
            f"Heartbeat(broker_ms={self.broker_ms}, wall_ms={self.wall_ms}, "
            f"boot_id={self.boot_id!r}, boottime_ms={self.boottime_ms})"
        )

    def encode(self) -> bytes:
        """Return the value of the heartbeat row."""
        boot_id = self.boot_id.encode("ascii")
        head = HEAD.pack(VERSION, self.broker_ms, self.wall_ms, self.boottime_ms, len(boot_id))
        body = head + boot_id
        return body + CRC.pack(zlib.crc32(body))

    @staticmethod
    def decode(value: bytes) -> "Heartbeat":
        """Return the heartbeat of a row's value. Raises `CorruptRecord`."""
        body = value[: -CRC.size]
        if (
            len(value) < HEAD.size + CRC.size
            or zlib.crc32(body) != CRC.unpack_from(value, len(body))[0]
        ):
            raise CorruptRecord(f"heartbeat of {len(value)} bytes: wrong checksum")
        version, broker_ms, wall_ms, boottime_ms, length = HEAD.unpack_from(body)
        if version != VERSION:
            raise CorruptRecord(f"heartbeat version {version}: expected {VERSION}")
        boot_id = body[HEAD.size :]
        if len(boot_id) != length:
            raise CorruptRecord(
                f"heartbeat with {len(boot_id)} bytes of boot id: expected {length}"
            )
        if not boot_id.isascii():
            raise CorruptRecord(f"heartbeat with boot id {boot_id!r}: expected ASCII")
        return Heartbeat(
            broker_ms=broker_ms,
            wall_ms=wall_ms,
            boot_id=boot_id.decode("ascii"),
            boottime_ms=boottime_ms,
        )


def resume(heartbeat: Heartbeat | None, wall_ms: int, boot_id: str, boottime_ms: int) -> int:
    """Return the broker time now, from the last heartbeat on disk and the clocks' present values.

    Without a heartbeat broker time starts at the wall clock, so that times are readable. It is
    never before the heartbeat. An empty `boot_id` always counts as another boot.
    """
    if heartbeat is None:
        return wall_ms
    if boot_id and boot_id == heartbeat.boot_id:
        return heartbeat.broker_ms + max(0, boottime_ms - heartbeat.boottime_ms)
    return heartbeat.broker_ms + max(0, wall_ms - heartbeat.wall_ms)


def crash_time(alive_ms: int, period_ms: int) -> int:
    """Return the latest time at which a broker can have crashed, from its last heartbeat on disk.

    A running broker writes a heartbeat every `period_ms`, late by the time of a timer and a sync; a
    quarter of the period is allowed for that. So nothing that counts from a crash ends early; it
    ends late by at most what is added here. The crash may have been later only if no heartbeat
    reached the disk for longer than that (a stopped process, a disk that does not answer).
    """
    return alive_ms + period_ms + period_ms // 4
