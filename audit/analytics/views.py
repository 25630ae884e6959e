"""SQL views of the tables of results: all batches together, times as times.

The same views for DuckDB and for Spark; docs/audit.md has their columns. A table that a run does
not write (its level of detail has no rows for it) has no view.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

Dialect = Literal["duckdb", "spark"]


@dataclass(frozen=True)
class View:
    """A view: the table it is made of, what a row is, and its columns (name, type, expression).

    In an expression, `{json:NAME}` is a field of a witness, `{time:COLUMN}` a time of microseconds.
    With `newest`, only the row of the newest batch is taken for each of these columns.
    """

    table: str
    row: str
    columns: tuple[tuple[str, str, str], ...]
    newest: tuple[str, ...] = ()
    grouped: bool = False  # sums over the columns that are no sums


def _same(*columns: tuple[str, str]) -> tuple[tuple[str, str, str], ...]:
    return tuple(
        (name, kind, f"cast({name} AS INT)" if kind == "int" else name) for name, kind in columns
    )


_WHO: Final = _same(("tenant", "string"), ("client_id", "string"))
_BUCKET: Final = (
    ("from_ms", "double", "power(2.0, bucket / 2.0)"),
    ("to_ms", "double", "power(2.0, (bucket + 1) / 2.0)"),
)
_NUMBER: Final = ("number", "long", "cast(sum({count}) AS BIGINT)")
_MINUTE: Final = ("minute", "time", "{time:minute}")

VIEWS: Final[dict[str, View]] = {
    "audit_violations": View(
        "violations",
        "a witness of a violation, as its run found it",
        (
            ("batch", "long", "cast(batch AS BIGINT)"),
            ("invariant", "string", "invariant"),
            ("what", "string", "{json:what}"),
            ("node", "string", "{json:node}"),
            ("client_id", "string", "{json:client_id}"),
            ("session", "long", "try_cast({json:session} AS BIGINT)"),
            ("msg", "long", "try_cast({json:msg} AS BIGINT)"),
            ("suppressed", "string", "{json:suppressed}"),
            ("witness", "string", "witness"),
        ),
    ),
    "audit_deliveries": View(
        "deliveries",
        "a message owed or sent to a session, or to a shared subscription; as last known",
        _same(
            ("node", "string"), ("session", "long"), ("share", "string"), ("msg", "long"),
            ("owed", "boolean"), ("qos", "int"), ("attempts", "int"), ("outcome", "string"),
            ("reason", "int"), ("enqueued_ts", "time"), ("delivered_ts", "time"),
            ("acked_ts", "time"), ("completed_ts", "time"), ("gone_ts", "time"),
        ),
        newest=("node", "session", "share", "msg"),
    ),
    "audit_sessions": View(
        "sessions",
        "a session, as last known",
        _same(
            ("node", "string"), ("session", "long"), ("client_id", "string"), ("tenant", "string"),
            ("state", "string"), ("created_at", "time"), ("last_at", "time"), ("ended_at", "time"),
            ("connects", "long"), ("takeovers", "long"), ("expiry_s", "long"), ("subs", "long"),
            ("inflight", "long"),
        ),
        newest=("node", "session"),
    ),
    "audit_books": View(
        "books_minute",
        "a minute, a tenant, a stage: by the broker's own books, and by the events",
        (
            _MINUTE, *_same(("tenant", "string"), ("stage", "string"), ("source", "string")),
            _NUMBER, ("bytes", "long", "cast(sum(total_bytes) AS BIGINT)"),
        ),
        grouped=True,
    ),
    "audit_clients": View(
        "clients",
        "a client, and what it did",
        (
            *_WHO,
            *(
                (name, "long", f"cast(sum({name}) AS BIGINT)")
                for name in ("connects", "takeovers", "lost", "messages", "deliveries")
            ),
            ("bytes", "long", "cast(sum(total_bytes) AS BIGINT)"),
        ),
        grouped=True,
    ),
    "audit_connections": View(
        "moves",
        "a minute and a tenant: connections begun, ended, and of these lost",
        (
            _MINUTE, ("tenant", "string", "tenant"),
            *(
                (name, "long", f"cast(sum({name}) AS BIGINT)")
                for name in ("connects", "ends", "lost")
            ),
        ),
        grouped=True,
    ),
    "audit_latency": View(
        "latency",
        "a client and a half octave of time from stored to acknowledged",
        (*_WHO, *_BUCKET, _NUMBER),
        grouped=True,
    ),
    "audit_durations": View(
        "durations",
        "a kind of duration (offline, age), a tenant, and a half octave",
        (*_same(("kind", "string"), ("tenant", "string")), *_BUCKET, _NUMBER),
        grouped=True,
    ),
    "audit_fates": View(
        "fates",
        "a minute, and what became of the deliveries stored in it",
        (_MINUTE, ("fate", "string", "fate"), _NUMBER),
        grouped=True,
    ),
    "audit_drops": View(
        "drops",
        "a tenant and a reason, as the history numbers it",
        (*_same(("tenant", "string"), ("reason", "int")), _NUMBER),
        grouped=True,
    ),
    "audit_findings": View(
        "findings",
        "something unusual that no invariant forbids",
        (
            ("kind", "string", "kind"), ("at", "time", "{time:at_us}"),
            *_same(("tenant", "string"), ("subject", "string"), ("reason", "string"),
                   ("score", "double")),
        ),
    ),
}  # fmt: skip

# What is no batch of its own: one folder for all of them.
_TOGETHER: Final = ("findings",)


def sql(out: str, dialect: Dialect) -> str:
    """Return a statement for each view whose table is there; of a remote place, for all."""
    return "".join(
        f"-- {view.row}\n{statement(name, out, dialect)}\n"
        for name, view in VIEWS.items()
        if "://" in out or Path(out, "tables", view.table).is_dir()
    )


def statement(name: str, out: str, dialect: Dialect) -> str:
    """Return the statement that makes one view."""
    view = VIEWS[name]
    columns = ", ".join(f"{_filled(what, dialect)} AS {column}" for column, _, what in view.columns)
    rows = _source(view, out, dialect)
    if view.newest:
        keys = ", ".join(view.newest)
        order = f"row_number() OVER (PARTITION BY {keys} ORDER BY cast(batch AS BIGINT) DESC)"
        rows = f"(SELECT *, {order} AS newest FROM {rows}) AS every WHERE newest = 1"
    groups = ""
    if view.grouped:
        plain = [what for _, _, what in view.columns if "sum(" not in what]
        groups = f" GROUP BY {', '.join(_filled(what, dialect) for what in plain)}"
    kind = "TEMPORARY VIEW" if dialect == "spark" else "VIEW"
    return f"CREATE OR REPLACE {kind} {name} AS SELECT {columns} FROM {rows}{groups};"


def _filled(what: str, dialect: Dialect) -> str:
    for mark, duck, spark in (
        ("{json:", "json_extract_string(witness, '$.{0}')", "get_json_object(witness, '$.{0}')"),
        ("{time:", "make_timestamptz({0})", "timestamp_micros({0})"),
    ):
        begin = what.find(mark)
        if begin >= 0:
            end = what.index("}", begin)
            call = duck if dialect == "duckdb" else spark
            name = what[begin + len(mark) : end]
            return what[:begin] + call.replace("{0}", name) + what[end + 1 :]
    quote = '"' if dialect == "duckdb" else "`"
    return what.replace("{count}", f"{quote}count{quote}")


def _source(view: View, out: str, dialect: Dialect) -> str:
    place = f"{out.rstrip('/')}/tables/{view.table}"
    if dialect == "spark":
        return f"parquet.`{place.replace('`', '``')}`"
    files = "*.parquet" if view.table in _TOGETHER else "*/*.parquet"
    quoted = f"{place}/{files}".replace("'", "''")
    return f"read_parquet('{quoted}', hive_partitioning = true, union_by_name = true)"


def documented(views: Sequence[str] = tuple(VIEWS)) -> list[str]:
    """Return the lines of the table in the documentation."""
    lines = ["| view | a row is | columns |", "| --- | --- | --- |"]
    for name in views:
        view = VIEWS[name]
        columns = ", ".join(f"`{column}` {kind}" for column, kind, _ in view.columns)
        lines.append(f"| `{name}` | {view.row} | {columns} |")
    return lines
