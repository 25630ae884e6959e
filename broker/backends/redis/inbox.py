"""Finds in Redis what a session fetches: messages of queues, of topics with a position, retained,
and what its client is subscribed to.

A reader looks first whether the store still has everything that the broker believes it has, as the
script that applies rows does. A message of a queue is claimed for a client by a key that expires,
before it is read: two clients never get the same one. Once the broker has put it into the client's
mailbox, the claim stays until the client acknowledges. Read next: `broker.backends.redis.sink`,
`session.delivery.fetching.inbox`.
"""

import bisect
from typing import Any, Final, Protocol, TypeAlias

from broker.backends.inbox.questions import (
    ANSWER_BYTES_MAX,
    SUBSCRIPTIONS_MAX,
    Page,
    Question,
    first_id,
    time_of,
)
from broker.backends.redis.scripts import LESS
from session.delivery.fetching.inbox import LEASE_MS
from storage.tables.fetch_rows import QUEUE, RETAIN, SUBSCRIPTIONS

MESSAGE_KEY: Final = b"mqtt:msg:"
CLAIM_KEY: Final = b"holdfast:claim:"
LEASED: Final = b"l"  # then the client; the key expires
KEPT: Final = b"k"  # then the client
READ_IDS: Final = 500  # of a set, at once
READ_IDS_MAX: Final = 20_000  # of a queue, for one question

Pairs: TypeAlias = list[bytes]  # of a hash: field, value, field, value ...

# The scripts below have the keys of a message and of its topic at the end of KEYS, and what they
# are told at ARGV[2]. With this before it a script looks at the fence, in the same moment.
FENCED: Final = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {'fence'} end\n"
# Claims messages and returns them: id, fields, id, fields ...
CLAIM: Final = (
    FENCED
    + """
local answer, size = {'ok'}, 0
local most, bytes = tonumber(ARGV[4]), tonumber(ARGV[5])
for at = 6, #ARGV do
  if most == 0 or size >= bytes then break end
  local claim = KEYS[3] .. ARGV[at]
  local owner = redis.call('GET', claim)
  if not owner or owner == ARGV[2] then
    local fields = redis.pcall('HGETALL', KEYS[2] .. ARGV[at])
    if not fields.err and #fields > 0 then
      redis.call('SET', claim, ARGV[2], 'PX', ARGV[3])
      for index = 1, #fields do size = size + #fields[index] end
      answer[#answer + 1] = ARGV[at]
      answer[#answer + 1] = fields
      most = most - 1
    end
  end
end
return answer
"""
)
# Returns the next ids after a position, twice: those with score 1 are in the order of their ids,
# the others in that of their scores, which are times. Of a topic that keeps its newest message only
# it returns that: a hash.
NEXT: Final = (
    LESS
    + """
local key = KEYS[#KEYS]
if redis.call('TYPE', key).ok == 'hash' then return {'newest', redis.call('HGETALL', key)} end
local after, most = ARGV[2], tonumber(ARGV[4])
local low = redis.call('ZCOUNT', key, '-inf', '(1')
local last = low + redis.call('ZCOUNT', key, 1, 1)
local high = last
while low < high do
  local middle = math.floor((low + high) / 2)
  if less(after, redis.call('ZRANGE', key, middle, middle)[1]) then
    high = middle
  else
    low = middle + 1
  end
end
local plain = {}
if low < last then
  plain = redis.call('ZRANGE', key, low, math.min(low + most, last) - 1)
end
local timed, skip = {}, 0
while #timed < most do
  local found = redis.call('ZRANGEBYSCORE', key, ARGV[3], '+inf', 'LIMIT', skip, most)
  for index = 1, #found do
    if less(after, found[index]) and #timed < most then timed[#timed + 1] = found[index] end
  end
  if #found < most then break end
  skip = skip + most
end
return {'ok', plain, timed}
"""
)
# Returns the retained message of a topic: its id if it is in a set, ms until it expires, fields.
RETAINED: Final = (
    FENCED
    + """
local key, name = KEYS[2], ''
if redis.call('TYPE', key).ok == 'zset' then
  name = redis.call('ZREVRANGE', key, 0, 0)[1]
  key = KEYS[3] .. name
end
return {'ok', name, redis.call('PTTL', key), redis.call('HGETALL', key)}
"""
)
# Returns what a client is subscribed to: topic filter, QoS, topic filter, QoS ...
LISTED: Final = """
local key = KEYS[#KEYS]
local count = redis.call('HLEN', key)
if count > tonumber(ARGV[2]) then return {'large', count} end
return {'ok', redis.call('HGETALL', key)}
"""


class Reader(Protocol):
    """Reads a store for one question.

    Each method returns None if the store is not where the broker believes it to be, and raises what
    the client of Redis does.
    """

    def ids(self, key: bytes, start: int, stop: int) -> list[bytes]:
        """Return members of a sorted set by their places; nobody needs to look at the fence."""
        ...

    def claimed(
        self, ids: list[bytes], owner: bytes, most: int, size_bytes: int
    ) -> list[tuple[bytes, Pairs]] | None:
        """Claim messages for an owner, and return their fields.

        At most `most`, and none once `size_bytes` are read.
        """
        ...

    def position(self, key: bytes) -> bytes | None:
        """Return a position; nobody needs to look at the fence."""
        ...

    def following(self, key: bytes, after: bytes, low: bytes) -> list[Any] | None:
        """Return what `NEXT` does."""
        ...

    def message(self, name: bytes) -> dict[bytes, bytes]:
        """Return the fields of a message; nobody needs to look at the fence."""
        ...

    def retained(self, key: bytes) -> tuple[bytes, int, Pairs] | None:
        """Return the id of a retained message if it is in a set, ms until it expires, fields."""
        ...

    def listed(self, key: bytes) -> list[Any] | None:
        """Return what `LISTED` does."""
        ...


class FencedReader:
    """Reads one server, which looks at the fence in the script that reads."""

    def __init__(self, client: Any, fence_key: bytes, fence: bytes) -> None:
        self._client: Final = client
        self._fence_key: Final = fence_key
        self._fence: Final = fence

    def ids(self, key: bytes, start: int, stop: int) -> list[bytes]:
        """See `Reader`."""
        found: list[bytes] = self._client.zrange(key, start, stop)
        return found

    def claimed(
        self, ids: list[bytes], owner: bytes, most: int, size_bytes: int
    ) -> list[tuple[bytes, Pairs]] | None:
        """See `Reader`."""
        keys = (MESSAGE_KEY, CLAIM_KEY)
        answer = self._run(CLAIM, keys, owner, LEASE_MS, most, size_bytes, *ids)
        if answer is None:
            return None
        return list(zip(answer[1::2], answer[2::2], strict=True))

    def position(self, key: bytes) -> bytes | None:
        """See `Reader`."""
        found: bytes | None = self._client.get(key)
        return found

    def following(self, key: bytes, after: bytes, low: bytes) -> list[Any] | None:
        """See `Reader`."""
        return self._run(FENCED + NEXT, (key,), after, low, READ_IDS)

    def message(self, name: bytes) -> dict[bytes, bytes]:
        """See `Reader`."""
        found: dict[bytes, bytes] = self._client.hgetall(MESSAGE_KEY + name)
        return found

    def retained(self, key: bytes) -> tuple[bytes, int, Pairs] | None:
        """See `Reader`."""
        answer = self._run(RETAINED, (key, MESSAGE_KEY))
        return None if answer is None else (answer[1], answer[2], answer[3])

    def listed(self, key: bytes) -> list[Any] | None:
        """See `Reader`."""
        return self._run(FENCED + LISTED, (key,), SUBSCRIPTIONS_MAX)

    def _run(self, script: str, keys: tuple[bytes, ...], *told: Any) -> list[Any] | None:
        answer: list[Any] = self._client.eval(
            script, 1 + len(keys), self._fence_key, *keys, self._fence, *told
        )
        return None if answer[0] == b"fence" else answer


class RedisInbox:
    """Answers the questions of one backend."""

    def __init__(self, node: int) -> None:
        """`node` is the number of this broker in message ids."""
        self._node: Final = node

    def fetch(self, reader: Reader, question: Question) -> Page | None:
        """Return a page, None if the store is not where the fence says. Raises what Redis says."""
        if question.kind == QUEUE:
            return self._queue(reader, question)
        if question.kind == RETAIN:
            return self._retained(reader, question)
        if question.kind == SUBSCRIPTIONS:
            return self._listed(reader, question)
        return self._after(reader, question)

    def _queue(self, reader: Reader, question: Question) -> Page | None:
        page = Page(question.after)
        key = MESSAGE_KEY + question.topic.encode()
        owner = LEASED + question.client_id.encode()
        floor = first_id(question.not_before_ms)
        size = 0
        for start in range(0, READ_IDS_MAX, READ_IDS):
            found = reader.ids(key, start, start + READ_IDS - 1)
            ids = [each for each in found if self._is_wanted(each, floor, question)]
            left = question.count - len(page.messages)
            claimed = reader.claimed(ids, owner, left, ANSWER_BYTES_MAX - size)
            if claimed is None:
                return None
            for name, pairs in claimed:
                size += page.add(name.decode(), _fields(pairs))
            if len(page.messages) >= question.count or size >= ANSWER_BYTES_MAX:
                page.more = True
                break
            if len(found) < READ_IDS:
                break
        return page

    def _after(self, reader: Reader, question: Question) -> Page | None:
        """Return the messages behind the position of a client, in the order of ids."""
        acked = reader.position(f"mqtt:acked:{question.client_id}:{question.topic}".encode())
        # Below the first id of a time there may be others of that time only.
        after = max(
            question.after,
            (acked or b"").decode(errors="replace"),
            first_id(question.not_before_ms),
        )
        page = Page(after)
        since = time_of(after)
        low = b"%d" % since if since > 1 else b"(1"
        key = MESSAGE_KEY + question.topic.encode()
        answer = reader.following(key, after.encode(), low)
        if answer is None:
            return None
        if answer[0] == b"newest":
            self._add_newest(page, _fields(answer[1]), question)
            return page
        plain, timed = sorted(answer[1]), sorted(answer[2])
        # Where one of the two is cut, the other one must not go on.
        ends = [each[-1] for each in (plain, timed) if len(each) >= READ_IDS]
        ids = sorted({*plain, *timed})
        page.more = bool(ends)
        if ends:
            ids = ids[: bisect.bisect_right(ids, min(ends))]
        size = 0
        for each in ids:
            if len(page.messages) >= question.count or size >= ANSWER_BYTES_MAX:
                page.more = True
                break
            if self._is_wanted(each, "", question):
                size += page.add(each.decode(), _text_keys(reader.message(each)))
            page.upto = each.decode(errors="replace")
        return page

    def _add_newest(self, page: Page, fields: dict[str, bytes], question: Question) -> None:
        """Add the newest message of a topic, if it is behind the position.

        A topic may be named like the id of another message, whose hash has another topic.
        """
        name = fields.get("id", b"")
        if fields.get("topic") != question.topic.encode():
            return
        if name.decode(errors="replace") <= page.upto or not self._is_wanted(name, "", question):
            return
        page.add(name.decode(), fields)
        page.upto = name.decode()

    def _retained(self, reader: Reader, question: Question) -> Page | None:
        """Return the retained message of a topic: in a hash, or in the newest one of a set of ids.

        None that this broker has written: the broker knows those.
        """
        answer = reader.retained(b"mqtt:retain:" + question.topic.encode())
        if answer is None:
            return None
        page = Page("")
        fields = _fields(answer[2])
        name = (answer[0] or fields.get("id", b"")).decode(errors="replace")
        if not question.is_written_here(name, self._node):
            page.add_retained(name, fields, time_of(name), max(0, answer[1]))
        return page

    def _listed(self, reader: Reader, question: Question) -> Page | None:
        """Return what a client is subscribed to, in the order of the filters."""
        answer = reader.listed(b"mqtt:sub:" + question.client_id.encode())
        if answer is None:
            return None
        page = Page("")
        if answer[0] != b"ok":
            page.why = (
                f"mqtt:sub:{question.client_id} has {answer[1]} topic filters, expected at most "
                f"{SUBSCRIPTIONS_MAX}"
            )
            return page
        pairs = answer[1]
        page.add_subscriptions(zip(pairs[::2], pairs[1::2], strict=True), question)
        return page

    def _is_wanted(self, name: bytes, floor: str, question: Question) -> bool:
        try:
            text = name.decode()
        except UnicodeDecodeError:
            return False
        return text >= floor and not question.is_ours(text, self._node)


def _fields(pairs: list[bytes]) -> dict[str, bytes]:
    return _text_keys(dict(zip(pairs[::2], pairs[1::2], strict=True)))


def _text_keys(fields: dict[bytes, bytes]) -> dict[str, bytes]:
    return {key.decode(errors="replace"): value for key, value in fields.items()}
