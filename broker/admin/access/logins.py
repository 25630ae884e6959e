"""Browser sessions: in the memory of this process alone, by the hash of a random cookie.

A session ends when it is idle, when it is old, at log-out, when its user is changed or gone, and
with this process. Times are monotonic seconds. Must never hold a cookie. Read next:
`broker.admin.web.gate`, `broker.admin.access.lockout`.
"""

import hashlib
import hmac
import secrets
from collections import OrderedDict
from typing import Final

from broker.admin.access.users import User

IDLE_S: Final = 30 * 60.0
OLDEST_S: Final = 12 * 3600.0
SESSIONS_MAX: Final = 1000
SESSIONS_PER_USER_MAX: Final = 20
FORM_S: Final = 3600.0  # a log-in form that lay open for longer is asked for again


class Login:
    """One browser that has logged in."""

    __slots__ = ("began_s", "changed_ms", "csrf", "seen_s", "user_name")

    def __init__(self, user: User, now_s: float) -> None:
        self.user_name: Final = user.name
        self.changed_ms: Final = user.changed_ms
        self.csrf: Final = secrets.token_urlsafe(24)
        self.began_s: Final = now_s
        self.seen_s: float = now_s

    def is_of(self, user: User | None) -> bool:
        """Return whether the user is still the one who has logged in, and was not changed."""
        return user is not None and self.changed_ms == user.changed_ms

    def is_over(self, now_s: float) -> bool:
        """Return whether it has ended by itself."""
        return now_s - self.seen_s >= IDLE_S or now_s - self.began_s >= OLDEST_S


class Logins:
    """All browsers that have logged in, and the forms that may be sent to do so."""

    def __init__(self) -> None:
        self._key: Final = secrets.token_bytes(32)
        self._by_digest: OrderedDict[bytes, Login] = OrderedDict()  # longest idle first

    def __len__(self) -> int:
        return len(self._by_digest)

    def begin(self, user: User, now_s: float) -> tuple[str, Login]:
        """Begin a session for a user whose password was right; return its cookie, once."""
        mine = [key for key, each in self._by_digest.items() if each.user_name == user.name]
        for key in mine[: max(0, len(mine) - SESSIONS_PER_USER_MAX + 1)]:
            del self._by_digest[key]
        while len(self._by_digest) >= SESSIONS_MAX:
            self._by_digest.popitem(last=False)
        cookie = secrets.token_urlsafe(32)
        login = self._by_digest[_digest(cookie)] = Login(user, now_s)
        return cookie, login

    def find(self, cookie: str, now_s: float) -> Login | None:
        """Return the session of a cookie and note that it was used; None if there is none."""
        key = _digest(cookie)
        login = self._by_digest.get(key)
        if login is None:
            return None
        if login.is_over(now_s):
            del self._by_digest[key]
            return None
        login.seen_s = now_s
        self._by_digest.move_to_end(key)
        return login

    def end(self, cookie: str) -> None:
        """End a session. Idempotent."""
        self._by_digest.pop(_digest(cookie), None)

    # The form, before anybody is known: its cookie and its field have to fit together.

    def new_form(self, now_s: float) -> tuple[str, str]:
        """Return the cookie and the hidden field of a log-in form."""
        cookie = f"{secrets.token_urlsafe(18)}.{int(now_s)}"
        return cookie, self._sign(cookie)

    def is_form(self, cookie: str, field: str, now_s: float) -> bool:
        """Return whether a form is one that this process gave out, to the same browser."""
        if not hmac.compare_digest(self._sign(cookie).encode(), field.encode()):
            return False
        made_s = cookie.rpartition(".")[2]
        return made_s.isdecimal() and 0 <= now_s - int(made_s) + 1 < FORM_S

    def _sign(self, cookie: str) -> str:
        return hmac.new(self._key, cookie.encode(), hashlib.sha256).hexdigest()


def _digest(cookie: str) -> bytes:
    return hashlib.sha256(cookie.encode("utf-8", "surrogateescape")).digest()
