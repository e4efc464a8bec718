-- Adds requests to their queues, all or none: unless the model's queues would hold too many.
-- KEYS: all queue streams of the model. ARGV: the limit, then for each request which of the queues (from 1) and the
-- request. Returns {depth before, then each entry's id; none when full}.
local depth = 0
for _, queue in ipairs(KEYS) do
  depth = depth + redis.call('XLEN', queue)
end
if depth + (#ARGV - 1) / 2 > tonumber(ARGV[1]) then
  return {depth}
end
local reply = {depth}
for i = 2, #ARGV, 2 do
  reply[#reply + 1] = redis.call('XADD', KEYS[tonumber(ARGV[i])], '*', 'r', ARGV[i + 1])
end
return reply
