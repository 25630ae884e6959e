"""What a check found and what a repair lost, as text and as JSON."""

import json
from collections.abc import Iterator
from typing import Final

SHOWN_MAX: Final = 20  # lines of one kind for a person
NAMED_MAX: Final = 10_000  # clients that are named at all; all are counted


class Findings:
    """What is damaged, and whom it concerns."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {}  # read, by family
        self.problems: list[str] = []  # of files, of stretches of keys, of single rows
        self.problem_count = 0
        self.lost_messages: list[tuple[int, int, int]] = []  # generation, first offset, last
        self.sessions: dict[str, list[str]] = {}  # client id -> what is wrong with its session
        self.session_count = 0
        self.unreadable: dict[str, int] = {}  # client id -> messages that it can no longer get

    @property
    def is_whole(self) -> bool:
        """Return whether nothing is damaged."""
        return not self.problem_count

    def problem(self, text: str) -> None:
        """Note a damage."""
        self.problem_count += 1
        if len(self.problems) < NAMED_MAX:
            self.problems.append(text)

    def session(self, client_id: str, text: str, unreadable: int = 0) -> None:
        """Note what is wrong with a session, and how many messages it cannot get."""
        found = self.sessions.get(client_id)
        if found is None:
            self.session_count += 1
            if len(self.sessions) >= NAMED_MAX:
                return
            found = self.sessions[client_id] = []
        if text not in found:
            found.append(text)
        if unreadable:
            self.unreadable[client_id] = self.unreadable.get(client_id, 0) + unreadable

    def lost_count(self) -> int:
        """Return how many messages cannot be read, as far as it is known."""
        return sum(last - first + 1 for _, first, last in self.lost_messages)

    def as_object(self) -> dict[str, object]:
        """Return the findings for JSON."""
        return {
            "whole": self.is_whole,
            "rows": self.rows,
            "problems": self.problems,
            "problem_count": self.problem_count,
            "lost_messages": [
                {"generation": number, "first": first, "last": last}
                for number, first, last in self.lost_messages
            ],
            "sessions_affected": self.session_count,
            "sessions": [
                {
                    "client_id": client_id,
                    "problems": problems,
                    "unreadable_messages": self.unreadable.get(client_id, 0),
                }
                for client_id, problems in sorted(self.sessions.items())
            ],
        }

    def lines(self) -> Iterator[str]:
        """Yield what is damaged, for a person."""
        yield from _shown(self.problems, self.problem_count)
        if self.lost_messages:
            yield f"messages that cannot be read: {self.lost_count()}"
            yield from _shown(
                [
                    f"offset {first} to {last}, generation {number}"
                    for number, first, last in self.lost_messages
                ],
                len(self.lost_messages),
            )
        if self.session_count:
            yield f"sessions concerned: {self.session_count}"
            yield from _shown(
                [
                    f"{client_id!r}: {'; '.join(problems)}"
                    for client_id, problems in sorted(self.sessions.items())
                ],
                self.session_count,
            )


def as_json(value: dict[str, object]) -> str:
    """Return one line of JSON."""
    return json.dumps(value, ensure_ascii=True)


def _shown(lines: list[str], count: int) -> Iterator[str]:
    for line in lines[:SHOWN_MAX]:
        yield f"  {line}"
    if count > SHOWN_MAX:
        yield f"  and {count - SHOWN_MAX} more (--json has them)"
