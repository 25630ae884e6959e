"""Broker time across restarts, wall-clock jumps and reboots."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import CorruptRecord
from storage.time.broker_clock import Heartbeat, crash_time, resume

BOOT = "6c1b3b53-1c5e-4ee4-9a24-97f9b4f7a8a1"
BEAT = Heartbeat(broker_ms=1_000_000, wall_ms=5_000_000, boot_id=BOOT, boottime_ms=70_000)


def test_broker_time_starts_as_the_wall_clock() -> None:
    assert resume(None, wall_ms=1234, boot_id=BOOT, boottime_ms=5) == 1234


@pytest.mark.parametrize("wall_ms", [0, 5_000_000, 5_000_000 + 30 * 86_400_000])
def test_within_a_boot_the_wall_clock_does_not_count(wall_ms: int) -> None:
    """Does setting the wall clock by a month, either way, change nothing?"""
    assert resume(BEAT, wall_ms, BOOT, 73_500) == 1_003_500


def test_after_a_reboot_the_wall_clock_counts_the_time_the_machine_was_off() -> None:
    assert resume(BEAT, 5_000_000 + 9_000, "another boot", 100) == 1_009_000


def test_a_wall_clock_set_back_across_a_reboot_takes_nothing_back() -> None:
    assert resume(BEAT, 4_000_000, "another boot", 100) == 1_000_000


def test_without_a_boot_id_every_start_is_another_boot() -> None:
    beat = Heartbeat(broker_ms=1000, wall_ms=5000, boot_id="", boottime_ms=999_999)
    assert resume(beat, 6000, "", 5) == 2000


@given(
    st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1), st.booleans()
)
def test_broker_time_never_goes_back(wall: int, boottime: int, broker: int, same: bool) -> None:
    beat = Heartbeat(broker_ms=broker, wall_ms=2**40, boot_id=BOOT, boottime_ms=2**40)
    assert resume(beat, wall, BOOT if same else "other", boottime) >= broker


@given(
    st.integers(0, 2**64 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.text("0123456789abcdef-", max_size=36),
    st.integers(0, 2**64 - 1),
)
def test_a_heartbeat_survives_the_disk(
    broker_ms: int, wall_ms: int, boot_id: str, boottime_ms: int
) -> None:
    beat = Heartbeat(broker_ms, wall_ms, boot_id, boottime_ms)
    back = Heartbeat.decode(beat.encode())
    assert back == beat
    assert hash(back) == hash(beat)
    assert back != Heartbeat(broker_ms ^ 1, wall_ms, boot_id, boottime_ms)
    assert repr(boot_id) in repr(back)


def test_the_format_stays_readable() -> None:
    """Golden bytes: a change needs another version."""
    golden = (
        "0100000000000f424000000000004c4b40000000000001117024" + BOOT.encode().hex() + "156cef60"
    )
    assert BEAT.encode().hex() == golden
    assert Heartbeat.decode(bytes.fromhex(golden)) == BEAT


def test_every_cut_and_every_flipped_bit_is_noticed() -> None:
    whole = BEAT.encode()
    for length in range(len(whole)):
        with pytest.raises(CorruptRecord):
            Heartbeat.decode(whole[:length])
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 0x10
        with pytest.raises(CorruptRecord):
            Heartbeat.decode(bytes(flipped))


def test_a_newer_version_is_refused_by_name() -> None:
    body = b"\x02" + BEAT.encode()[1:-4]
    with pytest.raises(CorruptRecord, match="version 2: expected 1"):
        Heartbeat.decode(body + zlib.crc32(body).to_bytes(4, "big"))


def test_a_boot_id_of_another_length_is_refused() -> None:
    body = BEAT.encode()[:-4] + b"x"
    with pytest.raises(CorruptRecord, match="boot id"):
        Heartbeat.decode(body + zlib.crc32(body).to_bytes(4, "big"))


@given(st.integers(0, 2**40), st.integers(100, 60_000), st.floats(0, 1.25, exclude_max=True))
def test_a_crash_is_never_dated_early_and_hardly_late(beat: int, period: int, share: float) -> None:
    """Does every moment until a late next heartbeat lie before the date, and it soon after?"""
    crashed = beat + int(period * share)
    assert crashed <= crash_time(beat, period) <= beat + period * 1.25
