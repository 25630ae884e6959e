"""The titles of the chapters of both specifications, to group statements."""

from typing import Final

_BOTH: Final = {
    "1.5": "Data representation",
    "3.1": "CONNECT",
    "3.2": "CONNACK",
    "3.3": "PUBLISH",
    "3.4": "PUBACK",
    "3.5": "PUBREC",
    "3.6": "PUBREL",
    "3.7": "PUBCOMP",
    "3.8": "SUBSCRIBE",
    "3.9": "SUBACK",
    "3.10": "UNSUBSCRIBE",
    "3.11": "UNSUBACK",
    "3.12": "PINGREQ",
    "3.13": "PINGRESP",
    "3.14": "DISCONNECT",
    "4.1": "Keeping state",
    "4.3": "Quality of service",
    "4.4": "Sending again",
    "4.5": "Taking over messages",
    "4.6": "Order of messages",
    "4.7": "Topics and filters",
    "6": "WebSocket",
    "X": "Rules without a number",
}
_ONLY: Final = {
    4: {
        "2.2": "Fixed header",
        "2.3": "Packet identifiers",
        "4.8": "Errors",
        "7": "Conformance",
        "7.1": "Transport",
    },
    5: {
        "2.1": "Fixed header",
        "2.2": "Packet identifiers and properties",
        "3.15": "AUTH",
        "4.2": "Transport",
        "4.8": "Shared subscriptions",
        "4.9": "Flow control",
        "4.12": "Enhanced authentication",
        "4.13": "Errors",
    },
}


def chapter_name(version: int, chapter: str) -> str:
    """Return the number of a chapter with its title."""
    about = _ONLY[version].get(chapter) or _BOTH.get(chapter, "")
    return about if chapter == "X" else f"{chapter} {about}".strip()
