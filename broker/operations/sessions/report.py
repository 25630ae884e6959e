"""Sessions on disk as text: a table, one page, CSV or JSON. `broker.cli.sessions` prints it."""

from collections.abc import Iterable, Iterator
from typing import Final

from broker.operations.sessions import columns
from broker.operations.sessions.columns import moment
from broker.operations.sessions.inventory import Inventory, SessionReport
from broker.operations.sessions.ranking import Totals
from storage.history.words import printable

COLUMNS: Final = (
    "CLIENT_ID", "STATE", "SINCE", "EXPIRES", "SUBSCRIPTIONS", "IN_FLIGHT", "WAITING", "BYTES",
    "OLDEST",
)  # fmt: skip
NUMBERS: Final = ("SUBSCRIPTIONS", "IN_FLIGHT", "WAITING", "BYTES")
CSV_COLUMNS: Final = (
    "client_id", "identity", "state", "protocol_version", "created_at", "connected_at",
    "disconnected_at", "expires_at", "session_expiry_interval", "position", "in_flight",
    "incoming_qos2", "waiting", "bytes", "oldest_at", "subscriptions",
)  # fmt: skip


def as_table(
    inventory: Inventory, reports: Iterable[SessionReport], *, with_bytes: bool = False
) -> Iterator[str]:
    """Yield a table's lines; without `with_bytes` it has no column for them."""
    header = [name for name in COLUMNS if with_bytes or name != "BYTES"]
    rows = (_cells(inventory, report) for report in reports)
    picked = ([row[name] for name in header] for row in rows)
    return columns.table(header, picked, right=NUMBERS)


def as_page(inventory: Inventory, report: SessionReport) -> Iterator[str]:
    """Yield everything about one session, a line each."""
    for name, value in fields(inventory, report).items():
        if name != "subscriptions":
            yield f"{name:<24} {'-' if value is None else printable(str(value))}"
    yield f"subscriptions            {len(report.session.subscriptions)}"
    for subscription in report.session.subscriptions.values():
        group = "  (owed to its group)" if subscription.share_name is not None else ""
        yield f"  {printable(subscription.topic_filter)}  qos={subscription.qos}{group}"


def as_json(inventory: Inventory, reports: Iterable[SessionReport]) -> Iterator[str]:
    """Yield the lines of a JSON array of sessions; null is "not" or "never"."""
    return columns.json_lines(fields(inventory, report) for report in reports)


def as_csv(inventory: Inventory, reports: Iterable[SessionReport]) -> Iterator[str]:
    """Yield lines of CSV: the fields of JSON, of the subscriptions their number."""
    rows = (
        fields(inventory, report) | {"subscriptions": len(report.session.subscriptions)}
        for report in reports
    )
    return columns.csv_lines(CSV_COLUMNS, rows)


def totals_line(shown: Totals, every: Totals, *, with_bytes: bool) -> str:
    """Return the last line of `session top`: what is shown, of how much there is.

    Without `with_bytes` the bytes of all sessions were not counted, but for those shown.
    """
    sizes = f"{shown.size_bytes:,} of {every.size_bytes:,}"
    return (
        f"{shown.sessions:,} of {every.sessions:,} sessions with a backlog: "
        f"{shown.messages:,} of {every.messages:,} messages, "
        f"{sizes if with_bytes else f'{shown.size_bytes:,}'} bytes"
    )


def fields(inventory: Inventory, report: SessionReport) -> dict[str, object]:
    """Return everything about a session under the names of JSON."""
    session = report.session
    return {
        "client_id": session.client_id,
        "identity": session.identity,
        "state": "online" if report.is_connected else "offline",
        "protocol_version": session.protocol_version,
        "created_at": moment(inventory, session.created_at_ms),
        "connected_at": moment(inventory, session.connected_at_ms),
        "disconnected_at": moment(inventory, session.disconnected_at_ms),
        "expires_at": moment(inventory, report.expires_ms),
        "session_expiry_interval": session.expiry_interval_s,
        "position": session.position,
        "in_flight": len(session.in_flight),
        "incoming_qos2": report.incoming,
        "waiting": report.backlog.waiting,
        "bytes": report.backlog.size_bytes,
        "oldest_at": moment(inventory, report.backlog.oldest_ms),
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


def _cells(inventory: Inventory, report: SessionReport) -> dict[str, str]:
    session, backlog = report.session, report.backlog
    expires = moment(inventory, report.expires_ms) or ("-" if report.is_connected else "never")
    return {
        "CLIENT_ID": session.client_id,
        "STATE": "online" if report.is_connected else "offline",
        "SINCE": moment(inventory, report.since_ms) or "-",
        "EXPIRES": expires,
        "SUBSCRIPTIONS": str(len(session.subscriptions)),
        "IN_FLIGHT": str(len(session.in_flight)),
        "WAITING": str(backlog.waiting),
        "BYTES": "-" if backlog.size_bytes is None else str(backlog.size_bytes),
        "OLDEST": moment(inventory, backlog.oldest_ms) or "-",
    }
