-- Postpones or finishes a leased task, if the lease has not expired.
-- KEYS: due, tasks. ARGV: task id, lease, ms until it is due or '' to finish it, task, TTL ms.
-- Returns the new lease, 1 when finished, or 0 if the lease had expired.
local due = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not due or tonumber(due) ~= tonumber(ARGV[2]) then return 0 end
if ARGV[3] == '' then
  redis.call('ZREM', KEYS[1], ARGV[1])
  redis.call('HDEL', KEYS[2], ARGV[1])
  return 1
end
local time = redis.call('TIME')
local later = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[3]
redis.call('ZADD', KEYS[1], string.format('%d', later), ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
return later
