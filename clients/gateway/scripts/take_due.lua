-- Leases the task that has been due longest.
-- KEYS: due, tasks. ARGV: lease ms. Returns {task id, task, lease} or {}.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local id = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now, 'LIMIT', 0, 1)[1]
if not id then return {} end
local task = redis.call('HGET', KEYS[2], id)
if not task then
  redis.call('ZREM', KEYS[1], id)
  return {}
end
local lease = string.format('%d', now + ARGV[1])
redis.call('ZADD', KEYS[1], lease, id)
return {id, task, lease}
