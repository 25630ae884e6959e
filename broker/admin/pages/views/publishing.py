"""The form that publishes a message, and what is said of one that was. Pure.

Read next: `broker.admin.pages.serving.publishing`.
"""

from typing import Final

import msgspec

from broker.admin.api.values import duration_s
from broker.admin.pages.words import amounts, names
from broker.admin.records import Publication, Published
from mqtt.topics import topic_problem

TEXT: Final = "text"
BASE64: Final = "base64"
WRITTEN: Final = ((TEXT, "text"), (BASE64, "Base64"))
FIELDS: Final = {
    "topic": "",
    "written": TEXT,
    "payload": "",
    "qos": "1",
    "retain": "",
    "content_type": "",
    "expires": "",
    "properties": "",
    "reason": "",
}


def wanted(fields: dict[str, str]) -> Publication:
    """Return the message that a form describes. Raises `ValueError` for what was typed wrong."""
    topic, payload = fields["topic"], fields["payload"]
    if not topic:
        raise ValueError("on which topic?")
    if (problem := topic_problem(topic)) is not None:
        raise ValueError(problem)
    is_text = fields["written"] == TEXT
    try:
        expiry_s = duration_s(fields["expires"]) if fields["expires"] else None
    except ValueError as problem_:
        raise ValueError(f"expires after {fields['expires'][:40]!r}: {problem_}") from None
    try:
        return msgspec.convert(
            {
                "topic": topic,
                # A browser ends lines with CR and LF, whatever was typed.
                "text": payload.replace("\r\n", "\n") if is_text else None,
                "payload": None if is_text else "".join(payload.split()),
                "qos": fields["qos"],
                "retain": bool(fields["retain"]),
                "content_type": fields["content_type"] or None,
                "expiry_seconds": expiry_s,
                "user_properties": list(_properties(fields["properties"])),
                "reason": fields["reason"],
            },
            Publication,
            strict=False,
        )
    except msgspec.ValidationError as problem_:
        raise ValueError(str(problem_)) from None


def _properties(text: str) -> list[tuple[str, str]]:
    """Return the user properties of lines `name=value`, in their order."""
    found = []
    for line in text.splitlines():
        name, equals, value = line.partition("=")
        if not line.strip():
            continue
        if not equals or not name.strip():
            raise ValueError(f"user property {line[:80]!r}: expected name=value")
        found.append((name.strip(), value.strip()))
    return found


def notice(done: Published) -> str:
    """Return what is said after it was published."""
    gets = "no subscription gets it"
    if done.matched:
        gets = f"{amounts.plural(done.matched, 'subscription')} get{'s' * (done.matched == 1)} it"
    stored = "stored" if done.stored else "published, and stored for nobody"
    return f"The message on {names.plain(done.topic, 80)} is {stored}; {gets}."
