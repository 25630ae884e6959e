"""What we do in Redis that it has no command for: parts of scripts.

`SETMAX key value` sets a key unless it has a greater value. `DELIF key value value` deletes it if
it has one of the values. `NEWEST key id seconds field value ...` makes a hash that is the newest
message of a topic, unless there is one with a later id. They are commands to
`broker.backends.redis.actions`. Pure. Read next: `broker.backends.redis.sink`.
"""

from typing import Final

SETMAX: Final = b"SETMAX"
DELIF: Final = b"DELIF"
NEWEST: Final = b"NEWEST"
OWN_COMMANDS: Final = frozenset({SETMAX, DELIF, NEWEST})

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
# Functions by the name of the command; each has one key, and returns what `redis.pcall` does.
OWN: Final = (
    LESS
    + """
local own = {}
function own.SETMAX(key, value)
  local have = redis.pcall('GET', key)
  if type(have) == 'table' or (have and not less(have, value)) then return have end
  return redis.pcall('SET', key, value)
end
function own.DELIF(key, one, other)
  local have = redis.pcall('GET', key)
  if have ~= one and have ~= other then return have end
  return redis.pcall('DEL', key)
end
function own.NEWEST(key, id, seconds, ...)
  local have = redis.pcall('HGET', key, 'id')
  if type(have) == 'table' or (have and not less(have, id)) then return have end
  redis.pcall('DEL', key)
  local result = redis.pcall('HSET', key, ...)
  if seconds ~= '0' then redis.pcall('EXPIRE', key, seconds) end
  return result
end
"""
)
# One of them as a script: the key, then the command and its other arguments.
ONE: Final = OWN + "return own[ARGV[1]](KEYS[1], unpack(ARGV, 2))"
