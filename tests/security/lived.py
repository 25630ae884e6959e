"""A data directory as a broker leaves it: how the one of format 1 was made, and what is in it.

`python -m tests.security.lived golden/format-1.tar.gz` makes such an archive with the program of
today. What lies in golden/ was made by the version in its name's format and is never made again:
it is what has to be readable for ever. Must use nothing but the program and the wire.
"""

import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final

from mqtt.packets import Publish, Pubrec, Will
from tests.durability.process import BrokerProcess, holdfast
from tests.durability.rawclient import FOREVER, RawClient

GOLDEN: Final = Path(__file__).parent / "golden"
# 80 MiB of nothing, a process id, and what RocksDB tells people (files with LOG in their names).
OMITTED: Final = frozenset({"ballast", "lock"})
ANN: Final[dict[str, Any]] = {"expiry": FOREVER, "username": "ann"}
BOB: Final[dict[str, Any]] = {"username": "bob"}


def start_on(directory: Path) -> BrokerProcess:
    """Return a broker on `directory`/data to which user names mean something; not started yet."""
    rules = directory / "acl"
    rules.write_text(
        "topic readwrite #\n"
        + "".join(f"user {name}\ntopic readwrite #\n" for name in ("ann", "bob", "eve"))
    )
    return holdfast(directory, env={"HOLDFAST__AUTH__ACL_FILE": str(rules)})


def live(broker: BrokerProcess) -> None:
    """Leave something of everything: before the first flush, after it, and in flight."""
    ann = RawClient(broker.port, "ann")
    ann.durable(**ANN)
    ann.subscribe("a/#", qos=2)
    bob = RawClient(broker.port, "bob", version=4)
    bob.durable(**BOB)
    bob.subscribe("#")
    bob.disconnect()
    member = RawClient(broker.port, "member")
    member.durable(**ANN)
    member.subscribe("$share/group/s")
    member.disconnect()
    sender = RawClient(broker.port, "sender")
    sender.durable(expiry=FOREVER)
    sender.publish("a/1", b"one", qos=2)
    sender.publish("s", b"shared")
    sender.publish("kept", b"value", retain=True)
    flight = ann.expect_publish(b"one", acknowledge=False)
    ann.send(Pubrec(flight.packet_id))  # PUBREL is owed
    ann.disconnect()
    sender.drop()
    broker.restart()
    dying = RawClient(broker.port, "dying")
    dying.durable(expiry=FOREVER, will=Will("a/will", b"will", 1, True, delay_interval=1))
    sender.resume(expiry=FOREVER)
    sender.publish("a/2", b"two", qos=2)
    sender.send(Publish("a/3", b"three", 2, packet_id=77))  # PUBREL never comes
    sender.expect(Pubrec)
    for client in (ann, bob, member, sender, dying):
        client.drop()
    broker.kill()


def pack(archive: Path) -> None:
    """Make an archive with the program of today."""
    with tempfile.TemporaryDirectory() as directory:
        broker = start_on(Path(directory))
        live(broker.start())
        broker.close()
        with tarfile.open(archive, "w:gz", compresslevel=9) as tar:
            for path in sorted(broker.data_dir.rglob("*")):
                if path.is_file() and path.name not in OMITTED and "LOG" not in path.name:
                    tar.add(path, str(path.relative_to(broker.data_dir)), filter=_nobodys)


def _nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def unpack(archive: Path, data_dir: Path) -> None:
    """Put a data directory where a broker looks for it."""
    data_dir.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as tar:
        tar.extractall(data_dir, filter="data")


if __name__ == "__main__":
    pack(Path(sys.argv[1]))
