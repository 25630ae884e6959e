"""Judge the packed rows of some sessions: the outcome of their messages, and suspicions."""

from audit.checks.message_outcomes import Pairs, outcomes
from audit.checks.packed_rows import PACKED, Clock, Longs, Rows, Suspicions
from audit.checks.sending_checks import sendings


def trace(
    columns: dict[str, Longs], clock: Clock
) -> tuple[dict[str, Longs] | None, dict[str, Longs]]:
    """Return (deliveries, suspicions) of sessions whose rows must all be given, in any order.

    Deliveries are None if no row is about a message. Suspicions become findings only after they
    were compared with the gaps of the history.
    """
    assert set(columns) == set(PACKED)
    rows = Rows(columns)
    suspicions = Suspicions(rows)
    if not rows.size:
        return None, suspicions.columns()
    pairs = Pairs(rows)
    deliveries = outcomes(rows, pairs, clock, suspicions) if pairs.size else None
    sendings(rows, pairs, clock, suspicions)
    return deliveries, suspicions.columns()
