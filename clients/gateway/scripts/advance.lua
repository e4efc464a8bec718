-- Sets a batch's next status and its time. Creates no batch: a record of a status alone would be damaged.
-- KEYS: batch. ARGV: status, allowed present statuses, each between spaces, TTL ms, then fields and values.
-- Returns the status afterwards, '' without a batch.
local before = redis.call('HGET', KEYS[1], 'status')
if not before then return '' end
if not string.find(ARGV[2], ' ' .. before .. ' ', 1, true) then return before end
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], 'status', ARGV[1], 'at:' .. ARGV[1], time[1])
for i = 4, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1])
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return ARGV[1]
