"""Nothing leaves that the rules of that moment forbid: C6 of docs/security.md, as a property.

Histories by seed: users with sessions of every kind publish, subscribe, vanish and come back, while
rules change, commits are held, and the process dies. Every PUBLISH that leaves is judged by the
rules that are in force when it does, and so is every message by those when it came in. What has
been handed out and only waits for its commit may leave by the rules of the moment it was handed
out: docs/security.md says so.
"""

import random
from typing import Any, Final

import pytest

from broker.security.acl import AclPolicy, Rules, parse
from broker.security.authenticators import AllowAll, PlainNames
from mqtt.packets import Publish
from tests.session.harness import Broker, Client, will

USERS: Final = ("ann", "bob", "eve")
TOPICS: Final = ("a", "a/b", "a/ann", "a/bob", "b", "b/b", "$SYS/x")
FILTERS: Final = (*TOPICS, "#", "+", "+/b", "a/#", "$share/g/a/#", "$share/g/#", "$SYS/#")
LINES: Final = tuple(
    f"topic {access} {topic}"
    for access in ("read", "write", "readwrite", "deny")
    for topic in ("a", "a/#", "a/b", "b", "b/#", "+/b", "#", "$SYS/#")
)
PATTERNS: Final = ("pattern read a/%u", "pattern readwrite a/%u", "pattern deny a/%u")
STEPS: Final = 250


class World:
    """A broker, its rules, and who is connected to it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.policy = AclPolicy(parse("", "rules"))
        self.broker = Broker(policy=self.policy, authenticator=PlainNames(AllowAll()))
        self.online: dict[str, Client] = {}
        self.handed_out: list[Rules] = []  # in force since commits are held, and not any more
        self.refused: set[bytes] = set()  # payloads of messages that were not to be taken
        self.sent = 0
        self.seen: dict[str, int] = dict.fromkeys(("delivered", "retained", "again", "wills"), 0)

    def change_rules(self) -> None:
        """Put others in force, as SIGHUP does."""
        text = ["user root", "topic readwrite #", "topic readwrite $SYS/#"]
        for user in USERS:
            text += [f"user {user}", *self.random.sample(LINES, self.random.randrange(6))]
        text += self.random.sample(PATTERNS, self.random.randrange(2))
        if self.broker.commits_are_held:
            self.handed_out.append(self.policy.rules)
        self.policy.rules = parse("\n".join(text), "rules")

    def connect(self, user: str) -> None:
        """Come in, or come back: sessions that last and such that do not."""
        topic = self.random.choice(TOPICS)
        fields: dict[str, Any] = {"username": user, "version": self.random.choice((4, 5))}
        if self.random.random() < 0.5:
            fields["will"] = will(topic, b"will", retain=self.random.random() < 0.5)
        if fields["version"] == 5:
            fields |= {"expiry": 1000, "receive_maximum": self.random.choice((1, 3, 100))}
        else:
            fields["durable"] = True
        self.online[user] = self.broker.request(user, **fields)

    def publish(self, user: str) -> None:
        """Send a message that may be forbidden."""
        self.sent += 1
        payload, topic = b"%d" % self.sent, self.random.choice(TOPICS)
        if not self.policy.may_publish(user, user, topic) or topic.startswith("$"):
            self.refused.add(payload)
        qos, client = self.random.randrange(3), self.online[user]
        retain = self.random.random() < 0.3
        client.send(
            Publish(topic, payload, qos, retain, packet_id=client.packet_id() if qos else 0)
        )

    def judge(self) -> None:
        """Look at everything that has left, and at what acknowledging it brings."""
        while any([self.judge_one(user) for user in list(self.online)]):
            continue
        if not self.broker.commits_are_held:
            self.handed_out.clear()

    def judge_one(self, user: str) -> bool:
        """Judge what one client got; return whether it acknowledged some of it."""
        client = self.online[user]
        messages = client.messages()
        for message in messages:
            assert self.may_have_left(user, message.topic), (user, message)
            assert message.payload not in self.refused, message
            self.seen["delivered"] += 1
            self.seen["retained"] += message.retain
            self.seen["again"] += message.dup
            self.seen["wills"] += message.payload == b"will"
        if client.is_closed:
            del self.online[user]
        elif messages and self.random.random() < 0.6 and not self.broker.commits_are_held:
            client.acknowledge(*messages)
            return True
        return False

    def may_have_left(self, user: str, topic: str) -> bool:
        """Is it the receiver's by the rules of now, or of when it began to wait for its commit?"""
        return self.policy.may_receive(user, user, topic) or any(
            AclPolicy(rules).may_receive(user, user, topic) for rules in self.handed_out
        )

    def step(self) -> None:
        """Let one thing happen, and judge what left because of it."""
        user = self.random.choice(USERS)
        kind = self.random.random()
        if kind < 0.12:
            self.change_rules()
        elif user not in self.online:
            self.connect(user)
        elif kind < 0.6:
            self.publish(user)
        elif kind < 0.78:
            topic_filter = self.random.choice(FILTERS)
            self.online[user].subscribe(topic_filter, qos=self.random.randrange(3))
        elif kind < 0.83:
            self.online.pop(user).drop()
        elif kind < 0.87:
            self.broker.hold_commits()
        elif kind < 0.93:
            self.broker.commit()
        elif kind < 0.96:
            self.broker.advance(s=self.random.randrange(3))
        elif kind < 0.98:
            client = self.online[user]
            client.stop_taking()
            self.publish(self.random.choice(sorted(self.online)))
            self.judge()
            self.change_rules()
            if not client.is_closed:
                client.go_on_taking()
        else:
            self.broker.crash()
            self.online.clear()
            self.broker.start()
        self.judge()


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_c06_no_message_leaves_that_the_rules_of_now_forbid(first: int) -> None:
    """For every outbound PUBLISH: its receiver may read the topic, and its sender might write."""
    seen: dict[str, int] = {}
    for seed in range(first, first + 10):
        world = World(seed)
        try:
            for _ in range(STEPS):
                world.step()
        except AssertionError as fault:
            raise AssertionError(f"seed {seed}: {fault}") from fault
        for name, count in world.seen.items():
            seen[name] = seen.get(name, 0) + count
    assert all(seen.values()), seen
    assert seen["delivered"] > 200, seen
