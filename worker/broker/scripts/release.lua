-- Give up a running request so that another worker can go on with it. It does not count as an attempt.
--
-- KEYS: request hash, event log
-- ARGV: epoch, consumer, TTL ms
-- Returns 1, or 0 when this claim is over.

local state = redis.call('HMGET', KEYS[1], 'status', 'epoch', 'worker', 'seq')
if state[1] ~= 'running' or state[2] ~= ARGV[1] or state[3] ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'status', 'queued', 'since', state[4] or '0')
redis.call('HINCRBY', KEYS[1], 'attempts', -1)
redis.call('PEXPIRE', KEYS[1], ARGV[3])
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return 1
