"""The result of a check: counts, witnesses and one of three verdicts.

`violated` always comes with evidence. What touches a gap of the history, or has not ended yet, is
`unknown`, never `violated`. Each span of a node's history without the rows that an invariant needs
is one `unknown`, too: `ok` means tested on every node, all the time.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from audit.input.coverage import Need, Span

Status = Literal["ok", "violated", "unknown"]


@dataclass(frozen=True)
class Invariant:
    """A property that must always hold for a correct broker."""

    id: str
    title: str
    source: str  # normative statements of MQTT 5.0, or "Holdfast" for a promise of its own

    @property
    def needs(self) -> Need:
        """Return the rows without which it cannot be tested."""
        return "sessions" if self.id in _OF_SESSIONS else "messages"


# S5 and S2 compare what was in flight, too; without rows of messages only that is left out. B1
# itself says what it could not compare: only brokers with external stores have anything.
_OF_SESSIONS: Final = ("H1", "S1", "S2", "S3", "S4", "S5", "W1", "G1", "B1", "C4")
# What only the logs of clients can show: checked if a run has such logs.
OF_CLIENTS: Final = ("C1", "C2", "C3", "C4", "C5")

INVARIANTS: Final[dict[str, Invariant]] = {
    invariant.id: invariant
    for invariant in (
        Invariant("H1", "the history has no holes and its boots follow each other", "Holdfast"),
        Invariant("L1", "what was acknowledged was on disk before", "Holdfast"),
        Invariant("L2", "no acknowledged message is lost", "MQTT-4.3.2, MQTT-4.3.3"),
        Invariant("L3", "every matching durable subscription gets the message", "MQTT-3.3.4"),
        Invariant("D1", "QoS 2 is accepted once and delivered once", "MQTT-4.3.3"),
        Invariant(
            "D2", "sent again only after a reconnect, with DUP", "MQTT-3.3.1-1, MQTT-4.4.0-1"
        ),
        Invariant("D3", "a packet identifier is in use once", "MQTT-2.2.1"),
        Invariant("S1", "Session Present tells the truth", "MQTT-3.2.2-2, MQTT-3.2.2-3"),
        Invariant("S2", "a resumed session is as it was left", "MQTT-4.1.0-1, MQTT-3.1.2-5"),
        Invariant("S3", "sessions expire when due, not before", "MQTT-3.1.2-23"),
        Invariant("S4", "a session has one connection", "MQTT-3.1.4-3"),
        Invariant("S5", "what existed before a crash exists after it", "Holdfast"),
        Invariant("F1", "no more in flight than Receive Maximum", "MQTT-3.3.4-9"),
        Invariant("O1", "first deliveries keep the publisher's order", "MQTT-4.6.0-5, -6"),
        Invariant("E1", "no message is delivered, or dropped, against its expiry", "MQTT-3.3.2-5"),
        Invariant("W1", "a will is published once, when due, or never", "MQTT-3.1.2-8, -10"),
        Invariant("R1", "the retained message served is the last one set", "MQTT-3.3.1-5"),
        Invariant("R2", "a subscription gets the retained messages it asks for", "MQTT-3.3.1-9"),
        Invariant("G1", "garbage collection takes what is dead, all of it, only it", "Holdfast"),
        Invariant("B1", "what external stores were told is what was stored for them", "Holdfast"),
        Invariant("C1", "what clients have acknowledged is in the history", "Holdfast"),
        Invariant("C2", "clients saw what the history says they were sent", "Holdfast"),
        Invariant("C3", "no client gets a QoS 2 message or a will twice", "MQTT-4.3.3, Holdfast"),
        Invariant("C4", "Session Present on the wire is as recorded", "MQTT-3.2.2-2, MQTT-3.2.2-3"),
        Invariant("C5", "clients get what its publisher has acknowledged", "MQTT-4.3.2, 4.3.3"),
    )
}


@dataclass(frozen=True)
class Outcome:
    """The result for one invariant in one batch.

    `checked` counts the cases that could be decided (good and bad), `unknown` the others and the
    `untested` spans. Witnesses are the first violations, ready for JSON.
    """

    invariant: str
    checked: int
    violated: int
    unknown: int
    witnesses: list[dict[str, object]] = field(default_factory=list)
    facts: dict[str, object] = field(default_factory=dict)
    untested: tuple[Span, ...] = ()
    suppressed: int = 0  # of `violated`: those that count no more, see audit.checks.suppressions

    def within(self, covered: Iterable[Span]) -> "Outcome":
        """Return the outcome with the spans in which the invariant could not be tested."""
        needs = INVARIANTS[self.invariant].needs
        untested = tuple(span for span in covered if not span.has(needs))
        return replace(self, unknown=self.unknown + len(untested), untested=untested)

    def plus(self, other: "Outcome", witnesses_max: int) -> "Outcome":
        """Return the outcome with the cases of another one for the same invariant."""
        assert other.invariant == self.invariant
        return replace(
            self,
            checked=self.checked + other.checked,
            violated=self.violated + other.violated,
            unknown=self.unknown + other.unknown,
            witnesses=[*self.witnesses, *other.witnesses][:witnesses_max],
            facts=self.facts | other.facts,
        )

    @property
    def status(self) -> Status:
        """Return the verdict for this invariant."""
        if self.violated > self.suppressed:
            return "violated"
        return "unknown" if self.unknown else "ok"


def overall(outcomes: list[Outcome]) -> Status:
    """Return the verdict for all invariants: the worst one."""
    statuses = {outcome.status for outcome in outcomes}
    if "violated" in statuses:
        return "violated"
    return "unknown" if "unknown" in statuses else "ok"
