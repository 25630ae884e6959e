"""The verdict of the last audit, where somebody has it put beside the data.

`holdfast audit run --out DATA_DIR/holdfast-audit` writes it; this process never runs an audit. What
the file says is believed to be the operator's, and is shown as text. Must never write. Read next:
docs/audit.md.
"""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from broker.admin.records import Verdict

FOLDER: Final = "holdfast-audit"
NAME: Final = "verdict.json"
BYTES_MAX: Final = 8 << 20
INVARIANTS_MAX: Final = 100
STATUSES: Final = frozenset({"ok", "violated", "unknown"})


def newest(data_dir: str | Path) -> Verdict | None:
    """Return the verdict, None if there is none. One that cannot be read has the status unknown."""
    path = Path(data_dir) / FOLDER / NAME
    try:
        with open(path, "rb") as stream:
            found = os.fstat(stream.fileno())
            data = stream.read(BYTES_MAX + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as problem:
        return Verdict("unknown", "", [f"{path}: {problem.strerror}"])
    when = datetime.fromtimestamp(found.st_mtime, UTC).isoformat(timespec="seconds")
    try:
        document = json.loads(data)
        status = str(document["status"])
        lines = _lines(document["invariants"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Verdict("unknown", when, [f"{path}: not a verdict of this version"])
    if status not in STATUSES:
        return Verdict("unknown", when, [f"{path}: not a verdict of this version"])
    return Verdict(status, when, lines)  # type: ignore[arg-type]  # one of STATUSES


def _lines(invariants: dict[str, dict[str, Any]]) -> list[str]:
    """Return a line for each invariant that does not hold, or that could not be tested."""
    made = []
    for name, found in list(invariants.items())[:INVARIANTS_MAX]:
        if found["status"] == "violated":
            made.append(f"{name}, {found['title']}: violated {int(found['violated']):,} times")
        elif found["status"] == "unknown":
            made.append(f"{name}, {found['title']}: not known")
    held = sum(found["status"] == "ok" for found in invariants.values())
    return [*made, f"{held} of {len(invariants)} invariants hold"]
