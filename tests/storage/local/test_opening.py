"""Does a database start after every power cut, and after nothing that took what was durable?"""

import contextlib
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from storage.api import Batch
from storage.errors import DataLoss, StorageError
from storage.local.data_directory import DataDirectory
from storage.local.database_files import log_name, log_numbers
from storage.local.log_format import BLOCK_BYTES
from storage.local.opening import Note, OpenDatabase, open_database
from storage.local.rocks import RocksStore
from storage.local.slot_file import SLOT_BYTES
from storage.local.slot_file import encode as encode_slot
from storage.local.watermark import MAGIC_1, SLOT_1, Synced, Watermark

OVERHEAD = 7 + 12 + 11 + 2 + 11 + 1 + 27  # of such a batch: header, batch, rows
MARKED = 60  # batches that the watermark covers
SYNCED = 80  # batches that were synced; those behind tell it
WRITTEN = 100
FAMILIES = ("a", "b")


def batch(number: int) -> Batch:
    """Return a batch that takes part of a sector, or many."""
    source = random.Random(number)
    key = number.to_bytes(8, "big")
    size = source.choice((10, 100, 700, 3000))
    return [("a", key, source.randbytes(size)), ("b", key, source.randbytes(20))]


@contextlib.contextmanager
def opened(
    directory: Path, *, families: Sequence[str] = FAMILIES, accept_data_loss: bool = False
) -> Iterator[OpenDatabase]:
    """Open the database as a broker does, close it at the end."""
    with contextlib.closing(DataDirectory(directory)) as place:
        database = open_database(place, families=families, accept_data_loss=accept_data_loss)
        with contextlib.closing(database.watermark), contextlib.closing(database.store):
            yield database


def held(store: RocksStore) -> int:
    """Return how many batches the store holds, which must be all from the first one on."""
    for family in FAMILIES:
        keys = [key for key, _ in store.scan(family, b"", count=10_000)]
        assert keys == [n.to_bytes(8, "big") for n in range(1, store.sequence() + 1)], "a hole"
    return store.sequence()


def start(directory: Path, *, accept_data_loss: bool = False) -> tuple[int, list[Note]]:
    """Start twice; return how many batches there are, and what the first start had to tell."""
    with opened(directory, accept_data_loss=accept_data_loss) as database:
        count, notes = held(database.store), database.notes
    with opened(directory) as database:
        assert held(database.store) == count
        assert database.notes == [], "told once"
    return count, notes


class Machine:
    """Copies of one data directory, in which the power was cut."""

    def __init__(self, template: Path, place: Path, synced: Synced) -> None:
        self.synced = synced
        self.directory = place / "data"
        self._template = template

    def fresh(self) -> Path:
        """Return the directory as the broker left it."""
        shutil.rmtree(self.directory, ignore_errors=True)
        return Path(shutil.copytree(self._template, self.directory))

    @property
    def log(self) -> Path:
        """The newest log."""
        return self.directory / "db" / log_name(log_numbers(self.directory / "db")[-1])


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Synced]:
    running, copy = tmp_path_factory.mktemp("running"), tmp_path_factory.mktemp("template")
    with opened(running) as database:
        store, watermark = database.store, database.watermark
        for number in range(1, WRITTEN + 1):
            store.write(batch(number))
            if number in (MARKED, SYNCED):
                store.sync()
            if number == MARKED:
                watermark.advance(store.synced())
        synced = store.synced()
        assert (watermark.sequence, synced.sequence, store.sequence()) == (MARKED, SYNCED, WRITTEN)
        shutil.copytree(running, copy, dirs_exist_ok=True)
    return copy, synced


@pytest.fixture
def machine(template: tuple[Path, Synced], tmp_path: Path) -> Machine:
    return Machine(template[0], tmp_path, template[1])


def zero(file: Path, start: int, size: int) -> bool:
    """Replace a stretch by zeros, which leaves the length; return whether it held anything."""
    content = file.read_bytes()
    with open(file, "r+b") as opened_file:
        opened_file.seek(start)
        opened_file.write(bytes(min(size, len(content) - start)))
    return file.read_bytes() != content


# --- what a power cut leaves ---


def test_what_was_not_synced_may_be_missing_in_any_way(machine: Machine) -> None:
    """Shorter, zeros to the end, one page or one sector of zeros: all that was synced is kept."""
    source = random.Random(1)
    machine.fresh()
    size, synced = machine.log.stat().st_size, machine.synced.length
    assert machine.synced.log == log_numbers(machine.directory / "db")[-1]
    for turn in range(24):
        machine.fresh()
        at = source.randrange(synced, size)
        if turn % 4 == 0:
            os.truncate(machine.log, at)
        elif turn % 4 == 1:
            zero(machine.log, at, size)
        else:  # an old version of the sector or the page stays: whole, up to what was synced
            unit = 512 if turn % 4 == 2 else 4096
            first = max(synced, at - at % unit)
            zero(machine.log, first, at - at % unit + unit - first)
        count, notes = start(machine.directory)
        assert SYNCED <= count <= WRITTEN
        assert [note.event for note in notes] in ([], ["torn_log"])
        assert not any(note.is_loss for note in notes)


def test_a_torn_tail_says_where_it_began(machine: Machine) -> None:
    machine.fresh()
    zero(machine.log, machine.synced.length, 1 << 20)
    log = str(machine.log)
    count, (note,) = start(machine.directory)
    assert count == SYNCED
    assert note.event == "torn_log"
    fields = {"file": log, "offset": machine.synced.length, "last": SYNCED}
    assert fields.items() <= note.fields.items()


def test_a_start_that_is_cut_off_itself_can_be_repeated(machine: Machine) -> None:
    """The place is marked, then RocksDB recovers: a crash in between must not look like damage."""
    machine.fresh()
    zero(machine.log, machine.synced.length, 1 << 20)
    with contextlib.suppress(Crash):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("storage.local.opening.RocksStore", _crash)
            start(machine.directory)
    assert machine.log.exists()
    assert start(machine.directory)[0] == SYNCED


class Crash(Exception):
    """The process ends here."""


def _crash(*_: object, **__: object) -> RocksStore:
    raise Crash


def test_a_hole_in_what_was_synced_is_refused_and_the_file_named(machine: Machine) -> None:
    """Also where only the batches behind the hole tell that it was synced."""
    source = random.Random(2)
    machine.fresh()
    for turn in range(16):
        machine.fresh()
        unit = 512 if turn % 2 else 4096
        at = source.randrange(0, machine.synced.length - 4096)
        assert zero(machine.log, at - at % unit, unit)
        with pytest.raises(DataLoss, match=r"db/\d+\.log: zeros .* --accept-data-loss") as refusal:
            start(machine.directory)
        assert str(machine.log) in str(refusal.value)
        count, notes = start(machine.directory, accept_data_loss=True)
        assert count < SYNCED
        assert {note.event for note in notes} == {"data_loss_accepted"}


def test_a_log_that_lost_durable_batches_without_a_trace_is_named(machine: Machine) -> None:
    machine.fresh()
    os.truncate(machine.log, 0)
    with pytest.raises(DataLoss, match=f"{MARKED} are lost .*log had .* bytes, found 0"):
        start(machine.directory)
    machine.log.unlink()
    with pytest.raises(DataLoss, match=f"{MARKED} are lost .*log is missing"):
        start(machine.directory)
    assert start(machine.directory, accept_data_loss=True)[0] == 0


def test_flipped_bits_are_refused_wherever_they_are(machine: Machine) -> None:
    """No power cut leaves them. Behind what is known to be durable the line says so."""
    source = random.Random(3)
    for turn in range(8):
        machine.fresh()
        whole = machine.log.read_bytes()
        low, high = ((0, machine.synced.length), (machine.synced.length, len(whole)))[turn % 2]
        at = source.randrange(low, high)
        machine.log.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        expected = "no power cut leaves such bytes" if turn % 2 else "at least [0-9]+ are lost"
        with pytest.raises(DataLoss, match=f"log: damaged bytes at .*{expected}"):
            start(machine.directory)
        count, _ = start(machine.directory, accept_data_loss=True)
        assert count >= SYNCED or not turn % 2


# --- several logs ---


@pytest.fixture
def two_logs(tmp_path: Path) -> Machine:
    """Two logs, both needed: the older one was synced up to batch 20, the newer one not at all."""
    running, copy = tmp_path / "running", tmp_path / "template"
    with opened(running) as database:
        store = database.store
        for number in range(1, 41):
            store.write(batch(number))
            if number == 20:
                store.sync()
                database.watermark.advance(store.synced())
                synced = store.synced()
        older = log_numbers(running / "db")
        shutil.copytree(running, copy)
        store._tables["b"].flush(True)  # begins a new log and syncs the older one
        for number in range(41, 61):
            store.write(batch(number))
        newer = [number for number in log_numbers(running / "db") if number not in older]
        assert len(newer) == 1
        shutil.copy(running / "db" / log_name(newer[0]), copy / "db")
    return Machine(copy, tmp_path, synced)


def test_a_log_whose_end_is_missing_hides_the_logs_behind_it(two_logs: Machine) -> None:
    """The kernel may write the newer log first. RocksDB would go on behind the hole."""
    two_logs.fresh()
    assert start(two_logs.directory)[0] == 60
    for size in (two_logs.synced.length, two_logs.synced.length + 1000):
        two_logs.fresh()
        older = two_logs.directory / "db" / log_name(two_logs.synced.log)
        assert size < older.stat().st_size
        os.truncate(older, size)
        count, (note,) = start(two_logs.directory)
        assert 20 <= count < 40
        assert note.fields["file"] == str(older)


def test_a_hole_that_ends_with_a_block_is_found(tmp_path: Path) -> None:
    """RocksDB takes zeros for the end of a block, and goes on behind it as if nothing was."""
    with opened(tmp_path / "data") as database:
        store = database.store
        sizes = []  # of the log, after each batch
        while not sizes or sizes[-1] < 3 * BLOCK_BYTES:
            number = len(sizes) + 1
            left = BLOCK_BYTES - store.wal_bytes() % BLOCK_BYTES
            # Now and then a batch that ends with its block.
            size = max(1, left - OVERHEAD) if left < 1000 else 500
            key = number.to_bytes(8, "big")
            store.write([("a", key, bytes([7]) * size), ("b", key, b"")])
            sizes.append(store.wal_bytes())
        store.sync()
        shutil.copytree(tmp_path / "data", tmp_path / "copy")
    end = next(size for size in sizes if size % BLOCK_BYTES == 0)
    before = max(size for size in sizes if size < end - 2000)
    (log,) = (tmp_path / "copy" / "db").glob("*.log")
    zero(log, before, end - before)
    bare = Path(shutil.copytree(tmp_path / "copy" / "db", tmp_path / "bare"))
    store = RocksStore(bare)
    assert store.sequence() == len(sizes), "RocksDB does not see it"
    store.close()
    count, (note,) = start(tmp_path / "copy")  # nothing tells that it was synced
    assert (count, note.fields["offset"]) == (sizes.index(before) + 1, before)


# --- the watermark ---


def test_a_new_database_has_a_watermark_before_it_has_anything_else(tmp_path: Path) -> None:
    with opened(tmp_path / "data"):
        pass
    with contextlib.suppress(Crash), pytest.MonkeyPatch.context() as patch:
        patch.setattr("storage.local.opening.RocksStore", _crash)
        with opened(tmp_path / "other"):
            pass
    watermark = Watermark(tmp_path / "other" / "watermark")
    assert watermark.is_valid
    watermark.close()
    with opened(tmp_path / "other") as database:
        assert (database.store.sequence(), database.notes) == (0, [])


@pytest.mark.parametrize("wal", ["kept", "lost"])
@pytest.mark.parametrize("how", ["missing", "empty", "zeroed", "damaged"])
def test_a_lost_watermark_is_refused(machine: Machine, how: str, wal: str) -> None:
    """Even where the database then holds nothing, and looks new."""
    machine.fresh()
    file = machine.directory / "watermark"
    if how == "missing":
        file.unlink()
    else:
        file.write_bytes({"empty": b"", "zeroed": bytes(2 * SLOT_BYTES), "damaged": b"?"}[how])
    if wal == "lost":
        os.truncate(machine.log, 0)
    with pytest.raises(DataLoss, match=r"watermark: missing or damaged.* --accept-data-loss"):
        start(machine.directory)
    with pytest.raises(DataLoss):  # the refusal left nothing that would be accepted next time
        start(machine.directory)
    count, (note,) = start(machine.directory, accept_data_loss=True)
    assert count == (WRITTEN if wal == "kept" else 0)
    assert (note.event, note.fields["found"]) == ("data_loss_accepted", count)


def test_a_watermark_without_its_database_is_refused(machine: Machine) -> None:
    machine.fresh()
    shutil.rmtree(machine.directory / "db")
    with pytest.raises(DataLoss, match=f"db: no database, but {MARKED} batches were durable"):
        start(machine.directory)
    assert not (machine.directory / "db").exists()
    assert start(machine.directory, accept_data_loss=True)[0] == 0


def _by_an_earlier_version(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a database as version 1 did: numbers of 8 bytes, a watermark of version 1."""
    monkeypatch.setattr(
        "storage.local.rocks.encode_number", lambda sequence, _: sequence.to_bytes(8, "big")
    )
    with opened(directory) as database:
        for number in range(1, 11):
            database.store.write(batch(number))
    monkeypatch.undo()
    (directory / "watermark").unlink()


def test_a_database_of_an_earlier_version_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "data"
    _by_an_earlier_version(directory, monkeypatch)
    slot = encode_slot(SLOT_1, MAGIC_1, 0, 10)
    (directory / "watermark").write_bytes(slot + bytes(SLOT_BYTES))
    count, notes = start(directory)
    assert (count, notes) == (10, [])
    (directory / "watermark").write_bytes(encode_slot(SLOT_1, MAGIC_1, 0, 11) + bytes(SLOT_BYTES))
    with pytest.raises(DataLoss, match="holds 10 batches, but 11 were durable"):
        start(directory)


def test_an_earlier_version_wrote_its_first_watermark_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash in its first second left none, and neither had its checkpoints: that is said."""
    directory = tmp_path / "data"
    _by_an_earlier_version(directory, monkeypatch)
    count, (note,) = start(directory)
    assert (count, note.event, note.is_loss) == (10, "watermark_missing", False)


# --- every other file ---

MANIFEST = "MANIFEST-*"


def _gone(file: Path) -> None:
    file.unlink()


def _empty(file: Path) -> None:
    os.truncate(file, 0)


def _half(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


def _zeroed(file: Path) -> None:
    zero(file, 0, file.stat().st_size)


def _flipped(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def _garbage(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x80" * 50)


DAMAGES = (_gone, _empty, _half, _zeroed, _flipped, _garbage)
# What a refusal says, and whether --accept-data-loss opens the database.
REFUSED = {
    "CURRENT": ("CURRENT: (missing|damaged).*, MANIFEST-.*or start with --accept-data-loss", True),
    MANIFEST: ("MANIFEST-[0-9]+: .*--accept-data-loss does not help", False),
    "*.sst": ("[0-9]+.sst: (missing|damaged).*--accept-data-loss does not help", False),
    "*.log": ("[0-9]+.log.*or start with --accept-data-loss", True),
    "../watermark": ("watermark: missing or damaged.*or start with --accept-data-loss", True),
}
# Files that hold nothing which cannot be made again.
HARMLESS = (
    "IDENTITY",
    "LOG",
    "OPTIONS-*",
    "rocksdict-config.json",
    "bootstrap/OPTIONS-*",
    "bootstrap/rocksdict-config.json",
    "../lock",
)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with tables and a log, all durable."""
    running, copy = tmp_path_factory.mktemp("running"), tmp_path_factory.mktemp("mixed")
    with opened(running) as database:
        store = database.store
        for number in range(1, 21):
            store.write(batch(number))
        store.flush()
        for number in range(21, 41):
            store.write(batch(number))
        store.sync()
        database.watermark.advance(store.synced())
        shutil.copytree(running, copy, dirs_exist_ok=True)
    return copy


def _largest(directory: Path, pattern: str) -> Path:
    return max((directory / "db").glob(pattern), key=lambda file: file.stat().st_size)


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("pattern", REFUSED)
def test_every_damaged_file_is_refused_in_one_line_that_names_it(
    mixed: Path, tmp_path: Path, pattern: str, damage: Callable[[Path], None]
) -> None:
    text, is_acceptable = REFUSED[pattern]
    for accept in (False, True):
        directory = Path(shutil.copytree(mixed, tmp_path / f"data-{accept}"))
        file = _largest(directory, pattern)
        damage(file)
        if damage is _flipped and pattern in ("*.sst", "../watermark"):
            return  # found when the block is read; the other slot counts
        if not accept or not is_acceptable:
            with pytest.raises(DataLoss, match=text) as refusal:
                start(directory, accept_data_loss=accept)
            assert str(file.resolve()) in str(refusal.value)
            assert "\n" not in str(refusal.value)
        else:
            count, notes = start(directory, accept_data_loss=True)
            assert count == 40 or pattern == "*.log"
            assert count >= 20
            assert {note.event for note in notes} == {"data_loss_accepted"}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("pattern", HARMLESS)
def test_a_damaged_file_that_holds_nothing_stops_no_start(
    mixed: Path, tmp_path: Path, pattern: str, damage: Callable[[Path], None]
) -> None:
    directory = Path(shutil.copytree(mixed, tmp_path / "data"))
    damage(_largest(directory, pattern))
    assert start(directory) == (40, [])


def test_a_stray_options_file_is_not_taken_for_ours(mixed: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(mixed, tmp_path / "data"))
    (directory / "db" / "bootstrap" / "OPTIONS-999999").write_bytes(b"\xff")
    assert start(directory) == (40, [])


def test_the_end_of_a_manifest_that_was_never_written_is_cut_off(
    mixed: Path, tmp_path: Path
) -> None:
    """As when the power fails while RocksDB notes a new table. Its log is then still there."""
    directory = Path(shutil.copytree(mixed, tmp_path / "data"))
    manifest = _largest(directory, MANIFEST)
    whole = manifest.read_bytes()
    for tail in (whole[-60:-30] + bytes(30), bytes(60), whole[-60:-30]):
        manifest.write_bytes(whole + tail)
        count, notes = start(directory)
        assert count == 40
        assert [note.event for note in notes] == ["torn_log"]
        shutil.rmtree(directory)
        shutil.copytree(mixed, directory)


@pytest.fixture
def started_twice(tmp_path: Path) -> tuple[Path, Path]:
    """Return a data directory with 40 batches, and what it was after the first start with 10."""
    running, before, now = tmp_path / "running", tmp_path / "before", tmp_path / "now"
    with opened(running) as database:
        for number in range(1, 11):
            database.store.write(batch(number))
        database.store.sync()
        shutil.copytree(running, before)
        for number in range(11, 21):
            database.store.write(batch(number))
    with opened(running) as database:
        store = database.store
        for number in range(21, 31):
            store.write(batch(number))
        store.flush()
        for number in range(31, 41):
            store.write(batch(number))
        store.sync()
        database.watermark.advance(store.synced())
        shutil.copytree(running, now)
    return now, before


def test_a_list_of_files_older_than_the_durable_one_is_refused(
    started_twice: tuple[Path, Path],
) -> None:
    """Its tables end before the newest log begins: the number of the last batch is right."""
    now, before = started_twice
    newest = _largest(now, MANIFEST)
    for pattern in ("CURRENT", MANIFEST):
        shutil.copy(_largest(before, pattern), now / "db")
    newest.unlink()
    for accept in (False, True):
        with pytest.raises(DataLoss, match="does not help") as refusal:
            start(now, accept_data_loss=accept)
        assert str(newest) in str(refusal.value)


def test_a_current_older_than_the_durable_manifest_is_refused_and_can_be_made_anew(
    started_twice: tuple[Path, Path],
) -> None:
    now, before = started_twice
    for pattern in ("CURRENT", MANIFEST):
        shutil.copy(_largest(before, pattern), now / "db")
    with pytest.raises(DataLoss, match=r"it names MANIFEST-\d+, but MANIFEST-\d+ was durable"):
        start(now)
    count, (note,) = start(now, accept_data_loss=True)
    assert (count, note.event) == (40, "data_loss_accepted")


def test_a_whole_database_from_before_can_be_accepted(started_twice: tuple[Path, Path]) -> None:
    now, before = started_twice
    shutil.copy(now / "watermark", before)
    with pytest.raises(DataLoss, match="start with --accept-data-loss"):
        start(before)
    assert start(before, accept_data_loss=True)[0] == 10


def test_a_refusal_leaves_everything_as_it_was(mixed: Path, tmp_path: Path) -> None:
    for pattern in ("CURRENT", MANIFEST, "*.log"):
        directory = Path(shutil.copytree(mixed, tmp_path / pattern[:3]))
        _zeroed(_largest(directory, pattern))
        before = {f: f.read_bytes() for f in directory.rglob("*") if f.is_file()}
        with pytest.raises(StorageError):
            start(directory)
        after = {f: f.read_bytes() for f in directory.rglob("*") if f.is_file()}
        assert {f.name for f in before if before[f] != after.get(f)} <= {"lock", "LOG"}
