"""What to do about a violation: where it likely comes from, and the command that shows more. Pure.

Causes are those that were found behind violations in tests and by deliberate damage, likely ones
first. A command is made of what a witness names; what it does not name is left out.
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from audit.report.summary import Check, Picture

_DISK: Final = "a disk, file system or virtual disk that lost what it had said was durable"
_RESTORED: Final = "a data directory that was restored or copied from an older state"
_BUG: Final = "a fault of the broker: please report it with the rows below"
_UNSAFE: Final = 'a start with --accept-data-loss, or storage.durability = "os"'
_TRIMMED: Final = "rows of the history that were deleted before their export, or segments removed"
_CLOCK: Final = "a clock that was set while the broker was down"

# Invariant -> likely causes, the likeliest first.
CAUSES: Final[dict[str, tuple[str, ...]]] = {
    "H1": (_TRIMMED, _RESTORED, _DISK),
    "L1": (_BUG,),
    "L2": (_UNSAFE, _DISK, _RESTORED, _BUG),
    "L3": (_BUG, _DISK),
    "D1": (_UNSAFE, _RESTORED, _BUG),
    "D2": (_BUG, _RESTORED),
    "D3": (_BUG, "a client that acknowledges a packet identifier it was not sent"),
    "S1": (_RESTORED, _DISK, _BUG),
    "S2": (_RESTORED, _DISK, _BUG),
    "S3": (_CLOCK, "a broker that was down or overloaded when the session was due", _BUG),
    "S4": (_BUG,),
    "S5": (_UNSAFE, _DISK, _RESTORED, _BUG),
    "F1": (_BUG,),
    "O1": (_BUG,),
    "E1": (_CLOCK, _BUG),
    "W1": ("a broker that was down when the will was due", _CLOCK, _BUG),
    "R1": (_RESTORED, _BUG),
    "R2": (_RESTORED, _DISK, _BUG),
    "G1": (_BUG,),
    "B1": ("a store that was changed or restored by somebody else", _RESTORED, _BUG),
    "C1": (_DISK, _RESTORED, _UNSAFE, _BUG),
    "C2": ("logs of clients of another broker", _RESTORED, _BUG),
    "C3": ("a client that handed a message to its program twice", _UNSAFE, _BUG),
    "C4": (_RESTORED, _DISK, _BUG),
    "C5": (_DISK, _UNSAFE, _BUG),
}
UNKNOWN_CAUSE: Final = (_BUG,)

# What to do first, whoever is concerned.
FIRST: Final[dict[str, str]] = {
    "H1": "Check the segments. Let the export catch up before the next audit.",
    "L2": "Find out whose messages are missing, and ask their publishers to send them again.",
    "S5": "Stop trusting this disk until you know why: what it had confirmed was gone.",
    "S1": "Compare what the client believes with what the broker has.",
    "C1": "Stop trusting this disk until you know why: what it had confirmed was gone.",
    "D1": "Tell whoever consumes these messages that some may have come twice.",
    "B1": "Compare the store itself with the messages.",
}
FIRST_ELSE: Final = "Look at the rows of the first witness."

# Invariant -> a command about the whole node, beside those about a client or a message.
_COMMANDS: Final[dict[str, str]] = {
    "H1": "holdfast history verify --history {history}",
    "S5": "holdfast db check",
    "L2": "holdfast db check",
}


@dataclass(frozen=True, slots=True)
class Step:
    """What to do about one violated invariant."""

    id: str
    violated: int
    title: str
    first: str
    causes: tuple[str, ...]
    commands: tuple[str, ...]
    nodes: tuple[str, ...]


def steps(picture: Picture) -> list[Step]:
    """Return what to do now, an entry for each violated invariant, as the board has them."""
    return [
        Step(
            check.id,
            check.violated - check.suppressed,
            check.name,
            FIRST.get(check.id, FIRST_ELSE),
            causes(check.id),
            commands(check.id, check.witnesses, picture.title),
            tuple(sorted({node_of(witness) for witness in check.witnesses} - {""})),
        )
        for check in ranked(picture.checks)
        if check.outcome == "violated"
    ]


def ranked(checks: Sequence[Check]) -> list[Check]:
    """Return the invariants in the order of what to see to first: lost state before the rest."""
    urgent = ("S5", "L2", "H1", "L1")
    return sorted(
        checks, key=lambda check: urgent.index(check.id) if check.id in urgent else len(urgent)
    )


def causes(invariant: str) -> tuple[str, ...]:
    """Return where a violation likely comes from."""
    return CAUSES.get(invariant, UNKNOWN_CAUSE)


def node_of(witness: Mapping[str, object]) -> str:
    """Return the broker that a witness is about, "" if it does not say."""
    node = witness.get("node")
    return node if isinstance(node, str) else ""


def commands(
    invariant: str, witnesses: Sequence[Mapping[str, object]], history: str
) -> tuple[str, ...]:
    """Return the next commands for the first witness, the one about it first."""
    found = []
    first = witnesses[0] if witnesses else {}
    explain = f"holdfast audit explain --history {shlex.quote(history)}"
    whose = f" --node {shlex.quote(node_of(first))}" if node_of(first) else ""
    if _is_number(first.get("msg")):
        found.append(f"{explain} --message {first['msg']}{whose}")
    elif _is_number(first.get("session")):
        found.append(f"{explain} --session {first['session']}{whose}")
    told = first.get("next")
    if isinstance(told, str):
        found.append(told)
    client = first.get("client_id")
    if isinstance(client, str) and client and client.isprintable():
        found.append(f"holdfast why {shlex.quote(client)}")
    if invariant in _COMMANDS:
        found.append(_COMMANDS[invariant].format(history=shlex.quote(history)))
    return tuple(found)


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
