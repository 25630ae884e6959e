"""Writes rows to Redis or Valkey: one server, or the one that sentinels name.

A batch is one script: it compares the fence, moves it, and then runs every command. Scripts are
atomic, and the fence is their first write: a server that takes no writes now (no memory, a replica)
refuses there, with nothing applied. A command that fails is reported and the others go on. So even
RPUSH happens once. Read next: `broker.backends.redis.actions`.

A server that loses its newest writes goes back to an older fence, and gets the rows again. Redis up
to 7.2 may keep half a transaction at the end of an append-only file, and finds the other half at
its next start (valkey-io/valkey#4342): so the file is written anew before rows are sent again.
"""

import time
from collections.abc import Iterator
from typing import Any, Final

import redis
import redis.exceptions

from broker.backends.comparing.listing import Entry, Window
from broker.backends.inbox.changes import Tell
from broker.backends.inbox.questions import Page, Question
from broker.backends.message_ids import node_number
from broker.backends.redis import clients, refusals, scripts
from broker.backends.redis.actions import RedisActions
from broker.backends.redis.changes import RedisChanges
from broker.backends.redis.clients import ERRORS
from broker.backends.redis.inbox import FencedReader, RedisInbox
from broker.backends.redis.listing import RedisListing
from broker.backends.redis.refusals import REFUSED_KEY
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

FENCE_KEY: Final = "holdfast:cursor:"
SERVER_KEY: Final = "holdfast:server:"
# What the script answers first.
APPLIED: Final = 0
APPLIED_BEFORE: Final = 1
REFUSED: Final = 2
SCRIPT: Final = (
    scripts.OWN
    + """
local have = redis.call('GET', KEYS[1])
if have == ARGV[2] then return {1} end
if have ~= ARGV[1] then return {2} end
redis.call('SET', KEYS[1], ARGV[2])
local answer = {0}
local at, number, count = 4, 0, #ARGV
while at <= count do
  local size = tonumber(ARGV[at])
  local command = own[ARGV[at + 1]]
  local result
  if command then
    result = command(unpack(ARGV, at + 2, at + size))
  else
    result = redis.pcall(unpack(ARGV, at + 1, at + size))
  end
  if type(result) == 'table' and result.err then
    answer[#answer + 1] = number
    answer[#answer + 1] = result.err
  end
  number = number + 1
  at = at + size + 1
end
if #answer > 1 then
  redis.call('RPUSH', KEYS[2], cjson.encode({ARGV[2], ARGV[3], answer}))
  redis.call('LTRIM', KEYS[2], -16, -1)
end
return answer
"""
)
REWRITE_S: Final = 600.0  # for an append-only file to be written anew
REWRITE_POLL_S: Final = 0.05
REWRITE_SETTINGS: Final = ("aof_rewrite_in_progress", "aof_rewrite_scheduled")


class RedisSink:
    """One Redis store."""

    def __init__(self, options: Options) -> None:
        """Raises `Unusable` for options that cannot work."""
        self._options: Final = options
        self._values: Final = options.values
        self._fence_key: Final = (FENCE_KEY + options.name).encode()
        self._refused_key: Final = (REFUSED_KEY + options.name).encode()
        self._server_key: Final = (SERVER_KEY + options.name).encode()
        self._is_whole = False  # was its file looked at since we connected?
        self._inbox: Final = RedisInbox(node_number(options.node))
        self._client: redis.Redis | None = None
        self._script = ""  # its digest on the server
        try:
            self._actions: Final = RedisActions(options)
        except ValueError as problem:
            raise Unusable(f"backend {options.name}: expected {problem}") from None

    # The interface of a sink

    def open(self) -> Fence | None:
        """Connect, and return the server's fence."""
        self.close()
        try:
            self._client = clients.connect(self._options)
            self._script = str(_text(self._client.script_load(SCRIPT)))
            return self._read_fence(self._client)
        except ERRORS as problem:
            why = clients.why_closed(self._options.values, problem)
            raise self._unavailable(problem, why) from None

    def start(self, fence: Fence, *, is_rewind: bool) -> None:
        """Put the fence where a run begins."""
        client = self._opened()
        try:
            self._make_whole(client, is_rewind=is_rewind)
            client.set(self._fence_key, fence.encode())
        except ERRORS as problem:
            raise self._unavailable(problem) from None

    def apply(self, batch: RowBatch, instance: str) -> list[Poison]:
        """Apply a batch once, and move the fence behind it."""
        made = self._actions.fill(batch)
        flat: list[bytes] = []
        for command in made.commands:
            flat.append(b"%d" % len(command))
            flat += command
        fences = [Fence(instance, cursor).encode() for cursor in (batch.after, batch.upto)]
        answer = self._run([*fences, " ".join(made.places).encode(), *flat])
        if answer[0] == REFUSED:
            raise FenceRefused
        for at in range(1, len(answer), 2):
            made.refuse(int(answer[at]), _text(answer[at + 1]))
        return made.poisons

    def refusals(self, instance: str) -> list[Refusal]:
        """Return what the server has refused in the last batches that had such rows."""
        client = self._opened()
        try:
            kept = client.lrange(self._refused_key, 0, -1)
        except ERRORS as problem:
            raise self._unavailable(problem) from None
        return list(refusals.decode(kept, instance))

    def _run(self, arguments: list[bytes]) -> list[Any]:
        client = self._opened()
        keys = (self._fence_key, self._refused_key)
        try:
            self._make_whole(client)
            try:
                answer = client.evalsha(self._script, 2, *keys, *arguments)
            except redis.exceptions.NoScriptError:  # SCRIPT FLUSH, or another server by the name
                self._script = str(_text(client.script_load(SCRIPT)))
                answer = client.evalsha(self._script, 2, *keys, *arguments)
        except ERRORS as problem:
            raise self._unavailable(problem) from None
        assert isinstance(answer, list)
        return answer

    def fetch(self, question: Question, fence: Fence) -> Page:
        """Return a page of what a session fetches."""
        client = self._opened()
        try:
            reader = FencedReader(client, self._fence_key, fence.encode())
            page = self._inbox.fetch(reader, question)
        except redis.exceptions.ResponseError as problem:
            if "WRONGTYPE" in str(problem):
                asked = question.topic or f"subscriptions of {question.client_id}"
                raise Refused(f"{asked}: {problem}") from None
            raise self._unavailable(problem) from None
        except ERRORS as problem:
            raise self._unavailable(problem) from None
        if page is None:
            raise FenceRefused
        return page

    def listen(self, tell: Tell) -> RedisChanges | None:
        """Return who hears what applications tell of subscriptions, None if nobody has to."""
        if not self._values.get("channel") and not self._values.get("stream"):
            return None
        return RedisChanges(self._options, lambda: clients.connect(self._options), tell)

    def look(self) -> Fence | None:
        """Return the server's fence again."""
        client = self._opened()
        try:
            return self._read_fence(client)
        except ERRORS as problem:
            raise self._unavailable(problem) from None

    def health(self) -> dict[str, Any]:
        """Return what the server is, whether it takes rows, and what an operator should change."""
        client = self._opened()
        try:
            info = client.info()
            problems = problems_of(info)
            fence = self._read_fence(client)
            probe = self._fence_key + b":check"
            client.set(probe, b"1", ex=1)
            client.delete(probe)
        except ERRORS as problem:
            raise self._unavailable(problem) from None
        is_valkey = "valkey_version" in info
        return {
            "server": "Valkey" if is_valkey else "Redis",
            "version": str(info["valkey_version" if is_valkey else "redis_version"]),
            "role": str(info.get("role", "")),
            "writable": True,
            "persistence": "append-only file" if info.get("aof_enabled") else "snapshots or none",
            "fence": None if fence is None else fence.encode().decode(),
            "problems": problems,
        }

    def listing(self, window: Window) -> Iterator[Entry]:
        """Yield what the store has, for a comparison."""
        client = self._opened()
        try:
            yield from RedisListing(client, window, [client]).entries()
        except ERRORS as problem:
            raise self._unavailable(problem) from None

    def create(self) -> list[str]:
        """Return []: keys need no table."""
        return []

    def close(self) -> None:
        """Close the connection."""
        client, self._client = self._client, None
        self._is_whole = False
        if client is not None:
            client.close()

    def _make_whole(self, client: redis.Redis, *, is_rewind: bool = False) -> None:
        """Have the server write its file anew if it may end with half of a transaction.

        So it may after a restart, also if it has lost nothing that it had confirmed. Such a half is
        not there now, but would come back with the next restart, beside the whole. Which start of
        the server the file was last written anew for is a key of the store.
        """
        if self._is_whole and not is_rewind:
            return
        run = str(client.info("server").get("run_id", "")).encode()
        is_other = client.get(self._server_key) != run
        if is_rewind or (is_other and client.exists(self._fence_key)):
            _rewrite_file(client)
        if is_other:
            client.set(self._server_key, run)
        self._is_whole = True

    # Connecting

    def _opened(self) -> redis.Redis:
        if self._client is None:
            raise Unavailable("not connected")
        return self._client

    def _read_fence(self, client: redis.Redis) -> Fence | None:
        value = client.get(self._fence_key)
        return Fence.decode(value) if isinstance(value, bytes) else None

    def _unavailable(self, problem: Exception, why: str = "") -> Unavailable:
        """Close, and return the error to raise."""
        self.close()
        return Unavailable(clients.what_failed(self._values["servers"], problem) + why)


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _rewrite_file(client: redis.Redis) -> None:
    """Let the server write its append-only file anew, if it has one, and wait for that."""
    if not client.info("persistence").get("aof_enabled"):
        return
    try:
        client.bgrewriteaof()
    except redis.exceptions.ResponseError as problem:
        if "in progress" not in str(problem):
            raise
    deadline = time.monotonic() + REWRITE_S
    while any(client.info("persistence").get(name) for name in REWRITE_SETTINGS):
        if time.monotonic() > deadline:
            raise redis.exceptions.TimeoutError("the append-only file is not written anew")
        time.sleep(REWRITE_POLL_S)
    if client.info("persistence").get("aof_last_bgrewrite_status") != "ok":
        raise redis.exceptions.ResponseError("the append-only file could not be written anew")


def problems_of(info: dict[str, Any]) -> list[str]:
    """Return what makes the server forget rows for good, or refuse them."""
    found: list[str] = []
    if info.get("role") not in ("master", None):
        found.append(f"it is a {info['role']}: rows can only be written to a master")
    policy = str(info.get("maxmemory_policy", "noeviction"))
    if info.get("maxmemory") and policy != "noeviction":
        found.append(f"maxmemory-policy is {policy}: it throws keys away, the cursor among them")
    if not info.get("aof_enabled") and not info.get("rdb_last_save_time"):
        found.append("it keeps nothing on disk: after a restart rows are sent again or are lost")
    return found
