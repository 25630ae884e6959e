"""The control socket: a Unix socket in the data directory for commands to a running broker.

One request per connection, one line of JSON each way. Only the owner of the data directory (mode
0700) can open the socket (mode 0600); a port on loopback would be open to every user of the machine
and to web pages in a browser. Must never touch the engine from its own thread: requests are
answered on the loop's thread. A request says who asks: the kernel tells which user that is, or the
process of the HTTP API says for whom; nobody else can open the socket. Read next:
`broker.operations.checkpoint`, `broker.process.desks.clients`.
"""

import contextlib
import functools
import json
import os
import pwd
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Final, TypeAlias

NAME: Final = "control"
LINE_BYTES_MAX: Final = 16 << 10  # what most pages and requests are made for
REQUEST_BYTES_MAX: Final = 512 << 10  # a client identifier of 65,535 bytes, each escaped
ANSWER_BYTES_MAX: Final = 2 << 20  # a line of a page may have several of them
CREDENTIALS: Final = struct.Struct("3i")  # process, user, group
BY: Final = "by"  # the user who asks, in each request that is answered
FOR: Final = "for"  # on whose behalf, of the process of the HTTP API
ON_BEHALF: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
REQUEST_S: Final = 5.0  # to receive a request, and to send its answer
ANSWER_S: Final = 120.0  # to answer a request
EXHAUSTED_PAUSE_S: Final = 1.0  # after a connection that could not be accepted
CLIENTS_MAX: Final = 16  # that are served at a time

Request: TypeAlias = dict[str, str]
# What a request is answered with, now or later.
Answer: TypeAlias = "Request | Future[Request]"


class ControlError(Exception):
    """A request that failed; one line for the operator."""

    kind = ""


class Absent(ControlError):
    """A request for somebody who is not there."""

    kind = "absent"


class Unanswered(ControlError):
    """A request that no broker has answered."""

    kind = "unanswered"


ENDED: Final = Unanswered("the broker has just ended; a node of a cluster goes on: ask again")
KINDS: Final[dict[str, type[ControlError]]] = {each.kind: each for each in (Absent, Unanswered)}


class ControlServer:
    """Answers requests from threads of its own until closed.

    A request that waits for the disk delays no other one.
    """

    def __init__(
        self,
        data_dir: str | Path,
        answer: Callable[[Request], Answer],
        call_from_thread: Callable[[Callable[[], None]], None],
        *,
        failed: Callable[[str], None] = lambda why: None,
    ) -> None:
        """Bind and start; raises OSError where that cannot be done.

        `call_from_thread` calls `answer` on the loop's thread. If `answer` raises a `ControlError`,
        now or in the future that it returns, the client gets its text. With the reason it
        calls `failed` there when no connection can be accepted for a while.
        """
        self._path: Final = Path(data_dir) / NAME
        self._answer: Final = answer
        self._call_from_thread: Final = call_from_thread
        self._failed: Final = failed
        self._closed: Final = threading.Event()
        self._lock: Final = threading.Lock()  # of those whose answer is awaited
        self._awaited: Final[set[Future[Answer]]] = set()
        self._path.unlink(missing_ok=True)  # left by a crash: we hold the lock of the directory
        self._socket: Final = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with _short(data_dir) as path:
            self._socket.bind(path)
        self._path.chmod(0o600)
        self._socket.listen(CLIENTS_MAX)
        self._places: Final = threading.BoundedSemaphore(CLIENTS_MAX)
        self._thread: Final = threading.Thread(target=self._run, name="control", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering and remove the socket; who waits for an answer is told so. Idempotent."""
        with self._lock:
            self._closed.set()
            awaited = list(self._awaited)
        for each in awaited:
            each.cancel()  # what has begun goes on
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # ends the accept
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def join(self, timeout_s: float) -> None:
        """Wait until nothing is accepted any more, once it is closed."""
        self._thread.join(timeout_s)

    def _run(self) -> None:
        is_exhausted = False
        while True:
            try:
                client, _ = self._socket.accept()
            except ConnectionAbortedError:
                continue  # gone while it waited
            except OSError as problem:
                if not is_exhausted and not self._closed.is_set():
                    why = f"cannot accept: {problem.strerror or problem}"
                    self._call_from_thread(functools.partial(self._failed, why))
                is_exhausted = True
                # Without a free descriptor it would spin; who asks waits meanwhile.
                if self._closed.wait(EXHAUSTED_PAUSE_S):
                    return
                continue
            is_exhausted = False
            if self._places.acquire(blocking=False):
                talk = threading.Thread(target=self._talk, args=(client,), name="control")
                talk.daemon = True
                talk.start()
                continue
            with client, contextlib.suppress(OSError):  # the client has gone
                client.settimeout(REQUEST_S)
                _send(client, _refusal(Unanswered(f"{CLIENTS_MAX} requests wait already")))

    def _talk(self, client: socket.socket) -> None:
        try:
            with client, contextlib.suppress(OSError):  # the client has gone
                client.settimeout(REQUEST_S)
                _send(client, self._serve(client))
        finally:
            self._places.release()

    def _serve(self, client: socket.socket) -> Request:
        try:
            request = json.loads(_line(client, REQUEST_BYTES_MAX))
            if not isinstance(request, dict):
                raise ValueError
        except (ValueError, RecursionError):
            return {"error": "not a line of JSON"}
        asked = {str(key): str(value) for key, value in request.items()}
        name = asked.pop(FOR, "")
        if name and ON_BEHALF.fullmatch(name) is None:
            return {"error": f"{FOR} = {name[:80]!r}: expected the name of a user"}
        asked[BY] = f"{name} (http)" if name else _user_of(client)
        answers: Future[Answer] = Future()

        def work() -> None:
            if not answers.set_running_or_notify_cancel():
                return
            try:
                answers.set_result(self._answer(asked))
            except ControlError as problem:
                answers.set_result(_refusal(problem))

        with self._lock:
            if self._closed.is_set():
                return _refusal(ENDED)
            self._awaited.add(answers)
        until = time.monotonic() + ANSWER_S
        try:
            self._call_from_thread(work)
            answer = answers.result(ANSWER_S)
            return answer if isinstance(answer, dict) else answer.result(until - time.monotonic())
        except ControlError as problem:
            return _refusal(problem)
        except CancelledError:
            return _refusal(ENDED)
        except TimeoutError:
            return _refusal(Unanswered("the broker is too busy, or it has just ended"))
        finally:
            with self._lock:
                self._awaited.discard(answers)


def ask(data_dir: str | Path, request: Request, *, answer_s: float = ANSWER_S) -> Request:
    """Send `request` to the broker that runs on `data_dir`; return its answer.

    Raises `ControlError`, also for an answer that is an error: `Absent` where what it names is not
    there, `Unanswered` where there is no answer.
    """
    line = json.dumps(request).encode() + b"\n"
    if len(line) > REQUEST_BYTES_MAX:
        raise ControlError(
            f"a request of {len(line)} bytes: expected {REQUEST_BYTES_MAX} bytes at most"
        )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(answer_s)
        try:
            with _short(data_dir) as path:
                client.connect(path)
            with contextlib.suppress(BrokenPipeError):  # refused unread: the answer says why
                client.sendall(line)
            answer = json.loads(_line(client, ANSWER_BYTES_MAX))
        except TimeoutError:
            raise Unanswered(f"the broker gave no answer in {answer_s:g} s") from None
        except (OSError, ValueError) as problem:
            why = getattr(problem, "strerror", None) or "no answer"
            raise Unanswered(
                f"cannot ask the broker at {Path(data_dir) / NAME}: {why}; it may be starting or "
                "ending, or another command is at work on its data"
            ) from None
    if "error" in answer:
        kind = KINDS.get(str(answer.get("kind", "")), ControlError)
        raise kind(str(answer["error"]))
    return {str(key): str(value) for key, value in answer.items()}


def _refusal(problem: ControlError) -> Request:
    return {"error": str(problem), "kind": problem.kind}


def _send(client: socket.socket, answer: Request) -> None:
    client.sendall(json.dumps(answer).encode() + b"\n")


def _user_of(client: socket.socket) -> str:
    """Return the name of the user at the other end of a Unix socket, or the number."""
    credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    _, user, _ = CREDENTIALS.unpack(credentials)
    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        return str(user)


def _line(peer: socket.socket, bytes_max: int) -> bytes:
    """Return what the peer sends, up to the end of the line."""
    data = bytearray()
    while not data.endswith(b"\n") and len(data) < bytes_max:
        piece = peer.recv(65_536)
        if not piece:
            break
        data += piece
    return bytes(data)


@contextlib.contextmanager
def _short(data_dir: str | Path) -> Iterator[str]:
    """Yield a path to the socket that fits into an address (108 bytes), however long its own is."""
    directory = os.open(data_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{NAME}"
    finally:
        os.close(directory)
