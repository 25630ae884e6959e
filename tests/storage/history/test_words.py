"""Events in plain words."""

from typing import Any

import pytest

from storage.history.events import COLUMNS, EVENTS
from storage.history.words import TEMPLATES, describe, message_name


def event(ev: str, **fields: Any) -> dict[str, object]:
    made: dict[str, object] = {name: None for name, _ in COLUMNS}
    return {**made, "ev": ev, **fields}


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            event("session_resumed", proto=5, subs=2, inflight=1, position=7, expiry_s=3600),
            "connected, session resumed: MQTT 5.0, 2 subscriptions, 1 in flight, position 7, "
            "expires after 3600 s",
        ),
        (event("session_created", proto=3), "connected, new session: MQTT 3.1"),
        (event("session_disconnected", reason=0), "disconnected: 0x00 success"),
        (event("session_disconnected", reason=0xC0), "disconnected: 0xC0"),
        (event("session_disconnected", reason=1001), "disconnected: connection lost"),
        (event("session_disconnected"), "disconnected"),
        (event("session_expiry_changed", expiry_s=0xFFFFFFFF), "changed its session expiry: "
         "expires never"),
        (event("session_terminated", reason=1011), "session ended: clean start"),
        (event("subscribed", tfilter="a/#", qos=1, position=4),
         "subscribed to 'a/#' at QoS 1, from position 4"),
        (
            event("msg_accepted", msg=9, topic="a", pub_qos=2, bytes=3, retain=True, pid=8),
            "published message 9 to 'a' at QoS 2, 3 bytes, retain, packet id 8",
        ),
        (event("pub_acked", msg=9, pid=8, reason=0), "got its acknowledgement of message 9, "
         "packet id 8"),
        (event("pub_acked", msg=9, reason=0x97),
         "got its acknowledgement of message 9, refused: 0x97 quota exceeded"),
        (event("msg_delivered", msg=9, qos=1, pid=3, dup=True, share="g"),
         "was sent message 9 at QoS 1, packet id 3, again, with DUP, from the shared subscription "
         "'g'"),
        (event("msg_dropped", msg=1, reason=1020), "message 1 dropped: queue full"),
        (event("msg_dropped", msg=1, msg_last=9, count=4, reason=1027),
         "4 messages between 1 and 9 dropped: max age"),
        (event("msg_dropped", reason=1025), "message dropped: not authorized"),
        (event("retained_sent", topic="a", qos=0), "was sent the retained message on 'a' at QoS 0"),
        (event("history_gap", reason=1053, count=0, detail="books"),
         "gap in the history: began, recording books"),
        (event("history_gap", reason=1051, count=7, detail="full"),
         "gap in the history: outbox trimmed, 7 events are missing, recording full"),
        (event("books", stage="pub_acked", count=5, total_bytes=50),
         "books of a minute: 5 messages pub acked, 50 bytes"),
    ],
)  # fmt: skip
def test_an_event_reads_as_a_sentence(told: dict[str, object], words: str) -> None:
    assert describe(told) == words


@pytest.mark.parametrize("ev", EVENTS.values())
def test_every_event_can_be_told_whatever_it_lacks(ev: str) -> None:
    text = describe(event(ev))
    assert text and "None" not in text and "{" not in text
    full = event(ev, **{name: 1 for name, kind in COLUMNS if kind.startswith("int")})
    for name, kind in COLUMNS:
        if kind in ("string", "dict") and name != "ev":
            full[name] = "w"
    assert "{" not in describe(full)


def test_no_template_is_for_an_event_that_does_not_exist() -> None:
    assert set(TEMPLATES) <= set(EVENTS.values())
    assert describe(event("canary_sent")) == "canary_sent"


def test_what_clients_chose_cannot_disturb_a_terminal_or_a_template() -> None:
    text = describe(event("subscribed", tfilter="a\x1b[2J{ev}\n|", qos=0))
    assert text == r"subscribed to 'a\x1b[2J{ev}\n|' at QoS 0"


def test_a_message_that_was_never_stored_is_marked() -> None:
    assert message_name(5) == "message 5"
    assert message_name(1 << 62 | 5) == f"message {1 << 62 | 5} (not stored)"
