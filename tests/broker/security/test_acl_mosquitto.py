"""The same ACL file given to mosquitto and to Holdfast: who may publish and who gets what.

Both run as processes and are asked over the wire. Where they are meant to differ, both answers are
written down here.
"""

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from broker.security.acl import AclError, parse
from mqtt import reasons
from mqtt.packets import Puback, Publish, Suback, Subscribe, Subscription
from tests.durability.process import BrokerFailed, BrokerProcess, holdfast, mosquitto
from tests.durability.rawclient import LISTEN_SECONDS, RawClient

pytestmark = pytest.mark.skipif(
    shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin") is None,
    reason="mosquitto is not installed",
)

ACLS: Final = {
    "nameless and users": """
        topic read a
        topic write b/#
        user u
        topic a
        topic read c/+/d
        user v
        topic deny c/x/d
        user u
        topic write c/#
        """,
    "deny first, wherever it stands": """
        topic a/#
        topic deny a/secret
        user u
        topic deny a/secret/#
        topic read a/#
        topic write a/secret/x
        """,
    "own lines before patterns": """
        pattern deny a/secret
        pattern a/#
        user u
        topic read a/#
        user v
        topic deny a/b
        """,
    "patterns": """
        pattern read home/%u/#
        pattern write dev/%c
        pattern %u/%c/x
        pattern deny home/%u/private
        user u
        pattern read public/#
        topic own
        """,
    "literal percent signs": """
        topic read %c
        topic dev/%u
        pattern read x/%d/%c
        """,
    "wildcards": """
        topic read +/b
        topic write a/+/c
        topic //
        user u
        topic #
        user v
        topic read +
        """,
    "nothing granted": """
        user nobody
        topic deny #
        """,
    "empty": "",
}
CLIENTS: Final = (  # user name and client identifier, which is nobody else's
    (None, "n"),
    ("u", "c"),
    ("v", "c2"),
    ("u v", "x"),
    (None, "a+b"),
    ("a#", "a"),
    ("%c", "z"),
    ("u", "%u"),
    ("é", "ü"),
)
TOPICS: Final = (
    *("a", "b", "b/x", "c/x/d", "c/y/d", "a/b", "a/b/c", "a/secret", "a/secret/x", "own", "//"),
    *("home/u", "home/u/x", "home/v/x", "home/u/private", "home/é/1", "dev/c", "dev/c2", "dev/ü"),
    *("u/c/x", "v/c2/x", "u/c2/x", "u/u/x", "z/z/x", "%c/z/x", "public/x", "%c", "dev/%u"),
    *("/b", "x/%d/c"),
)  # fmt: skip
# Somebody who sees and says everything, to ask with; both brokers know no passwords here.
ROOT: Final = "user root\ntopic #\n"


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Brokers"]:
    opened = Brokers(tmp_path_factory.mktemp("brokers"))
    yield opened
    opened.close()


class Brokers:
    """A mosquitto and a Holdfast with the same ACL file."""

    def __init__(self, directory: Path) -> None:
        self.acl = directory / "acl"
        self.both = {
            # With the harness's unlimited queue, 2.0.11 closes at the second denied PUBLISH.
            "mosquitto": mosquitto(
                directory / "m", config=f"acl_file {self.acl}\nmax_queued_messages 1000"
            ),
            "holdfast": holdfast(
                directory / "h",
                env={
                    "HOLDFAST__AUTH__ACL_FILE": str(self.acl),
                    "HOLDFAST__STORAGE__DURABILITY": "os",
                },
            ),
        }

    def start(self, text: str) -> dict[str, BrokerProcess]:
        """Start both on this text, and somebody who may do everything."""
        self.stop()
        lines = [line.strip() for line in text.splitlines()]
        self.acl.write_text("\n".join(lines) + "\n" + ROOT)
        for broker in self.both.values():
            broker.start()
        return self.both

    def stop(self) -> None:
        """End both."""
        for broker in self.both.values():
            if broker.is_running():
                broker.kill()

    def close(self) -> None:
        """End both and look at their logs."""
        for broker in self.both.values():
            broker.close()


def rights(
    broker: BrokerProcess, clients: tuple[tuple[str | None, str], ...], topics: tuple[str, ...]
) -> dict[tuple[str | None, str], dict[str, str]]:
    """Return what each client may do with each topic: "r", a message comes, "w", one is taken."""
    found: dict[tuple[str | None, str], dict[str, str]] = {}
    opened = {who: RawClient(broker.port, who[1]) for who in clients}
    for who, client in opened.items():
        client.connect(username=who[0])
        for topic_filter in ("#", "$SYS/#"):
            client.send(Subscribe(client.packet_id(), [Subscription(topic_filter, 0)]))
            client.expect(Suback)
        found[who] = {}
        for topic in topics:
            client.publish_begin(topic, b"from a client")
            answer = client.expect(Puback)
            assert answer.reason_code in (0, 0x10, reasons.NOT_AUTHORIZED)
            found[who][topic] = "" if answer.reason_code == reasons.NOT_AUTHORIZED else "w"
    root = RawClient(broker.port, "root")
    root.connect(username="root")
    root.publish_all([(topic, b"from root") for topic in topics], qos=1)
    time.sleep(LISTEN_SECONDS)
    for who, client in opened.items():
        client.ping()
        for packet in client.inbox:
            if isinstance(packet, Publish) and packet.payload == b"from root":
                found[who][packet.topic] = "r" + found[who][packet.topic]
        client.drop()
    root.drop()
    return found


@pytest.mark.parametrize("name", ACLS)
def test_both_give_the_same_clients_the_same_topics(brokers: Brokers, name: str) -> None:
    both = brokers.start(ACLS[name])
    theirs = rights(both["mosquitto"], CLIENTS, TOPICS)
    ours = rights(both["holdfast"], CLIENTS, TOPICS)
    assert ours == theirs
    granted = {right for topics in ours.values() for right in topics.values()}
    assert granted == {""} if name in ("nothing granted", "empty") else len(granted) > 2


@pytest.mark.parametrize(
    ("rule", "username", "client_id", "topic", "theirs", "ours"),
    [
        # An identifier with "/" is not one level; to mosquitto it is as many as it likes.
        ("pattern dev/%c/#", None, "a/b", "dev/a/b/x", "rw", ""),
        ("pattern home/%u", "x/y", "c", "home/x/y", "rw", ""),
    ],
)
def test_an_identifier_with_a_slash_grants_nothing_here(
    brokers: Brokers,
    rule: str,
    username: str | None,
    client_id: str,
    topic: str,
    theirs: str,
    ours: str,
) -> None:
    both = brokers.start(rule)
    who = (username, client_id)
    assert rights(both["mosquitto"], (who,), (topic,)) == {who: {topic: theirs}}
    assert rights(both["holdfast"], (who,), (topic,)) == {who: {topic: ours}}


def test_a_client_called_like_the_system_topics_sees_them_only_in_mosquitto(
    brokers: Brokers,
) -> None:
    both = brokers.start("pattern read %c/#")
    seen = {}
    for name, broker in both.items():
        client = RawClient(broker.port, "$SYS")
        client.connect()
        client.send(Subscribe(1, [Subscription("$SYS/#", 0)]))
        suback = client.expect(Suback)
        client.ping()
        time.sleep(LISTEN_SECONDS)
        client.ping()
        seen[name] = any(isinstance(packet, Publish) for packet in client.inbox)
        if name == "holdfast":
            # The filter is granted for topics at "$SYS", which no rule then gives.
            assert suback.reason_codes in ([0], [reasons.NOT_AUTHORIZED])
        client.drop()
    assert seen == {"mosquitto": True, "holdfast": False}


def test_system_topics_are_read_by_whom_a_rule_names(brokers: Brokers) -> None:
    both = brokers.start("topic read #\nuser u\ntopic read $SYS/#")
    for broker in both.values():
        seen = {}
        for username in (None, "u"):
            client = RawClient(broker.port, "c")
            client.connect(username=username)
            for topic_filter in ("#", "$SYS/#"):
                client.send(Subscribe(client.packet_id(), [Subscription(topic_filter, 0)]))
                client.expect(Suback)
            client.ping()
            time.sleep(LISTEN_SECONDS)
            client.ping()
            seen[username] = any(
                packet.topic.startswith("$SYS/")
                for packet in client.inbox
                if isinstance(packet, Publish)
            )
            client.drop()
        assert seen == {None: False, "u": True}


def test_only_holdfast_refuses_a_filter_that_gives_nothing(brokers: Brokers) -> None:
    both = brokers.start("topic read a/#")
    found = {}
    for name, broker in both.items():
        client = RawClient(broker.port, "c")
        client.connect()
        wanted = ["a/b", "+/b", "#", "b", "b/#", "$share/g/a/#", "$share/g/b"]
        client.send(Subscribe(1, [Subscription(topic_filter, 1) for topic_filter in wanted]))
        found[name] = client.expect(Suback).reason_codes
        client.drop()
    no = reasons.NOT_AUTHORIZED
    assert found == {"mosquitto": [1] * 7, "holdfast": [1, 1, 1, no, no, 1, no]}


# The format.

READ_BY_BOTH: Final = (
    "topic read",
    " topic read a",
    "topic   read   a b  ",
    "topic read deny x",
    "topic read $share/g/a",
    "topic read a \t",
    "topic read a\r",
    "topic read " + "/" * 200,
    "user #x",
    "user a:b",
    "user  a  b ",
    "pattern read nothing",
    "# comment",
)
REFUSED_BY_BOTH: Final = (
    "topic",
    "pattern",
    "user",
    "topic a b",
    "topic READ a",
    "topic none a",
    "topic read a#",
    "topic read a/#/b",
    "topic read a # comment",
    "topic \tread a",
    "TOPIC a",
    "topics a",
    "\ttopic a",
    "topic\ta",
    " # comment",
    "\ufefftopic a",
    "allow a",
    "topic read " + "/" * 201,
    "topic read " + "x" * 65_536,
)
REFUSED_BY_US: Final = (
    "topic read a\x01b",
    "user a\x01b",
    "pattern read dev-%c/x",
    "pattern read %c%u",
)


@pytest.mark.parametrize(
    ("lines", "by_mosquitto", "by_us"),
    [(READ_BY_BOTH, True, True), (REFUSED_BY_BOTH, False, False), (REFUSED_BY_US, True, False)],
    ids=["read by both", "refused by both", "refused by us"],
)
def test_both_read_the_same_lines(
    tmp_path: Path, lines: tuple[str, ...], by_mosquitto: bool, by_us: bool
) -> None:
    for number, line in enumerate(lines):
        path = tmp_path / f"acl-{number}"
        path.write_text(line + "\n", newline="")
        assert is_read_by_us(line) is by_us, line
        process = mosquitto(tmp_path / str(number), config=f"acl_file {path}")
        assert starts(process.start) is by_mosquitto, line
        process.close()


def is_read_by_us(line: str) -> bool:
    """Tell whether our parser takes the line."""
    try:
        parse(line + "\n", "x")
    except AclError:
        return False
    return True


def starts(start: Callable[[], BrokerProcess]) -> bool:
    """Tell whether a broker starts; it must say no by ending."""
    try:
        start()
    except BrokerFailed as failure:
        assert " ended with " in str(failure)
        return False
    return True
