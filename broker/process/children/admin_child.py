"""The process of the HTTP API, as a child of the broker: started, started again, ended.

The broker never waits for it and hears nothing of it but its end. It ends when its stdin does, so
also after a kill -9 of the broker. Read next: `broker.admin.server`, which is what it runs.
"""

import asyncio
import contextlib
import os
from collections.abc import Sequence
from typing import Final

from broker import own_process
from broker.backends.backoff import Backoff
from broker.observe.structured_log import Log

NICENESS: Final = 5  # above ours: clients come first
WAITS: Final = {"retry_first_ms": 1000, "retry_max_ms": 60_000}
WELL_S: Final = 60.0  # a process that has lived so long has started well
END_S: Final = 4.0  # to end by itself
ARGUMENTS: Final = ("admin", "serve", "--until-stdin-ends")


class AdminChild:
    """The child of one running broker."""

    def __init__(self, arguments: Sequence[str], log: Log) -> None:
        """`arguments` name the configuration, as those of `holdfast serve` do."""
        self._command: Final = [*own_process.command("broker"), *ARGUMENTS, *arguments]
        self._log: Final = log
        self._backoff: Final = Backoff(WAITS)
        self._child: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """The process id, 0 while there is none."""
        return 0 if self._child is None else self._child.pid

    def start(self) -> None:
        """Start the process, and again whenever it ends."""
        self._keeping = asyncio.get_running_loop().create_task(self._keep())

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            why = await self._run()
            if loop.time() - began > WELL_S:
                self._backoff.worked()
            wait_s = self._backoff.failed()
            self._log.warning(
                "admin_ended",
                f"the process of the HTTP API has ended: {why}; the broker goes on without it",
                again_in_seconds=round(wait_s, 1),
            )
            await asyncio.sleep(wait_s)

    async def _run(self) -> str:
        """Run the process to its end; return how it ended."""
        try:
            self._child = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                env=own_process.environment(),
                start_new_session=True,  # Ctrl-C on a terminal is for the broker
            )
        except OSError as problem:
            return f"it cannot be started: {problem.strerror}"
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            niceness = os.getpriority(os.PRIO_PROCESS, 0) + NICENESS
            os.setpriority(os.PRIO_PROCESS, self._child.pid, niceness)
        status = await self._child.wait()
        self._child = None
        return f"signal {-status}" if status < 0 else f"status {status}"

    async def close(self) -> None:
        """End the process; kill it if that takes long. Idempotent."""
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.wait({self._keeping})  # it ends a process that is just being started
        child = self._child
        if child is None:
            return
        assert child.stdin is not None
        child.stdin.close()
        try:
            async with asyncio.timeout(END_S):
                await child.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
        self._child = None
