"""What an operator asks the history, and what it answers."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker.configuration.config import Config
from broker.configuration.load import load
from broker.history import queries, reader
from broker.history.queries import HistoryError, tail, timeline, verify
from broker.history.segment_files import SegmentWriter
from broker.history.segment_process_link import HOW_TO_INSTALL
from storage.history import events, packed_rows
from storage.history import segment_names as segment_file_names
from storage.history.packed_rows import history_key, unpack
from storage.history.segment_names import segment_names
from storage.local.data_directory import DataDirectory
from storage.local.opening import open_database
from storage.local.rocks import RocksStore
from storage.tables.tables import HISTORY, seal, unseal
from tests.stand_in import replace_in
from tests.storage.history.history_cases import NOW_MS, Tick

pytestmark = pytest.mark.full  # starts processes


def told() -> list[bytes]:
    """Return rows of a message from "p" that is owed to "s" and to "q", in five ticks."""
    ticks = [Tick() for _ in range(5)]
    ticks[0].record(
        events.SESSION_CREATED, packed_rows.HAS_EXPIRY, who="s\0", words={1: 7, 2: 1, 8: 60}
    )
    ticks[1].record(
        events.MSG_ACCEPTED,
        packed_rows.HAS_MSG | packed_rows.HAS_PUB_QOS | packed_rows.HAS_BYTES,
        who="p\0",
        text="t",
        pub_qos=1,
        words={1: 8, 2: 2, 4: 41, 7: 5},
    )
    ticks[1].record(events.MSG_PERSISTED, packed_rows.HAS_MSG, words={4: 41})
    for client in ("s", "q"):
        ticks[2].record(
            events.MSG_DELIVERED,
            packed_rows.HAS_MSG | packed_rows.HAS_QOS,
            who=f"{client}\0",
            qos=1,
            words={1: 7, 2: 1, 4: 41},
        )
    ticks[3].record(events.MSG_ACKED, packed_rows.HAS_MSG, who="s\0", words={1: 7, 2: 1, 4: 41})
    ticks[4].record(
        events.MSG_DROPPED,
        packed_rows.HAS_MSG | packed_rows.HAS_COUNT | packed_rows.HAS_REASON,
        who="q\0",
        reason=1027,
        words={1: 9, 4: 40, 8: 44, 9: 3},
    )
    packed, seq = [], 1
    for number, tick in enumerate(ticks):
        body = tick.pack(seq, NOW_MS + number)
        packed.append(seal(body))
        seq += packed_rows.peek(body)[2]
    return packed


def recorded(tmp_path: Path) -> Config:
    """Return a data directory: its first three ticks are exported, one of them not yet trimmed."""
    loaded = load(
        environment={
            "HOLDFAST__STORAGE__DATA_DIR": str(tmp_path / "data"),
            "HOLDFAST__HISTORY__NODE": "edge",
        }
    )
    place = DataDirectory(tmp_path / "data")
    store, watermark, _ = open_database(place, families=[HISTORY])
    bodies = [unseal(value, "row") for value in told()]
    store.write(
        [(HISTORY, history_key(1, packed_rows.peek(body)[1]), seal(body)) for body in bodies[2:]]
    )
    store.close()
    watermark.close()
    place.close()
    writer = SegmentWriter(tmp_path / "data" / "history", "edge", keep_days=0)
    writer.write(1, [unpack(body) for body in bodies[:3]])
    return loaded


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return recorded(tmp_path)


def lines(found: object) -> list[str]:
    """Return what is said, without the times."""
    return [line.partition("Z  ")[2] or line for line in found]  # type: ignore[attr-defined]


def ask(config: Config, client_id: str | None, message: int | None) -> list[str]:
    found = timeline(config, client_id, message, since_s=None, as_json=False, now_ms=NOW_MS)
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
    monkeypatch.setattr(queries, "FOLLOW_S", 0)
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


def test_a_member_of_a_cluster_says_that_its_segments_are_not_all(config: Config) -> None:
    note = "; other members of the cluster have segments, too"
    assert not verify(config, None, thorough=True)[1].endswith(note)
    config.shell.history_cluster = "holdfast"
    assert verify(config, None, thorough=True)[1].endswith(f" no problems{note}")
    directory = str(Path(config.shell.data_dir) / "history")
    assert verify(config, directory, thorough=True)[1].endswith(" no problems")


def test_follow_may_begin_with_what_comes(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Does `tail -n 0 -f` print the whole history first?"""
    monkeypatch.setattr(queries, "FOLLOW_S", 0)
    found = tail(config, 0, as_json=False, follow=True)
    store = RocksStore(Path(config.shell.data_dir) / "db")

    def write(_: float) -> None:
        tick = Tick()
        tick.record(events.SESSION_EXPIRED, who="s\0", words={1: 7})
        store.write([(HISTORY, history_key(1, 8), seal(tick.pack(8, NOW_MS + 9)))])

    monkeypatch.setattr(queries, "time", SimpleNamespace(sleep=write))
    assert lines([next(found)]) == ["s: session expired"]
    store.close()


def test_tail_takes_no_more_of_a_segment_than_it_shows(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Does the end of a segment of 500,000 events cost a few gigabytes?"""
    taken: list[int] = []
    read = reader.History.events_of

    def count(history: reader.History, *arguments: Any) -> list[reader.Event]:
        found = read(history, *arguments)
        taken.append(len(found))
        return found

    monkeypatch.setattr(reader.History, "events_of", count)
    assert len(list(tail(config, 4, as_json=False, follow=False))) == 4
    assert taken == [2]


def test_a_directory_that_may_not_be_read_is_one_line(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(directory: Path) -> list[str]:
        raise PermissionError(13, "Permission denied", str(directory))

    replace_in(monkeypatch, segment_file_names, "os", listdir=refuse)
    with pytest.raises(HistoryError, match=r"history: Permission denied$"):
        list(tail(config, 1, as_json=False, follow=False))


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
    for now_ms, expected in (
        (NOW_MS + 1002, ["msg_delivered", "msg_acked"]),
        (NOW_MS + 1003, ["msg_acked"]),
    ):
        found = timeline(config, "s", None, since_s=1, as_json=True, now_ms=now_ms)
        assert [json.loads(line)["ev"] for line in found] == expected
    always = timeline(config, "s", None, since_s=10**12, as_json=True, now_ms=NOW_MS)
    assert len(list(always)) == 3


def test_what_is_not_known_is_said(config: Config) -> None:
    with pytest.raises(HistoryError, match=r"knows nothing of client 'nobody' and message 3$"):
        ask(config, "nobody", 3)
    with pytest.raises(HistoryError, match="expected CLIENT_ID, --message ID, or both"):
        ask(config, None, None)


def test_a_client_is_found_by_its_name_where_names_are_hashed(config: Config) -> None:
    config.settings.history_hash_names = True
    config.settings.history_hash_key = "k" * 16
    from session.history.recorder import Recorder

    hashed = Recorder(config.settings)._hash(b"s")
    tick = Tick()
    tick.record(events.SESSION_EXPIRED, who=f"{hashed}\0", words={1: 7})
    store = RocksStore(Path(config.shell.data_dir) / "db")
    store.write([(HISTORY, history_key(1, 8), seal(tick.pack(8)))])
    store.close()
    assert ask(config, "s", None) == [f"{hashed}: session expired"]


def test_a_client_is_found_by_its_name_where_names_are_shortened(config: Config) -> None:
    endless = "x" * 2000
    tick = Tick()
    tick.record(events.SESSION_EXPIRED, who=f"{packed_rows.shortened(endless)}\0", words={1: 7})
    store = RocksStore(Path(config.shell.data_dir) / "db")
    store.write([(HISTORY, history_key(1, 8), seal(tick.pack(8)))])
    store.close()
    assert ask(config, endless, None) == [f"{packed_rows.shortened(endless)}: session expired"]


def test_without_pyarrow_the_rest_is_told_with_a_note(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "can_read_segments", lambda: False)
    install = HOW_TO_INSTALL
    note = f"(1 segments are left out: reading them takes pyarrow; {install})"
    assert ask(config, "s", None) == ["s: acknowledged message 41", note]
    assert lines(tail(config, 9, as_json=False, follow=False))[-1] == note


def test_a_damaged_segment_is_named_after_what_all_others_tell(config: Config) -> None:
    """Does one torn file hide everything that happened since?"""
    (segment,) = segment_names(Path(config.shell.data_dir) / "history")
    segment.path.write_bytes(segment.path.read_bytes()[:1000])
    found = timeline(config, "s", None, since_s=None, as_json=False, now_ms=NOW_MS)
    assert lines([next(found)]) == ["s: acknowledged message 41"]
    with pytest.raises(HistoryError, match=r"left out: history segment .*parquet: "):
        next(found)
    shown = tail(config, 9, as_json=False, follow=False)
    assert len([next(shown), next(shown)]) == 2
    with pytest.raises(HistoryError, match=r"left out: history segment .*parquet: "):
        next(shown)


def test_a_damaged_segment_does_not_keep_from_following(
    config: Config, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(queries, "FOLLOW_S", 0)
    history = Path(config.shell.data_dir) / "history"
    (segment,) = segment_names(history)
    segment.path.write_bytes(segment.path.read_bytes()[:1000])
    found = tail(config, 9, as_json=False, follow=True)
    assert len([next(found), next(found)]) == 2
    bodies = []
    for seq in (8, 9, 10):
        tick = Tick()
        tick.record(events.SESSION_EXPIRED, who="s\0", words={1: 7})
        bodies.append(tick.pack(seq, NOW_MS + seq))
    store = RocksStore(Path(config.shell.data_dir) / "db")
    store.write([(HISTORY, history_key(1, 8), seal(bodies[0]))])
    assert lines([next(found)]) == ["s: session expired"]
    told_of = capsys.readouterr()
    assert told_of.err.startswith(f"holdfast: left out: history segment {segment.path}: ")
    assert (told_of.err.count("\n"), told_of.out) == (1, "")
    SegmentWriter(history, "edge", keep_days=0).write(1, [unpack(body) for body in bodies[1:2]])
    newest = list(segment_names(history))[-1]
    newest.path.write_bytes(newest.path.read_bytes()[:1000])
    looks: list[float] = []

    def look(_: float) -> None:
        looks.append(_)
        if len(looks) == 3:
            store.write([(HISTORY, history_key(1, 10), seal(bodies[2]))])

    monkeypatch.setattr(queries, "time", SimpleNamespace(sleep=look))
    assert lines([next(found)]) == ["s: session expired"]
    assert capsys.readouterr().err.count(f"left out: history segment {newest.path}: ") == 1
    store.close()


def test_a_history_that_is_empty_or_elsewhere_is_said(config: Config) -> None:
    """Does an operator who forgot `-c` see that he looks into the wrong place?"""
    config.shell.history_dir = f"{config.shell.data_dir}/elsewhere"
    store = RocksStore(Path(config.shell.data_dir) / "db")
    store.write([(HISTORY, key, None) for key, _ in store.scan(HISTORY, b"", None, count=10)])
    store.close()
    with pytest.raises(HistoryError, match=r"nothing of node 'edge' in .*elsewhere, and no event"):
        list(tail(config, 1, as_json=False, follow=False))


def test_a_directory_without_a_database_is_one_line(tmp_path: Path) -> None:
    loaded = load(environment={"HOLDFAST__STORAGE__DATA_DIR": str(tmp_path)})
    with pytest.raises(HistoryError, match="no database in it"):
        list(tail(loaded, 1, as_json=False, follow=False))
