"""The signals that end the process, between the loops of a node of a cluster."""

import asyncio
import signal
from typing import Final

ENDING: Final = (signal.SIGTERM, signal.SIGINT)


def give_back(loop: asyncio.AbstractEventLoop) -> None:
    """From now on these signals end the process at once; to call on the loop, before it ends.

    uvloop 0.23 keeps its handlers when it is closed: the signal would be lost, and systemd would
    wait until it kills the process.
    """
    for number in ENDING:
        loop.remove_signal_handler(number)
