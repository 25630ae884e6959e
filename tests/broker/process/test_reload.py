"""SIGHUP to a running broker: what holds for the next client, and what the log says."""

import asyncio
import json
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from broker.observe.structured_log import EVENT_LINES_MAX
from broker.process.reload import HangUps
from broker.security import password_hashes
from mqtt import reasons
from mqtt.packets import Suback, Subscribe, Subscription
from tests.broker.network.certificates import Authority
from tests.durability.process import BrokerProcess, free_port
from tests.durability.rawclient import RawClient

Start = Callable[..., BrokerProcess]
Prepare = Callable[..., BrokerProcess]

USERS = 20_000  # read and checked in more than 100 ms


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "holdfast.toml"
    path.write_text("")
    return path


def serve(prepare: Prepare, toml: Path, **environment: str) -> BrokerProcess:
    broker = prepare(**environment)
    broker.arguments = ("-c", str(toml))
    return broker.start()


def lines(broker: BrokerProcess, event: str) -> list[dict[str, object]]:
    found = [json.loads(line) for line in broker.log().splitlines()]
    return [line for line in found if line["event"] == event]


def hang_up(broker: BrokerProcess) -> None:
    """Send SIGHUP, and wait for nothing but a client that connects."""
    broker.signal(signal.SIGHUP)
    RawClient(broker.port, "witness").open()


def test_who_connects_right_after_the_signal_meets_the_new_rules_and_users(
    start: Start, tmp_path: Path
) -> None:
    """Reading the files takes a while, in which the old ones must serve nobody."""
    users, acl = tmp_path / "users", tmp_path / "acl"
    line = password_hashes.hasher().hash("right")
    many = "".join(f"user{number}:{line}\n" for number in range(USERS))
    users.write_text(f"anna:{line}\nben:{line}\n{many}")
    acl.write_text("topic #\n")
    broker = start(HOLDFAST__AUTH__PASSWORD_FILE=str(users), HOLDFAST__AUTH__ACL_FILE=str(acl))
    anna, ben = RawClient(broker.port, "a"), RawClient(broker.port, "b")
    anna.connect(username="anna", password=b"right")
    anna.drop()
    users.write_text(f"anna:{line}\n{many.replace('user', 'new')}")
    acl.write_text("user anna\ntopic read mine/#\n")
    broker.signal(signal.SIGHUP)
    anna.connect(username="anna", password=b"right")
    ben.connect(username="ben", password=b"right", reason=reasons.BAD_USER_NAME_OR_PASSWORD)
    anna.send(Subscribe(1, [Subscription("other", 1), Subscription("mine/a", 1)]))
    assert anna.expect(Suback).reason_codes == [reasons.NOT_AUTHORIZED, 1]
    anna.publish("mine/a", b"x", reason=reasons.NOT_AUTHORIZED)


def test_limits_hold_for_the_next_packet_also_of_connected_clients(
    prepare: Prepare, toml: Path
) -> None:
    broker = serve(prepare, toml)
    client = RawClient(broker.port, "c")
    client.connect()
    client.subscribe("a")
    toml.write_text("[session]\nsubscriptions_max = 1\n[limits]\ntopic_levels = 2\n")
    hang_up(broker)
    RawClient(broker.port, "witness").connect()
    client.send(Subscribe(9, [Subscription("b", 1)]))
    assert client.expect(Suback).reason_codes == [reasons.QUOTA_EXCEEDED]
    client.publish("a/b/c", b"x", reason=reasons.TOPIC_NAME_INVALID)
    (line,) = lines(broker, "reload")
    assert line["changed"] == "session.subscriptions_max = 1, limits.topic_levels = 2"
    toml.write_text("")
    broker.reload()
    client.subscribe("b")
    assert not lines(broker, "reload_failed") and not lines(broker, "restart_needed")


def test_a_signal_is_acted_on_once_and_before_the_loop_comes_to_it() -> None:
    acted: list[bool] = []
    before = signal.getsignal(signal.SIGHUP)
    loop = asyncio.new_event_loop()
    hang_ups = HangUps()
    try:
        signal.raise_signal(signal.SIGHUP)
        hang_ups.look()
        assert not acted, "nothing can be read again yet"
        hang_ups.start(loop, lambda: acted.append(loop.is_running()))
        assert acted == [False]
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        hang_ups.look()
        assert acted == [False, False]
        hang_ups.look()
        for _ in range(3):
            loop.run_until_complete(asyncio.sleep(0))
        assert acted == [False, False]
        loop.call_soon(signal.raise_signal, signal.SIGHUP)
        while len(acted) < 3:  # it wakes the loop
            loop.run_until_complete(asyncio.sleep(0))
        assert acted == [False, False, True]
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        loop.close()
        signal.signal(signal.SIGHUP, before)


def test_a_signal_between_two_loops_ends_nothing_and_is_acted_on_in_the_second_one() -> None:
    """A leader of a cluster that was deposed follows, and leads again later."""
    acted: list[int] = []
    before = signal.getsignal(signal.SIGHUP)
    loop = asyncio.new_event_loop()
    hang_ups = HangUps()
    try:
        hang_ups.start(loop, lambda: acted.append(1))
        loop.close()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
        hang_ups.rest()
        signal.raise_signal(signal.SIGHUP)
        hang_ups.look()
        assert acted == []
        loop = asyncio.new_event_loop()
        hang_ups.start(loop, lambda: acted.append(2))
        assert acted == [2]
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        loop.close()
        signal.signal(signal.SIGHUP, before)


def test_what_a_follower_read_is_read_again_by_the_leader_that_it_becomes() -> None:
    """It reads certificates only."""
    acted: list[str] = []
    before = signal.getsignal(signal.SIGHUP)
    loop = asyncio.new_event_loop()
    hang_ups = HangUps()
    try:
        hang_ups.start(loop, lambda: acted.append("follower"), keeps=True)
        signal.raise_signal(signal.SIGHUP)
        hang_ups.look()
        assert acted == ["follower"]
        hang_ups.start(loop, lambda: acted.append("leader"))
        assert acted == ["follower", "leader"]
        hang_ups.look()
        assert acted == ["follower", "leader"]
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        loop.close()
        signal.signal(signal.SIGHUP, before)


def test_the_log_level_changes(prepare: Prepare, toml: Path) -> None:
    broker = serve(prepare, toml)
    toml.write_text("[log]\nlevel = 'error'\n")
    broker.reload()
    RawClient(broker.port, "unseen").connect()
    toml.write_text("[log]\nlevel = 'info'\n")
    hang_up(broker)
    RawClient(broker.port, "seen").connect()
    assert "unseen" not in broker.log()
    broker.wait_for_event("client_connected")


def test_each_key_that_needs_a_restart_is_a_line(prepare: Prepare, toml: Path) -> None:
    broker = serve(prepare, toml)
    toml.write_text("[storage]\ndurability = 'os'\n[listener.two]\nport = 1\n")
    broker.reload()
    assert [line["message"] for line in lines(broker, "restart_needed")] == [
        'storage.durability = "os" needs a restart; until then "fsync" holds',
        "[listener.two] is new: it opens at the next start",
    ]
    (line,) = lines(broker, "reload")
    assert line["changed"] == "nothing"
    assert line["needs_restart"] == "storage.durability, [listener.two]"
    assert line["level"] == "warning"
    toml.write_text("[limits]\nmax_connections = 9\n")
    broker.reload()
    line = lines(broker, "reload")[-1]
    assert line["changed"] == "limits.max_connections = 9"
    assert (line["needs_restart"], line["level"]) == ("nothing", "info")


def test_more_keys_than_the_log_takes_lines_are_named_all_the_same(
    prepare: Prepare, toml: Path
) -> None:
    broker = serve(prepare, toml)
    names = [f"listener.more_{number}" for number in range(EVENT_LINES_MAX + 5)]
    toml.write_text("".join(f"[{name}]\nport = 0\n" for name in names))
    broker.reload()
    assert len(lines(broker, "restart_needed")) == EVENT_LINES_MAX
    (line,) = lines(broker, "reload")
    assert line["needs_restart"] == ", ".join(f"[{name}]" for name in names)


def test_a_generation_that_the_disk_made_smaller_is_no_change(prepare: Prepare, toml: Path) -> None:
    """A generation has a sixteenth of the disk at most: that is not what somebody has written."""
    toml.write_text("[storage]\ngeneration_size = '1000000TiB'\n")
    broker = serve(prepare, toml)
    broker.reload()
    assert lines(broker, "restart_needed") == []
    assert lines(broker, "reload")[0]["changed"] == "nothing"


def test_the_date_of_a_new_certificate_is_in_the_metrics(prepare: Prepare, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    old, new = authority.issue("broker", is_expired=True), authority.server()
    prefix = "HOLDFAST__LISTENER__SECURE__"
    files = {f"{prefix}TLS_CERTIFICATE": str(old[0]), f"{prefix}TLS_KEY": str(old[1])}
    broker = prepare(**files, **{f"{prefix}PORT": str(free_port())}).start()
    name = 'holdfast_certificate_expiry_timestamp_seconds{listener="secure"}'
    assert broker.metrics()[name] == datetime(2021, 1, 1, tzinfo=UTC).timestamp()
    for path, other in zip(old, new, strict=True):
        path.write_bytes(other.read_bytes())
    broker.reload()
    assert broker.metrics()[name] == datetime(2120, 1, 1, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[limits]\nmax_connections = 'many'\n", "limits.max_connections = 'many': expected"),
        ("[limits]\nmax_conections = 1\n", "did you mean limits.max_connections?"),
        ("[limits\n", "not valid TOML"),
        (None, "cannot read it"),
    ],
)
def test_a_bad_file_changes_nothing_and_says_what_was_expected(
    prepare: Prepare, toml: Path, text: str | None, complaint: str
) -> None:
    toml.write_text("[session]\nsubscriptions_max = 1\n")
    broker = serve(prepare, toml)
    if text is None:
        toml.unlink()
    else:
        toml.write_text("[session]\nsubscriptions_max = 9\n" + text)
    broker.reload(event="reload_failed")
    (line,) = lines(broker, "reload_failed")
    assert complaint in str(line["message"])
    assert str(line["message"]).endswith("; all settings stay as they were")
    client = RawClient(broker.port, "c")
    client.connect()
    client.subscribe("a")
    client.send(Subscribe(9, [Subscription("b", 1)]))
    assert client.expect(Suback).reason_codes == [reasons.QUOTA_EXCEEDED]


def test_a_flag_still_wins_over_the_file(prepare: Prepare, toml: Path) -> None:
    broker = serve(prepare, toml)
    toml.write_text("[listener]\nport = 1\n[storage]\ndata_dir = '/nowhere'\n")
    broker.reload()
    assert lines(broker, "restart_needed") == []
