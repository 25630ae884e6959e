"""Which streams have messages in common: only those must be counted together.

Read next: `broker.operations.sessions.behind`.
"""

from collections.abc import Sequence
from typing import Final

from mqtt.topics import overlap
from storage.log.message_log import Stream

# Filters with wildcards times all filters of a session, up to which they are compared: 20 ms.
COMPARED_MAX: Final = 10_000


def apart(streams: Sequence[Stream]) -> list[list[Stream]]:
    """Return the streams in groups, so that no message is in two groups.

    Very many streams with wildcards are one group.
    """
    wild = [each for each in streams if "+" in each.topic_filter or "#" in each.topic_filter]
    if len(wild) * len(streams) > COMPARED_MAX:
        return [list(streams)]
    groups = [[each] for each in streams]
    for one in wild:
        joined: list[Stream] = []
        others: list[list[Stream]] = []
        for group in groups:
            if any(overlap(one.topic_filter, each.topic_filter) for each in group):
                joined += group
            else:
                others.append(group)
        groups = [joined, *others]
    return groups
