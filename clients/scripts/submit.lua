-- A whole submission of one request or several of one model, all or none, where one script may touch requests and
-- their queues: on a single server, not in a cluster. A server that loses its last second has all of it afterwards,
-- or nothing.
-- KEYS: a state for each request, then all queue streams of the model. ARGV: the limit, model, TTL in ms of a state
-- created here, ms after which a known request is enqueued again, then for each request which queue (from 1) and the
-- request.
-- Returns {depth before, how many were enqueued, or -1 and nothing is done where that would exceed the limit}.
-- Requests that are known already and were enqueued a short while ago are passed over, and so are others that are
-- known where there is no room: theirs is a second entry, in case somebody has deleted the first.
local count = (#ARGV - 4) / 2
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local fresh, again = {}, {}
for i = 1, count do
  local state = redis.call('HMGET', KEYS[i], 'status', 'entry')
  local entered = state[2] and tonumber(string.match(state[2], '^%d+'))
  if not state[1] or (state[1] == 'queued' and not entered) then
    fresh[#fresh + 1] = {i, state[1]}
  elseif state[1] ~= 'finished' and now - (entered or 0) >= tonumber(ARGV[4]) then
    again[#again + 1] = {i, state[1]}
  end
end
local depth = 0
for i = count + 1, #KEYS do
  depth = depth + redis.call('XLEN', KEYS[i])
end
local limit = tonumber(ARGV[1])
if #fresh > 0 and depth + #fresh > limit then
  return {depth, -1}
end
if depth + #fresh + #again <= limit then
  for _, request in ipairs(again) do
    fresh[#fresh + 1] = request
  end
end
for _, request in ipairs(fresh) do
  local i, known = request[1], request[2]
  local entry = redis.call('XADD', KEYS[count + tonumber(ARGV[2 * i + 3])], '*', 'r', ARGV[2 * i + 4])
  if not known then
    redis.call('HSET', KEYS[i], 'status', 'queued', 'epoch', 0, 'model', ARGV[2],
               'created', string.format('%d', now))
    redis.call('PEXPIRE', KEYS[i], ARGV[3])
  end
  redis.call('HSET', KEYS[i], 'entry', entry)
end
return {depth, #fresh}
