-- Adds a task unless it exists or the schedule is full.
-- KEYS: due, tasks. ARGV: task id, task, ms until it is due, limit of tasks, TTL ms. Returns 0 when full, else 1.
if redis.call('HEXISTS', KEYS[2], ARGV[1]) == 0 then
  if redis.call('HLEN', KEYS[2]) >= tonumber(ARGV[4]) then return 0 end
  local time = redis.call('TIME')
  local due = time[1] * 1000 + math.floor(time[2] / 1000) + ARGV[3]
  redis.call('ZADD', KEYS[1], string.format('%d', due), ARGV[1])
  redis.call('HSET', KEYS[2], ARGV[1], ARGV[2])
end
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
return 1
