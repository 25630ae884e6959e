"""Every wrong broker: importing this fills `MUTANTS`."""

from tests.conformance.wrong import (
    acknowledging,
    authenticating,
    closing,
    connecting,
    delivering,
    processes,
    subscribing,
    tolerating,
)
from tests.conformance.wrong.mutant import MUTANTS

__all__ = [
    "MUTANTS",
    "acknowledging",
    "authenticating",
    "closing",
    "connecting",
    "delivering",
    "processes",
    "subscribing",
    "tolerating",
]
