"""What a server has refused, as it remembers it: a list of the last batches with such rows.

Nobody may have heard the answer to such a batch. An entry is the cursor behind the batch, the
places of all its commands, and the answer: numbers of commands in turn with reasons, behind a
number that means nothing here. The broker has at most four batches unanswered. Pure.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Final

from broker.backends.rows import Cursor
from broker.backends.sink import Fence, Refusal

REFUSED_KEY: Final = "holdfast:refused:"
KEPT_MAX: Final = 16


def encode(fence: Fence, places: Sequence[str], refused: Sequence[tuple[int, str]]) -> str:
    """Return an entry of the list, for (number of the command, reason) of each that was refused."""
    answer: list[int | str] = [0]
    for number, why in refused:
        answer += (number, why)
    return json.dumps([fence.encode().decode(), " ".join(places), answer])


def decode(kept: object, instance: str) -> Iterator[Refusal]:
    """Yield the refusals of a list that are of a database, each once.

    A batch that was applied again may be in it twice.
    """
    seen: set[tuple[Cursor, int]] = set()
    for value in kept if isinstance(kept, list) else ():
        fence_text, places, answer = json.loads(value)
        fence = Fence.decode(fence_text.encode())
        if fence is None or fence.instance != instance:
            continue
        each = places.split(" ")
        for at in range(1, len(answer), 2):
            number = int(answer[at])
            position, seq, rule = map(int, each[number].split(","))
            if (fence.cursor, number) not in seen:
                seen.add((fence.cursor, number))
                yield Refusal(fence.cursor, (position, seq), rule, str(answer[at + 1]))
