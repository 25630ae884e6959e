"""What a restart of a running broker costs and what is against it, in sentences.

Judges the facts that the broker tells; asks nobody. Read next: `broker.process.desks.restart`,
which tells them, `broker.cli.administration.restart`.
"""

from collections.abc import Iterator
from typing import Any


def sentences(facts: dict[str, Any]) -> Iterator[str]:
    """Yield what a restart costs, a line each."""
    clean, durable = facts["clean_sessions_connected"], facts["durable_sessions_connected"]
    if facts["connected"]:
        yield f"{facts['connected']} clients are connected, and have to connect again"
        yield f"{durable} of them have durable sessions, which lose nothing"
        yield (
            f"{clean} have clean sessions: these end with their connections, with what was not "
            "delivered"
        )
    else:
        yield "no client is connected"
    if facts["durability"] == "fsync":
        yield "all that was acknowledged is on the disk"
    else:
        yield (
            f"durability = {facts['durability']}: an orderly restart loses nothing, "
            "a crash of the machine the last moments"
        )
    yield (
        f"the last start took {facts['last_recovery_seconds']:g} s; "
        f"{facts['sessions_stored']} sessions are stored now"
    )


def objections(facts: dict[str, Any]) -> Iterator[str]:
    """Yield what is against a restart just now."""
    if facts["configuration"]:
        yield f"it would not start: {facts['configuration']}"
    if facts["phase"] != "ready":
        yield f"the broker is {facts['phase']}"
    if facts["writes_refused"]:
        yield (
            f"the store takes no writes ({facts['writes_refused']}): make room first, a start "
            "needs some"
        )
    elif facts["disk_is_low"]:
        yield "the disk is below storage.low_water: make room first, a start needs some"
    for name in facts["backends_down"]:
        yield f"backend {name} is down and required: the broker would not be ready"
