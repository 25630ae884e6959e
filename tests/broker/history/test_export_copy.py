"""Is a copy of the history whole, each event once, and is nothing written where a broker does?"""

import fcntl
import os
from pathlib import Path

import pytest

from broker.configuration.config import Config
from broker.history import export_copy
from broker.history.export_copy import export
from broker.history.queries import HistoryError
from broker.history.segment_files import SegmentWriter
from storage.history import packed_rows, segments
from storage.history.packed_rows import history_key, unpack
from storage.history.segment_names import segment_names
from storage.local.data_directory import DataDirectory
from storage.local.rocks import RocksStore
from storage.tables.tables import HISTORY, seal, unseal
from tests.broker.history.test_queries import recorded, told
from tests.stand_in import replace_in

pytestmark = pytest.mark.full  # starts processes


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return recorded(tmp_path)


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


@pytest.mark.parametrize(("name", "is_copy"), [("out", True), ("data/history", False)])
def test_a_segment_made_by_an_export_follows_the_others_and_says_where_it_is_from(
    config: Config, tmp_path: Path, name: str, is_copy: bool
) -> None:
    export(config, str(tmp_path / name))
    links = [segments.read_footer(each.path).link for each in segment_names(tmp_path / name)]
    first, second = (link for link in links if link is not None)
    assert (first.is_copy, second.is_copy) == (False, is_copy)
    assert second.before == first.head
    assert segments.verify(tmp_path / name, thorough=True) == []


def test_an_export_says_what_it_cannot_do(config: Config, tmp_path: Path) -> None:
    place = DataDirectory(config.shell.data_dir)
    try:
        with pytest.raises(HistoryError, match="the running broker exports to it"):
            export(config, f"{config.shell.data_dir}/history")
        assert export(config, str(tmp_path / "other"))
    finally:
        place.close()
    (tmp_path / "file").touch()
    with pytest.raises(HistoryError, match=r"file: not a directory$"):
        export(config, str(tmp_path / "file"))
    store = RocksStore(Path(config.shell.data_dir) / "db")
    store.write([(HISTORY, history_key(1, 8), b"nonsense")])
    store.close()
    with pytest.raises(HistoryError, match=r"all but what is damaged: boot 1, from event 8 on: "):
        export(config, str(tmp_path / "out"))
    assert segments.verify(tmp_path / "out", thorough=True) == []


@pytest.mark.parametrize("spelling", ["history", "history/../history", "link"])
def test_the_directory_of_a_running_broker_is_known_by_any_name(
    config: Config, tmp_path: Path, spelling: str
) -> None:
    """Are the same events exported twice, under another name, behind the broker's back?"""
    data = Path(config.shell.data_dir)
    (data / "link").symlink_to(data / "history")
    place = DataDirectory(data)
    try:
        with pytest.raises(HistoryError, match="the running broker exports to it"):
            export(config, f"{data}/{spelling}")
    finally:
        place.close()
    assert len(list(segment_names(data / "history"))) == 1


def test_nobody_else_exports_to_the_directory_meanwhile(config: Config) -> None:
    data = Path(config.shell.data_dir)
    with open(data / "history.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(HistoryError, match="the running broker exports to it"):
            export(config, f"{data}/history")
    assert export(config, f"{data}/history").endswith(
        "0 segments as they were, 1 new ones with 2 events"
    )
    assert segments.verify(data / "history", thorough=True) == []


@pytest.mark.parametrize("sealed", [[3, 4], [3], [3, 4, 5]])
def test_an_export_again_has_what_was_sealed_otherwise_since_once(
    config: Config, tmp_path: Path, sealed: list[int]
) -> None:
    """Is what the first export made of waiting rows there twice when the broker has sealed them?"""
    target = tmp_path / "out"
    export(config, str(target))
    bodies = [unseal(value, "row") for value in told()]
    later = packed_rows.pack(
        packed_rows.peek(bodies[4])[0], 0, 8, 1, [100, 0, 0, 0, 0, 1, 0, 0, 0, 0], [], []
    )
    bodies.append(later)
    store = RocksStore(Path(config.shell.data_dir) / "db")
    store.write([(HISTORY, history_key(1, 8), seal(later))])
    store.close()
    writer = SegmentWriter(Path(config.shell.data_dir) / "history", "edge", keep_days=0)
    writer.write(1, [unpack(bodies[number]) for number in sealed])
    export(config, str(target))
    assert segments.verify(target, thorough=True) == []
    assert list(segment_names(target))[-1].last_seq == 8


@pytest.mark.parametrize("copied_before", [False, True])
def test_what_an_earlier_export_has_is_not_copied_again_in_parts(
    config: Config, tmp_path: Path, copied_before: bool
) -> None:
    """Is an event there twice when retention took one of the segments that an export foresaw?"""
    target = tmp_path / "out"
    export(config, str(target))
    history = Path(config.shell.data_dir) / "history"
    writer = SegmentWriter(history, "edge", keep_days=0)
    for value in told()[3:]:
        writer.write(1, [unpack(unseal(value, "row"))])
    _, first, second = segment_names(history)
    assert (first.first_seq, first.last_seq, second.first_seq, second.last_seq) == (6, 6, 7, 7)
    first.path.unlink()
    if copied_before:
        os.link(second.path, target / second.path.relative_to(history))
    assert export(config, str(target)).endswith("0 segments as they were, 0 new ones with 0 events")
    assert segments.verify(target, thorough=True) == []
    assert [(each.first_seq, each.last_seq) for each in segment_names(target)] == [(1, 5), (6, 7)]
    assert len(list(segment_names(history))) == 2


def test_what_vanishes_while_it_is_copied_is_not_removed_from_an_earlier_export(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out"
    export(config, str(target))
    history = Path(config.shell.data_dir) / "history"
    writer = SegmentWriter(history, "edge", keep_days=0)
    for value in told()[3:]:
        writer.write(1, [unpack(unseal(value, "row"))])

    def retain(source: Path, copy: Path) -> None:
        for segment in segment_names(history):
            if segment.last_seq == 6:
                segment.path.unlink()
        os.link(source, copy)

    replace_in(monkeypatch, export_copy, "os", link=retain)
    export(config, str(target))
    assert (6, 7) in [(each.first_seq, each.last_seq) for each in segment_names(target)]
    monkeypatch.undo()
    export(config, str(target))
    assert [(each.first_seq, each.last_seq) for each in segment_names(target)] == [(1, 5), (6, 7)]


def test_what_only_an_earlier_export_has_is_kept(config: Config, tmp_path: Path) -> None:
    target = tmp_path / "out"
    export(config, str(target))
    store = RocksStore(Path(config.shell.data_dir) / "db")
    store.write([(HISTORY, history_key(1, 6), None), (HISTORY, history_key(1, 7), None)])
    store.close()
    export(config, str(target))
    assert [(each.first_seq, each.last_seq) for each in segment_names(target)] == [(1, 5), (6, 7)]


def test_a_copy_to_another_file_system_is_whole_or_not_there(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    replace_in(monkeypatch, export_copy, "os", link=refuse)
    assert export(config, str(tmp_path / "out"))
    assert segments.verify(tmp_path / "out", thorough=True) == []

    def fill(source: Path, target: Path) -> None:
        Path(target).write_bytes(b"PAR1")
        raise OSError(28, "No space left on device", str(target))

    replace_in(monkeypatch, export_copy, "shutil", copyfile=fill)
    with pytest.raises(HistoryError, match="No space left on device"):
        export(config, str(tmp_path / "full"))
    assert [path for path in (tmp_path / "full").rglob("*") if path.is_file()] == []
