"""Who has failed to log in too often, and for how long nobody is let try again.

Counts by user name and by address, in tables of bounded size. Pure: the time comes as an argument.
Read next: `broker.admin.access.logins`.
"""

import ipaddress
from collections import OrderedDict
from typing import Final

KEYS_MAX: Final = 10_000
FORGET_S: Final = 3600.0  # after the last failure
FIRST_S: Final = 30.0
LONGEST_S: Final = 900.0
NAME_FAILURES_MAX: Final = 5
ADDRESS_FAILURES_MAX: Final = 20


class _Failures:
    __slots__ = ("count", "last_s", "until_s")

    def __init__(self) -> None:
        self.count = 0
        self.last_s = 0.0
        self.until_s = 0.0


class Table:
    """Failures by a key; the key that failed longest ago goes first."""

    def __init__(self, failures_max: int, *, keys_max: int = KEYS_MAX) -> None:
        self._failures_max: Final = failures_max
        self._keys_max: Final = keys_max
        self._found: OrderedDict[str, _Failures] = OrderedDict()

    def __len__(self) -> int:
        return len(self._found)

    def wait_s(self, key: str, now_s: float) -> float:
        """Return for how long this key may not try, 0 = it may."""
        found = self._found.get(key)
        return 0.0 if found is None else max(0.0, found.until_s - now_s)

    def failed(self, key: str, now_s: float) -> None:
        """Count a failure; the wait doubles with each one beyond what is allowed."""
        found = self._found.pop(key, None)
        if found is None or now_s - found.last_s > FORGET_S:
            found = _Failures()
        self._found[key] = found
        if len(self._found) > self._keys_max:
            self._found.popitem(last=False)
        found.count += 1
        found.last_s = now_s
        over = found.count - self._failures_max
        if over >= 0:
            found.until_s = now_s + min(LONGEST_S, FIRST_S * 2 ** min(over, 16))

    def forget(self, key: str) -> None:
        """Forget the failures of a key: it has succeeded."""
        self._found.pop(key, None)


class Lockout:
    """Both tables."""

    def __init__(self) -> None:
        self.names: Final = Table(NAME_FAILURES_MAX)
        self.addresses: Final = Table(ADDRESS_FAILURES_MAX)

    def wait_s(self, name: str, address: str, now_s: float) -> float:
        """Return for how long a log-in with this name from there is refused, 0 = it is not."""
        return max(
            self.names.wait_s(name[:64], now_s),
            self.addresses.wait_s(_network(address), now_s),
        )

    def failed(self, name: str, address: str, now_s: float) -> None:
        """Count a failure for both."""
        self.names.failed(name[:64], now_s)
        self.addresses.failed(_network(address), now_s)

    def succeeded(self, name: str) -> None:
        """Forget the failures of a name; an address may be trying many."""
        self.names.forget(name[:64])


def _network(address: str) -> str:
    """Return what counts as one address: of IPv6 the /64, of which one machine has all."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return address
    return str(ipaddress.ip_network((found, 64), strict=False).network_address)
