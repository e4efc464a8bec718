-- How often entries are on queues, delivered or not.
-- KEYS: queue streams. ARGV: entry ids. Returns in how many places one of them is.
local places = 0
for _, key in ipairs(KEYS) do
  for _, id in ipairs(ARGV) do
    places = places + #redis.call('XRANGE', key, id, id)
  end
end
return places
