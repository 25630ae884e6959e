"""Run checks and collect their results.

Ordinary checks share one broker per version and run in a pool of threads. `alone` checks run one
after the other on a second broker (against a bare address: after all others). Checks with `needs`
get brokers from the adapter, a few at a time. A check that was not run must never be reported as
passed, and every process and thread started here must be ended.
"""

import contextlib
import dataclasses
import importlib
import os
import pkgutil
import queue
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeVar

from conformance import packets
from conformance.adapters.base import Adapter, AdapterError, Broker, Options
from conformance.brokers import Brokers
from conformance.check import PATIENCE_S, REGISTRY, SHAREABLE, Bench, Check
from conformance.client import Client
from conformance.failure import Failure, NotRun, Violation
from conformance.record import Ledger, Record
from conformance.results import Outcome, Result
from conformance.selection import Test
from conformance.sent import Splitter
from conformance.statements import VERSION_NAMES, Statement, load
from conformance.transport import TCP, Transport

THREADS: Final = 12  # ordinary checks mostly wait for the broker
NEEDS_THREADS: Final = 4  # each may have a broker process of its own
CRASHES_MAX: Final = 10  # after that many a broker is not started again
_FOLDERS: Final = {4: "conformance.v311", 5: "conformance.v50"}
# CONNACK codes of 3.1.1 and 5.0 for clients that are not let in.
_REFUSALS: Final = {
    0x04: "bad user name or password",
    0x05: "not authorized",
    0x86: "bad user name or password",
    0x87: "not authorized",
    0x8A: "banned",
    0x8C: "bad authentication method",
}
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


T = TypeVar("T")


class Progress(Protocol):
    """What is told of the progress of a run; called from one thread at a time."""

    def begin(self, total: int) -> None:
        """Note that `total` checks will run."""

    def done(self, result: Result) -> None:
        """Note one more result."""

    def say(self, text: str) -> None:
        """Report an event of the run itself."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What to run. Without `adapter` the broker is at `host` and `port`, reached by `transport`."""

    versions: tuple[int, ...]
    select: Test
    strict: bool = False
    adapter: Adapter | None = None
    host: str = ""
    port: int = 0
    transport: Transport = TCP
    patience: float = PATIENCE_S
    threads: int = THREADS


def discover(versions: Sequence[int]) -> list[str]:
    """Import every module of checks of these versions; return the errors."""
    problems = []
    for version in versions:
        package = importlib.import_module(_FOLDERS[version])
        for module in sorted(pkgutil.iter_modules(package.__path__), key=lambda m: m.name):
            name = f"{package.__name__}.{module.name}"
            try:
                importlib.import_module(name)
            except (ImportError, SyntaxError, ValueError, TypeError, NameError) as problem:
                problems.append(f"{name} cannot be imported: {type(problem).__name__}: {problem}")
    return problems


def run(plan: Plan, progress: Progress) -> list[Result]:
    """Run the plan and return one result per statement, in the order of the specification.

    Call `discover` first. Raises `AdapterError` if there is no broker to talk to.
    """
    with contextlib.ExitStack() as stack:
        return _Session(plan, progress, stack).run()


class _Session:
    """One run; everything it opens is on `stack`."""

    def __init__(self, plan: Plan, progress: Progress, stack: contextlib.ExitStack) -> None:
        self._plan = plan
        self._progress = progress
        self._ledger = Ledger()
        self._lock = threading.Lock()
        self._results: dict[tuple[int, str], Result] = {}
        self._suspects: list[Check] = []  # ran on a broker that died; repeated one by one
        self._stop = threading.Event()
        self._token = _base36(int.from_bytes(os.urandom(4), "big"), 4)
        self._brokers: Brokers | None = None
        if plan.adapter is not None:
            directory = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="conformance-", ignore_cleanup_errors=True)
            )
            self._brokers = Brokers(plan.adapter, Path(directory))
            stack.callback(self._brokers.close)
        self._crashes = 0
        self._last_exit = ""
        self._shared: dict[int, Broker] = {}

    def run(self) -> list[Result]:
        statements = [s for version in self._plan.versions for s in load(version)]
        statements = [s for s in statements if self._plan.select(searchable(s))]
        wanted = [REGISTRY[s.key] for s in statements if s.key in REGISTRY]
        checks = self._sift(wanted)
        self._progress.begin(len(checks))
        for version in sorted({check.version for check in checks}):
            self._shared[version] = self._new_shared()
        checks = self._probe(checks)
        try:
            self._run_all(checks)
        except BaseException:
            self._stop.set()
            raise
        self._repeat_suspects()
        return self._collect(statements)

    def _sift(self, checks: list[Check]) -> list[Check]:
        """Return the checks that can run here; give the others a result with the reason."""
        kept = []
        for check in checks:
            if check.strict_only and not self._plan.strict:
                self._not_run(check, "only in the strict profile")
            elif check.needs and self._brokers is None:
                self._not_run(check, f"needs a broker adapter ({', '.join(sorted(check.needs))})")
            elif self._brokers is not None:
                kept.append(dataclasses.replace(check, needs=check.needs | check.wants))
            else:
                kept.append(check)
        return kept

    def _not_run(self, check: Check, why: str) -> None:
        self._results[check.key] = Result(
            _statement(check), "not run", check.sentence, why, check=_where(check)
        )

    # Brokers.

    def _new_shared(self) -> Broker:
        if self._brokers is not None:
            return self._brokers.own({})
        plan = self._plan
        return Broker("broker", plan.host, plan.port, transport=plan.transport)

    def _probe(self, checks: list[Check]) -> list[Check]:
        """Fail all checks of a version, without running them, if a plain CONNECT gets no answer.

        A broker that does not let us in has failed nothing: raises `AdapterError`.
        """
        for version, broker in self._shared.items():
            try:
                problem = self._problem(version, broker)
            except OSError as refused:
                raise AdapterError(
                    f"{broker.host}:{broker.port}: no connection: {refused.strerror or refused}"
                ) from None
            if problem:
                self._progress.say(f"MQTT {VERSION_NAMES[version]}: {problem}")
                for check in [c for c in checks if c.version == version]:
                    self._finish(check, Result(_statement(check), "fail", check.sentence, problem))
                checks = [c for c in checks if c.version != version]
        return checks

    def _problem(self, version: int, broker: Broker) -> str:
        client = None
        try:
            broker.open(self._plan.patience).close()
            client = Client(
                lambda: broker.open(self._plan.patience),
                name="probe",
                client_id=f"{self._token}probe",
                version=version,
                patience=self._plan.patience,
                strict=False,
                record=Record(Ledger(), version=version, check="probe"),
            )
            client.connect()
            client.disconnect()
        except Failure as failure:
            if client is not None and self._plan.adapter is None:
                self._raise_if_refused(broker, client)
            shown = f" ({failure.packet.hex(' ')})" if failure.packet else ""
            return f"a plain CONNECT gets no CONNACK with code 0: {failure.message}{shown}"
        finally:
            if client is not None:
                client.drop()
        return ""

    def _raise_if_refused(self, broker: Broker, client: Client) -> None:
        """Raise `AdapterError` if the broker wants to know who we are."""
        why = ""
        if client.connack is not None and client.connack.code in _REFUSALS:
            why = f"{_REFUSALS[client.connack.code]} (CONNACK 0x{client.connack.code:02X})"
            why += "; see --username and --password"
        elif client.connection.alert:
            why = f"TLS: {client.connection.alert}; see --cert"
        if why:
            raise AdapterError(f"{broker.host}:{broker.port}: refused: {why}")

    # Running.

    def _run_all(self, checks: list[Check]) -> None:
        checks = sorted(checks, key=lambda c: -c.seconds)  # stable: else as in the text
        ordinary = [c for c in checks if not c.alone and not c.needs]
        alone = [c for c in checks if c.alone and not c.needs]
        needy = [c for c in checks if c.needs]
        workers = _Workers(self._stop)
        workers.add(NEEDS_THREADS, needy, self._run_needy)
        workers.add(self._plan.threads, ordinary, self._run_ordinary)
        if self._brokers is not None:
            for version in self._plan.versions:
                group = [c for c in alone if c.version == version]
                workers.add(1, [group] if group else [], self._run_alone_group)
        workers.finish()
        if self._brokers is None:
            for check in alone:
                self._run_one(check, self._shared[check.version])

    def _run_ordinary(self, check: Check) -> None:
        broker = self._shared[check.version]
        starts = broker.starts
        result = self._run_with_brokers(check, broker)
        if result.is_bad and self._has_died(broker, starts):
            with self._lock:
                self._suspects.append(check)
            return
        self._finish(check, result)

    def _has_died(self, broker: Broker, starts: int) -> bool:
        """Return whether the broker died since `starts`; start it again if nobody else has."""
        with self._lock:
            if broker.starts != starts or not broker.has_died():
                return broker.starts != starts
            if self._stop.is_set():
                return False  # it was ended because the run ends
            self._crashes += 1
            self._last_exit = f"exit code {broker.exit_code}"
            self._progress.say(f"{broker.name} ended ({self._last_exit}); starting it again")
            if self._crashes > CRASHES_MAX:
                raise AdapterError(f"{broker.name} has ended {self._crashes} times: giving up")
            broker.start()
            return True

    def _repeat_suspects(self) -> None:
        """Run the checks again that were running when a broker died, to find the cause."""
        for check in sorted(self._suspects, key=lambda c: c.key):
            self._run_one(check, self._shared[check.version])

    def _run_one(self, check: Check, broker: Broker) -> None:
        """Run a check while no other check uses the broker."""
        starts = broker.starts
        result = self._run_with_brokers(check, broker)
        if self._has_died(broker, starts):
            how = f"the broker ended during this check ({self._last_exit})"
            reason = f"{how}; {result.reason}" if result.reason else how
            result = dataclasses.replace(result, outcome="fail", reason=reason)
        self._finish(check, result)

    def _run_alone_group(self, checks: list[Check]) -> None:
        assert self._brokers is not None
        broker = self._brokers.own({})
        for check in checks:
            if self._stop.is_set():
                return
            self._run_one(check, broker)
        self._brokers.end(broker)

    def _run_needy(self, check: Check) -> None:
        self._finish(check, self._run_with_brokers(check, None))

    def _run_with_brokers(self, check: Check, shared: Broker | None) -> Result:
        """Run a check and take back the brokers it used."""
        if self._brokers is None:
            return self._attempt(check, shared, None)
        with _Lender(self._brokers, check) as lender:
            return self._attempt(check, shared, lender.start)

    def _attempt(
        self,
        check: Check,
        shared: Broker | None,
        start: Callable[[Options], Broker] | None,
    ) -> Result:
        """Run one check and return its result, whatever it raises."""
        record = Record(self._ledger, version=check.version, check=check.statement)
        bench = Bench(
            check,
            record,
            unique=self._unique(check),
            shared=shared,
            start=start,
            strict=self._plan.strict,
            patience=self._plan.patience,
        )
        began = time.monotonic()
        outcome: Outcome = "pass"
        reason, packet, was_sent, expected = "", None, False, ""
        try:
            check.run(bench)
        except Failure as failure:
            outcome, reason = "fail", failure.message
            packet, was_sent, expected = failure.packet, failure.was_sent, failure.expected
        except NotRun as why:
            outcome, reason = "not run", str(why)
        except AdapterError as problem:
            outcome, reason = "error", str(problem)
        except Exception:
            outcome, reason = "error", traceback.format_exc(limit=-4)
        finally:
            record.freeze()
            bench.close()
        return Result(
            _statement(check),
            outcome,
            check.sentence,
            reason,
            packet,
            was_sent,
            _decoded(packet, check.version, was_sent=was_sent),
            expected,
            tuple(record.notes),
            tuple(record.lines),
            time.monotonic() - began,
            _where(check),
        )

    def _unique(self, check: Check) -> str:
        """Return a prefix of 8 characters, unique for this check and run."""
        number = [s.id for s in load(check.version)].index(check.statement)
        return f"{self._token}{check.version}{_base36(number, 3)}"

    def _finish(self, check: Check, result: Result) -> None:
        with self._lock:
            self._results[check.key] = result
            if not self._stop.is_set():
                self._progress.done(result)

    # Results.

    def _collect(self, statements: list[Statement]) -> list[Result]:
        known = {s.key: s for version in self._plan.versions for s in load(version)}
        results = {s.key: self._results.get(s.key) or _without_check(s) for s in statements}
        for booking in self._ledger.bookings():
            key = booking.version, booking.statement
            if key not in known:
                continue
            result = results.get(key) or _without_check(known[key])
            if not result.is_bad:
                results[key] = dataclasses.replace(
                    result,
                    outcome="fail",
                    reason=f"{booking.message} (seen while {booking.check} was checked)",
                    packet=booking.packet,
                    was_sent=False,
                    decoded=_decoded(booking.packet, booking.version),
                    expected=booking.expected,
                    lines=booking.lines,
                )
        return [results[key] for key in known if key in results]


class _Lender:
    """Lends brokers to one check and takes them back."""

    def __init__(self, brokers: Brokers, check: Check) -> None:
        self._brokers = brokers
        self._shares = bool(check.needs) and check.needs <= SHAREABLE and not check.alone
        self._lent: list[Broker] = []
        self._has_slot = False

    def __enter__(self) -> "_Lender":
        return self

    def start(self, options: Options) -> Broker:
        """Return a running broker with these options."""
        if not self._has_slot:
            self._brokers.slots.acquire()
            self._has_slot = True
        lend = self._brokers.shared if self._shares else self._brokers.own
        self._lent.append(lend(options))
        return self._lent[-1]

    def __exit__(self, *_: object) -> None:
        for broker in self._lent:
            (self._brokers.give_back if self._shares else self._brokers.end)(broker)
        if self._has_slot:
            self._brokers.slots.release()


class _Workers:
    """Groups of threads that work through lists of jobs; a bug in one thread ends all."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._threads: list[threading.Thread] = []
        self._problems: queue.SimpleQueue[BaseException] = queue.SimpleQueue()

    def add(self, count: int, jobs: Sequence[T], work: Callable[[T], None]) -> None:
        """Work through `jobs` in order with up to `count` threads."""
        waiting = iter(jobs)
        lock = threading.Lock()

        def loop() -> None:
            while not self._stop.is_set():
                with lock:
                    job = next(waiting, None)
                if job is None:
                    return
                try:
                    work(job)
                except BaseException as problem:
                    self._problems.put(problem)
                    self._stop.set()

        for _ in range(min(count, len(jobs))):
            thread = threading.Thread(target=loop, daemon=True)
            thread.start()
            self._threads.append(thread)

    def finish(self) -> None:
        """Return when all jobs are done; raise the first error."""
        for thread in self._threads:
            while thread.is_alive():
                thread.join(0.2)  # with a timeout, so that Ctrl-C works
        if not self._problems.empty():
            raise self._problems.get()


def _statement(check: Check) -> Statement:
    return next(s for s in load(check.version) if s.id == check.statement)


def _without_check(statement: Statement) -> Result:
    if statement.testable == "no":
        why = (
            "binds the client" if statement.binds == "client" else "cannot be provoked from outside"
        )
        return Result(statement, "not testable", statement.sentence, why)
    return Result(statement, "not run", statement.sentence, "no check has been written for it")


def _where(check: Check) -> str:
    return f"{check.module}.{check.name}"


def searchable(statement: Statement) -> str:
    """Return the text of a statement that `-k` is matched with."""
    check = REGISTRY.get(statement.key)
    return statement.id + (f" {check.module} {' '.join(sorted(check.needs))}" if check else "")


def _decoded(packet: bytes | None, version: int, *, was_sent: bool = False) -> str:
    if not packet:
        return ""
    if was_sent:
        return next((sent.describe() for sent in Splitter(version).feed(packet)), "not a packet")
    try:
        return packets.describe(packets.parse(packet, version))
    except Violation as violation:
        return f"not well formed: {violation.message}"


def _base36(number: int, width: int) -> str:
    digits = ""
    for _ in range(width):
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits
