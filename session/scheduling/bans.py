"""Bans: client identifiers, user names and addresses that may not connect for a time.

An operator makes and removes them; they end by broker time. They are rows, and all of them are in
memory: a CONNECT is asked for with a look-up by hash for its client identifier, its user name, and
each length of network that is banned. A broker without bans asks nothing. Must never end a
connection: `session.administration` does that, `session.lifetime.connect` refuses. Read next:
`storage.tables.ban_rows`.
"""

import heapq
import ipaddress
from typing import Final, TypeAlias

from session.history.history import History
from session.live.core import Core, Database
from storage.errors import CorruptRecord, DamagedRows, Recoverable
from storage.tables.ban_rows import (
    ADDRESS,
    CLIENT_ID,
    USER,
    ban_key,
    decode_ban,
    encode_ban,
    split_ban_key,
)
from storage.tables.tables import BANS, scan_all

NEVER: Final = 1 << 62
BANS_MAX: Final = 10_000  # more of them are rules: passwords, the ACL, a firewall
BANS_BYTES_MAX: Final = 16 << 20  # of their names and reasons: a client identifier may be 64 KiB
BAN_MS_MAX: Final = 36_525 * 86_400_000  # 100 years: calendars know every end
ENDED_MAX: Final = 256  # bans that one turn removes because their time is over
HEAP_SLACK: Final = 64  # ends of bans that were replaced or removed and are still in the heap

# The version and the length of a network.
Length: TypeAlias = tuple[int, int]
BITS: Final = {4: 32, 6: 128}
MAPPED_BITS: Final = 96  # of ::ffff:0:0/96, which holds the IPv4 addresses of a dual socket


class Ban:
    """One ban."""

    __slots__ = ("by", "kind", "made_ms", "reason", "until_ms", "value")

    def __init__(
        self, kind: bytes, value: str, made_ms: int, until_ms: int, by: str, reason: str
    ) -> None:
        self.kind: Final = kind  # one of `storage.tables.ban_rows.KINDS`
        self.value: Final = value
        self.made_ms: Final = made_ms  # broker time, as `until_ms`, from which on it is over
        self.until_ms: Final = until_ms
        self.by: Final = by
        self.reason: Final = reason  # for operators and the history; clients are not told

    @property
    def key(self) -> bytes:
        """Return the key of its row."""
        return ban_key(self.kind, self.value)

    @property
    def asker(self) -> str:
        """Return who made it and why, as the history tells it."""
        return f"{self.by}: {self.reason}" if self.reason else self.by

    def size(self) -> int:
        """Return the bytes of its row, about."""
        return len(self.key) + len(self.by) + len(self.reason.encode())

    def __repr__(self) -> str:
        return f"Ban({self.kind!r}, {self.value!r}, until {self.until_ms})"


class Bans:
    """All bans of one broker."""

    def __init__(self, core: Core, database: Database, history: History) -> None:
        self._tick: Final = core.tick
        self._store: Final = database.store
        self._damage: Final = core.damage
        self._events: Final = history.sessions
        self._bans: Final[dict[bytes, Ban]] = {}  # by key
        self._networks: Final[dict[Length, dict[int, Ban]]] = {}  # by their first bits
        self._ends: list[tuple[int, bytes]] = []  # a heap; also of bans that are gone
        self._bytes: int = 0

    def open(self) -> None:
        """Read the bans of the store. Call it once, first.

        A row that cannot be read bans nobody; it stays for an operator.
        """
        damages: list[DamagedRows] = []
        for key, value in scan_all(self._store, BANS, b"", None, damages):
            try:
                kind, name = split_ban_key(key)
                self._put(Ban(kind, name, *decode_ban(value)))
            except DamagedRows as problem:
                self._damage.note("ban", problem)
            except ValueError as no_network:
                self._damage.note("ban", CorruptRecord(f"ban: {no_network}"))
        self._damage.note_all("ban", damages)

    def __len__(self) -> int:
        return len(self._bans)

    def all(self) -> list[Ban]:
        """Return all bans that are not over, by kind and name."""
        now = self._tick.now
        return [ban for _, ban in sorted(self._bans.items()) if ban.until_ms > now]

    # Changes

    def add(self, kind: bytes, value: str, for_ms: int, by: str, reason: str) -> Ban:
        """Ban for a time from now on; a ban of the same replaces it.

        It holds at once and is durable with this tick's batch. `value` of an address is as
        `network_name` returns it. Raises `Recoverable` if there are too many.
        """
        now = self._tick.now
        ban = Ban(kind, value, now, now + min(for_ms, BAN_MS_MAX), by, reason)
        old = self._bans.get(ban.key)
        if old is None and len(self._bans) >= BANS_MAX:
            raise Recoverable(f"there are {BANS_MAX} bans: remove some, or use the rules")
        room = BANS_BYTES_MAX - self._bytes + (old.size() if old else 0)
        if ban.size() > room:
            raise Recoverable(f"all bans have more than {BANS_BYTES_MAX} bytes: remove some")
        self._put(ban)
        self._tick.batch.append((BANS, ban.key, encode_ban(now, ban.until_ms, by, reason)))
        self._events.banned(kind, value, ban.until_ms, ban.asker)
        return ban

    def remove(self, kind: bytes, value: str, by: str) -> bool:
        """Remove a ban; False if there is none. Durable with this tick's batch."""
        ban = self._bans.get(ban_key(kind, value))
        if ban is None:
            return False
        if ban.until_ms <= self._tick.now:
            return False  # `run` removes it
        self._drop(ban)
        self._events.unbanned(kind, value, by)
        return True

    def _put(self, ban: Ban) -> None:
        old = self._bans.get(ban.key)
        if old is not None:
            self._bytes -= old.size()
        if ban.kind == ADDRESS:
            length, bits = _first_bits(ipaddress.ip_network(ban.value))
            self._networks.setdefault(length, {})[bits] = ban
        self._bans[ban.key] = ban
        self._bytes += ban.size()
        if len(self._ends) > 2 * len(self._bans) + HEAP_SLACK:
            self._ends = [(each.until_ms, key) for key, each in self._bans.items()]
            heapq.heapify(self._ends)
        else:
            heapq.heappush(self._ends, (ban.until_ms, ban.key))

    def _drop(self, ban: Ban) -> None:
        del self._bans[ban.key]
        self._bytes -= ban.size()
        if ban.kind == ADDRESS:
            length, bits = _first_bits(ipaddress.ip_network(ban.value))
            del self._networks[length][bits]
            if not self._networks[length]:
                del self._networks[length]
        self._tick.batch.append((BANS, ban.key, None))

    # Time

    def next_deadline(self) -> int:
        """Return when `run` has something to do, broker ms."""
        return self._ends[0][0] if self._ends else NEVER

    def run(self, now: int) -> None:
        """Remove bans whose time is over, a slice of them."""
        for _ in range(ENDED_MAX):
            if not self._ends or self._ends[0][0] > now:
                return
            until_ms, key = heapq.heappop(self._ends)
            ban = self._bans.get(key)
            if ban is not None and ban.until_ms == until_ms:
                self._drop(ban)
                self._events.unbanned(ban.kind, ban.value, "")

    # Questions

    def find(self, client_id: str, user: str, remote: str) -> Ban | None:
        """Return the ban that is against this client now, None if there is none.

        `user` is "" for a client without a name, `remote` its address with a port.
        """
        if not self._bans:
            return None
        now = self._tick.now
        for kind, name in ((CLIENT_ID, client_id), (USER, user)):
            if name:
                ban = self._bans.get(ban_key(kind, name))
                if ban is not None and ban.until_ms > now:
                    return ban
        return self._find_network(remote, now) if self._networks else None

    def _find_network(self, remote: str, now: int) -> Ban | None:
        address = _address_of(remote)
        if address is None:
            return None
        number, bits = int(address), BITS[address.version]
        for (version, length), networks in self._networks.items():
            if version == address.version:
                ban = networks.get(number >> (bits - length))
                if ban is not None and ban.until_ms > now:
                    return ban
        return None

    def invariants(self) -> list[str]:
        """Return what is wrong between the bans and their look-ups."""
        networks = sum(len(each) for each in self._networks.values())
        addresses = sum(1 for each in self._bans.values() if each.kind == ADDRESS)
        ends = {key: until_ms for until_ms, key in sorted(self._ends)}
        found = [] if networks == addresses else [f"{addresses} addresses in {networks} networks"]
        found += [f"{each} never ends" for key, each in self._bans.items() if key not in ends]
        return found


def network_name(text: str) -> str:
    """Return the name of an address or a network in its one form: 10.0.0.1, 10.0.0.0/8.

    IPv4 addresses in IPv6 are IPv4 addresses. Raises ValueError with one line for an operator.
    """
    host, slash, length = text.strip("[]").partition("/")
    host = host.partition("%")[0]  # a scope means something on this machine only
    try:
        network = ipaddress.ip_network(host + slash + length, strict=False)
    except ValueError:
        raise ValueError(
            f"address {text[:64]!r}: expected an address such as 10.0.0.1 or a network such as "
            "10.0.0.0/8"
        ) from None
    if ipaddress.ip_address(host) != network.network_address:
        raise ValueError(f"address {text[:64]!r}: its network is {network}")
    mapped = _mapped(network)
    if mapped is not None:
        network = mapped
    if network.num_addresses == 1:
        return str(network.network_address)
    return str(network)


Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network


def _mapped(network: Network) -> ipaddress.IPv4Network | None:
    """Return the IPv4 network that an IPv6 one stands for, None if it is none."""
    if isinstance(network, ipaddress.IPv4Network) or network.prefixlen < MAPPED_BITS:
        return None
    first = network.network_address.ipv4_mapped
    if first is None:
        return None
    return ipaddress.IPv4Network((first, network.prefixlen - MAPPED_BITS))


def _first_bits(network: Network) -> tuple[Length, int]:
    """Return the length of a network, and its first bits as a number."""
    bits = BITS[network.version]
    number = int(network.network_address) >> (bits - network.prefixlen)
    return (network.version, network.prefixlen), number


def _address_of(remote: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address of a client, None if its socket has none."""
    host = remote.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
