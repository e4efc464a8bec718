-- A request's state: created unless it is there, or where one is given, a queue entry's id noted in it.
-- KEYS: state. ARGV: model, TTL in ms of a state created here, entry id or '', ms after which a known request is
-- enqueued again.
-- Returns {1 if created, what is to be done: 'enqueue', 'again' where it has been enqueued that long ago and not
-- ended, or ''}.
if ARGV[3] ~= '' then
  if redis.call('EXISTS', KEYS[1]) == 1 then
    redis.call('HSET', KEYS[1], 'entry', ARGV[3])
  end
  return {0, ''}
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('HSET', KEYS[1], 'status', 'queued', 'epoch', 0, 'model', ARGV[1], 'created', string.format('%d', now))
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return {1, 'enqueue'}
end
local state = redis.call('HMGET', KEYS[1], 'status', 'entry')
local entered = state[2] and tonumber(string.match(state[2], '^%d+'))
if state[1] == 'queued' and not entered then
  return {0, 'enqueue'}
end
if state[1] and state[1] ~= 'finished' and now - (entered or 0) >= tonumber(ARGV[4]) then
  return {0, 'again'}
end
return {0, ''}
