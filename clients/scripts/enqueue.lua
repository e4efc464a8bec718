-- Adds a request to its queue unless the model's queues hold too many.
-- KEYS: all queue streams of the model. ARGV: which of them (from 1), the limit, the request.
-- Returns {depth before, entry id or '' when full}.
local depth = 0
for _, queue in ipairs(KEYS) do
  depth = depth + redis.call('XLEN', queue)
end
if depth >= tonumber(ARGV[2]) then
  return {depth, ''}
end
return {depth, redis.call('XADD', KEYS[tonumber(ARGV[1])], '*', 'r', ARGV[3])}
