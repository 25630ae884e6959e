"""Bytes on the disk that nobody wrote: C18 and C21 of docs/security.md.

Every decoder of a stored record is put in one table. What fails its checksum is `CorruptRecord`;
what passes it and makes no sense is what the decoder documents: `CorruptRecord`, or in `session`
`ValueError`. Nothing else may come out, and never a value where the checksum does not match.
"""

import ast
import random
import shutil
import struct
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from mqtt import reasons
from mqtt.message import Message
from mqtt.packets import Publish, Pubrec, Pubrel
from session.state.records import decode_session, encode_session
from session.state.shared_group_record import decode_group, encode_group
from session.state.subscription import decode_subscription
from session.state.will_record import decode_connection, encode_connection
from storage.errors import CorruptRecord, StorageError
from storage.local.data_directory import DataDirectory
from storage.local.heartbeat_file import MAGIC as PULSE_MAGIC
from storage.local.heartbeat_file import decode as decode_pulse
from storage.local.heartbeat_file import encode as encode_pulse
from storage.local.memory import MemoryStore
from storage.local.opening import open_database
from storage.local.rocks import RocksStore
from storage.local.watermark import Synced
from storage.local.watermark import decode as decode_watermark
from storage.local.watermark import encode as encode_watermark
from storage.log.generations import decode_generation
from storage.log.layouts.block_format import Block
from storage.tables.message_record import decode_message, encode_message, topic_bytes
from storage.tables.tables import (
    BOOT_KEY,
    FAMILIES,
    FORMAT_KEY,
    META,
    TOTALS_KEY,
    Totals,
    check_format,
    decode_filter,
    encode_boot,
    encode_filter,
    load_boot,
    load_totals,
    seal,
    unseal,
)
from storage.time.broker_clock import Heartbeat
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import FOREVER, RawClient
from tests.security.lived import ANN, BOB, GOLDEN, start_on, unpack
from tests.session.harness import NEVER, Broker, will
from tests.session.state.cases import CONNECTIONS, GROUPS, SESSIONS, SUBSCRIPTIONS
from tests.storage.log_cases import golden, message

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("mqtt", "session", "storage", "broker")
RANDOM_INPUTS: Final = 2000
FLIPS: Final = 300
FILE_FLIPS: Final = 40

Decode = Callable[[bytes], object]


def of_meta(key: bytes, read: Callable[[MemoryStore], object]) -> Decode:
    """Return a decoder of a row of `meta` that is only read from a store."""

    def decode(value: bytes) -> object:
        store = MemoryStore([META])
        store.write([(META, key, value)])
        return read(store)

    return decode


class Sealed(ABC):
    """One kind of record with a checksum: how it is read, and good ones."""

    # What may come of a right checksum over nonsense.
    refusal: type[Exception] = CorruptRecord

    def __init__(self, decode: Decode, *values: bytes, tail: bool = False) -> None:
        self.decode = decode
        self.values = values
        self._tail = tail  # is the checksum the last thing, as in a message?

    def body(self, value: bytes) -> bytes:
        """Return a record without its checksum."""
        return value[:-4] if self._tail else value[4:]

    @abstractmethod
    def reseal(self, body: bytes) -> bytes:
        """Return `body` with a right checksum: damage that only a program can do."""


class Front(Sealed):
    """Checksum first, big-endian: most rows."""

    def reseal(self, body: bytes) -> bytes:
        """Put it in front."""
        return seal(body)


class OfSession(Front):
    """A row whose body `session` decodes, which knows nothing of storage and its errors."""

    refusal = ValueError


class Back(Sealed):
    """Checksum last."""

    def __init__(self, decode: Decode, order: str, *values: bytes) -> None:
        super().__init__(decode, *values, tail=True)
        self._order = order

    def reseal(self, body: bytes) -> bytes:
        """Put it behind."""
        return body + struct.pack(f"{self._order}I", zlib.crc32(body))


HEARTBEAT: Final = Heartbeat(1_700_000_000_000, 1_700_000_000_001, "5d1c-boot", 77).encode()


def messages_of(value: bytes) -> list[Message | None]:
    """Return all messages of a block."""
    block = Block(value, 70_000)
    return [block.get(offset) for offset in range(block.first, block.last + 1)]


MESSAGES: Final = [encode_message(message("täg/☃", b"payload")), encode_message(message("t", b""))]
RECORDS: Final[dict[str, Sealed]] = {
    "session": OfSession(
        lambda value: decode_session("c", unseal(value, "session")),
        *[seal(encode_session(make())) for make in SESSIONS.values()],
    ),
    "subscription": OfSession(
        lambda value: decode_subscription("t", None, "t", unseal(value, "subscription")),
        *[seal(subscription.encode()) for subscription in SUBSCRIPTIONS.values()],
    ),
    "connection": OfSession(
        lambda value: decode_connection(unseal(value, "connection")),
        *[seal(encode_connection(record)) for record in CONNECTIONS.values()],
    ),
    "group": OfSession(
        lambda value: decode_group(unseal(value, "group")),
        *[seal(encode_group(record)) for record in GROUPS.values()],
    ),
    "filter": Front(decode_filter, encode_filter(7, 3)),
    "generation": Front(
        lambda value: decode_generation(value, 1),
        *[
            v
            for case, v in golden("generation-row-v1.hex").items()
            if not case.startswith("key of")
        ],
    ),
    "totals": Front(of_meta(TOTALS_KEY, load_totals), Totals(1, 2, 3, 4).encode()),
    "boot": Front(of_meta(BOOT_KEY, load_boot), encode_boot(3, 5)),
    "format": Front(of_meta(FORMAT_KEY, lambda store: check_format(store, [])), seal(b"\x00\x01")),
    "message": Back(lambda value: decode_message(value, 1), "<", *MESSAGES),
    "topic of a message": Back(lambda value: topic_bytes(value, 1), "<", *MESSAGES),
    "block": Back(
        messages_of,
        "<",
        *golden("block-v1.hex").values(),
    ),
    "heartbeat": Back(Heartbeat.decode, ">", HEARTBEAT),
}
KINDS: Final = pytest.mark.parametrize("kind", RECORDS)


@KINDS
def test_c18_a_flipped_bit_is_noticed(kind: str) -> None:
    """mosquitto 2.0.16 and 2.0.23 crashed on damaged files. Every bit of every example."""
    record = RECORDS[kind]
    for value in record.values:
        record.decode(value)
        for bit in range(8 * len(value)):
            damaged = bytearray(value)
            damaged[bit // 8] ^= 1 << bit % 8
            with pytest.raises(CorruptRecord):
                record.decode(bytes(damaged))


@KINDS
def test_c18_a_cut_is_noticed(kind: str) -> None:
    record = RECORDS[kind]
    for value in record.values:
        for size in range(len(value)):
            with pytest.raises(CorruptRecord):
                record.decode(value[:size])
        for tail in (b"\0", b"\xff", value):
            with pytest.raises(CorruptRecord):
                record.decode(value + tail)


@KINDS
def test_c18_random_bytes_are_no_record(kind: str) -> None:
    source = random.Random(18)
    for _ in range(RANDOM_INPUTS):
        with pytest.raises(CorruptRecord):
            RECORDS[kind].decode(source.randbytes(source.randrange(120)))


@KINDS
def test_c18_a_right_checksum_excuses_nothing(kind: str) -> None:
    """Bytes that a bug of ours, or somebody with the disk in hand, has sealed."""
    record = RECORDS[kind]
    source = random.Random(f"sealed {kind}")
    refused = 0
    for _ in range(RANDOM_INPUTS):
        body = bytearray(record.body(source.choice(record.values)))
        for _ in range(source.randrange(1, 6)):
            position = source.randrange(len(body))
            body[position] = source.choice((0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)))
        if source.random() < 0.3:
            del body[source.randrange(len(body)) :]
        elif source.random() < 0.2:
            body += source.randbytes(source.randrange(40))
        try:
            record.decode(record.reseal(bytes(body)))
        except record.refusal:
            refused += 1
    assert refused


@pytest.mark.parametrize("size", [0, 1, 3, 4, 5, 8, 30, 34, 64])
@KINDS
def test_c18_nothing_is_too_short_to_be_refused(kind: str, size: int) -> None:
    for filling in (b"\0", b"\x01", b"\xff"):
        record = RECORDS[kind]
        body = filling * size
        if kind == "topic of a message":
            continue  # asked of sound records only: `decode_message` is what refuses these
        with pytest.raises(record.refusal):
            record.decode(record.reseal(body))


@pytest.mark.parametrize(
    ("decode", "slot", "size"),
    [
        (decode_watermark, encode_watermark(3, Synced(1 << 40, 7, 9, 4711, 8, 551)), 68),
        (decode_pulse, encode_pulse(9, 1 << 41), 28),
    ],
)
def test_c18_a_damaged_slot_is_no_slot(
    decode: Callable[[bytes], object], slot: bytes, size: int
) -> None:
    assert decode(slot) is not None
    for bit in range(8 * size):
        damaged = bytearray(slot)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode(bytes(damaged)) is None
    source = random.Random(18)
    for _ in range(RANDOM_INPUTS):
        assert decode(source.randbytes(source.randrange(60))) is None
        assert decode(PULSE_MAGIC + source.randbytes(source.randrange(60))) is None


# Damaged rows under a running broker


Delivered = dict[str, list[tuple[str, bytes]]]
WILL_OF_WHO_IS_REFUSED: Final = {("w/ann", b"will")}


def lived_in() -> Broker:
    """Return a crashed broker whose store has rows of every family."""
    broker = Broker()
    broker.durable("ann", "a/#", qos=2, will=will("w/ann", delay=10)).drop()
    broker.durable("bob", "#", qos=1, username="bob").drop()
    broker.durable("member", "$share/g/s/#", username="bob").drop()
    broker.durable("timed", expiry=100).drop()
    for number in range(3):
        broker.publish(f"a/{number}", b"queued %d" % number, 2)
        broker.publish(f"s/{number}", b"shared %d" % number)
        broker.publish(f"r/{number}", b"kept %d" % number, retain=True, message_expiry_interval=900)
    flight = broker.durable("ann", will=will("w/ann", delay=10))
    flight.acknowledge(flight.messages()[0])
    sender = broker.durable("sender")
    sender.start_publish("a/open", b"open", 2, packet_id=7)
    flight.subscribe("r/#", qos=1)  # retained ones that the window does not hold are in a mailbox
    broker.crash()
    return broker


def receive(broker: Broker) -> Delivered:
    """Start, let every client come back and take all it is owed, and let what is due happen."""
    broker.is_audited = False
    broker.start()
    found: Delivered = {}
    watcher = broker.clean("watcher", "w/#", "r/#")
    for name, username in (("ann", None), ("bob", "bob"), ("member", "bob"), ("sender", None)):
        client = broker.request(name, expiry=NEVER, clean_start=False, username=username)
        topics = found[name] = []
        while messages := client.messages():
            topics += [(message.topic, message.payload) for message in messages]
            client.acknowledge(*messages)
        topics.sort()
        if not client.is_closed:
            client.drop()
    broker.advance(s=1000)
    found["watcher"] = sorted((message.topic, message.payload) for message in watcher.messages())
    found["sessions"] = sorted((key.decode(), b"") for key, _ in broker.rows("sessions"))
    return found


def test_c18_a_damaged_row_is_noticed_or_changes_nothing() -> None:
    """10^4 flips, scaled: no exception but the documented one, no message that nobody sent."""
    template = lived_in().store
    sound = receive(lived_in())
    assert all(messages for name, messages in sound.items() if name != "sender"), sound
    rows = [
        (family, key, value)
        for family in template.families()
        for key, value in template.scan(family, b"", count=1000)
        if value
    ]
    assert {family.partition(".")[0] for family, _, _ in rows} >= {
        *("sessions", "subscriptions", "holders", "filters", "mailbox", "groups", "retained"),
        *("meta", "msg", "due", "connections"),
    }
    source = random.Random(18)
    outcomes = dict.fromkeys(("refused to start", "noticed", "unharmed"), 0)
    for turn in range(FLIPS):
        broker = lived_in()
        family, key, value = rows[turn % len(rows)]
        damaged = bytearray(value)
        damaged[source.randrange(len(value))] ^= 1 << source.randrange(8)
        broker.store.write([(family, key, bytes(damaged))])
        broker.store.sync()
        try:
            found = receive(broker)
        except StorageError:
            outcomes["refused to start"] += 1
            continue
        for name, messages in found.items():
            if name != "sessions":
                assert set(messages) <= {*sound[name], *WILL_OF_WHO_IS_REFUSED}, (family, key)
        if sum(broker.counters.damaged_rows.values()):
            outcomes["noticed"] += 1
        else:
            outcomes["unharmed"] += 1
            assert found == sound, (family, key)
    assert all(outcomes.values()), outcomes


# What lies in a directory: of an older version, of a newer one, or damaged


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Return the directory of a process whose data are those of format 1."""
    unpack(GOLDEN / "format-1.tar.gz", tmp_path / "data")
    return tmp_path


@pytest.fixture
def broker(directory: Path) -> Iterator[BrokerProcess]:
    """Return a broker on these data that is not started yet."""
    process = start_on(directory)
    yield process
    process.close()


def test_c21_a_data_directory_of_format_1_opens_and_nothing_in_it_is_lost(
    broker: BrokerProcess,
) -> None:
    """EMQX 6.0 lost the durable sessions of versions before."""
    broker.start()
    port = broker.port
    thief = RawClient(port, "ann")
    thief.connect(clean_start=True, username="eve", reason=reasons.NOT_AUTHORIZED)
    ann = RawClient(port, "ann")
    ann.resume(**ANN)
    assert isinstance(ann.receive(), Pubrel)  # of "one", which it had
    received = ann.take(3)
    assert [(m.topic, m.payload, m.qos) for m in received] == [
        ("a/2", b"two", 2),
        ("a/3", b"three", 2),
        ("a/will", b"will", 1),  # whose delay ended while the broker was down
    ]
    bob = RawClient(port, "bob", version=4)
    bob.resume(**BOB)
    everything = [message.payload for message in bob.take(6)]
    assert everything == [b"one", b"shared", b"value", b"two", b"three", b"will"]
    member = RawClient(port, "member")
    member.resume(**ANN)
    member.expect_publish(b"shared", topic="s")
    sender = RawClient(port, "sender")
    sender.resume(expiry=FOREVER)
    sender.send(Publish("a/3", b"three", 2, dup=True, packet_id=77))
    assert sender.expect(Pubrec).reason_code == 0
    sender.release(77)
    ann.expect_nothing()  # it was no new message
    late = RawClient(port, "late")
    late.connect()
    late.subscribe("kept")
    late.expect_publish(b"value", topic="kept")
    broker.restart()


def test_c21_a_newer_format_is_refused_and_left_alone(
    broker: BrokerProcess, directory: Path
) -> None:
    """One clear line, exit status 1, and not a byte changed but what RocksDB tells people."""
    store = RocksStore(directory / "data" / "db", families=FAMILIES)
    store.write([(META, FORMAT_KEY, seal(b"\x00\x02"))])
    store.sync()
    before = rows(store)
    store.close()
    broker.launch()
    assert broker.wait_exit(30) == 1
    text = broker.log()
    assert "data format 2, but this version of Holdfast reads format 1" in text
    assert "Traceback" not in text
    store = RocksStore(directory / "data" / "db", families=FAMILIES)
    assert rows(store) == before
    store.close()


def rows(store: RocksStore) -> dict[str, list[tuple[bytes, bytes]]]:
    """Return everything in a store."""
    return {family: store.scan(family, b"", count=1000) for family in sorted(store.families())}


def test_c18_damage_in_any_file_is_refused_or_changes_nothing(tmp_path: Path) -> None:
    """A bit in a table, the log, the manifest, a slot. Whoever starts all the same is right."""
    damages = list(damaged_files(GOLDEN / "format-1.tar.gz", tmp_path, count=FILE_FLIPS))
    sound = opened(tmp_path / "sound")
    assert any(key == b"ann" for key, _ in sound["sessions"])
    refused = 0
    for where, directory in damages:
        try:
            found = opened(directory)
        except StorageError:
            refused += 1
        else:
            assert found == sound, where
        shutil.rmtree(directory)
    assert refused > FILE_FLIPS / 10, refused


def damaged_files(archive: Path, place: Path, *, count: int) -> Iterator[tuple[str, Path]]:
    """Yield copies of a data directory with one bit flipped; the sound one is `place`/sound."""
    unpack(archive, place / "sound")
    source = random.Random(18)
    names = sorted(path for path in (place / "sound").rglob("*") if is_data(path))
    for number in range(count):
        name = names[number % len(names)].relative_to(place / "sound")
        directory = place / str(number)
        unpack(archive, directory)
        content = bytearray((directory / name).read_bytes())
        position = source.randrange(len(content))
        content[position] ^= 1 << source.randrange(8)
        (directory / name).write_bytes(content)
        yield f"{name} byte {position}", directory


def is_data(path: Path) -> bool:
    """Is this a file with what was acknowledged in it, and not one that says how to open it?"""
    return path.name.startswith("MANIFEST") or path.suffix in (".sst", ".log")


def opened(directory: Path) -> dict[str, list[tuple[bytes, bytes]]]:
    """Open as a start does and read everything; raises `StorageError`."""
    place = DataDirectory(directory)
    try:
        database = open_database(place, families=FAMILIES)
    finally:
        place.close()
    try:
        return rows(database.store)
    finally:
        database.watermark.close()
        database.store.close()


# What could make bytes on the disk into code


CODE_IN_DATA: Final = frozenset({"pickle", "cPickle", "shelve", "marshal", "dill", "jsonpickle"})


def test_c18_nothing_that_is_stored_can_become_code() -> None:
    """rocksdict in its default mode un-pickles what it finds."""
    looked_at = 0
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            looked_at += 1
            for node in ast.walk(ast.parse(path.read_text())):
                names: list[str] = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    names = [node.module or ""]
                elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    assert node.func.id not in ("eval", "exec"), path
                assert not {name.split(".")[0] for name in names} & CODE_IN_DATA, path
    assert looked_at > 50


def test_c18_the_database_is_opened_for_raw_bytes(directory: Path) -> None:
    """Whatever the files say: a value that is a pickle stays the bytes that it is."""
    bomb = b"cos\nsystem\n(S'false'\ntR."
    database = directory / "data" / "db"
    (database / "rocksdict-config.json").write_text('{"raw_mode":false,"prefix_extractors":{}}')
    store = RocksStore(database, families=FAMILIES)
    store.write([(META, b"bomb", bomb)])
    assert store.get(META, b"bomb") == bomb
    store.close()
    store = RocksStore(database, families=FAMILIES)
    assert store.get(META, b"bomb") == bomb
    store.close()
