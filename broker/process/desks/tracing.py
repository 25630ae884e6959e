"""Traces of a running broker: begin, read, list and end them over the control socket.

A reader asks again and again for what is new; it gets a limited number of lines each time, and is
told how many there was no room for. Each trace is logged with the user who asked. While a client is
traced, the history records all of its rows (`session.history.trace_events`). Read next:
`broker.operations.tracing.traces`, `broker.cli.watching.trace`.
"""

import json
from collections.abc import Callable
from typing import Final

from broker.loop.driver import Driver
from broker.observe.structured_log import Log
from broker.operations.control_socket import BY, Absent, ControlError, Request
from broker.operations.tracing.taps import Taps
from broker.operations.tracing.traces import CLIENT, FOR_MS_MAX, Trace, TraceError, Traces
from session.engine import Engine
from storage.errors import DamagedRows, Recoverable

ADD: Final = "trace_add"
READ: Final = "trace_read"
LIST: Final = "trace_list"
REMOVE: Final = "trace_remove"
REQUESTS: Final = frozenset({ADD, READ, LIST, REMOVE})

ANSWER_BYTES: Final = 256 << 10  # of lines in one answer; the last one may exceed it
LOOK_S: Final = 1.0  # between two looks at traces that are over
SHOWN_CHARACTERS_MAX: Final = 200


class TraceDesk:
    """Answers requests about traces."""

    def __init__(self, engine: Engine, driver: Driver, log: Log) -> None:
        self._engine: Final = engine
        self._driver: Final = driver
        self._log: Final = log
        self.traces: Final = Traces()
        self.taps: Final = Taps(self.traces, driver)
        self._is_looking = False
        self._recorded: Final[set[int]] = set()  # numbers of traces that the history knows

    def answer(self, request: Request) -> Request:
        """Answer a request of `REQUESTS`. Raises `ControlError`."""
        works: dict[str, Callable[[Request], Request]] = {
            ADD: self._add,
            READ: self._read,
            LIST: self._list,
            REMOVE: self._remove,
        }
        return works[request["do"]](request)

    def _add(self, request: Request) -> Request:
        try:
            trace = self.traces.add(
                request.get("kind", ""),
                request.get("value", ""),
                request[BY],
                now_ms=self._now_ms(),
                for_ms=_number(request, "for_ms", FOR_MS_MAX),
                payload_bytes=_number(request, "payload_bytes", 1 << 20),
            )
        except TraceError as problem:
            raise ControlError(str(problem)) from None
        self._log.info(
            "trace_begun",
            "an operator watches",
            trace=trace.number,
            kind=trace.kind,
            value=trace.value[:SHOWN_CHARACTERS_MAX],
            by=trace.by,
        )
        self._settle()
        if not self._is_looking:
            self._look()
        why_not = self._record(trace) if trace.kind == CLIENT else ""
        return {"trace": str(trace.number), "not_recorded": why_not}

    def _record(self, trace: Trace) -> str:
        """Let the history record all rows of a client; return why it does not, "" = it does."""
        found = ["the broker is shutting down"]

        def begin() -> None:
            try:
                administration = self._engine.administer(self._driver.now)
                until_ms = self._driver.now + trace.until_ms - self._now_ms()
                raises = administration.trace(trace.value, until_ms, trace.by)
            except (DamagedRows, Recoverable) as problem:
                found[0] = str(problem)
                return
            self._recorded.add(trace.number)
            found[0] = "" if raises else "history.detail leaves out single messages on purpose"

        self._driver.run(begin)
        return found[0]

    def _read(self, request: Request) -> Request:
        """Tell the lines that are new, how many were left out, and why it is over, if it is."""
        trace = self._find(request)
        trace.read_ms = self._now_ms()
        lines, left_out = trace.take(ANSWER_BYTES)
        over = "" if trace.waiting else trace.over
        if over:
            self.traces.forget(trace)
        return {"lines": lines, "left_out": str(left_out), "over": over}

    def _list(self, request: Request) -> Request:
        now_ms = self._now_ms()
        rows = [
            {
                "trace": trace.number,
                "kind": trace.kind,
                "value": trace.value,
                "by": trace.by,
                "seconds_left": max(0, trace.until_ms - now_ms) // 1000,
                "lines_waiting": trace.waiting,
            }
            for trace in self.traces
        ]
        return {"traces": json.dumps(rows)}

    def _remove(self, request: Request) -> Request:
        trace = self._find(request)
        self.traces.end(trace, f"{request[BY]} has stopped it")
        self._forget(trace, by_operator=True)
        self._settle()
        return {"trace": str(trace.number)}

    def _find(self, request: Request) -> Trace:
        text = request.get("trace", "")
        trace = self.traces.find(int(text)) if text.isdecimal() and len(text) < 19 else None
        if trace is None:
            raise Absent(f"no trace {text[:40]!r} is on: `holdfast trace list` lists them")
        return trace

    def _forget(self, trace: Trace, *, by_operator: bool = False) -> None:
        """Let the history record no more of a traced client than of the others."""
        if trace.number not in self._recorded:
            return
        self._recorded.remove(trace.number)

        def end() -> None:
            try:
                administration = self._engine.administer(self._driver.now)
            except Recoverable:
                return  # the broker ends, and has ended what was traced
            administration.untrace(trace.value, trace.over, by_operator=by_operator)

        self._driver.run(end)

    def _settle(self) -> None:
        """Let the streams and the engine tell what the traces want, or nothing."""
        self.taps.settle()
        self._engine.watch_losses(self._lost if self.traces else None)

    def _lost(self, client_id: str, topic: str, why: str, count: int) -> None:
        self.taps.lost(client_id, topic, why.replace("_", " "), count)

    def _look(self) -> None:
        """End traces whose time is over; look again as long as there are some."""
        before = list(self.traces)
        self.traces.look(self._now_ms())
        for trace in before:
            if trace.over:
                self._log.info("trace_ended", trace.over, trace=trace.number, kind=trace.kind)
                self._forget(trace)
        if any(trace.over for trace in before):
            self._settle()
        self._is_looking = bool(self.traces)
        if self._is_looking:
            self._driver.loop.call_later(LOOK_S, self._look)

    def _now_ms(self) -> int:
        """Return a time that never jumps: that of the loop."""
        return int(self._driver.loop.time() * 1000)


def _number(request: Request, name: str, most: int) -> int:
    text = request.get(name, "0")
    if not text.isdecimal() or len(text) > 18 or int(text) > most:
        raise ControlError(f"{name} = {text[:40]!r}: expected a number up to {most}")
    return int(text)
