-- A request's state: created unless it is there, or where one is given, a queue entry's id noted in it.
-- KEYS: state. ARGV: model, TTL in ms of a state created here, entry id or ''.
-- Returns {1 if created, status, entry id}, the last two as they were before.
local created = ARGV[3] == '' and redis.call('EXISTS', KEYS[1]) == 0
if created then
  local now = redis.call('TIME')
  local milliseconds = string.format('%d', now[1] * 1000 + math.floor(now[2] / 1000))
  redis.call('HSET', KEYS[1], 'status', 'queued', 'epoch', 0, 'model', ARGV[1], 'created', milliseconds)
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
end
local before = redis.call('HMGET', KEYS[1], 'status', 'entry')
if ARGV[3] ~= '' and before[1] then
  redis.call('HSET', KEYS[1], 'entry', ARGV[3])
end
return {created and 1 or 0, before[1] or '', before[2] or ''}
