"""Writes rows to Apache Cassandra.

The rows of a batch are written at once, each with its own time, then the cursor behind them. After
a crash a batch comes again, with the same times: that changes nothing, except by own statements on
counters and lists, which are carried out at least once. Own statements for one partition are run
one after the other. Read next: `broker.backends.cassandra_actions`.

The driver has threads of its own and may wait for a server that hangs. Every call of it here has a
deadline, and shutting it down is left to a thread that nobody waits for.
"""

import json
import ssl
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import cassandra
import cassandra.auth
import cassandra.cluster
import cassandra.connection
import cassandra.io.asyncioreactor
import cassandra.policies
import cassandra.pool
import cassandra.protocol
import cassandra.query

from broker.backends.cassandra_actions import (
    COLUMNS,
    CURSOR_TABLE,
    MSG,
    TTL,
    Advance,
    Bound,
    CassandraActions,
    Forget,
    Work,
    Write,
    stamp,
    typed,
)
from broker.backends.comparing.cassandra_listing import CassandraListing
from broker.backends.comparing.listing import Entry, Window
from broker.backends.inbox.cassandra_inbox import CassandraInbox
from broker.backends.inbox.questions import Page, Question
from broker.backends.message_ids import node_number
from broker.backends.rows import RowBatch
from broker.backends.sink import (
    Fence,
    FenceRefused,
    Options,
    Poison,
    Refusal,
    Refused,
    Unavailable,
    Unusable,
    place_of,
)

DEFAULT_PORT: Final = 9042
# Version 5 puts frames into segments, and driver 3.30.1 drops bytes where a read ends within the
# header of one: the connection fails with "CRC mismatch". Nothing here needs more than version 4.
PROTOCOL_VERSION: Final = 4
IN_FLIGHT_MAX: Final = 64  # statements that are not answered yet, unless `connections` says so
REFUSED_MAX: Final = 16  # batches with refusals that are kept; at most four are unanswered
WHY_CHARACTERS_MAX: Final = 300
CREATE_S: Final = 60.0  # for one table: all servers must agree
COPIES: Final = 3  # of a keyspace that is made, where there are as many servers
_READ_CURSOR: Final = (
    f"SELECT fence, written, refused, WRITETIME(fence) AS at FROM {CURSOR_TABLE} WHERE feed = ?"
)
_WRITE_CURSOR: Final = (
    f"INSERT INTO {CURSOR_TABLE} (feed, fence, written, refused) VALUES (?, ?, ?, ?)"
)
_DELETE_CURSOR: Final = f"DELETE FROM {CURSOR_TABLE} WHERE feed = ?"
# Which the server will never take; all others pass, or are for an operator to mend.
_FOR_GOOD: Final = (cassandra.InvalidRequest, cassandra.FunctionFailure)
_ERRORS: Final = (
    cassandra.DriverException,
    cassandra.cluster.NoHostAvailable,
    cassandra.connection.ConnectionBusy,
    cassandra.connection.ConnectionException,
    cassandra.connection.ProtocolError,
    cassandra.pool.NoConnectionsAvailable,
    cassandra.protocol.ErrorMessage,
    OSError,
)
# What the driver says of a value that a column does not take.
_BAD_VALUE: Final = (TypeError, ValueError, OverflowError, ArithmeticError, struct.error)


class _Cursor:
    """The row of a backend in the table of cursors."""

    __slots__ = ("at", "fence", "refused", "written")

    def __init__(self, fence: Fence | None, written: int, refused: list[str], at: int) -> None:
        self.fence: Final = fence
        self.written: Final = written  # the time of the last row
        self.refused: Final = refused
        self.at: Final = at  # the time of this


class CassandraSink:
    """The tables of one backend."""

    def __init__(self, options: Options) -> None:
        """Raises `Unusable` for options that cannot work."""
        self._options: Final = options
        self._values: Final = options.values
        self.feed: Final[str] = (options.values.get("table_prefix") or "") + options.name
        self._timeout_s: Final[float] = options.values.get("timeout_ms", 5000) / 1000
        self.in_flight_max: Final[int] = options.values.get("connections", IN_FLIGHT_MAX)
        self._cluster: Any = None
        self._session: Any = None
        self._prepared: dict[str, Any] = {}
        self._stamp = 0  # the time of what is written now
        self._has_literal_keys = False
        try:
            self.actions: Final = CassandraActions(options)
        except ValueError as problem:
            raise Unusable(f"backend {options.name}: expected {problem}") from None
        self._inbox: Final = CassandraInbox(self.actions, node_number(options.node))

    # The interface of a sink

    def open(self) -> Fence | None:
        """Connect, prepare every statement, and return the store's fence."""
        self.close()
        self._connect(self._values["keyspace"])
        for text in (_READ_CURSOR, _WRITE_CURSOR, _DELETE_CURSOR, *self.actions.texts()):
            self._prepare(text, is_ours=True)
        own = [self._prepare(text, is_ours=False) for text in self.actions.own]
        self._has_literal_keys = any(not each.routing_key_indexes for each in own)
        return self.look()

    def start(self, fence: Fence, *, is_rewind: bool) -> None:
        """Put the fence where a run begins."""
        have = self._read()
        self._move(have, fence, have.written, have.refused)

    def apply(self, batch: RowBatch, instance: str) -> list[Poison]:
        """Apply a batch, and then move the fence behind it."""
        have = self._read()
        upto = Fence(instance, batch.upto)
        theirs = have.fence.encode() if have.fence is not None else b""
        if theirs == upto.encode():
            return []  # an answer was lost: refusals are in the store
        if theirs != Fence(instance, batch.after).encode():
            raise FenceRefused
        poisons: list[Poison] = []
        jobs: list[_Job] = []
        written = have.written
        for index, row in enumerate(batch.rows):
            written = stamp(written, row)
            try:
                found = self.actions.work(row)
            except Exception as bug:  # shell boundary: one row must not stop all behind it
                poisons.append(Poison(index, 0, f"{type(bug).__name__}: {bug}"))
                continue
            jobs += [_Job(index, rule, each, written) for rule, each in found]
        poisons += _Application(self).run(jobs)
        refused = have.refused
        if poisons:
            refused = [*refused, _remembered(upto, batch, poisons)][-REFUSED_MAX:]
        self._move(have, upto, written, refused)
        return poisons

    def refusals(self, instance: str) -> list[Refusal]:
        """Return what the store has refused in the last batches that had such rows."""
        found: list[Refusal] = []
        for line in self._read().refused:
            theirs, upto, told = json.loads(line)
            if theirs == instance:
                for at, rule, why in told:
                    found.append(Refusal((upto[0], upto[1]), (at[0], at[1]), rule, why))
        return found

    def fetch(self, question: Question, fence: Fence) -> Page:
        """Return a page of what a session fetches."""
        have = self._read().fence
        if have is None or have.encode() != fence.encode():
            raise FenceRefused
        return self._inbox.fetch(self._ask_prepared, question)

    def _ask_prepared(self, text: str, values: Sequence[object]) -> list[Any]:
        sent = self.send(text, values)
        try:
            return list(sent.result())
        except _FOR_GOOD as problem:
            self.verify(text)
            raise Refused(_line(problem)) from None
        except _ERRORS as problem:
            raise self.unavailable(problem) from None

    def look(self) -> Fence | None:
        """Return the store's fence again."""
        return self._read().fence

    def health(self) -> dict[str, Any]:
        """Return whether the tables are there and take rows, and what should be changed."""
        have = self._read()
        local = self._ask("SELECT release_version, data_center FROM system.local")[0]
        probe = self.feed + ":check"
        self._stamp = _now_us()
        self.result(self.send(_WRITE_CURSOR, [probe, "", 0, []]))
        self._stamp = _now_us() + 1
        self.result(self.send(_DELETE_CURSOR, [probe]))
        return {
            "server": "Cassandra",
            "version": str(local.release_version),
            "role": f"datacenter {local.data_center}",
            "writable": True,
            "persistence": "commit log",
            "fence": None if have.fence is None else have.fence.encode().decode(),
            "problems": self._problems(),
        }

    def listing(self, window: Window) -> Iterator[Entry]:
        """Yield what the store has, for a comparison."""

        def read(text: str, values: Sequence[object], page_rows: int) -> Iterator[Any]:
            if text not in self._prepared:
                self._prepare(text, is_ours=True)
            statement = self._prepared[text].bind(values)
            statement.fetch_size = page_rows
            return self._rows(statement, self.send_bound(statement))

        yield from CassandraListing(read, self.actions.name_of, window).entries()

    def _rows(self, statement: Any, sent: Any) -> Iterator[Any]:
        """Yield the rows of an answer, one page after another.

        Each is asked for anew: where the driver goes on by itself, it waits without a deadline.
        """
        while True:
            try:
                page = sent.result()
            except _ERRORS as problem:
                raise self.unavailable(problem) from None
            following = page.paging_state
            yield from page.current_rows
            if following is None:
                return
            sent = self.send_bound(statement, following)

    def create(self) -> list[str]:
        """Make the keyspace and the tables that are missing, and return their names."""
        self.close()
        self._connect(None)
        keyspace = self._values["keyspace"]
        made: list[str] = []
        if not self._replication():
            local = self._ask("SELECT data_center FROM system.local")[0].data_center
            peers = [each.data_center for each in self._ask("SELECT data_center FROM system.peers")]
            copies = min(COPIES, 1 + peers.count(local))
            quoted = str(local).replace("'", "''")
            self._ask(
                f"CREATE KEYSPACE IF NOT EXISTS {_quoted(keyspace)} WITH replication = "
                f"{{'class': 'NetworkTopologyStrategy', '{quoted}': {copies}}}",
                CREATE_S,
            )
            made.append(f"keyspace {keyspace}")
        there = self._tables()
        for table in (CURSOR_TABLE, *self.actions.tables):
            name = self.actions.name_of(table)
            if name.strip('"') not in there:
                columns = COLUMNS[table]
                self._ask(
                    f"CREATE TABLE IF NOT EXISTS {_quoted(keyspace)}.{name} {columns}", CREATE_S
                )
                made.append(name.strip('"'))
        made += self._create_index()
        self.close()
        return made

    def _create_index(self) -> list[str]:
        """Make the index of messages by sender if it is wanted and missing; return its name."""
        name = self.actions.sender_index
        if name is None or name in self._indexes():
            return []
        table = f"{_quoted(self._values['keyspace'])}.{self.actions.name_of(MSG)}"
        self._ask(
            f"CREATE INDEX IF NOT EXISTS {_quoted(name)} ON {table} (sender) USING 'sai'", CREATE_S
        )
        return [f"index {name}"]

    def close(self) -> None:
        """Let go of all connections. Does not wait for a server that hangs."""
        cluster, self._cluster, self._session = self._cluster, None, None
        self._prepared = {}
        if cluster is not None:
            threading.Thread(target=cluster.shutdown, name="shutdown", daemon=True).start()

    # Statements

    def send(self, text: str, values: Sequence[object]) -> Any:
        """Send a prepared statement with its values; return what its answer will come in."""
        return self.send_bound(self._prepared[text].bind(values))

    def send_bound(self, statement: Any, page: bytes | None = None) -> Any:
        """Send a prepared statement that has its values; `page` is where its rows go on."""
        session = self._opened()
        try:
            return session.execute_async(statement, paging_state=page)
        except _ERRORS as problem:
            raise self.unavailable(problem) from None

    def result(self, sent: Any) -> list[Any]:
        """Return the rows of an answer. Raises `Unavailable`."""
        try:
            return list(sent.result())
        except _ERRORS as problem:
            raise self.unavailable(problem) from None

    def settle(self, sent: Any) -> str:
        """Wait for an answer; return "", or why the server will never take the statement."""
        try:
            sent.result()
        except _FOR_GOOD as problem:
            return _line(problem)
        except _ERRORS as problem:
            raise self.unavailable(problem) from None
        return ""

    def verify(self, text: str) -> None:
        """Raise `Unavailable` if a statement is refused whatever its values are."""
        self._prepare(text, is_ours=text not in self.actions.own)

    def set_stamp(self, at: int) -> None:
        """Say which time statements get that are sent from now on."""
        self._stamp = at

    def bind(self, own: Bound) -> tuple[Any, bytes]:
        """Return an own statement with its values, and the key of the partition that it is for.

        The key is b"" if it is unknown. Raises what the driver says of a bad value.
        """
        prepared = self._prepared[own.text]
        values = [
            typed(value, column.type.typename)
            for value, column in zip(own.values, prepared.column_metadata, strict=True)
        ]
        bound = prepared.bind(values)
        return bound, b"" if self._has_literal_keys else bound.routing_key or b""

    def _prepare(self, text: str, *, is_ours: bool) -> Any:
        session = self._opened()
        try:
            prepared = self._prepared[text] = session.prepare(text)
        except cassandra.RequestValidationException as problem:
            why = _line(problem)
            if is_ours and "does not exist" in why:
                raise self._missing(why) from None
            raise self.unavailable(f"{why}; it cannot run {text!r}") from None
        except _ERRORS as problem:
            raise self.unavailable(problem) from None
        if text.startswith("SELECT") and self._values.get("consistency") == "any":
            prepared.consistency_level = cassandra.ConsistencyLevel.ONE  # any is for writes alone
        return prepared

    def _ask(self, text: str, timeout_s: float = 0.0, *values: object) -> list[Any]:
        session = self._opened()
        try:
            asked = cassandra.query.SimpleStatement(
                text, consistency_level=cassandra.ConsistencyLevel.ONE
            )
            found = session.execute(asked, values or None, timeout=timeout_s or self._timeout_s)
            return list(found)
        except _ERRORS as problem:
            raise self.unavailable(problem) from None

    # The cursor

    def _read(self) -> _Cursor:
        found = self.result(self.send(_READ_CURSOR, [self.feed]))
        if not found:
            return _Cursor(None, 0, [], 0)
        (row,) = found
        fence = Fence.decode((row.fence or "").encode())
        return _Cursor(fence, row.written or 0, list(row.refused or ()), row.at or 0)

    def _move(self, have: _Cursor, fence: Fence, written: int, refused: list[str]) -> None:
        """Write the cursor. Its time is that of the clock, behind whatever deleted it."""
        self._stamp = max(have.at + 1, _now_us())
        self.result(
            self.send(_WRITE_CURSOR, [self.feed, fence.encode().decode(), written, refused])
        )

    # What there is

    def _tables(self) -> set[str]:
        found = self._ask(
            "SELECT table_name FROM system_schema.tables WHERE keyspace_name = %s",
            0.0,
            self._values["keyspace"],
        )
        return {str(each.table_name) for each in found}

    def _indexes(self) -> set[str]:
        found = self._ask(
            "SELECT index_name FROM system_schema.indexes WHERE keyspace_name = %s",
            0.0,
            self._values["keyspace"],
        )
        return {str(each.index_name) for each in found}

    def _replication(self) -> dict[str, str]:
        found = self._ask(
            "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = %s",
            0.0,
            self._values["keyspace"],
        )
        return dict(found[0].replication) if found else {}

    def _problems(self) -> list[str]:
        found: list[str] = []
        copies = [int(each) for each in self._replication().values() if each.isdecimal()]
        if copies and max(copies) < 2:
            keyspace = self._values["keyspace"]
            found.append(f"the keyspace {keyspace} has one copy: a server that is lost loses rows")
        if self._values.get("consistency") in ("any", "one", "local_one"):
            found.append(
                f"consistency is {self._values['consistency']}: rows that one server has confirmed "
                "are lost with it"
            )
        if MSG in self.actions.tables:
            found.append(
                "messages of a topic are one partition without a bound: keep it below about "
                "100 MB by `expires`, or delete old rows"
            )
        index = self.actions.sender_index
        if index is not None and index not in self._indexes():
            found.append(
                f"there is no index {index}: `holdfast backend create {self._options.name}` makes "
                "it, as sender_index = true says"
            )
        if self.actions.own:
            found.append("own statements on counters and lists may run twice after a crash")
        return found

    # Connecting

    def _opened(self) -> Any:
        if self._session is None:
            raise Unavailable("not connected")
        return self._session

    def _connect(self, keyspace: str | None) -> None:
        values = self._values
        consistency = values.get("consistency", "local_quorum").upper()
        profile = cassandra.cluster.ExecutionProfile(
            load_balancing_policy=cassandra.policies.DCAwareRoundRobinPolicy(
                local_dc=values.get("datacenter") or ""
            ),
            # The worker connects again, and looks where the store is.
            retry_policy=cassandra.policies.FallthroughRetryPolicy(),
            consistency_level=cassandra.ConsistencyLevel.name_to_value[consistency],
            request_timeout=self._timeout_s,
        )
        login = None
        if values.get("username") is not None:
            login = cassandra.auth.PlainTextAuthProvider(values["username"], self._password())
        try:
            self._cluster = cassandra.cluster.Cluster(
                [_place(each) for each in values["servers"]],
                execution_profiles={cassandra.cluster.EXEC_PROFILE_DEFAULT: profile},
                auth_provider=login,
                ssl_context=self._tls(),
                connection_class=self._connection_class(),
                protocol_version=PROTOCOL_VERSION,
                connect_timeout=self._timeout_s,
                control_connection_timeout=self._timeout_s,
                idle_heartbeat_interval=0,  # the worker looks at an idle store
                schema_metadata_enabled=False,
                token_metadata_enabled=False,
                prepare_on_all_hosts=False,
                reprepare_on_up=False,
                timestamp_generator=lambda: self._stamp,
            )
            self._session = self._cluster.connect()
            if keyspace is not None:
                self._session.set_keyspace(keyspace)
        except cassandra.InvalidRequest as problem:
            raise self._missing(_line(problem)) from None
        except _ERRORS as problem:
            raise self.unavailable(_line(problem) + self._certificate_hint(problem)) from None

    def _connection_class(self) -> Any:
        """Return what runs connections.

        libev, the driver's own choice, may abort the process when a server dies (it is started
        again then); asyncio does not, but takes no TLS.
        """
        if self._values.get("tls"):
            return cassandra.cluster.DefaultConnection
        return cassandra.io.asyncioreactor.AsyncioConnection

    def _tls(self) -> ssl.SSLContext | None:
        values = self._values
        if not values.get("tls"):
            return None
        key, path = "tls_ca", values.get("tls_ca")
        try:
            context = ssl.create_default_context(cafile=path)
            if not values.get("tls_verify", True):
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
            certificate, its_key = values.get("tls_certificate"), values.get("tls_key")
            if certificate:
                key, path = "tls_certificate", certificate
                path += f" with tls_key {its_key}" if its_key else ""
                # Without a password given, an encrypted key would make OpenSSL ask the terminal.
                context.load_cert_chain(certificate, its_key, password="")
        except OSError as problem:
            raise Unavailable(f"{key} {path}: {problem}") from None
        return context

    def _certificate_hint(self, problem: BaseException) -> str:
        """Return what may be amiss where the server has ended TLS; it does not say why."""
        found = getattr(problem, "errors", None) or {"": problem}
        ended = [
            each
            for each in found.values()
            if isinstance(each, ssl.SSLEOFError)
            or (isinstance(each, ssl.SSLError) and "ALERT" in (each.reason or ""))
        ]
        if not ended:
            return ""
        ours = self._values.get("tls_certificate")
        if not ours:
            return ": it may ask for a certificate, and there is no tls_certificate"
        return f": it may not take tls_certificate {ours}"

    def _password(self) -> str:
        """Return the password; a file is read again at each connect, so that it can be changed."""
        path = self._values.get("password_file")
        if path is None:
            return str(self._values.get("password") or "")
        try:
            with open(path, encoding="utf-8") as file:
                return file.readline().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as problem:
            raise Unavailable(f"password_file {path}: {problem}") from None

    def _missing(self, why: str) -> Unavailable:
        how = f"`holdfast backend create {self._options.name}` makes what is missing"
        return self.unavailable(f"{why}: {how}")

    def unavailable(self, problem: object) -> Unavailable:
        """Close, and return the error to raise."""
        self.close()
        return Unavailable(f"{', '.join(self._values['servers'])}: {_line(problem)}")


class _Job:
    """One thing to do for one rule and one row, and its time."""

    __slots__ = ("at", "row", "rule", "work")

    def __init__(self, row: int, rule: int, work: Work, at: int) -> None:
        self.row: Final = row
        self.rule: Final = rule
        self.work: Final = work
        self.at: Final = at


class _Sent:
    """A statement that was sent."""

    __slots__ = ("future", "job", "key", "text", "write")

    def __init__(
        self, job: _Job, text: str, future: Any, write: Write | None, key: bytes | None
    ) -> None:
        self.job: Final = job
        self.text: Final = text
        self.future: Final = future
        self.write: Final = write
        self.key: Final = key  # of the partition of an own statement


class _Application:
    """Applies what is to be done for one batch."""

    def __init__(self, sink: CassandraSink) -> None:
        self._sink: Final = sink
        self._sent: deque[_Sent] = deque()
        self._last: Final[dict[bytes, _Sent]] = {}  # of own statements, by partition
        self._settled: Final[set[_Sent]] = set()
        self._verified: Final[set[str]] = set()
        self._poisons: Final[list[Poison]] = []

    def run(self, jobs: Sequence[_Job]) -> list[Poison]:
        """Do it all; return what was refused. Raises `Unavailable`."""
        newest = self._read_positions(jobs)
        for job in jobs:
            if isinstance(job.work, Bound):
                self._send_own(job, job.work)
                continue
            write = self._resolved(job.work, newest)
            if write is not None:
                self._send(job, write)
        while self._sent:
            self._settle(self._sent[0])
        return self._poisons

    def _resolved(self, work: Work, newest: dict[tuple[str, str], str]) -> Write | None:
        """Return the statement of something, None if nothing is to be done."""
        if isinstance(work, Advance):
            if newest.get(work.key, "").encode() >= work.message_id.encode():
                return None
            newest[work.key] = work.message_id
            return self._sink.actions.advance(work)
        if isinstance(work, Forget):
            newest.pop(work.key, None)
            return self._sink.actions.forget(work)
        assert isinstance(work, Write)
        return work

    def _read_positions(self, jobs: Iterable[_Job]) -> dict[tuple[str, str], str]:
        """Return the message that each position names which is to be moved."""
        wanted = {job.work.key for job in jobs if isinstance(job.work, Advance)}
        newest: dict[tuple[str, str], str] = {}
        text = self._sink.actions.read_acked()
        asked: deque[tuple[tuple[str, str], Any]] = deque()

        def take() -> None:
            key, sent = asked.popleft()
            try:
                rows = list(sent.result())
            except _FOR_GOOD:
                return  # a key that the server does not take is refused when it is written
            except _ERRORS as problem:
                raise self._sink.unavailable(problem) from None
            newest[key] = rows[0].msgid or "" if rows else ""

        for key in wanted:
            if len(asked) >= self._sink.in_flight_max:
                take()
            asked.append((key, self._sink.send(text, list(key))))
        while asked:
            take()
        return newest

    def _send(self, job: _Job, write: Write) -> None:
        self._make_room()
        self._sink.set_stamp(job.at)
        text, values = write.text, write.values
        if write.ttl_s:
            text, values = text + TTL, [*values, write.ttl_s]
        self._sent.append(_Sent(job, text, self._sink.send(text, values), write, None))

    def _send_own(self, job: _Job, bound: Bound) -> None:
        try:
            statement, key = self._sink.bind(bound)
        except _BAD_VALUE as problem:
            self._refuse(job, _line(problem))
            return
        before = self._last.get(key)
        if before is not None and before not in self._settled:
            self._settle(before)
        self._make_room()
        self._sink.set_stamp(job.at)
        sent = _Sent(job, bound.text, self._sink.send_bound(statement), None, key)
        self._sent.append(sent)
        self._last[key] = sent

    def _make_room(self) -> None:
        while len(self._sent) >= self._sink.in_flight_max:
            self._settle(self._sent[0])

    def _settle(self, sent: _Sent) -> None:
        """Wait for an answer."""
        self._sent.remove(sent)
        self._settled.add(sent)
        why = self._sink.settle(sent.future)
        if why and sent.write is not None and sent.write.ttl_s:
            # It would expire later than the server can say: then it stays.
            self._sink.set_stamp(sent.job.at)
            why = self._sink.settle(self._sink.send(sent.write.text, sent.write.values))
        if not why:
            return
        if sent.text not in self._verified:
            self._sink.verify(sent.text)
            self._verified.add(sent.text)
        self._refuse(sent.job, why)

    def _refuse(self, job: _Job, why: str) -> None:
        self._poisons.append(Poison(job.row, job.rule, why[:WHY_CHARACTERS_MAX]))


def _remembered(upto: Fence, batch: RowBatch, poisons: Iterable[Poison]) -> str:
    """Return the refusals of a batch as they are kept in the store."""
    told = [
        [place_of(batch.rows[each.row], batch), each.rule, each.why[:WHY_CHARACTERS_MAX]]
        for each in poisons
    ]
    return json.dumps([upto.instance, upto.cursor, told])


def _place(server: str) -> tuple[str, int]:
    host, colon, port = server.rpartition(":")
    if not colon or host.endswith(":") or not port.isdecimal():
        return server.strip("[]"), DEFAULT_PORT
    return host.strip("[]"), int(port)


def _quoted(name: str) -> str:
    return f'"{name}"'


def _now_us() -> int:
    return time.time_ns() // 1000


def _line(problem: object) -> str:
    if isinstance(problem, cassandra.cluster.NoHostAvailable) and problem.errors:
        return "; ".join(dict.fromkeys(map(_line, problem.errors.values())))
    message = getattr(problem, "message", None)
    return " ".join(str(message or problem).split()) or type(problem).__name__
