-- A whole submission, where one script may touch a request and its queues: on a single server, not in a cluster.
-- A server that loses its last second has all of it afterwards, or nothing.
-- KEYS: state, then all queue streams of the model. ARGV: which of them (from 1), the limit, the request, model,
-- TTL in ms of a state created here.
-- Returns {depth before, entry id or '' when full}; nothing where the request is known already.
local state = redis.call('HMGET', KEYS[1], 'status', 'entry')
if state[1] and (state[2] or state[1] ~= 'queued') then
  return {}
end
local depth = 0
for i = 2, #KEYS do
  depth = depth + redis.call('XLEN', KEYS[i])
end
if depth >= tonumber(ARGV[2]) then
  return {depth, ''}
end
local entry = redis.call('XADD', KEYS[1 + tonumber(ARGV[1])], '*', 'r', ARGV[3])
if not state[1] then
  local now = redis.call('TIME')
  local milliseconds = string.format('%d', now[1] * 1000 + math.floor(now[2] / 1000))
  redis.call('HSET', KEYS[1], 'status', 'queued', 'epoch', 0, 'model', ARGV[4], 'created', milliseconds)
  redis.call('PEXPIRE', KEYS[1], ARGV[5])
end
redis.call('HSET', KEYS[1], 'entry', entry)
return {depth, entry}
