"""Asks the running broker by its control socket, a few questions at a time, in threads.

Remembers since when the broker gives no answer. Must never wait on the loop's thread. Read next:
`broker.operations.control_socket`, `broker.admin.asking`.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from broker.admin.sources.lanes import Busy
from broker.operations.control_socket import FOR, Request, Unanswered, ask

THREADS: Final = 4  # of the 16 that the broker serves at a time
WAITING_MAX: Final = 32
QUESTION_S: Final = 10.0  # for an answer
CHANGE_S: Final = 60.0  # for one that is durable


class BrokerQuestions:
    """The way to one running broker."""

    def __init__(self, data_dir: str | Path, now_text: Callable[[], str]) -> None:
        self._data_dir: Final = data_dir
        self._now_text: Final = now_text
        self._threads: Final = ThreadPoolExecutor(THREADS, thread_name_prefix="ask")
        self._lock: Final = threading.Lock()  # of the number
        self._waiting = 0
        self.silent_since: str | None = None  # None = it has answered the last question
        self.silent_why: str = ""

    async def ask(self, request: Request, name: str = "") -> Request:
        """Return the broker's answer; `name` is the user on whose behalf something is changed.

        Raises `ControlError` and `Busy`.
        """
        with self._lock:
            if self._waiting >= WAITING_MAX:
                raise Busy("too many questions to the broker wait already")
            self._waiting += 1
        if name:
            request = {**request, FOR: name}
        # A question that was asked counts until it is answered, also if nobody waits any more.
        answer_s = CHANGE_S if name else QUESTION_S
        done = self._threads.submit(ask, self._data_dir, request, answer_s=answer_s)
        done.add_done_callback(self._count_down)
        try:
            answer = await asyncio.wrap_future(done)
        except Unanswered as problem:
            self.silent_since = self.silent_since or self._now_text()
            self.silent_why = str(problem)
            raise
        self.silent_since = None
        return answer

    def _count_down(self, done: Future[Request]) -> None:
        with self._lock:
            self._waiting -= 1

    def close(self) -> None:
        """Forget what waits; what was asked is answered to nobody."""
        self._threads.shutdown(wait=False, cancel_futures=True)
