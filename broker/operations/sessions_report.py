"""Sessions on disk as text: a table, one page, or JSON. `broker.cli.sessions` prints it."""

import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Final

from broker.history.text import printable
from broker.operations.inventory import WAITING_COUNT_MAX, Inventory, SessionReport

COLUMNS: Final = (
    "CLIENT_ID", "STATE", "SINCE", "EXPIRES", "SUBSCRIPTIONS", "IN_FLIGHT", "WAITING",
)  # fmt: skip


def as_table(inventory: Inventory, reports: Iterable[SessionReport]) -> Iterator[str]:
    """Yield a table's lines; columns are as wide as their widest cell."""
    rows = [COLUMNS, *(_cells(inventory, report) for report in reports)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def as_page(inventory: Inventory, report: SessionReport) -> Iterator[str]:
    """Yield everything about one session, a line each."""
    for name, value in _fields(inventory, report).items():
        if name != "subscriptions":
            yield f"{name:<24} {'-' if value is None else printable(str(value))}"
    yield f"subscriptions            {len(report.session.subscriptions)}"
    for subscription in report.session.subscriptions.values():
        yield f"  {printable(subscription.topic_filter)}  qos={subscription.qos}"


def as_json(inventory: Inventory, reports: Iterable[SessionReport]) -> str:
    """Return a JSON array of sessions; times are ISO 8601 in UTC, null is "not" or "never"."""
    return json.dumps([_fields(inventory, report) for report in reports], indent=2)


def _cells(inventory: Inventory, report: SessionReport) -> tuple[str, ...]:
    session = report.session
    since = session.connected_at_ms if report.is_connected else session.disconnected_at_ms
    expires = _time(inventory, report.expires_ms) or ("-" if report.is_connected else "never")
    more = "+" if report.waiting >= WAITING_COUNT_MAX else ""
    return (
        printable(session.client_id),
        "online" if report.is_connected else "offline",
        _time(inventory, since) or "-",
        expires,
        str(len(session.subscriptions)),
        str(len(session.in_flight)),
        f"{report.waiting}{more}",
    )


def _fields(inventory: Inventory, report: SessionReport) -> dict[str, object]:
    session = report.session
    return {
        "client_id": session.client_id,
        "identity": session.identity,
        "state": "online" if report.is_connected else "offline",
        "protocol_version": session.protocol_version,
        "created_at": _time(inventory, session.created_at_ms),
        "connected_at": _time(inventory, session.connected_at_ms),
        "disconnected_at": _time(inventory, session.disconnected_at_ms),
        "expires_at": _time(inventory, report.expires_ms),
        "session_expiry_interval": session.expiry_interval_s,
        "position": session.position,
        "in_flight": len(session.in_flight),
        "incoming_qos2": report.incoming,
        "waiting": report.waiting,
        "waiting_is_at_least": report.waiting >= WAITING_COUNT_MAX,
        "subscriptions": [
            {
                "topic_filter": subscription.topic_filter,
                "qos": subscription.qos,
                "no_local": subscription.no_local,
                "retain_as_published": subscription.retain_as_published,
                "identifier": subscription.identifier or None,
            }
            for subscription in session.subscriptions.values()
        ],
    }


def _time(inventory: Inventory, broker_ms: int) -> str | None:
    if not broker_ms:
        return None
    moment = datetime.fromtimestamp(inventory.wall_ms(broker_ms) / 1000, UTC)
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
