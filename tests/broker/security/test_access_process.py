"""Users and rules of a running broker: over the wire, and changed under its clients' feet."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.security import password_hashes
from conformance.scram import METHOD, ScramClient
from mqtt import reasons
from mqtt.packets import Auth, Connack, Connect, Puback, Suback, Subscribe, Subscription, Will
from tests.broker.security.stored import MOSQUITTO_6, MOSQUITTO_7, SCRAM
from tests.durability.process import BrokerProcess
from tests.durability.rawclient import RawClient

Start = Callable[..., BrokerProcess]

OPEN_RULES = "topic #\nuser reader\ntopic read #\nuser writer\ntopic write #\n"


@pytest.fixture
def acl(tmp_path: Path) -> Path:
    path = tmp_path / "acl"
    path.write_text(OPEN_RULES)
    return path


def test_rules_changed_under_connected_clients_count_from_their_next_packet(
    start: Start, acl: Path
) -> None:
    broker = start(HOLDFAST__AUTH__ACL_FILE=str(acl))
    reader, writer = RawClient(broker.port, "reader"), RawClient(broker.port, "writer")
    reader.connect(username="reader")
    writer.connect(username="writer")
    reader.subscribe("#")
    writer.publish("a", b"1")
    writer.publish("b", b"2")
    assert [message.topic for message in reader.take(2)] == ["a", "b"]
    acl.write_text("user reader\ntopic read b\nuser writer\ntopic write a\ntopic write b\n")
    broker.reload()
    writer.publish("a", b"3")  # taken, and no longer the reader's
    writer.publish("c", b"4", reason=reasons.NOT_AUTHORIZED)
    writer.publish("b", b"5")
    reader.expect_publish(b"5", topic="b")
    reader.expect_nothing()
    reader.send(Subscribe(9, [Subscription("a", 1), Subscription("+", 1)]))
    assert reader.expect(Suback).reason_codes == [reasons.NOT_AUTHORIZED, 1]


def test_what_waits_for_an_offline_session_is_judged_by_the_rules_of_its_return(
    start: Start, acl: Path
) -> None:
    broker = start(HOLDFAST__AUTH__ACL_FILE=str(acl))
    reader, writer = RawClient(broker.port, "reader"), RawClient(broker.port, "writer")
    reader.durable(username="reader")
    reader.subscribe("#")
    reader.disconnect()
    writer.connect(username="writer")
    for number in range(6):
        writer.publish(f"{'ab'[number % 2]}/{number}", b"x", retain=number > 3)
    acl.write_text("user reader\ntopic read b/#\n")
    broker.reload()
    reader.resume(username="reader")
    assert [message.topic for message in reader.take(3)] == ["b/1", "b/3", "b/5"]
    reader.subscribe("+/#")  # what is retained comes with it
    assert reader.expect_publish().topic == "b/5"
    reader.expect_nothing()
    reader.disconnect()
    for number in range(4):
        writer.publish("ab"[number % 2], b"x", reason=reasons.NOT_AUTHORIZED)
    acl.write_text("user writer\ntopic write #\n")
    broker.crash()
    writer.connect(username="writer")
    writer.publish("b", b"x")
    reader.resume(username="reader")
    reader.expect_nothing()


def test_a_will_that_waits_is_judged_by_the_rules_of_when_it_fires(start: Start, acl: Path) -> None:
    broker = start(HOLDFAST__AUTH__ACL_FILE=str(acl))
    reader = RawClient(broker.port, "reader")
    reader.connect(username="reader")
    reader.subscribe("will/#")
    for name in ("kept", "revoked"):
        dying = RawClient(broker.port, name)
        will = Will(f"will/{name}", b"x", qos=1, retain=False, properties=b"", delay_interval=1)
        dying.durable(username="writer", will=will)
        dying.drop(reset=True)
    acl.write_text("user reader\ntopic read #\nuser writer\ntopic write will/kept\n")
    broker.reload()
    reader.expect_publish(topic="will/kept", timeout=30)
    refused = 'holdfast_wills_total{outcome="refused"}'
    for _ in range(500):
        if broker.metrics()[refused]:
            break
        reader.ping()
    assert broker.metrics()[refused] == 1
    reader.expect_nothing()


def test_a_garbled_file_at_sighup_leaves_everything_as_it_was(
    start: Start, acl: Path, tmp_path: Path
) -> None:
    users = tmp_path / "users"
    users.write_text(f"writer:{MOSQUITTO_7}\n")
    broker = start(HOLDFAST__AUTH__ACL_FILE=str(acl), HOLDFAST__AUTH__PASSWORD_FILE=str(users))
    writer, other = RawClient(broker.port, "writer"), RawClient(broker.port, "other")
    writer.connect(username="writer", password=b"right pass")
    users.write_text(f"other:{MOSQUITTO_7}\n")
    for garbled in ("topic #\nallow everybody\n", None):
        if garbled is None:
            acl.unlink()
        else:
            acl.write_text(garbled)
        broker.reload(event="reload_failed")
        writer.publish("a", b"1")
        writer.connect(username="writer", password=b"right pass")
        other.connect(
            username="other", password=b"right pass", reason=reasons.BAD_USER_NAME_OR_PASSWORD
        )
    assert f"acl file {acl} line 2: 'allow'" in broker.log()
    acl.write_text("")
    broker.reload()
    farewell = writer.expect_closed()  # its user is gone now
    assert farewell is not None
    assert farewell.reason_code == reasons.NOT_AUTHORIZED
    other.connect(username="other", password=b"right pass")
    other.publish("a", b"2", reason=reasons.NOT_AUTHORIZED)


def test_an_empty_acl_file_lets_nobody_do_anything(start: Start, acl: Path) -> None:
    acl.write_text("")
    broker = start(HOLDFAST__AUTH__ACL_FILE=str(acl))
    for version in (4, 5):
        client = RawClient(broker.port, "c", version=version)
        client.connect()
        client.send(Subscribe(1, [Subscription("#", 1), Subscription("$SYS/#", 1)]))
        no = reasons.NOT_AUTHORIZED if version == 5 else 0x80
        assert client.expect(Suback).reason_codes == [no, no]
        client.publish_begin("a", b"x")
        assert client.expect(Puback).reason_code == (no if version == 5 else 0)


def test_system_topics_are_read_by_whom_a_rule_names(start: Start, acl: Path) -> None:
    acl.write_text("topic #\nuser operator\ntopic read $SYS/#\n")
    broker = start(HOLDFAST__AUTH__ACL_FILE=str(acl))
    client = RawClient(broker.port, "c")
    client.connect()
    client.send(Subscribe(1, [Subscription("$SYS/#", 1)]))
    assert client.expect(Suback).reason_codes == [reasons.NOT_AUTHORIZED]
    client.connect(username="operator")
    client.subscribe("$SYS/broker/version")
    client.expect_publish(topic="$SYS/broker/version")


@pytest.mark.skipif(shutil.which("mosquitto_passwd") is None, reason="mosquitto is not installed")
def test_users_of_every_kind_log_in(start: Start, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("")
    for kind, name in (("sha512-pbkdf2", "seven"), ("sha512", "six")):
        command = ["mosquitto_passwd", "-H", kind, "-b", str(users), name, "wörd"]
        subprocess.run(command, check=True, capture_output=True)
    with users.open("a") as stream:
        stream.write(f"ours:{password_hashes.hasher().hash('wörd')}\n")
        stream.write(f"scram:{password_hashes.scram_line('wörd'.encode(), bytes(16))}\n")
    users.chmod(0o644)
    broker = start(HOLDFAST__AUTH__PASSWORD_FILE=str(users))
    for name in ("seven", "six", "ours", "scram"):
        client = RawClient(broker.port, name)
        client.connect(username=name, password="wörd".encode())
        client.connect(username=name, password=b"word", reason=reasons.BAD_USER_NAME_OR_PASSWORD)
    assert "lets others read it" in broker.log()


def test_names_with_control_characters_are_refused(start: Start, tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text(f"anna:{MOSQUITTO_6}\n")
    broker = start(HOLDFAST__AUTH__PASSWORD_FILE=str(users))
    for client_id in ("a\x01b", "a\x1fb", "a\x7f", "a\nb"):
        client = RawClient(broker.port, client_id)
        reason = reasons.CLIENT_IDENTIFIER_NOT_VALID
        client.connect(username="anna", password=b"right pass", reason=reason)
    client = RawClient(broker.port, "c")
    client.connect(username="an\x02na", password=b"x", reason=reasons.BAD_USER_NAME_OR_PASSWORD)
    client.connect(username="anna", password=b"right pass")


# SCRAM-SHA-256 on the wire.


@pytest.fixture
def scram_broker(start: Start, tmp_path: Path) -> BrokerProcess:
    users = tmp_path / "users"
    users.write_text(f"user:{SCRAM}\nplain:{MOSQUITTO_6}\n")
    return start(HOLDFAST__AUTH__PASSWORD_FILE=str(users))


def begin(client: RawClient, scram: ScramClient, **fields: str) -> Auth | Connack:
    """Send a CONNECT with the client-first message and return the answer."""
    client.open()
    client.send(
        Connect(
            client.client_id,
            authentication_method=METHOD,
            authentication_data=scram.first(),
            **fields,  # type: ignore[arg-type]
        )
    )
    answer = client.receive()
    assert isinstance(answer, Auth | Connack)
    return answer


def finish(client: RawClient, scram: ScramClient, server_first: Auth | Connack) -> Connack:
    """Answer the server-first message and return the CONNACK."""
    assert isinstance(server_first, Auth), server_first
    assert server_first.authentication_method == METHOD
    assert server_first.authentication_data is not None
    answer = Auth(reasons.CONTINUE_AUTHENTICATION)
    answer.authentication_method = METHOD
    answer.authentication_data = scram.final(server_first.authentication_data)
    client.send(answer)
    return client.expect(Connack)


def test_a_client_that_proves_its_password_is_let_in_as_its_user(
    scram_broker: BrokerProcess,
) -> None:
    client, scram = RawClient(scram_broker.port, "c"), ScramClient("user", "pencil")
    connack = finish(client, scram, begin(client, scram))
    assert (connack.reason_code, connack.authentication_method) == (0, METHOD)
    assert connack.authentication_data is not None
    scram.verify(connack.authentication_data)
    client.subscribe("a")
    client.publish("a", b"1")
    client.expect_publish(b"1")
    # The session is that user's, however it logs in.
    client.connect(username="user", password=b"pencil")
    client.connect(username="user", password=b"wrong", reason=reasons.BAD_USER_NAME_OR_PASSWORD)


@pytest.mark.parametrize(
    ("name", "password"), [("user", "wrong"), ("plain", "right pass"), ("nobody", "x")]
)
def test_a_client_that_proves_nothing_is_refused_at_the_end(
    scram_broker: BrokerProcess, name: str, password: str
) -> None:
    client, scram = RawClient(scram_broker.port, "c"), ScramClient(name, password)
    connack = finish(client, scram, begin(client, scram))
    assert connack.reason_code == reasons.NOT_AUTHORIZED
    assert connack.authentication_data is None
    client.expect_closed()


def test_salts_do_not_change_when_the_broker_starts_again(scram_broker: BrokerProcess) -> None:
    """Or a name that does not exist would be the one whose salt changes."""
    answers = []
    for _ in range(2):
        found = {}
        for name in ("user", "plain", "nobody"):
            answer = begin(RawClient(scram_broker.port, name), ScramClient(name, "x"))
            assert answer.authentication_data is not None
            found[name] = answer.authentication_data.split(b",")[1:]
        answers.append(found)
        scram_broker.crash()
    assert answers[0] == answers[1]


@pytest.mark.parametrize("method", ["SCRAM-SHA-1", "SCRAM-SHA-256-PLUS", "PLAIN"])
def test_other_methods_are_refused_as_such(scram_broker: BrokerProcess, method: str) -> None:
    client = RawClient(scram_broker.port, "c")
    client.open()
    client.send(Connect("c", authentication_method=method, authentication_data=b"n,,n=user,r=x"))
    assert client.receive().reason_code == reasons.BAD_AUTHENTICATION_METHOD


@pytest.mark.parametrize(("username", "reason"), [("user", 0), ("plain", reasons.NOT_AUTHORIZED)])
def test_the_method_decides_and_a_user_name_may_only_agree(
    scram_broker: BrokerProcess, username: str, reason: int
) -> None:
    client, scram = RawClient(scram_broker.port, "c"), ScramClient("user", "pencil")
    connack = finish(client, scram, begin(client, scram, username=username))
    assert connack.reason_code == reason


def test_a_client_authenticates_again_as_itself_only(scram_broker: BrokerProcess) -> None:
    client, scram = RawClient(scram_broker.port, "c"), ScramClient("user", "pencil")
    assert finish(client, scram, begin(client, scram)).reason_code == 0
    for password, success in (("pencil", True), ("wrong", False)):
        scram = ScramClient("user", password, nonce="another")
        again = Auth(reasons.REAUTHENTICATE)
        again.authentication_method = METHOD
        again.authentication_data = scram.first()
        client.send(again)
        challenge = client.expect(Auth)
        assert challenge.authentication_data is not None
        answer = Auth(reasons.CONTINUE_AUTHENTICATION)
        answer.authentication_method = METHOD
        answer.authentication_data = scram.final(challenge.authentication_data)
        client.send(answer)
        if success:
            final = client.expect(Auth)
            assert final.reason_code == reasons.SUCCESS
            assert final.authentication_data is not None
            scram.verify(final.authentication_data)
        else:
            farewell = client.expect_closed()
            assert farewell is not None
            assert farewell.reason_code == reasons.NOT_AUTHORIZED
