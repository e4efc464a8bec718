-- Give up a running request so that another worker can go on with it. It does not count as an attempt.
--
-- KEYS: request hash, event log
-- ARGV: epoch, TTL ms
-- Returns 1, or 0 when this epoch is over.

local state = redis.call('HMGET', KEYS[1], 'status', 'epoch')
if state[1] ~= 'running' or state[2] ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'status', 'queued')
redis.call('HINCRBY', KEYS[1], 'attempts', -1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return 1
