-- Forget consumers that hold nothing and have not been heard of for long: workers that are gone.
--
-- KEYS: the queue streams
-- ARGV: group, idle ms
-- Returns how many were forgotten.

local group, limit = ARGV[1], tonumber(ARGV[2])
local forgotten = 0
for _, key in ipairs(KEYS) do
  local consumers = redis.call('EXISTS', key) == 1 and redis.pcall('XINFO', 'CONSUMERS', key, group)
  if consumers and not consumers.err then
    for _, fields in ipairs(consumers) do
      local consumer = {}
      for f = 1, #fields, 2 do consumer[fields[f]] = fields[f + 1] end
      if consumer.pending == 0 and consumer.idle > limit then
        redis.call('XGROUP', 'DELCONSUMER', key, group, consumer.name)
        forgotten = forgotten + 1
      end
    end
  end
end
return forgotten
