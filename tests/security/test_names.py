"""Names that mean something to somebody else: C7 of docs/security.md.

A client may call itself almost anything. Whatever that is, a rule with `%c` or `%u` gives it the
topics whose level is that name, letter for letter, and no others.
"""

from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.security.acl import AclError, AclPolicy, parse
from broker.security.authenticators import AllowAll, PlainNames
from mqtt import reasons
from mqtt.packets import Connack
from tests.session.harness import Broker

RULES: Final = """\
user root
topic readwrite #
pattern readwrite c/%c/t
pattern readwrite u/%u/t
pattern read both/%c/%u
pattern deny c/victim/t/secret
"""
VICTIMS: Final = ("victim", "", "c", "%c", "%u", "other")
# What means something in a topic filter, a regular expression, a path, a template, a shell, a log.
SPECIAL: Final = "+#/$.*[]()|^\\%?{}'\"`;&<>: ~\u202e\ufeff"
PIECES: Final = st.one_of(
    st.sampled_from([*SPECIAL, "../", "%c", "%u", "%2b", "victim", ".*", "[^/]+", "(?=", "{0}"]),
    st.characters(exclude_categories=["Cs", "Cc"]),
)
NAMES: Final = (
    st.lists(PIECES, min_size=1, max_size=6).map("".join).filter(lambda name: name != "root")
)


def broker_with_rules() -> Broker:
    return Broker(policy=AclPolicy(parse(RULES, "rules")), authenticator=PlainNames(AllowAll()))


def may_use_patterns(*names: str) -> bool:
    """Does a client with these names get anything by `pattern` lines? Not if one is a wildcard."""
    return not set("+#") & set("".join(names))


@given(client_id=NAMES, username=NAMES, victim=st.one_of(st.sampled_from(VICTIMS), NAMES))
@settings(derandomize=True, deadline=None, max_examples=150)
def test_c07_a_name_gives_the_topics_with_exactly_that_level_and_no_others(
    client_id: str, username: str, victim: str
) -> None:
    """CVE-2017-7650 (`#` and `+`), CVE-2026-44838 (a regular expression), NanoMQ #2344."""
    broker = broker_with_rules()
    client = broker.connect(client_id, username=username)
    may = may_use_patterns(client_id, username)
    for prefix, own in (("c", client_id), ("u", username)):
        for level in dict.fromkeys((own, victim)):
            if set("+#") & set(level):
                continue  # no topic
            granted = may and level == own and "/" not in own
            answer = client.publish(f"{prefix}/{level}/t", b"x", 1)
            code = getattr(answer, "reason_code", 0)
            assert (code != reasons.NOT_AUTHORIZED) is granted, (prefix, level, answer)


@given(client_id=NAMES, username=NAMES, victim=st.one_of(st.sampled_from(VICTIMS), NAMES))
@settings(derandomize=True, deadline=None, max_examples=100)
def test_c07_a_name_receives_the_topics_with_exactly_that_level_and_no_others(
    client_id: str, username: str, victim: str
) -> None:
    """Whatever it subscribes to: every message that leaves is judged by itself."""
    broker = broker_with_rules()
    root = broker.connect("root", username="root")
    client = broker.connect(client_id, username=username)
    client.subscribe("#", "c/#", "+/+/t", "u/+/#", "both/#", qos=1)
    may = may_use_patterns(client_id, username)
    expected = set()
    for levels in ((client_id, username), (victim, username), (client_id, victim)):
        if any(set("+#") & set(level) for level in levels):
            continue
        for topic, granted in (
            (f"c/{levels[0]}/t", levels[0] == client_id),
            (f"u/{levels[1]}/t", levels[1] == username),
            ("both/" + "/".join(levels), levels == (client_id, username)),
            (f"c/{levels[0]}/t/secret", False),
        ):
            root.publish(topic, b"x", 1)
            if may and granted and topic.count("/") == 2:  # a name with "/" is no level
                expected.add(topic)
    topics = set()
    while messages := client.messages():
        topics |= {message.topic for message in messages}
        client.acknowledge(*messages)
    assert topics == expected


@pytest.mark.parametrize("character", [*map(chr, [*range(1, 0x20), 0x7F]), "\r\n"])
def test_c07_control_characters_in_names_are_refused(character: str) -> None:
    """EMQX #17309: a header of its own in the request to an authentication server."""
    broker = broker_with_rules()
    for name in (f"a{character}b", character, f"victim{character}X-Role: admin"):
        code = broker.refused(name, username="ann")
        assert code == reasons.CLIENT_IDENTIFIER_NOT_VALID
        assert broker.refused(name, version=4, username="ann") == 2
        assert broker.refused("c", username=name) == reasons.BAD_USER_NAME_OR_PASSWORD
        assert broker.refused("c", version=4, username=name) == 4
    assert not broker.rows("sessions") and broker.engine.stats()["connections"] == 0


@pytest.mark.parametrize("version", [4, 5])
def test_c07_a_zero_byte_in_a_name_is_malformed(version: int) -> None:
    """It would end the key of a row: `victim\\0...` must not come near the rows of `victim`."""
    broker = broker_with_rules()
    victim = broker.durable("victim", "c/victim/t", username="victim")
    block = b"\x00" if version == 5 else b""
    for client_id, username in ((b"victim\0c", b"u"), (b"c", b"victim\0c"), (b"\0", b"u")):
        body = b"\x00\x04MQTT" + bytes((version, 0x80, 0, 0)) + block
        for text in (client_id, username):
            body += len(text).to_bytes(2, "big") + text
        client = broker.open(version)
        client.send_bytes(bytes((0x10, len(body))) + body)
        answers = client.take()
        assert client.is_closed
        assert all(isinstance(packet, Connack) and packet.reason_code for packet in answers)
    victim.ping()
    assert [key for key, _ in broker.rows("sessions")] == [b"victim"]


def test_c07_a_rule_cannot_hide_a_name_inside_a_level() -> None:
    """RabbitMQ CVE-2026-44838 built patterns out of text and name: here a name is a level."""
    for level in ("x%c", "%cx", "%c%u", "%c.*", "a.%u"):
        with pytest.raises(AclError, match="the whole level"):
            parse(f"pattern readwrite a/{level}/t\n", "rules")
