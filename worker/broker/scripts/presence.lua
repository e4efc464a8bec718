-- Bring this worker's record up to date. It says nothing about leases: only the heartbeat makes the record, and
-- says how long it lives.
--
-- KEYS: the worker hash
-- ARGV: field, value, ...

if redis.call('EXISTS', KEYS[1]) == 1 then
  local time = redis.call('TIME')
  redis.call('HSET', KEYS[1], 'updated', time[1] * 1000 + math.floor(time[2] / 1000), unpack(ARGV))
end
