"""The words for states that the records name.

Pure. Read next: `broker.operations.sessions.owed`, `broker.operations.looking.why`.
"""

from typing import Final

from broker.operations.looking.why import STATES

VERSIONS: Final = {3: "3.1", 4: "3.1.1", 5: "5.0"}
WORDS: Final = {
    "waits": "waits",
    "sent": "in flight",
    "perhaps_sent": "perhaps sent",
    "received": "received",
    "expired": "expired",
    "max_age": "too old",
    "session_limit": "over the limit",
    "no_local": "its own",
    "purged": "purged",
    "damaged": "damaged",
}
IN_FLIGHT: Final = frozenset({"sent", "perhaps_sent", "received"})
GETS: Final = {"now": "now", "later": "when it is back", "no": "not, with QoS 0"}


def mqtt(version: int) -> str:
    """Return the version of a protocol level."""
    return VERSIONS.get(version, str(version))


def gets(word: str) -> str:
    """Return when somebody gets a message."""
    return GETS.get(word, word)


def queue_word(state: str) -> str:
    """Return the word for what becomes of a message."""
    return WORDS.get(state, state)


def queue_kind(state: str) -> str:
    """Return the class of a state: how much it is to be noticed."""
    if state == "damaged":
        return "state bad"
    return "state idle" if state == "waits" else f"state {'good' if state in IN_FLIGHT else 'warn'}"


def queue_meaning(state: str) -> str:
    """Return the sentence for what becomes of a message."""
    return STATES.get(state, state)
