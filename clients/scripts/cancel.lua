-- Flags a request as cancelled unless it has ended. Creates nothing: a flag alone would live forever.
-- KEYS: state. Returns {status or '' where there is none, model or ''}.
local state = redis.call('HMGET', KEYS[1], 'status', 'model')
if state[1] and state[1] ~= 'finished' then
  redis.call('HSET', KEYS[1], 'cancel', 1)
end
return {state[1] or '', state[2] or ''}
