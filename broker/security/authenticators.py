"""Authenticators: the implementations behind `session.ports`.

Must never tell a client more than yes or no (an unknown user takes as long as a wrong password),
never hash on the event loop, and fail closed: too many checks at once are refused with "server
busy", not let through. Read next: `broker.security.accounts` (the users),
`broker.security.access_files` (which of these a configuration asks for).
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from broker.security import password_hashes, scram
from broker.security.accounts import Accounts
from broker.security.password_hashes import StoredHash
from mqtt import reasons
from session.ports import (
    STEP_REFUSED,
    Authenticator,
    Exchange,
    Step,
    Verdict,
    accepted,
    refused,
)

# Checks that may wait for a thread. At 25 ms each and two threads the last one waits 13 s, about as
# long as clients wait for a CONNACK; later ones are refused.
WAITING_CHECKS_MAX: Final = 1024

# Steps of niceness by which a thread that hashes steps back behind the event loop. Three halve its
# weight: on two cores, against two such threads, a loop at full work keeps a core for itself. Ten
# left a tenth of the weight: beside 8 busy programs on two cores a login took 2.2 to 4.3 s, with
# three 0.4 to 0.9 s, with none 0.2 to 0.4 s. How late the loop answered in a storm of logins
# was the same for all of these: 4 to 28 ms at the 99th percentile (2026-11-23).
HASHING_NICENESS: Final = 3

ANONYMOUS: Final = ""  # the identity that owns the sessions of clients without a user name

CONTROL: Final = frozenset(map(chr, [*range(0x20), 0x7F]))


class AllowAll:
    """Accepts every client; the identity is the user name it claims, "" without one."""

    def __init__(self, *, names_count: bool = True) -> None:
        """With `names_count` false every client is anonymous, whatever user name it gives.

        A name that is not checked proves nothing: a device must get its session also without it, or
        with another one.
        """
        self._names_count: bool = names_count

    def authenticate(
        self,
        client_id: str,
        username: str | None,
        password: bytes | None,
        done: Callable[[Verdict], None],
    ) -> None:
        """Accept at once."""
        name = username or ANONYMOUS
        done(accepted(name if self._names_count else ANONYMOUS))

    def exchange(self, method: str, client_id: str) -> Exchange | None:
        """Know no method: there is nothing to check a client against."""
        return None


class AllowNobody:
    """Refuses every client; it is not asked about those with a verified certificate."""

    def authenticate(
        self,
        client_id: str,
        username: str | None,
        password: bytes | None,
        done: Callable[[Verdict], None],
    ) -> None:
        """Refuse at once."""
        done(refused(reasons.NOT_AUTHORIZED))

    def exchange(self, method: str, client_id: str) -> Exchange | None:
        """Know no method: there is nothing to check a client against."""
        return None


class PasswordFile:
    """Checks passwords against the users of a password file, off the event loop."""

    def __init__(
        self,
        accounts: Accounts,
        *,
        allow_anonymous: bool,
        threads_max: int,
        call_soon_threadsafe: Callable[..., object],
        new_nonce: Callable[[], str],
    ) -> None:
        """`call_soon_threadsafe` brings an answer back to the engine's thread.

        `new_nonce` returns an unpredictable printable text without a comma, for SCRAM.
        """
        self.accounts: Accounts = accounts  # replaced as a whole at a reload
        self._verify: Callable[[StoredHash, bytes], bool] = password_hashes.verify
        self._allow_anonymous: bool = allow_anonymous
        self._call_soon_threadsafe = call_soon_threadsafe
        self._new_nonce = new_nonce
        self._waiting: int = 0  # touched on the engine's thread only
        self._threads = ThreadPoolExecutor(
            threads_max, thread_name_prefix="password", initializer=_step_back
        )
        self._threads.submit(int)  # so that there is a thread, whatever comes

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
                done(accepted(ANONYMOUS))
            else:
                done(refused(reasons.NOT_AUTHORIZED))
            return
        if self._waiting >= WAITING_CHECKS_MAX:
            done(refused(reasons.SERVER_BUSY))
            return
        stored = self.accounts.to_verify(username)
        self._waiting += 1
        with contextlib.suppress(RuntimeError):  # no other thread can be started: one will do
            self._threads.submit(self._check, stored, username, password or b"", done)

    def exchange(self, method: str, client_id: str) -> Exchange | None:
        """Begin SCRAM-SHA-256, if any user has keys for it; know no other method."""
        if method != scram.METHOD or not self.accounts.offers_scram:
            return None
        # Looked up again at the end of the exchange, so that a reload in between counts.
        return scram.ScramExchange(
            lambda name: self.accounts.scram_account(name), self._new_nonce()
        )

    def _check(
        self,
        stored: StoredHash,
        username: str,
        password: bytes,
        done: Callable[[Verdict], None],
    ) -> None:
        """Verify in a worker thread and hand the result to the engine's."""
        try:
            is_right = self._verify(stored, password)
        except Exception as problem:  # shell boundary: the client must get an answer
            self._hand_over(self._fail, problem, done)
        else:
            self._hand_over(self._answer, is_right, stored, username, done)

    def _hand_over(self, call: Callable[..., None], *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever asked
            self._call_soon_threadsafe(call, *arguments)

    def _fail(self, problem: Exception, done: Callable[[Verdict], None]) -> None:
        self._waiting -= 1
        done(refused(reasons.SERVER_BUSY))
        raise problem  # for the loop's exception handler, which logs and counts it

    def _answer(
        self, is_right: bool, stored: StoredHash, username: str, done: Callable[[Verdict], None]
    ) -> None:
        self._waiting -= 1
        # The current file decides: a made-up user is not in it, and a password may be revoked.
        current = self.accounts.stored(username)
        if is_right and current is not None and current.text == stored.text:
            done(accepted(username))
        else:
            done(refused(reasons.BAD_USER_NAME_OR_PASSWORD))

    def close(self) -> None:
        """Drop the checks still waiting and end the threads; no answer follows."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _step_back() -> None:
    """Lower the priority of this thread; only Linux has niceness by thread."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        with contextlib.suppress(OSError):  # not permitted: go on without
            lower = os.getpriority(os.PRIO_PROCESS, thread) + HASHING_NICENESS
            os.setpriority(os.PRIO_PROCESS, thread, min(lower, 19))


class PlainNames:
    """Refuses user names with control characters before another authenticator sees them.

    Such a name could only deceive: in a log, in a file, or in another system.
    """

    def __init__(self, authenticator: Authenticator) -> None:
        """`authenticator` checks all other names."""
        self._authenticator: Authenticator = authenticator

    def authenticate(
        self,
        client_id: str,
        username: str | None,
        password: bytes | None,
        done: Callable[[Verdict], None],
    ) -> None:
        """Refuse at once, or ask the other authenticator."""
        if not CONTROL.isdisjoint(client_id):
            done(refused(reasons.CLIENT_IDENTIFIER_NOT_VALID))
        elif username is not None and not CONTROL.isdisjoint(username):
            done(refused(reasons.BAD_USER_NAME_OR_PASSWORD))
        else:
            self._authenticator.authenticate(client_id, username, password, done)

    def exchange(self, method: str, client_id: str) -> Exchange | None:
        """Begin one with the other authenticator, or one that refuses."""
        exchange = self._authenticator.exchange(method, client_id)
        if exchange is not None and not CONTROL.isdisjoint(client_id):
            return _Refused(reasons.CLIENT_IDENTIFIER_NOT_VALID)
        return exchange


class _Refused:
    """An exchange that ends at its first step."""

    def __init__(self, reason_code: int) -> None:
        self._reason_code: int = reason_code

    def step(self, data: bytes | None, done: Callable[[Step], None]) -> None:
        """Refuse."""
        done(Step(STEP_REFUSED, reason_code=self._reason_code))


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
