-- Takes back the state of a request that was not enqueued, if nobody has touched it since.
-- KEYS: state.
local state = redis.call('HMGET', KEYS[1], 'status', 'epoch', 'entry', 'cancel')
if state[1] == 'queued' and state[2] == '0' and not state[3] and not state[4] then
  redis.call('DEL', KEYS[1])
end
