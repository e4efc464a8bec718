-- Number of entries in a model's queues, and number of entries that have left them.
-- KEYS: all queue streams of the model. Returns {length, left}.
local held, added = 0, 0
for _, queue in ipairs(KEYS) do
  if redis.call('EXISTS', queue) == 1 then
    local info = redis.call('XINFO', 'STREAM', queue)
    for f = 1, #info, 2 do
      if info[f] == 'length' then held = held + info[f + 1] end
      if info[f] == 'entries-added' then added = added + info[f + 1] end
    end
  end
end
return {held, added - held}
