"""The broker's end of the process that writes to one store.

Frames go to it over its stdin, answers come back as lines of JSON; nothing else is shared. All of
it happens on the loop's thread, and nothing here waits. The process is started with the broker's
own sources, ends when its stdin does, so also after a kill -9 of the broker, and takes no signal
that is meant for us. Read next: `broker.backends.pump.pump`, which says what is sent.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Callable
from typing import Any, Final, TypeAlias, cast

from broker import own_process

MODULE: Final = "broker.backends.process"
SAID_CHARACTERS_MAX: Final = 300  # of what is told of a process that died
# Bytes that wait for the process. It has a batch to work on while the next one waits here.
WAITING_BYTES_MAX: Final = 1 << 20
NICENESS: Final = 5  # above ours: what it does, also while it starts, is less urgent than clients

Answer: TypeAlias = dict[str, Any]


class LinkFailed(Exception):
    """The process cannot be started; one line for the log."""


class BackendLink(asyncio.SubprocessProtocol):
    """A process that writes to a store."""

    def __init__(self, answered: Callable[[Answer], None], ended: Callable[[str], None]) -> None:
        """`answered` gets every answer; `ended` is called once, with what the process said last.

        Neither is called after `kill`.
        """
        self._answered: Callable[[Answer], None] = answered
        self._ended: Callable[[str], None] = ended
        self._transport: asyncio.SubprocessTransport | None = None
        self._pieces: list[bytes] = []  # of a line that has not ended
        self._said: str = ""  # the last line that is no answer
        self._is_full: bool = False
        self._is_killed: bool = False
        self._gone: Final = asyncio.Event()

    async def open(self) -> None:
        """Start the process. Raises `LinkFailed`."""
        try:
            await asyncio.get_running_loop().subprocess_exec(
                lambda: self,
                *own_process.command(MODULE),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=own_process.environment(),
                start_new_session=True,  # Ctrl-C on a terminal is for the broker
            )
        except OSError as problem:
            raise LinkFailed(f"cannot start a process: {problem}") from None

    @property
    def pid(self) -> int:
        """The process id, 0 before it runs."""
        return 0 if self._transport is None else self._transport.get_pid() or 0

    def has_room(self) -> bool:
        """Return whether a frame may be sent: the process takes what it was given."""
        return self._transport is not None and not self._is_full

    def send(self, frame: bytes) -> None:
        """Hand over a frame; it is dropped when the process has ended, and `ended` says so."""
        pipe = self._stdin()
        if not pipe.is_closing():
            pipe.write(frame)

    def _stdin(self) -> asyncio.WriteTransport:
        assert self._transport is not None
        return cast(asyncio.WriteTransport, self._transport.get_pipe_transport(0))

    def kill(self) -> None:
        """End the process at once; nothing more is heard of it. Idempotent."""
        self._is_killed = True
        if self._transport is not None:
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                self._transport.kill()

    async def wait_gone(self) -> None:
        """Return once the process has ended and all that it said was taken."""
        await self._gone.wait()

    # What the loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the running process."""
        self._transport = cast(asyncio.SubprocessTransport, transport)  # uvloop's are no subclass
        if self.pid:
            niceness = os.getpriority(os.PRIO_PROCESS, 0) + NICENESS
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself
                os.setpriority(os.PRIO_PROCESS, self.pid, niceness)
        self._stdin().set_write_buffer_limits(WAITING_BYTES_MAX)
        if self._is_killed:
            self.kill()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Take what the process says: lines, in pieces."""
        *ends, rest = data.split(b"\n")
        for end in ends:
            self._pieces.append(end)
            line = b"".join(self._pieces)
            self._pieces.clear()
            self._take(line)
        if rest:
            self._pieces.append(rest)

    def _take(self, line: bytes) -> None:
        if self._is_killed:
            return
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            answer = None
        if isinstance(answer, dict):
            self._answered(answer)
        elif said := line.decode(errors="replace").strip():  # a traceback, or a library
            self._said = said[:SAID_CHARACTERS_MAX]

    def pause_writing(self) -> None:
        """Note that the process does not take what it was given."""
        self._is_full = True

    def resume_writing(self) -> None:
        """Note that it does again."""
        self._is_full = False

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell that the process has ended, and what it said last."""
        assert self._transport is not None
        self._transport.close()
        self._gone.set()
        if self._is_killed:
            return
        self._is_killed = True
        status = self._transport.get_returncode() or 0
        how = f"signal {-status}" if status < 0 else f"status {status}"
        self._ended(f"the process has ended with {how}" + (f": {self._said}" if self._said else ""))
