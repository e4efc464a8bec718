-- Put the entry of a running request back on its queue: somebody else has deleted it.
--
-- KEYS: queue stream
-- ARGV: group, consumer, id of the entry that was deleted, field r
-- Returns {id of the new entry, 1 if it is the consumer's as the old one was, or 0 if it waits behind others}, or
-- nil if the old one is there.
--
-- A group delivers entries in their order, so that only one that nothing waits before can be taken at once.

local key, group, consumer = KEYS[1], ARGV[1], ARGV[2]
if #redis.call('XRANGE', key, ARGV[3], ARGV[3]) > 0 then return nil end

local last
if redis.call('EXISTS', key) == 1 then
  for _, fields in ipairs(redis.call('XINFO', 'GROUPS', key)) do
    local of = {}
    for f = 1, #fields, 2 do of[fields[f]] = fields[f + 1] end
    if of.name == group then last = of['last-delivered-id'] end
  end
end
local behind = #redis.call('XRANGE', key, last and '(' .. last or '-', '+', 'COUNT', 1) > 0
local id = redis.call('XADD', key, '*', 'r', ARGV[4])
if behind then return {id, 0} end
if not last then redis.call('XGROUP', 'CREATE', key, group, '0') end
redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', 1, 'STREAMS', key, '>')
return {id, 1}
