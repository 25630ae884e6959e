"""What an operator asks the history, and what it answers."""

import json
from pathlib import Path

import pytest

from broker import history_command, history_reader
from broker.config import Config, load
from broker.history_command import HistoryError, export, tail, timeline
from broker.segment_writer import SegmentWriter
from storage.directory import DataDirectory
from storage.history import events, rows, segments
from storage.history.names import segment_names
from storage.history.rows import history_key, unpack
from storage.rocks import RocksStore
from storage.state import HISTORY, seal, unseal
from tests.storage.history.history_cases import NOW_MS, Tick


def told() -> list[bytes]:
    """Return rows of a message from "p" that is owed to "s" and to "q", in five ticks."""
    ticks = [Tick() for _ in range(5)]
    ticks[0].record(events.SESSION_CREATED, rows.HAS_EXPIRY, who="s\0", words={1: 7, 2: 1, 8: 60})
    ticks[1].record(
        events.MSG_ACCEPTED,
        rows.HAS_MSG | rows.HAS_PUB_QOS | rows.HAS_BYTES,
        who="p\0",
        text="t",
        pub_qos=1,
        words={1: 8, 2: 2, 4: 41, 7: 5},
    )
    ticks[1].record(events.MSG_PERSISTED, rows.HAS_MSG, words={4: 41})
    for client in ("s", "q"):
        ticks[2].record(
            events.MSG_DELIVERED,
            rows.HAS_MSG | rows.HAS_QOS,
            who=f"{client}\0",
            qos=1,
            words={1: 7, 2: 1, 4: 41},
        )
    ticks[3].record(events.MSG_ACKED, rows.HAS_MSG, who="s\0", words={1: 7, 2: 1, 4: 41})
    ticks[4].record(
        events.MSG_DROPPED,
        rows.HAS_MSG | rows.HAS_COUNT | rows.HAS_REASON,
        who="q\0",
        reason=1027,
        words={1: 9, 4: 40, 8: 44, 9: 3},
    )
    packed, seq = [], 1
    for number, tick in enumerate(ticks):
        body = tick.pack(seq, NOW_MS + number)
        packed.append(seal(body))
        seq += rows.peek(body)[2]
    return packed


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A data directory whose first three ticks are exported, one of them not yet trimmed."""
    loaded = load(
        environment={
            "HOLDFAST__STORAGE__DATA_DIR": str(tmp_path / "data"),
            "HOLDFAST__HISTORY__NODE": "edge",
        }
    )
    place = DataDirectory(tmp_path / "data")
    store = RocksStore(place.database, families=[HISTORY])
    bodies = [unseal(value, "row") for value in told()]
    store.write([(HISTORY, history_key(1, rows.peek(body)[1]), seal(body)) for body in bodies[2:]])
    store.close()
    place.close()
    writer = SegmentWriter(tmp_path / "data" / "history", "edge", keep_days=0)
    writer.write(1, [unpack(body) for body in bodies[:3]])
    return loaded


def lines(found: object) -> list[str]:
    """Return what is said, without the times."""
    return [line.partition("Z  ")[2] or line for line in found]  # type: ignore[attr-defined]


def ask(config: Config, client_id: str | None, message: int | None) -> list[str]:
    found = timeline(config, client_id, message, since_hours=None, as_json=False, now_ms=NOW_MS)
    return lines(found)


def test_tail_tells_the_last_events_of_segments_and_database(config: Config) -> None:
    assert lines(tail(config, 2, as_json=False, follow=False)) == [
        "s: acknowledged message 41",
        "q: 3 messages between 40 and 44 dropped: max age",
    ]
    everything = list(tail(config, 100, as_json=True, follow=False))
    assert [json.loads(line)["seq"] for line in everything] == [1, 2, 3, 4, 5, 6, 7]
    first = json.loads(everything[0])
    assert first["ev"] == "session_created"
    assert first["ts"] == "2025-11-21T07:45:11.111Z"
    assert "topic" not in first
    assert lines(tail(config, 0, as_json=False, follow=False)) == []


def test_follow_goes_on_with_what_comes(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_command, "FOLLOW_S", 0)
    store = RocksStore(Path(config.shell.data_dir) / "db")
    found = tail(config, 1, as_json=False, follow=True)
    assert lines([next(found)]) == ["q: 3 messages between 40 and 44 dropped: max age"]
    tick = Tick()
    tick.record(events.SESSION_EXPIRED, who="s\0", words={1: 7})
    body = tick.pack(8, NOW_MS + 9)
    store.write([(HISTORY, history_key(1, 8), seal(body))])
    assert lines([next(found)]) == ["s: session expired"]
    tick = Tick()
    tick.record(events.SHUTDOWN)
    writer = SegmentWriter(Path(config.shell.data_dir) / "history", "edge", keep_days=0)
    writer.write(1, [unpack(body), unpack(tick.pack(9, NOW_MS + 10))])
    assert lines([next(found)]) == ["broker ended in order"]
    store.close()


def test_a_timeline_is_of_a_client_of_a_message_or_of_both(config: Config) -> None:
    assert ask(config, "s", None) == [
        "s: connected, new session: expires after 60 s",
        "s: was sent message 41 at QoS 1",
        "s: acknowledged message 41",
    ]
    assert ask(config, None, 41) == [
        "p: published message 41 to 't' at QoS 1, 5 bytes",
        "message 41 is durable",
        "s: was sent message 41 at QoS 1",
        "q: was sent message 41 at QoS 1",
        "s: acknowledged message 41",
        "q: 3 messages between 40 and 44 dropped: max age",
    ]
    assert ask(config, "s", 41) == [
        "p: published message 41 to 't' at QoS 1, 5 bytes",
        "message 41 is durable",
        "s: was sent message 41 at QoS 1",
        "s: acknowledged message 41",
    ]


def test_a_timeline_may_begin_late(config: Config) -> None:
    found = timeline(config, "s", None, since_hours=1, as_json=True, now_ms=NOW_MS + 10 * 3_600_000)
    assert [json.loads(line)["ev"] for line in found] == ["msg_acked"]


def test_what_is_not_known_is_said(config: Config) -> None:
    with pytest.raises(HistoryError, match=r"knows nothing of client 'nobody' and message 3$"):
        ask(config, "nobody", 3)
    with pytest.raises(HistoryError, match="expected CLIENT_ID, --message ID, or both"):
        ask(config, None, None)


def test_a_client_is_found_by_its_name_where_names_are_hashed(config: Config) -> None:
    config.settings.history_hash_names = True
    config.settings.history_hash_key = "k" * 16
    from broker.ledger import Ledger

    hashed = Ledger(config.settings)._hash(b"s")
    tick = Tick()
    tick.record(events.SESSION_EXPIRED, who=f"{hashed}\0", words={1: 7})
    store = RocksStore(Path(config.shell.data_dir) / "db")
    store.write([(HISTORY, history_key(1, 8), seal(tick.pack(8)))])
    store.close()
    assert ask(config, "s", None) == [f"{hashed}: session expired"]


def test_a_client_is_found_by_its_name_where_names_are_shortened(config: Config) -> None:
    endless = "x" * 2000
    tick = Tick()
    tick.record(events.SESSION_EXPIRED, who=f"{rows.shortened(endless)}\0", words={1: 7})
    store = RocksStore(Path(config.shell.data_dir) / "db")
    store.write([(HISTORY, history_key(1, 8), seal(tick.pack(8)))])
    store.close()
    assert ask(config, endless, None) == [f"{rows.shortened(endless)}: session expired"]


def test_without_pyarrow_the_rest_is_told_with_a_note(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history_reader, "can_read_segments", lambda: False)
    note = "(1 segments are left out: reading them takes pyarrow; pip install 'holdfast[history]')"
    assert ask(config, "s", None) == ["s: acknowledged message 41", note]
    assert lines(tail(config, 9, as_json=False, follow=False))[-1] == note


def test_an_export_has_everything_once_and_leaves_all_as_it_was(
    config: Config, tmp_path: Path
) -> None:
    target = tmp_path / "out"
    before = sorted(path for path in (tmp_path / "data").rglob("*") if path.suffix != ".log")
    said = export(config, str(target))
    assert said == f"{target}: 1 segments as they were, 1 new ones with 2 events"
    assert segments.verify(target, thorough=True) == []
    assert [(each.first_seq, each.last_seq) for each in segment_names(target)] == [(1, 5), (6, 7)]
    assert export(config, str(target)).endswith("0 segments as they were, 0 new ones with 0 events")
    after = sorted(path for path in (tmp_path / "data").rglob("*") if path.suffix != ".log")
    assert after == before


def test_an_export_says_what_it_cannot_do(config: Config, tmp_path: Path) -> None:
    place = DataDirectory(config.shell.data_dir)
    try:
        with pytest.raises(HistoryError, match="the running broker exports to it"):
            export(config, f"{config.shell.data_dir}/history")
        assert export(config, str(tmp_path / "other"))
    finally:
        place.close()
    (tmp_path / "file").touch()
    with pytest.raises(HistoryError, match="file: File exists"):
        export(config, str(tmp_path / "file"))
    store = RocksStore(Path(config.shell.data_dir) / "db")
    store.write([(HISTORY, history_key(1, 8), b"nonsense")])
    store.close()
    with pytest.raises(HistoryError, match=r"from event 8 on: .* 1 rows are missing in "):
        export(config, str(tmp_path / "out"))
    assert segments.verify(tmp_path / "out", thorough=True) == []


def test_a_directory_without_a_database_is_one_line(tmp_path: Path) -> None:
    loaded = load(environment={"HOLDFAST__STORAGE__DATA_DIR": str(tmp_path)})
    with pytest.raises(HistoryError, match="no database in it"):
        list(tail(loaded, 1, as_json=False, follow=False))
