"""The page of starts and audits: how the broker began and ended. Pure.

Read next: `broker.admin.sources.telling`, `broker.admin.sources.verdicts`.
"""

from typing import Any, Final

from broker.admin.records import Starts, Verdict

VERDICTS: Final = {
    "ok": ("good", "all invariants hold"),
    "violated": ("bad", "an invariant is violated"),
    "unknown": ("warn", "not known"),
}


def context(starts: Starts | None, verdict: Verdict | None) -> dict[str, Any]:
    """Return what the page shows; without `starts` the history is being read."""
    boots = [] if starts is None else starts.starts
    kind, word = VERDICTS["unknown"] if verdict is None else VERDICTS[verdict.status]
    return {
        "boots": boots,
        "boots_notes": [] if starts is None else starts.notes,
        "boots_empty": "The history is being read: load this page again."
        if starts is None
        else "The history tells of no start.",
        "audit": verdict,
        "audit_kind": kind,
        "audit_word": word,
    }
