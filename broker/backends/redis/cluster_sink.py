"""Writes rows to a Redis or Valkey cluster: at least once.

The keys of a batch are on several servers, so no script can apply it. Its commands go to the
servers that have their keys, in their order for each key; the cursor is moved once all of them are
confirmed. Whatever fails before that is sent again with the whole batch. What the built-in actions
write is the same after a repeat; own commands such as INCR may be carried out twice.

Each master has a mark of its own, a copy of the cursor behind what that server has confirmed. So
the store is as far as the oldest of cursor and marks: one server that has lost its newest rows, or
a replica that had not got them, is noticed. The names of the marks lie beside the cursor, in its
slot.
Read next: `broker.backends.redis.routing`, `broker.backends.redis.sink` (one server).
"""

import itertools
from collections.abc import Iterator
from typing import Any, Final

import redis.exceptions

from broker.backends.comparing.listing import Entry, Window
from broker.backends.inbox.changes import Tell
from broker.backends.inbox.questions import SUBSCRIPTIONS_MAX, Page, Question
from broker.backends.message_ids import node_number
from broker.backends.redis import clients, refusals, scripts
from broker.backends.redis.actions import Commands, RedisActions
from broker.backends.redis.changes import RedisChanges
from broker.backends.redis.clients import ERRORS
from broker.backends.redis.inbox import (
    CLAIM_KEY,
    LISTED,
    MESSAGE_KEY,
    NEXT,
    READ_IDS,
    Pairs,
    RedisInbox,
)
from broker.backends.redis.listing import RedisListing
from broker.backends.redis.refusals import KEPT_MAX, REFUSED_KEY
from broker.backends.redis.routing import Arguments, Misrouted, Router
from broker.backends.redis.sink import FENCE_KEY, problems_of
from broker.backends.rows import RowBatch
from broker.backends.sink import (
    Fence,
    FenceRefused,
    Options,
    Poison,
    Refusal,
    Refused,
    Unavailable,
    Unusable,
)
from session.delivery.fetching.inbox import LEASE_MS

MARKS_KEY: Final = "holdfast:marks:"  # names of the marks, with spaces
# Moves the cursor if it is where it was before the batch, and keeps what was refused.
MOVE: Final = f"""
local have = redis.call('GET', KEYS[1])
if have == ARGV[2] then return 1 end
if have ~= ARGV[1] then return 2 end
redis.call('SET', KEYS[1], ARGV[2])
if ARGV[3] ~= '' then
  redis.call('RPUSH', KEYS[2], ARGV[3])
  redis.call('LTRIM', KEYS[2], -{KEPT_MAX}, -1)
end
return 0
"""
REFUSED: Final = 2
# Moves a mark, unless its server has lost rows since the fence was looked at: then it is older than
# the batch. It may be newer, if the cursor was not moved behind an earlier batch.
MOVE_MARK: Final = """
local instance, position, seq = string.match(redis.call('GET', KEYS[1]) or '', '(.*):(%d+):(%d+)')
if instance ~= ARGV[2] or tonumber(position) < tonumber(ARGV[3]) or
   tonumber(seq) < tonumber(ARGV[4]) then return 2 end
redis.call('SET', KEYS[1], ARGV[1])
return 0
"""
# Claims one message for an owner: the key of the claim.
CLAIM_ONE: Final = """
local owner = redis.call('GET', KEYS[1])
if owner and owner ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
CLAIMED_AT_ONCE: Final = 64  # messages of a queue
# Returns a retained message if its key is a hash, or the id of the newest one in a set.
RETAINED_HERE: Final = """
if redis.call('TYPE', KEYS[1]).ok == 'zset' then
  return {redis.call('ZREVRANGE', KEYS[1], 0, 0)[1]}
end
return {'', redis.call('PTTL', KEYS[1]), redis.call('HGETALL', KEYS[1])}
"""
HASH: Final = "return {redis.call('PTTL', KEYS[1]), redis.call('HGETALL', KEYS[1])}"
FIELDS: Final = """
local fields = redis.pcall('HGETALL', KEYS[1])
return fields.err and {} or fields
"""


class ClusterSink:
    """One cluster."""

    def __init__(self, options: Options) -> None:
        """Raises `Unusable` for options that cannot work."""
        self._options: Final = options
        key = FENCE_KEY + options.name
        self._fence_key: Final = key.encode()
        # In braces is what decides about the slot: that of the cursor.
        self._refused_key: Final = f"{REFUSED_KEY}{{{key}}}".encode()
        self._marks_key: Final = f"{MARKS_KEY}{{{key}}}".encode()
        self._inbox: Final = RedisInbox(node_number(options.node))
        self._own: Final = {rule.number for rule in options.rules if rule.action is None}
        self._client: Any = None
        self._router: Router | None = None
        self._marks: dict[bytes, int] = {}  # with their slots
        self._names = b""  # as they are in the store
        self._moves_known = -1  # of the router, when the marks were chosen
        try:
            self._actions: Final = RedisActions(options)
        except ValueError as problem:
            raise Unusable(f"backend {options.name}: expected {problem}") from None

    # The interface of a sink

    def open(self) -> Fence | None:
        """Connect, and return the fence of the cluster."""
        self.close()
        try:
            self._client = clients.connect_cluster(self._options)
            self._router = Router(self._client)
            return self._read_fence(self._router)
        except ERRORS as problem:
            why = clients.why_closed(self._options.values, problem)
            raise self._unavailable(problem, why) from None

    def start(self, fence: Fence, *, is_rewind: bool) -> None:
        """Put the fence where a run begins; a mark on every master, then the cursor."""
        router = self._opened()
        try:
            self._place_marks(router)
            self._move_marks(router, None, fence)
            self._ask(router, self._fence_key, b"SET", self._fence_key, fence.encode())
        except ERRORS as problem:
            raise self._unavailable(problem) from None

    def apply(self, batch: RowBatch, instance: str) -> list[Poison]:
        """Apply a batch at least once, and move the fence behind it."""
        router = self._opened()
        before, behind = (Fence(instance, cursor) for cursor in (batch.after, batch.upto))
        try:
            found = self._read_fence(router)
            if _is_same(found, behind):
                return []
            if not _is_same(found, before):
                raise FenceRefused
            made = self._actions.fill(batch)
            refused = self._carry_out(router, made)
            if router.moves != self._moves_known:
                self._place_marks(router)
            self._move_marks(router, before, behind)
            told = refusals.encode(behind, made.places, refused) if refused else ""
            keys = (self._fence_key, self._refused_key)
            cursors = (before.encode(), behind.encode())
            moved = self._ask(router, keys[0], "EVAL", MOVE, len(keys), *keys, *cursors, told)
        except ERRORS as problem:
            raise self._unavailable(problem) from None
        if moved == REFUSED:
            raise FenceRefused
        for number, why in refused:
            made.refuse(number, why)
        return made.poisons

    def refusals(self, instance: str) -> list[Refusal]:
        """Return what the servers have refused in the last batches that had such rows."""
        router = self._opened()
        try:
            kept = self._ask(router, self._refused_key, b"LRANGE", self._refused_key, 0, -1)
        except ERRORS as problem:
            raise self._unavailable(problem) from None
        return list(refusals.decode(kept, instance))

    def fetch(self, question: Question, fence: Fence) -> Page:
        """Return a page of what a session fetches."""
        router = self._opened()
        try:
            if not _is_same(self._read_fence(router), fence):
                raise FenceRefused
            page = self._inbox.fetch(ClusterReader(router), question)
        except redis.exceptions.ResponseError as problem:
            if "WRONGTYPE" in str(problem):
                asked = question.topic or f"subscriptions of {question.client_id}"
                raise Refused(f"{asked}: {problem}") from None
            raise self._unavailable(problem) from None
        except ERRORS as problem:
            raise self._unavailable(problem) from None
        assert page is not None
        return page

    def listen(self, tell: Tell) -> RedisChanges | None:
        """Return who hears what applications tell of subscriptions, None if nobody has to."""
        if not self._options.values.get("stream"):
            return None
        return RedisChanges(self._options, lambda: clients.connect_cluster(self._options), tell)

    def look(self) -> Fence | None:
        """Return the fence of the cluster again."""
        router = self._opened()
        try:
            return self._read_fence(router)
        except ERRORS as problem:
            raise self._unavailable(problem) from None

    def health(self) -> dict[str, Any]:
        """Return what the cluster is, whether it takes rows, and what should be changed."""
        router = self._opened()
        try:
            masters = [(name, client.info()) for name, client in router.masters()]
            fence = self._read_fence(router)
            probe = self._fence_key + b":check"
            for command in ((b"SET", probe, b"1", b"EX", 1), (b"DEL", probe)):
                self._ask(router, probe, *command)
        except ERRORS as problem:
            raise self._unavailable(problem) from None
        info = masters[0][1]
        is_valkey = "valkey_version" in info
        files = all(each.get("aof_enabled") for _, each in masters)
        return {
            "server": "Valkey" if is_valkey else "Redis",
            "version": str(info["valkey_version" if is_valkey else "redis_version"]),
            "role": f"a cluster of {len(masters)} masters",
            "writable": True,
            "persistence": "append-only file" if files else "not on all: snapshots or none",
            "fence": None if fence is None else fence.encode().decode(),
            "problems": [
                f"{name}: {problem}" for name, each in masters for problem in problems_of(each)
            ],
        }

    def listing(self, window: Window) -> Iterator[Entry]:
        """Yield what the store has, for a comparison."""
        router = self._opened()
        try:
            servers = [client for _, client in router.masters()]
            yield from RedisListing(self._client, window, servers).entries()
        except ERRORS as problem:
            raise self._unavailable(problem) from None

    def create(self) -> list[str]:
        """Return []: keys need no table."""
        return []

    def close(self) -> None:
        """Close the connections."""
        client, self._client, self._router = self._client, None, None
        self._marks, self._names = {}, b""
        self._moves_known = -1
        if client is not None:
            client.close()

    # Commands

    def _carry_out(self, router: Router, made: Commands) -> list[tuple[int, str]]:
        """Carry out the commands of a batch; return which were refused for good, and why.

        Claims come last: a message of a queue is gone before its claim is, and nobody claims it.
        """
        refused: list[tuple[int, str]] = []
        messages: list[tuple[int, int, Arguments]] = []
        claims: list[tuple[int, int, Arguments]] = []
        for number, command in enumerate(made.commands):
            try:
                if made.told[number][1] in self._own:
                    messages.append((number, router.slot_of(command), command))
                    continue
            except Misrouted as problem:
                refused.append((number, str(problem)))
                continue
            part = claims if command[1].startswith(CLAIM_KEY) else messages
            part.append((number, router.slot(command[1]), _as_sent(command)))
        for part in (messages, claims):
            answers = router.run([(slot, command) for _, slot, command in part])
            for (number, _, _), answer in zip(part, answers, strict=True):
                if isinstance(answer, Exception):
                    refused.append((number, " ".join(str(answer).split())))
        refused.sort()
        return refused

    def _ask(self, router: Router, key: bytes, *command: bytes | str | int) -> Any:
        (answer,) = router.run([(router.slot(key), command)])
        if isinstance(answer, Exception):
            raise answer
        return answer

    # The fence

    def _read_fence(self, router: Router) -> Fence | None:
        """Return how far all servers are, None if one of them has nothing of this."""
        if not self._marks:
            names = self._ask(router, self._marks_key, b"GET", self._marks_key)
            if isinstance(names, bytes):
                self._names = names
                self._marks = {each: router.slot(each) for each in names.split()}
        slots = {self._fence_key: router.slot(self._fence_key), **self._marks}
        values = router.run([(slot, (b"GET", key)) for key, slot in slots.items()])
        found = [Fence.decode(value) if isinstance(value, bytes) else None for value in values]
        fence = found[0]
        if fence is None or not self._marks:
            return None
        for each in found[1:]:
            if each is None or each.instance != fence.instance:
                return None
            if each.cursor < fence.cursor:
                fence = each
        return fence

    def _place_marks(self, router: Router) -> None:
        """Choose the marks: one for each server that has slots."""
        kept: dict[str, bytes] = {}
        for key, slot in self._marks.items():
            kept.setdefault(router.master_of(slot), key)
        for name, _ in router.masters():
            for number in itertools.count() if name not in kept else ():
                key = self._fence_key + b":%d" % number
                if router.master_of(router.slot(key)) == name:
                    kept[name] = key
                    break
        self._marks = {key: router.slot(key) for key in sorted(kept.values())}
        self._moves_known = router.moves

    def _move_marks(self, router: Router, before: Fence | None, behind: Fence) -> None:
        """Put the marks somewhere, and note their names if they are others than before.

        Raises `FenceRefused` if one is not at `before`, None = it may be anywhere.
        """
        known = self._names.split() if before is not None else []
        moves: list[tuple[int, Arguments]] = []
        for key, slot in self._marks.items():
            if before is None or key not in known:
                moves.append((slot, (b"SET", key, behind.encode())))
                continue
            told = (behind.encode(), before.instance, *before.cursor)
            moves.append((slot, ("EVAL", MOVE_MARK, 1, key, *told)))
        for answer in router.run(moves):
            if isinstance(answer, Exception):
                raise answer
            if answer == REFUSED:
                raise FenceRefused
        names = b" ".join(self._marks)
        if names != self._names:
            self._ask(router, self._marks_key, b"SET", self._marks_key, names)
            self._names = names

    # Connecting

    def _opened(self) -> Router:
        if self._router is None:
            raise Unavailable("not connected")
        return self._router

    def _unavailable(self, problem: Exception, why: str = "") -> Unavailable:
        """Close, and return the error to raise."""
        self.close()
        return Unavailable(clients.what_failed(self._options.values["servers"], problem) + why)


class ClusterReader:
    """Reads a cluster for one question, once its fence was looked at (`Reader`)."""

    def __init__(self, router: Router) -> None:
        self._router: Final = router

    def ids(self, key: bytes, start: int, stop: int) -> list[bytes]:
        """See `Reader`."""
        found: list[bytes] = self._one(key, b"ZRANGE", key, start, stop)
        return found

    def claimed(
        self, ids: list[bytes], owner: bytes, most: int, size_bytes: int
    ) -> list[tuple[bytes, Pairs]]:
        """See `Reader`.

        A message is read behind its claim: so it is as it was for whoever had the claim before. The
        claim on one that is not there any more ends by itself.
        """
        found: list[tuple[bytes, Pairs]] = []
        size = 0
        for at in range(0, len(ids), CLAIMED_AT_ONCE):
            left = most - len(found)
            if left <= 0 or size >= size_bytes:
                break
            wanted = ids[at : at + min(CLAIMED_AT_ONCE, left)]
            keys = [CLAIM_KEY + each for each in wanted]
            claims = self._many(CLAIM_ONE, keys, owner, LEASE_MS)
            mine = [each for each, is_mine in zip(wanted, claims, strict=True) if is_mine == 1]
            for name in mine:
                if size >= size_bytes:
                    break  # its claim is for the next question of the same client
                pairs = self._one(MESSAGE_KEY + name, "EVAL", FIELDS, 1, MESSAGE_KEY + name)
                if pairs:
                    size += sum(map(len, pairs))
                    found.append((name, pairs))
        return found

    def position(self, key: bytes) -> bytes | None:
        """See `Reader`."""
        found: bytes | None = self._one(key, b"GET", key)
        return found

    def following(self, key: bytes, after: bytes, low: bytes) -> list[Any]:
        """See `Reader`."""
        found: list[Any] = self._one(key, "EVAL", NEXT, 1, key, b"", after, low, READ_IDS)
        return found

    def message(self, name: bytes) -> dict[bytes, bytes]:
        """See `Reader`."""
        pairs = self._one(MESSAGE_KEY + name, "EVAL", FIELDS, 1, MESSAGE_KEY + name)
        return dict(zip(pairs[::2], pairs[1::2], strict=True))

    def retained(self, key: bytes) -> tuple[bytes, int, Pairs]:
        """See `Reader`."""
        found = self._one(key, "EVAL", RETAINED_HERE, 1, key)
        if len(found) == 3:
            return found[0], found[1], found[2]
        name: bytes = found[0]
        expires_ms, pairs = self._one(MESSAGE_KEY + name, "EVAL", HASH, 1, MESSAGE_KEY + name)
        return name, expires_ms, pairs

    def listed(self, key: bytes) -> list[Any]:
        """See `Reader`."""
        found: list[Any] = self._one(key, "EVAL", LISTED, 1, key, b"", SUBSCRIPTIONS_MAX)
        return found

    def _one(self, key: bytes, *command: bytes | str | int) -> Any:
        (answer,) = self._router.run([(self._router.slot(key), command)])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _many(self, script: str, keys: list[bytes], *told: bytes | str | int) -> list[Any]:
        router = self._router
        return router.run([(router.slot(key), ("EVAL", script, 1, key, *told)) for key in keys])


def _as_sent(command: list[bytes]) -> Arguments:
    """Return a command of ours as the servers know it: a script if it is none of theirs."""
    name, key, *others = command
    if name not in scripts.OWN_COMMANDS:
        return command
    return ("EVAL", scripts.ONE, 1, key, name, *others)


def _is_same(one: Fence | None, other: Fence) -> bool:
    return one is not None and one.encode() == other.encode()
