"""Every wrong broker: importing this fills `MUTANTS`."""

from tests.conformance.wrong import (
    acknowledging,
    closing,
    connecting,
    delivering,
    processes,
    subscribing,
)
from tests.conformance.wrong.mutant import MUTANTS

__all__ = [
    "MUTANTS",
    "acknowledging",
    "closing",
    "connecting",
    "delivering",
    "processes",
    "subscribing",
]
