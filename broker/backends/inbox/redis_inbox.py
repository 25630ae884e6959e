"""Finds in Redis what a session fetches: messages of queues, of topics with a position, retained,
and what its client is subscribed to.

A script looks first whether the store still has everything that the broker believes it has, as the
script that applies rows does. A message of a queue is claimed for a client by a key that expires,
in the script that reads it: two clients never get the same one. Once the broker has put it into the
client's mailbox, the claim stays until the client acknowledges. Read next:
`broker.backends.redis_sink`, `session.delivery.fetching.inbox`.
"""

import bisect
from typing import Any, Final

from broker.backends.inbox.questions import (
    ANSWER_BYTES_MAX,
    SUBSCRIPTIONS_MAX,
    Page,
    Question,
    first_id,
    time_of,
)
from session.delivery.fetching.inbox import LEASE_MS
from storage.tables.fetch_rows import QUEUE, RETAIN, SUBSCRIPTIONS

CLAIM_KEY: Final = b"holdfast:claim:"
LEASED: Final = b"l"  # then the client; the key expires
KEPT: Final = b"k"  # then the client
READ_IDS: Final = 500  # of a set, at once
READ_IDS_MAX: Final = 20_000  # of a queue, for one question

# A function for scripts.
LESS: Final = """
-- By bytes: what `<` says of texts depends on the server's locale.
local function less(one, other)
  for at = 1, math.min(#one, #other) do
    local left, right = string.byte(one, at), string.byte(other, at)
    if left ~= right then return left < right end
  end
  return #one < #other
end
"""
# Claims messages and returns them: id, fields, id, fields ...
CLAIM: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {'fence'} end
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
# Returns the next ids after a position, twice: those with score 1 are in the order of their ids,
# the others in that of their scores, which are times.
NEXT: Final = (
    LESS
    + """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {'fence'} end
local after, most = ARGV[2], tonumber(ARGV[4])
local low = redis.call('ZCOUNT', KEYS[2], '-inf', '(1')
local last = low + redis.call('ZCOUNT', KEYS[2], 1, 1)
local high = last
while low < high do
  local middle = math.floor((low + high) / 2)
  if less(after, redis.call('ZRANGE', KEYS[2], middle, middle)[1]) then
    high = middle
  else
    low = middle + 1
  end
end
local plain = {}
if low < last then
  plain = redis.call('ZRANGE', KEYS[2], low, math.min(low + most, last) - 1)
end
local timed, skip = {}, 0
while #timed < most do
  local found = redis.call('ZRANGEBYSCORE', KEYS[2], ARGV[3], '+inf', 'LIMIT', skip, most)
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
RETAINED: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {'fence'} end
local key, name = KEYS[2], ''
if redis.call('TYPE', key).ok == 'zset' then
  name = redis.call('ZREVRANGE', key, 0, 0)[1]
  key = KEYS[3] .. name
end
return {'ok', name, redis.call('PTTL', key), redis.call('HGETALL', key)}
"""
# Returns what a client is subscribed to: topic filter, QoS, topic filter, QoS ...
LISTED: Final = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then return {'fence'} end
local count = redis.call('HLEN', KEYS[2])
if count > tonumber(ARGV[2]) then return {'large', count} end
return {'ok', redis.call('HGETALL', KEYS[2])}
"""


class RedisInbox:
    """Answers the questions of one backend."""

    def __init__(self, node: int) -> None:
        """`node` is the number of this broker in message ids."""
        self._node: Final = node

    def fetch(self, client: Any, fence_key: bytes, fence: bytes, question: Question) -> Page | None:
        """Return a page, None if the store is not where the fence says. Raises what Redis says."""
        if question.kind == QUEUE:
            return self._queue(client, fence_key, fence, question)
        if question.kind == RETAIN:
            return self._retained(client, fence_key, fence, question)
        if question.kind == SUBSCRIPTIONS:
            return self._listed(client, fence_key, fence, question)
        return self._after(client, fence_key, fence, question)

    def _queue(
        self, client: Any, fence_key: bytes, fence: bytes, question: Question
    ) -> Page | None:
        page = Page(question.after)
        key = b"mqtt:msg:" + question.topic.encode()
        floor = first_id(question.not_before_ms)
        size = 0
        for start in range(0, READ_IDS_MAX, READ_IDS):
            found = client.zrange(key, start, start + READ_IDS - 1)
            ids = [each for each in found if self._is_wanted(each, floor, question)]
            left = question.count - len(page.messages)
            answer = client.eval(
                CLAIM,
                3,
                *(fence_key, b"mqtt:msg:", CLAIM_KEY),
                *(fence, LEASED + question.client_id.encode(), LEASE_MS),
                *(left, ANSWER_BYTES_MAX - size),
                *ids,
            )
            if answer[0] != b"ok":
                return None
            for at in range(1, len(answer), 2):
                size += page.add(answer[at].decode(), _fields(answer[at + 1]))
            if len(page.messages) >= question.count or size >= ANSWER_BYTES_MAX:
                page.more = True
                break
            if len(found) < READ_IDS:
                break
        return page

    def _after(
        self, client: Any, fence_key: bytes, fence: bytes, question: Question
    ) -> Page | None:
        """Return the messages behind the position of a client, in the order of ids."""
        acked = client.get(f"mqtt:acked:{question.client_id}:{question.topic}".encode())
        # Below the first id of a time there may be others of that time only.
        after = max(
            question.after,
            (acked or b"").decode(errors="replace"),
            first_id(question.not_before_ms),
        )
        page = Page(after)
        key = b"mqtt:msg:" + question.topic.encode()
        since = time_of(after)
        low = b"%d" % since if since > 1 else b"(1"
        answer = client.eval(NEXT, 2, fence_key, key, fence, after.encode(), low, READ_IDS)
        if answer[0] != b"ok":
            return None
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
                size += page.add(each.decode(), _text_keys(client.hgetall(b"mqtt:msg:" + each)))
            page.upto = each.decode(errors="replace")
        return page

    def _retained(
        self, client: Any, fence_key: bytes, fence: bytes, question: Question
    ) -> Page | None:
        """Return the retained message of a topic: in a hash, or in the newest one of a set of ids.

        None that this broker has written: the broker knows those.
        """
        key = b"mqtt:retain:" + question.topic.encode()
        answer = client.eval(RETAINED, 3, fence_key, key, b"mqtt:msg:", fence)
        if answer[0] != b"ok":
            return None
        page = Page("")
        fields = _fields(answer[3])
        name = (answer[1] or fields.get("id", b"")).decode(errors="replace")
        if not question.is_written_here(name, self._node):
            page.add_retained(name, fields, time_of(name), max(0, answer[2]))
        return page

    def _listed(
        self, client: Any, fence_key: bytes, fence: bytes, question: Question
    ) -> Page | None:
        """Return what a client is subscribed to, in the order of the filters."""
        key = b"mqtt:sub:" + question.client_id.encode()
        answer = client.eval(LISTED, 2, fence_key, key, fence, SUBSCRIPTIONS_MAX)
        if answer[0] == b"fence":
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
