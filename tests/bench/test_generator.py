"""What the benchmark reads from the generator, and what it writes for it."""

import struct
from pathlib import Path

from bench import fill
from bench.generator import payload_mark, trouble, write_state
from mqtt.decoder import Decoder
from mqtt.packets import Connect, Subscribe

# As in mqttload.c: magic, run, sessions, messages, shared, qos, version, payload, pubs, prefix.
HEADER = struct.Struct("<8s8I48s")


def test_a_state_file_is_the_header_and_a_byte_per_message(tmp_path: Path) -> None:
    path = tmp_path / "state"
    write_state(path, run=7, prefix="fill", sessions=3, messages=2)
    data = path.read_bytes()
    assert HEADER.unpack(data[: HEADER.size]) == (
        b"MQLOFF1\0",
        *(7, 3, 2, 0, 1, 4, 128, 0),
        b"fill".ljust(48, b"\0"),
    )
    assert data[HEADER.size :] == bytes(6)


def test_a_run_that_went_well_is_no_trouble() -> None:
    assert trouble({"ok": True, "lost": 0, "errors": {"closed": 0}}) == ""


def test_trouble_names_what_was_counted_in_every_phase() -> None:
    line = {
        "ok": False,
        "errors": {"closed": 2, "io": 0},
        "publish": {"nacked": 1},
        "drain": {"lost": 5, "dup": 0},
    }
    assert trouble(line) == "nacked 1, lost 5, closed 2"


def test_trouble_is_never_silent() -> None:
    assert trouble({"ok": False, "errors": {}}) == "not ok"


def test_the_mark_of_a_payload_is_how_it_lies_in_memory() -> None:
    assert payload_mark(0x01020304) == b"DLQM\x04\x03\x02\x01"


def test_filled_sessions_are_asked_for_in_proper_packets() -> None:
    decoder = Decoder("server", 0)
    packets = decoder.receive(fill.session_packets(b"fill-s12", b"off/1/12/d"))
    if decoder.is_held:
        packets += decoder.go_on()
    connect, subscribe = packets
    assert isinstance(connect, Connect)
    assert (connect.client_id, connect.clean_start) == ("fill-s12", False)
    assert isinstance(subscribe, Subscribe)
    assert [(s.topic_filter, s.qos) for s in subscribe.subscriptions] == [("off/1/12/d", 1)]
