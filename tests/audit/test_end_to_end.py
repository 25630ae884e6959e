"""Does the audit of a real broker's history say what its clients saw, and name what a lie cost?

Real processes: a broker at full detail under load, killed three times, its exporter, and the
command line of the audit. Every message has a topic of its own, so that clients and history, which
holds no payload, can be compared message by message.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest

from mqtt.packets import Publish
from tests.durability.iofault import Faults, build
from tests.durability.load import Publisher, Subscriber, finish, verdict
from tests.durability.powercut import apply_power_cut, baseline
from tests.durability.process import BrokerProcess, holdfast
from tests.durability.rawclient import RawClient

pytestmark = pytest.mark.ci  # four audits, each with a Spark of its own

ROOT: Final = Path(__file__).parents[2]
EXPIRING: Final = 40
KEPT: Final = 20
TOO_LARGE: Final = 10
PROMISED: Final = 60
WAIT_SECONDS: Final = 60.0
EXPORT_SECONDS: Final = 180.0  # the exporter takes what others leave of the processor

Rows = list[dict[str, Any]]


def told_by(history: Path, *names: str) -> Rows:
    """Return the rows of the sealed segments called `names`, in their order."""
    if not any(history.rglob("*.parquet")):
        return []
    table = ds.dataset(history, format="parquet").to_table(
        columns=[
            *("boot", "seq", "ev", "client_id", "topic", "msg", "reason", "dup", "count"),
            *("qos", "attempt"),
        ],
        filter=pc.field("ev").isin(names),
    )
    rows: Rows = table.to_pylist()
    return sorted(rows, key=lambda row: (row["boot"], row["seq"]))


def doubled(history: Path, client: str, *qos: int) -> Counter[int]:
    """Return, per message, how often a client was sent it at one of these QoS as if it were new.

    A subscriber at QoS 2 gets at QoS 1 what was published at QoS 1. A message is as if new if it
    was sent before and is sent as a first attempt, or although its answer was there.
    """
    said: dict[int, str] = {}
    found: Counter[int] = Counter()
    for row in told_by(history, "msg_delivered", "msg_acked", "msg_completed"):
        if row["client_id"] != client or row["msg"] is None:
            continue
        before = said.get(row["msg"])
        said[row["msg"]] = row["ev"]
        if row["ev"] == "msg_delivered" and row["qos"] in qos and before is not None:
            found[row["msg"]] += row["attempt"] <= 1 or before != "msg_delivered"
    return +found


def audit(history: Path, out: Path) -> tuple[int, dict[str, Any]]:
    """Run the command; return its exit status and the verdict."""
    command = [sys.executable, "-m", "broker", "audit", "run", "--memory", "1g"]
    ran = subprocess.run(
        [*command, "--history", str(history), "--out", str(out)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=out.parent,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )
    path = out / "verdict.json"
    assert path.exists(), ran.stderr
    document: dict[str, Any] = json.loads(path.read_text())
    return ran.returncode, document


def found(document: dict[str, Any]) -> dict[str, str]:
    """Return the status of every invariant that is not ok."""
    return {
        name: each["status"]
        for name, each in document["invariants"].items()
        if each["status"] != "ok"
    }


def whole_history(broker: BrokerProcess, directory: Path) -> Path:
    """Return where all of a stopped broker's history is: also what it had no time to export."""
    assert broker.stop() == 0
    command = [sys.executable, "-m", "broker", "history", "export", "--to", str(directory)]
    subprocess.run(
        [*command, "--data-dir", str(broker.data_dir)],
        env={**os.environ, **broker.env},
        cwd=broker.directory,
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return directory


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[tuple[BrokerProcess, Path]]:
    """A broker that tells its history in full, and where."""
    history = tmp_path / "history"
    settings = {"DETAIL": "full", "DIR": str(history), "NODE": "n1", "SEAL_SECONDS": "1"}
    variables = {f"HOLDFAST__HISTORY__{name}": value for name, value in settings.items()}
    broker = holdfast(tmp_path / "broker", env=variables)
    yield broker, history
    broker.close()


def _expiring(port: int) -> None:
    """Leave messages behind for a session that will come back after some of them have expired."""
    away = RawClient(port, "away")
    away.durable()
    away.subscribe("late/#", qos=1)
    away.disconnect()
    publisher = RawClient(port, "giver")
    publisher.connect()
    for number in range(EXPIRING + KEPT):
        is_short = number < EXPIRING
        publish = Publish(
            f"late/{number}",
            b"x",
            qos=1,
            packet_id=number + 1,
            message_expiry_interval=1 if is_short else -1,
        )
        publisher.send(publish)
        publisher.receive()
    publisher.disconnect()


def _too_large(port: int) -> int:
    """Publish more than a client takes; return how many messages it got."""
    small = RawClient(port, "small")
    small.connect(maximum_packet_size=60)
    small.subscribe("large/#", qos=1)
    publisher = RawClient(port, "giver")
    publisher.connect()
    messages = [(f"large/{number}", b"x" * 200) for number in range(TOO_LARGE)]
    publisher.publish_all([*messages, ("large/fits", b"")], qos=1)
    got = len(small.take_all(idle=0.5))
    small.disconnect()
    publisher.disconnect()
    return got


def test_the_audit_of_a_killed_broker_says_what_its_clients_saw(
    recorded: tuple[BrokerProcess, Path], tmp_path: Path
) -> None:
    broker, _ = recorded
    broker.start()
    port = broker.port
    _expiring(port)
    subscribers = [Subscriber(port, f"s{n}", qos=1 + n, version=4 + n, seed=n) for n in range(2)]
    publishers = [
        Publisher(port, f"p{n}", qos=1 + n, version=5 - n, rate=150, own_topics=True)
        for n in range(2)
    ]
    for subscriber in subscribers:
        subscriber.start()
    for subscriber in subscribers:
        assert subscriber.ready.wait(30.0)
    for publisher in publishers:
        publisher.start()
    for _ in range(3):
        time.sleep(1.2)
        broker.crash()
    got_of_large = _too_large(port)
    finish(publishers, subscribers, seconds=WAIT_SECONDS)
    assert verdict(publishers, subscribers) == []
    away = RawClient(port, "away")
    away.resume()
    late = [publish.topic for publish in away.take_all(idle=0.5)]
    away.disconnect()

    history = whole_history(broker, tmp_path / "whole")
    status, document = audit(history, tmp_path / "out")
    assert (status, document["status"]) == (0, "ok"), found(document)
    facts = document["facts"]

    # Message by message.
    accepted = {row["msg"]: row["topic"] for row in told_by(history, "msg_accepted")}
    durable = {row["msg"] for row in told_by(history, "msg_enqueued")}
    told_acked = {accepted[row["msg"]] for row in told_by(history, "pub_acked") if row["msg"]}
    acked = {topic for publisher in publishers for topic, _ in publisher.acknowledged}
    acked |= {f"late/{number}" for number in range(EXPIRING + KEPT)}
    acked |= {f"large/{number}" for number in range(TOO_LARGE)} | {"large/fits"}
    assert told_acked <= acked
    cut_off = acked - told_acked  # acknowledged in the last moments before a kill
    assert cut_off <= {accepted[message] for message in durable}
    assert len(cut_off) <= facts["cut_off"] < len(acked) / 10
    delivered = told_by(history, "msg_delivered")
    for subscriber in subscribers:
        assert {topic for topic, _, _ in subscriber.received} == {
            accepted[row["msg"]] for row in delivered if row["client_id"] == subscriber.name
        }
    # By number.
    assert got_of_large == 1
    assert sorted(late) == sorted(f"late/{number}" for number in range(EXPIRING, EXPIRING + KEPT))
    assert facts["expired"] == EXPIRING
    assert facts["dropped"] == {"too_large": TOO_LARGE}
    assert facts["redelivered"] == sum(bool(row["dup"]) for row in delivered)
    assert facts["lost"] == 0
    # At QoS 1 a crash may forget the last acknowledgements. The last rows before it may be missing
    # in the history, and the last packets in the client's books: no more than that.
    names = [subscriber.name for subscriber in subscribers]
    told = sum(doubled(history, name, 1, 2).total() for name in names)
    assert facts["duplicated"] == told
    assert facts["duplicated_qos2"] == sum(doubled(history, name, 2).total() for name in names) == 0
    books = Counter(topic for topic, _, _ in subscribers[0].received)
    seen = {topic for topic, times in books.items() if times > 1}
    sent = Counter(accepted[row["msg"]] for row in delivered if row["client_id"] == "s0")
    assert len(seen ^ {topic for topic, times in sent.items() if times > 1}) < len(acked) / 10


def test_a_broker_that_acknowledges_before_it_syncs_is_found_out(
    recorded: tuple[BrokerProcess, Path], tmp_path: Path
) -> None:
    """`durability = os`, and a power cut: what was promised and exported is not on the disk."""
    broker, history = recorded
    side = tmp_path / "side"
    faults = Faults(build(tmp_path), tmp_path / "rules", side=side)
    broker.start()
    receiver = RawClient(broker.port, "receiver")
    receiver.durable()
    receiver.subscribe("t/#", qos=1)
    receiver.disconnect()
    assert broker.stop() == 0

    baseline(broker.data_dir, side)
    honest = dict(broker.env)
    broker.env |= faults.environment() | {"HOLDFAST__STORAGE__DURABILITY": "os"}
    broker.start()
    giver = RawClient(broker.port, "giver")
    giver.connect()
    giver.publish_all([(f"t/{number}", b"x") for number in range(PROMISED)], qos=1)
    deadline = time.monotonic() + EXPORT_SECONDS
    while len(told_by(history, "pub_acked")) < PROMISED and time.monotonic() < deadline:
        time.sleep(0.2)  # the exporter is a process of its own
    broker.kill()
    giver.drop()
    assert apply_power_cut(broker.data_dir, side) > 0

    broker.env = honest
    broker.arguments = ("--accept-data-loss",)
    broker.start()
    receiver.durable()
    got = {publish.topic for publish in receiver.take_all(idle=0.5)}
    receiver.disconnect()
    history = whole_history(broker, tmp_path / "whole")
    lost = {f"t/{number}" for number in range(PROMISED)} - got
    assert lost, "the power cut took nothing"

    status, document = audit(history, tmp_path / "out")
    assert (status, document["status"]) == (2, "violated")
    invariants = document["invariants"]
    assert {name for name in ("H1", "L2", "S5") if invariants[name]["status"] == "violated"}
    named = {witness["msg"] for witness in invariants["L2"]["witnesses"]}
    accepted = {row["msg"]: row["topic"] for row in told_by(history, "msg_accepted")}
    assert {accepted[message] for message in named} == lost
