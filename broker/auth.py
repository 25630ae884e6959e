"""Who a client is and what it may do: the implementations behind `broker.ports`.

Must never say more than yes or no to a client (an unknown user costs the same time as a wrong
password), never hash on the event loop, and fail closed: too many checks at once are refused with
"server busy", not let through. Read next: `broker.passwords` (the file).
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from broker.ports import Exchange, Verdict
from mqtt import reasons

# Checks waiting for a thread. At ~25 ms each and two threads this is a wait of 13 s, about what
# clients allow for a CONNACK; whoever comes later is better served by an honest refusal.
WAITING_CHECKS_MAX: Final = 1024

ANONYMOUS: Final = ""  # the identity that owns the sessions of clients without a user name


class AllowAll:
    """Lets everybody in; the identity is the user name as claimed, "" without one."""

    def authenticate(
        self,
        client_id: str,
        username: str | None,
        password: bytes | None,
        done: Callable[[Verdict], None],
    ) -> None:
        """Accept at once."""
        done(Verdict(True, reasons.SUCCESS, username or ANONYMOUS))

    def exchange(self, method: str, client_id: str) -> Exchange | None:
        """Know no method: there is nothing to check a client against."""
        return None


class PasswordFile:
    """Checks user names and passwords against a `holdfast passwd` file, off the event loop."""

    def __init__(
        self,
        path: str,
        *,
        allow_anonymous: bool,
        threads_max: int,
        call_soon_threadsafe: Callable[..., object],
    ) -> None:
        """Load the file; raise `PasswordFileError`.

        `call_soon_threadsafe` brings an answer back to the engine's thread.
        """
        from broker import passwords  # argon2 is only imported where passwords are in use

        self._load: Callable[[str], dict[str, str]] = passwords.load
        self._matches: Callable[[str, bytes], bool] = passwords.matches
        self._path: str = path
        self._allow_anonymous: bool = allow_anonymous
        self._call_soon_threadsafe = call_soon_threadsafe
        self._users: dict[str, str] = passwords.load(path)
        # What an unknown user's password is compared with, so that the answer takes as long.
        self._dummy_hash: str = passwords.hasher().hash(b"nobody's password")
        self._waiting: int = 0  # touched on the engine's thread only
        self._threads = ThreadPoolExecutor(threads_max, thread_name_prefix="password")

    def authenticate(
        self,
        client_id: str,
        username: str | None,
        password: bytes | None,
        done: Callable[[Verdict], None],
    ) -> None:
        """Check the password in a thread; answer at once what needs no hash."""
        if username is None:
            if self._allow_anonymous and password is None:
                done(Verdict(True, reasons.SUCCESS, ANONYMOUS))
            else:
                done(Verdict(False, reasons.NOT_AUTHORIZED, ANONYMOUS))
            return
        if self._waiting >= WAITING_CHECKS_MAX:
            done(Verdict(False, reasons.SERVER_BUSY, ANONYMOUS))
            return
        stored_hash = self._users.get(username)
        self._waiting += 1
        self._threads.submit(
            self._check, stored_hash, username, b"" if password is None else password, done
        )

    def _check(
        self,
        stored_hash: str | None,
        username: str,
        password: bytes,
        done: Callable[[Verdict], None],
    ) -> None:
        """Verify in a worker thread and hand the verdict to the engine's."""
        is_right = self._matches(stored_hash or self._dummy_hash, password)
        verdict = (
            Verdict(True, reasons.SUCCESS, username)
            if is_right and stored_hash is not None
            else Verdict(False, reasons.BAD_USER_NAME_OR_PASSWORD, ANONYMOUS)
        )
        try:
            self._call_soon_threadsafe(self._answer, verdict, done)
        except RuntimeError:
            return  # the loop has ended in the meantime, and with it whoever asked

    def _answer(self, verdict: Verdict, done: Callable[[Verdict], None]) -> None:
        self._waiting -= 1
        done(verdict)

    def exchange(self, method: str, client_id: str) -> Exchange | None:
        """Know no method."""
        return None

    def reload(self) -> int:
        """Read the file again and return its number of users.

        Raises `PasswordFileError` and keeps the users it had. Connected clients stay connected.
        """
        self._users = self._load(self._path)
        return len(self._users)

    def close(self) -> None:
        """Drop the checks still waiting and end the threads; no answer follows."""
        self._threads.shutdown(wait=False, cancel_futures=True)


class AllowAllPolicy:
    """Permits every publish, subscription and delivery."""

    is_open: bool = True

    def may_publish(self, identity: str, client_id: str, topic: str) -> bool:
        """Allow it."""
        return True

    def may_subscribe(self, identity: str, client_id: str, topic: str) -> bool:
        """Allow it."""
        return True

    def may_receive(self, identity: str, client_id: str, topic: str) -> bool:
        """Allow it."""
        return True
