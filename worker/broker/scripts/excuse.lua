-- Take back the charge for an attempt whose worker could not reach Redis, and is alive.
--
-- KEYS: request hash
-- ARGV: epoch, consumer
-- Returns 1, or 0 where nothing is charged, or no more.
--
-- Field `silent` lists the consumers whose attempts are charged because they fell silent, each followed by a
-- space, or by "+ " where the attempt counts by a quarter.

local epoch, consumer = ARGV[1], ARGV[2]
local state = redis.call('HMGET', KEYS[1], 'status', 'epoch', 'worker', 'seq', 'silent')
if not state[1] or state[1] == 'finished' then return 0 end

if state[1] == 'running' and state[2] == epoch and state[3] == consumer then
  -- Whoever took the entry has not claimed it yet: as if it had been handed back.
  redis.call('HSET', KEYS[1], 'status', 'queued', 'since', state[4] or '0')
  redis.call('HINCRBY', KEYS[1], 'attempts', -1)
  return 1
end
local silent = ' ' .. (state[5] or '')
for _, mark in ipairs({' ', '+ '}) do
  local from, to = silent:find(' ' .. consumer .. mark, 1, true)
  if from then
    redis.call('HSET', KEYS[1], 'silent', (silent:sub(1, from) .. silent:sub(to + 1)):sub(2))
    redis.call('HINCRBY', KEYS[1], 'attempts', -1)
    if mark == '+ ' then redis.call('HINCRBY', KEYS[1], 'spared', -1) end
    return 1
  end
end
return 0
