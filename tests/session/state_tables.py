"""The state machines of the engine as tables of docs/design.md.

`python -m tests.session.state_tables` updates the document.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from session.live.connection_states import EVENTS, STATES, TRANSITIONS
from session.state.in_flight import AWAITING_PUBCOMP, AWAITING_PUBREC, FREE
from session.state.qos2_phases import (
    AWAITING_PUBREL,
    PHASES,
    RECEIVER,
    RECEIVER_EVENTS,
    SENDER,
    SENDER_EVENTS,
)

DESIGN: Final = Path(__file__).resolve().parents[2] / "docs" / "design.md"


def table(corner: str, columns: list[str], rows: Mapping[str, list[str]]) -> str:
    """Return a Markdown table with a row per event."""
    lines = [f"| {corner} | {' | '.join(columns)} |", f"| --- |{' --- |' * len(columns)}"]
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rows.items()]
    return "\n".join(lines) + "\n"


def connection_states() -> str:
    """Return the states of a connection, a column per state."""
    rows = {}
    for event in EVENTS:
        found = [TRANSITIONS.get((state, event)) for state in STATES]
        rows[event] = ["" if state is None else STATES[state] for state in found]
    return table("event", list(STATES.values()), rows)


def phases(
    transitions: Mapping[tuple[int, str], tuple[int, str]],
    columns: tuple[int, ...],
    events: tuple[str, ...],
) -> str:
    """Return the phases of an exchange, a column per phase: the next phase and what is sent."""
    rows = {}
    for event in events:
        found = [transitions.get((phase, event)) for phase in columns]
        rows[event] = ["" if to is None else f"{PHASES[to[0]]}; {to[1]}" for to in found]
    return table("event", [PHASES[phase] for phase in columns], rows)


TABLES: Final = {
    "connection states": connection_states(),
    "QoS 2 sender": phases(SENDER, (FREE, AWAITING_PUBREC, AWAITING_PUBCOMP), SENDER_EVENTS),
    "QoS 2 receiver": phases(RECEIVER, (FREE, AWAITING_PUBREL), RECEIVER_EVENTS),
}


def with_tables(document: str) -> str:
    """Return the document with each table written between its two marks."""
    for name, text in TABLES.items():
        head, mark, rest = document.partition(f"<!-- {name} -->\n")
        _, end, tail = rest.partition("<!-- end -->\n")
        assert mark and end, f"no place for {name!r}"
        document = f"{head}{mark}{text}{end}{tail}"
    return document


if __name__ == "__main__":
    DESIGN.write_text(with_tables(DESIGN.read_text()))
