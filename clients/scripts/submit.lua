-- A whole submission of one request or several of one model, all or none, where one script may touch requests and
-- their queues: on a single server, not in a cluster. A server that loses its last second has all of it afterwards,
-- or nothing.
-- KEYS: a state for each request, then all queue streams of the model. ARGV: the limit, model, TTL in ms of a state
-- created here, then for each request which queue (from 1) and the request.
-- Returns {depth before, how many were enqueued, or -1 and nothing is done where that would exceed the limit}.
-- Requests that are known already are passed over.
local count = (#ARGV - 3) / 2
local fresh = {}
for i = 1, count do
  local state = redis.call('HMGET', KEYS[i], 'status', 'entry')
  if not state[1] or (state[1] == 'queued' and not state[2]) then
    fresh[#fresh + 1] = {i, state[1]}
  end
end
local depth = 0
for i = count + 1, #KEYS do
  depth = depth + redis.call('XLEN', KEYS[i])
end
if #fresh > 0 and depth + #fresh > tonumber(ARGV[1]) then
  return {depth, -1}
end
for _, request in ipairs(fresh) do
  local i, known = request[1], request[2]
  local entry = redis.call('XADD', KEYS[count + tonumber(ARGV[2 * i + 2])], '*', 'r', ARGV[2 * i + 3])
  if not known then
    local now = redis.call('TIME')
    local milliseconds = string.format('%d', now[1] * 1000 + math.floor(now[2] / 1000))
    redis.call('HSET', KEYS[i], 'status', 'queued', 'epoch', 0, 'model', ARGV[2], 'created', milliseconds)
    redis.call('PEXPIRE', KEYS[i], ARGV[3])
  end
  redis.call('HSET', KEYS[i], 'entry', entry)
end
return {depth, #fresh}
